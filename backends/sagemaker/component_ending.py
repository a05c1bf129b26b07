"""Ending and beginning again what scales to zero: off without a way back by itself, on, deleted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from backends.core.answers import Changed, Price
from backends.core.errors import (
    ConflictError,
    NotFoundError,
    NotManagedError,
    NotSupportedError,
)
from backends.core.names import MANAGED_BY, MANAGED_BY_US, is_ours
from backends.core.owned import together
from backends.core.plans import Plan, Step
from backends.knowledge.sagemaker import TARGET
from backends.knowledge.sagemaker_components import RELEASE_S
from backends.sagemaker import component_commands as argvs
from backends.sagemaker.commands import tags_of
from backends.sagemaker.component_scaling import copies_step, most_copies, refuse_busy, run_steps
from backends.sagemaker.component_state import wake_s
from backends.sagemaker.component_steps import (
    alarm_gone_step,
    delete_step,
    deregister_step,
    ending_steps,
    scaling_steps,
)
from backends.sagemaker.components import BUSY_COMPONENT
from backends.sagemaker.endpoints import BROKEN, Deployed
from backends.sagemaker.steps import state_of

if TYPE_CHECKING:
    from backends.sagemaker.looking import SageMakerLooking


async def deletions(target: SageMakerLooking, deployed: Deployed) -> list[Step]:
    """What goes before the endpoint does: automatic scaling, its alarm, every component.

    Raises:
        NotManagedError: It hosts a component that is not ours.
    """
    name, region = deployed.name, deployed.region
    hosted, own, alarms = await together(
        _hosted(target, deployed),
        target.api.component_or_none(region, name),
        target.aws.call(
            "cloudwatch", "describe_alarms", region, AlarmNames=[argvs.wake_alarm_name(name)]
        ),
    )
    foreign = [item for item, tags in hosted.items() if not is_ours(tags)]
    if foreign:
        raise NotManagedError(
            f"{target.at(name)} hosts what is not ours: {', '.join(foreign)}; deleting its "
            "endpoint would end it.",
            next_action="Ask the person to delete it, or to adopt it with the tag "
            f"{MANAGED_BY}={MANAGED_BY_US}: aws sagemaker add-tags --region {region} ...",
        )
    steps: list[Step] = []
    if own is not None and (own.bounds.on or own.bounds.problem):
        steps.append(deregister_step(region, name))
    if alarms.get("MetricAlarms"):
        steps.append(alarm_gone_step(region, name))
    return [*steps, *(delete_step(region, item, name) for item in hosted)]


async def _hosted(target: SageMakerLooking, deployed: Deployed) -> dict[str, Mapping[str, str]]:
    """What its endpoint hosts, by name with tags; also what outlived an endpoint that is gone."""
    try:
        found = await target.api.components_on(deployed.region, deployed.name)
    except NotFoundError:
        found = {}
    own = await target.api.component_or_none(deployed.region, deployed.name)
    if own is not None and own.name not in found and own.endpoint == deployed.name:
        found[own.name] = await target.api.component_tags(deployed.region, own)
    return found


def waits(deployed: Deployed) -> list[str]:
    """What the reader should know of a deletion that has to wait for its turn."""
    component = deployed.component
    if component is None or component.status not in BUSY_COMPONENT - {"Deleting"}:
        return []
    return [
        f"Its component is {component.status}: SageMaker deletes none before that is over, up to "
        f"{component.startup_timeout_s} s for a start, and its instance is paid for meanwhile."
    ]


def plan_stop(target: SageMakerLooking, deployed: Deployed) -> Plan:
    """Take every copy away, and automatic scaling too, so that no request starts one.

    Raises:
        ConflictError: It is stopped, or SageMaker is at it.
    """
    name, region = deployed.name, deployed.region
    component, endpoint = deployed.component, deployed.endpoint
    if endpoint is None or component is None:
        raise ConflictError(
            f"{target.at(name)} hosts nothing that could be stopped.",
            next_action=target.call("get_status", name),
        )
    refuse_busy(target, name, component)
    scales = component.bounds.on or component.bounds.problem
    steps = [
        *(ending_steps(region, name) if scales else []),
        *([copies_step(region, name, 0)] if component.desired else []),
    ]
    if not steps:
        raise ConflictError(
            f"{target.at(name)} is stopped already.",
            next_action=target.call("start_serving", name),
        )
    return Plan(
        verb="stop_serving",
        target=target.target,
        name=name,
        summary=f"stop {target.at(name)} in {region}: its copies end and its automatic scaling "
        "too, so that no request starts one; endpoint and settings stay.",
        spec={"region": region},
        steps=[
            step.model_copy(update={"undo": f"start_serving(target={TARGET!r}, name={name!r})"})
            for step in steps
        ],
        live={f"endpoint {name} in {region}": f"{state_of(deployed)}, {component.desired} copies"},
        price=Price(usd_per_hour=0, basis="no instance once SageMaker has taken the empty ones"),
        keeps_billing=[
            "Its instances until SageMaker takes them, about "
            f"{RELEASE_S.value / 60:.0f} minutes after the last copy."
        ],
        stays=["Its endpoint, its component without copies, and its settings."],
        warnings=[
            "Nobody is answered meanwhile, and starting again needs a free instance (minutes, or "
            "none in this region).",
            "update_scaling(instances=0) ends the cost too, and leaves it to the next request to "
            "start it.",
        ],
    )


async def start_again(target: SageMakerLooking, deployed: Deployed, *, restart: bool) -> Changed:
    """Have a copy again, and automatic scaling where that is off.

    Raises:
        NotSupportedError: A restart of what runs.
        ConflictError: It has no component or endpoint, or SageMaker is at it.
    """
    name, region = deployed.name, deployed.region
    component, endpoint = deployed.component, deployed.endpoint
    if endpoint is None or component is None or endpoint.status in BROKEN:
        status = await target.status(name)
        raise ConflictError(
            f"{target.at(name)} cannot be started: {status.summary}",
            next_action=status.next_steps[0] if status.next_steps else "Call get_status.",
        )
    refuse_busy(target, name, component)
    if restart and component.desired:
        raise NotSupportedError(
            f"{target.at(name)} runs, and SageMaker starts no copy anew in its place.",
            next_action=f"{target.call('update_scaling', name, instances=0)}, then start_serving.",
        )
    steps = [] if component.desired else [copies_step(region, name, 1)]
    if not component.bounds.on:
        steps += scaling_steps(region, name, 0, most_copies(deployed), tags_of(name))
    done = await run_steps(target, name, steps)
    status = await target.status(name)
    return Changed(
        summary=f"{target.at(name)} is {status.state}"
        + (f"; it takes about {wake_s() / 60:.0f} minutes." if done else "; nothing to start."),
        target=target.target,
        name=name,
        state=status.state,
        url=status.url,
        done=done,
        usd_per_hour=(await target.price(name) or Price(basis="unknown")).usd_per_hour
        if done
        else status.usd_per_hour,
        next_steps=status.next_steps,
    )
