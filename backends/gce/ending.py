"""Plans that end something: stop the server, switch the machine off, delete it with its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.clouds.google_facts import account_email, account_is_ours
from backends.clouds.google_steps import remove_account_steps
from backends.core.answers import Price
from backends.core.errors import ConflictError, InvalidInputError, NotFoundError
from backends.core.names import MANAGED_BY, MANAGED_BY_US
from backends.core.owned import together
from backends.core.plans import Plan, Step
from backends.gce.commands import (
    TARGET,
    delete_disk_argv,
    delete_router_argv,
    instance_argv,
    router,
)
from backends.gce.costs import disks_per_hour, monthly, rate_now
from backends.gce.machines import Disk, Machine
from backends.gce.spec import DestroyOptions, StopOptions
from backends.knowledge import gce

if TYPE_CHECKING:
    from backends.gce.looking import GceLooking


async def plan_stop(target: GceLooking, name: str, options: StopOptions) -> Plan:
    """What stopping the server, or the whole machine, would do.

    Raises:
        ConflictError: It is stopped already.
    """
    machine = await target.ours(name)
    disks = await target.api.disks()
    start = f"start_serving(target={TARGET!r}, name={name!r})"
    if machine.status != "RUNNING":
        raise ConflictError(
            f"{target.at(name)} does not run ({machine.status}).", next_action=start
        )
    live = {f"machine {name} in {machine.zone}": f"{machine.number}, {machine.status}"}
    if options.power_off:
        return await _plan_power_off(target, machine, disks, live)
    now = rate_now(machine, disks, target.prices)
    price = f"{now:g} USD/h" if now is not None else "its full price"
    return Plan(
        verb="stop_serving",
        target=TARGET,
        name=name,
        summary=f"stop vLLM on {target.at(name)} and give the GPU's memory back; the machine goes "
        "on.",
        steps=[
            Step(
                title="Stop vLLM and see that the GPU's memory is free",
                kind="stop_engine",
                data={"zone": machine.zone},
                undo=start,
            )
        ],
        live=live,
        price=Price(usd_per_hour=now, basis="the machine runs on, whether it serves or not"),
        keeps_billing=[
            f"The machine goes on at {price}: stop_serving(target={TARGET!r}, "
            f"name={name!r}, options={{'power_off': true}}) "
            "stops that too."
        ],
    )


async def _plan_power_off(
    target: GceLooking, machine: Machine, disks: list[Disk], live: dict[str, str]
) -> Plan:
    project = await target.cloud.project()
    name = machine.name
    held = disks_per_hour(machine, disks, target.prices)
    sizes = " and ".join(f"{disk.name} ({disk.gib} GiB)" for disk in machine.disks)
    return Plan(
        verb="stop_serving",
        target=TARGET,
        name=name,
        summary=f"switch {target.at(name)} off: nobody is served, and only its disks are paid for.",
        steps=[
            Step(
                title="Switch the machine off; vLLM ends with it, disks stay",
                kind="power_off",
                argv=instance_argv("stop", name, project, machine.zone, "--async"),
                data={"zone": machine.zone},
                undo=f"start_serving(target={TARGET!r}, name={name!r})",
            )
        ],
        live=live,
        price=Price(usd_per_hour=round(held, 4), basis=f"disks only: {sizes}"),
        keeps_billing=[
            f"Its disks {sizes}: about {held * gce.HOURS_A_MONTH:.2f} USD a month.",
        ],
        warnings=[
            "A switched-off machine holds no GPU: when it is started again its zone may have none."
        ],
    )


async def plan_destroy(target: GceLooking, name: str, options: DestroyOptions) -> Plan:
    """What deleting the machine, and what was made for it, would do.

    Raises:
        NotFoundError: There is none.
        NotManagedError: It is not ours.
        ConflictError: It is just being made.
    """
    disk = await target.kept_disk(name)
    try:
        machine = await target.ours(name)
    except NotFoundError:
        await _refuse_unmade(target, name)
        if disk is None:
            raise
        return await _plan_disk_only(target, name, disk, options)
    project = await target.cloud.project()
    flags = ("--delete-disks=all",) if options.data_disk else ()
    goes = [item.name for item in machine.disks if item.auto_delete or options.data_disk]
    stays = [item.name for item in machine.disks if item.name not in goes]
    steps = [
        Step(
            title=f"Delete the machine with its disks: {', '.join(goes)}"
            + (f"; {', '.join(stays)} stays" if stays else ""),
            kind="delete",
            argv=instance_argv("delete", name, project, machine.zone, *flags),
            data={"zone": machine.zone},
        )
    ]
    if machine.account == account_email(target.target, name, project) and await account_is_ours(
        target.cloud, machine.account
    ):
        steps += remove_account_steps(machine.account, project)
    steps += await _nat_step(target, machine, project)
    keeps = []
    if stays and disk is not None:
        keeps.append(
            f"{monthly(disk)}. The same name uses it again; "
            f"destroy(target={TARGET!r}, name={name!r}, options={{'data_disk': true}}) deletes it."
        )
    return Plan(
        verb="destroy",
        target=TARGET,
        name=name,
        summary=f"delete {target.at(name)} in {machine.zone}"
        + (" with its data disk." if options.data_disk else "; its data disk is kept."),
        spec={"zone": machine.zone},
        steps=steps,
        live={
            f"machine {name} in {machine.zone}": f"{machine.number}, {machine.status}",
            "disks": ", ".join(item.name for item in machine.disks),
        },
        price=_after(disk if stays else None),
        keeps_billing=keeps,
        warnings=["What is on the boot disk, logs included, is gone afterwards."]
        + (["The data disk with packages and weights is gone too."] if options.data_disk else []),
    )


def _after(disk: Disk | None) -> Price:
    if disk is None or disk.usd_per_month is None:
        return Price(usd_per_hour=0, basis="nothing of it is left")
    per_hour = round(disk.usd_per_month / gce.HOURS_A_MONTH, 4)
    return Price(usd_per_hour=per_hour, basis=f"the data disk {disk.name} is kept")


async def _refuse_unmade(target: GceLooking, name: str) -> None:
    operation = await target.work_on(name)
    if operation is not None and not operation.finished:
        raise ConflictError(
            f"{target.at(name)} is just being made ({operation.id}).",
            next_action=f"cancel_operation(operation_id={operation.id!r}) ends that and leaves "
            "nothing half-made; then call destroy again if there is anything.",
        )


async def _plan_disk_only(
    target: GceLooking, name: str, disk: Disk, options: DestroyOptions
) -> Plan:
    if not options.data_disk:
        raise InvalidInputError(
            "options",
            f"of {target.at(name)} only the data disk is left ({monthly(disk)}).",
            allowed="{'data_disk': true} deletes it",
        )
    if disk.users:
        raise ConflictError(f"The disk {disk.name} is used by {', '.join(disk.users)}.")
    project = await target.cloud.project()
    return Plan(
        verb="destroy",
        target=TARGET,
        name=name,
        summary=f"delete the data disk that was kept of {target.at(name)}.",
        spec={"zone": disk.zone},
        steps=[
            Step(
                title=f"Delete the disk {disk.name} in {disk.zone}",
                kind="gcloud",
                argv=delete_disk_argv(disk.name, project, disk.zone),
                data={"missing_ok": True},
            )
        ],
        live={f"disk {disk.name} in {disk.zone}": disk.created_at},
        price=Price(usd_per_hour=0, basis="nothing of it is left"),
        warnings=["Packages and weights on it are gone afterwards."],
    )


async def _nat_step(target: GceLooking, machine: Machine, project: str) -> list[Step]:
    """Delete the NAT that we made in its region, if no other machine there needs it."""
    machines, routers = await together(target.api.machines(), target.api.routers())
    ours = any(
        item.get("name") == router(machine.region)
        and f"{MANAGED_BY}={MANAGED_BY_US}" in str(item.get("description", ""))
        for item in routers
    )
    others = [
        item.name
        for item in machines
        if item.region == machine.region and not item.external and item.number != machine.number
    ]
    if not ours or others:
        return []
    return [
        Step(
            title=f"Delete the router and Cloud NAT that were made in {machine.region}; no other "
            "machine there needs them",
            kind="gcloud",
            argv=delete_router_argv(project, machine.region),
            data={"missing_ok": True},
        )
    ]
