"""Makes the prompts of a benchmark: each one different, so that the prefix cache cannot help.

A prompt that repeats is answered from the prefix cache: with a fixed seed `vllm bench serve`
gained up to 86 % throughput on its second run (vllm#52884). So every prompt begins with a salt
that differs by run, level and request; the first block of the cache differs, and so do all after.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from backends.core.errors import EndpointError

if TYPE_CHECKING:
    from backends.serving.endpoint import EndpointClient
    from backends.serving.runs import BenchmarkSpec

FIXED_PROMPT = (
    "Explain how a large language model serves many requests at once: what happens to a prompt "
    "when it arrives, how the key-value cache grows while tokens are generated, why requests are "
    "put together in batches, and what limits the number of them. Write in full sentences."
)
TOKENS_PER_WORD = 1.15
"""Of the words below plus a space, for Gemma's tokenizer; used only where /tokenize is missing."""

TEMPLATE_TOKENS = 10
"""What a chat template adds, roughly; used only where /tokenize is missing."""

SALT_DIGITS = 12
SALT_TOKENS = SALT_DIGITS + 3

_WORD_TEXT = """
time year people way day man thing woman life child world school state family student group country
problem hand part place case week company system program question work government number night point
home water room mother area money story fact month lot right study book eye job word business issue
side kind head house service friend father power hour game line end member law car city community
name president team minute idea body information back parent face others level office door health
person art war history party result change morning reason research girl guy moment air teacher force
"""
_WORDS = tuple(_WORD_TEXT.split())


class PromptMaker:
    """Makes the bodies of requests for one run.

    Args:
        spec: Which prompts, how long, how many tokens to ask for.
        model: The served model name that goes into every body.
        salt: A text that no other run has.
    """

    def __init__(self, spec: BenchmarkSpec, model: str, salt: str) -> None:
        self._spec = spec
        self._model = model
        self._salt = salt
        self._words = 0
        self.description = ""

    async def calibrate(self, client: EndpointClient) -> None:
        """Find out how many words make the wanted number of tokens, asking `/tokenize`.

        Without `/tokenize` an estimate is used and `description` says so; the number of tokens the
        server counted stands in every level's result either way.
        """
        if self._spec.prompt_source == "fixed":
            own = "built-in" if self._spec.prompt is None else "given"
            self.description = f"the {own} prompt with a salt in front, different in every request"
            return
        wanted = self._spec.prompt_tokens
        try:
            self._words, counted = await self._fit(client, wanted)
        except EndpointError as error:
            guess = (wanted - TEMPLATE_TOKENS - SALT_TOKENS) / TOKENS_PER_WORD
            self._words = max(1, round(guess))
            self.description = (
                f"{self._words} random words, about {wanted} tokens by estimate (the server could "
                f"not be asked: {error.message}), with a salt, different in every request"
            )
            return
        self.description = (
            f"{self._words} random words, {counted} tokens by the server's tokenizer (wanted "
            f"{wanted}), with a salt, different in every request"
        )

    def prompt(self, level: int, index: int, phase: str) -> str:
        """Return one prompt. The same arguments give the same one; others, another."""
        # what is equal in front of the digits fills no block of the cache; digits, because they
        # make the same number of tokens in every prompt (Gemma takes each one by itself)
        name = f"{self._salt} {phase}{level}.{index}"
        digest = hashlib.blake2s(name.encode(), digest_size=8).digest()
        salt = f"[{int.from_bytes(digest) % 10**SALT_DIGITS:0{SALT_DIGITS}}]"
        if self._spec.prompt_source == "fixed":
            return f"{salt} {self._spec.prompt or FIXED_PROMPT}"
        return f"{salt} {self._random_words(f'{phase}{level}.{index}')}"

    def bodies(
        self, level: int, count: int, *, warmup: bool = False, attempt: int = 1
    ) -> list[bytes]:
        """Return the JSON bodies of `count` requests of a level of concurrency.

        A level that is measured again has an `attempt` of its own, and so other prompts.
        """
        spec = self._spec
        common: dict[str, object] = {
            "model": self._model,
            "max_tokens": min(spec.warmup_max_tokens, spec.max_tokens)
            if warmup
            else spec.max_tokens,
            "temperature": spec.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": spec.ignore_eos,
        }
        phase = ("w" if warmup else "m") + ("" if attempt == 1 else f"{attempt}-")
        return [
            json.dumps({**common, **self._asked(self.prompt(level, index, phase))}).encode()
            for index in range(count)
        ]

    def _asked(self, prompt: str) -> dict[str, object]:
        if self._spec.endpoint_kind == "chat":
            return {"messages": [{"role": "user", "content": prompt}]}
        return {"prompt": prompt}

    def _random_words(self, name: str) -> str:
        words = random.Random(f"{self._spec.seed}:{name}").choices(_WORDS, k=self._words)
        return " ".join(words)

    async def _fit(self, client: EndpointClient, wanted: int) -> tuple[int, int]:
        """Return a number of words and the tokens it makes, by the secant method."""
        words, counted = 1, await self._count(client, 1)
        if counted >= wanted:
            return words, counted
        guess = max(2, round((wanted - counted) / TOKENS_PER_WORD))
        for _ in range(3):
            tokens = await self._count(client, guess)
            per_word = max(0.1, (tokens - counted) / max(1, guess - words)) if guess != words else 1
            if abs(tokens - wanted) <= max(1, wanted // 200):
                return guess, tokens
            if guess > words:
                guess = max(1, guess + round((wanted - tokens) / per_word))
        return guess, await self._count(client, guess)

    async def _count(self, client: EndpointClient, words: int) -> int:
        self._words = words
        text = self.prompt(0, 0, "c")
        asked: str | Sequence[dict[str, str]] = text
        if self._spec.endpoint_kind == "chat":
            asked = [{"role": "user", "content": text}]
        return (await client.tokenize(asked)).count
