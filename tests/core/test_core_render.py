"""One tree, two renderings: every fact of the structured part is in the Markdown."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pydantic import Field

from backends.core.answers import Answer
from backends.core.render import clip, to_markdown, to_tree
from tests.support.reply import Reply, missing_in_text


class Anything(Answer):
    """An answer of any shape."""

    facts: dict[str, Any] = Field(default_factory=dict)
    items: list[Any] = Field(default_factory=list)
    note: str | None = None


def both(**fields: object) -> Reply:
    tree = to_tree(Anything.model_validate({"summary": "A summary."} | fields))
    return Reply(False, to_markdown(tree), tree)


WORDS = ["plain", "a|b", "two\nlines", "`tick`", "```\nfence\n```", "ünï", " spaced ", "- x"]
FLOATS = [0.0, 1e-9, 1 / 3, 12345.678901, -2.5e20, float("nan"), float("inf")]


def any_value(rng: random.Random, depth: int) -> object:
    scalars: list[object] = [
        rng.choice([True, False, None]),
        rng.choice([0, -1, 7, 10**6, 2**60]),
        rng.choice(FLOATS),
        " ".join(rng.sample(WORDS, rng.randrange(1, 4))),
    ]
    if depth == 0 or rng.random() < 0.5:
        return rng.choice(scalars)
    return rng.choice(
        [
            [any_value(rng, 0) for _ in range(rng.randrange(4))],
            [{f"k{i}": any_value(rng, depth - 1) for i in range(3)} for _ in range(3)],
            {f"key_{i}": any_value(rng, depth - 1) for i in range(rng.randrange(12))},
        ]
    )


@pytest.mark.parametrize("seed", range(200))
def test_every_leaf_of_any_tree_is_in_the_text(seed: int) -> None:
    rng = random.Random(seed)
    reply = both(
        facts={f"f{i}": any_value(rng, 2) for i in range(rng.randrange(1, 5))},
        items=[any_value(rng, 1) for _ in range(rng.randrange(4))],
        warnings=["Careful | now."] * rng.randrange(2),
        next_steps=["get_status(target='local')"] * rng.randrange(2),
    )
    assert missing_in_text(reply) == []


def test_unknown_is_left_out_and_zero_and_false_are_not() -> None:
    tree = both(facts={"unknown": None, "zero": 0, "no": False, "empty": {}}, note=None).structured
    assert tree["facts"] == {"zero": 0, "no": False}
    assert "note" not in tree


def test_an_empty_list_of_items_is_an_answer_of_its_own() -> None:
    reply = both(items=[])
    assert reply.structured["items"] == []
    assert "items: none" in reply.text


def test_figures_are_rounded_alike_in_both_parts() -> None:
    reply = both(facts={"ttft_ms": 42.429412345, "tokens": 3.0, "share": 1 / 3})
    assert reply.structured["facts"] == {"ttft_ms": 42.4294, "tokens": 3, "share": 0.333333}
    assert "42.4294" in reply.text
    assert "- tokens: 3\n" in reply.text


def test_rows_with_many_columns_become_facts_down_and_items_across() -> None:
    rows = [{f"column_{i}": i * 10 + row for i in range(14)} for row in range(2)]
    text = both(items=rows).text
    assert "| column_1 | 10 | 11 |" in text


def test_a_cell_cannot_break_its_table() -> None:
    text = both(items=[{"a": "x|y\nz", "b": 1}, {"a": "plain", "b": 2}]).text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows[2] == "| x\\|y<br>z | 1 |"
    assert {line.replace("\\|", "").count("|") for line in rows} == {3}


def test_text_with_fences_is_fenced_by_a_longer_one() -> None:
    text = both(note="before\n```\ninside\n```\nafter").text
    assert text.count("````") == 2


@pytest.mark.parametrize(("keep", "kept"), [("tail", "line 99"), ("head", "line 0")])
def test_long_text_is_cut_at_a_line_and_the_cut_is_counted(keep: str, kept: str) -> None:
    text = "\n".join(f"line {i}" for i in range(100))
    short, cut = clip(text, 200, keep=keep)
    assert len(short) <= 200
    assert kept in short
    assert all(line.startswith("line ") for line in short.splitlines())
    assert len(short) + cut == len(text)
    assert clip("short", 200) == ("short", 0)


def test_rows_with_more_than_cells_hold_stay_one_table_with_the_rest_below_it() -> None:
    rows = [
        {"level": 1, "ttft": {"mean": 2}, "beside": [{"figure": "itl", "client": 3}]},
        {"level": 4, "ttft": {"mean": 5}},
    ]
    text = to_markdown({"summary": "Both.", "levels": rows})
    assert "| level | ttft.mean |" in text
    assert "| 4 | 5 |" in text
    assert "## levels 1\n\n### beside" in text
    assert "## levels 4" not in text


def test_objects_in_objects_of_a_row_become_columns() -> None:
    rows = [{"level": 1, "steady": {"ttft": {"mean": 2}}}]
    assert "| level | steady.ttft.mean |" in to_markdown({"levels": rows})
