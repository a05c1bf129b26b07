"""Cloud Run with one GPU a container: one control plane, two profiles (L4 and RTX PRO 6000)."""
