"""How many instances serve: an exact number, or a range that AWS chooses from by load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.base import Scaling
from backends.core.answers import Changed, Price
from backends.core.errors import ConflictError, DevopsError, InvalidInputError, NotSupportedError
from backends.core.problems import or_problem
from backends.knowledge.sagemaker import REQUESTS_PER_INSTANCE
from backends.sagemaker import commands, component_scaling
from backends.sagemaker.endpoints import BUSY, Deployed, Endpoint, Variant
from backends.sagemaker.quotas import refuse_if_short, shortages, used
from backends.sagemaker.running import explained

if TYPE_CHECKING:
    from backends.sagemaker.looking import SageMakerLooking


async def targets_of(
    target: SageMakerLooking, region: str, name: str
) -> dict[str, tuple[int, int]]:
    """Least and most instances of the variants that scale by themselves."""
    prefix = f"endpoint/{name}/variant/"
    found = await target.aws.items(
        "application-autoscaling", "describe_scalable_targets", "ScalableTargets", region,
        ServiceNamespace="sagemaker",
    )  # fmt: skip
    return {
        str(item["ResourceId"]).removeprefix(prefix): (
            int(item["MinCapacity"]),
            int(item["MaxCapacity"]),
        )
        for item in found
        if str(item["ResourceId"]).startswith(prefix)
    }


def refuse_zero(target: SageMakerLooking, deployed: Deployed) -> None:
    """Refuse to have no instance where the model stands on its endpoint itself.

    Raises:
        NotSupportedError: Names the option it has to be deployed with, and how to come to that.
    """
    if deployed.of_components:
        return
    name = deployed.name
    raise NotSupportedError(
        f"{target.at(name)} cannot scale to zero: SageMaker offers that only for endpoints of "
        "inference components, in some regions, and this model stands on its endpoint itself.",
        cause="It was deployed without options.scale_to_zero, and one kind cannot be made of the "
        "other.",
        next_action=f"To have it: {target.call('destroy', name)}, then plan_deployment(target="
        f"{target.target!r}, name={name!r}, options={{'scale_to_zero': True, ...}}), or the same "
        f"under another name. As it is, {target.call('stop_serving', name)} ends the cost and "
        "keeps the settings; start_serving makes it again.",
    )


def most_of(variant: Variant, bounds: tuple[int, int] | None, scaling: Scaling) -> int:
    """The most instances a variant could have once scaled so."""
    if scaling.instances is not None:
        return scaling.instances
    now = max(variant.desired or 1, variant.count or 1)
    return scaling.max_instances or (bounds[1] if bounds else max(now, scaling.min_instances or 1))


async def price_of(target: SageMakerLooking, name: str, scaling: Scaling) -> Price:
    """What it would cost per hour at most."""
    deployed = await target.find(name)
    if deployed.of_components:
        return await component_scaling.price_of(target, deployed, scaling)
    endpoint, variant = _serving(target, deployed)
    bounds = (await targets_of(target, deployed.region, name)).get(variant.name)
    others = sum(
        max(item.desired or 0, item.count or 0)
        for item in endpoint.variants
        if item.name != variant.name
    )
    planned = deployed.config.variant(variant.name) if deployed.config else None
    types = planned.types if planned else deployed.types
    return await target.pool_price(
        deployed.region, types, most_of(variant, bounds, scaling) + others
    )


async def scale(target: SageMakerLooking, name: str, scaling: Scaling) -> Changed:
    """Change the numbers of the variant that serves; what was not said stays.

    Raises:
        NotSupportedError: Zero instances.
        InvalidInputError: The numbers contradict each other, or are as asked already.
        QuotaError: More than the account may have.
        ConflictError: SageMaker is changing it.
    """
    deployed = await target.ours(name)
    if deployed.of_components:
        return await component_scaling.scale(target, deployed, scaling)
    endpoint, variant = _serving(target, deployed)
    if 0 in {scaling.min_instances, scaling.instances}:
        refuse_zero(target, deployed)
    if endpoint.status in BUSY:
        raise target.busy(name, endpoint.status)
    bounds = (await targets_of(target, deployed.region, name)).get(variant.name)
    argvs = _commands(target, deployed, variant, bounds, scaling)
    if not argvs:
        raise InvalidInputError("instances", "is as asked already; nothing to change.")
    await _check_quota(target, deployed, variant, most_of(variant, bounds, scaling))
    done: list[str] = []
    for argv in argvs:
        try:
            await target.aws.run(argv)
        except DevopsError as error:
            already = f" Done before: {'; '.join(done)}." if done else ""
            error.message += already
            raise explained(error, target.target, name) from error
        done.append(" ".join(argv))
    status = await target.status(name)
    price = await price_of(target, name, scaling)
    after = (await targets_of(target, deployed.region, name)).get(variant.name)
    mode = (
        f"{after[0]} to {after[1]} instances, by requests at once"
        if after
        else f"{scaling.instances} instances"
    )
    return Changed(
        summary=f"{target.at(name)} ({variant.name}) scales now: {mode}.",
        target=target.target,
        name=name,
        state=status.state,
        url=status.url,
        done=done,
        usd_per_hour=price.usd_per_hour,
        warnings=[
            "usd_per_hour is for the most instances it may have; each is paid for while it exists.",
            "A new instance loads the model first, which takes about ten minutes.",
        ],
        next_steps=[target.call("get_status", name)],
    )


def _commands(
    target: SageMakerLooking,
    deployed: Deployed,
    variant: Variant,
    bounds: tuple[int, int] | None,
    scaling: Scaling,
) -> list[commands.Argv]:
    region, name = deployed.region, deployed.name
    if scaling.instances is not None:
        argvs = [commands.deregister_scaling(region, name, variant.name)] if bounds else []
        if variant.desired != scaling.instances:
            wanted = {"VariantName": variant.name, "DesiredInstanceCount": scaling.instances}
            argvs.append(commands.update_variants(region, name, [wanted]))
        return argvs
    now = variant.desired or variant.count or 1
    low = scaling.min_instances or (bounds[0] if bounds else min(now, scaling.max_instances or now))
    high = scaling.max_instances or (bounds[1] if bounds else max(now, low))
    if low > high:
        raise InvalidInputError(
            "min_instances", f"of {low} is above max_instances of {high}.", allowed="say both"
        )
    if bounds == (low, high):
        return []
    argvs = [commands.register_scaling(region, name, variant.name, low, high)]
    if bounds is None:
        argvs.append(
            commands.put_scaling_policy(region, name, variant.name, REQUESTS_PER_INSTANCE.value)
        )
    return argvs


async def _check_quota(
    target: SageMakerLooking, deployed: Deployed, variant: Variant, most: int
) -> None:
    region = deployed.region
    limits = await or_problem(target.quotas.limits(region))
    if isinstance(limits, DevopsError):
        return  # SageMaker itself refuses what does not fit, and says so
    planned = deployed.config.variant(variant.name) if deployed.config else None
    types = planned.types if planned else deployed.types
    taken = used(await target.api.all_deployed(region))
    now = max(variant.desired or 0, variant.count or 0)
    # Application Auto Scaling accepts any maximum and fails only when it gets there.
    short = shortages(limits, types, most - now, taken)
    refuse_if_short(region, short, what=f"{most} x {' or '.join(types)}")


def _serving(target: SageMakerLooking, deployed: Deployed) -> tuple[Endpoint, Variant]:
    """The endpoint and the variant with most of its traffic.

    Raises:
        ConflictError: There is none.
    """
    endpoint = deployed.endpoint
    variant = endpoint.serving if endpoint is not None else None
    if endpoint is None or variant is None:
        raise ConflictError(
            f"{target.at(deployed.name)} has no instances to scale.",
            next_action=target.call("start_serving", deployed.name),
        )
    return endpoint, variant
