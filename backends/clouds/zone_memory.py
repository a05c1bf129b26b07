"""What zones said when they were asked for hardware, remembered for a while.

A zone that has no such hardware will not have it in an hour; one that was out of stock may. Each
kind of answer is forgotten after its own time, so that nothing is avoided for ever.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backends.core.state import read_json, write_json, writing

if TYPE_CHECKING:
    from backends.core.state import StateDir

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S

# How long each kind of answer counts, in seconds.
KEPT_S: dict[str, float] = {
    "no_hardware": 7 * DAY_S,
    "model_refused": 2 * DAY_S,
    "quota": 1 * HOUR_S,
    "stockout": 0.5 * HOUR_S,
    "waited": 0.5 * HOUR_S,
    "failed": 0.25 * HOUR_S,
    "got": 6 * HOUR_S,
}
# Answers that stand until somebody changes something: asking again is in vain.
FINAL = frozenset({"no_hardware", "model_refused", "quota"})


@dataclass(frozen=True)
class ZoneNote:
    """What one zone said.

    Attributes:
        zone: The zone.
        kind: A key of `KEPT_S`.
        words: In whose own words.
        at_s: When, Unix seconds.
    """

    zone: str
    kind: str
    words: str
    at_s: float

    @property
    def until_s(self) -> float:
        """Unix second from which it no longer counts."""
        return self.at_s + KEPT_S[self.kind]

    def shown(self, now_s: float) -> str:
        """In words, with its age."""
        age = max(0.0, now_s - self.at_s)
        said = {"got": "gave hardware", "waited": "gave none in time"}.get(
            self.kind, self.kind.replace("_", " ")
        )
        ago = f"{age / 60:.0f} min" if age < 2 * HOUR_S else f"{age / HOUR_S:.0f} h"
        return f"{self.zone}: {said} {ago} ago"


class ZoneMemory:
    """Remembers, for one target, what zones said about one kind of hardware at a time.

    Args:
        state: The state directory.
        target: The target.
    """

    def __init__(self, state: StateDir, target: str) -> None:
        self._path = state.root / "zones" / f"{target}.json"

    def note(self, what: str, zone: str, kind: str, words: str = "") -> None:
        """Remember an answer; it replaces what the zone said before about `what`.

        Args:
            what: What was asked for, e.g. `v6e-1 spot`.
            zone: The zone.
            kind: A key of `KEPT_S`.
            words: Its own words.
        """
        if kind not in KEPT_S:
            raise ValueError(kind)
        moment = time.time()
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with writing(self._path):
            kept = {
                key: raw
                for key, raw in self._read().items()
                if float(raw.get("at_s", 0)) + KEPT_S.get(str(raw.get("kind")), 0.0) > moment
            }
            kept[f"{what}|{zone}"] = {"kind": kind, "words": words[:500], "at_s": moment}
            write_json(self._path, kept)

    def notes(self, what: str) -> dict[str, ZoneNote]:
        """What still counts about `what`, by zone."""
        moment = time.time()
        found: dict[str, ZoneNote] = {}
        for key, raw in self._read().items():
            asked, _, zone = key.partition("|")
            if asked != what or raw.get("kind") not in KEPT_S:
                continue
            note = ZoneNote(
                zone, str(raw["kind"]), str(raw.get("words", "")), float(raw.get("at_s", 0))
            )
            if note.until_s > moment:
                found[zone] = note
        return found

    def ordered(self, what: str, zones: Sequence[str]) -> tuple[list[str], list[ZoneNote]]:
        """Zones in the order to try them, and what was left out with why.

        Those that gave hardware lately come first, those that had none lately come last, those
        whose answer is final are left out unless nothing else remains.
        """
        notes = self.notes(what)
        final = [note for zone in zones if (note := notes.get(zone)) and note.kind in FINAL]
        left = [zone for zone in zones if zone not in {note.zone for note in final}]
        if not left:
            return list(zones), []
        rank = {"got": 0, "stockout": 2, "waited": 2, "failed": 2}
        left.sort(key=lambda zone: rank.get(notes[zone].kind, 1) if zone in notes else 1)
        return left, final

    def _read(self) -> dict[str, Any]:
        return read_json(self._path) or {}
