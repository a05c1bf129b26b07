"""Plans that end something: destroy all that was made for it, or stop and keep the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import ConfigDict, Field

from backends.base import EndOptions
from backends.core.answers import Price
from backends.core.errors import ConflictError
from backends.core.owned import together
from backends.core.plans import Plan, Step
from backends.knowledge.sagemaker import TARGET, USD_PER_GIB_LOGS
from backends.sagemaker import commands, component_ending
from backends.sagemaker.endpoints import BUSY, Config, Deployed
from backends.sagemaker.steps import state_of
from backends.sagemaker.world import role_of

if TYPE_CHECKING:
    from backends.sagemaker.looking import SageMakerLooking


class SageMakerEnd(EndOptions):
    """Options of destroy on `sagemaker-l4`."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    role: bool = Field(
        False, description="Also delete the execution role that was made for it, with its policy."
    )
    when_settled: bool = Field(
        False,
        description="If it is Creating or Updating, leave an operation that deletes it then.",
    )


async def plan_destroy(target: SageMakerLooking, name: str, options: SageMakerEnd) -> Plan:
    """Delete endpoint, configurations, models, alarm, and if asked the role.

    Raises:
        NotFoundError: There is none.
        NotManagedError: It is not ours.
        ConflictError: SageMaker deletes nothing that is Creating or Updating.
    """
    deployed = await target.ours(name)
    region, endpoint = deployed.region, deployed.endpoint
    busy = endpoint is not None and endpoint.status in BUSY - {"Deleting"}
    if busy and endpoint is not None and not options.when_settled:
        raise ConflictError(
            f"{target.at(name)} is {endpoint.status}, and SageMaker deletes no endpoint before it "
            "is InService or Failed.",
            words=f'Cannot update in-progress endpoint "{endpoint.arn}".',
            cause="That takes minutes while it starts, up to half an hour while it waits for "
            "capacity; what is not placed is not paid for.",
            next_action=f"destroy(target={target.target!r}, name={name!r}, "
            "options={'when_settled': true}) leaves an operation that deletes it then; or "
            f"{target.call('wait_until_ready', name)}.",
        )
    configs = await _all_configs(target, deployed)
    steps, keeps, stays = await _deletions(target, deployed, configs, options)
    hosts = any(step.data["thing"] == "no component" for step in steps)
    if busy or hosts:
        steps = [
            Step(
                title="Start an operation that deletes it as soon as SageMaker lets it"
                + (", what it hosts first" if hosts else ""),
                kind="operation",
                data={"operation": "destroy_when_settled", "region": region},
            ),
            *(
                step.model_copy(
                    update={
                        "kind": "later",
                        "title": step.title if not busy else f"When it has settled: {step.title}",
                    }
                )
                for step in steps
            ),
        ]
    what = "delete as soon as it settles:" if busy else "delete"
    return Plan(
        verb="destroy",
        target=target.target,
        name=name,
        summary=f"{what} {target.at(name)} in {region} with {len(configs)} "
        + ("configuration" if len(configs) == 1 else "configurations")
        + (" and the role that was made for it." if options.role else "."),
        spec={"region": region},
        steps=steps,
        live={f"endpoint {name} in {region}": _ending_state(deployed, busy=busy)},
        price=Price(usd_per_hour=0, basis="nothing of it runs afterwards"),
        keeps_billing=keeps,
        stays=stays,
        warnings=[
            "Nobody is answered any more, and the capacity may not come back.",
            *(
                ["Until it settles it goes on, and once an instance is placed it is paid for."]
                if busy
                else []
            ),
            *component_ending.waits(deployed),
        ],
    )


def _ending_state(deployed: Deployed, *, busy: bool) -> str:
    """What the plan is bound to; a start that goes on meanwhile changes nothing about it."""
    if busy and deployed.endpoint is not None:
        return f"in progress, {deployed.endpoint.config}"
    return state_of(deployed)


async def _all_configs(target: SageMakerLooking, deployed: Deployed) -> list[Config]:
    """Every configuration of the deployment, also those of earlier settings, in every region.

    A fallback may have left some where there was no capacity.
    """
    found = await together(
        *(
            target.api.configs_of(region, deployed.name)
            for region in dict.fromkeys((deployed.region, *target.regions()))
        )
    )
    return [config for item in found for config in item]


