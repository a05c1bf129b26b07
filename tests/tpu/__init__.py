"""The target `tpu-v6e`."""
