"""Whether a checkpoint fits the GPU, and what is left for the KV cache: predicted, not measured."""

from __future__ import annotations

from dataclasses import dataclass, field

from backends.cloudrun.facts import BucketFolder
from backends.cloudrun.spec import CloudRunSpec, folder_of
from backends.core.errors import InvalidInputError, NotFoundError
from backends.knowledge.checkpoints import GIB, Checkpoint, find_checkpoint
from backends.knowledge.cloudrun import CloudRunProfile
from backends.knowledge.from_config import checkpoint_from, loaded_as_fp8
from backends.knowledge.memory import Host, plan_memory


@dataclass(frozen=True)
class Fit:
    """What is predicted of the memory.

    Attributes:
        figures: For the plan's settings.
        warnings: What looks tight.
    """

    figures: dict[str, object] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def check_fit(profile: CloudRunProfile, spec: CloudRunSpec, folder: BucketFolder | None) -> Fit:
    """What the deployment will have in memory.

    Raises:
        InvalidInputError: The weights alone are more than the GPU holds, or leave nothing for
            the KV cache.
    """
    chip = profile.reference.accelerator
    share = spec.gpu_memory_utilization or chip.default_memory_utilization.value
    budget = chip.memory_gib.value * share
    checkpoint = _checkpoint(spec, profile, folder)
    if checkpoint is None:
        stored = folder.weights_gib if folder is not None else 0.0
        if stored > budget and spec.quantization in {None, "none"}:
            raise InvalidInputError(
                "model",
                f"has {stored:.1f} GiB of weights, more than the {budget:.1f} GiB that vLLM may "
                f"use of {profile.hardware}.",
                allowed="a smaller or quantised checkpoint",
            )
        return Fit(warnings=("The checkpoint is not in our tables: its fit is not predicted.",))
    loads = {"mount": "mmap", "stream": "stream", "copy": "copy"}
    plan = plan_memory(
        chip,
        checkpoint,
        max_model_len=int(spec.max_model_len or 0),
        max_num_seqs=int(spec.max_num_seqs or 256),
        max_num_batched_tokens=int(spec.max_num_batched_tokens or 2048),
        kv_cache_dtype=str(spec.kv_cache_dtype or "auto"),
        memory_utilization=share,
        host=Host(
            float(spec.memory_gib or profile.memory_gib),
            load=loads[spec.load or "stream"],  # type: ignore[arg-type]
        ),
    )
    change = f" Would fit: {'; '.join(plan.changes)}." if plan.changes else ""
    if plan.kv_gib <= 0:
        raise InvalidInputError(
            "model",
            f"takes {plan.weights_gib:.1f} GiB; of {profile.hardware} vLLM may use "
            f"{budget:.1f} GiB, so nothing is left for the KV cache (predicted).{change}",
            allowed="a smaller or quantised checkpoint, or cloudrun-rtx6000",
        )
    warnings = [f"{reason} (predicted)" for reason in plan.reasons]
    if warnings and change:
        warnings.append(change.strip())
    return Fit(dict(plan.facts()), tuple(warnings))


def _checkpoint(
    spec: CloudRunSpec, profile: CloudRunProfile, folder: BucketFolder | None
) -> Checkpoint | None:
    name = folder_of(str(spec.model)).rpartition("/")[2]
    quantised = folder.quantised if folder is not None else False
    quantization = spec.quantization or (None if quantised else profile.quantization)
    known = None
    for wanted in ([f"{name}-{quantization}"] if quantization else []) + [name]:
        try:
            known = find_checkpoint(wanted)
            break
        except NotFoundError:
            continue
    made = _from_files(name, folder, quantization)
    if made is None:
        return known
    # The table's figures were measured, but a folder's name is only believed where its files agree.
    mine = made.attention
    alike = known is not None and (mine.layers, mine.hidden_size) == (
        known.attention.layers,
        known.attention.hidden_size,
    )
    return known if alike else made


def _from_files(
    name: str, folder: BucketFolder | None, quantization: str | None
) -> Checkpoint | None:
    """The checkpoint as its own config.json says, or None where that does not say enough."""
    if folder is None or not folder.config or not folder.weights_gib:
        return None
    try:
        made = checkpoint_from(name, folder.config, round(folder.weights_gib * GIB), folder.uri)
    except InvalidInputError:
        return None
    return loaded_as_fp8(made, folder.config) if quantization == "fp8" else made
