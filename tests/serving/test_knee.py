"""The search for the knee finds it, in few steps, whatever the truth is."""

from __future__ import annotations

import pytest

from backends.serving.knee import KneeSearch


def found(search: KneeSearch, truth: float) -> list[float]:
    """Answer a search as a server whose knee is at `truth` would; returns the loads it tried."""
    tried: list[float] = []
    while (load := search.next_load()) is not None:
        tried.append(load)
        search.tell(load, meets=load <= truth)
    return tried


@pytest.mark.parametrize("truth", [1, 2, 3, 4, 5, 7, 8, 31, 32, 33, 100, 255, 256])
def test_every_concurrency_is_found_exactly(truth: int) -> None:
    search = KneeSearch(1, 256, whole=True, max_steps=20)
    tried = found(search, truth)
    assert search.best == truth
    assert search.settled
    assert len(tried) == len(set(tried)), "nothing is measured twice"
    assert len(tried) <= 17


def test_a_knee_of_four_takes_six_steps() -> None:
    assert found(KneeSearch(1, 64, whole=True), 4) == [1, 2, 4, 8, 6, 5]


def test_a_rate_is_found_within_the_tolerance() -> None:
    search = KneeSearch(0.5, 100, whole=False, tolerance=0.05, max_steps=20)
    found(search, 17.3)
    assert search.best is not None
    assert search.miss is not None
    assert search.best <= 17.3 < search.miss <= search.best * 1.05


def test_when_even_the_lowest_load_misses_there_is_no_knee_after_one_step() -> None:
    search = KneeSearch(2, 64, whole=True)
    assert found(search, 1) == [2]
    assert (search.best, search.miss, search.settled) == (None, 2, True)


def test_when_the_highest_load_meets_it_the_search_goes_no_higher() -> None:
    search = KneeSearch(1, 12, whole=True)
    assert found(search, 1000) == [1, 2, 4, 8, 12]
    assert (search.best, search.miss, search.settled) == (12, None, True)


def test_a_search_out_of_steps_says_that_it_is_not_settled() -> None:
    search = KneeSearch(1, 256, whole=True, max_steps=3)
    assert found(search, 100) == [1, 2, 4]
    assert (search.best, search.settled, search.ended_early) == (4, False, True)


@pytest.mark.parametrize(
    ("low", "high", "tolerance", "steps"),
    [(0, 4, 0.1, 3), (5, 4, 0.1, 3), (1, 4, 0, 3), (1, 4, 0.1, 0)],
)
def test_bounds_that_make_no_sense_are_refused(
    low: float, high: float, tolerance: float, steps: int
) -> None:
    with pytest.raises(ValueError, match="search needs"):
        KneeSearch(low, high, whole=True, tolerance=tolerance, max_steps=steps)
