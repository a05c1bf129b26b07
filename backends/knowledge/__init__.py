"""What is known about accelerators, checkpoints and prices: data with its source and date."""
