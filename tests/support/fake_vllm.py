"""A stand-in for the `vllm` program: takes `serve MODEL …` and serves with the simulator.

For what is about our handling of a real engine (price, budget, secrets, a process group) and not
about vLLM itself, which tests/real_vllm covers.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def make_program(folder: Path) -> Path:
    """Make an installation below `folder`; returns the program, for VLLM_DEVOPS_VLLM_BIN."""
    program = folder / "bin" / "vllm"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    # The version is read from the package's metadata; "cpu" in it means that no GPU is needed.
    (folder / "lib/python3.11/site-packages/vllm-0.32.0+cpu.dist-info").mkdir(parents=True)
    return program


def main(argv: list[str]) -> int:
    """Translate vLLM's arguments to the simulator's and run it."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from backends.serving.simulator import __main__ as simulator

    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", default="8000")
    parser.add_argument("--served-model-name", default=None)
    known, _ = parser.parse_known_args(argv)
    name = known.served_model_name or known.model
    sys.argv[1:] = [f"--host={known.host}", f"--port={known.port}", f"--served-model-name={name}"]
    return simulator.main()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
