"""Makes the prompts of a benchmark: of a wanted length, and different so that no cache can help.

A prompt that repeats is answered from the prefix cache: with a fixed seed `vllm bench serve`
gained up to 86 % throughput on its second run (vllm#52884). So every prompt begins with a salt
that differs by run, level and request; the first block of the cache differs, and so do all after.
Where a common prefix or a conversation is what is measured, the salt stands in front of what is
shared and differs by run only.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from backends.core.errors import EndpointError
from backends.serving.datasets import BUILTIN, Row, read_dataset
from backends.serving.engine.turns import answer_mark
from backends.serving.spec import MADE_TO_LENGTH

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
SALT_WORDS = 8
SALT_TOKENS = SALT_DIGITS + 3
FIT_STEPS = 5
ENOUGH_WORDS = 40
"""Words of one token each that are enough to make prompts of; below, all words are used."""

_WORD_TEXT = """
time year people way day man thing woman life child world school state family student group country
problem hand part place case week company system program question work government number night point
home water room mother area money story fact month lot right study book eye job word business issue
side kind head house service friend father power hour game line end member law car city community
name president team minute idea body information back parent face others level office door health
person art war history party result change morning reason research girl guy moment air teacher force
"""
_WORDS = tuple(_WORD_TEXT.split())

Messages = Sequence[Mapping[str, str]]


class PromptMaker:
    """Makes the bodies of requests for one run.

    Args:
        spec: Which prompts, how long, how many tokens to ask for.
        model: The served model name that goes into every body.
        salt: A text that no other run has.

    Raises:
        InvalidInputError: The spec's dataset cannot be used.
    """

    def __init__(self, spec: BenchmarkSpec, model: str, salt: str) -> None:
        self._spec = spec
        self._model = model
        self._salt = salt
        self._vocabulary: Sequence[str] = _WORDS
        self._words_are_tokens = False
        # words of the prompt and of a turn after the first, by the tokens wanted; of the prefix
        self._words: dict[int, int] = {}
        self._prefix_words = 0
        self._turn_words: dict[int, int] = {}
        self._taken = 0
        self._rows: Sequence[Row] = ()
        if spec.source == "file" and spec.dataset_path is not None:
            self._rows = read_dataset(spec.dataset_path, chat=spec.endpoint_kind == "chat")
        elif spec.source == "builtin":
            self._rows = [Row(({"role": "user", "content": text},), text) for text in BUILTIN]
        self.description = ""

    async def calibrate(self, client: EndpointClient) -> None:
        """Find out how many words make the wanted numbers of tokens, asking `/tokenize`.

        Words that the server's tokenizer makes one token each are used where there are enough, so
        that every prompt has exactly the length of the one that was counted. Without `/tokenize`
        an estimate is used and `description` says so; the number of tokens the server counted
        stands in every level's result either way.
        """
        spec = self._spec
        if spec.source not in MADE_TO_LENGTH:
            self.description = self._about_given_ones()
            return
        wanted = spec.contexts or [spec.prompt_tokens]
        try:
            exact = await self._find_short_words(client)
            counted = [await self._fit_length(client, tokens) for tokens in wanted]
        except EndpointError as error:
            self._estimate(wanted)
            how = f"by estimate (the server could not be asked: {error.message})"
            lengths = ", ".join(f"about {tokens}" for tokens in wanted)
        else:
            every = "" if exact else " in the one counted, about as many in the others"
            how = f"by the server's tokenizer{every}"
            common = spec.prefix_tokens if spec.source == "shared_prefix" else 0
            lengths = ", ".join(
                str(found) if found == tokens + common else f"{found} (wanted {tokens + common})"
                for found, tokens in zip(counted, wanted, strict=True)
            )
        self.description = f"random words, {lengths} tokens {how}, {self._about_sharing()}"

    def prompt(self, level: int | str, index: int, phase: str, context: int | None = None) -> str:
        """Return one prompt of fixed or made text. The same arguments give the same one."""
        name = f"{phase}{level}.{index}"
        if self._spec.source == "fixed":
            return self._with_salt(self._spec.prompt or FIXED_PROMPT, name)
        words = self._words.get(context or self._spec.prompt_tokens, 1)
        text = self._with_salt(self._random_words(name, words), name)
        if self._spec.source != "shared_prefix":
            return text
        which = f"prefix{index % self._spec.prefixes}"
        return f"{self._mark(which)} {self._random_words(which, self._prefix_words)}\n\n{text}"

    def bodies(
        self,
        level: int | str,
        count: int,
        *,
        warmup: bool = False,
        attempt: int = 1,
        context: int | None = None,
    ) -> list[bytes]:
        """Return the JSON bodies of `count` requests of a level.

        Args:
            level: Its name, which no other level of the run has.
            count: How many, from 0.
            warmup: Whether they warm up only.
            attempt: A level that is measured again has its own, and so other prompts.
            context: Prompt tokens, where the spec has several; None for its `prompt_tokens`.
        """
        phase = ("w" if warmup else "m") + ("" if attempt == 1 else f"{attempt}-")
        if self._rows:
            return [self._body_of_row(f"{phase}{level}.{i}", warmup=warmup) for i in range(count)]
        if self._spec.source == "multi_turn":
            asked = self._conversations(f"{phase}{level}", count, context, warmup=warmup)
            return [self._body({"messages": messages}, warmup=warmup) for messages in asked]
        return [
            self._body(self._asked(self.prompt(level, index, phase, context)), warmup=warmup)
            for index in range(count)
        ]

    def _conversations(
        self, name: str, count: int, context: int | None, *, warmup: bool
    ) -> list[Messages]:
        """Return the requests of conversations: first the first turn of each, then the second...

        So a turn is sent when the turns before it have been answered, provided there are as many
        conversations as streams. The answers in between are made up, `max_tokens` words long; with
        `turn_answers=own` they are marks, to be filled by whoever gets the answers, and a
        conversation's turns stand together. Warm-ups are first turns then.
        """
        turns = self._spec.turns
        if self._spec.turn_answers == "own":
            if warmup:
                return [self._conversation(f"{name}.{i}", 1, context) for i in range(count)]
            wanted = [divmod(place, turns) for place in range(count)]
            return [self._conversation(f"{name}.{c}", turn + 1, context) for c, turn in wanted]
        conversations = max(1, -(-count // turns))
        out: list[Messages] = []
        for turn, number in itertools.product(range(turns), range(conversations)):
            out.append(self._conversation(f"{name}.{number}", turn + 1, context))
        return out[:count]

    def _conversation(
        self, name: str, turns: int, context: int | None, *, made: bool = False
    ) -> Messages:
        made = made or self._spec.turn_answers == "made"
        wanted = context or self._spec.prompt_tokens
        first = self._random_words(f"{name}.0", self._words.get(wanted, 1))
        messages = [{"role": "user", "content": f"{self._mark(name)} {first}"}]
        for turn in range(1, turns):
            answer = self._random_words(f"{name}.{turn}a", self._spec.max_tokens)
            asked = self._random_words(f"{name}.{turn}", self._turn_words.get(wanted, 1))
            # a word at the very begin has no space before it and may be other tokens
            said = f"So {answer}" if made else answer_mark(turn - 1)
            messages.append({"role": "assistant", "content": said})
            messages.append({"role": "user", "content": f"And {asked}"})
        return messages

    def _body_of_row(self, name: str, *, warmup: bool) -> bytes:
        """Take the next row; a run goes on where its last level ended, and round."""
        row = self._rows[self._taken % len(self._rows)]
        self._taken += 1
        asked: dict[str, object]
        if self._spec.endpoint_kind == "chat":
            first, *others = row.messages
            salted = {**first, "content": self._with_salt(first["content"], name)}
            asked = {"messages": [salted, *others]}
        else:
            asked = {"prompt": self._with_salt(row.prompt or "", name)}
        return self._body(asked, warmup=warmup, max_tokens=row.max_tokens)

    def _body(
        self, asked: Mapping[str, object], *, warmup: bool, max_tokens: int | None = None
    ) -> bytes:
        spec = self._spec
        tokens = max_tokens or spec.max_tokens
        common: dict[str, object] = {
            "model": self._model,
            "max_tokens": min(spec.warmup_max_tokens, tokens) if warmup else tokens,
            "temperature": spec.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": spec.ignore_eos,
        }
        return json.dumps({**common, **asked}).encode()

    def _asked(self, prompt: str) -> dict[str, object]:
        if self._spec.endpoint_kind == "chat":
            return {"messages": [{"role": "user", "content": prompt}]}
        return {"prompt": prompt}

    def _with_salt(self, text: str, name: str) -> str:
        return f"{self._mark(name)} {text}" if self._spec.salted else text

    def _mark(self, name: str) -> str:
        """Return a short text no other run and name have, of the same number of tokens always.

        Words that are one token each, where such are known: not every tokenizer makes each digit a
        token, as Gemma's does. What is equal in front of them fills no block of the cache.
        """
        digest = hashlib.blake2s(f"{self._salt} {name}".encode(), digest_size=8).digest()
        if self._words_are_tokens:
            words = random.Random(digest).choices(self._vocabulary, k=SALT_WORDS)
            return f"[ {' '.join(words)} ]"
        return f"[{int.from_bytes(digest) % 10**SALT_DIGITS:0{SALT_DIGITS}}]"

    def _random_words(self, name: str, count: int) -> str:
        dice = random.Random(f"{self._spec.seed}:{name}")
        return " ".join(dice.choices(self._vocabulary, k=count))

    # ---- lengths ---------------------------------------------------------------------------

    async def _find_short_words(self, client: EndpointClient) -> bool:
        """Keep the words that are one token each; False when there are too few of them."""
        alone = (await client.tokenize("a")).count

        async def tokens_of(words: Sequence[str]) -> int:
            return (await client.tokenize(" ".join(["a", *words]))).count - alone

        async def short(words: Sequence[str]) -> list[str]:
            if await tokens_of(words) == len(words):
                return list(words)
            if len(words) == 1:
                return []
            half = len(words) // 2
            return await short(words[:half]) + await short(words[half:])

        if await short(_WORDS[:8]) == []:  # a tokenizer of another kind: no need to ask on
            return False
        found = await short(_WORDS)
        # tokenizers that round, or merge across words, agree on few words and not on many
        if len(found) < ENOUGH_WORDS or await tokens_of(found) != len(found):
            return False
        self._vocabulary, self._words_are_tokens = found, True
        return True

    async def _fit_length(self, client: EndpointClient, wanted: int) -> int:
        """Find the words of every part for a wanted length; returns the tokens of the prompt."""
        spec = self._spec
        if spec.source == "multi_turn":
            return await self._fit_turns(client, wanted)

        async def whole(words: int) -> int:
            self._words[wanted] = words
            return await self._count(client, self.prompt(0, 0, "c", wanted))

        if spec.source == "generated":
            self._words[wanted], counted = await fit(whole, wanted)
            return counted
        # the prefix first, beside a unique part of one word; then the unique part
        alone = self._with_salt(self._random_words("c0.0", 1), "c0.0")
        least = await self._count(client, alone)

        async def prefix(words: int) -> int:
            self._prefix_words = words
            return await whole(1)

        self._prefix_words, _ = await fit(prefix, least + spec.prefix_tokens)
        self._words[wanted], counted = await fit(whole, wanted + spec.prefix_tokens)
        return counted

    async def _fit_turns(self, client: EndpointClient, wanted: int) -> int:
        async def first(words: int) -> int:
            self._words[wanted] = words
            return await self._count_messages(client, self._conversation("c", 1, wanted))

        async def second(words: int) -> int:
            self._turn_words[wanted] = words
            messages = self._conversation("c", 2, wanted, made=True)
            return await self._count_messages(client, messages)

        self._words[wanted], counted = await fit(first, wanted)
        self._turn_words[wanted], _ = await fit(second, counted + wanted + self._spec.max_tokens)
        return counted

    async def _count(self, client: EndpointClient, text: str) -> int:
        if self._spec.endpoint_kind == "chat":
            return await self._count_messages(client, [{"role": "user", "content": text}])
        return (await client.tokenize(text)).count

    async def _count_messages(self, client: EndpointClient, messages: Messages) -> int:
        return (await client.tokenize(messages)).count

    def _estimate(self, wanted: Sequence[int]) -> None:
        for tokens in wanted:
            guess = (tokens - TEMPLATE_TOKENS - SALT_TOKENS) / TOKENS_PER_WORD
            self._words[tokens] = max(1, round(guess))
            self._turn_words[tokens] = max(1, round((tokens - TEMPLATE_TOKENS) / TOKENS_PER_WORD))
        self._prefix_words = max(
            1, round((self._spec.prefix_tokens - SALT_TOKENS) / TOKENS_PER_WORD)
        )

    # ---- words about it --------------------------------------------------------------------

    def _about_given_ones(self) -> str:
        spec = self._spec
        salt = "with a salt in front, different in every request" if spec.salted else "without salt"
        if spec.source == "fixed":
            return f"the {'built-in' if spec.prompt is None else 'given'} prompt {salt}"
        name = spec.dataset_path.name if spec.dataset_path else "the built-in set"
        return f"{len(self._rows)} prompts of {name} in their order, {salt}"

    def _about_sharing(self) -> str:
        spec = self._spec
        if spec.source == "shared_prefix":
            number = "one prefix" if spec.prefixes == 1 else f"{spec.prefixes} prefixes in turn"
            return f"of which {spec.prefix_tokens} in common ({number})"
        if spec.source == "multi_turn":
            return (
                f"in conversations of {spec.turns} turns; each adds as many and an answer of "
                f"{spec.max_tokens} {'tokens' if spec.turn_answers == 'own' else 'made-up words'}"
            )
        salt = "with a salt, different in every request" if spec.salted else "without salt"
        return f"{salt}, seed {spec.seed}"


async def fit(count: Callable[[int], Awaitable[int]], wanted: int) -> tuple[int, int]:
    """Return a number of words, at least 1, and the tokens it makes, by the secant method.

    Args:
        count: Tells the tokens of that many words; called at most seven times.
        wanted: The tokens it should come to.
    """
    words, tokens = 1, await count(1)
    best = (abs(tokens - wanted), words, tokens)
    per_word = TOKENS_PER_WORD
    for _ in range(FIT_STEPS):
        guess = max(1, words + round((wanted - tokens) / per_word))
        if guess == words:
            break
        found = await count(guess)
        if found != tokens:
            per_word = max(0.1, (found - tokens) / (guess - words))
        words, tokens = guess, found
        best = min(best, (abs(tokens - wanted), words, tokens))
    if best[1] != words:
        await count(best[1])
    return best[1], best[2]
