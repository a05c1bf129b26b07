"""Compute Engine as it is played: places, networks, disks, and machines that live in its order."""
