"""Plans of deployments: the world is looked at, everything is checked, nothing is changed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from backends.cloudrun.checks import check_name, check_quota, check_weights, habits, notes_of
from backends.cloudrun.fit import check_fit
from backends.cloudrun.images import image_name, read_source
from backends.cloudrun.spec import CloudRunSpec, resolved, scaled
from backends.cloudrun.steps import live_of, steps_of
from backends.cloudrun.world import look
from backends.core.errors import InvalidInputError
from backends.core.plans import Plan, describe, said
from backends.core.words import plural
from backends.knowledge.cloudrun import IDLE_S

if TYPE_CHECKING:
    from backends.cloudrun.looking import CloudRunLooking


async def plan_deployment(target: CloudRunLooking, spec: CloudRunSpec) -> Plan:
    """What deploying `spec` would do.

    Raises:
        InvalidInputError: A setting is wrong.
        ConflictError: The name is taken by something else.
        NotManagedError: A service of that name is there and not ours.
        NotFoundError: Weights, bucket or secret are missing.
        QuotaError: It does not fit the project's quotas.
        ApiDisabledError: An API is off.
    """
    profile, cloud = target.profile, target.cloud
    project = await cloud.project()
    services = await target.api.services(target.regions())
    if spec.region is None:
        # What is there already is deployed again where it is.
        places = [item.region for item in services if item.name == spec.name]
        region = places[0] if len(places) == 1 else None
        full = resolved(
            spec.model_copy(update={"region": region}), profile, target.services.settings, project
        )
    else:
        full = resolved(spec, profile, target.services.settings, project)
    source = await asyncio.to_thread(read_source, spec.build) if spec.build else None
    if source is not None:
        made = image_name(project, str(full.region), full.name, source)
        if spec.image and spec.image.rpartition(":")[0] != made.rpartition(":")[0]:
            raise InvalidInputError("options.build", "makes the image; leave options.image out.")
        full = full.model_copy(update={"image": made})
    world = await look(target, full, project, services, source)
    full = scaled(full, world.found)
    warnings, notes = list(world.problems), []
    check_name(target, full, world)
    warnings += check_quota(target, full, world)
    warnings += check_weights(target, full, world)
    fit = check_fit(profile, full, world.folder)
    warnings += fit.warnings
    warnings += habits(full, profile, world)
    notes += notes_of(full, profile, world)
    steps = steps_of(target, full, world)
    manual = full.scaling if isinstance(full.scaling, int) else None
    if manual is None and full.scaling is None and world.found is not None:
        manual = world.found.manual
    count = manual if manual is not None else int(full.max_instances or 1)
    await target.prices.learn(str(full.region), zonal=full.zonal_redundancy)
    price = target.instance_price(
        str(full.region), float(full.cpu or 0), float(full.memory_gib or 0),
        full.zonal_redundancy, max(count, 1),
    )  # fmt: skip
    what = "deploy a candidate of" if full.candidate else "deploy"
    again = " again" if world.found is not None else ""
    return Plan(
        verb="deploy",
        target=target.target,
        name=full.name,
        summary=f"{what} {full.model} as {target.at(full.name)}{again} on one {profile.hardware} "
        f"in {full.region}.",
        spec=full.model_dump(exclude_none=True),
        steps=steps,
        live=live_of(full, world),
        price=price,
        settings=describe(
            said(full) | fit.figures,
            {key: info.description or "" for key, info in CloudRunSpec.model_fields.items()},
        ),
        keeps_billing=[
            f"An instance that has nothing to do goes on for up to {IDLE_S.value / 60:.0f} minutes "
            "at the full price."
        ]
        if not full.min_instances and manual is None
        else [
            f"{plural(manual or full.min_instances or 1, 'instance')} day and night, whether used "
            "or not."
        ],
        warnings=warnings,
        notes=notes,
    )
