"""Hosts and what runs on them, on machines of the rehearsal cloud."""
