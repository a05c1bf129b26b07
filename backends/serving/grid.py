"""Says before it is run whether a cell of a grid of contexts and loads can hold what it asks."""

from __future__ import annotations

from backends.serving.cells import Cell
from backends.serving.runs import EndpointFacts, GridCell, LevelResult
from backends.serving.slo import MAX_ERROR_SHARE
from backends.serving.spec import BenchmarkSpec


def planned_cell(cell: Cell, spec: BenchmarkSpec, facts: EndpointFacts) -> GridCell:
    """Return a cell as it stands before it is run: `not run`, or `infeasible` with the reason.

    A closed loop is infeasible where the KV cache cannot hold all its sequences at full length:
    some would always queue or be preempted, and the cell would measure another concurrency. An
    open loop is only held against the context limit, because nobody chose its concurrency.
    """
    context = cell.context or spec.prompt_tokens
    length = context + _beside(spec, context) + spec.max_tokens
    needed = length * cell.concurrency if cell.rate is None else None
    planned = GridCell(
        context_tokens=context,
        concurrency=cell.concurrency,
        request_rate=cell.rate,
        status="not run",
        needed_kv_tokens=needed,
    )
    limit, pool = facts.max_model_len, facts.kv_cache_tokens
    if limit is not None and length > limit:
        planned.status = "infeasible"
        planned.reason = f"{length} tokens a request, the context limit is {limit}"
    elif pool is not None and needed is not None and needed > pool:
        planned.status = "infeasible"
        origin = "the engine publishes" if facts.kv_cache_source == "engine" else "is planned"
        planned.reason = (
            f"{cell.concurrency} x {length} = {needed} tokens of KV cache, {origin} {pool}"
        )
    return planned


def filled_cell(planned: GridCell, level: LevelResult | None) -> GridCell:
    """Return a cell with what was measured in it."""
    cell = planned.model_copy()
    if level is None:
        cell.reason = "ended before it had a result"
        return cell
    cell.output_tokens_per_s = level.output_tokens_per_s
    cell.ttft_ms_p50 = level.ttft_ms.p50
    cell.valid = level.valid
    failed = level.partial or level.success_rate is None
    failed = failed or 1 - (level.success_rate or 0.0) > MAX_ERROR_SHARE
    cell.status = "failed" if failed else "ok"
    cell.reason = "; ".join(level.invalid_reasons)
    return cell


def _beside(spec: BenchmarkSpec, context: int) -> int:
    """Tokens a request has beside its context: a common prefix, or the turns before the last."""
    if spec.source == "shared_prefix":
        return spec.prefix_tokens
    if spec.source == "multi_turn":
        return (spec.turns - 1) * (context + spec.max_tokens)
    return 0
