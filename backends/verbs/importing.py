"""Results measured elsewhere, taken in beside our own so that they compare."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from backends.core.answers import BenchmarkAnswer
from backends.core.errors import DevopsError, InvalidInputError
from backends.core.state import new_id
from backends.verbs.measuring import show_run

if TYPE_CHECKING:
    from backends.app import App
    from backends.serving.runs import BenchmarkRun

OPTION = "import_paths"
MEANING = (
    "take in results instead of measuring: absolute paths of JSON files (or folders) of `vllm "
    "bench serve --save-result`, one a level, or of one run.json of ours from another machine; "
    "with them go label, usd_per_hour and accelerator. The deployment need not exist"
)


class _Asked(BaseModel):
    """The options that go with an import."""

    model_config = ConfigDict(extra="forbid")

    import_paths: list[Path] = Field(min_length=1, max_length=64)
    label: str = Field("", max_length=120)
    usd_per_hour: float | None = Field(None, gt=0.0)
    accelerator: str | None = None


async def import_results(
    app: App, target: str, name: str | None, options: Mapping[str, object]
) -> BenchmarkAnswer:
    """Take results in as a run of a deployment, and show it.

    Raises:
        InvalidInputError: A path is not absolute, cannot be read or holds no results; an option
            does not go with an import.
        ConflictError: The run is here already.
    """
    try:
        asked = _Asked.model_validate(options)
    except ValidationError as error:
        item = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, item["loc"]))
        raise InvalidInputError(
            f"options.{field}",
            f"{item['msg'].removeprefix('Value error, ')}, with {OPTION}.",
            allowed=", ".join(_Asked.model_fields),
        ) from None
    if not all(path.expanduser().is_absolute() for path in asked.import_paths):
        raise InvalidInputError(f"options.{OPTION}", "must be absolute paths.")
    if asked.usd_per_hour is None and name is not None:
        asked.usd_per_hour = await _price(app, target, name)
    return await asyncio.to_thread(_import, app, target, name, asked)


async def _price(app: App, target: str, name: str) -> float | None:
    """What the deployment costs, where there is such a one and that is known."""
    try:
        price = await app.backend(target, "run_benchmark").price(name)
    except DevopsError:
        return None
    return price.usd_per_hour if price is not None else None


def _import(app: App, target: str, name: str | None, asked: _Asked) -> BenchmarkAnswer:
    from backends.serving.store import BenchmarkStore

    store = BenchmarkStore(app.state.benchmarks)
    run = _read(target, name, asked)
    store.save(run)
    return show_run(app, run.id)


def _read(target: str, name: str | None, asked: _Asked) -> BenchmarkRun:
    from backends.serving.outputs import read_run
    from backends.serving.vllm_bench_json import import_vllm_bench

    paths = [path.expanduser() for path in asked.import_paths]
    if len(paths) == 1 and _is_ours(paths[0]):
        run = read_run(paths[0])
        run.label = asked.label or run.label
        return run
    run = import_vllm_bench(
        paths,
        run_id=new_id("bench"),
        label=asked.label or f"{target}/{name or 'elsewhere'}, vllm bench serve",
        target=target,
        usd_per_hour=asked.usd_per_hour,
        accelerator=asked.accelerator,
    )
    run.spec.deployment = name
    return run


def _is_ours(path: Path) -> bool:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False  # said in its own words by who reads it
    return isinstance(found, dict) and found.get("kind") == "vllm-devops-benchmark"
