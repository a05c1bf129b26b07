"""The steps of a deployment that scales to zero: an empty endpoint first, then what it hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from backends.core.errors import ConflictError
from backends.core.plans import Step
from backends.knowledge.sagemaker import TARGET, TYPES, ImageTag, ami_for, registry
from backends.sagemaker import commands
from backends.sagemaker import component_commands as argvs
from backends.sagemaker.endpoints import Deployed
from backends.sagemaker.spec import SageMakerSpec
from backends.sagemaker.steps import Wanted, config_step, endpoint_step, model_step, shown
from backends.sagemaker.world import Place, World

OPERATION = "deploy_component"
"""The operation that waits for the endpoint and puts the model on it."""


def hosted(spec: SageMakerSpec, region: str, tag: ImageTag | None) -> tuple[Wanted, str]:
    """What a request comes to in a region: its model, and its configuration's name.

    A change of vLLM's settings makes another model and leaves the configuration as it is.
    """
    image = spec.image or f"{registry(region)}:{tag.tag if tag else ''}"
    ami = spec.ami or ami_for(tag.cuda if tag is not None else (13, 0)).name
    container = commands.container(spec, image)
    common = [spec.role, sorted(spec.all_tags)]
    model = commands.config_name(
        spec.name, commands.digest_of([container, argvs.specification(spec, ""), *common])
    )
    digest = commands.digest_of(["components", argvs.hosting_variant(spec, "", ami), *common])
    variant = commands.variant_name(digest)
    raw = argvs.hosting_variant(spec, variant, ami)
    config = commands.config_name(spec.name, digest)
    return Wanted(model, variant, image, ami, container, raw), config


def copies_of(spec: SageMakerSpec) -> int:
    """The most copies that fit on the most instances."""
    gpus = TYPES[spec.instance_types[0]].gpus
    return int(spec.instances or 1) * (gpus // int(spec.tensor_parallel_size or gpus))


def create_steps(
    spec: SageMakerSpec, world: World, place: Place, *, model_there: bool, config_there: bool
) -> list[Step]:
    """Model, configuration, an endpoint that hosts nothing, and the operation that puts it on."""
    region, tags = place.region, commands.tags_of(spec.name, spec.all_tags)
    what, config = hosted(spec, region, place.image)
    steps: list[Step] = []
    if not model_there:
        steps.append(model_step(spec, world, region, what, tags))
    if not config_there:
        role = spec.role or world.role_arn(spec.name)
        steps.append(config_step(region, config, [what.raw], tags, role))
    steps.append(endpoint_step(region, spec.name, config, tags))
    return [*steps, *_put_on(spec, region, what, tags)]


def replace_steps(
    spec: SageMakerSpec, world: World, place: Place, found: Deployed, *, model_there: bool
) -> list[Step]:
    """Put other settings on an endpoint that is there, or what is missing on it.

    The component is deleted and made anew: a copy takes whole GPUs, so old and new have no room
    beside each other unless another instance is had.

    Raises:
        ConflictError: It hosts just that; or its instances would have to change, which a component
            cannot do.
    """
    region, tags = place.region, commands.tags_of(spec.name, spec.all_tags)
    what, config = hosted(spec, region, place.image)
    _refuse_other_instances(found, what, config, spec.role or world.role_arn(spec.name))
    if found.config is not None and found.config.variants:
        # With other tags it would have another name; it is where the endpoint's instances are.
        what = replace(what, variant=found.config.variants[0].name)
    steps = [] if model_there else [model_step(spec, world, region, what, tags)]
    component = found.component
    if component is None:
        return [*steps, *_put_on(spec, region, what, tags)]
    if component.model == what.name and component.status != "Failed":
        scaling = f"update_scaling(target={TARGET!r}, name={spec.name!r}, min_instances=0)"
        raise ConflictError(
            f"{TARGET}/{spec.name} runs with exactly these settings already"
            + (
                "."
                if component.bounds.on
                else "; only its automatic scaling is not set up, so it does not go to zero."
            ),
            next_action="Change a setting." if component.bounds.on else scaling,
        )
    gone: list[Step] = [
        *([deregister_step(region, spec.name)] if component.bounds.on else []),
        delete_step(region, spec.name),
    ]
    return [*steps, *_put_on(spec, region, what, tags, before=gone)]


def scaling_steps(
    region: str, name: str, low: int, high: int, tags: Sequence[object]
) -> list[Step]:
    """Automatic scaling between two numbers of copies, and the way out of zero."""
    undo = shown(argvs.deregister_copies(region, name))

    def step(title: str, argv: commands.Argv, thing: str, **more: Any) -> Step:  # noqa: ANN401
        data = {"thing": thing, "id": name, "region": region, **more.pop("data", {})}
        return Step(title=title, kind="aws", argv=argv, data=data, **more)

    steps = [
        step(
            f"Let load choose {low} to {high} copies",
            argvs.register_copies(region, name, low, high),
            "copies scaling",
            creates=(f"automatic scaling of {name} in {region}",),
            undo=undo,
        ),
        step(
            "Scale by requests at once; after 15 minutes without any, to the least",
            argvs.put_load_policy(region, name),
            "copies policy",
        ),
    ]
    if low > 0:
        return steps
    return [
        *steps,
        step("One copy more when it is woken", argvs.put_wake_policy(region, name), "wake policy"),
        step(
            "Make the alarm by which a request wakes it; the ARN is what the step before answers",
            argvs.put_wake_alarm(region, name, argvs.POLICY_ARN, tags),
            "wake alarm",
            creates=(f"CloudWatch alarm {argvs.wake_alarm_name(name)} in {region}",),
            undo=shown(argvs.delete_wake_alarm(region, name)),
        ),
    ]


def ending_steps(region: str, name: str) -> list[Step]:
    """End automatic scaling, and what would wake it."""
    return [deregister_step(region, name), alarm_gone_step(region, name)]


def alarm_gone_step(region: str, name: str) -> Step:
    """Delete the alarm that wakes it."""
    return Step(
        title="Delete the alarm that wakes it",
        kind="aws",
        argv=argvs.delete_wake_alarm(region, name),
        data={
            "thing": "no alarm",
            "id": argvs.wake_alarm_name(name),
            "region": region,
            "missing_ok": True,
        },
    )


def deregister_step(region: str, name: str) -> Step:
    """End automatic scaling, its policies included."""
    return Step(
        title=f"End the automatic scaling of {name}",
        kind="aws",
        argv=argvs.deregister_copies(region, name),
        data={"thing": "no scaling", "id": name, "region": region, "missing_ok": True},
    )


def delete_step(region: str, name: str, endpoint: str = "") -> Step:
    """Delete a component."""
    return Step(
        title=f"Delete the inference component {name} in {region}, and wait until it is gone",
        kind="aws",
        argv=argvs.delete_component(region, name),
        data={
            "thing": "no component",
            "id": name,
            "region": region,
            "endpoint": endpoint or name,
            "missing_ok": True,
        },
    )


def _put_on(
    spec: SageMakerSpec,
    region: str,
    what: Wanted,
    tags: Sequence[object],
    before: Sequence[Step] = (),
) -> list[Step]:
    """The operation, and what it does once the endpoint is in service."""
    name = spec.name
    create = Step(
        title="Put the model on it as an inference component with one copy",
        kind="aws",
        argv=argvs.create_component(
            region, name, what.variant, argvs.specification(spec, what.name), tags
        ),
        data={"thing": "component", "id": name, "region": region},
        creates=(f"SageMaker inference component {name} in {region}",),
        undo=shown(argvs.delete_component(region, name)),
    )
    later = [*before, create, *scaling_steps(region, name, 0, copies_of(spec), tags)]
    return [
        Step(
            title="Start an operation that puts the model on the endpoint as soon as it can",
            kind="operation",
            data={"operation": OPERATION, "region": region},
        ),
        *(left_for_later(step, "Once it is in service: ") for step in later),
    ]


def left_for_later(step: Step, when: str) -> Step:
    """A step that is shown in a plan and run by its operation."""
    data = step.data | {"creates": list(step.creates), "undo": step.undo or ""}
    return step.model_copy(
        update={
            "kind": "later",
            "title": f"{when}{step.title}",
            "data": data,
            "creates": (),
            "undo": None,
        }
    )


def _refuse_other_instances(found: Deployed, what: Wanted, config: str, role: str) -> None:
    """Refuse what would change the instances of an endpoint that hosts components.

    Raises:
        ConflictError: Names what differs.
    """
    have = found.config
    if have is None or have.name == config or not have.variants:
        return
    before, after = have.variants[0].raw, what.raw
    differ = [
        key
        for key in sorted({*before, *after} - {"VariantName", "InitialInstanceCount"})
        if _plain(before.get(key)) != _plain(after.get(key))
    ]
    if have.role_arn and have.role_arn != role:
        differ.append("ExecutionRoleArn")
    if not differ:
        return
    words = ", ".join(differ)
    raise ConflictError(
        f"{TARGET}/{found.name} stands on other instances than asked for ({words} differ), and "
        "what scales to zero is not moved to others.",
        cause="A component can be replaced on its endpoint; the endpoint's own configuration, with "
        "its instance types, machine image and most instances, cannot without taking it away.",
        next_action=f"Leave those settings as they are; or destroy(target={TARGET!r}, "
        f"name={found.name!r}) and deploy again; or deploy under another name.",
    )


def _plain(value: object) -> object:
    """A setting without what SageMaker may add to it."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
