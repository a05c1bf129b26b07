"""How long a client waits for the first answer: ours against a bare one-tool server.

Spawns both in turn, so that what else the machine does hits both alike, and times each from the
spawn to the answer of `initialize`. Run: `python -m benchmarks.startup [ROUNDS]`.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.support.probe import SERVER, Probe

# What a start may cost beyond the SDK's own, which is most of it (1.3-1.5 CPU seconds, 2026-11-30).
TARGET_RATIO = 1.3

BARE = '''\
"""A server with one tool."""
from mcp.server.mcpserver import MCPServer

server = MCPServer("bare")


@server.tool()
def ping() -> str:
    """Answer."""
    return "pong"


server.run()
'''


def time_once(argv: tuple[str, ...], env: dict[str, str]) -> tuple[float, float]:
    """Seconds from the spawn to the answer of `initialize`, and the CPU seconds of that start."""
    before = os.times()
    began = time.perf_counter()
    with Probe(era="legacy", argv=argv, env=env):
        seconds = time.perf_counter() - began
    after = os.times()
    cpu = after.children_user + after.children_system
    return seconds, cpu - before.children_user - before.children_system


def main(argv: list[str]) -> int:
    """Print medians and the ratio; returns 1 where the ratio is over the target."""
    rounds = int(argv[1]) if len(argv) > 1 else 15
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder) / "bare.py"
        bare.write_text(BARE, encoding="utf-8")
        env = {"HOME": folder, "VLLM_DEVOPS_ENV_FILE": os.devnull}
        programs = {"bare": (sys.executable, str(bare)), "ours": SERVER}
        figures: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
        for index in range(rounds + 1):
            for name, command in programs.items():
                figure = time_once(command, env)
                if index:  # the first round warms the page cache and the .pyc files
                    figures[name].append(figure)
    medians: dict[str, list[float]] = {}
    print(f"spawn to initialize answered, {rounds} interleaved rounds, seconds")
    for name, rows in figures.items():
        walls, cpus = zip(*rows, strict=True)
        medians[name] = [statistics.median(walls), statistics.median(cpus)]
        wall = medians[name][0]
        print(f"{name:5} median {wall:.3f}  min {min(walls):.3f}  cpu {medians[name][1]:.3f}")
    wall_ratio, cpu_ratio = (a / b for a, b in zip(medians["ours"], medians["bare"], strict=True))
    print(f"ratio {wall_ratio:.2f} wall, {cpu_ratio:.2f} cpu (target: at most {TARGET_RATIO})")
    return 0 if wall_ratio <= TARGET_RATIO else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv))
