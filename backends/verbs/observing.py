"""Looking: lists, status, health, one query, metrics, logs. Changes nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from backends.base import HasPlatformMetrics
from backends.core.answers import (
    Basis,
    ChatAnswer,
    Check,
    Deployment,
    DeploymentList,
    Health,
    LogsAnswer,
    MetricsAnswer,
    ModelEntry,
    ModelFacts,
    ModelList,
    NotAsked,
    Status,
    Usage,
)
from backends.core.errors import (
    ConflictError,
    DevopsError,
    EndpointUnreachableError,
    InvalidInputError,
    NotFoundError,
    NotSetUpError,
    UnauthenticatedError,
)
from backends.core.names import easiest
from backends.core.owned import together
from backends.core.paging import page
from backends.core.render import clip, to_tree
from backends.core.words import plural
from backends.verbs.usage import add_usage, hours_since, overdue, say_overdue

if TYPE_CHECKING:
    from backends.app import App
    from backends.base import Backend, HasLogs, HasModels
    from backends.core.operations import Operation
    from backends.serving.endpoint import EndpointClient
    from backends.serving.metrics import MetricsDelta, ServingMetrics

_T = TypeVar("_T")

# A look for what costs nothing does not hold up the list of what does.
_LEFT_S = 8.0


@dataclass(frozen=True)
class Found(Generic[_T]):
    """What asking targets gave.

    Attributes:
        items: What exists.
        silent: Targets that did not answer: something may be there.
        not_set_up: Targets with no project or account to ask.
    """

    items: list[_T]
    silent: list[NotAsked]
    not_set_up: list[NotAsked]


async def gather_deployments(app: App, targets: Sequence[str]) -> Found[Deployment]:
    """Ask targets at once: what exists, who did not answer, who could not be asked at all."""
    return await _gather(targets, lambda target: app.backends.get(target).deployments())


async def _gather(
    targets: Sequence[str], ask: Callable[[str], Awaitable[Sequence[_T]]]
) -> Found[_T]:
    """Ask targets at once; one that fails hides nothing of the others."""
    answers: dict[str, Sequence[_T]] = {}
    found: Found[_T] = Found([], [], [])

    async def one(target: str) -> None:
        try:
            answers[target] = await ask(target)
        except NotSetUpError as error:
            found.not_set_up.append(NotAsked(target=target, error=error.message))
        except DevopsError as error:
            # A dead login hides what may be running: the one command that mends it belongs here.
            mend = f" {error.next_action}" if isinstance(error, UnauthenticatedError) else ""
            silent = NotAsked(target=target, error=f"{error.code}: {error.message}{mend}")
            found.silent.append(silent)

    await together(*(one(target) for target in targets))
    for entries in (found.silent, found.not_set_up):
        entries.sort(key=lambda entry: targets.index(entry.target))
    found.items.extend(item for target in targets for item in answers.get(target, ()))
    return found


async def _left_over(app: App, asked: Sequence[str], found: Found[Deployment]) -> list[str]:
    """What is left of deployments that are no more: it costs nothing, and is not forgotten."""
    silent = {entry.target for entry in found.silent}

    at_work = [item for item in await asyncio.to_thread(app.operations.all) if not item.finished]

    async def of(target: str) -> list[str]:
        names = {item.name for item in found.items if item.target == target}
        names |= {item.name for item in at_work if item.target == target and item.name}
        try:
            async with asyncio.timeout(_LEFT_S):
                left = await app.backends.get(target).leftovers(names)
        except (TimeoutError, DevopsError) as error:
            why = error.message if isinstance(error, DevopsError) else "no answer in time"
            return [f"Whether something is left over on {target} is not known: {why}"]
        return [
            f"{what[:1].upper()}{what[1:]} is left of {target}/{name} and costs nothing; unless it "
            f"is just being made, destroy(target={target!r}, name={name!r}) deletes it."
            for name, what in left.items()
        ]

    answers = await together(*(of(target) for target in asked if target not in silent))
    return [line for lines in answers for line in lines]


async def list_deployments(
    app: App, target: str | None, limit: int, cursor: str | None
) -> DeploymentList:
    """Everything deployed on one target or all.

    Raises:
        DevopsError: The one target that was asked did not answer.
    """
    if target is not None:
        found = Found(await app.backends.get(target).deployments(), [], [])
    else:
        found = await gather_deployments(app, app.targets)
    skipped = {entry.target for entry in found.not_set_up}
    asked = [name for name in ((target,) if target else app.targets) if name not in skipped]
    savings, left = await together(
        add_usage(app, found.items, target), _left_over(app, asked, found)
    )
    items, next_cursor = page(found.items, limit, cursor)
    unknown = [f"{item.target}/{item.name}" for item in found.items if item.usd_per_hour is None]
    cost = None if found.silent else sum(item.usd_per_hour or 0 for item in found.items)
    if found.silent:
        summary = f"{len(found.items)} found, but the list is not complete."
    elif not found.items:
        summary = f"Nothing is deployed; every target asked has answered ({', '.join(asked)})."
    else:
        summary = f"{len(found.items)} deployed on {', '.join(asked)}, {cost:g} USD per hour now."
    if skipped:
        summary += f" Not set up, so not asked: {', '.join(sorted(skipped))}."
    late = [
        say_overdue(item.target, item.name, item.overdue_h or 0, managed=item.managed)
        for item in overdue(found.items)
    ]
    return DeploymentList(
        summary=summary,
        warnings=[warning for warning, _ in late]
        + ([f"No price known for: {', '.join(unknown)}."] if unknown else []),
        items=items,
        total=len(found.items),
        next_cursor=next_cursor,
        complete=not found.silent,
        not_answering=found.silent,
        not_set_up=found.not_set_up,
        usd_per_hour_now=cost,
        left_over=left,
        could_save=savings,
        next_steps=list(dict.fromkeys([*(call for _, call in late), *(s.call for s in savings)]))
        if found.items or not asked
        else [f"plan_deployment(target={easiest(asked)!r})"],
    )


async def list_models(
    app: App, target: str | None, inspect: str | None, limit: int, cursor: str | None
) -> ModelList | ModelFacts:
    """Checkpoints, or what one of them is.

    Raises:
        DevopsError: The one target that was asked did not answer.
    """
    able = [name for name in app.targets if "list_models" in app.backends.get(name).abilities()]
    chosen = target or able[0]
    backend = cast("HasModels", app.backend(chosen, "list_models"))
    if inspect is not None:
        from backends.verbs import checkpoints

        facts, fits, needs = await checkpoints.inspect(app, backend, inspect)
        kind = "a Gemma 4" if facts.get("is_gemma4") else "not a Gemma 4"
        able = [fit.target for fit in fits if fit.verdict != "does not fit"]
        where = f" Fits (predicted): {', '.join(able) or 'no target'}." if fits else ""
        return ModelFacts(
            summary=f"{inspect} is {kind}, by {facts.get('source')}.{where}",
            id=inspect,
            facts=facts,
            needs_arguments=needs or None,
            fits=fits,
        )
    if target is not None:
        found = Found(await backend.models(), [], [])
    else:
        found = await _gather(able, lambda t: cast("HasModels", app.backends.get(t)).models())
        found = replace(found, items=_once(found.items))
    # Every target lists the catalogue, and those of one cloud the same bucket.
    unique = {(item.id, item.where, item.encoding): item for item in reversed(found.items)}
    found.items[:] = list(unique.values())[::-1]
    left_out = {entry.target for entry in (*found.silent, *found.not_set_up)}
    asked = [name for name in ((target,) if target else able) if name not in left_out]
    items, next_cursor = page(found.items, limit, cursor)
    served = sum(entry.where.startswith("served") for entry in found.items)
    where = ", ".join(asked) or "no target"
    summary = f"{plural(len(found.items), 'checkpoint')} known on {where}; {served} being served."
    if found.silent:
        summary += " The list is not complete."
    if found.not_set_up:
        names = ", ".join(entry.target for entry in found.not_set_up)
        summary += f" Not set up, so not asked: {names}."
    return ModelList(
        summary=summary,
        items=items,
        total=len(found.items),
        next_cursor=next_cursor,
        not_answering=found.silent,
        not_set_up=found.not_set_up,
        next_steps=["list_models(inspect=...) for what a folder or id really is"],
    )


def _once(entries: Sequence[ModelEntry]) -> list[ModelEntry]:
    """The entries without repetitions: every target lists the same catalogue."""
    return list({entry.model_dump_json(): entry for entry in entries}.values())


async def get_status(app: App, target: str, name: str | None, *, detail: bool) -> Status:
    """How one deployment is."""
    backend = app.backend(target, "get_status")
    name = await backend.resolve(name)
    async with explaining_absence(app, target, name):
        status = await backend.status(name, detail=detail)
    late_h = hours_since(status.ends_at)
    if late_h is not None and late_h > 0:
        warning, call = say_overdue(target, name, late_h, managed=status.managed)
        status.warnings.insert(0, warning)
        status.next_steps.append(call)
    return status


@asynccontextmanager
async def explaining_absence(app: App, target: str, name: str) -> AsyncIterator[None]:
    """Say of a deployment that is not there yet that a worker is still at it.

    Raises:
        ConflictError: It is; names the operation.
        NotFoundError: It is not there, and nobody makes it.
    """
    try:
        yield
    except NotFoundError:
        for operation in await asyncio.to_thread(app.operations.all):
            mine = (operation.kind, operation.target, operation.name) == ("deploy", target, name)
            if mine and not operation.finished:
                raise still_at_it(operation) from None
        raise


def still_at_it(operation: Operation) -> ConflictError:
    """A deployment that a worker is still making."""
    said = operation.status.get("message", "")
    return ConflictError(
        f"{operation.target}/{operation.name} is still being deployed"
        + (f": {said}." if said else "."),
        next_action=f"get_operation(operation_id={operation.id!r}, wait_s=40)",
    )


async def verify(app: App, target: str, name: str | None, *, deep: bool) -> Health:
    """Examine a deployment with real requests."""
    from backends.serving.health import check_health

    backend = app.backend(target, "verify_model_health")
    name = await backend.resolve(name)
    async with reach(backend, name) as client:
        report = await check_health(client, deep=deep, timeout_s=12.0 if deep else 35.0)
    if not report.served_models:
        # Nothing answered at all: the deployment's own state says more than a refused connection.
        _raise_state(await backend.status(name))
    chat = report.chat
    return Health(
        summary=f"{target}/{name}: {report.summary}",
        target=target,
        name=name,
        healthy=report.healthy,
        model=report.model,
        max_model_len=report.max_model_len,
        version=report.version,
        checks=[
            Check(name=c.name, ok=c.ok, detail=c.detail, duration_ms=c.duration_ms)
            for c in report.checks
        ],
        ttft_ms=chat.ttft_ms if chat else None,
        output_tokens_per_s=chat.output_tokens_per_s if chat else None,
        basis=basis(report.simulated),
        next_steps=[c.next_action for c in report.checks if not c.ok and c.next_action]
        or [f"run_benchmark(target={target!r}, name={name!r})"],
    )


async def query(
    app: App,
    target: str,
    name: str | None,
    prompt: str,
    system: str | None,
    max_tokens: int,
    temperature: float | None,
) -> ChatAnswer:
    """One chat completion with its timing."""
    backend = app.backend(target, "query_model")
    name = await backend.resolve(name)
    async with reach(backend, name) as client:
        chat = await client.chat(
            prompt, system=system, max_tokens=max_tokens, temperature=temperature
        )
    text, cut = clip(chat.text, keep="head")
    speed = f", {chat.output_tokens_per_s:.4g} tokens/s" if chat.output_tokens_per_s else ""
    first = f"first token after {chat.ttft_ms:.4g} ms" if chat.ttft_ms is not None else "no content"
    label = basis(chat.simulated)
    warnings = [f"The reply was cut by {cut} characters here."] if cut else []
    if chat.finish_reason == "length":
        warnings.append("The model stopped at max_tokens; raise it for a longer reply.")
    return ChatAnswer(
        summary=f"{chat.model} on {target}/{name} answered: {first}{speed} ({label}).",
        warnings=warnings,
        target=target,
        name=name,
        model=chat.model,
        text=text,
        reasoning=clip(chat.reasoning, keep="head")[0] or None,
        tool_calls=[
            {"id": call.id, "name": call.name, "arguments": call.arguments}
            for call in chat.tool_calls
        ],
        finish_reason=chat.finish_reason,
        ttft_ms=chat.ttft_ms,
        e2e_ms=chat.e2e_ms,
        itl_ms_mean=chat.itl_ms.mean,
        output_tokens_per_s=chat.output_tokens_per_s,
        usage=Usage(**chat.usage.model_dump(include=set(Usage.model_fields))),
        token_count_source=chat.token_count_source,
        basis=label,
    )


async def get_metrics(
    app: App, target: str, name: str | None, interval_s: float, *, raw: bool
) -> MetricsAnswer:
    """The engine's statistics: totals, or rates over an interval."""
    from backends.serving.metrics import metrics_delta, parse_metrics, serving_metrics

    backend = app.backend(target, "get_metrics")
    name = await backend.resolve(name)
    if isinstance(backend, HasPlatformMetrics):
        return await backend.platform_metrics(name, interval_s, raw=raw)
    loop = asyncio.get_running_loop()
    async with reach(backend, name) as client:
        first = await client.metrics_text()
        began = loop.time()
        before = await asyncio.to_thread(parse_metrics, first)
        after, text, seconds = before, first, 0.0
        if interval_s > 0:
            await asyncio.sleep(interval_s)
            text = await client.metrics_text()
            seconds = loop.time() - began
            after = await asyncio.to_thread(parse_metrics, text)
        simulated = client.endpoint.simulated
    state = serving_metrics(after)
    delta = metrics_delta(before, after, seconds) if seconds > 0 else None
    label = basis(simulated)
    counts = ((state.running, "running"), (state.waiting, "waiting"))
    known = [f"{count} {word}" for count, word in counts if count is not None]
    busy = ", ".join(known) or "how many run and wait is not published"
    usage = (
        f", KV cache {state.kv_cache_usage:.1%} full" if state.kv_cache_usage is not None else ""
    )
    over = f"over {seconds:.3g} s" if delta else "since the engine started"
    shown, cut = clip(text, keep="head") if raw else (None, 0)
    return MetricsAnswer(
        summary=f"{target}/{name}: {busy}{usage}; latencies {over} ({label}).",
        warnings=[f"The raw text was cut by {cut} characters."] if cut else [],
        target=target,
        name=name,
        basis=label,
        interval_s=seconds if delta else None,
        now=_plain(state),
        rates=_plain(delta) if delta else {},
        latency_ms=_latencies(delta or state),
        missing=state.missing,
        raw=shown,
        next_steps=[]
        if delta
        else [f"get_metrics(target={target!r}, name={name!r}, interval_s=10) for rates"],
    )


