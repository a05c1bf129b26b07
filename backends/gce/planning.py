"""Plans of deployments: the world is looked at, everything is checked, nothing is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.clouds.google_facts import account_email
from backends.clouds.google_steps import account_step
from backends.core.answers import Price
from backends.core.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    NotManagedError,
)
from backends.core.names import MANAGED_BY, MANAGED_BY_US
from backends.core.owned import together
from backends.core.plans import Plan, Step, describe, said
from backends.gce.commands import (
    TARGET,
    create_argv,
    data_disk,
    engine_argv,
    firewall_argv,
    label_disk_argv,
    nat_argvs,
    serving_spec,
)
from backends.gce.spec import GceSpec, resolved
from backends.gce.world import World, look
from backends.gce.zones import Choice, choose
from backends.knowledge import gce
from backends.knowledge.accelerators import T4
from backends.knowledge.checkpoints import Checkpoint, find_checkpoint
from backends.knowledge.memory import Host, plan_memory

if TYPE_CHECKING:
    from backends.clouds.google_compute_prices import ComputePrices
    from backends.gce.looking import GceLooking


async def plan_deployment(target: GceLooking, spec: GceSpec) -> Plan:
    """What deploying `spec` would do.

    Raises:
        InvalidInputError: A setting is wrong.
        ConflictError: The name is taken, or its data disk is elsewhere.
        NotManagedError: A machine of that name is there and not ours.
        QuotaError: No zone fits the project's quotas.
        ApiDisabledError: An API is off.
    """
    full = resolved(spec)
    world, _ = await together(look(target.cloud, target.api, full), target.prices.learn())
    _check_name(full, world)
    choice = choose(full, world, target.memory)
    full = full.model_copy(update={"zones": list(choice.zones)})
    figures, fit_warnings = _fit(full)
    zone = choice.zones[0]
    new_nat = full.nat and gce.region_of(zone) not in world.nats
    price = price_of(full, zone, target.prices, new_nat=new_nat)
    again = f" in which {data_disk(full.name)} is found again" if world.kept else ""
    where = zone if len(choice.zones) == 1 else f"{zone}, or where there is a T4 next"
    return Plan(
        verb="deploy",
        target=TARGET,
        name=full.name,
        summary=f"make the machine {full.name} ({full.machine_type}, {gce.HARDWARE}, "
        f"{full.provisioning}) in {where}{again}, prepare it, and serve {full.model}.",
        spec=full.model_dump(exclude_none=True),
        steps=_steps(full, world, choice),
        live=_live(full, world),
        price=price,
        settings=describe(
            said(full) | figures,
            {key: info.description or "" for key, info in GceSpec.model_fields.items()},
        ),
        keeps_billing=[
            "The machine is paid for whether anybody asks or not, until stop_serving with "
            "options={'power_off': true} or destroy.",
            "Its data disk stays after destroy, and is paid for, unless options={'data_disk': "
            "true}.",
        ],
        warnings=[*world.problems, *choice.warnings, *fit_warnings, *_habits(full, world)],
        notes=[*choice.notes, *_notes(full, world)],
    )


def price_of(spec: GceSpec, zone: str, prices: ComputePrices, *, new_nat: bool) -> Price:
    """What it costs per hour while the machine runs: machine, disks, way out."""
    rate = prices.machine_rate(zone, spec.machine_type, spec.spot)
    if rate is None:
        return Price(basis=f"no rate of a T4 in {zone} is known")
    region = gce.region_of(zone)
    disks = (
        (prices.disk_usd_per_month(region, gce.BOOT_DISK_TYPE, spec.boot_disk_gib) or 0.0)
        + (prices.disk_usd_per_month(region, gce.DATA_DISK_TYPE, spec.data_disk_gib) or 0.0)
    ) / gce.HOURS_A_MONTH
    way = 0.0
    words = ""
    if spec.external:
        way = (gce.SPOT_ADDRESS_USD_PER_HOUR if spec.spot else gce.ADDRESS_USD_PER_HOUR).value
        words = f" + address {way:g}"
    elif new_nat:
        way = gce.NAT_USD_PER_HOUR.value
        words = f" + Cloud NAT {way:g} (and {gce.NAT_USD_PER_GIB.value:g} USD per GiB through it)"
    return Price(
        usd_per_hour=round(rate.machine + disks + way, 4),
        basis=f"{zone}: {rate.basis} + disks {disks:.4f}{words} USD/h, used or not; "
        f"machine: {prices.freshness(rate.fact, live=rate.live)}",
        source=rate.fact.source,
        as_of=rate.fact.date,
    )


def _check_name(spec: GceSpec, world: World) -> None:
    found = [machine for machine in world.machines if machine.name == spec.name]
    for machine in found:
        if not machine.managed:
            raise NotManagedError(
                f"A machine {spec.name} is in {machine.zone} and does not carry "
                f"{MANAGED_BY}={MANAGED_BY_US}.",
                next_action="Choose another name.",
            )
        raise ConflictError(
            f"{TARGET}/{spec.name} exists in {machine.zone} ({machine.status}).",
            next_action=f"start_serving(target={TARGET!r}, name={spec.name!r}) brings it back; or "
            "destroy it first, or choose another name.",
        )
    if world.kept is not None and world.kept.users:
        raise ConflictError(
            f"The disk {world.kept.name} is used by {', '.join(world.kept.users)}.",
            next_action="Choose another name.",
        )


def _fit(spec: GceSpec) -> tuple[dict[str, object], list[str]]:
    checkpoint = checkpoint_of(str(spec.model))
    if checkpoint is None:
        return {}, ["The checkpoint is not in our tables: its fit is not predicted."]
    machine = gce.MACHINES[spec.machine_type]
    plan = plan_memory(
        T4,
        checkpoint,
        max_model_len=int(spec.max_model_len or 0),
        max_num_seqs=int(spec.max_num_seqs or 0),
        max_num_batched_tokens=spec.max_num_batched_tokens or gce.MAX_NUM_BATCHED_TOKENS,
        memory_utilization=spec.gpu_memory_utilization,
        host=Host(machine.memory_gib, swap_gib=gce.SWAP_GIB),
    )
    change = f" Would fit: {'; '.join(plan.changes)}." if plan.changes else ""
    if plan.kv_gib <= 0:
        raise InvalidInputError(
            "model",
            f"takes {plan.weights_gib:.1f} GiB; nothing of the T4's memory is left for the KV "
            f"cache (predicted).{change}",
            allowed="a smaller or quantised checkpoint",
        )
    warnings = [f"{reason} (predicted)" for reason in plan.reasons]
    return dict(plan.facts()), warnings + ([change.strip()] if warnings and change else [])


def checkpoint_of(model: str) -> Checkpoint | None:
    """What our tables know of a model, by the last part of its name."""
    try:
        return find_checkpoint(model.rstrip("/").rpartition("/")[2])
    except NotFoundError:
        return None


def _steps(spec: GceSpec, world: World, choice: Choice) -> list[Step]:
    project, name = world.project, spec.name
    account = spec.service_account or account_email(TARGET, name, project)
    steps: list[Step] = []
    if not world.account_there:
        steps.append(account_step(name, account, project))
    if not spec.external and not world.ssh_open:
        steps.append(
            Step(
                title="Let IAP's tunnels, and nobody else, reach ssh on our machines",
                kind="gcloud",
                argv=firewall_argv(project, spec.network),
                data={"exists_ok": True},
                creates=(f"firewall rule {firewall_argv(project, spec.network)[4]}",),
                undo=f"gcloud compute firewall-rules delete {firewall_argv(project, '')[4]} "
                f"--project={project} --quiet",
            )
        )
    return [*steps, *_worker_steps(spec, world, choice, account)]


def _worker_steps(spec: GceSpec, world: World, choice: Choice, account: str) -> list[Step]:
    project, name, zones = world.project, spec.name, choice.zones
    kept = world.kept is not None
    creates = {
        zone: list(create_argv(spec, project, zone, account, old_disk=kept)) for zone in zones
    }
    others = f"; while a zone has none, the same in {', '.join(zones[1:])}" if zones[1:] else ""
    made = [f"machine {name}", f"boot disk {name}"]
    made += [] if kept else [f"disk {data_disk(name)}"]
    steps = [
        Step(
            title=f"Make the machine in {zones[0]}{others}",
            kind="place",
            argv=tuple(creates[zones[0]]),
            data={"zones": creates, "kept_disk": kept, "wanted": spec.wanted},
            background=True,
            creates=tuple(made),
            undo=f"destroy(target={TARGET!r}, name={name!r})",
        )
    ]
    if not kept:
        by_zone = {zone: list(label_disk_argv(name, project, zone)) for zone in zones}
        steps.append(
            Step(
                title="Label its data disk as ours, wherever it has come to be",
                kind="there",
                argv=tuple(by_zone[zones[0]]),
                data={"by_place": by_zone},
            )
        )
    bare = sorted({gce.region_of(zone) for zone in zones} - world.nats)
    if spec.nat and not spec.external and bare:
        commands = {region: nat_argvs(project, spec.network, region) for region in bare}
        first = gce.region_of(zones[0]) if gce.region_of(zones[0]) in bare else bare[0]
        for index, what in enumerate(("a router", "its Cloud NAT, so that it can download")):
            steps.append(
                Step(
                    title=f"Make {what}, if the machine comes to be in "
                    f"{' or '.join(bare)}, which {'has' if len(bare) == 1 else 'have'} none",
                    kind="there",
                    argv=commands[first][index],
                    data={
                        "by_place": {region: list(commands[region][index]) for region in bare},
                        "exists_ok": True,
                    },
                    creates=(f"{'router' if index == 0 else 'NAT'} vllm-devops-REGION",),
                    undo=None
                    if index
                    else f"gcloud compute routers delete vllm-devops-{first} --region={first} "
                    f"--project={project} --quiet",
                )
            )
    serve = serving_spec(spec)
    steps += [
        Step(
            title="Prepare it: mounts, swap, driver and reboot, Python, vLLM, Turing clamp; each "
            "step looks before it acts",
            kind="prepare",
            data={"vllm": spec.vllm or "newest known to work", "data_disk": gce.MOUNT},
            background=True,
        ),
        Step(
            title="Serve on 127.0.0.1 of the machine, reached through a tunnel",
            kind="serve",
            argv=(
                *("python3", "-m", "vllm.entrypoints.openai.api_server"),
                *engine_argv(serve),
            ),
            data={"start_at_boot": spec.start_at_boot},
            background=True,
        ),
    ]
    return steps


def _live(spec: GceSpec, world: World) -> dict[str, str]:
    """The facts a plan is bound to: when one of them changes, the plan is refused."""
    live = {
        "project": world.project,
        f"machine {spec.name}": "absent",
        f"disk {data_disk(spec.name)}": f"in {world.kept.zone}" if world.kept else "absent",
        "ssh from IAP": "open" if world.ssh_open else "closed",
        "NAT": ", ".join(sorted(world.nats & {gce.region_of(zone) for zone in spec.zones or []}))
        or "none in these regions",
    }
    if spec.service_account is None:
        live["service account"] = "exists" if world.account_there else "absent"
    return live


def _habits(spec: GceSpec, world: World) -> list[str]:
    """What costs or surprises."""
    found: list[str] = []
    if spec.spot:
        found.append("Google may stop a spot machine at any time, with 30 s notice.")
    if (
        not spec.external
        and not spec.nat
        and not ({gce.region_of(zone) for zone in spec.zones or []} <= world.nats)
    ):
        found.append("Without NAT or address the machine cannot download driver and packages.")
    if not world.secret_there:
        found.append(
            f"There is no secret {spec.secret!r}: a model that Hugging Face gates cannot be "
            f"downloaded (save_hf_token(target={TARGET!r}) makes it)."
        )
    if not spec.text_only:
        found.append("With vision and audio loading takes longer and the KV cache is smaller.")
    return found


def _notes(spec: GceSpec, world: World) -> list[str]:
    loading = gce.LOADING_S["w4a16" if "w4a16" in str(spec.model) else "bf16"].value
    total = gce.CREATING_S.value + gce.BOOTING_S.value + gce.PREPARING_S.value + loading
    notes = [
        f"Ready after about {total / 60:.0f} minutes the first time: creating "
        f"{gce.CREATING_S.value:.0f} s, booting {gce.BOOTING_S.value:.0f} s, preparing "
        f"{gce.PREPARING_S.value:.0f} s (assumed), loading {loading:.0f} s (measured).",
    ]
    if world.kept is not None:
        notes.append(
            f"{world.kept.name} ({world.kept.gib} GiB) is attached again: what is installed and "
            "downloaded there is not fetched again."
        )
    return notes
