"""The whole job, through a real MCP client: deploy, wait, verify, query, benchmark, destroy.

`make demo` runs it on the simulator, `make demo ENGINE=vllm` on a real vLLM on this machine's CPU
with a tiny random Gemma 4. It starts server.py as any client would and leaves nothing running.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from backends.core.settings import PROJECT_DIR, variable_of
from backends.rehearsal.guest import Guest, Json, WalkError, run_walk, structured
from backends.rehearsal.stages import (
    benchmark,
    end,
    keep,
    look,
    make_sure_it_is_gone,
    print_benchmark,
    show_plan,
    until_ready,
)
from backends.rehearsal.terminal import Terminal

HERE: Json = {"target": "local", "name": "demo"}
LEVELS = [1, 2, 4, 8]
REQUESTS, MAX_TOKENS = 16, 48

_READY_TIMEOUT_S = {"simulator": 120.0, "vllm": 600.0}


async def walk(guest: Guest, deployment: Json, out: Path, ready_timeout_s: float) -> None:
    """The main job, from the first question to the last check.

    Args:
        guest: The client.
        deployment: Arguments of plan_deployment.
        out: Folder for the benchmark's chart and figures.
        ready_timeout_s: How long the engine may take to start, in seconds.

    Raises:
        WalkError: Something is not as it should be.
    """
    show = guest.terminal

    show.heading("1. What is there, and what would be done")
    for line in (await guest.ask("get_help"))["order_of_work"]:
        show.detail(line)
    plan = await guest.ask("plan_deployment", **HERE, **deployment)
    show_plan(show, plan)

    show.heading("2. Deploy exactly that plan, and wait")
    await guest.ask("deploy", **HERE, plan_id=plan["plan_id"])
    await until_ready(guest, HERE, ready_timeout_s)

    show.heading("3. Does it work, and how fast")
    await look(guest, HERE, max_tokens=MAX_TOKENS)

    show.heading("4. Benchmark it")
    answer = await benchmark(guest, HERE, levels=LEVELS, requests=REQUESTS, max_tokens=MAX_TOKENS)
    files = keep(answer, out)

    show.heading("5. Destroy it: once for the plan, once with its id")
    await end(guest, "destroy", HERE)
    await make_sure_it_is_gone(guest, HERE)

    show.heading(f"Benchmark ({', '.join(structured(answer)['basis'])})")
    print_benchmark(show, structured(answer))
    if "vllm" in str(deployment.get("options", {})):
        show.say(
            "A tiny random model on this machine's CPU: it shows that all of it works, no speed."
        )
    for what, path in files.items():
        show.good(f"{what}: {path}")


def engine(name: str, terminal: Terminal) -> tuple[Json, dict[str, str]]:
    """Arguments of plan_deployment for an engine, and what the server's environment needs for it.

    Args:
        name: simulator or vllm; for vllm, a CPU build and a tiny model are made first, once.
        terminal: Where it is told that this takes a while.

    Raises:
        WalkError: vLLM cannot be had here.
    """
    if name == "simulator":
        return {}, {}
    made = _tiny_vllm("paths")
    if not json.loads(made)["ready"]:
        terminal.heading("Getting a CPU build of vLLM and making a tiny Gemma 4 (once, ~0.4 GB)")
        for command in ("install", "model"):
            _tiny_vllm(command, quiet=False)
        made = _tiny_vllm("paths")
    paths = json.loads(made)
    return (
        {"model": paths["model"], "max_model_len": 2048, "options": {"engine": "vllm"}},
        {variable_of("vllm_bin"): paths["vllm"]},
    )


def _tiny_vllm(command: str, *, quiet: bool = True) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "backends.rehearsal.tiny_vllm", command],
        cwd=PROJECT_DIR,
        stdout=subprocess.PIPE if quiet else None,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise WalkError(f"`python -m backends.rehearsal.tiny_vllm {command}` failed; see above.")
    return done.stdout or ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; returns 0 if all of it worked and nothing is left running."""
    options = _parser().parse_args(arguments)
    out = options.out or PROJECT_DIR / "build" / "demo" / options.engine
    terminal = Terminal()
    try:
        deployment, environment = engine(options.engine, terminal)
    except WalkError as error:
        terminal.heading("The demo failed")
        terminal.bad(str(error))
        return 1
    return run_walk(
        lambda guest: walk(guest, deployment, out, _READY_TIMEOUT_S[options.engine]),
        HERE,
        environment,
        terminal,
        what="demo",
        state_dir=options.state_dir,
        legacy=options.legacy,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m backends.rehearsal.demo",
        description="Deploys, verifies, queries, benchmarks and destroys a deployment on this "
        "machine through a real MCP client.",
    )
    parser.add_argument("--engine", choices=["simulator", "vllm"], default="simulator")
    parser.add_argument(
        "--legacy", action="store_true", help="speak the initialize handshake (2025-11-25)"
    )
    parser.add_argument(
        "--state-dir", type=Path, help="keep the state there; default: a temporary one"
    )
    parser.add_argument(
        "--out", type=Path, help="folder for chart and figures; default: build/demo/ENGINE"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