async def get_logs(
    app: App, target: str, name: str | None, source: str | None, lines: int
) -> LogsAnswer:
    """The newest log lines."""
    backend = cast("HasLogs", app.backend(target, "get_logs"))
    return await backend.logs(await backend.resolve(name), source, lines)


@asynccontextmanager
async def reach(backend: Backend, name: str) -> AsyncIterator[EndpointClient]:
    """The client of a deployment; one that cannot be reached is explained by its state.

    Raises:
        ConflictError: It is not up: its state, and what to do.
        EndpointError: It is up and refuses.
    """
    from backends.serving.endpoint import EndpointClient

    async with EndpointClient(await backend.endpoint(name), timeout_s=20.0) as client:
        try:
            yield client
        except EndpointUnreachableError:
            _raise_state(await backend.status(name))
            raise


def _raise_state(status: Status) -> None:
    if status.state != "ready":
        raise ConflictError(
            status.summary,
            words=status.error or "",
            cause=status.error_cause or f"It is {status.state}.",
            next_action=status.next_steps[0] if status.next_steps else "Call get_status.",
        )


def basis(simulated: bool) -> Basis:
    """The label of figures taken from an endpoint."""
    return "simulated" if simulated else "measured"


def _plain(metrics: ServingMetrics | MetricsDelta) -> dict[str, Any]:
    """Everything but the latencies, which make a table of their own."""
    fields = metrics.model_dump(exclude_none=True, exclude={"missing"})
    return {key: value for key, value in fields.items() if not key.endswith("_ms")}


def _latencies(metrics: ServingMetrics | MetricsDelta) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for key, value in metrics.model_dump(exclude_none=True).items():
        if not key.endswith("_ms") or not value.get("count"):
            continue
        row: dict[str, Any] = {"latency_ms": key.removesuffix("_ms"), "count": value["count"]}
        row |= {stat: value[stat] for stat in ("mean", "p50", "p90", "p95", "p99") if stat in value}
        for note in ("at_least", "coarse"):
            if value.get(note):
                row[note] = " ".join(value[note])
        rows.append(row)
    return rows


async def deployment_json(app: App, target: str, name: str) -> str:
    """The status of one deployment as JSON, for a resource."""
    if target not in app.targets:
        raise InvalidInputError("target", "is not on offer here.", allowed=", ".join(app.targets))
    status = await app.backend(target, "get_status").status(name, detail=True)
    return json.dumps(to_tree(status), indent=1)
