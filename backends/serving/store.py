"""The benchmark runs on disk: one folder a run, `run.json` in it.

A folder that cannot be read (half-written by an older version, edited, foreign) is reported beside
the runs that can; it hides none of them.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from backends.core.errors import ConflictError, DevopsError, InvalidInputError, NotFoundError
from backends.core.state import now, read_json, write_text
from backends.serving.findings import best_level, plateau
from backends.serving.repeats import representatives
from backends.serving.run_record import levels_csv
from backends.serving.runs import LEVELS_FILE, RUN_FILE, SCHEMA_VERSION, BenchmarkRun, RunState
from backends.serving.spec import Mode
from backends.serving.tables import load_cell

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
SILENT_S = 120.0
"""A living run writes every second, and at most a minute apart while it connects."""


class RunSummary(BaseModel):
    """One run in a list."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    id: str
    label: str
    state: RunState
    silent: bool = Field(description="says running, but has written nothing for two minutes")
    created_at: str
    model: str
    target: str | None
    deployment: str | None
    simulated: bool
    mode: Mode = "levels"
    imported: bool = False
    levels: list[int]
    loads: list[str] = Field(description="the same with rates and contexts, in words")
    valid_levels: int
    best_output_tokens_per_s: float | None
    best_concurrency: int | None
    best_usd_per_million_output_tokens: float | None
    best_request_rate: float | None = None
    plateau_concurrency: int | None = Field(description="where throughput stopped rising")
    knee: float | None = Field(None, description="highest load within the objective")


class StoreProblem(BaseModel):
    """A folder that should hold a run and does not."""

    id: str
    problem: str


class StoreListing(BaseModel):
    """Every run, newest first, and what could not be read."""

    runs: list[RunSummary]
    problems: list[StoreProblem]


class BenchmarkStore:
    """Reads the runs below one directory.

    Args:
        root: The directory; each run is `<root>/<id>/run.json`. It need not exist.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, run_id: str) -> Path:
        """Return the folder of a run, whether or not it exists.

        Raises:
            InvalidInputError: The id could not be the name of a folder in `root`.
        """
        if not _ID.fullmatch(run_id):
            raise InvalidInputError(
                "id", "is not a benchmark id.", allowed="as get_benchmarks lists"
            )
        return self.root / run_id

    def load(self, run_id: str) -> BenchmarkRun:
        """Read one run.

        Raises:
            InvalidInputError: The id could not be one.
            NotFoundError: There is no such run; the newest ids are named.
            DevopsError: Its file cannot be read as a run.
        """
        path = self.folder(run_id) / RUN_FILE
        found = read_json(path)
        if found is None:
            newest = ", ".join(summary.id for summary in self.list_runs().runs[:5])
            raise NotFoundError(
                f"There is no benchmark {run_id}.",
                cause=f"The newest are: {newest}." if newest else "None has been run yet.",
                next_action="List them with get_benchmarks.",
            )
        return parsed_run(found, path)

    def save(self, run: BenchmarkRun) -> Path:
        """Put a finished run beside the others, as it would stand there if it had run there.

        Returns:
            Its folder.

        Raises:
            InvalidInputError: Its id could not be the name of a folder.
            ConflictError: There is a run of that id.
        """
        folder = self.folder(run.id)
        if (folder / RUN_FILE).exists():
            raise ConflictError(f"There is a benchmark {run.id} already.")
        write_text(folder / RUN_FILE, run.model_dump_json(indent=1))
        write_text(folder / LEVELS_FILE, levels_csv(run))
        return folder

    def list_runs(self) -> StoreListing:
        """Read every run; never raises for one that cannot be read."""
        runs: list[RunSummary] = []
        problems: list[StoreProblem] = []
        folders = sorted(self.root.iterdir()) if self.root.is_dir() else []
        for folder in folders:
            if not folder.is_dir() or folder.name.startswith("."):
                continue
            path = folder / RUN_FILE
            try:
                found = read_json(path)
                if found is None:
                    problems.append(StoreProblem(id=folder.name, problem=f"has no {RUN_FILE}"))
                else:
                    runs.append(summary(parsed_run(found, path)))
            except DevopsError as error:
                said = f"{error.message} {error.words}".strip()
                problems.append(StoreProblem(id=folder.name, problem=said[:300]))
            except (OSError, UnicodeDecodeError) as error:
                problems.append(StoreProblem(id=folder.name, problem=str(error)[:300]))
        runs.sort(key=lambda run: run.created_at, reverse=True)
        return StoreListing(runs=runs, problems=problems)


def summary(run: BenchmarkRun) -> RunSummary:
    """Return what a list shows of a run."""
    best = best_level(run)
    valid = [level for level in run.levels if level.valid]
    flat = plateau(representatives(valid))
    return RunSummary(
        id=run.id,
        label=run.label,
        state=run.state,
        silent=run.state == "running" and _silent(run.updated_at),
        created_at=run.created_at,
        model=run.endpoint.model,
        target=run.spec.target,
        deployment=run.spec.deployment,
        simulated=run.simulated,
        mode=run.spec.mode,
        imported=run.imported_from is not None,
        levels=[level.concurrency for level in run.levels],
        loads=list(dict.fromkeys(load_cell(level) for level in run.levels)),
        valid_levels=len(valid),
        best_output_tokens_per_s=best.output_tokens_per_s if best else None,
        best_concurrency=best.concurrency if best else None,
        best_usd_per_million_output_tokens=best.usd_per_million_output_tokens if best else None,
        best_request_rate=best.request_rate if best else None,
        plateau_concurrency=flat.concurrency if flat and flat.request_rate is None else None,
        knee=run.knee.load if run.knee else None,
    )


def _silent(updated_at: str) -> bool:
    try:
        updated = datetime.fromisoformat(updated_at)
    except ValueError:
        return True
    if updated.tzinfo is None:
        updated = updated.replace(tzinfo=UTC)
    return (now() - updated).total_seconds() > SILENT_S


def parsed_run(found: dict[str, object], path: Path) -> BenchmarkRun:
    """Return a run as it was written, passing over fields of newer versions.

    Raises:
        DevopsError: It is no run of ours, or its schema is newer.
    """
    kind, version = found.get("kind"), found.get("schema_version")
    if kind != "vllm-devops-benchmark":
        raise DevopsError(f"{path} is not a benchmark of ours (kind {kind!r}).")
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise DevopsError(
            f"{path} has schema version {version}, newer than this program's {SCHEMA_VERSION}.",
            next_action="Update this program to read it.",
        )
    try:
        return BenchmarkRun.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DevopsError(
            f"{path} cannot be read as a benchmark.", words=f"{where}: {first['msg']}"
        ) from None
