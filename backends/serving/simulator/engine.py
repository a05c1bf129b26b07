"""Continuous batching as vLLM's V1 scheduler does it, with computed instead of real step times.

The engine has no clock. A driver asks for the next step (`begin_step`), waits for as long as it
says, by whatever clock it likes, and hands it back (`finish_step`). `driver` does that in real
time for the server, `virtual` in no time at all for tests and predictions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from backends.knowledge.roofline import StepLoad, StepModel
from backends.serving.simulator.kv_pool import BLOCK_TOKENS, KvPool, blocks_for
from backends.serving.simulator.stats import EngineStats


class State(Enum):
    """Where a sequence is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Listener(Protocol):
    """Who wants to hear of a sequence."""

    def token(self) -> None:
        """It has a new token and goes on."""

    def end(self) -> None:
        """It has ended, with or without a new token."""


@dataclass(slots=True)
class Group:
    """The sequences of one request: one for each prompt and each of its `n` choices."""

    n: int
    unfinished: int
    max_generated: int = 0


@dataclass(slots=True, eq=False)
class SequenceState:
    """One sequence in the engine.

    Args:
        prompt_tokens: Length of the prompt, at least 1.
        block_hashes: Hashes of the prompt's full blocks (`kv_pool.hash_blocks`).
        target_tokens: Tokens to generate, at least 1.
        ends_with: Finish reason once they are generated: `stop` or `length`.
        max_tokens: The limit the request asked for.
        group: The request it belongs to.
        listener: Told of each step that gave it a token, and of its end.
        output_hashes: Hashes of the blocks filled with generated tokens, given their number;
            called once at the end so that a follow-up turn finds them.
    """

    prompt_tokens: int
    block_hashes: Sequence[int]
    target_tokens: int
    ends_with: str
    max_tokens: int
    group: Group
    listener: Listener | None = None
    output_hashes: Callable[[int], Sequence[int]] | None = None

    state: State = State.WAITING
    finish_reason: str | None = None
    generated: int = 0
    computed: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    arrival_s: float = 0.0
    scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float = 0.0
    held: list[int] = field(default_factory=list)
    private_blocks: int = 0

    @property
    def tokens(self) -> int:
        """Tokens known so far: prompt and generated."""
        return self.prompt_tokens + self.generated

    @property
    def finished(self) -> bool:
        """Whether it has ended, for whatever reason."""
        return self.state is State.FINISHED


@dataclass(slots=True)
class Step:
    """One step: who computes how many tokens, and how long it takes.

    Args:
        work: Sequences and the tokens each computes.
        duration_s: Seconds from start to end, already divided by the time scale.
    """

    work: list[tuple[SequenceState, int]]
    duration_s: float


