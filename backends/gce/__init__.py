"""The control plane of Compute Engine: virtual machines with one Tesla T4 that serve with vLLM."""
