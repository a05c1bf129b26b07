"""How many copies serve: none, an exact number, or what load asks for; instances follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.base import Scaling
from backends.core.answers import Changed, Price
from backends.core.errors import ConflictError, DevopsError, InvalidInputError
from backends.core.plans import Step
from backends.core.problems import or_problem
from backends.knowledge.sagemaker import TYPES
from backends.sagemaker import commands
from backends.sagemaker import component_commands as argvs
from backends.sagemaker.component_later import filled, run_component_step
from backends.sagemaker.component_state import idle_words, wake_s
from backends.sagemaker.component_steps import ending_steps, scaling_steps
from backends.sagemaker.components import BUSY_COMPONENT, Component
from backends.sagemaker.endpoints import Deployed
from backends.sagemaker.quotas import refuse_if_short, shortages, used

if TYPE_CHECKING:
    from backends.sagemaker.looking import SageMakerLooking


def most_instances(deployed: Deployed) -> int:
    """The most instances that the configuration allows."""
    variant = deployed.config.variants[0] if deployed.config and deployed.config.variants else None
    if variant is None:
        return 1
    return int((variant.raw.get("ManagedInstanceScaling") or {}).get("MaxInstanceCount") or 1)


def most_copies(deployed: Deployed) -> int:
    """Copies that they have room for: each takes whole GPUs."""
    return most_instances(deployed) * _per_instance(deployed)


def _per_instance(deployed: Deployed) -> int:
    gpus = TYPES[deployed.types[0]].gpus if deployed.types else 1
    return max(1, gpus // max(1, deployed.component.accelerators if deployed.component else gpus))


async def price_of(target: SageMakerLooking, deployed: Deployed, scaling: Scaling) -> Price:
    """What it would cost per hour at most; nothing at zero."""
    if scaling.instances == 0:
        return Price(usd_per_hour=0, basis="no instance once SageMaker has taken the empty ones")
    component = deployed.component
    known = component.bounds.high if component else None
    most = scaling.instances or scaling.max_instances or known or most_copies(deployed)
    instances = -(-most // _per_instance(deployed))
    return await target.pool_price(deployed.region, deployed.types, instances)


async def scale(target: SageMakerLooking, deployed: Deployed, scaling: Scaling) -> Changed:
    """Set the number of copies, or the bounds that load chooses within; what was not said stays.

    `instances=0` takes all copies away now and leaves automatic scaling as it is, so that a request
    still wakes it. Another number ends automatic scaling; `start_serving` starts a copy without.

    Raises:
        InvalidInputError: The numbers contradict each other, or are as asked already.
        QuotaError: More than the account may have.
        ConflictError: It hosts nothing, or SageMaker is changing it.
    """
    name = deployed.name
    component = deployed.component
    if component is None or deployed.endpoint is None:
        raise ConflictError(
            f"{target.at(name)} hosts nothing that could be scaled.",
            next_action=target.call("get_status", name),
        )
    refuse_busy(target, name, component)
    steps = _steps(deployed, component, scaling)
    if not steps:
        raise InvalidInputError("instances", "is as asked already; nothing to change.")
    await _check_quota(target, deployed, scaling)
    done = await run_steps(target, name, steps)
    fresh = await target.find(name)
    status = await target.status(name)
    price = await price_of(target, deployed, scaling)
    return Changed(
        summary=f"{target.at(name)} {_words(scaling, fresh)}",
        target=target.target,
        name=name,
        state=status.state,
        url=status.url,
        done=done,
        usd_per_hour=price.usd_per_hour,
        warnings=_warnings(scaling, fresh),
        next_steps=[target.call("wait_until_ready" if scaling.instances else "get_status", name)],
    )


def refuse_busy(target: SageMakerLooking, name: str, component: Component) -> None:
    """Refuse to change what SageMaker is changing.

    Raises:
        ConflictError: It is being made, scaled or deleted.
    """
    if component.status in BUSY_COMPONENT:
        raise target.busy(name, component.status)


def copies_step(region: str, name: str, count: int) -> Step:
    """Set the number of copies."""
    return Step(
        title="Take every copy away" if count == 0 else f"Have {count} copies",
        kind="aws",
        argv=argvs.update_copies(region, name, count),
        data={"thing": "copies", "id": name, "region": region, "count": count},
    )


def _steps(deployed: Deployed, component: Component, scaling: Scaling) -> list[Step]:
    region, name, bounds = deployed.region, deployed.name, component.bounds
    tags = commands.tags_of(name)
    if scaling.instances == 0:
        lower = bounds.on and bounds.low != 0
        steps = scaling_steps(region, name, 0, bounds.high or 1, tags) if lower else []
        return steps + ([copies_step(region, name, 0)] if component.desired else [])
    if scaling.instances is not None:
        _check_room(deployed, scaling.instances, "instances")
        off = ending_steps(region, name) if bounds.on or bounds.problem else []
        same = component.desired == scaling.instances
        return off + ([] if same else [copies_step(region, name, scaling.instances)])
    low = scaling.min_instances if scaling.min_instances is not None else (bounds.low or 0)
    high = scaling.max_instances or bounds.high or max(most_copies(deployed), low)
    if low > high:
        raise InvalidInputError(
            "min_instances", f"of {low} is above max_instances of {high}.", allowed="say both"
        )
    _check_room(deployed, high, "max_instances")
    if (bounds.low, bounds.high) == (low, high):
        return []
    # First, for automatic scaling would begin to make them too, and then it is in no one's turn.
    first = [copies_step(region, name, low)] if component.desired < low else []
    return [*first, *scaling_steps(region, name, low, high, tags)]


def _check_room(deployed: Deployed, copies: int, field: str) -> None:
    """Refuse more copies than the configuration's most instances have room for.

    Raises:
        InvalidInputError: Names the most.
    """
    most = most_copies(deployed)
    if copies > most:
        raise InvalidInputError(
            field,
            f"of {copies} is more than its endpoint configuration allows, which cannot be changed "
            "under it.",
            allowed=f"up to {most}; deploy under another name with options.instances for more",
        )


async def _check_quota(target: SageMakerLooking, deployed: Deployed, scaling: Scaling) -> None:
    wanted = scaling.instances or scaling.max_instances or scaling.min_instances or 0
    limits = await or_problem(target.quotas.limits(deployed.region))
    if isinstance(limits, DevopsError) or not wanted or deployed.endpoint is None:
        return  # SageMaker itself refuses what does not fit, and says so
    wanted = -(-wanted // _per_instance(deployed))
    now = sum(max(v.desired or 0, v.count or 0) for v in deployed.endpoint.variants)
    taken = used(await target.api.all_deployed(deployed.region))
    short = shortages(limits, deployed.types, max(wanted - now, 0), taken)
    refuse_if_short(deployed.region, short, what=f"{wanted} x {' or '.join(deployed.types)}")


async def run_steps(target: SageMakerLooking, name: str, steps: list[Step]) -> list[str]:
    """Run steps within a call; returns their commands.

    Raises:
        DevopsError: One was refused; what was done before is said.
    """
    done: list[str] = []
    for step in steps:
        try:
            step = await filled(target, name, step)  # noqa: PLW2901
            await run_component_step(target, name, step, within_s=0)
        except DevopsError as error:
            if done:
                error.message += f" Done before: {'; '.join(done)}."
            raise
        done.append(step.shown())
    return done


def _words(scaling: Scaling, after: Deployed) -> str:
    bounds = after.component.bounds if after.component else None
    wakes = f"a request wakes it in about {wake_s() / 60:.0f} minutes"
    if scaling.instances == 0:
        return "goes to zero now; " + (
            f"{wakes}." if bounds and bounds.on else "no request starts it, start_serving does."
        )
    if scaling.instances is not None:
        return f"is to have {scaling.instances} copies, whatever the load."
    low, high = (bounds.low, bounds.high) if bounds else (None, None)
    zero = f"; without requests to none, and {wakes}" if low == 0 else ""
    return f"scales now between {low} and {high} copies, by requests at once{zero}."


def _warnings(scaling: Scaling, after: Deployed) -> list[str]:
    if scaling.instances == 0:
        return ["Its instances are paid for until SageMaker takes them, some twelve minutes."]
    said = ["usd_per_hour is for the most instances it may have; each is paid for while it exists."]
    if after.component and after.component.bounds.low == 0:
        said.append(f"It costs {idle_words()}.")
    return said
