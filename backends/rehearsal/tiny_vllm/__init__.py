"""A real vLLM from nothing, on a machine without a GPU: a CPU build and a tiny random Gemma 4.

For tests and the demo. It shows that the plumbing is right, with text that is gibberish; its speed
says nothing about any GPU. `python -m backends.rehearsal.tiny_vllm --help` tells the commands.
"""
