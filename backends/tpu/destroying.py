"""Plans that end something: requests, machines, orphan nodes, and what was made for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import ConfigDict, Field

from backends.base import EndOptions
from backends.clouds.google_facts import account_email, account_is_ours, or_problem, secret_exists
from backends.clouds.google_steps import remove_account_steps
from backends.core.answers import Price
from backends.core.errors import ConflictError, InvalidInputError
from backends.core.plans import Plan, Step
from backends.tpu.commands import (
    delete_argv,
    delete_key_argv,
    delete_node_argv,
    delete_rule_argv,
    key_secret_of,
    power_argv,
    rule_of,
)
from backends.tpu.records import TpuNode, TpuRequest

if TYPE_CHECKING:
    from backends.tpu.looking import TpuLooking


class TpuDestroyOptions(EndOptions):
    """Options of destroy on `tpu-v6e`."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    others: list[str] = Field(
        default_factory=list,
        description="Keep `name`; destroy exactly these instead: NAME, NAME@ZONE or an orphan "
        "node's id.",
    )


class TpuStopOptions(EndOptions):
    """Options of stop_serving on `tpu-v6e`."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    machine: bool = Field(
        False,
        description="Stop the machine too: its chips are given up. Default: containers only.",
    )


async def plan_destroy(target: TpuLooking, name: str, others: list[str]) -> Plan:
    """Delete one deployment, or keep it and delete a list of others by name.

    Args:
        target: The target.
        name: `NAME`, `NAME@ZONE`, or the id of an orphan node.
        others: What to delete instead; `name` is then kept and must live.

    Raises:
        NotFoundError: One of them is not there.
        NotManagedError: One of them is not ours.
        InvalidInputError: A name stands for several, or for what is to be kept.
    """
    requests, orphans = await target.world()
    kept = _meant(target, name, requests, orphans)
    if not others:
        return await _plan(target, name, [kept], requests, "")
    victims = [_meant(target, other, requests, orphans) for other in others]
    keep_key = _key_of(kept)
    if any(_key_of(item) == keep_key for item in victims):
        raise InvalidInputError("options.others", f"names {keep_key}, which is to be kept.")
    if isinstance(kept, TpuRequest) and not kept.live:
        raise InvalidInputError(
            "name", f"{keep_key} is {kept.state}: there is nothing of it to keep."
        )
    return await _plan(target, name, victims, requests, keep_key)


def _meant(
    target: TpuLooking, name: str, requests: list[TpuRequest], orphans: list[TpuNode]
) -> TpuRequest | TpuNode:
    plain, _, zone = name.partition("@")
    found: list[TpuRequest | TpuNode] = [
        item for item in requests if item.name == plain and zone in ("", item.zone)
    ]
    if not found:
        found = [item for item in orphans if item.name == plain and zone in ("", item.zone)]
    if not found:
        operation = target.searches().get(plain)
        if operation is not None:
            raise ConflictError(
                f"{operation.id} is looking for hardware for {plain}; nothing of it is there yet.",
                next_action=f"cancel_operation(operation_id={operation.id!r})",
            )
        raise target.not_here(name)
    if len(found) > 1:
        raise InvalidInputError(
            "name",
            f"{plain} is there more than once.",
            allowed=", ".join(_key_of(item) for item in found),
        )
    target.refuse_foreign(found[0])
    return found[0]


def _key_of(item: TpuRequest | TpuNode) -> str:
    return f"{item.name}@{item.zone}"


async def _plan(
    target: TpuLooking,
    name: str,
    victims: list[TpuRequest | TpuNode],
    requests: list[TpuRequest],
    kept: str,
) -> Plan:
    project = await target.cloud.project()
    steps: list[Step] = []
    warnings: list[str] = []
    for item in victims:
        steps.append(_delete_step(item, project))
        warnings += _losses(item)
    doomed = {_key_of(item) for item in victims}
    for item in victims:
        stays = [
            other for other in requests if other.name == item.name and _key_of(other) not in doomed
        ]
        if isinstance(item, TpuRequest) and not stays:
            steps += await _belongings(target, item, project)
    what = ", ".join(_key_of(item) for item in victims)
    summary = f"delete {what}" + (f", and keep {kept}." if kept else ", with all made for it.")
    saved = sum(target.rate_now(item) or 0.0 for item in victims if isinstance(item, TpuRequest))
    if saved:
        warnings.append(f"Ends a cost of {saved:g} USD per hour.")
    return Plan(
        verb="destroy",
        target=target.target,
        name=name,
        summary=summary,
        spec={"destroys": what},
        steps=steps,
        live={_key_of(item): item.state for item in victims} | ({kept: "kept"} if kept else {}),
        price=Price(usd_per_hour=0, basis="nothing of what is deleted bills afterwards"),
        keeps_billing=[f"{kept} goes on."] if kept else [],
        warnings=warnings,
    )


def _delete_step(item: TpuRequest | TpuNode, project: str) -> Step:
    if isinstance(item, TpuNode):
        return Step(
            title=f"Delete the node {item.name} in {item.zone}, which no queued resource owns",
            kind="delete",
            argv=tuple(delete_node_argv(item, project)),
            data={"name": item.name, "zone": item.zone, "what": "node"},
        )
    machine = item.plane == "compute"
    kind = "instance" if machine else "queued resource"
    force = ", by force, for it has nodes or may get them" if item.needs_force else ""
    return Step(
        title=f"Delete the {kind} {item.name} in {item.zone} ({item.state}){force}",
        kind="delete",
        argv=tuple(delete_argv(item, project)),
        data={
            "name": item.name,
            "zone": item.zone,
            "what": "instance" if machine else "request",
        },
    )


def _losses(item: TpuRequest | TpuNode) -> list[str]:
    if isinstance(item, TpuNode):
        return [f"{item.name}: its disk goes with it."]
    if item.stage == "queued":
        return [
            f"{item.key}: it gives up its place in the queue. {item.state} is waiting, not failing."
        ]
    if item.live:
        return [f"{item.key}: weights and compile cache on its disk go with it."]
    return []


async def _belongings(target: TpuLooking, request: TpuRequest, project: str) -> list[Step]:
    """What was made for one deployment alone: firewall rule, key, account with its right."""
    steps: list[Step] = []
    name = request.name
    if request.public:
        steps.append(
            Step(
                title=f"Delete the firewall rule {rule_of(name)}",
                kind="gcloud",
                argv=tuple(delete_rule_argv(name, project)),
                data={"missing_ok": True},
            )
        )
    account = request.account
    ours = account == account_email(target.target, name, project) and await or_problem(
        account_is_ours(target.cloud, account)
    )
    key = key_secret_of(name)
    has_key = request.public and await or_problem(secret_exists(target.cloud, key)) is True
    if ours is True:
        secrets = [str(request.settings.get("secret") or "hf-token")]
        existing = [
            item
            for item in secrets
            if await or_problem(secret_exists(target.cloud, item)) is not False
        ]
        steps += remove_account_steps(account, project, secrets=tuple(existing))
    if has_key:
        steps.append(
            Step(
                title="Delete its API key",
                kind="gcloud",
                argv=tuple(delete_key_argv(name, project)),
                data={"missing_ok": True},
            )
        )
    return steps


async def plan_stop(target: TpuLooking, name: str, options: TpuStopOptions) -> Plan:
    """End the containers on every host; with `machine`, the machine too.

    Raises:
        NotFoundError: There is none.
        NotManagedError: It is not ours.
        ConflictError: It does not run.
        InvalidInputError: A slice of several hosts cannot be stopped.
    """
    from backends.tpu.serving import stop_step

    request = await target.ours(name)
    target.must_run(request, "stop_serving")
    steps: list[Step] = []
    project = await target.cloud.project()
    rate = target.slice_price(request.size, request.provisioning, request.zone)
    if options.machine:
        if request.hosts > 1:
            raise InvalidInputError(
                "options.machine",
                f"{request.size} has {request.hosts} hosts; Google cannot stop it.",
                allowed=f"containers only, or {target.call('destroy', name)}",
            )
        steps.append(
            Step(
                title=f"Stop the machine in {request.zone}: disks stay, chips are given up",
                kind="power",
                argv=tuple(power_argv(request, "stop", project)),
                data={"verb": "stop"},
                undo=target.call("start_serving", name),
            )
        )
        keeps = ["Its disk bills on; the chips do not."]
        price = Price(usd_per_hour=0, basis="chips are not billed while stopped; disks are")
        warnings = ["The chips go back to the pool: starting again may find none free."]
        if request.provisioning in {"spot", "flex-start"}:
            warnings.append(f"Google may refuse to stop a {request.provisioning} machine.")
    else:
        steps.append(stop_step(request))
        keeps = ["The machine goes on billing; options.machine=true or destroy ends that."]
        price, warnings = rate, ["Nobody is answered until start_serving."]
    return Plan(
        verb="stop_serving",
        target=target.target,
        name=name,
        summary=f"stop serving {target.at(name)}"
        + (
            " and its machine."
            if options.machine
            else f" on {request.hosts} host{'s' if request.hosts > 1 else ''}."
        ),
        spec={"zone": request.zone},
        steps=steps,
        live={f"request {request.key}": request.state},
        price=price,
        keeps_billing=keeps,
        warnings=warnings,
    )
