"""Reads what `vllm bench serve --save-result` writes, and writes the same of our levels.

Its file is one level. Several files make one run, so that its sweeps compare with ours. Its figures
are taken over as they are; what its client is known to do to them is said in warnings, and its exit
code is not asked: it ends with 0 when every request failed.

Fields as vLLM 0.32.0 wrote them on 2026-11-30 (tests/recorded/vllm/bench).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from backends.core.errors import InvalidInputError
from backends.core.state import stamp
from backends.serving.findings import findings
from backends.serving.repeats import key_of, repeated
from backends.serving.runs import (
    DEFINITIONS,
    BenchmarkRun,
    BenchmarkSpec,
    EndpointFacts,
    Environment,
    ErrorSample,
    LevelResult,
    RunError,
    SelfCheck,
)
from backends.serving.slo import MAX_ERROR_SHARE
from backends.serving.spec import MAX_CONCURRENCY
from backends.serving.stats import PERCENTILES, Distribution, distribution

FIELD = "import_paths"
PROGRAM = "vllm bench serve"
MAX_FILES = 64
MAX_FILE_MB = 500
IN_FLIGHT = 1024
"""Stands for "no limit" where requests were sent by rate and nothing bounded them."""

_CHAT = {"openai-chat", "openai-audio", "vllm-chat"}


def import_vllm_bench(
    paths: Sequence[Path],
    *,
    run_id: str,
    label: str = "",
    target: str | None = None,
    usd_per_hour: float | None = None,
    accelerator: str | None = None,
) -> BenchmarkRun:
    """Make one run of the result files of `vllm bench serve`.

    Args:
        paths: Its JSON files, one a level; a folder stands for every `.json` in it and below.
        run_id: The run's id.
        label: A name for it; the files' own label, else the first file's name without it.
        target: Where that was measured, for lists.
        usd_per_hour: Price of the deployment, above 0; None computes no cost.
        accelerator: Where that was measured on, as `BenchmarkSpec.accelerator`.

    Returns:
        The run. Its state is `failed`, with the error, when not one request of any file succeeded.

    Raises:
        InvalidInputError: A file cannot be read, is no such result, or they are of several models.
    """
    files = _files(paths)
    found = [(path, _read(path)) for path in files]
    models = {str(result["model_id"]) for _, result in found}
    if len(models) > 1:
        raise InvalidInputError(FIELD, f"are of several models: {', '.join(sorted(models))}.")
    levels: list[LevelResult] = []
    for path, result in found:
        level = _level(path, result, usd_per_hour)
        level.repetition = 1 + sum(key_of(one) == key_of(level) for one in levels)
        levels.append(level)
    levels.sort(key=lambda level: (*key_of(level), level.repetition))
    first_path, first = found[0]
    dates = sorted(_date(str(result["date"])) for _, result in found)
    name = label or str(first.get("label") or "") or first_path.stem
    run = BenchmarkRun(
        id=run_id,
        state="completed",
        created_at=dates[0],
        updated_at=stamp(),
        finished_at=dates[-1],
        label=name[:120],
        simulated=False,
        endpoint=EndpointFacts(
            base_url="not recorded",
            model=models.pop(),
            source=f"{PROGRAM}, {len(files)} files",
            simulated=False,
        ),
        spec=_spec(levels, first, usd_per_hour, target, accelerator),
        prompts=f"as {PROGRAM} made them; it repeats the same for the same seed",
        environment=Environment(
            client_cpus=0,
            client_platform="not recorded",
            python="not recorded",
            product_version="not recorded",
            engine=PROGRAM,
            timestamp_source="asyncio, after the event was parsed",
        ),
        definitions=DEFINITIONS,
        levels=levels,
        imported_from=str(first_path if len(files) == 1 else first_path.parent),
        warnings=[
            f"measured by {PROGRAM}: one Python process took the times, which lengthens TTFT with "
            "the number of streams",
        ],
    )
    if not any(level.output_tokens_per_s for level in levels):
        sample = next((s for level in levels for s in level.error_samples), None)
        run.state, run.state_reason = "failed", "not one request succeeded"
        run.error = RunError(
            code="endpoint_error",
            message=f"{PROGRAM} measured nothing: not one request succeeded.",
            words=sample.message if sample else "",
            cause="It ends with exit code 0 all the same.",
            next_action="Look at the endpoint with verify_model_health, then measure again.",
        )
    run.repeated = repeated(levels)
    run.findings = findings(run)
    return run


def export_vllm_bench(run: BenchmarkRun, level: LevelResult) -> dict[str, object]:
    """Return a level as `vllm bench serve --save-result` would have written it.

    What it has and we do not keep (standard deviations, peaks) is left out.
    """
    good = level.requests - level.errors
    prompt_tokens = round((level.prompt_tokens_mean or 0) * good)
    per_s = level.requests_per_s or 0.0
    out: dict[str, object] = {
        "date": datetime.fromisoformat(level.started_at).strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": "openai-chat" if run.spec.endpoint_kind == "chat" else "vllm",
        "backend": "openai-chat" if run.spec.endpoint_kind == "chat" else "vllm",
        "label": run.label,
        "model_id": run.endpoint.model,
        "tokenizer_id": run.endpoint.model,
        "num_prompts": level.requests,
        "request_rate": "inf" if level.request_rate is None else level.request_rate,
        "burstiness": run.spec.burstiness,
        "max_concurrency": level.concurrency,
        "duration": level.duration_s,
        "completed": good,
        "failed": level.errors,
        "total_input_tokens": prompt_tokens,
        "total_output_tokens": level.output_tokens_total,
        "request_throughput": per_s,
        "request_goodput": level.goodput_requests_per_s,
        "output_throughput": level.output_tokens_per_s or 0.0,
        "total_token_throughput": (level.output_tokens_per_s or 0.0)
        + (level.prompt_tokens_mean or 0.0) * per_s,
    }
    for ours, theirs in _FIGURES.items():
        figures: Distribution = getattr(level, ours)
        out[f"mean_{theirs}_ms"] = figures.mean or 0.0
        out[f"median_{theirs}_ms"] = figures.p50 or 0.0
        for percent in PERCENTILES:
            out[f"p{percent}_{theirs}_ms"] = getattr(figures, f"p{percent}") or 0.0
    return out


_FIGURES = {"ttft_ms": "ttft", "tpot_ms": "tpot", "itl_ms": "itl", "e2e_ms": "e2el"}


def _files(paths: Sequence[Path]) -> list[Path]:
    out: list[Path] = []
    for path in (path.expanduser() for path in paths):
        if path.is_dir():
            # `vllm bench sweep` repeats every result in a summary beside it
            out += sorted(file for file in path.rglob("*.json") if file.name != "summary.json")
        elif path.is_file():
            out.append(path)
        else:
            raise InvalidInputError(FIELD, f"name no file or folder: {path.name}.")
    if not out:
        raise InvalidInputError(FIELD, "hold no .json file.")
    if len(out) > MAX_FILES:
        raise InvalidInputError(FIELD, f"hold {len(out)} files.", allowed=f"at most {MAX_FILES}")
    return out


_NEEDED = ("date", "model_id", "num_prompts", "duration", "completed", "failed", "request_rate")


def _read(path: Path) -> Mapping[str, object]:
    try:
        if path.stat().st_size > MAX_FILE_MB * 1_000_000:
            raise _bad(path, f"is larger than {MAX_FILE_MB} MB")
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise _bad(path, f"cannot be read as JSON ({type(error).__name__})") from None
    if not isinstance(found, dict):
        raise _bad(path, "is no object")
    missing = [name for name in _NEEDED if name not in found]
    if missing:
        raise _bad(path, f"is no result of {PROGRAM}: it has no {', '.join(missing)}")
    return found


def _bad(path: Path, what: str) -> InvalidInputError:
    return InvalidInputError(FIELD, f"cannot be used: {path.name} {what}.")


def _number(result: Mapping[str, object], name: str) -> float | None:
    value = result.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _level(path: Path, result: Mapping[str, object], usd_per_hour: float | None) -> LevelResult:
    completed = round(_number(result, "completed") or 0)
    failed = round(_number(result, "failed") or 0)
    duration_s = _number(result, "duration") or 0.0
    asked = _number(result, "request_rate")
    in_flight = _number(result, "max_concurrency")
    tokens = round(_number(result, "total_output_tokens") or 0)
    prompt_tokens = _number(result, "total_input_tokens") or 0.0
    rate = tokens / duration_s if completed and tokens and duration_s > 0 else None
    everything = completed + failed
    # without a rate and a bound it sends everything at once
    streams = round(in_flight) if in_flight else (IN_FLIGHT if asked else everything)
    level = LevelResult(
        concurrency=max(1, min(streams, MAX_CONCURRENCY)),
        request_rate=asked,
        requests=everything,
        errors=failed,
        success_rate=completed / everything if everything else None,
        duration_s=duration_s,
        requests_per_s=completed / duration_s if completed and duration_s > 0 else None,
        output_tokens_per_s=rate,
        ttft_ms=_figures(result, "ttft", completed),
        itl_ms=_figures(result, "itl", completed),
        tpot_ms=_figures(result, "tpot", completed),
        e2e_ms=_e2e(result, completed),
        first_answer_ms=Distribution(),
        valid=True,
        invalid_reasons=[],
        warnings=[],
        timestamp_source="asyncio, after the event was parsed",
        requests_planned=round(_number(result, "num_prompts") or everything),
        prompt_tokens_mean=prompt_tokens / completed if completed else None,
        output_tokens_mean=tokens / completed if completed else None,
        output_tokens_total=tokens,
        token_count_source="server usage" if completed else None,
        tokens_per_event=None,
        error_samples=_errors(result, failed),
        usd_per_million_output_tokens=None
        if usd_per_hour is None or not rate
        else usd_per_hour / (rate * 3600) * 1e6,
        prefix_cache_hit_rate=None,
        server=None,
        self_check=SelfCheck(),
        started_at=_date(str(result["date"])),
        goodput_requests_per_s=_number(result, "request_goodput"),
    )
    if not completed:
        level.invalid_reasons.append(f"no request succeeded ({path.name})")
    elif failed > MAX_ERROR_SHARE * everything:
        level.invalid_reasons.append(f"{failed} of {everything} requests failed ({path.name})")
    level.valid = not level.invalid_reasons
    if completed and str(result.get("backend")) in _CHAT:
        level.warnings.append(
            "of a chat its client counts the role chunk as the first token: TTFT ends there, and "
            "one ITL of a request is about 0"
        )
    return level


def _figures(result: Mapping[str, object], name: str, completed: int) -> Distribution:
    """Take over its statistics; of a file without successes they are zeros that mean nothing."""
    if not completed:
        return Distribution()
    p50 = _number(result, f"p50_{name}_ms")
    found = {f"p{percent}": _number(result, f"p{percent}_{name}_ms") for percent in PERCENTILES}
    found["p50"] = _number(result, f"median_{name}_ms") if p50 is None else p50
    return Distribution(mean=_number(result, f"mean_{name}_ms"), **found)


def _e2e(result: Mapping[str, object], completed: int) -> Distribution:
    """Take over E2E, which it summarises only when asked; else from the requests' own."""
    told = _figures(result, "e2el", completed)
    each = result.get("latencies")
    if told.mean is not None or not completed or not isinstance(each, list):
        return told
    return distribution([float(value) * 1e3 for value in each if value])


