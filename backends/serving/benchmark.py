"""The benchmark's front door: for other modules, and for a command line without MCP.

    python -m backends.serving.benchmark --base-url http://127.0.0.1:8000 --model NAME \
        --concurrency 1,8,64 --max-tokens 128 --output run.json --report run.html

    # the highest concurrency whose first token comes within 200 ms for 95 of 100
    ... --mode knee --concurrency 1,64 --slo 'ttft_p95<=200'
    # contexts by concurrency
    ... --contexts 512,4096,16384 --concurrency 1,4,16
    # results of `vllm bench serve`, compared with a run of ours
    ... --import-vllm-bench results/ --compare run.json --report both.html
    # a SageMaker endpoint, signed with whatever credentials the AWS CLI would use
    python -m backends.serving.benchmark --sagemaker-endpoint NAME --region us-west-2 --model NAME

Exit codes: 0 every level was measured and is valid, 1 it could not be measured, 2 bad arguments,
3 some level is not valid or a rule ended the run, 130 interrupted (what was measured is kept).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args, get_origin

from pydantic import ValidationError

from backends.core.errors import DevopsError, InvalidInputError
from backends.core.state import new_id, write_text
from backends.serving.comparison import comparison_markdown
from backends.serving.endpoint import Endpoint
from backends.serving.outputs import FORMS, check_form, read_run, write_report, write_vllm_bench
from backends.serving.refusals import mask
from backends.serving.report import run_markdown
from backends.serving.run_record import levels_csv, levels_file
from backends.serving.runs import RUN_FILE, BenchmarkRun, BenchmarkSpec
from backends.serving.spec import OPTION_NAMES
from backends.serving.sweep import BenchmarkProgress, run_benchmark

__all__ = [
    "BenchmarkProgress",
    "BenchmarkRun",
    "BenchmarkSpec",
    "levels_csv",
    "main",
    "run_benchmark",
]

BAR_WIDTH = 20
LINE_WIDTH = 118
_SPECIAL = {"warmup_requests": "--warmup", "request_rates": "--request-rate"}
_DEFAULT_LEVELS = "1,2,4,8"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code the module's docstring lists."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    try:
        for path in asked.report:
            check_form(path)
        others = [read_run(path) for path in asked.compare]
        if asked.base_url is None and asked.sagemaker_endpoint is None:
            if not asked.import_vllm_bench and not others:
                parser.error(
                    "one of --base-url, --sagemaker-endpoint, --import-vllm-bench, --compare is "
                    "needed"
                )
            return _without_measuring(asked, others)
        if asked.import_vllm_bench:
            parser.error("--import-vllm-bench goes without an endpoint: nothing is measured")
        spec, endpoint = _spec(asked), _endpoint(asked)
    except (ValidationError, InvalidInputError) as error:
        parser.error(_one_line(error))
    except DevopsError as error:
        _say(f"{_one_line(error)}\n")
        return 1
    return asyncio.run(_run(spec, endpoint, asked, others))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m backends.serving.benchmark",
        description="Measure a vLLM endpoint: levels of load, the knee within an objective, or a "
        "grid of contexts. Lists are separated by commas.",
        usage="%(prog)s --base-url URL [options], or --import-vllm-bench PATH..., or --compare "
        "RUN...",
        argument_default=argparse.SUPPRESS,
    )
    add = parser.add_argument
    add("--base-url", default=None, help="http(s)://host[:port], without /v1")
    add("--model", default=None, help="served model name; None: the first one it lists")
    _add_sagemaker(parser)
    add(
        "--concurrency",
        dest="levels",
        type=_whole_numbers,
        default=_DEFAULT_LEVELS,
        help="levels of a closed loop (%(default)s)",
    )
    add(
        "--requests",
        dest="requests_per_level",
        help="requests a level; without it twice the concurrency, at least 4",
    )
    add("--max-tokens", help="output tokens a request (128)")
    add("--label", help="a name for charts and comparisons")
    for name in OPTION_NAMES:
        _add_option(parser, name)
    add("--simulated", action="store_true", default=False, help="label figures as simulated")
    add("--ca-file", type=Path, default=None, help="certificate authorities to trust besides")
    add(
        "--api-key-env",
        default="VLLM_API_KEY",
        help="environment variable that holds the API key, if one is needed (%(default)s)",
    )
    add(
        "--token-command",
        default=None,
        help="a command that prints a bearer token, run again every ten minutes, such as 'gcloud "
        "auth print-identity-token --audiences=URL'",
    )
    add("--output", type=Path, default=Path(RUN_FILE), help="where to write the run (%(default)s)")
    files: list[Path] = []
    add(
        "--report",
        type=Path,
        nargs="+",
        default=files,
        help=f"write these too, by their endings: {', '.join(FORMS)}",
    )
    add("--compare", type=Path, nargs="+", default=files, help="runs of ours to compare with")
    add(
        "--import-vllm-bench",
        type=Path,
        nargs="+",
        default=files,
        help="make a run of result files (or folders) of `vllm bench serve` instead of measuring",
    )
    add(
        "--export-vllm-bench",
        type=Path,
        default=None,
        help="write every level as `vllm bench serve` would into this folder",
    )
    add(
        "--keep",
        action="store_true",
        default=False,
        help="put a copy beside the MCP server's runs, for get_benchmarks",
    )
    return parser


def _add_sagemaker(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "a SageMaker endpoint",
        "Requests are signed with the credentials that the AWS CLI would use (environment, "
        "AWS_PROFILE, SSO, role), refreshed as they expire.",
    )
    for flag, text in (
        ("--sagemaker-endpoint", "its name; --model and --region are then needed"),
        ("--region", "such as us-west-2"),
        ("--inference-component", "which one of the endpoint, where it has several"),
        ("--target-variant", "which production variant, where it has several"),
    ):
        group.add_argument(flag, default=None, help=text)


def _add_option(parser: argparse.ArgumentParser, name: str) -> None:
    """Add a field of the spec as an option; pydantic reads its value."""
    field = BenchmarkSpec.model_fields[name]
    flag = _SPECIAL.get(name, "--" + name.replace("_", "-"))
    text = (field.description or "").replace("%", "%%")
    kinds = [kind for kind in get_args(field.annotation) if kind is not type(None)]
    if field.annotation is bool or kinds == [bool]:
        action = argparse.BooleanOptionalAction
        parser.add_argument(flag, dest=name, action=action, help=text or "yes or no")
        return
    if get_origin(field.annotation) is Literal:
        text = f"{' | '.join(map(str, kinds))}. {text}"
    default = field.get_default(call_default_factory=True)
    text += "" if default in (None, [], "") else f" ({default})"
    read = _LISTS.get(name, str)
    parser.add_argument(flag, dest=name, type=read, metavar=name.upper(), help=text or name)


def _whole_numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError("whole numbers separated by commas, like 1,8,64") from None


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError("numbers separated by commas, like 0.5,2,8") from None


_LISTS: Mapping[str, Callable[[str], object]] = {
    "contexts": _whole_numbers,
    "request_rates": _numbers,
}


def _spec(asked: argparse.Namespace) -> BenchmarkSpec:
    given = {name: value for name, value in vars(asked).items() if name in _FIELDS}
    if "prompt" in given:  # it is written down with the run
        given["prompt"] = mask(given["prompt"], [os.environ.get(asked.api_key_env, "")])
    return BenchmarkSpec.asked(given)


_FIELDS = {*OPTION_NAMES, "levels", "requests_per_level", "max_tokens", "label"}


def _endpoint(asked: argparse.Namespace) -> Endpoint:
    if asked.sagemaker_endpoint is not None:
        return _sagemaker_endpoint(asked)
    key = os.environ.get(asked.api_key_env, "")

    async def headers() -> dict[str, str]:
        return {"authorization": f"Bearer {key}"}

    provide = headers if key else None
    if asked.token_command is not None:
        from backends.serving.token_command import TokenCommand

        provide = TokenCommand(asked.token_command).headers
    return Endpoint(
        base_url=asked.base_url,
        model=asked.model,
        headers=provide,
        ca_file=asked.ca_file,
        simulated=asked.simulated,
        source=getattr(asked, "label", "") or asked.base_url,
    )


def _sagemaker_endpoint(asked: argparse.Namespace) -> Endpoint:
    if asked.region is None or asked.model is None:
        raise InvalidInputError(
            "sagemaker-endpoint", "needs --region and --model: neither can be asked."
        )
    from botocore.session import Session  # type: ignore[import-untyped]

    from backends.serving.engine.signing import SageMakerWire, sagemaker_url
    from backends.serving.invocations import credentials_of

    return Endpoint(
        base_url=asked.base_url or sagemaker_url(asked.region),
        model=asked.model,
        ca_file=asked.ca_file,
        simulated=asked.simulated,
        source=getattr(asked, "label", "") or f"SageMaker endpoint {asked.sagemaker_endpoint}",
        wire=SageMakerWire(
            asked.sagemaker_endpoint, asked.region, asked.inference_component, asked.target_variant
        ),
        credentials=credentials_of(Session()),
    )


def _without_measuring(asked: argparse.Namespace, others: Sequence[BenchmarkRun]) -> int:
    """Import, compare and report; nothing is sent anywhere."""
    runs = list(others)
    if asked.import_vllm_bench:
        from backends.serving.vllm_bench_json import import_vllm_bench

        spec = _spec(asked)
        run = import_vllm_bench(
            asked.import_vllm_bench,
            run_id=new_id("bench"),
            label=spec.label,
            usd_per_hour=spec.usd_per_hour,
            accelerator=spec.accelerator,
        )
        write_text(asked.output, run.model_dump_json(indent=1))
        write_text(levels_file(asked.output), levels_csv(run))
        runs.insert(0, run)
    return _finish(asked, runs, written=asked.output if asked.import_vllm_bench else None)


def _finish(
    asked: argparse.Namespace, runs: Sequence[BenchmarkRun], *, written: Path | None
) -> int:
    """Print and write what was asked for; returns the exit code."""
    text = run_markdown(runs[0]) if len(runs) == 1 else comparison_markdown(runs)
    if len(runs) > 1 and written is not None:
        text = f"{run_markdown(runs[0])}\n{text}"
    sys.stdout.write(text)
    names = [str(written)] if written is not None else []
    for path in asked.report:
        write_report(runs, path)
        names.append(str(path))
    if asked.export_vllm_bench is not None:
        files = write_vllm_bench(runs[0], asked.export_vllm_bench)
        names.append(f"{len(files)} files in {asked.export_vllm_bench}")
    if asked.keep:
        names.append(str(_keep(runs[0])))
    if names:
        sys.stdout.write(f"\nWritten: {', '.join(names)}.\n")
    run = runs[0]
    if run.state in ("cancelled", "failed"):
        return 130 if run.state == "cancelled" else 1
    complete = run.state == "completed" and all(level.valid for level in run.levels)
    return 0 if complete else 3


def _keep(run: BenchmarkRun) -> Path:
    from backends.core.settings import load_settings
    from backends.core.state import StateDir
    from backends.serving.store import BenchmarkStore

    return BenchmarkStore(StateDir(load_settings().settings.state_dir).benchmarks).save(run)


async def _run(
    spec: BenchmarkSpec,
    endpoint: Endpoint,
    asked: argparse.Namespace,
    others: Sequence[BenchmarkRun],
) -> int:
    interrupted = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted.set)
    show = _ProgressLine()
    try:
        run = await run_benchmark(
            spec,
            endpoint,
            asked.output.parent,
            show,
            interrupted.is_set,
            file_name=asked.output.name,
        )
        show.end()
        return _finish(asked, [run, *others], written=asked.output)
    except DevopsError as error:
        show.end()
        _say(f"{error.message}\n")
        for text in (error.words, error.cause, error.next_action):
            _say(f"  {text}\n" if text else "")
        return 1


class _ProgressLine:
    """A bar on a terminal, lines elsewhere."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._began_s = time.monotonic()
        self._shown = False

    def __call__(self, progress: BenchmarkProgress) -> None:
        if not self._terminal:
            _say(f"{progress.fraction:4.0%} {progress.message}\n")
            return
        self._shown = True
        done = round(progress.fraction * BAR_WIDTH)
        bar = "#" * done + "-" * (BAR_WIDTH - done)
        line = f"[{bar}] {progress.fraction:4.0%}{self._left(progress.fraction)} {progress.message}"
        _say(f"\r\x1b[K{line[:LINE_WIDTH]}")

    def end(self) -> None:
        """Leave the line."""
        _say("\n" if self._shown else "")
        self._shown = False

    def _left(self, fraction: float) -> str:
        """Say how long it will take still, once enough is done to say it."""
        if not 0.05 <= fraction < 1:
            return ""
        left_s = round((time.monotonic() - self._began_s) * (1 - fraction) / fraction)
        return f" {left_s // 60}:{left_s % 60:02} left,"


def _say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _one_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return "; ".join(
            f"{_flag_of(part['loc'])}: {part['msg']}"
            for part in error.errors(include_input=False, include_url=False)
        )
    return str(error)


def _flag_of(place: Sequence[int | str]) -> str:
    """Return the option a validation error is about."""
    names: Mapping[str, str] = {"levels": "concurrency", "requests_per_level": "requests"}
    if not place:
        return "arguments"
    name = str(place[0])
    return names.get(name, name)


if __name__ == "__main__":
    sys.exit(main())
