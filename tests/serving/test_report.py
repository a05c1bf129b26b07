"""What a sweep is said to show, in words, tables and pictures."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from backends.serving.chart import comparison_chart, run_chart
from backends.serving.comparison import compare, comparison_markdown
from backends.serving.findings import best_level, findings, plateau
from backends.serving.report import run_markdown
from backends.serving.runs import BenchmarkRun, BenchmarkSpec, LevelResult, RunError
from tests.serving.made_runs import failed, level, rated, request, run_of, server_figures


def said(run: BenchmarkRun) -> str:
    return " ".join(findings(run))


def sweep(rates: Sequence[float]) -> list[LevelResult]:
    return [rated(2**i, rate) for i, rate in enumerate(rates)]


@pytest.mark.parametrize(
    ("rates", "at"),
    [
        ([50, 100, 190, 360], None),
        ([50, 100, 190, 195], 4),
        ([50, 52, 51, 50], 1),
        ([50, 100, 90, 80], 2),
        ([50], None),
        ([50, 100, 104, 190], None),
    ],
)
def test_the_plateau_is_where_no_higher_level_gives_a_tenth_more(
    rates: list[float], at: int | None
) -> None:
    found = plateau(sweep(rates))
    assert (found.concurrency if found else None) == at


def test_throughput_that_still_rises_is_said_with_its_share_of_linear() -> None:
    text = said(run_of(sweep([50, 100, 180])))
    assert "still rises at concurrency 4: 3.6 times that of 1 (90% of linear)" in text


@pytest.mark.parametrize(
    ("running", "waiting", "words"),
    [
        (4.0, 0.0, "waited in front of it, so the platform's admission limit"),
        (4.0, 4.0, "max_num_seqs or the KV cache is what holds throughput down"),
        (7.9, 0.1, "the accelerator itself is full"),
    ],
)
def test_a_plateau_is_explained_by_where_the_engine_had_the_requests(
    running: float, waiting: float, words: str
) -> None:
    levels = [rated(1, 50.0), rated(4, 190.0), rated(8, 192.0)]
    levels[-1] = rated(8, 192.0, server=server_figures(running, waiting))
    text = said(run_of(levels))
    assert "stopped rising at concurrency 4 while the engine ran" in text
    assert words in text


def test_without_engine_figures_a_plateau_is_not_explained() -> None:
    text = said(run_of(sweep([50, 100, 102, 103])))
    assert "Throughput stopped rising at concurrency 2." in text
    assert "admission" not in text


def test_latency_that_doubles_and_ttft_outside_the_engine_are_said() -> None:
    levels = [
        rated(1, 50.0, ttft_ms=60.0, server=server_figures(1, 0, ttft_ms=50)),
        rated(8, 300.0, ttft_ms=900.0, itl_ms=25.0, server=server_figures(8, 0, ttft_ms=100)),
    ]
    text = said(run_of(levels))
    assert "TTFT p50 grew from 60.0 ms at concurrency 1 to 900.0 ms at 8." in text
    assert "ITL p50 grew from 10.0 ms at concurrency 1 to 25.0 ms at 8." in text
    assert "At concurrency 8, 800 of 900 ms of mean TTFT passed outside the engine" in text


def test_an_invalid_level_is_named_and_concluded_nothing_from() -> None:
    bad = level([request(0), *[failed(i) for i in range(1, 4)]], concurrency=8)
    run = run_of([rated(1, 50.0), bad])
    text = said(run)
    assert "Concurrency 8 is not valid: 3 of 4 requests failed" in text
    assert "Best throughput: 50.0 output tokens/s at concurrency 1" in text
    best = best_level(run)
    assert best is not None
    assert best.concurrency == 1


def test_a_run_without_a_valid_level_says_so_first() -> None:
    run = run_of([level([failed(0)])])
    assert findings(run)[0] == "No level gave figures that can be relied on."
    assert best_level(run) is None


def test_a_report_says_what_was_measured_and_what_to_mind() -> None:
    run = run_of(
        [rated(1, 50.0, usd_per_hour=1.0), rated(2, 98.0, usd_per_hour=1.0)],
        label="L4 in us-central1",
        simulated=True,
    )
    text = run_markdown(run)
    assert text.startswith("## Benchmark L4 in us-central1 (simulated)")
    assert "| 1 | 20 | 0 | 0.50 | 50.0 |" in text
    assert "| 5.56 | yes |" in text
    assert "Every figure is simulated" in text
    assert "rest on few requests" not in text


def test_a_report_of_a_failed_run_carries_the_error_and_the_next_step() -> None:
    run = run_of([])
    run.state, run.state_reason = "failed", "no connection"
    run.error = RunError(code="x", message="No connection.", cause="Down.", next_action="Start it.")
    text = run_markdown(run)
    assert "No level has been measured." in text
    assert "Failed: No connection.  Down." in text
    assert "Next: Start it." in text


def test_few_requests_are_pointed_out() -> None:
    assert "4 at 1" in run_markdown(run_of([level([request(i) for i in range(4)])]))


def test_a_comparison_says_who_wins_at_what() -> None:
    cheap = run_of(
        [
            rated(1, 40.0, ttft_ms=80, itl_ms=25, usd_per_hour=0.5),
            rated(4, 150.0, usd_per_hour=0.5),
        ],
        label="T4",
        run_id="a",
    )
    fast = run_of(
        [
            rated(1, 90.0, ttft_ms=82, itl_ms=11, usd_per_hour=4.0),
            rated(4, 350.0, usd_per_hour=4.0),
        ],
        label="RTX",
        run_id="b",
    )
    compared = compare([cheap, fast])
    assert compared.common_levels == [1, 4]
    assert compared.cautions == []
    assert compared.verdicts == [
        "Highest throughput: RTX with 350.00 output tokens/s, 2.3 times as good as T4 (150.00).",
        "Lowest cost: T4 with 0.93 USD per million output tokens, 3.4 times as good as RTX (3.17).",
        "Lowest TTFT (p50) at concurrency 1: T4 and RTX are equal within 5 % (80.00 ms).",
        "Fastest single stream (TPOT p50) at concurrency 1: RTX with 11.00 ms, 2.3 times as good "
        "as T4 (25.00).",
    ]
    assert [row.best_concurrency for row in compared.runs] == [4, 4]
    text = comparison_markdown([cheap, fast])
    assert "| 4 | 150.0 | 350.0 |" in text
    assert "- Highest throughput: RTX" in text


def test_runs_that_do_not_compare_are_cautioned_about() -> None:
    bad = level([failed(0)], concurrency=8)
    one = run_of([rated(1, 40.0), bad], label="one", run_id="a", simulated=True)
    two = run_of(
        [rated(2, 40.0)], label="two", run_id="b", model="other", spec=BenchmarkSpec(max_tokens=7)
    )
    two.state = "cancelled"
    cautions = " / ".join(compare([one, two]).cautions)
    assert "some runs are simulated and some measured" in cautions
    assert "models differ: gemma-4, other" in cautions
    assert "max_tokens differ: 100, 7" in cautions
    assert "no valid level of concurrency in common" in cautions
    assert "one: concurrency 8 is not valid and is left out" in cautions
    assert "two is cancelled" in cautions


def test_runs_of_the_same_name_are_told_apart_by_their_id() -> None:
    runs = [run_of([rated(1, rate)], label="local/x", run_id=f"id-{rate}") for rate in (40, 90)]
    compared = compare(runs)
    assert [row.label for row in compared.runs] == ["local/x id-40", "local/x id-90"]
    assert "local/x id-90 with 90.00" in compared.verdicts[0]


def size_of(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def test_charts_are_png_of_readable_size_and_differ_by_what_they_show() -> None:
    measured = run_of(sweep([50, 100, 190]))
    simulated = measured.model_copy(update={"simulated": True})
    plain, labelled = run_chart(measured), run_chart(simulated)
    assert size_of(plain) == size_of(labelled)
    assert size_of(plain)[0] > 1000
    assert plain != labelled
    both = comparison_chart([measured, simulated.model_copy(update={"id": "other"})])
    assert size_of(both)[0] > 1000


def test_an_invalid_level_is_drawn_otherwise() -> None:
    run = run_of(sweep([50, 100, 190]))
    before = run_chart(run)
    run.levels[1].valid = False
    assert run_chart(run) != before


def test_a_run_without_figures_gives_a_chart_that_says_so_and_no_crash() -> None:
    empty = run_of([level([failed(0)])])
    assert size_of(run_chart(empty))[0] > 1000
    assert size_of(comparison_chart([empty, empty]))[0] > 1000
    single = run_of([rated(4, 100.0)])
    assert size_of(run_chart(single))[0] > 1000
