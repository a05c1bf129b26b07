"""The steps of a deployment, and what it depends on, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backends.core.plans import Step
from backends.knowledge.sagemaker import TARGET, ImageTag, ami_for, registry
from backends.sagemaker import commands
from backends.sagemaker.commands import Argv
from backends.sagemaker.endpoints import Config, Deployed, PlannedVariant
from backends.sagemaker.spec import SageMakerSpec
from backends.sagemaker.world import Place, World


@dataclass(frozen=True)
class Wanted:
    """One set of settings as SageMaker is told it.

    Attributes:
        name: Of model and configuration.
        variant: Of the production variant.
        image: The container's image.
        ami: The machine image.
        container: The model's container.
        raw: The production variant.
    """

    name: str
    variant: str
    image: str
    ami: str
    container: Mapping[str, Any]
    raw: Mapping[str, Any]


def wanted(
    spec: SageMakerSpec, region: str, tag: ImageTag | None, weight: float, *, beside: str = ""
) -> Wanted:
    """What a request comes to in a region.

    Args:
        spec: The resolved request.
        region: Where.
        tag: The region's newest image, where the request names none.
        weight: Of the variant.
        beside: The configuration that a candidate is added to; with the same settings it is
            another variant all the same.
    """
    image = spec.image or f"{registry(region)}:{tag.tag if tag else ''}"
    cuda = tag.cuda if tag is not None else (13, 0)
    ami = spec.ami or ami_for(cuda).name
    container = commands.container(spec, image)
    # The name stands for the settings, so what has another setting has another name.
    draft = commands.variant(spec, "", "", ami, 1.0)
    digest = commands.digest_of([container, draft, spec.role, sorted(spec.all_tags), beside])
    name = commands.config_name(spec.name, digest)
    variant = commands.variant_name(digest)
    return Wanted(
        name=name,
        variant=variant,
        image=image,
        ami=ami,
        container=container,
        raw=commands.variant(spec, name, variant, ami, weight),
    )


def role_steps(spec: SageMakerSpec, world: World) -> list[Step]:
    """The role and its rights, as far as they are missing."""
    if spec.role is not None:
        return []
    region, role = str(spec.region), commands.role_name(spec.name)
    steps: list[Step] = []
    if world.role is None:
        steps.append(
            Step(
                title="Make a role that only this deployment runs as",
                kind="aws",
                argv=commands.create_role(region, spec.name, spec.all_tags),
                data={"thing": "role", "id": role, "region": region},
                creates=(f"IAM role {role}",),
                undo=shown(commands.delete_role(region, role)),
            )
        )
    if world.role is None or world.role.policy != commands.policy(
        spec, world.partition, world.account
    ):
        steps.append(
            Step(
                title="Let the role pull its image and write its log and metrics"
                + (", and read its weights" if str(spec.model).startswith("s3://") else ""),
                kind="aws",
                argv=commands.put_policy(spec, world.partition, world.account),
                data={"thing": "policy", "id": role, "region": region},
                creates=(f"policy {commands.POLICY} of {role}",) if world.role is None else (),
                undo=shown(commands.delete_policy(region, role)) if world.role is None else None,
            )
        )
    return steps


def create_steps(
    spec: SageMakerSpec, world: World, place: Place, *, model_there: bool, config_there: bool
) -> list[Step]:
    """Model, configuration and endpoint in one region."""
    region, tags = place.region, commands.tags_of(spec.name, spec.all_tags)
    what = wanted(spec, region, place.image, 1.0)
    steps: list[Step] = []
    if not model_there:
        steps.append(model_step(spec, world, region, what, tags))
    if not config_there:
        steps.append(config_step(region, what.name, [what.raw], tags))
    steps.append(endpoint_step(region, spec.name, what.name, tags))
    return steps


def endpoint_step(region: str, name: str, config: str, tags: Sequence[object]) -> Step:
    """Make the endpoint."""
    return Step(
        title=f"Make the endpoint in {region}; returns as soon as it is accepted",
        kind="aws",
        argv=commands.create_endpoint(region, name, config, tags),
        data={"thing": "endpoint", "id": name, "region": region},
        creates=(f"SageMaker endpoint {name} in {region}",),
        undo=f"destroy(target={TARGET!r}, name={name!r})",
    )


def update_steps(
    spec: SageMakerSpec, world: World, place: Place, found: Deployed, *, model_there: bool
) -> list[Step]:
    """A new configuration, and the endpoint put on it: blue/green, or as a second variant."""
    region, name = place.region, spec.name
    tags = commands.tags_of(name, spec.all_tags)
    serving = _serving(found)
    what = update_of(spec, place, found)
    steps = [] if model_there else [model_step(spec, world, region, what, tags)]
    variants: list[Mapping[str, Any]] = [what.raw]
    config = what.name
    if spec.candidate and serving is not None:
        kept = dict(serving.raw) | {"InitialVariantWeight": 1.0}
        variants = [kept, what.raw]
        config = commands.config_name(name, commands.digest_of([kept, what.raw]))
    steps.append(config_step(region, config, variants, tags))
    alarms = list(spec.rollback_alarms)
    if not alarms:
        watched = serving.name if spec.candidate and serving is not None else what.variant
        steps.append(
            Step(
                title="Make an alarm on server errors that undoes the update",
                kind="aws",
                argv=commands.put_alarm(region, name, watched, tags),
                data={"thing": "alarm", "id": commands.alarm_name(name), "region": region},
                creates=(f"CloudWatch alarm {commands.alarm_name(name)} in {region}",),
                undo=shown(commands.delete_alarm(region, name)),
            )
        )
        alarms = [commands.alarm_name(name)]
    back = found.config.name if found.config else ""
    steps.append(
        Step(
            title="Update the endpoint; what serves goes on until the new instances are healthy",
            kind="aws",
            argv=commands.update_endpoint(
                region, name, config, rollout_of(spec, alarms), retain=spec.candidate
            ),
            data={"thing": "update", "id": name, "region": region, "config": config},
            undo=shown(commands.update_endpoint(region, name, back, None, retain=False)),
        )
    )
    return steps


def update_of(spec: SageMakerSpec, place: Place, found: Deployed) -> Wanted:
    """What a request comes to for an endpoint that runs."""
    beside = found.config.name if spec.candidate and found.config else ""
    weight = 0.0 if spec.candidate else 1.0
    return wanted(spec, place.region, place.image, weight, beside=beside)


def rollout_of(spec: SageMakerSpec, alarms: Sequence[str]) -> dict[str, Any]:
    """How an update shifts traffic, and what undoes it."""
    wait = 300 if spec.rollout_wait_s is None else spec.rollout_wait_s
    kind = (spec.rollout or "all_at_once").upper()
    routing: dict[str, Any] = {"Type": kind, "WaitIntervalInSeconds": wait}
    if kind == "CANARY":
        routing["CanarySize"] = {"Type": "CAPACITY_PERCENT", "Value": 10}
    if kind == "LINEAR":
        routing["LinearStepSize"] = {"Type": "CAPACITY_PERCENT", "Value": 25}
    return {
        "BlueGreenUpdatePolicy": {
            "TrafficRoutingConfiguration": routing,
            "TerminationWaitInSeconds": 0,
            # The whole rollout: a start, and its waits between shifts.
            "MaximumExecutionTimeoutInSeconds": min(
                28800, max(3600, 2 * int(spec.startup_timeout_s or 1800) + 5 * wait)
            ),
        },
        "AutoRollbackConfiguration": {"Alarms": [{"AlarmName": alarm} for alarm in alarms]},
    }


def live_of(spec: SageMakerSpec, world: World) -> dict[str, str]:
    """The facts a plan is bound to: when one of them changes, the plan is refused."""
    live = {"account": world.account}
    for place in world.places:
        live[f"endpoint {spec.name} in {place.region}"] = state_of(
            world.found(spec.name, place.region)
        )
        if place.limits is not None:
            for kind in spec.instance_types:
                limit = place.limits.get(kind)
                live[f"quota of {kind} in {place.region}"] = (
                    f"{limit.value:g}, {place.taken.get(kind, 0)} in use" if limit else "none"
                )
    if spec.role is None:
        live["role"] = "exists" if world.role is not None else "absent"
    return live


def state_of(found: Deployed | None) -> str:
    """What a plan remembers of a deployment."""
    if found is None:
        return "absent"
    config = found.config.name if found.config else "unknown"
    if found.endpoint is None:
        return f"stopped, {config}"
    if found.of_components:
        # Load moves copies and instances all the time; what they run does not move by itself.
        hosted = f"{found.component.model}" if found.component else "nothing"
        return f"{found.endpoint.status}, {found.endpoint.config}, hosts {hosted}"
    weights = ", ".join(f"{v.name} {v.weight:g} x {v.desired}" for v in found.endpoint.variants)
    return f"{found.endpoint.status}, {found.endpoint.config}, {weights}"


def _serving(found: Deployed) -> PlannedVariant | None:
    """The variant that serves, as its configuration has it, with the instances it has now."""
    config: Config | None = found.config
    if config is None or found.endpoint is None or found.endpoint.serving is None:
        return None
    return config.variant(found.endpoint.serving.name)


def model_step(
    spec: SageMakerSpec, world: World, region: str, what: Wanted, tags: Sequence[object]
) -> Step:
    """Make the model."""
    arn = spec.role or world.role_arn(spec.name)
    return Step(
        title="Make the model: image, vLLM's settings, where weights are",
        kind="aws",
        argv=commands.create_model(region, what.name, arn, what.container, tags),
        data={
            "thing": "model",
            "id": what.name,
            "region": region,
            # Every server sees a role that was made a moment ago only after a while.
            "new_role": spec.role is None and world.role is None,
        },
        creates=(f"SageMaker model {what.name} in {region}",),
        undo=shown(commands.delete_model(region, what.name)),
    )


def config_step(
    region: str,
    name: str,
    variants: Sequence[Mapping[str, Any]],
    tags: Sequence[object],
    role_arn: str = "",
) -> Step:
    """Make the endpoint configuration; with the role where its variants have no model."""
    return Step(
        title="Make the endpoint configuration: which instances, for how long a start",
        kind="aws",
        argv=commands.create_config(region, name, variants, tags, role_arn),
        data={"thing": "config", "id": name, "region": region},
        creates=(f"SageMaker endpoint configuration {name} in {region}",),
        undo=shown(commands.delete_config(region, name)),
    )


def shown(argv: Argv) -> str:
    """A command as a person could run it."""
    import shlex

    return shlex.join(argv)
