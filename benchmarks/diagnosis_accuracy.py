"""How well failures are recognised: precision and recall over a corpus of texts with answers.

python -m benchmarks.diagnosis_accuracy
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from backends.knowledge.diagnosing import Reading, read_text

CORPUS = Path(__file__).resolve().parents[1] / "tests" / "recorded" / "failures"
_MARK = "=== "


@dataclass(frozen=True)
class Text:
    """A text and what should be said of it (see the corpus's README)."""

    expect: str
    target: str | None
    origin: str
    body: str
    where: str


@dataclass(frozen=True)
class Outcome:
    """A text and what was said of it."""

    text: Text
    said: str

    @property
    def right(self) -> bool:
        """Whether that is what was expected."""
        return self.said == self.text.expect


def corpus() -> list[Text]:
    """Every text, in the order of files and lines."""
    return [text for file in sorted(CORPUS.glob("*.txt")) for text in _texts(file)]


def _texts(file: Path) -> Iterator[Text]:
    marks: dict[str, str] = {}
    body: list[str] = []
    start = 0
    lines = [*file.read_text(encoding="utf-8").splitlines(), f"{_MARK}end=1"]
    for number, line in enumerate(lines, 1):
        if not line.startswith(_MARK):
            body.append(line)
            continue
        if marks:
            yield Text(
                marks["expect"],
                marks.get("target"),
                marks["from"],
                "\n".join(body),
                f"{file.name}:{start}",
            )
        marks = dict(item.split("=", 1) for item in line.removeprefix(_MARK).split())
        body, start = [], number


def judged(reading: Reading) -> str:
    """What a reading says, in the corpus's words."""
    if reading.hits:
        return reading.hits[0].entry.id
    if reading.telling:
        return "unknown"
    return reading.harmless[0].entry.id if reading.harmless else "fine"


def outcomes() -> list[Outcome]:
    """Every text, judged."""
    return [Outcome(text, judged(read_text(text.body, target=text.target))) for text in corpus()]


def is_failure(said: str) -> bool:
    """Whether an answer names a reason."""
    return said not in {"unknown", "fine"} and not said.startswith("harmless.")


def precision_and_recall(results: list[Outcome]) -> tuple[float, float]:
    """Of the reasons named, how many are right; of the reasons to name, how many were named."""
    named = [item for item in results if is_failure(item.said)]
    wanted = [item for item in results if is_failure(item.text.expect)]
    right = sum(item.right for item in named)
    return right / len(named), right / len(wanted)


def main() -> int:
    """Print the errors and the figures."""
    results = outcomes()
    others = [item for item in results if not is_failure(item.text.expect)]
    print(f"Diagnosis: {len(results)} texts, {len(others)} of them unknown or harmless.\n")
    for item in results:
        if not item.right:
            print(f"  {item.text.where}: expected {item.text.expect}, said {item.said}")
    precision, recall = precision_and_recall(results)
    fair = [item for item in others if item.right]
    print(f"\n  precision {precision:.1%}, recall {recall:.1%}; of those without a known reason ")
    print(f"  {len(fair)} of {len(others)} were judged as such.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
