"""Cloud TPU as it behaves: requests for slices, the machines they become, and what ends them."""
