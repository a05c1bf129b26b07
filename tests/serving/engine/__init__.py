"""Tests of the load engine: its parts by themselves, then all of it against the truth."""
