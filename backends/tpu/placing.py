"""Where a slice may be asked for: what a plan is made from, and the zones that are left."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backends.clouds.google_facts import (
    SECRET_READER,
    account_email,
    account_exists,
    disabled_apis,
    has_role,
    or_problem,
    refuse_disabled,
    secret_exists,
    words_of,
)
from backends.clouds.zone_memory import ZoneMemory, ZoneNote
from backends.core.errors import DevopsError, InvalidInputError, QuotaError
from backends.core.owned import together
from backends.knowledge.tpu import (
    COMPUTE_FAMILY,
    COMPUTE_QUOTA_SERVICE,
    FLEX_START_SEEN,
    SLICES,
    quota_id,
    region_of,
)
from backends.tpu.capacity import asked_for, used_chips
from backends.tpu.records import TpuRequest
from backends.tpu.spec import TpuSpec

if TYPE_CHECKING:
    from backends.tpu.looking import TpuLooking

_SECRETS = "https://secretmanager.googleapis.com/v1/projects"


@dataclass(frozen=True)
class World:
    """What a plan was made from.

    Attributes:
        project: The project.
        requests: Every TPU request.
        account_there: Whether the deployment's own account exists.
        may_read: Whether that account may read the token's secret already.
        secret_there: Whether the secret exists.
        hardware: Sizes by zone; a text where a zone could not be asked.
        limits: Limits of the quota that counts, by zone; None: not known, or none counts.
        problems: What could not be looked at.
    """

    project: str
    requests: list[TpuRequest]
    account_there: bool
    may_read: bool
    secret_there: bool
    hardware: dict[str, list[str] | str]
    limits: dict[str, float] | None
    problems: tuple[str, ...]


async def look(target: TpuLooking, spec: TpuSpec) -> World:
    """Ask Google what a plan is made from: requests, account, secret, hardware, quota.

    Raises:
        ApiDisabledError: An API is off.
        DevopsError: Requests, or the account, could not be asked.
    """
    cloud = target.cloud
    project = await cloud.project()
    off = await or_problem(disabled_apis(cloud, "tpu", "compute", "secretmanager", "iam"))
    problems: list[str] = []
    if isinstance(off, DevopsError):
        problems.append(f"Whether APIs are enabled is not known ({words_of(off)}).")
    else:
        refuse_disabled(off, project)
    account = spec.service_account or account_email(target.target, spec.name, project)
    plane = str(spec.control_plane)
    quota = quota_id(str(spec.provisioning), plane)
    whose = (
        {"service": COMPUTE_QUOTA_SERVICE, "family": COMPUTE_FAMILY} if plane == "compute" else {}
    )

    async def nothing() -> None:
        return None

    (requests, _), there, may_read, secret, hardware, limits = await together(
        target.world(),
        nothing() if spec.service_account else account_exists(cloud, account),
        or_problem(
            has_role(
                cloud,
                f"{_SECRETS}/{project}/secrets/{spec.secret}:getIamPolicy",
                f"the secret {spec.secret}",
                f"serviceAccount:{account}",
                SECRET_READER,
            )
        ),
        or_problem(secret_exists(cloud, str(spec.secret))),
        target.api.sizes(spec.asked_in) if spec.control_plane == "tpu" else nothing(),
        or_problem(target.api.quota(quota, **whose)) if quota else nothing(),
    )
    if isinstance(limits, DevopsError):
        problems.append(f"Quotas were not checked ({words_of(limits)}); Google will.")
    if isinstance(secret, DevopsError):
        problems.append(f"Whether the secret exists is not known ({words_of(secret)}).")
    return World(
        project=project,
        requests=requests,
        account_there=bool(there) or spec.service_account is not None,
        may_read=may_read is True,
        secret_there=secret is True,
        hardware=hardware or {},
        limits=None if isinstance(limits, DevopsError) else limits,
        problems=tuple(problems),
    )


def zones_of(
    target: TpuLooking, spec: TpuSpec, world: World
) -> tuple[list[str], list[str], list[str]]:
    """Zones to ask in, in order; what was left out and why; and what the order follows.

    Raises:
        InvalidInputError: No zone has the hardware.
        QuotaError: None of those that have it has quota.
    """
    memory = ZoneMemory(target.services.state, target.target)
    what = asked_for(str(spec.size), str(spec.provisioning))
    order, final = memory.ordered(what, spec.asked_in)
    left_out = [f"Left out: {note.shown(time.time())}" for note in final]
    if not spec.zones:
        order, left_out = spec.asked_in, []
    need = SLICES[str(spec.size)].chips
    kept: list[str] = []
    short: list[str] = []
    for zone in order:
        found = world.hardware.get(zone)
        if isinstance(found, list) and str(spec.size) not in found:
            left_out.append(
                f"Left out: {zone} has no {spec.size} (it has {', '.join(found) or 'no v6e'})."
            )
            continue
        refused = spec.provisioning == "flex-start" and FLEX_START_SEEN.get(zone) is False
        if refused and spec.zones:
            left_out.append(f"Left out: {zone} refused flex-start when it was asked (2026).")
            continue
        if world.limits is not None and not spec.ignore_quota:
            plane = str(spec.control_plane)
            used = used_chips(world.requests, zone, str(spec.provisioning), plane)
            limit = world.limits.get(zone if plane == "tpu" else region_of(zone), 0.0)
            if used + need > limit:
                short.append(f"{zone}: {need} needed, {used} used, {limit:g} allowed")
                continue
        kept.append(zone)
    if not kept:
        _refuse_zones(target, spec, short, left_out)
    left_out += [f"Left out for want of quota: {item}." for item in short]
    notes = memory.notes(what)
    reasons = [_order_words(notes, kept)] if spec.zones and _order_words(notes, kept) else []
    if len(kept) == 1 and spec.zones:
        reasons.append(f"Only {kept[0]} is left to ask in.")
    return kept, left_out, reasons


def _refuse_zones(target: TpuLooking, spec: TpuSpec, short: list[str], left_out: list[str]) -> None:
    quota = quota_id(str(spec.provisioning), str(spec.control_plane))
    if short:
        raise QuotaError(
            f"{spec.size} {spec.provisioning} does not fit the project's quota: "
            f"{'; '.join(short)}.",
            cause="Quota is counted in chips by zone; failed and suspended requests count too.",
            next_action=f"find_capacity(target={target.target!r}) shows where it fits; destroy "
            f"what has ended; or ask the person to request {quota} at "
            "https://console.cloud.google.com/iam-admin/quotas. options.ignore_quota=true tries.",
            details={"quota": str(quota)},
        )
    raise InvalidInputError(
        "options.zone" if spec.zone else "options.zones",
        f"no zone is left: {' '.join(left_out)}",
        allowed=f"those of find_capacity(target={target.target!r})",
    )


def _order_words(notes: dict[str, ZoneNote], zones: list[str]) -> str:
    seen = [notes[zone].shown(time.time()) for zone in zones if zone in notes]
    return f"The order follows what was seen lately ({'; '.join(seen)})." if seen else ""
