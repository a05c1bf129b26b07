"""Plans of TPU deployments: the world is looked at, everything is checked, nothing is changed."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from backends.clouds.google_facts import (
    account_email,
)
from backends.clouds.google_steps import account_step, reader_step
from backends.core.answers import Price
from backends.core.errors import ConflictError
from backends.core.owned import together
from backends.core.plans import Plan, Step, describe, said
from backends.core.state import write_text, writing
from backends.knowledge.tpu import (
    FLEX_START_SEEN,
    find_slice,
)
from backends.tpu.capacity import asked_for
from backends.tpu.commands import (
    create_argv,
    delete_key_argv,
    delete_rule_argv,
    key_argv,
    key_secret_of,
    labels_of,
    rule_argv,
    rule_of,
)
from backends.tpu.fit import Fit, check_fit, usual_context
from backends.tpu.placing import World, look, zones_of
from backends.tpu.records import TpuRequest
from backends.tpu.spec import TpuSpec, resolved
from backends.tpu.start import digest_of, settings_json, start_script

if TYPE_CHECKING:
    from backends.tpu.looking import TpuLooking


async def plan_deployment(target: TpuLooking, spec: TpuSpec) -> Plan:
    """What deploying `spec` would do.

    Raises:
        InvalidInputError: A setting is wrong, or the checkpoint does not fit.
        ConflictError: The name is taken, or a search for it runs.
        NotManagedError: A request of that name is there and not ours.
        QuotaError: No zone's quota is enough.
        ApiDisabledError: An API is off.
    """
    full = resolved(spec, target.services.settings)
    notes: list[str] = []
    if spec.max_model_len is None:
        length, why = usual_context(full)
        full = full.model_copy(update={"max_model_len": length})
        notes += [why] if why else []
    fit = check_fit(full)
    world, _ = await together(look(target, full), target.prices.learn())
    adopted = _check_name(target, full, world)
    zones, left_out, reasons = zones_of(target, full, world)
    notes += [*fit.notes, *reasons]
    steps, script = _steps(target, full, fit, world, zones, adopted)
    price = target.slice_price(str(full.size), str(full.provisioning), zones[0])
    size = find_slice(str(full.size))
    where = zones[0] if len(zones) == 1 else f"the first of {', '.join(zones)} that has hardware"
    return Plan(
        verb="deploy",
        target=target.target,
        name=full.name,
        summary=f"deploy {full.model} as {target.at(full.name)} on {full.size} "
        f"({size.chips} chip{'s' if size.chips > 1 else ''}, {full.provisioning}) in {where}.",
        spec=full.model_dump(exclude_none=True),
        steps=steps,
        live=_live(full, world, zones),
        price=_dearest(target, full, zones, price),
        settings=describe(
            said(full) | fit.figures | {"start_script": script},
            {key: info.description or "" for key, info in TpuSpec.model_fields.items()},
        ),
        keeps_billing=_billing(full),
        warnings=[*world.problems, *fit.warnings, *_warnings(full, world)],
        notes=[*notes, *left_out],
    )


def _check_name(target: TpuLooking, spec: TpuSpec, world: World) -> TpuRequest | None:
    """The living request that a search would go on with; None where there is none.

    Raises:
        ConflictError: The name is taken.
        NotManagedError: It is not ours.
    """
    operation = target.searches().get(spec.name)
    if operation is not None:
        raise ConflictError(
            f"{operation.id} is looking for hardware for {spec.name} already.",
            next_action=f"get_operation(operation_id={operation.id!r}, wait_s=40), or "
            f"cancel_operation(operation_id={operation.id!r}).",
        )
    same = [item for item in world.requests if item.name == spec.name]
    for item in same:
        target.refuse_foreign(item)
    if not same:
        return None
    waiting = [item for item in same if item.stage == "queued"]
    if spec.zones and len(same) == 1 and waiting and waiting[0].zone in spec.zones:
        return waiting[0]
    item = same[0]
    words = "still lives" if item.live else "has ended, but is still there"
    raise ConflictError(
        f"{target.at(spec.name)} {words}: {item.state} in {item.zone}.",
        cause="A second request would be a second bill; an ended one still counts against quota.",
        next_action=f"{target.call('get_status', spec.name)}, or "
        f"{target.call('destroy', spec.name)} first, or another name.",
    )


def _steps(
    target: TpuLooking,
    spec: TpuSpec,
    fit: Fit,
    world: World,
    zones: list[str],
    adopted: TpuRequest | None,
) -> tuple[list[Step], str]:
    """The steps, and the folder that holds the start script."""
    project, name = world.project, spec.name
    account = spec.service_account or account_email(target.target, name, project)
    steps: list[Step] = []
    if not world.account_there:
        steps.append(account_step(name, account, project))
    if world.secret_there and not world.may_read and spec.service_account is None:
        steps.append(reader_step(account, project, secret=str(spec.secret)))
    if spec.public:
        steps += _public_steps(spec, account, project)
    key_secret = key_secret_of(name) if spec.public else ""
    asked = spec if world.secret_there else spec.model_copy(update={"secret": ""})
    script = start_script(asked, fit.tensor_parallel_size, project, key_secret=key_secret)
    settings = settings_json(spec, fit.tensor_parallel_size)
    # Two servers that ask for the same are told apart by it: each knows its own request again.
    digest = digest_of([script, settings, target.services.state.identity()])
    folder = target.services.state.root / "starts" / digest
    files = _written(folder, script, settings)
    labels = labels_of(spec, digest)
    argvs = {zone: create_argv(spec, zone, project, account, labels, files) for zone in zones}
    if spec.zones:
        steps.append(_search_step(target, spec, argvs, digest, adopted))
    else:
        zone = zones[0]
        steps.append(
            Step(
                title=f"Ask for {spec.size} ({spec.provisioning}) in {zone}; returns as soon as "
                "it is accepted",
                kind="create",
                argv=tuple(argvs[zone]),
                data={"zone": zone, "digest": digest, "plane": spec.control_plane},
                creates=(f"request {name} in {zone}, and its node once there is hardware",),
                undo=target.call("destroy", name),
            )
        )
    return steps, str(files[0])


def _written(folder: Path, script: str, settings: str) -> tuple[Path, Path]:
    """The files gcloud reads metadata from; their folder is named by what is in them."""
    files = folder / "start.sh", folder / "settings.json"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path, text in zip(files, (script, settings), strict=True):
            write_text(path, text)
    return files


def _public_steps(spec: TpuSpec, account: str, project: str) -> list[Step]:
    name = spec.name
    return [
        Step(
            title="Make an API key and keep it in Secret Manager; it is shown to nobody",
            kind="key",
            argv=tuple(key_argv(name, project)),
            creates=(f"secret {key_secret_of(name)}",),
            undo=" ".join(delete_key_argv(name, project)),
        ),
        reader_step(account, project, secret=key_secret_of(name)),
        Step(
            title=f"Let {', '.join(spec.allow_from)} reach port {spec.port}, and nobody else",
            kind="gcloud",
            argv=tuple(rule_argv(spec, project)),
            data={"exists_ok": True},
            creates=(f"firewall rule {rule_of(name)}",),
            undo=" ".join(delete_rule_argv(name, project)),
        ),
    ]


def _search_step(
    target: TpuLooking,
    spec: TpuSpec,
    argvs: dict[str, list[str]],
    digest: str,
    adopted: TpuRequest | None,
) -> Step:
    zones = list(argvs)
    goes_on = f" It goes on with the request that waits in {adopted.zone}." if adopted else ""
    return Step(
        title=f"Ask in {', then '.join(zones)}, one at a time: after {spec.zone_wait_minutes:g} "
        "minutes in the queue of one, that request is deleted and the next zone asked; in the "
        f"last one it waits on. Runs as an operation.{goes_on}",
        kind="search",
        data={
            "zones": zones,
            "zone_wait_s": float(spec.zone_wait_minutes or 0) * 60,
            "digest": digest,
            "plane": spec.control_plane,
            "what": asked_for(str(spec.size), str(spec.provisioning)),
            "model": spec.model,
            "adopt": adopted.zone if adopted else "",
            "commands": {zone: shlex.join(argv) for zone, argv in argvs.items()},
        },
        creates=(f"request {spec.name} in one of {', '.join(zones)}",),
        undo=target.call("destroy", spec.name),
    )


def _live(spec: TpuSpec, world: World, zones: list[str]) -> dict[str, str]:
    same = [item for item in world.requests if item.name == spec.name]
    live = {
        f"request {spec.name}": ", ".join(f"{item.state} in {item.zone}" for item in same)
        or "absent",
        "project": world.project,
        "zones": ", ".join(zones),
        f"secret {spec.secret}": "exists" if world.secret_there else "absent",
    }
    if spec.service_account is None:
        live["service account"] = "exists" if world.account_there else "absent"
    return live


def _dearest(target: TpuLooking, spec: TpuSpec, zones: list[str], first: Price) -> Price:
    """The price of the dearest zone it may end in; the first one's where none has a number."""
    prices = [target.slice_price(str(spec.size), str(spec.provisioning), zone) for zone in zones]
    unknown = [zone for zone, price in zip(zones, prices, strict=True)
               if price.usd_per_hour is None]  # fmt: skip
    known = [price for price in prices if price.usd_per_hour is not None]
    if unknown or not known:
        return Price(basis=f"no rate for {', '.join(unknown) or zones[0]} is known")
    dearest = max(known, key=lambda price: price.usd_per_hour or 0.0)
    return dearest if dearest.usd_per_hour != first.usd_per_hour else first


