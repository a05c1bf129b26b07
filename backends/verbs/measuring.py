"""Benchmarks: starting one, showing one, comparing several."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from backends.base import LoadsBesideEngine
from backends.core.answers import (
    BenchmarkAnswer,
    BenchmarkEntry,
    BenchmarkList,
    Picture,
    Started,
)
from backends.core.errors import InvalidInputError, NotSupportedError
from backends.core.paging import page
from backends.core.settings import as_environment
from backends.core.state import new_id
from backends.core.words import plural
from backends.verbs import predicting
from backends.verbs.observing import basis, reach
from backends.verbs.run_in_brief import in_brief, whole_level, without_nothing

if TYPE_CHECKING:
    from backends.app import App
    from backends.base import Backend
    from backends.core.operations import Operation
    from backends.serving.runs import BenchmarkRun, RunState
    from backends.serving.spec import BenchmarkSpec
    from backends.serving.store import BenchmarkStore


_SIMULATED = "Simulated: not a measurement of any GPU."


async def run_benchmark(
    app: App,
    target: str,
    name: str | None,
    concurrency: list[int],
    requests: int | None,
    max_tokens: int,
    prompt_tokens: int | None,
    prompt: str | None,
    options: Mapping[str, object],
) -> Started:
    """Start a sweep, a search for the knee or a grid as an operation.

    Raises:
        InvalidInputError: The loads, prompts or options are unknown or make no sense together.
        ConflictError: The deployment is not ready.
        EndpointError: It is up and refuses.
    """
    backend = app.backend(target, "run_benchmark")
    name = await backend.resolve(name)
    if prompt is not None and prompt_tokens is not None:
        raise InvalidInputError("prompt", "and prompt_tokens exclude each other.")
    # What is wrong with the arguments is said before anything is asked.
    arguments: dict[str, object] = {
        "levels": concurrency,
        "requests_per_level": requests,
        "max_tokens": max_tokens,
        "prompt_tokens": prompt_tokens,
        "prompt": prompt and _without_key(app, prompt),
        "label": f"{target}/{name}",
        "target": target,
        "deployment": name,
    }
    _check_options(options)
    price = await backend.price(name)
    rate = price.usd_per_hour if price is not None else None
    known = await _hardware(backend, name) | ({"usd_per_hour": rate} if rate else {})
    spec = _spec(known | dict(options) | arguments, options)
    if spec.runner == "ray":
        from backends.serving.engine.ray_crew import check_ray

        check_ray()
    if spec.runner == "host" and not isinstance(backend, LoadsBesideEngine):
        raise NotSupportedError(
            f"{target} has no machine that load could be made on.",
            next_action="Leave runner out to make the load on this machine.",
        )
    if spec.dataset_path is not None:
        await asyncio.to_thread(_check_dataset, spec)
    # Asked before the worker starts: an endpoint that does not answer is an error of this call.
    async with reach(backend, name) as client:
        model = await client.first_look()
        simulated = client.endpoint.simulated
    benchmark_id = new_id("bench")
    operation = await asyncio.to_thread(
        app.operations.start,
        "benchmark",
        target,
        name,
        {"benchmark_id": benchmark_id, "spec": spec.model_dump(mode="json")},
        worker_env(app),
    )
    return Started(
        summary=f"Benchmark {benchmark_id} of {model} on {target}/{name} started: "
        f"{_what_it_does(spec)}, figures will be {basis(simulated)}.",
        operation_id=operation.id,
        kind=operation.kind,
        target=target,
        name=name,
        benchmark_id=benchmark_id,
        next_steps=[
            f"get_operation(operation_id={operation.id!r}, wait_s=40)",
            f"get_benchmarks(benchmark_ids=[{benchmark_id!r}])",
        ],
    )


def _without_key(app: App, prompt: str) -> str:
    """Mask the API key in a prompt, which stays on disk with the run."""
    from backends.serving.refusals import mask

    key = app.settings.api_key
    return prompt if key is None else mask(prompt, [key.get_secret_value()])


def _check_options(options: Mapping[str, object]) -> None:
    """Refuse options by name before anything is asked of them."""
    from backends.serving.spec import OPTION_NAMES
    from backends.verbs.about import ARGUMENTS_OF_RUN_BENCHMARK

    for option, value in options.items():
        if value == "":
            raise InvalidInputError(f"options.{option[:40]}", "is an empty text; leave it out.")
        if option in ARGUMENTS_OF_RUN_BENCHMARK:
            raise InvalidInputError(f"options.{option}", "is an argument of its own.")
        if option not in OPTION_NAMES:
            raise InvalidInputError(
                f"options.{option[:40]}", "is unknown.", allowed=", ".join(OPTION_NAMES)
            )


def _spec(fields: Mapping[str, object], options: Mapping[str, object]) -> BenchmarkSpec:
    """Make the spec; what is wrong is named as the caller named it."""
    from backends.serving.spec import BenchmarkSpec

    try:
        return BenchmarkSpec.asked(fields)
    except ValidationError as error:
        item = error.errors(include_url=False, include_input=False)[0]
        field = str(item["loc"][0]) if item["loc"] else ""
        named = {"levels": "concurrency", "requests_per_level": "requests"}.get(field, field)
        if field in options or not field:
            named = f"options.{field}" if field else "arguments"
        raise InvalidInputError(named, item["msg"].removeprefix("Value error, ")) from None


def _check_dataset(spec: BenchmarkSpec) -> None:
    from backends.serving.datasets import read_dataset

    if spec.dataset_path is not None:
        if not spec.dataset_path.expanduser().is_absolute():
            raise InvalidInputError("options.dataset_path", "must be an absolute path.")
        read_dataset(spec.dataset_path, chat=spec.endpoint_kind == "chat")


async def _hardware(backend: Backend, name: str) -> dict[str, object]:
    """The accelerator a deployment runs on, for the share of its bandwidth; empty if unknown."""
    from backends.knowledge.targets import PROFILES

    profile = PROFILES.get(await backend.reference_profile(name) or "")
    if profile is None:
        return {}
    return {
        "accelerator": profile.accelerator.name,
        "chips": profile.chips,
        "kv_cache_dtype": profile.kv_cache_dtype,
    }


def _what_it_does(spec: BenchmarkSpec) -> str:
    """Say in one clause what will be measured."""
    if spec.request_rates is None:
        loads = f"concurrency {', '.join(map(str, spec.levels))}"
        total = sum(spec.requests_for(level) for level in spec.levels)
    else:
        loads = f"{', '.join(f'{rate:g}' for rate in spec.request_rates)} requests/s"
        total = sum(spec.requests_for(1, rate) for rate in spec.request_rates)
    size = f"requests of {spec.max_tokens} tokens"
    if spec.mode == "knee":
        return (
            f"the highest load within {' and '.join(map(str, spec.bounds))} is searched between "
            f"the lowest and highest of {loads}, in at most {spec.knee_steps} steps of {size}"
        )
    total *= spec.repetitions * len(spec.contexts or [0])
    where = f" at {', '.join(map(str, spec.contexts))} prompt tokens" if spec.contexts else ""
    times = f", {spec.repetitions} times each" if spec.repetitions > 1 else ""
    return f"{loads}{where}{times}: {total} {size}"


async def get_benchmarks(
    app: App,
    ids: list[str],
    target: str | None,
    limit: int,
    cursor: str | None,
    *,
    detail: bool = False,
) -> BenchmarkList | BenchmarkAnswer:
    """List runs, show one with its chart (with detail all of its figures), or compare several."""
    if ids:
        return await asyncio.to_thread(_show, app, list(dict.fromkeys(ids)), detail=detail)
    return await asyncio.to_thread(_list, app, target, limit, cursor)


def _list(app: App, target: str | None, limit: int, cursor: str | None) -> BenchmarkList:
    from backends.serving.store import BenchmarkStore

    found = BenchmarkStore(app.state.benchmarks).list_runs()
    ends = _ends(app) if any(run.state == "running" for run in found.runs) else {}
    runs = [run for run in found.runs if target is None or run.target == target]
    items, next_cursor = page(runs, limit, cursor)
    bad = found.problems
    return BenchmarkList(
        summary=plural(len(runs), "benchmark run") + (f" on {target}." if target else "."),
        warnings=[f"{len(bad)} folders could not be read as runs."] if bad else [],
        items=[
            BenchmarkEntry(
                benchmark_id=run.id,
                target=run.target,
                name=run.deployment,
                model=run.model,
                state=ends[run.id].state
                if run.state == "running" and run.id in ends
                else "silent"
                if run.silent
                else run.state,
                started_at=run.created_at,
                levels=", ".join(run.loads) or "none",
                mode=None if run.mode == "levels" else run.mode,
                best_output_tokens_per_s=run.best_output_tokens_per_s,
                best_concurrency=run.best_concurrency if run.best_request_rate is None else None,
                best_request_rate=run.best_request_rate,
                knee=run.knee,
                usd_per_million_output_tokens=run.best_usd_per_million_output_tokens,
                basis=basis(run.simulated),
            )
            for run in items
        ],
        total=len(runs),
        next_cursor=next_cursor,
        unreadable=[f"{problem.id}: {problem.problem}" for problem in bad],
        next_steps=[f"get_benchmarks(benchmark_ids=[{run.id!r}])" for run in items[:1]]
        or ["run_benchmark(target=...)"],
    )


def _show(app: App, ids: list[str], *, detail: bool = False) -> BenchmarkAnswer:
    from backends.serving.store import BenchmarkStore

    store = BenchmarkStore(app.state.benchmarks)
    runs = [_as_it_ended(app, store.load(benchmark_id)) for benchmark_id in ids]
    if len(runs) > 1:
        return _several(store, runs)
    whole = _one(store, runs[0])
    return whole if detail else in_brief(whole, runs[0])


def _ends(app: App) -> dict[str, Operation]:
    """The operations of benchmarks that have come to an end, by the benchmark's id."""
    return {
        str(operation.params["benchmark_id"]): operation
        for operation in app.operations.all()
        if operation.finished and "benchmark_id" in operation.params
    }


