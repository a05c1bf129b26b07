"""Known failures are found in texts of any shape and size, and nothing else is."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from backends.knowledge.diagnosing import read_text
from backends.knowledge.failures import OVERLAPS, entries, why_first
from backends.knowledge.pattern_hints import hints_of
from benchmarks.diagnosis_accuracy import (
    Text,
    corpus,
    is_failure,
    judged,
    outcomes,
    precision_and_recall,
)

CORPUS = corpus()


@pytest.mark.parametrize("text", CORPUS, ids=lambda text: text.where)
def test_a_text_of_the_corpus_is_judged_right(text: Text) -> None:
    assert judged(read_text(text.body, target=text.target)) == text.expect


def test_the_corpus_is_large_and_has_much_that_is_no_known_failure() -> None:
    others = [text for text in CORPUS if not is_failure(text.expect)]
    assert len(CORPUS) >= 150
    assert len(others) >= 50
    assert precision_and_recall(outcomes()) == (1.0, 1.0)


def test_every_signature_explains_itself() -> None:
    known = entries()
    assert len({entry.id for entry in known}) == len(known)
    for entry in known:
        cause, fix = entry.signature.explained("cloudrun-l4", "demo")
        assert len(cause) > 10, entry.id
        assert len(fix) > 5, entry.id
        assert not re.search(r"\{(?:target|name)\}", cause + fix), entry.id


@pytest.mark.parametrize("at_target", [True, False])
def test_of_two_signatures_exactly_one_wins_a_line_and_says_why(at_target: bool) -> None:
    known = entries("tpu-v6e" if at_target else None)
    for index, one in enumerate(known):
        for other in known[index + 1 :]:
            reasons = [
                why_first(one, other, at_target=at_target),
                why_first(other, one, at_target=at_target),
            ]
            assert sum(reason is not None for reason in reasons) == 1, (one.id, other.id)


def test_overlaps_name_signatures_that_there_are() -> None:
    ids = {entry.id for entry in entries()}
    assert all(set(pair) <= ids for pair in OVERLAPS)


@pytest.mark.parametrize(
    ("pattern", "hints"),
    [
        (r"No module named 'mcp'", ("no module named 'mcp'",)),
        (r"foo\d+bar baz|quux", ("bar baz", "quux")),
        (r"(?:alpha|beta) ", ("alpha", "beta")),
        (r"Killed? process", ("kille", " process")[1:]),
        (r"\d+", ()),
        (r"(?:ab|longer)", ()),
        (r"(?:optional)?x", ()),
        (r"[abc]{2}tail words", ("tail words",)),
    ],
)
def test_hints_are_words_that_every_match_contains(pattern: str, hints: tuple[str, ...]) -> None:
    assert hints_of(pattern) == hints


def test_hints_never_hide_a_match() -> None:
    for text in CORPUS:
        for entry in entries(text.target):
            found = entry.signature.pattern.search(text.body)
            if found and entry.hints:
                low = text.body.lower()
                assert any(hint in low for hint in entry.hints), entry.id


def test_a_failure_before_the_newest_start_is_of_the_past() -> None:
    text = "OSError: [Errno 98] Address already in use\nretry\nApplication startup complete.\nfine"
    reading = read_text(text)
    assert not reading.hits
    assert [hit.entry.id for hit in reading.past] == ["engine.port_in_use"]


def test_colours_json_and_prefixes_are_taken_off() -> None:
    line = '{"message":"\\u001b[31mOSError: [Errno 98]\\u001b[0m Address already in use"}'
    assert read_text(line).hits[0].entry.id == "engine.port_in_use"


def test_a_line_cut_in_two_pieces_is_read_as_one() -> None:
    pieces = ["OSError: [Errno 98] Addr", "ess already in use\n"]
    assert read_text(pieces).hits[0].entry.id == "engine.port_in_use"


def test_ten_megabytes_are_read_with_the_needle_found_and_counted() -> None:
    def pieces() -> Iterator[str]:
        usual = 'INFO: 127.0.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n' * 1000
        for _ in range(150):
            yield usual
        yield "ValueError: No available memory for the cache blocks.\n"
        yield usual + "x" * 3_000_000 + "\n"

    reading = read_text(pieces(), target="local")
    assert [hit.entry.id for hit in reading.hits] == ["engine.no_kv_memory"]
    assert reading.hits[0].first_line == 150_001
    assert reading.lines > 150_000


def test_the_reason_comes_before_what_follows_from_it() -> None:
    text = (
        "EngineDeadError: EngineCore encountered an issue\n"
        "torch.OutOfMemoryError: CUDA out of memory\n"
    )
    ids = [hit.entry.id for hit in read_text(text).hits]
    assert ids == ["engine.accelerator_memory", "serving.engine_dead"]
