"""A tool's reply, the same whether it came through the SDK's client or off the wire."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Reply:
    """What a client got for one tool call.

    Attributes:
        is_error: Whether the tool refused or failed.
        text: The text blocks, joined.
        structured: The structured content.
        images: The image blocks' bytes.
        whole: The result as it was on the wire.
    """

    is_error: bool
    text: str
    structured: dict[str, Any]
    images: list[bytes] = field(default_factory=list)
    whole: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, result: dict[str, Any]) -> Reply:
        """From a `tools/call` result as JSON."""
        blocks = result.get("content", [])
        return cls(
            is_error=bool(result.get("isError", False)),
            text="\n".join(block["text"] for block in blocks if block["type"] == "text"),
            structured=result.get("structuredContent") or {},
            images=[base64.b64decode(b["data"]) for b in blocks if b["type"] == "image"],
            whole=result,
        )

    @property
    def error(self) -> dict[str, Any]:
        """The structured error; the test fails here if there was none."""
        assert self.is_error, self.text
        error = self.structured["error"]
        assert isinstance(error, dict)
        return error

    @property
    def ok(self) -> dict[str, Any]:
        """The structured answer; the test fails here, with the text, if it was an error."""
        assert not self.is_error, self.text
        return self.structured

    def expect_ok(self) -> Reply:
        """Itself; the test fails here, with the text, if it was an error."""
        assert not self.is_error, self.text
        return self

    @property
    def plan_id(self) -> str:
        """The plan id of a plan."""
        return str(self.ok["plan_id"])


def leaves(tree: object, path: str = "") -> list[tuple[str, str]]:
    """Every scalar of a JSON value as (path, words), as the text is to show it."""
    if isinstance(tree, dict):
        return [leaf for key, value in tree.items() for leaf in leaves(value, f"{path}.{key}")]
    if isinstance(tree, list):
        return [
            leaf for index, item in enumerate(tree) for leaf in leaves(item, f"{path}[{index}]")
        ]
    if isinstance(tree, bool):
        return [(path, "true" if tree else "false")]
    return [(path, str(tree))]


def missing_in_text(reply: Reply) -> list[str]:
    """Leaves of the structured part that the text does not carry."""
    text = _flat(reply.text.replace("\\|", "|").replace("<br>", "\n"))
    return [
        f"{path} = {words[:120]!r}"
        for path, words in leaves(reply.structured)
        if not _occurs(_flat(words), text)
    ]


def _flat(text: str) -> str:
    return " ".join(text.split())


def _occurs(words: str, text: str) -> bool:
    if re.fullmatch(r"-?[\d.e+-]+|true|false", words):
        # A number inside a longer one is not that number.
        return re.search(rf"(?<![\w.]){re.escape(words)}(?![\w]|\.\d)", text) is not None
    return words in text
