"""The step-time model against what was measured on the real chips."""

from __future__ import annotations

import pytest

from backends.core.errors import InvalidInputError
from backends.knowledge.accelerators import L4, T4, V6E, Accelerator
from backends.knowledge.checkpoints import find_checkpoint
from backends.knowledge.roofline import StepLoad, StepModel

E2B = find_checkpoint("gemma-4-E2B-it")
QAT = find_checkpoint("gemma-4-E2B-it-qat-w4a16-ct")
E2B_ON_L4 = StepModel(L4, E2B, kv_cache_dtype="fp8")


def decode(context: int) -> StepLoad:
    return StepLoad.of([(context, 1)], E2B.attention.window_tokens)


@pytest.mark.parametrize(
    ("model", "step_s", "context"),
    [
        # Cloud Run L4: 128 tokens in 2.58 s at concurrency 1, short prompt.
        (E2B_ON_L4, 1 / 49.63, 160),
        # GCE T4: 40.44 tok/s per stream at concurrency 1, 512 in and 128 out.
        (StepModel(T4, E2B), 1 / 40.44, 576),
        # v6e-1: TPOT 4.7 ms at concurrency 1, 1024 in and 128 out.
        (StepModel(V6E, E2B), 4.7e-3, 1088),
    ],
    ids=["l4", "t4", "v6e"],
)
def test_the_one_factor_of_a_chip_is_what_concurrency_1_gives(
    model: StepModel, step_s: float, context: int
) -> None:
    fitted = model.fit_efficiency(step_s, decode(context))
    assert fitted == pytest.approx(model.accelerator.efficiency.value, abs=0.001)
    refitted = StepModel(model.accelerator, E2B, 1, fitted, model.kv_cache_dtype)
    assert refitted.decode_step_s(1, context) == pytest.approx(step_s, rel=1e-6)


@pytest.mark.parametrize(
    ("chip", "checkpoint", "tokens_per_s"),
    [
        (L4, "gemma-4-E2B-it", 51.3),
        (L4, "gemma-4-E2B-it-qat-w4a16-ct", 105.1),
        (L4, "gemma-4-E4B-it", 26.2),
        (L4, "gemma-4-E4B-it-qat-w4a16-ct", 60.7),
        (L4, "gemma-4-12B-it-qat-w4a16-ct", 29.3),
        (L4, "gemma-4-26B-A4B-it-qat-w4a16-ct", 64.8),
        (L4, "gemma-4-31B-it-qat-w4a16-ct", 12.6),
        (T4, "gemma-4-E2B-it-qat-w4a16-ct", 72.31),
        (V6E, "gemma-4-E2B-it", 212),
        (V6E, "gemma-4-12B-it", 45),
    ],
)
def test_single_stream_decode_of_other_runs_is_predicted(
    chip: Accelerator, checkpoint: str, tokens_per_s: float
) -> None:
    step_s = StepModel(chip, find_checkpoint(checkpoint)).decode_step_s(1, 300)
    assert 1 / step_s == pytest.approx(tokens_per_s, rel=0.1)


@pytest.mark.parametrize(("tokens", "ttft_s"), [(512, 0.300), (4096, 7.2)])
def test_prefill_on_t4_takes_as_long_as_measured(tokens: int, ttft_s: float) -> None:
    model = StepModel(T4, E2B)
    assert model.prefill_s(tokens, max_num_batched_tokens=4096) == pytest.approx(ttft_s, rel=0.1)


@pytest.mark.parametrize(
    ("model", "length", "limits", "tokens"),
    [
        (StepModel(T4, QAT), 16_384, (0.9, 8, 2_048), 519_681),
        (StepModel(T4, E2B), 16_384, (0.9, 8, 2_048), 315_974),
        (StepModel(V6E, E2B), 32_768, (None, 256, 4_096), 1_151_744),
        (StepModel(V6E, E2B), 65_536, (None, 256, 4_096), 1_151_744),
    ],
    ids=["t4 w4a16", "t4 bf16", "v6e 32k", "v6e 64k"],
)
def test_kv_capacity_is_near_what_vllm_logged(
    model: StepModel, length: int, limits: tuple[float | None, int, int], tokens: int
) -> None:
    utilization, seqs, batched = limits
    capacity = model.kv_capacity_tokens(
        length,
        memory_utilization=utilization,
        max_num_seqs=seqs,
        max_num_batched_tokens=batched,
    )
    assert capacity == pytest.approx(tokens, rel=0.05)