async def _deletions(
    target: SageMakerLooking, deployed: Deployed, configs: list[Config], options: SageMakerEnd
) -> tuple[list[Step], list[str], list[str]]:
    name, region = deployed.name, deployed.region
    hosting = [item for item in configs if item.of_components]
    steps: list[Step] = await component_ending.deletions(target, deployed) if hosting else []
    if deployed.endpoint is not None and deployed.endpoint.status != "Deleting":
        steps += await _scaling_steps(target, deployed)
        steps.append(
            deletion(
                f"Delete the endpoint {name} in {region}, which ends the cost",
                commands.delete_endpoint(region, name),
                "no endpoint",
                name,
                region,
            )
        )
    models: dict[tuple[str, str], None] = {}
    for config in configs:
        steps.append(
            deletion(
                f"Delete the endpoint configuration {config.name} in {config.region}",
                commands.delete_config(config.region, config.name),
                "no config",
                config.name,
                config.region,
            )
        )
        models |= {
            (config.region, variant.model): None for variant in config.variants if variant.model
        }
    for config in hosting:
        # Such a configuration names no model; those of earlier settings are there too.
        found = await target.api.models_of(config.region, name)
        models |= {(config.region, model): None for model in found}
    for place, model in models:
        # A model that somebody else made stays, whatever configuration of ours names it.
        if commands.deployment_of(model) == name:
            steps.append(
                deletion(
                    f"Delete the model {model} in {place}",
                    commands.delete_model(place, model),
                    "no model",
                    model,
                    place,
                )
            )
    if await _has_alarm(target, region, name):
        steps.append(
            deletion(
                "Delete the alarm of its updates",
                commands.delete_alarm(region, name),
                "no alarm",
                commands.alarm_name(name),
                region,
            )
        )
    role_steps, role_note = await role_deletions(target, name, region, wanted=options.role)
    keeps = [
        f"Its log {deployed.log_group} stays, at 0.03 USD per GiB and month (written at "
        f"{USD_PER_GIB_LOGS.value:g} USD a GiB).",
    ]
    return [*steps, *role_steps], keeps, role_note


async def _scaling_steps(target: SageMakerLooking, deployed: Deployed) -> list[Step]:
    """Take autoscaling off first, or it would go on looking for the endpoint."""
    from backends.sagemaker.scaling import targets_of

    name, region = deployed.name, deployed.region
    return [
        deletion(
            f"End the automatic scaling of {variant}",
            commands.deregister_scaling(region, name, variant),
            "no scaling",
            variant,
            region,
        )
        for variant in await targets_of(target, region, name)
    ]


async def _has_alarm(target: SageMakerLooking, region: str, name: str) -> bool:
    answer = await target.aws.call(
        "cloudwatch", "describe_alarms", region, AlarmNames=[commands.alarm_name(name)]
    )
    return bool(answer.get("MetricAlarms"))


async def role_deletions(
    target: SageMakerLooking, name: str, region: str, *, wanted: bool
) -> tuple[list[Step], list[str]]:
    """The steps that delete a deployment's role, and else what is said of it that stays.

    Args:
        target: The target.
        name: The deployment.
        region: Any of its partition.
        wanted: Whether it is to be deleted.
    """
    role_name = commands.role_name(name)
    role = await role_of(target.aws, region, role_name)
    if role is None:
        return [], []
    if not role.ours:
        return [], [f"The role {role_name}, which is not ours."]
    if not wanted:
        return [], [
            f"The role {role_name}, which nothing uses then: options={{'role': true}} deletes it "
            f"with the rest, {target.call('destroy', name)} also later."
        ]
    steps = [
        deletion(
            f"Delete the role {role_name} that was made for it",
            commands.delete_role(region, role_name),
            "no role",
            role_name,
            region,
        )
    ]
    if role.policy:
        steps.insert(
            0,
            deletion(
                f"Take the rights of the role {role_name}",
                commands.delete_policy(region, role_name),
                "no policy",
                role_name,
                region,
            ),
        )
    return steps, []


def deletion(title: str, argv: commands.Argv, thing: str, id: str, region: str) -> Step:
    """A step that deletes something; that it is gone already is no failure."""
    data = {"thing": thing, "id": id, "region": region, "missing_ok": True}
    return Step(title=title, kind="aws", argv=argv, data=data)


async def plan_stop(target: SageMakerLooking, name: str) -> Plan:
    """Delete the endpoint and keep all that makes it again.

    SageMaker has no endpoint without instances, but for those made of inference components.

    Raises:
        ConflictError: It is stopped, or SageMaker is at it.
    """
    deployed = await target.ours(name)
    if deployed.of_components:
        return component_ending.plan_stop(target, deployed)
    region, endpoint, config = deployed.region, deployed.endpoint, deployed.config
    if endpoint is None:
        raise ConflictError(
            f"{target.at(name)} is stopped already.",
            next_action=target.call("start_serving", name),
        )
    if endpoint.status in BUSY:
        raise target.busy(name, endpoint.status)
    if config is None or not config.managed:
        raise ConflictError(
            f"The configuration of {target.at(name)} is gone or not ours, so it could not be "
            "started again.",
            next_action=target.call("destroy", name),
        )
    return Plan(
        verb="stop_serving",
        target=target.target,
        name=name,
        summary=f"stop {target.at(name)} in {region}: its endpoint is deleted, configuration "
        f"{config.name} and model are kept, so that start_serving makes the same again.",
        spec={"region": region},
        steps=[
            *await _scaling_steps(target, deployed),
            Step(
                title="Delete the endpoint, which ends the cost; its configuration stays",
                kind="aws",
                argv=commands.delete_endpoint(region, name),
                data={"thing": "no endpoint", "id": name, "region": region, "missing_ok": True},
                undo=f"start_serving(target={TARGET!r}, name={name!r})",
            ),
        ],
        live={f"endpoint {name} in {region}": state_of(deployed)},
        price=Price(usd_per_hour=0, basis="no instance runs; configuration and model are free"),
        stays=[f"Its configuration {config.name} and its model, from which it is made again."],
        warnings=[
            "SageMaker cannot scale this endpoint to zero and keep it: only what is deployed with "
            "options.scale_to_zero can, in some regions.",
            "Nobody is answered meanwhile, and starting again needs a free instance (minutes, or "
            "none in this region).",
        ],
    )
