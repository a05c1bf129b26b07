"""How one benchmark run is shown: with all its figures, or with those that are read first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backends.core.answers import BenchmarkAnswer
    from backends.serving.runs import BenchmarkRun

# What a reader of one run needs of each level; the rest is in run.json.
_LEVEL_FIELDS = (
    "concurrency",
    "requests",
    "errors",
    "success_rate",
    "duration_s",
    "requests_per_s",
    "output_tokens_per_s",
    "ttft_ms",
    "itl_ms",
    "tpot_ms",
    "e2e_ms",
    "usd_per_million_output_tokens",
    "prefix_cache_hit_rate",
    "valid",
    "invalid_reasons",
    "partial",
    "error_samples",
    "timestamp_source",
    "request_rate",
    "context_tokens",
    "repetition",
    "steady",
    "meets_slo",
    "slo_misses",
    "goodput_requests_per_s",
    "slo_attainment",
    "efficiency",
    "beside_server",
)


_STEADY_FIELDS = ("share", "output_tokens_per_s", "usd_per_million_output_tokens")


def without_nothing(found: dict[str, Any]) -> dict[str, Any]:
    """A part of a run without what it does not know."""
    return {key: value for key, value in found.items() if value not in (None, [], "")}


def whole_level(level: dict[str, Any]) -> dict[str, Any]:
    """A level with all that a reader of one run needs; the rest is in run.json."""
    shown = {key: level[key] for key in _LEVEL_FIELDS if level.get(key) not in (None, [])}
    if not level["partial"]:
        shown.pop("partial")
    if level["repetition"] == 1:
        shown.pop("repetition")
    if level["request_rate"] is not None:  # then it is only the most in flight
        shown["most_in_flight"] = shown.pop("concurrency")
    if "steady" in shown:
        # its percentiles are in run.json; here it says what ramp-up and drain hide
        steady = {name: shown["steady"][name] for name in _STEADY_FIELDS}
        steady["ttft_ms_p50"] = shown["steady"]["ttft_ms"]["p50"]
        shown["steady"] = without_nothing(steady)
    differs = [row for row in shown.pop("beside_server", ()) if not row["agrees"]]
    if differs:
        shown["beside_server"] = [without_nothing(row) for row in differs]
    if "error_samples" in shown:
        shown["error_samples"] = [
            f"{sample['count']}x {sample['kind']}: {sample['message']}"
            for sample in shown["error_samples"]
        ]
    return shown


# What is read of a level first. Latencies are given at their middle and at their tail.
_BRIEF_FIELDS = (
    "concurrency",
    "most_in_flight",
    "request_rate",
    "context_tokens",
    "repetition",
    "requests",
    "errors",
    "output_tokens_per_s",
    "requests_per_s",
    "ttft_ms",
    "itl_ms",
    "e2e_ms",
    "usd_per_million_output_tokens",
    "valid",
    "invalid_reasons",
    "partial",
    "error_samples",
    "meets_slo",
    "slo_misses",
    "goodput_requests_per_s",
    "slo_attainment",
)
_BRIEF_PERCENTILES: dict[str, tuple[str, ...]] = {
    "ttft_ms": ("p50", "p95"),
    "itl_ms": ("p50", "p95"),
    "e2e_ms": ("p50", "p95"),
}
_BRIEF_DIGITS = 4


def in_brief(whole: BenchmarkAnswer, run: BenchmarkRun) -> BenchmarkAnswer:
    """The answer that is read first: every level's main figures, what they show, where the rest is.

    Args:
        whole: The answer with everything.
        run: The run it shows.
    """
    more = f"get_benchmarks(benchmark_ids=[{run.id!r}], detail=true)"
    return whole.model_copy(
        update={
            "levels": [_brief_level(level) for level in whole.levels],
            "predicted": [],
            "definitions": {},
            "next_steps": [
                f"{more} has all percentiles, the engine's own figures, predictions, definitions",
                *whole.next_steps,
            ],
        }
    )


def _brief_level(level: dict[str, Any]) -> dict[str, Any]:
    shown = {name: level[name] for name in _BRIEF_FIELDS if name in level}
    for name, kept in _BRIEF_PERCENTILES.items():
        if name in shown:
            figures = shown[name]
            shown[name] = {stat: figures[stat] for stat in kept if figures.get(stat) is not None}
    return {name: _rounded(value) for name, value in shown.items()}


def _rounded(value: Any) -> Any:  # noqa: ANN401 (any JSON value)
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    # Whole parts stay whole; of the rest four digits are read.
    if isinstance(value, float) and abs(value) < 10**_BRIEF_DIGITS:
        return float(f"{value:.{_BRIEF_DIGITS}g}")
    return value
