"""Continuous batching on a virtual clock."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from backends.core.errors import InvalidInputError
from backends.knowledge.accelerators import L4
from backends.knowledge.checkpoints import find_checkpoint
from backends.knowledge.roofline import StepModel
from backends.serving.simulator.engine import Engine, Group, SequenceState, State
from backends.serving.simulator.kv_pool import BLOCK_TOKENS, KvPool, hash_blocks
from backends.serving.simulator.virtual import run_closed_loop

MODEL = StepModel(L4, find_checkpoint("gemma-4-E2B-it"), kv_cache_dtype="fp8")


def engine(
    *,
    seqs: int = 8,
    batched: int = 4096,
    kv_tokens: int = 1_000_000,
    prefix_caching: bool = True,
    time_scale: float = 1.0,
) -> Engine:
    return Engine(
        MODEL,
        max_num_seqs=seqs,
        max_num_batched_tokens=batched,
        kv_tokens=kv_tokens,
        max_model_len=16_384,
        prefix_caching=prefix_caching,
        time_scale=time_scale,
    )


class Ears:
    """Counts what a listener hears."""

    def __init__(self) -> None:
        self.tokens = 0
        self.ends = 0

    def token(self) -> None:
        self.tokens += 1

    def end(self) -> None:
        self.ends += 1


def sequence(
    prompt: Sequence[int], target: int = 16, listener: Ears | None = None
) -> SequenceState:
    return SequenceState(
        prompt_tokens=len(prompt),
        block_hashes=hash_blocks(prompt),
        target_tokens=target,
        ends_with="length",
        max_tokens=target,
        group=Group(1, 1),
        listener=listener,
    )


def fresh(length: int, target: int = 16, salt: int = 0) -> SequenceState:
    """A sequence whose prompt shares no prefix with another salt's."""
    return sequence([salt * 1_000_003 + n for n in range(length)], target)


def play(machine: Engine, now_s: float = 0.0, steps: int = 100_000) -> float:
    """Run until there is nothing to do, or for so many steps; returns the time then."""
    for _ in range(steps):
        step = machine.begin_step(now_s)
        if step is None:
            return now_s
        now_s += step.duration_s
        machine.finish_step(step, now_s)
    return now_s


def test_a_lone_request_takes_one_step_for_each_token() -> None:
    machine, ears = engine(), Ears()
    alone = sequence(range(40), 128, ears)
    machine.add(alone, 0.0)
    end_s = play(machine)
    assert alone.finish_reason == "length"
    assert (ears.tokens, ears.ends) == (127, 1)
    assert machine.stats.iteration_tokens.count == 128
    prefill_s = MODEL.prefill_s(40)
    decode_s = sum(MODEL.decode_step_s(1, 40 + n) for n in range(127))
    assert end_s == pytest.approx(prefill_s + decode_s)


def test_at_most_max_num_seqs_run_and_the_rest_wait_in_order() -> None:
    machine = engine(seqs=3)
    sequences = [fresh(20, 10, salt) for salt in range(5)]
    for one in sequences:
        machine.add(one, 0.0)
    now_s = play(machine, steps=1)
    assert [one.state for one in sequences] == [State.RUNNING] * 3 + [State.WAITING] * 2
    now_s = play(machine, now_s, steps=9)
    assert [one.finished for one in sequences] == [True] * 3 + [False] * 2
    play(machine, now_s)
    assert all(one.finished for one in sequences)
    assert machine.stats.queue_s.total == pytest.approx(2 * now_s)


def test_long_prompts_go_in_chunks_beside_decoding() -> None:
    machine = engine(batched=256)
    talking = fresh(16, 100, 1)
    machine.add(talking, 0.0)
    now_s = play(machine, steps=5)
    long = fresh(1000, 4, 2)
    machine.add(long, now_s)
    before = talking.generated
    steps = 0
    while long.generated == 0:
        step = machine.begin_step(now_s)
        assert step is not None
        assert sum(new for _, new in step.work) <= 256
        now_s += step.duration_s
        machine.finish_step(step, now_s)
        steps += 1
    # 255 tokens a step are left for the long prompt: four steps, and the other never paused.
    assert steps == 4
    assert talking.generated == before + steps


def test_an_equal_prefix_is_computed_once() -> None:
    machine = engine()
    prompt = list(range(1000))
    machine.add(sequence(prompt, 1), 0.0)
    first_s = play(machine)
    second = sequence([*prompt[:992], 7, 7, 7, 7, 7, 7, 7, 7], 1)
    machine.add(second, first_s)
    second_s = play(machine, first_s) - first_s
    assert second.cached_tokens == 992
    assert second_s < first_s
    assert machine.stats.prefix_queries == 2000
    assert machine.stats.prefix_hits == 992
    assert machine.stats.prompt_tokens_cached == 992


def test_a_salt_at_the_start_of_a_prompt_defeats_the_cache() -> None:
    machine = engine()
    for salt in range(3):
        machine.add(sequence([9000 + salt, *range(500)], 1), 0.0)
        play(machine)
    assert machine.stats.prefix_hits == 0


def test_a_prompt_that_is_cached_whole_still_computes_its_last_token() -> None:
    machine = engine()
    for _ in range(2):
        machine.add(sequence(range(64), 2), 0.0)
        play(machine)
    assert machine.stats.prefix_hits == 48


def test_prefix_caching_can_be_turned_off() -> None:
    machine = engine(prefix_caching=False)
    for _ in range(2):
        machine.add(sequence(range(64), 2), 0.0)
        play(machine)
    assert machine.stats.prefix_hits == 0


