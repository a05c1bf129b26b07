"""Everything `server.py` dispatches to: one module per target, and the layers they stand on."""
