"""Cloud Run: one store of services and revisions behind API v1 and v2, and what runs in them."""