def _billing(spec: TpuSpec) -> list[str]:
    if spec.provisioning == "reservation":
        return ["The reservation bills whether it is used or not."]
    ends = (
        f"until it is destroyed, or {spec.max_run_hours:g} h after it became active, when Google "
        "ends it"
        if spec.max_run_hours is not None
        else "day and night until it is destroyed, whether used or not"
    )
    return [f"The node bills from the moment it is there, {ends}. Waiting in the queue is free."]


def _warnings(spec: TpuSpec, world: World) -> list[str]:
    warnings: list[str] = []
    if not world.secret_there:
        warnings.append(
            f"There is no secret {spec.secret}: gated checkpoints (Gemma is one) will not load. "
            "save_hf_token(target='tpu-v6e') keeps a token there."
        )
    if spec.provisioning == "spot":
        warnings.append("Spot may be taken back at any moment, with its disks.")
    if spec.provisioning == "flex-start":
        zone = spec.asked_in[0]
        if FLEX_START_SEEN.get(zone) is False:
            warnings.append(f"{zone} refused flex-start when it was asked (2026).")
    for zone, found in world.hardware.items():
        if isinstance(found, str):
            warnings.append(f"Whether {zone} has the hardware is not known ({found}).")
    if find_slice(str(spec.size)).hosts > 1:
        warnings.append(
            "A slice of several hosts cannot be stopped, only destroyed; stop_serving ends its "
            "containers and it goes on billing."
        )
    if spec.public:
        warnings.append(
            f"It answers plain HTTP on its external address, port {spec.port}: whoever sits "
            "between can read along. The tunnel is the safer way."
        )
    if spec.control_plane == "compute" and spec.provisioning == "flex-start":
        warnings.append(
            "On Compute Engine a flex-start request cannot be told how long to wait (gcloud 528); "
            "the TPU API's queue (control_plane='tpu') waits for valid_until_hours."
        )
    return warnings
