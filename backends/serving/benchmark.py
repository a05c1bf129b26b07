"""The benchmark's front door: for other modules, and for a command line without MCP.

    python -m backends.serving.benchmark --base-url http://127.0.0.1:8000 --model NAME \
        --concurrency 1,8,64 --max-tokens 128 --output run.json

Exit codes: 0 every level was measured and is valid, 1 it could not be measured, 2 bad arguments,
3 some level is not valid or the error rate ended the sweep, 130 interrupted (what was measured is
kept).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from backends.core.errors import DevopsError
from backends.serving.endpoint import Endpoint
from backends.serving.report import run_markdown
from backends.serving.runs import RUN_FILE, BenchmarkRun, BenchmarkSpec
from backends.serving.sweep import BenchmarkProgress, levels_csv, run_benchmark

__all__ = [
    "BenchmarkProgress",
    "BenchmarkRun",
    "BenchmarkSpec",
    "levels_csv",
    "main",
    "run_benchmark",
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code the module's docstring lists."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    try:
        spec = BenchmarkSpec(
            levels=asked.concurrency,
            requests_per_level=asked.requests,
            warmup_requests=asked.warmup,
            max_tokens=asked.max_tokens,
            prompt_source="generated" if asked.prompt_tokens else "fixed",
            prompt_tokens=asked.prompt_tokens or 256,
            prompt=asked.prompt,
            seed=asked.seed,
            ignore_eos=not asked.no_ignore_eos,
            timeout_s=asked.timeout_s,
            endpoint_kind=asked.endpoint_kind,
            usd_per_hour=asked.usd_per_hour,
            label=asked.label,
        )
        endpoint = _endpoint(asked)
    except (ValidationError, DevopsError) as error:
        parser.error(_one_line(error))
    return asyncio.run(_run(spec, endpoint, asked.output))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m backends.serving.benchmark",
        description="Measure a vLLM endpoint at several levels of concurrency.",
    )
    add = parser.add_argument
    add("--base-url", required=True, help="http(s)://host[:port], without /v1")
    add("--model", help="served model name (default: the first one the endpoint lists)")
    add(
        "--concurrency",
        type=_levels,
        default="1,2,4,8",
        help="levels, separated by commas (default %(default)s)",
    )
    add(
        "--requests", type=int, help="requests a level (default: twice the concurrency, at least 4)"
    )
    add("--warmup", type=int, help="warm-up requests a level (default: the concurrency)")
    add("--max-tokens", type=int, default=128, help="output tokens a request (default %(default)s)")
    add("--prompt", help="the prompt (default: a built-in one); a salt is put in front")
    add("--prompt-tokens", type=int, help="generate prompts of this many tokens instead")
    add("--seed", type=int, default=0, help="of generated prompts (default %(default)s)")
    add("--no-ignore-eos", action="store_true", help="let the model end its answers itself")
    add("--timeout-s", type=float, default=120.0, help="of one request (default %(default)s)")
    add("--endpoint-kind", choices=("chat", "completions"), default="chat")
    add("--usd-per-hour", type=float, help="price of the deployment, for the cost per token")
    add("--label", default="", help="a name for charts and comparisons")
    add("--simulated", action="store_true", help="label every figure as simulated")
    add("--ca-file", type=Path, help="certificate authorities to trust besides the system's")
    add(
        "--api-key-env",
        default="VLLM_API_KEY",
        help="environment variable that holds the API key, if one is needed (default %(default)s)",
    )
    add("--output", type=Path, default=Path(RUN_FILE), help="where to write (default %(default)s)")
    return parser


def _levels(text: str) -> list[int]:
    try:
        return [int(level) for level in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError("whole numbers separated by commas, like 1,8,64") from None


def _endpoint(asked: argparse.Namespace) -> Endpoint:
    key = os.environ.get(asked.api_key_env, "")

    async def headers() -> dict[str, str]:
        return {"authorization": f"Bearer {key}"}

    return Endpoint(
        base_url=asked.base_url,
        model=asked.model,
        headers=headers if key else None,
        ca_file=asked.ca_file,
        simulated=asked.simulated,
        source=asked.label or asked.base_url,
    )


async def _run(spec: BenchmarkSpec, endpoint: Endpoint, output: Path) -> int:
    interrupted = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted.set)
    try:
        run = await run_benchmark(
            spec,
            endpoint,
            output.parent,
            _show_progress,
            interrupted.is_set,
            file_name=output.name,
        )
    except DevopsError as error:
        _say(f"\r\x1b[K{error.message}\n" if sys.stderr.isatty() else f"{error.message}\n")
        for text in (error.words, error.cause, error.next_action):
            _say(f"  {text}\n" if text else "")
        return 1
    _say("\n" if sys.stderr.isatty() else "")
    sys.stdout.write(run_markdown(run) + f"\nWritten to {output}.\n")
    if run.state == "cancelled":
        return 130
    complete = run.state == "completed" and all(level.valid for level in run.levels)
    return 0 if complete else 3


def _show_progress(progress: BenchmarkProgress) -> None:
    line = f"{progress.fraction:4.0%} {progress.message}"
    _say(f"\r\x1b[K{line[:110]}" if sys.stderr.isatty() else f"{line}\n")


def _say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _one_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return "; ".join(
            f"{'.'.join(map(str, part['loc'])) or 'arguments'}: {part['msg']}"
            for part in error.errors(include_input=False, include_url=False)
        )
    return str(error)


if __name__ == "__main__":
    sys.exit(main())
