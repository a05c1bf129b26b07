"""Holds a level against what accelerator and checkpoint allow: the memory-bandwidth bound.

A decode step reads the weights and every sequence's KV cache once, whatever is computed. No engine
decodes faster than the data-sheet bandwidth lets it read; how near it comes is the share given
here. Prefill is in the measured throughput and not in the bound, so long prompts and short answers
lower the share.
"""

from __future__ import annotations

from backends.core.errors import InvalidInputError, NotFoundError
from backends.knowledge.accelerators import find_accelerator
from backends.knowledge.checkpoints import find_checkpoint
from backends.knowledge.roofline import StepLoad, StepModel
from backends.serving.beside_server import engine_mean, in_flight_mean
from backends.serving.runs import BenchmarkSpec, Efficiency, LevelResult


def step_model(spec: BenchmarkSpec, model: str) -> StepModel | None:
    """Return the roofline of what is measured, or None where its parts are not known.

    Args:
        spec: Names the accelerator, and the checkpoint where `model` does not.
        model: The served model's name or path.
    """
    if spec.accelerator is None:
        return None
    try:
        return StepModel(
            find_accelerator(spec.accelerator),
            find_checkpoint(spec.checkpoint or model),
            chips=spec.chips,
            kv_cache_dtype=spec.kv_cache_dtype,
        )
    except (NotFoundError, InvalidInputError):
        return None


def level_efficiency(level: LevelResult, model: StepModel | None) -> Efficiency | None:
    """Return how near a level comes to its bound; None where that cannot be said.

    The batch is the engine's own mean number of running sequences where it is published; else the
    requests the client kept in flight, which is too many where a platform queues them.
    """
    rate = level.best_output_tokens_per_s
    if model is None or not rate or level.partial:
        return None
    running = engine_mean(level, "mean_running")
    in_flight = level.load if level.request_rate is None else in_flight_mean(level) or 0.0
    batch = running if running else in_flight
    if batch <= 0:
        return None
    context = round((level.prompt_tokens_mean or 0) + (level.output_tokens_mean or 0) / 2)
    whole = max(1, round(batch))
    load = StepLoad.of([(context, 1)] * whole, model.window_tokens)
    ideal_s = model.read_bytes(load) / (model.accelerator.bandwidth_gb_per_s.value * 1e9)
    # a batch of 3.6 on average is not 4: scaled, because the step hardly changes between the two
    scale = batch / whole
    bound = scale * whole / ideal_s
    predicted = scale * whole / model.decode_step_s(whole, context)
    return Efficiency(
        accelerator=model.accelerator.name,
        checkpoint=model.checkpoint.name,
        chips=model.chips,
        batch=batch,
        batch_source="engine: mean running" if running else "client: requests in flight",
        context_tokens=context,
        bound_output_tokens_per_s=bound,
        share_of_bound=rate / bound,
        bound_tpot_ms=ideal_s * 1e3,
        predicted_output_tokens_per_s=predicted,
        measured_over_predicted=rate / predicted,
    )
