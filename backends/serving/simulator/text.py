"""Tokens without a tokenizer: text cut into pieces of about a Gemma token, and prose to reply.

Counts come close to Gemma's for English prose (a short word with its space, or a punctuation mark,
is one token; long words take several). Joining the pieces gives the text back exactly.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

_PIECE = re.compile(r"<\|?[a-z_]+\|?>| ?[A-Za-z]{1,7}|\d| ?[^\sA-Za-z\d]|\s+(?= )|\s+")

_SPECIAL = {
    "<bos>": 2,
    "<|turn>": 105,
    "<turn|>": 106,
    "<|tool_call>": 48,
    "<tool_call|>": 49,
    "<|channel>": 100,
    "<channel|>": 101,
}
_FIRST_PLAIN_ID = 300
_VOCABULARY = 262_144

_PROSE = (
    "the pod was ready after a probe and served each request from cache while traffic grew slowly "
    "on one node so latency stayed flat until queue depth rose past its limit then batch size was "
    "raised with care because memory for keys and values is shared by all streams in flight when "
    "weights load from disk start time is long but once warm a step takes only few tens of msec "
    "check logs for errors first watch usage next scale out if needed roll back when health drops "
    "cost per token falls as load fills every slot idle hours are what a bill is made of"
)
_WORDS = tuple(_PROSE.split())

_OPENING = ("This", " is", " a", " simu", "lated", " reply", ":")


def split(text: str) -> list[str]:
    """Cut text into pieces; joined, they are the text again."""
    return _PIECE.findall(text)


class Vocabulary:
    """Gives each piece an id in Gemma's range and finds it again.

    Ids depend on the piece alone, except that the later of two pieces with the same hash takes
    the next free id.
    """

    def __init__(self) -> None:
        self._ids: dict[str, int] = dict(_SPECIAL)
        self._pieces: dict[int, str] = {number: piece for piece, number in _SPECIAL.items()}

    def encode(self, pieces: Iterable[str]) -> list[int]:
        """Ids of the pieces."""
        return [self._id(piece) for piece in pieces]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids; an id never handed out stands for a word of the simulator's list."""
        return "".join(
            self._pieces.get(number) or " " + _WORDS[number % len(_WORDS)] for number in ids
        )

    def _id(self, piece: str) -> int:
        number = self._ids.get(piece)
        if number is None:
            span = _VOCABULARY - _FIRST_PLAIN_ID
            number = zlib.crc32(piece.encode()) % span + _FIRST_PLAIN_ID
            while number in self._pieces:
                number = (number + 1 - _FIRST_PLAIN_ID) % span + _FIRST_PLAIN_ID
            self._ids[piece] = number
            self._pieces[number] = piece
        return number


def fingerprint(tokens: Sequence[str | int], *salts: object) -> int:
    """A number that depends on the tokens and salts alone, in any process."""
    text = "\x1f".join(map(str, (*salts, *tokens)))
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


def write(seed: int) -> Iterator[str]:
    """Endless simulated prose: one piece after another, the same for the same seed."""
    yield from _OPENING
    rng = random.Random(seed)
    while True:
        length = rng.randint(6, 14)
        for index in range(length):
            word = _WORDS[int(rng.random() * len(_WORDS))]
            yield " " + (word.capitalize() if index == 0 else word)
        yield "."


def render_chat(
    messages: Sequence[Mapping[str, Any]],
    tools_text: str,
    *,
    image_tokens: int,
    add_generation_prompt: bool = True,
) -> list[str]:
    """The prompt a Gemma 4 chat template makes of messages, as pieces.

    Args:
        messages: OpenAI messages; content is a string or a list of parts.
        tools_text: JSON of the tools, or nothing.
        image_tokens: Tokens an image part takes.
        add_generation_prompt: Whether to open the model's turn.
    """
    pieces = ["<bos>"]
    if tools_text:
        pieces += ["<|turn>", "system", "\n", *split(tools_text), "<turn|>", "\n"]
    for message in messages:
        role = "model" if message.get("role") == "assistant" else str(message.get("role", "user"))
        pieces += ["<|turn>", *split(role), "\n"]
        pieces += content_pieces(message.get("content"), image_tokens)
        for call in message.get("tool_calls") or ():
            function = call.get("function", {}) if isinstance(call, Mapping) else {}
            pieces += ["<|tool_call>", *split(str(function.get("name", "")))]
            pieces += [*split(str(function.get("arguments", ""))), "<tool_call|>"]
        pieces += ["<turn|>", "\n"]
    if add_generation_prompt:
        pieces += ["<|turn>", "model", "\n"]
    return pieces


def content_pieces(content: object, image_tokens: int) -> list[str]:
    """Pieces of one message's content."""
    if isinstance(content, str):
        return split(content)
    pieces: list[str] = []
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, Mapping):
            continue
        if part.get("type") == "text":
            pieces += split(str(part.get("text", "")))
        elif is_media(part):
            # The block hash must differ between images, so the reference goes in once.
            pieces += [f"<image {zlib.crc32(repr(part).encode())}>"]
            pieces += ["<image_soft_token>"] * max(image_tokens - 1, 0)
    return pieces


def is_media(part: Mapping[str, Any]) -> bool:
    """Whether a content part is an image, audio or video."""
    return str(part.get("type", "")).startswith(("image", "input_audio", "audio", "video"))
