"""What is checked before anything is sent: the name, quotas, weights, and habits that cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.cloudrun.commands import SPEC_LABEL, label_of
from backends.cloudrun.quotas import Amount, refuse_if_short, shortages, used
from backends.cloudrun.spec import CloudRunSpec, probe_of
from backends.cloudrun.steps import argv_of
from backends.cloudrun.transfer import stage_call
from backends.cloudrun.world import World
from backends.core.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    NotManagedError,
)
from backends.core.names import MANAGED_BY, MANAGED_BY_US
from backends.knowledge.checkpoints import find_checkpoint
from backends.knowledge.cloudrun import GIB, CloudRunProfile
from backends.knowledge.facts import assumed

_ENGINE_GIB = assumed(8.0, "host memory of a vLLM that loads; no figure is published").value

if TYPE_CHECKING:
    from backends.cloudrun.looking import CloudRunLooking


def check_name(target: CloudRunLooking, spec: CloudRunSpec, world: World) -> None:
    """Refuse a name that is taken by something that we do not own or cannot change.

    Raises:
        ConflictError: Another kind of service, or another region, has it.
        NotManagedError: It is not ours.
        InvalidInputError: A candidate of nothing.
    """
    found = world.found
    if found is None:
        elsewhere = [item.region for item in world.services if item.name == spec.name]
        if elsewhere:
            raise ConflictError(
                f"{spec.name} exists in {', '.join(elsewhere)} already.",
                next_action=f"Choose another name, or options.region={elsewhere[0]!r} to deploy "
                "it there again.",
            )
        if spec.candidate:
            raise InvalidInputError(
                "options.candidate", "needs a service that serves already; deploy that first."
            )
        return
    if found.gpu != target.profile.gpu_type:
        raise ConflictError(
            f"The Cloud Run service {spec.name} in {found.region} exists and has "
            f"{found.gpu or 'no GPU'}.",
            next_action="Choose another name.",
        )
    if not found.managed:
        raise NotManagedError(
            f"{target.at(spec.name)} exists and does not carry {MANAGED_BY}={MANAGED_BY_US}.",
            next_action="Choose another name, or ask the person to run: gcloud run services update "
            f"{spec.name} --region={found.region} --update-labels={MANAGED_BY}={MANAGED_BY_US}",
        )
    if spec.candidate and not found.ready_revision:
        raise InvalidInputError(
            "options.candidate", "needs a service that serves already; this one has not yet."
        )


def check_quota(target: CloudRunLooking, spec: CloudRunSpec, world: World) -> list[str]:
    """Refuse what does not fit the region's quotas; what fits but barely is warned of.

    Raises:
        QuotaError: Names each quota that is short.
    """
    if world.limits is None:
        return []
    region = str(spec.region)
    manual = spec.scaling if isinstance(spec.scaling, int) else None
    count = manual if manual is not None else int(spec.max_instances or 1)
    need = Amount(count, count * float(spec.cpu or 0), count * float(spec.memory_gib or 0))
    others = [item for item in world.services if item is not world.found]
    zonal = spec.zonal_redundancy
    short = shortages(
        target.profile, world.limits, need, used(others, region, target.profile), zonal=zonal
    )
    if short and not spec.ignore_quota:
        refuse_if_short(
            target.target, region, short, what=f"{count} x one {target.profile.hardware}"
        )
    warnings = [f"Quota looks short, planned all the same: {'; '.join(short)}."] if short else []
    if world.found is not None and not short:
        both = used(world.services, region, target.profile)
        rollout = shortages(target.profile, world.limits, need, both, zonal=zonal)
        if rollout:
            warnings.append(
                "While the new revision replaces the old one both count: "
                f"{'; '.join(rollout)}. If Cloud Run refuses, destroy the old one first or "
                "request more."
            )
    return warnings


def check_weights(target: CloudRunLooking, spec: CloudRunSpec, world: World) -> list[str]:
    """Refuse to deploy what cannot be loaded.

    Raises:
        NotFoundError: Weights or the secret are missing.
        InvalidInputError: It is not a Gemma 4.
    """
    if spec.source == "huggingface":
        if not world.secret_there and not world.problems:
            raise NotFoundError(
                f"There is no secret {spec.secret!r}, from which the container takes the Hugging "
                "Face token.",
                next_action=f"save_hf_token(target={target.target!r})",
            )
        check_room(spec)
        return [
            "Each start downloads the weights from Hugging Face, over addresses that many share "
            "(429, slow): stage_model and source=bucket start sooner."
        ]
    folder = world.folder
    if folder is None:
        return []
    stage = stage_call(target.target, str(spec.model))
    if not folder.sizes:
        raise NotFoundError(
            f"{folder.uri} is empty: there are no weights to serve.",
            next_action=f"{stage}; or options.source='huggingface'.",
        )
    if spec.server == "image":
        return [] if folder.has_weights else [f"{folder.uri} has no config.json with weights."]
    if not folder.has_weights:
        raise NotFoundError(
            f"{folder.uri} is not a whole checkpoint: config.json or weights are missing.",
            next_action=f"{stage} brings what is missing.",
        )
    if not folder.is_gemma4:
        raise InvalidInputError(
            "model",
            f"{folder.uri} is a {folder.model_type or 'model of an unknown type'}, by its "
            "config.json, not a Gemma 4: the gemma4 parsers fail on it.",
            next_action=f"list_models(target={target.target!r}) shows what is in the bucket.",
        )
    return []


def check_room(spec: CloudRunSpec) -> None:
    """Refuse a download that the instance has no room for: its file system is its memory.

    Raises:
        InvalidInputError: The files, and what the engine takes beside them, are larger.
    """
    try:
        files_gib = find_checkpoint(str(spec.model)).disk_gb.value * 1e9 / GIB
    except NotFoundError:
        return
    need = files_gib + _ENGINE_GIB
    if need > float(spec.memory_gib or 0):
        raise InvalidInputError(
            "options.memory_gib",
            f"{spec.memory_gib} GiB have no room for {files_gib:.1f} GiB of files from Hugging "
            f"Face: a container's file system is its memory, and the engine takes about "
            f"{_ENGINE_GIB:g} GiB beside them.",
            allowed=f"{need:.0f} and more, or source=bucket after stage_model",
        )


def habits(spec: CloudRunSpec, profile: CloudRunProfile, world: World) -> list[str]:
    """What works, but costs speed or money."""
    warnings: list[str] = []
    cap, batch = int(spec.concurrency or 0), int(spec.max_num_seqs or 0)
    if cap < batch:
        warnings.append(
            f"Cloud Run admits {cap} requests at once (concurrency), fewer than the {batch} "
            f"sequences the engine batches: throughput stops rising at {cap}. "
            f"options.concurrency={batch} uses the whole batch."
        )
    if spec.vpc and world.private is False:
        warnings.append(
            f"Subnet {spec.subnet or 'default'} has no Private Google Access, so the bucket is "
            "read over the slow way (386 s instead of 65 s were measured), or not at all. Ask the "
            f"person to run: gcloud compute networks subnets update {spec.subnet or 'default'} "
            f"--region={spec.region} --enable-private-ip-google-access"
        )
    if spec.vpc and world.private is None and not world.problems:
        warnings.append(f"There is no subnet {spec.subnet or 'default'} in {spec.region}.")
    if spec.public:
        warnings.append("Anybody on the internet can use it, at your cost.")
    sold = profile.sells(str(spec.region))
    if sold is not None and sold.note:
        warnings.append(f"{sold.name}: {sold.note}.")
    folder = world.folder
    if (
        folder is not None
        and folder.location
        and len(folder.location.split("-")) > 1
        and (folder.location != spec.region)
    ):
        warnings.append(
            f"The bucket is in {folder.location}, the service in {spec.region}: reads are slower "
            "and cost egress."
        )
    found = world.found
    if found is not None and found.manual is not None and spec.scaling == "auto":
        warnings.append(f"Ends the manual scaling at {found.manual} that the service has.")
    pinned = found is not None and found.traffic and not any(t.latest for t in found.traffic)
    if pinned and not spec.candidate:
        warnings.append(
            "Traffic is pinned to named revisions, so the new one gets none until "
            "shift_traffic sends it some."
        )
    return warnings


def notes_of(spec: CloudRunSpec, profile: CloudRunProfile, world: World) -> list[str]:
    """Choices made for the reader, each with its reason."""
    found = world.found
    notes = [f"Flags that were not asked for are those of the {profile.flag_sources}."]
    if found is not None and spec.scaling is None:
        mode = "automatic" if found.manual is None else f"manual at {found.manual}"
        notes.append(f"The scaling mode stays as it is: {mode}.")
    if not spec.public and not spec.invokers:
        notes.append(
            "Private: only those with roles/run.invoker on the project or service may call it."
        )
    probe = probe_of(spec, profile)
    notes.append(f"A container that is not up after {probe.patience_s} s is given up and retried.")
    if found is not None and label_of(argv_of(spec, profile, world)) == found.labels.get(
        SPEC_LABEL
    ):
        notes.append("What is deployed has exactly these settings already.")
    return notes
