"""The `local` target: this machine, with the simulator, a real vLLM, or an attached endpoint."""

from backends.local.backend import LocalBackend

__all__ = ["LocalBackend"]