def _errors(result: Mapping[str, object], failed: int) -> list[ErrorSample]:
    if not failed:
        return []
    said = result.get("errors")
    words = [str(text) for text in said if text] if isinstance(said, list) else []
    message = words[0].strip().splitlines()[-1][:500] if words else "the file does not say why"
    return [ErrorSample(kind="failed", count=failed, message=message)]


def _date(text: str) -> str:
    try:
        # its clock is the machine's local one, without a zone
        when = datetime.strptime(text, "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        raise InvalidInputError(FIELD, "hold a date of an unknown form.") from None
    return when.strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _spec(
    levels: Sequence[LevelResult],
    first: Mapping[str, object],
    usd_per_hour: float | None,
    target: str | None,
    accelerator: str | None,
) -> BenchmarkSpec:
    rates = sorted({level.request_rate for level in levels if level.request_rate is not None})
    lengths = [level.output_tokens_mean for level in levels if level.output_tokens_mean]
    prompts = [level.prompt_tokens_mean for level in levels if level.prompt_tokens_mean]
    streams = sorted({level.concurrency for level in levels if level.request_rate is None})
    return BenchmarkSpec(
        levels=streams[:32] or [levels[0].concurrency],
        request_rates=rates[:32] or None,
        burstiness=_number(first, "burstiness") or 1.0,
        max_tokens=max(1, round(lengths[0])) if lengths else 1,
        prompt_source="generated",
        prompt_tokens=max(1, round(prompts[0])) if prompts else 1,
        endpoint_kind="chat" if str(first.get("backend")) in _CHAT else "completions",
        usd_per_hour=usd_per_hour,
        target=target,
        accelerator=accelerator,
    )
