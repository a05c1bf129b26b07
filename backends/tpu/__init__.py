"""Target `tpu-v6e`: vLLM on Cloud TPU v6e, by queued resources or as Compute Engine instances."""
