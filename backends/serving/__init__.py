"""What is the same wherever vLLM runs: endpoint client, metrics, load, reports, the simulator."""