def show_run(app: App, benchmark_id: str) -> BenchmarkAnswer:
    """One run, as get_benchmarks shows it."""
    return _show(app, [benchmark_id])


def _as_it_ended(app: App, run: BenchmarkRun) -> BenchmarkRun:
    """A run whose worker died before it could write its end down, with that end."""
    end = _ends(app).get(run.id) if run.state == "running" else None
    if end is None:
        return run
    state: RunState = "cancelled" if end.state == "cancelled" else "failed"
    why = str(end.status.get("error") or "The worker ended before the run did.")
    return run.model_copy(update={"state": state, "state_reason": why, "current": None})


def _one(store: BenchmarkStore, run: BenchmarkRun) -> BenchmarkAnswer:
    from backends.serving.chart import run_chart
    from backends.serving.html_report import run_html

    folder = store.folder(run.id)
    files = {"run_json": str(folder / "run.json"), "levels_csv": str(folder / "levels.csv")}
    images = _chart([run], lambda: run_chart(run), folder / "chart.png", files)
    if run.state != "running":  # drawing takes a second, and what is drawn is old at once
        page = _page(folder / "report.html", [folder / "run.json"], lambda: run_html(run))
        files["report_html"] = str(page)
    label = basis(run.simulated)
    whole = run.model_dump(mode="json")
    return BenchmarkAnswer(
        summary=f"{run.id} of {run.endpoint.model} on {run.label or run.endpoint.base_url}: "
        f"{run.state}, {plural(len(run.levels), 'level')}, {label}.",
        warnings=_warnings(run),
        benchmark_ids=[run.id],
        basis=[str(label)],
        levels=[whole_level(level) for level in whole["levels"]],
        knee=without_nothing(whole["knee"] or {}),
        predicted=predicting.of_run(run),
        grid=[without_nothing(cell) for cell in whole["grid"]],
        repeated=[without_nothing(group) for group in whole["repeated"]],
        findings=run.findings,
        definitions=run.definitions,
        files=files,
        images=images,
        next_steps=[f"get_benchmarks(benchmark_ids=[{run.id!r}, ...]) compares it with others"],
    )