def test_generated_tokens_serve_a_follow_up_turn() -> None:
    machine = engine()
    prompt, answer = list(range(40)), list(range(5000, 5064))
    first = sequence(prompt, len(answer))
    hashes = first.block_hashes

    def output_hashes(blocks: int) -> list[int]:
        tail = [*prompt[len(hashes) * BLOCK_TOKENS :], *answer]
        return hash_blocks(tail[: blocks * BLOCK_TOKENS], hashes[-1])

    first.output_hashes = output_hashes
    machine.add(first, 0.0)
    play(machine)
    follow_up = sequence([*prompt, *answer, 9, 9, 9], 1)
    machine.add(follow_up, 0.0)
    play(machine)
    assert follow_up.cached_tokens == 96


def test_a_full_cache_preempts_the_youngest_and_all_still_finish() -> None:
    machine = engine(kv_tokens=20 * BLOCK_TOKENS)
    sequences = [fresh(60, 120, salt) for salt in range(3)]
    for one in sequences:
        machine.add(one, 0.0)
    play(machine)
    assert all(one.generated == 120 for one in sequences)
    assert machine.stats.preemptions > 0
    assert sequences[0].preemptions == 0
    assert machine.stats.request_preemptions.total == machine.stats.preemptions
    assert machine.pool.used_blocks == 0
    # What is counted once is counted once, however often it was computed.
    assert machine.stats.prompt_tokens == 180
    assert machine.stats.generation_tokens == 360
    assert machine.stats.ttft_s.count == 3


def test_usage_follows_the_blocks_in_use() -> None:
    machine = engine(kv_tokens=100 * BLOCK_TOKENS)
    machine.add(fresh(160, 5), 0.0)
    play(machine, steps=1)
    assert machine.pool.usage == pytest.approx(0.10)
    play(machine, steps=1)
    assert machine.pool.usage == pytest.approx(0.11)
    play(machine)
    assert machine.pool.usage == 0


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_an_abort_frees_everything_wherever_the_request_is(steps: int) -> None:
    machine, ears = engine(), Ears()
    one = sequence(range(100), 50, ears)
    machine.add(one, 0.0)
    now_s = play(machine, steps=steps)
    machine.abort(one, now_s)
    machine.abort(one, now_s)
    assert machine.idle
    assert machine.pool.used_blocks == 0
    assert one.finish_reason == "abort"
    assert ears.ends == 1
    assert machine.stats.finished["abort"] == 1


def test_an_abort_during_a_step_leaves_the_rest_of_the_batch_alone() -> None:
    machine = engine()
    leaving, staying = fresh(20, 10, 1), fresh(20, 10, 2)
    machine.add(leaving, 0.0)
    machine.add(staying, 0.0)
    step = machine.begin_step(0.0)
    assert step is not None
    machine.abort(leaving, 0.0)
    machine.finish_step(step, step.duration_s)
    assert (leaving.generated, staying.generated) == (0, 1)
    play(machine, step.duration_s)
    assert staying.finish_reason == "length"


def test_the_time_scale_divides_every_step() -> None:
    times = []
    for scale in (1.0, 10.0):
        machine = engine(time_scale=scale)
        machine.add(fresh(50, 20), 0.0)
        times.append(play(machine))
    assert times[0] == pytest.approx(10 * times[1])


def test_requests_beyond_the_admission_cap_are_unseen_by_the_engine() -> None:
    machine = engine()
    seen: list[int] = []

    def make(number: int) -> SequenceState:
        seen.append(len(machine.running) + len(machine.waiting))
        return fresh(20, 8, number)

    run_closed_loop(machine, make, concurrency=8, requests=16, admission_cap=4)
    assert max(seen) < 4
    assert machine.stats.ttft_s.total / 16 < MODEL.decode_step_s(4, 30) * 3


def test_a_request_larger_than_the_whole_cache_is_named_not_looped_on() -> None:
    machine = engine(kv_tokens=4 * BLOCK_TOKENS)
    with pytest.raises(InvalidInputError, match="cannot hold"):
        run_closed_loop(machine, lambda n: fresh(100, 8, n), concurrency=1, requests=1)


def test_counts_add_up_after_a_random_day() -> None:
    rng = random.Random(20)
    machine = engine(seqs=4, batched=128, kv_tokens=64 * BLOCK_TOKENS)
    now_s, sequences = 0.0, []
    for number in range(200):
        one = fresh(rng.randint(1, 300), rng.randint(1, 60), rng.randint(0, 20))
        sequences.append(one)
        machine.add(one, now_s)
        now_s = play(machine, now_s, steps=rng.randint(0, 30))
        if number % 7 == 0:
            machine.abort(rng.choice(sequences), now_s)
        assert machine.pool.used_blocks <= machine.pool.total_blocks
        assert len(machine.running) <= 4
    play(machine, now_s)
    stats = machine.stats
    assert machine.idle
    assert machine.pool.used_blocks == 0
    assert sum(stats.finished.values()) == 200
    assert stats.generation_tokens == sum(one.generated for one in sequences)
    done = [one for one in sequences if one.finish_reason == "length"]
    assert all(one.generated == one.target_tokens for one in done)
    assert stats.e2e_s.count == 200
    assert stats.itl_s.count == stats.generation_tokens - stats.ttft_s.count


def test_idle_blocks_are_dropped_oldest_first_when_room_is_needed() -> None:
    pool = KvPool(4)
    for number in (1, 2, 3):
        assert pool.allocate((), 1)
        pool.publish(number)
        pool.release([number], 0)
    assert (pool.used_blocks, pool.match([2]), pool.match([1])) == (0, 1, 1)
    assert pool.allocate((), 3)
    assert [pool.match([number]) for number in (1, 2, 3)] == [0, 0, 1]
    assert not pool.allocate([3], 1)
    assert pool.used_blocks == 3
