"""Plans of deployments: the world is looked at, everything is checked, nothing is changed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from backends.core.errors import (
    ConflictError,
    DevopsError,
    InvalidInputError,
    NotFoundError,
    QuotaError,
)
from backends.core.owned import together
from backends.core.plans import Plan, Step, describe, said
from backends.core.problems import or_problem
from backends.core.words import plural
from backends.knowledge.sagemaker import PROFILE, SAGEMAKER_IMAGE_NOTE, USD_PER_GIB_LOGS, ami_for
from backends.sagemaker import component_deploying
from backends.sagemaker.checks import check_beside, check_name, chosen_types, habits
from backends.sagemaker.endpoints import Deployed
from backends.sagemaker.fit import check_fit
from backends.sagemaker.models import check_folder
from backends.sagemaker.spec import SageMakerSpec, default_types, resolved
from backends.sagemaker.steps import (
    create_steps,
    live_of,
    role_steps,
    update_of,
    update_steps,
    wanted,
)
from backends.sagemaker.world import Place, World, look

if TYPE_CHECKING:
    from backends.core.answers import Price
    from backends.sagemaker.looking import SageMakerLooking


async def plan_deployment(target: SageMakerLooking, spec: SageMakerSpec) -> Plan:
    """What deploying `spec` would do.

    Raises:
        InvalidInputError: A setting is wrong.
        ConflictError: The name is taken, or it is being changed.
        NotManagedError: An endpoint of that name is there and not ours.
        QuotaError: It does not fit the account's quotas.
    """
    region = spec.region or await _home(target, spec.name)
    if spec.scale_to_zero:
        there = await or_problem(target.find(spec.name, region))
        if not isinstance(there, DevopsError) and there.of_components and there.endpoint:
            spec = component_deploying.as_it_stands(spec, there)
    types: list[str] = list(default_types(spec))
    early = resolved(spec, region, types)
    _check_regions(target, early)
    world = await look(
        target, spec.name, (region, *spec.fallback_regions), image=spec.image is None
    )
    check_name(target, early, world)
    component_deploying.check_kind(target, early, world.found(spec.name, region))
    _check_role(world, early)
    place = world.places[0]
    found = world.found(spec.name, region)
    running = found if found is not None and found.endpoint is not None else None
    with_model = spec.model_copy(update={"model": early.model})
    if running is not None and running.of_components:
        # Nothing is put beside it: what it stands on has its quota.
        with_model = with_model.model_copy(update={"ignore_quota": True})
        place = replace(place, limits=None)
    elif running is not None and not spec.instance_types and not spec.candidate:
        # What is there has its types, and its own use of quota does not make it another request.
        types = _types_of(running) or types
        _refuse_unchanged(target, resolved(spec, region, types), place, running)
    try:
        types, left_out = chosen_types(with_model, types, place, int(early.instances or 1))
    except QuotaError:
        # What was kept may be out of date: somebody may have been given what was asked for.
        limits = await target.quotas.limits(region, fresh=True)
        place = replace(place, limits=limits)
        world = replace(world, places=(place, *world.places[1:]))
        types, left_out = chosen_types(with_model, types, place, int(early.instances or 1))
    if running is not None and spec.candidate:
        left_out += check_beside(spec, running, place, types, int(early.instances or 1))
    full = resolved(spec, region, types)
    fit = check_fit(full)
    notes = [*left_out, *_notes(full, place)]
    if full.scale_to_zero:
        notes += component_deploying.notes(full)
    warnings = [
        *(problem for item in world.places for problem in item.problems),
        *await _check_weights(target, full, world),
        *fit.warnings,
        *(component_deploying.warnings(running is not None) if full.scale_to_zero else ()),
        *habits(full, world, running),
    ]
    steps = role_steps(full, world)
    if full.scale_to_zero:
        steps += await component_deploying.plan_steps(target, full, world, place, found)
    elif running is not None:
        steps += await _update(target, full, world, place, running)
    else:
        steps += await _create(target, full, world, place)
        if spec.fallback_regions:
            steps += _fallback(full, world, types, notes)
    price = await _price(target, full, world, running)
    return Plan(
        verb="deploy",
        target=target.target,
        name=full.name,
        summary=_summary(target, full, running),
        spec=spec.model_copy(update={"region": region}).model_dump(exclude_none=True)
        | {"model": full.model, "instance_types": full.instance_types},
        steps=steps,
        live=live_of(full, world),
        price=price,
        settings=describe(
            said(full) | fit.figures,
            {key: info.description or "" for key, info in SageMakerSpec.model_fields.items()},
        ),
        keeps_billing=[
            component_deploying.keeps_billing()
            if full.scale_to_zero
            else f"{plural(full.instances or 1, 'instance')} day and night, whether used or "
            "not, until destroy or stop_serving.",
            f"Its log: about {USD_PER_GIB_LOGS.value:g} USD a GiB; it stays when the endpoint is "
            "deleted.",
        ],
        warnings=warnings,
        notes=notes,
    )


async def _home(target: SageMakerLooking, name: str) -> str:
    """Where it is already, else where deployments go by default."""
    try:
        return (await target.find(name)).region
    except DevopsError:
        # Not there, or not known: what does not answer is met again, or warned of, below.
        return target.home()


def _check_regions(target: SageMakerLooking, spec: SageMakerSpec) -> None:
    """Refuse regions that are not looked into: what runs there would be in no list.

    Raises:
        InvalidInputError: Names the field and the regions.
    """
    for field, regions in (
        ("options.region", [str(spec.region)]),
        ("options.fallback_regions", spec.fallback_regions),
    ):
        unseen = [region for region in regions if region not in target.regions()]
        if unseen:
            raise InvalidInputError(
                field,
                f"{', '.join(unseen)} is not among the regions looked into, so what runs there "
                "would be in no list.",
                allowed=", ".join(target.regions()),
                next_action="The operator may add it to VLLM_DEVOPS_AWS_REGIONS.",
            )


async def _check_weights(target: SageMakerLooking, spec: SageMakerSpec, world: World) -> list[str]:
    """Look into the bucket folder that is to be served, if it is one; returns warnings.

    Raises:
        InvalidInputError: It cannot be served from.
    """
    if not str(spec.model).startswith("s3://"):
        return []
    found = [await check_folder(target, str(spec.model), place.region) for place in world.places]
    return [warning for warnings in found for warning in warnings]


def _check_role(world: World, spec: SageMakerSpec) -> None:
    """Refuse to give rights to a role that is not ours.

    Raises:
        ConflictError: A role of our naming exists and is somebody else's.
    """
    if spec.role is None and world.role is not None and not world.role.ours:
        raise ConflictError(
            f"The role {world.role.arn} exists and is not ours, so it is given no rights.",
            next_action=f"Use it as it is with options.role={world.role.arn!r}, or choose another "
            "name.",
        )


async def _create(
    target: SageMakerLooking, spec: SageMakerSpec, world: World, place: Place
) -> list[Step]:
    name = wanted(spec, place.region, place.image, 1.0).name
    # Another server, or a person, may have deleted what this one once saw.
    target.api.forget(place.region, name)
    model, config = await together(
        or_problem(target.api.model_tags(place.region, name)),
        or_problem(target.api.config(place.region, name)),
    )
    for item in (model, config):
        if isinstance(item, DevopsError) and not isinstance(item, NotFoundError):
            raise item
    return create_steps(
        spec,
        world,
        place,
        model_there=not isinstance(model, DevopsError),
        config_there=not isinstance(config, DevopsError),
    )


async def _update(
    target: SageMakerLooking, spec: SageMakerSpec, world: World, place: Place, found: Deployed
) -> list[Step]:
    _refuse_unchanged(target, spec, place, found)
    what = update_of(spec, place, found)
    model = await or_problem(target.api.model_tags(place.region, what.name))
    if isinstance(model, DevopsError) and not isinstance(model, NotFoundError):
        raise model
    return update_steps(spec, world, place, found, model_there=not isinstance(model, DevopsError))


def _types_of(running: Deployed) -> list[str]:
    """The instance types of the variant that serves, first choice first; none if not known."""
    serving = running.endpoint.serving if running.endpoint else None
    planned = running.config.variant(serving.name) if running.config and serving else None
    return list(planned.types) if planned else []


def _refuse_unchanged(
    target: SageMakerLooking, spec: SageMakerSpec, place: Place, found: Deployed
) -> None:
    """Refuse an update that changes nothing.

    Raises:
        ConflictError: It runs with these settings.
    """
    what = update_of(spec, place, found)
    running = [variant.name for variant in found.endpoint.variants] if found.endpoint else []
    if what.variant in running and (spec.candidate or len(running) == 1):
        raise ConflictError(
            f"{target.at(spec.name)} runs with exactly these settings already.",
            next_action=f"Change a setting; or start_serving(target={target.target!r}, "
            f"name={spec.name!r}, restart=true) to start it anew.",
        )


def _fallback(spec: SageMakerSpec, world: World, types: list[str], notes: list[str]) -> list[Step]:
    """What the operation does when a region has no capacity: shown whole, run only then."""
    steps = [
        Step(
            title="Start an operation that watches, and goes on to the next region by itself",
            kind="operation",
            data={"operation": "deploy_fallback", "region": str(spec.region)},
        )
    ]
    before = str(spec.region)
    for place in world.places[1:]:
        able, left_out = chosen_types(
            spec.model_copy(update={"instance_types": []}), types, place, int(spec.instances or 1)
        )
        notes += [f"{place.region}: {reason}" for reason in left_out]
        there = spec.model_copy(update={"region": place.region, "instance_types": able})
        for step in create_steps(there, world, place, model_there=False, config_there=False):
            # Not made when the plan has run, so not among what the plan makes.
            data = step.data | {
                "when": before,
                "place": place.region,
                "creates": list(step.creates),
                "undo": step.undo or "",
            }
            steps.append(
                step.model_copy(
                    update={
                        "kind": "later",
                        "title": f"Only if {before} has no capacity: {step.title}",
                        "data": data,
                        "creates": (),
                        "undo": None,
                    }
                )
            )
        before = place.region
    return steps


async def _price(
    target: SageMakerLooking, spec: SageMakerSpec, world: World, running: Deployed | None
) -> Price:
    """The dearest it may become: on any listed type, in any listed region."""
    prices = await together(
        *(
            target.pool_price(place.region, spec.instance_types, int(spec.instances or 1))
            for place in world.places
        )
    )
    unknown = next((price for price in prices if price.usd_per_hour is None), None)
    price = unknown or max(prices, key=lambda item: item.usd_per_hour or 0.0)
    if len(prices) > 1 and unknown is None:
        price = price.model_copy(
            update={"basis": f"{price.basis}; the dearest of the regions listed"}
        )
    if spec.scale_to_zero:
        return component_deploying.price_words(price, spec)
    if running is not None and spec.candidate and price.usd_per_hour is not None:
        price = price.model_copy(
            update={"basis": f"{price.basis}; for the candidate, beside what runs already"}
        )
    return price


def _notes(spec: SageMakerSpec, place: Place) -> list[str]:
    staged = str(spec.model).startswith("s3://")
    source = "the bucket" if staged else "Hugging Face, no token needed"
    notes = [
        f"What was not asked for is as in the reference ({PROFILE.title}); weights come from "
        f"{source}."
    ]
    if place.image is not None:
        ami = ami_for(place.image.cuda)
        notes.append(
            f"Image {place.image.tag}: the newest pinned one by version (vLLM "
            f"{place.image.version}); its CUDA {place.image.cuda[0]}.{place.image.cuda[1]} needs "
            f"the machine image {ami.name} (driver {ami.driver})."
        )
    else:
        notes.append(SAGEMAKER_IMAGE_NOTE)
    notes.append(
        f"A container that is not healthy after {spec.startup_timeout_s} s fails the "
        f"{'component' if spec.scale_to_zero else 'endpoint'}; until then it cannot be deleted."
    )
    return notes


def _summary(target: SageMakerLooking, spec: SageMakerSpec, running: Deployed | None) -> str:
    what = "deploy a candidate of" if spec.candidate else "deploy"
    again = " again" if running is not None else ""
    if spec.scale_to_zero:
        again += ", to scale to zero,"
    then = f", else in {', '.join(spec.fallback_regions)}" if spec.fallback_regions else ""
    return (
        f"{what} {spec.model} as {target.at(spec.name)}{again} on {spec.instances} x "
        f"{' or '.join(spec.instance_types)} in {spec.region}{then}."
    )
