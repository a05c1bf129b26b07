"""A person's own prompts: read, checked, and refused by line without repeating them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backends.core.errors import InvalidInputError
from backends.serving.datasets import BUILTIN, read_dataset

SECRET = "my own secret prompt"


def written(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_jsonl_is_read_with_prompts_conversations_and_lengths(tmp_path: Path) -> None:
    lines = [
        {"prompt": "one", "max_tokens": 5, "other": True},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "two"}]},
        {"system": "be brief", "prompt": "three"},
    ]
    text = "\n".join(map(json.dumps, lines)) + "\n\n"
    rows = read_dataset(written(tmp_path, "a.jsonl", text), chat=True)
    assert [row.prompt for row in rows] == ["one", None, None]
    assert [row.max_tokens for row in rows] == [5, None, None]
    assert rows[1].messages[-1] == {"role": "user", "content": "two"}
    assert [message["role"] for message in rows[2].messages] == ["system", "user"]


def test_csv_is_read_with_quotes_line_breaks_and_a_byte_order_mark(tmp_path: Path) -> None:
    text = '\ufeffid,prompt,max_tokens\n1,"a, ""b""\nc",7\n2,d,\n'
    rows = read_dataset(written(tmp_path, "a.csv", text), chat=False)
    assert [(row.prompt, row.max_tokens) for row in rows] == [('a, "b"\nc', 7), ("d", None)]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.txt", "x", "no known kind"),
        ("a.jsonl", "", "has no row"),
        ("a.jsonl", f'{{"prompt": "x"}}\n{{"prompt": "{SECRET}"', "line 2 is not JSON"),
        ("a.jsonl", f'["{SECRET}"]', "line 1 is not an object"),
        ("a.jsonl", f'{{"text": "{SECRET}"}}', "line 1 must have either prompt or messages"),
        ("a.jsonl", f'{{"prompt": ["{SECRET}"]}}', "line 1 has a prompt that is no text"),
        ("a.jsonl", '{"prompt": "  "}', "line 1 has a prompt that is no text"),
        ("a.jsonl", f'{{"prompt": "{SECRET}", "max_tokens": 0}}', "line 1 has a max_tokens"),
        ("a.jsonl", f'{{"messages": [{{"content": "{SECRET}"}}]}}', "a role of system"),
        ("a.jsonl", '{"messages": []}', "messages that are no list"),
        ("a.jsonl", b'{"prompt": "\xff"}', "is not UTF-8 at byte 12"),
        ("a.csv", f"text\n{SECRET}\n", "line 1 names no column prompt"),
        ("a.csv", f'prompt\n"{SECRET}', "is not CSV"),
    ],
)
def test_what_cannot_be_used_is_named_by_its_line(
    tmp_path: Path, name: str, text: str | bytes, words: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_dataset(written(tmp_path, name, text), chat=True)
    assert words in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no file that can be read"):
        read_dataset(tmp_path / "none.jsonl", chat=True)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InvalidInputError, match="no file that can be read"):
        read_dataset(tmp_path / "folder.csv", chat=True)


def test_conversations_need_a_chat_endpoint(tmp_path: Path) -> None:
    line = json.dumps({"messages": [{"role": "user", "content": "x"}]})
    with pytest.raises(InvalidInputError, match="endpoint_kind=chat"):
        read_dataset(written(tmp_path, "a.jsonl", line), chat=False)


def test_the_built_in_tasks_are_all_different() -> None:
    assert len(BUILTIN) == len({text[:12] for text in BUILTIN}) == 24
