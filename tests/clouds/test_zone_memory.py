"""What zones said is remembered for as long as it is likely to hold."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from backends.clouds.zone_memory import HOUR_S, KEPT_S, ZoneMemory
from backends.core.state import StateDir

ZONES = ("a-1a", "b-1b", "c-1c", "d-1d")


@pytest.fixture
def memory(tmp_path: Path) -> ZoneMemory:
    return ZoneMemory(StateDir(tmp_path), "tpu-v6e")


def test_zones_are_tried_by_what_they_said_lately(memory: ZoneMemory) -> None:
    memory.note("v6e-1 spot", "a-1a", "stockout", "no more capacity")
    memory.note("v6e-1 spot", "b-1b", "no_hardware")
    memory.note("v6e-1 spot", "d-1d", "got")
    order, left_out = memory.ordered("v6e-1 spot", ZONES)
    assert order == ["d-1d", "c-1c", "a-1a"]
    assert [note.zone for note in left_out] == ["b-1b"]
    assert memory.ordered("v6e-4 spot", ZONES) == (list(ZONES), [])


def test_if_every_answer_was_final_all_are_tried_again(memory: ZoneMemory) -> None:
    for zone in ZONES:
        memory.note("v6e-1 spot", zone, "model_refused")
    assert memory.ordered("v6e-1 spot", ZONES) == (list(ZONES), [])


def test_an_answer_is_forgotten_after_its_own_time(
    memory: ZoneMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.note("v6e-1 spot", "a-1a", "stockout", "none left")
    memory.note("v6e-1 spot", "b-1b", "no_hardware")
    note = memory.notes("v6e-1 spot")["a-1a"]
    assert note.words == "none left"
    assert note.shown(note.at_s + 600) == "a-1a: stockout 10 min ago"
    later = note.at_s + KEPT_S["stockout"] + 1
    monkeypatch.setattr(time, "time", lambda: later)
    assert set(memory.notes("v6e-1 spot")) == {"b-1b"}
    monkeypatch.setattr(time, "time", lambda: later + 8 * 24 * HOUR_S)
    memory.note("v6e-1 spot", "c-1c", "got")
    assert set(memory.notes("v6e-1 spot")) == {"c-1c"}


def test_only_known_kinds_of_answers_are_kept(memory: ZoneMemory) -> None:
    with pytest.raises(ValueError, match="sulking"):
        memory.note("v6e-1 spot", "a-1a", "sulking")
