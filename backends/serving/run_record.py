"""The record of a run under way: in memory, on disk and on the progress line.

`run.json` holds everything at any moment: it is replaced atomically after every level and every
second within one, so a run that is killed leaves what it had measured. `levels.csv` beside it has
one row a level.
"""

from __future__ import annotations

import asyncio
import csv
import io
import os
import platform
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from backends.core.state import stamp, write_text
from backends.serving.runs import (
    LEVELS_FILE,
    RUN_FILE,
    BenchmarkRun,
    Environment,
    LevelResult,
)

if TYPE_CHECKING:
    from backends.serving.limits import Limits
    from backends.serving.loadgen import LoadEngine

SAVE_EVERY_S = 1.0


@dataclass(frozen=True)
class BenchmarkProgress:
    """Where a run stands, for a progress line.

    Attributes:
        fraction: 0..1 of all requests of all levels, warm-up included; of a search, of its steps.
        message: One line: level, requests done, tokens per second so far.
        run: The run as it stands; to be read, not kept.
    """

    fraction: float
    message: str
    run: BenchmarkRun


def levels_csv(run: BenchmarkRun) -> str:
    """Return the levels as CSV, one row a level, distributions as `ttft_ms_p50` and so on."""
    rows = [_flat(level) for level in run.levels]
    out = io.StringIO()
    if rows:
        names = list(dict.fromkeys(name for row in rows for name in row))
        writer = csv.DictWriter(out, fieldnames=names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return out.getvalue()


def levels_file(run_file: Path) -> Path:
    """Return where the levels of a run file are written: `levels.csv`, or `x.levels.csv`."""
    if run_file.name == RUN_FILE:
        return run_file.with_name(LEVELS_FILE)
    return run_file.with_suffix(".levels.csv")


def environment(engine: LoadEngine) -> Environment:
    """Return where the client runs."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        product = version("vllm-devops")
    except PackageNotFoundError:
        product = "not installed as a package"
    return Environment(
        client_cpus=os.cpu_count() or 0,
        client_platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        product_version=product,
        engine=engine.name,
        timestamp_source=engine.timestamp_source,
    )


class RunRecord:
    """Keeps a run's files up to date and tells how far it is.

    Args:
        run: The run; changed by whoever measures.
        run_file: Where it is written; the levels stand beside it.
        limits: For what has been spent.
        on_progress: Called about twice a second; must return within milliseconds.
    """

    def __init__(
        self,
        run: BenchmarkRun,
        run_file: Path,
        limits: Limits,
        on_progress: Callable[[BenchmarkProgress], None],
    ) -> None:
        self.run = run
        self._run_file = run_file
        self._limits = limits
        self._on_progress = on_progress
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="benchmark-files")
        self._writing: Future[None] | None = None
        self._saved_s = 0.0
        self._fraction = 0.0

    def tell(self, message: str, fraction: float) -> None:
        """Tell how far it is; a level may be measured again, so it never goes back."""
        self._fraction = max(self._fraction, min(1.0, fraction))
        self._on_progress(BenchmarkProgress(self._fraction, message, self.run))

    async def save(self) -> None:
        """Write both files now, after whatever is being written."""
        texts = self._texts()
        await asyncio.shield(asyncio.wrap_future(self._writer.submit(self._write, *texts)))

    def save_soon(self) -> None:
        """Write both files, at most once a second and without waiting for it."""
        now_s = time.perf_counter()
        idle = self._writing is None or self._writing.done()
        if idle and now_s - self._saved_s >= SAVE_EVERY_S:
            self._saved_s = now_s
            self._writing = self._writer.submit(self._write, *self._texts())

    def close(self) -> None:
        """Wait for what is being written."""
        self._writer.shutdown(wait=True)

    def _texts(self) -> tuple[str, str]:
        run = self.run
        run.updated_at = stamp()
        run.spent_s, run.spent_usd = self._limits.spent_s, self._limits.spent_usd
        return run.model_dump_json(indent=1), levels_csv(run)

    def _write(self, run_json: str, rows: str) -> None:
        write_text(self._run_file, run_json)
        write_text(levels_file(self._run_file), rows)


def _flat(level: LevelResult) -> dict[str, object]:
    row: dict[str, object] = {}
    skipped = {"server", "error_samples", "beside_server"}
    _flatten(level.model_dump(mode="json", exclude=skipped), "", row)
    return row


def _flatten(found: Mapping[str, object], prefix: str, row: dict[str, object]) -> None:
    for name, value in found.items():
        if isinstance(value, Mapping):
            _flatten(value, f"{prefix}{name}_", row)
        elif isinstance(value, list):
            row[prefix + name] = "; ".join(map(str, value))
        else:
            row[prefix + name] = value