def _several(store: BenchmarkStore, runs: list[BenchmarkRun]) -> BenchmarkAnswer:
    from backends.serving.chart import comparison_chart
    from backends.serving.comparison import compare
    from backends.serving.html_report import comparison_html

    compared = compare(runs)
    files = {run.id: str(store.folder(run.id) / "run.json") for run in runs}
    chart = store.folder(runs[0].id) / "comparison.png"
    images = _chart(runs, lambda: comparison_chart(runs), chart, files)
    html = chart.with_suffix(".html")
    html.unlink(missing_ok=True)  # it may be of other runs
    files["report_html"] = str(_page(html, [], lambda: comparison_html(runs)))
    ids = [run.id for run in runs]
    return BenchmarkAnswer(
        summary=f"{len(runs)} runs compared: {', '.join(ids)}.",
        warnings=compared.cautions
        + [f"{run.id}: {said}" for run in runs for said in _warnings(run) if said != _SIMULATED],
        benchmark_ids=ids,
        basis=[f"{run.id}: {basis(run.simulated)}" for run in runs],
        comparison=[without_nothing(run.model_dump(mode="json")) for run in compared.runs],
        findings=compared.verdicts,
        files=files,
        images=images,
    )


def _chart(
    runs: list[BenchmarkRun], draw: Callable[[], bytes], path: Path, files: dict[str, str]
) -> list[Picture]:
    """Draw, keep and attach a chart, where there is anything to draw."""
    if not any(level.output_tokens_per_s for run in runs for level in run.levels):
        return []
    content = draw()
    path.write_bytes(content)
    files["chart_png"] = str(path)
    return [Picture.png(content)]


def _page(path: Path, sources: list[Path], make: Callable[[], str]) -> Path:
    """Keep a page for people, made again only where what it shows has changed."""
    fresh = path.exists() and all(
        source.exists() and source.stat().st_mtime_ns < path.stat().st_mtime_ns
        for source in sources
    )
    if not fresh:
        path.write_text(make(), encoding="utf-8")
    return path


def _warnings(run: BenchmarkRun) -> list[str]:
    invalid = list(dict.fromkeys(lv.load_words for lv in run.levels if not lv.valid))
    warnings = list(run.warnings)
    if run.simulated:
        warnings.insert(0, _SIMULATED)
    if invalid:
        warnings.append(f"Do not use the levels marked invalid: {', '.join(invalid)}.")
    if run.error is not None:
        warnings.append(f"It failed: {run.error.message}")
    elif run.state_reason:
        warnings.append(f"It is {run.state}: {run.state_reason}")
    return warnings


def benchmark_json(app: App, benchmark_id: str) -> str:
    """One run, whole, for a resource."""
    from backends.serving.store import BenchmarkStore

    return BenchmarkStore(app.state.benchmarks).load(benchmark_id).model_dump_json(indent=1)


def worker_env(app: App) -> dict[str, str]:
    """What the worker must see as we do, even where it came from `.env` or a default."""
    return as_environment(app.settings)