def test_31b_on_an_l4_leaves_no_memory_for_the_cache_as_its_log_said() -> None:
    model = StepModel(L4, find_checkpoint("gemma-4-31B-it-qat-w4a16-ct"))
    assert model.kv_cache_gib(memory_utilization=0.9) < 0
    assert model.kv_capacity_tokens(8_192, memory_utilization=0.9) == 0


def test_a_batch_costs_less_than_its_sequences_one_by_one() -> None:
    steps = [E2B_ON_L4.decode_step_s(batch, 256) for batch in (1, 4, 16, 64)]
    assert steps == sorted(steps)
    assert steps[-1] < 64 * steps[0] / 8


def test_a_long_context_slows_decoding_and_fp8_halves_what_it_adds() -> None:
    plain = StepModel(L4, E2B)

    def added_s(model: StepModel) -> float:
        return model.decode_step_s(8, 100_000) - model.decode_step_s(8, 1)

    assert added_s(plain) > 0
    assert added_s(E2B_ON_L4) == pytest.approx(added_s(plain) / 2, rel=1e-6)


def test_prefill_in_chunks_reads_the_weights_once_for_each_chunk() -> None:
    whole_s = E2B_ON_L4.prefill_s(4096, max_num_batched_tokens=4096)
    chunked_s = E2B_ON_L4.prefill_s(4096, max_num_batched_tokens=256)
    assert chunked_s > whole_s
    assert chunked_s >= 16 * E2B_ON_L4.decode_step_s(1, 0) * 0.9


def test_a_cached_prefix_is_not_computed_again() -> None:
    cold_s = E2B_ON_L4.prefill_s(4096)
    warm_s = E2B_ON_L4.prefill_s(4096, cached_tokens=4080)
    assert warm_s < cold_s / 4
    # A prompt that is cached whole still computes its last token.
    assert E2B_ON_L4.prefill_s(16, cached_tokens=16) > 0


def test_two_chips_share_the_weights_but_not_one_kv_head() -> None:
    one, two = StepModel(V6E, E2B), StepModel(V6E, E2B, chips=2)
    assert two.weights_gib == pytest.approx(one.weights_gib / 2)
    assert two.kv_bytes_per_token(8_192) == one.kv_bytes_per_token(8_192)
    assert two.decode_step_s(1, 100) < one.decode_step_s(1, 100)


def test_attended_tokens_are_summed_exactly() -> None:
    load = StepLoad.of([(10, 3), (600, 100), (500, 50)], window=512)
    assert load.new_tokens == 153
    assert load.sequences == 3
    pairs = [(10, 13), (600, 700), (500, 550)]
    expected_full = sum(i + 1 for start, end in pairs for i in range(start, end))
    expected_window = sum(min(i + 1, 512) for start, end in pairs for i in range(start, end))
    assert (load.attended_full, load.attended_window) == (expected_full, expected_window)
    assert (load.context_tokens, load.window_tokens) == (1263, 13 + 512 + 512)


@pytest.mark.parametrize(
    "wrong",
    [{"chips": 0}, {"efficiency": 0.0}, {"efficiency": 9.0}, {"kv_cache_dtype": "int4"}],
)
def test_values_out_of_range_are_refused_by_name(wrong: dict[str, object]) -> None:
    (name,) = wrong
    with pytest.raises(InvalidInputError, match=name):
        StepModel(L4, E2B, **wrong)  # type: ignore[arg-type]


def test_a_step_shorter_than_its_overhead_cannot_be_fitted() -> None:
    with pytest.raises(InvalidInputError, match="step_s"):
        E2B_ON_L4.fit_efficiency(0.001, decode(100))
