"""A vLLM-compatible server that computes nothing but the time things take.

`python -m backends.serving.simulator` serves what vLLM 0.32 serves (same routes, bodies, errors,
metrics and log lines) with the timing of a chosen accelerator and checkpoint. It needs no GPU, no
weights and no account. Every answer carries `x-vllm-devops-simulated: 1`; every figure taken from
it is simulated.
"""
