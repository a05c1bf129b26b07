"""Two variants of one endpoint: send a share of traffic to the candidate, or back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from backends.core.answers import Check, Share, Traffic
from backends.core.errors import (
    ConflictError,
    DevopsError,
    InvalidInputError,
    NotFoundError,
    NotSupportedError,
)
from backends.sagemaker import commands
from backends.sagemaker.endpoints import BUSY, Endpoint, Variant
from backends.sagemaker.looking import shares
from backends.sagemaker.running import explained
from backends.serving.contract import compare, refuse_broken

if TYPE_CHECKING:
    from backends.sagemaker.endpoints import Deployed
    from backends.sagemaker.looking import SageMakerLooking

_SETTLE_S = 8.0


async def shift_traffic(
    target: SageMakerLooking, name: str, to: str, percent: int, *, check: bool
) -> Traffic:
    """Send `percent` to a variant, the rest to the other.

    Args:
        target: The target.
        name: The deployment.
        to: `candidate` (the variant that was added last), `previous` (the other one), or a name.
        percent: 0 to 100.
        check: Compare both on the same prompts first.

    Raises:
        NotFoundError: It has one variant only.
        ConflictError: SageMaker is changing it, or the candidate breaks the contract.
    """
    deployed = await target.ours(name)
    if deployed.of_components:
        raise NotSupportedError(
            f"{target.at(name)} scales to zero and has no second variant to shift traffic to.",
            cause="Weights are of variants, and an endpoint of inference components has one.",
            next_action="Deploy the other settings under a name of their own with "
            "options.scale_to_zero, which costs nothing while nobody asks it, and ask both.",
        )
    endpoint = deployed.endpoint
    if endpoint is None:
        raise ConflictError(
            f"{target.at(name)} is stopped; its traffic cannot be shifted now.",
            next_action=target.call("start_serving", name),
        )
    if endpoint.status in BUSY:
        raise target.busy(name, endpoint.status)
    chosen, other = _chosen(target, deployed, endpoint, to)
    serving = endpoint.serving
    checks: list[Check] = []
    if check and percent > 0 and serving is not None and serving.name != chosen.name:
        checks = await compare(
            await target.wire(deployed, serving.name), await target.wire(deployed, chosen.name)
        )
        refuse_broken(checks, chosen.name)
    argv = commands.update_variants(
        deployed.region,
        name,
        [
            {"VariantName": chosen.name, "DesiredWeight": percent},
            {"VariantName": other.name, "DesiredWeight": 100 - percent},
        ],
    )
    try:
        await target.aws.run(argv)
    except DevopsError as error:
        raise explained(error, target.target, name) from error
    after = await _settled(target, endpoint)
    back = other.name if serving is None or serving.name == chosen.name else serving.name
    undo = f"shift_traffic(target={target.target!r}, name={name!r}, to={back!r})"
    busy = after.status in BUSY
    return Traffic(
        summary=f"{target.at(name)}: {percent} % of traffic goes to {chosen.name}"
        + (f" as soon as SageMaker is done (it is {after.status})." if busy else "."),
        target=target.target,
        name=name,
        shares=[
            Share(
                revision=variant.name,
                percent=share,
                tag="candidate" if variant.name == _newest(deployed, endpoint) else None,
                state=after.status,
            )
            for variant, share in shares(after)
        ],
        checks=checks,
        done=[" ".join(argv)],
        warnings=["Both variants are paid for, whatever their share of traffic."],
        next_steps=[target.call("verify_model_health", name), f"{undo} goes back"],
    )


def _chosen(
    target: SageMakerLooking, deployed: Deployed, endpoint: Endpoint, to: str
) -> tuple[Variant, Variant]:
    """The variant that is meant, and the other one."""
    by_name = {variant.name: variant for variant in endpoint.variants}
    if len(by_name) != 2:
        raise NotFoundError(
            f"{target.at(deployed.name)} has {len(by_name)} variant, so there is nothing to shift "
            "traffic to.",
            next_action=f"plan_deployment(target={target.target!r}, name={deployed.name!r}, "
            "options={'candidate': true, ...}) adds one; without candidate it is replaced "
            "blue/green at once.",
        )
    newest = _newest(deployed, endpoint)
    older = next(name for name in by_name if name != newest)
    wanted = {"candidate": newest, "previous": older}.get(to, to)
    if wanted not in by_name:
        raise InvalidInputError(
            "to", "is no variant of it.", allowed=", ".join(["candidate", "previous", *by_name])
        )
    return by_name[wanted], by_name[older if wanted == newest else newest]


def _newest(deployed: Deployed, endpoint: Endpoint) -> str:
    """The variant that was added last: the last one of its configuration."""
    running = {variant.name for variant in endpoint.variants}
    planned = [v.name for v in deployed.config.variants] if deployed.config else []
    return next((name for name in reversed(planned) if name in running), endpoint.variants[-1].name)


async def _settled(target: SageMakerLooking, before: Endpoint) -> Endpoint:
    """The endpoint once SageMaker has taken the weights; at most 8 s, for it takes its time."""
    endpoint = before
    for _ in range(int(_SETTLE_S / 0.5)):
        endpoint = await target.api.endpoint(before.region, before.name)
        if endpoint.status not in BUSY:
            break
        await asyncio.sleep(0.5)
    return endpoint