class Engine:
    """The scheduler and its KV cache.

    Args:
        model: Step times.
        max_num_seqs: Most sequences in a batch.
        max_num_batched_tokens: Token budget of a step; longer prompts are prefilled in chunks.
        kv_tokens: Tokens the KV cache holds.
        max_model_len: Context limit.
        prefix_caching: Whether equal prefixes are computed once.
        time_scale: Steps take this many times less than the model says.
    """

    def __init__(
        self,
        model: StepModel,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        kv_tokens: int,
        max_model_len: int,
        prefix_caching: bool = True,
        time_scale: float = 1.0,
    ) -> None:
        self.model = model
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.time_scale = time_scale
        self.pool = KvPool(kv_tokens // BLOCK_TOKENS, prefix_caching=prefix_caching)
        self.stats = EngineStats(max_model_len)
        self.running: list[SequenceState] = []
        self.waiting: deque[SequenceState] = deque()

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.running and not self.waiting

    def add(self, sequence: SequenceState, now_s: float) -> None:
        """Queue a sequence that arrived at `now_s`."""
        sequence.arrival_s = now_s
        self.waiting.append(sequence)

    def abort(self, sequence: SequenceState, now_s: float) -> None:
        """End a sequence early, because its client has gone; nothing happens if it has ended."""
        if not sequence.finished:
            self._end(sequence, "abort", now_s)

    def begin_step(self, now_s: float) -> Step | None:
        """Decide the next step; None if nothing can be computed now.

        Args:
            now_s: Time at which the step starts.
        """
        work: list[tuple[SequenceState, int]] = []
        budget = self.max_num_batched_tokens
        index = 0
        preempted = False
        while index < len(self.running) and budget > 0:
            sequence = self.running[index]
            new = min(sequence.prompt_tokens + sequence.generated - sequence.computed, budget)
            while not self._grow(sequence, sequence.computed + new):
                preempted = True
                victim = self.running[-1]
                self._preempt(victim)
                if victim is sequence:
                    break
            else:
                work.append((sequence, new))
                budget -= new
                index += 1
        if not preempted:
            self._admit(work, budget, now_s)
        if not work:
            return None
        load = StepLoad.of(
            [(sequence.computed, new) for sequence, new in work], self.model.window_tokens
        )
        self.stats.read_bytes += self.model.read_bytes(load)
        self.stats.flops += self.model.flops(load)
        return Step(work, self.model.step_s(load) / self.time_scale)

    def finish_step(self, step: Step, now_s: float) -> None:
        """Account for a step that ended at `now_s` and tell the listeners."""
        stats = self.stats
        prompt_tokens = generated = gaps = 0
        gap_s = 0.0
        touched = []
        for sequence, new in step.work:
            if sequence.state is not State.RUNNING:
                continue
            sequence.computed += new
            if sequence.computed < sequence.prompt_tokens + sequence.generated:
                continue
            sequence.generated += 1
            generated += 1
            if sequence.first_token_s is None:
                sequence.first_token_s = now_s
                prompt_tokens += sequence.prompt_tokens
                stats.prompt_tokens_cached += sequence.cached_tokens
                stats.ttft_s.observe(now_s - sequence.arrival_s)
            else:
                # Most of a batch shares the same gap: count them together.
                gap = now_s - sequence.last_token_s
                if gap != gap_s:
                    if gaps:
                        stats.itl_s.observe(gap_s, gaps)
                    gap_s, gaps = gap, 0
                gaps += 1
            sequence.last_token_s = now_s
            touched.append(sequence)
        if gaps:
            stats.itl_s.observe(gap_s, gaps)
        stats.prompt_tokens += prompt_tokens
        stats.generation_tokens += generated
        stats.interval.prompt_tokens += prompt_tokens
        stats.interval.generation_tokens += generated
        stats.iteration_tokens.observe(prompt_tokens + generated)
        for sequence in touched:
            if sequence.generated >= sequence.target_tokens:
                self._end(sequence, sequence.ends_with, now_s)
            elif sequence.listener is not None:
                sequence.listener.token()

    def _admit(self, work: list[tuple[SequenceState, int]], budget: int, now_s: float) -> None:
        """Move waiting sequences into the batch while there is room for them."""
        while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            sequence = self.waiting[0]
            # The last token of a prompt is always computed: its output is needed.
            usable = sequence.block_hashes[: (sequence.tokens - 1) // BLOCK_TOKENS]
            shared = list(usable[: self.pool.match(usable)])
            cached = len(shared) * BLOCK_TOKENS
            new = min(sequence.tokens - cached, budget)
            if not self.pool.allocate(shared, blocks_for(cached + new) - len(shared)):
                return
            self.waiting.popleft()
            sequence.held = shared
            sequence.private_blocks = blocks_for(cached + new) - len(shared)
            sequence.computed = cached
            sequence.state = State.RUNNING
            if sequence.scheduled_s is None:
                sequence.scheduled_s = now_s
                sequence.cached_tokens = cached
                self.stats.prefix_lookup(sequence.prompt_tokens, cached)
            self._publish(sequence, cached + new)
            self.running.append(sequence)
            work.append((sequence, new))
            budget -= new

    def _grow(self, sequence: SequenceState, tokens: int) -> bool:
        """Make room for `tokens` tokens of a running sequence."""
        missing = blocks_for(tokens) - len(sequence.held) - sequence.private_blocks
        if missing > 0:
            if not self.pool.allocate((), missing):
                return False
            sequence.private_blocks += missing
        if len(sequence.held) < len(sequence.block_hashes):
            self._publish(sequence, tokens)
        return True

    def _publish(self, sequence: SequenceState, tokens: int) -> None:
        """Share the prompt blocks that are full once `tokens` tokens are computed."""
        full = min(tokens // BLOCK_TOKENS, len(sequence.block_hashes))
        for block in sequence.block_hashes[len(sequence.held) : full]:
            self.pool.publish(block)
            sequence.held.append(block)
            sequence.private_blocks -= 1

    def _preempt(self, sequence: SequenceState) -> None:
        """Take a sequence out of the batch; it starts over when there is room again."""
        self.running.remove(sequence)
        self._free(sequence)
        sequence.computed = 0
        sequence.preemptions += 1
        sequence.state = State.WAITING
        self.waiting.appendleft(sequence)
        self.stats.preemptions += 1

    def _free(self, sequence: SequenceState) -> None:
        self.pool.release(sequence.held, sequence.private_blocks)
        sequence.held = []
        sequence.private_blocks = 0

    def _end(self, sequence: SequenceState, reason: str, now_s: float) -> None:
        if sequence.state is State.RUNNING:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        if sequence.output_hashes is not None and len(sequence.held) == len(sequence.block_hashes):
            full = sequence.computed // BLOCK_TOKENS - len(sequence.held)
            for block in sequence.output_hashes(max(full, 0)):
                self.pool.publish(block)
                sequence.held.append(block)
                sequence.private_blocks -= 1
        self._free(sequence)
        sequence.state = State.FINISHED
        sequence.finish_reason = reason
        self._count_end(sequence, reason, now_s)
        if sequence.listener is not None:
            sequence.listener.end()

    def _count_end(self, sequence: SequenceState, reason: str, now_s: float) -> None:
        stats = self.stats
        stats.finished[reason] += 1
        group = sequence.group
        group.unfinished -= 1
        group.max_generated = max(group.max_generated, sequence.generated)
        if group.unfinished == 0:
            stats.request_n.observe(group.n)
            stats.request_max_generation_tokens.observe(group.max_generated)
        stats.request_prompt_tokens.observe(sequence.prompt_tokens)
        stats.request_generation_tokens.observe(sequence.generated)
        stats.request_max_tokens.observe(sequence.max_tokens)
        stats.request_preemptions.observe(sequence.preemptions)
        stats.request_computed_tokens.observe(sequence.prompt_tokens - sequence.cached_tokens)
        stats.e2e_s.observe(now_s - sequence.arrival_s)
        if sequence.scheduled_s is None:
            return
        stats.queue_s.observe(sequence.scheduled_s - sequence.arrival_s)
        if sequence.first_token_s is None:
            return
        decode_s = sequence.last_token_s - sequence.first_token_s
        stats.inference_s.observe(sequence.last_token_s - sequence.scheduled_s)
        stats.prefill_s.observe(sequence.first_token_s - sequence.scheduled_s)
        stats.decode_s.observe(decode_s)
        if sequence.generated > 1:
            stats.tpot_s.observe(decode_s / (sequence.generated - 1))
