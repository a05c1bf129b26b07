"""Long operations: listed, waited for, cancelled."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from backends.core.answers import OperationAnswer, OperationEntry, OperationList
from backends.core.errors import NotFoundError
from backends.core.paging import page
from backends.core.words import plural

if TYPE_CHECKING:
    from backends.app import App
    from backends.base import Progress
    from backends.core.operations import Operation

_LOOK_EVERY_S = 0.25


async def list_operations(app: App, limit: int, cursor: str | None) -> OperationList:
    """Long operations, newest first."""
    operations = await asyncio.to_thread(app.operations.all)
    items, next_cursor = page(operations, limit, cursor)
    running = sum(not operation.finished for operation in operations)
    return OperationList(
        summary=f"{plural(len(operations), 'operation')}, {running} of them running.",
        items=[
            OperationEntry(
                operation_id=operation.id,
                kind=operation.kind,
                target=operation.target,
                name=operation.name,
                state=operation.state,
                progress=operation.progress,
                started_at=operation.started_at,
                updated_at=operation.status.get("updated_at"),
            )
            for operation in items
        ],
        total=len(operations),
        next_cursor=next_cursor,
    )


async def get_operation(
    app: App, operation_id: str, wait_s: float, progress: Progress
) -> OperationAnswer:
    """One operation, after waiting for its end for at most `wait_s` seconds."""
    began = time.monotonic()
    operation = await asyncio.to_thread(app.operations.get, operation_id)
    last = -1.0
    while not operation.finished and time.monotonic() - began + _LOOK_EVERY_S < wait_s:
        done = float(operation.status.get("done") or 0.0)
        if done > last:
            last = done
            await progress(done, operation.status.get("total"), operation.progress or "")
        await asyncio.sleep(_LOOK_EVERY_S)
        operation = await asyncio.to_thread(app.operations.get, operation_id)
    waited = time.monotonic() - began
    return _operation_answer(app, operation, waited if wait_s > 0 else None)


async def cancel_operation(app: App, operation_id: str) -> OperationAnswer:
    """Stop an operation and show how it ended."""
    before = await asyncio.to_thread(app.operations.get, operation_id)
    operation = await asyncio.to_thread(app.operations.cancel, operation_id)
    answer = _operation_answer(app, operation, None)
    if before.finished:
        answer.summary += " There was nothing to cancel."
    return answer


def _is(state: str) -> str:
    return f"has {state}" if state in {"succeeded", "failed"} else f"is {state}"


def _operation_answer(app: App, operation: Operation, waited_s: float | None) -> OperationAnswer:
    status = operation.status
    benchmark_id = operation.params.get("benchmark_id")
    what = f"{operation.kind} on {operation.target}/{operation.name}"
    doing = f": {operation.progress}" if operation.progress and not operation.finished else "."
    error = status.get("error")
    next_steps: list[str] = []
    if not operation.finished:
        next_steps.append(f"get_operation(operation_id={operation.id!r}, wait_s=40)")
        next_steps.append(f"cancel_operation(operation_id={operation.id!r})")
    if status.get("next_action"):
        next_steps.append(str(status["next_action"]))
    if benchmark_id:
        next_steps.append(f"get_benchmarks(benchmark_ids=[{benchmark_id!r}])")
    result = dict(status.get("result") or {})
    if benchmark_id and not operation.finished:
        result |= _partial(app, str(benchmark_id))
    return OperationAnswer(
        summary=f"{operation.id} ({what}) {_is(operation.state)}{doing}",
        operation_id=operation.id,
        kind=operation.kind,
        target=operation.target,
        name=operation.name,
        state=operation.state,
        finished=operation.finished,
        done=status.get("done"),
        total=status.get("total"),
        progress=operation.progress,
        started_at=operation.started_at,
        updated_at=status.get("updated_at"),
        waited_s=waited_s,
        result=result,
        error=str(error) if error else None,
        log_tail=operation.log_tail() or None if operation.state == "failed" else None,
        next_steps=next_steps,
    )


def _partial(app: App, benchmark_id: str) -> dict[str, Any]:
    """The levels a running benchmark has finished, in short."""
    from backends.serving.store import BenchmarkStore

    try:
        run = BenchmarkStore(app.state.benchmarks).load(benchmark_id)
    except NotFoundError:
        # The worker has not got as far as its first write.
        return {}
    return {
        "levels_done": [
            {
                "load": level.load_words,
                "concurrency": level.concurrency,
                "output_tokens_per_s": level.output_tokens_per_s,
                "ttft_ms_p50": level.ttft_ms.p50,
                "errors": level.errors,
                "valid": level.valid,
            }
            for level in run.levels
        ]
    }
