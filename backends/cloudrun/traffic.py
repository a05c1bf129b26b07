"""Blue and green: send traffic to a candidate, a part of it, or back; compare them first."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from backends.cloudrun.commands import CANDIDATE_TAG, at
from backends.cloudrun.running import explained
from backends.cloudrun.services import RunRevision, RunService
from backends.core.answers import Check, Share, Traffic
from backends.core.errors import ConflictError, DevopsError, InvalidInputError, NotFoundError
from backends.serving.contract import compare, refuse_broken

if TYPE_CHECKING:
    from backends.cloudrun.looking import CloudRunLooking

PREVIOUS_TAG = "previous"


async def shift_traffic(
    target: CloudRunLooking, name: str, to: str, percent: int, *, check: bool
) -> Traffic:
    """Send `percent` to a revision, the rest to what serves now.

    Raises:
        NotFoundError: There is no such revision, candidate or previous one.
        ConflictError: It cannot serve, or breaks the contract.
    """
    service = await target.ours(name)
    revisions = await target.api.revisions(service.region, name)
    chosen = _chosen(target, service, revisions, to)
    checks: list[Check] = []
    serving = service.serving
    if check and percent > 0 and serving is not None and serving.revision != chosen.name:
        checks = await _compare(target, service, chosen)
        refuse_broken(checks, chosen.name)
    flags = [_flag(service, chosen, to, percent)]
    if serving is not None and percent > 0 and serving.revision != chosen.name:
        # The way back is kept where every server finds it: in the service itself.
        flags.append(f"--update-tags={PREVIOUS_TAG}={serving.revision}")
    argv = [
        *("gcloud", "run", "services", "update-traffic", name),
        *at(await target.cloud.project(), service.region),
        *(*flags, "--quiet", "--async", "--format=json"),
    ]
    try:
        await target.cloud.gcloud.run(argv)
    except DevopsError as error:
        raise explained(error, target.target, name) from error
    after = await _settled(target, service, chosen.name, percent)
    back = serving.revision if serving is not None else "previous"
    undo = f"shift_traffic(target={target.target!r}, name={name!r}, to={back!r})"
    return Traffic(
        summary=f"{target.at(name)}: {percent} % of traffic goes to {chosen.name}.",
        target=target.target,
        name=name,
        shares=[
            Share(
                revision=share.revision,
                percent=share.percent,
                tag=share.tag or None,
                url=share.url or None,
            )
            for share in after.traffic
        ],
        checks=checks,
        done=[" ".join(argv)],
        next_steps=[target.call("verify_model_health", name), f"{undo} goes back"],
    )


def _chosen(
    target: CloudRunLooking, service: RunService, revisions: list[RunRevision], to: str
) -> RunRevision:
    by_name = {revision.name: revision for revision in revisions}
    if to == "candidate":
        tagged = service.tagged.get(CANDIDATE_TAG)
        if tagged is None:
            raise NotFoundError(
                f"{target.at(service.name)} has no candidate.",
                next_action=f"plan_deployment(target={target.target!r}, name={service.name!r}, "
                "options={'candidate': true}) makes one.",
            )
        wanted = tagged.revision
    elif to == "previous":
        wanted = _previous(target, service, revisions).name
    else:
        wanted = to
    if wanted not in by_name:
        raise InvalidInputError(
            "to",
            "is no revision of it.",
            allowed=", ".join(["candidate", "previous", *by_name]),
        )
    revision = by_name[wanted]
    if revision.ready is False:
        said = next((item.message for item in revision.conditions if item.ok is False), "")
        raise ConflictError(
            f"{wanted} cannot serve.",
            words=said,
            next_action=target.call("get_logs", service.name),
        )
    return revision


def _previous(
    target: CloudRunLooking, service: RunService, revisions: list[RunRevision]
) -> RunRevision:
    """The revision that served before, by its tag; else the newest one older than what serves."""
    serving = service.serving
    tagged = service.tagged.get(PREVIOUS_TAG)
    for revision in revisions:
        if tagged is not None and revision.name == tagged.revision:
            return revision
    names = [revision.name for revision in revisions]
    if serving is not None and serving.revision in names:
        older = revisions[names.index(serving.revision) + 1 :]
        for revision in older:
            if revision.ready is not False:
                return revision
    raise NotFoundError(
        f"{target.at(service.name)} has no revision before the one that serves.",
        next_action=f"Revisions: {', '.join(names)}.",
    )


def _flag(service: RunService, chosen: RunRevision, to: str, percent: int) -> str:
    """The flag that makes the split; gcloud gives the rest to whom it went, in proportion."""
    serving = service.serving
    if to == "candidate":
        return f"--to-tags={CANDIDATE_TAG}={percent}"
    if percent == 100 or serving is None or serving.revision == chosen.name:
        return f"--to-revisions={chosen.name}={percent}"
    return f"--to-revisions={chosen.name}={percent},{serving.revision}={100 - percent}"


async def _settled(
    target: CloudRunLooking, before: RunService, revision: str, percent: int
) -> RunService:
    """The service once its traffic is as asked; at most 8 s, for the cloud takes its time."""
    service = before
    for _ in range(16):
        service = await target.api.service(before.region, before.name)
        got = sum(share.percent for share in service.traffic if share.revision == revision)
        if got == percent and not service.reconciling:
            break
        await asyncio.sleep(0.5)
    return service


# --------------------------------------------------------------------------- the contract


async def _compare(
    target: CloudRunLooking, service: RunService, chosen: RunRevision
) -> list[Check]:
    """Ask both the same, and say where the candidate is worse."""
    tag = next((share for share in service.traffic if share.revision == chosen.name and share.url),
               None)  # fmt: skip
    if tag is None:
        return [
            Check(
                name="reachable by itself",
                ok=False,
                detail=f"{chosen.name} has no tag, so it cannot be asked before it serves; "
                "check=false shifts without a comparison",
            )
        ]
    return await compare(
        await target.endpoint_at(service, service.url),
        await target.endpoint_at(service, tag.url),
    )
