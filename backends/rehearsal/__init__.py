"""Rehearsal: what a newcomer runs without an account. Imported by nothing but its launchers."""
