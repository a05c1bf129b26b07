"""Prompts that are not made up on the spot: a person's own file, and a built-in set of tasks.

A file is JSONL (`.jsonl`, `.ndjson`) with one object a line, or CSV (`.csv`) with a header. Fields:

    prompt      the text of one user message (or of the completion)
    messages    instead, in JSONL: a list of {"role", "content"} of a whole conversation
    system      a system message in front of `prompt`; chat only
    max_tokens  output tokens of this request; the run's max_tokens where it is missing

Other fields are passed over.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from backends.core.errors import InvalidInputError

MAX_FILE_MB = 200
MAX_ROWS = 100_000
MAX_OUTPUT_TOKENS = 1_000_000
ROLES = ("system", "developer", "user", "assistant", "tool")
FIELD = "dataset_path"


@dataclass(frozen=True, slots=True)
class Row:
    """One request of a dataset.

    Args:
        messages: Its conversation, for chat; the last message is to be answered.
        prompt: Its text where it is a single one, for either kind of endpoint; None otherwise.
        max_tokens: Output tokens it asks for; None leaves that to the run.
    """

    messages: tuple[Mapping[str, str], ...]
    prompt: str | None = None
    max_tokens: int | None = None


def read_dataset(path: Path, *, chat: bool) -> list[Row]:
    """Read a file of prompts.

    Args:
        path: A JSONL or CSV file in UTF-8.
        chat: Whether it is for a chat endpoint; whole conversations are refused for the other.

    Raises:
        InvalidInputError: There is no such file, it is too large, or a row cannot be used; the row
            is named by its line, its content is not repeated.
    """
    path = path.expanduser()
    kind = path.suffix.lower()
    if kind not in {".jsonl", ".ndjson", ".csv"}:
        raise InvalidInputError(FIELD, "is of no known kind.", allowed=".jsonl, .ndjson or .csv")
    if not path.is_file():
        raise InvalidInputError(FIELD, "is no file that can be read here.")
    if path.stat().st_size > MAX_FILE_MB * 1_000_000:
        raise InvalidInputError(FIELD, "is too large.", allowed=f"at most {MAX_FILE_MB} MB")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInputError(FIELD, f"is not UTF-8 at byte {error.start}.") from None
    except OSError as error:
        raise InvalidInputError(FIELD, f"cannot be read: {error.strerror}.") from None
    rows: list[Row] = []
    for number, fields in _csv(text) if kind == ".csv" else _jsonl(text):
        if len(rows) == MAX_ROWS:
            raise InvalidInputError(FIELD, "has too many rows.", allowed=f"at most {MAX_ROWS}")
        rows.append(_row(fields, number, chat=chat))
    if not rows:
        raise InvalidInputError(FIELD, "has no row.")
    return rows


def _jsonl(text: str) -> Iterator[tuple[int, Mapping[str, object]]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except json.JSONDecodeError as error:
            raise _bad(number, f"is not JSON ({error.msg} at column {error.colno})") from None
        if not isinstance(fields, dict):
            raise _bad(number, "is not an object")
        yield number, fields


def _csv(text: str) -> Iterator[tuple[int, Mapping[str, object]]]:
    reader = csv.DictReader(io.StringIO(text), strict=True)
    try:
        if "prompt" not in (reader.fieldnames or ()):
            raise _bad(1, "names no column prompt")
        for fields in reader:
            yield reader.line_num, {name: value for name, value in fields.items() if value != ""}
    except csv.Error as error:
        raise _bad(reader.line_num, f"is not CSV ({error})") from None


def _row(fields: Mapping[str, object], number: int, *, chat: bool) -> Row:
    prompt, messages = fields.get("prompt"), fields.get("messages")
    if (prompt is None) == (messages is None):
        raise _bad(number, "must have either prompt or messages")
    max_tokens = _max_tokens(fields.get("max_tokens"), number)
    if messages is not None:
        if not chat:
            raise _bad(number, "has messages, which need endpoint_kind=chat")
        return Row(_messages(messages, number), None, max_tokens)
    if not isinstance(prompt, str) or not prompt.strip():
        raise _bad(number, "has a prompt that is no text")
    system = fields.get("system")
    if system is None:
        return Row(({"role": "user", "content": prompt},), prompt, max_tokens)
    if not chat or not isinstance(system, str):
        raise _bad(number, "has a system message, which is text and needs endpoint_kind=chat")
    both = ({"role": "system", "content": system}, {"role": "user", "content": prompt})
    return Row(both, None, max_tokens)


def _messages(found: object, number: int) -> tuple[Mapping[str, str], ...]:
    if not isinstance(found, list) or not found:
        raise _bad(number, "has messages that are no list")
    out: list[Mapping[str, str]] = []
    for message in found:
        role = message.get("role") if isinstance(message, dict) else None
        content = message.get("content") if isinstance(message, dict) else None
        if role not in ROLES or not isinstance(content, str):
            raise _bad(number, f"has a message without content or a role of {', '.join(ROLES)}")
        out.append({"role": str(role), "content": content})
    return tuple(out)


def _max_tokens(found: object, number: int) -> int | None:
    if found is None:
        return None
    try:
        value = int(str(found))
    except ValueError:
        value = 0
    if not 1 <= value <= MAX_OUTPUT_TOKENS:
        raise _bad(number, "has a max_tokens that is no whole number from 1")
    return value


def _bad(number: int, what: str) -> InvalidInputError:
    return InvalidInputError(FIELD, f"cannot be used: line {number} {what}.")


_DIFF = (
    "def total(items):\n    result = 0\n    for i in range(1, len(items)):\n"
    "        result += items[i].price * items[i].count\n    return result"
)
_LOG = (
    "12:01:04 WARN pool exhausted (8/8), waiting 2000 ms\n12:01:06 ERROR checkout failed: timeout\n"
    "12:01:06 INFO retry 1 of 3\n12:01:09 ERROR checkout failed: timeout\n"
    "12:01:12 INFO pool size 8 -> 16\n12:01:13 INFO checkout ok after 11 ms"
)
_REVIEW = (
    "The battery lasts two days, which I love, but the screen scratched within a week and support "
    "took nine days to answer. I would buy it again only at half the price."
)

BUILTIN: tuple[str, ...] = (
    "Explain to a new colleague what a load balancer does, with one example from daily life.",
    f"Find the fault in this Python function and write it again without it:\n\n{_DIFF}",
    f"Summarise what happened in this log, in three sentences, and name the cause:\n\n{_LOG}",
    f"List the product's good and bad points from this review as two bullet lists:\n\n{_REVIEW}",
    "Write a polite e-mail that moves Thursday's meeting to Monday and asks for the agenda.",
    "Translate into German and French: 'The delivery will arrive between nine and eleven.'",
    "Write a SQL query for the three customers with the highest revenue in each country; tables "
    "customers(id, name, country) and orders(id, customer_id, total).",
    "A train leaves at 8:40 at 90 km/h, another at 9:10 from the same station at 120 km/h. When "
    "does the second catch the first? Show each step.",
    "Compare TCP and UDP in a table with five rows, then say which suits live video and why.",
    "Write a short story of about 200 words that begins with a locked drawer.",
    "Give me a shopping list and a recipe for a vegetarian dinner for four in thirty minutes.",
    "Turn this into JSON with the keys name, date, amount: 'Paid Anna Weber 42.50 on 3 May'.",
    "Write a bash one-liner that shows the ten largest files below the current folder.",
    "Explain why the sky is blue, first to a child, then to a physicist.",
    "Draft the outline of a talk of twenty minutes on caching, with timings.",
    "Which questions would you ask a candidate for a site reliability role? Give eight, each with "
    "what a good answer holds.",
    "Classify as bug, wish or question, one word a line: 'It crashes on save'; 'Could it export "
    "PDF?'; 'How do I log in?'; 'The date is a day off'.",
    "Write unit tests in pytest for a function slugify(text) that makes URL slugs.",
    "Plan a weekend in Lisbon for two people who dislike crowds; morning, afternoon, evening.",
    "What are the risks of running a database on spot instances, and how is each reduced?",
    "Rewrite for a press release, neutral and short: 'Our amazing new app totally beats others!'",
    "Prove that the sum of two odd numbers is even, and that the product of two odd ones is odd.",
    "Explain the difference between a process, a thread and a coroutine, with a use for each.",
    "Write a regular expression for dates like 2026-11-30, and say what it still lets through.",
)
"""What people ask of a chat model, in 24 short tasks of 15 to 120 tokens."""
