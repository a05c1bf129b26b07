"""The steps of a deployment, and what it depends on, as values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.cloudrun.commands import INVOKER, at, deploy_argv
from backends.cloudrun.images import image_steps
from backends.cloudrun.spec import CloudRunSpec
from backends.cloudrun.world import World
from backends.clouds.google_facts import account_email
from backends.clouds.google_steps import account_step, reader_step
from backends.core.plans import Step
from backends.knowledge.cloudrun import CloudRunProfile

if TYPE_CHECKING:
    from backends.cloudrun.looking import CloudRunLooking


def argv_of(spec: CloudRunSpec, profile: CloudRunProfile, world: World) -> list[str]:
    """The deploy command of a plan."""
    return deploy_argv(
        spec,
        profile,
        world.project,
        spec.service_account or account_email(profile.target, spec.name, world.project),
        exists=world.found is not None,
        quantised=world.folder.quantised if world.folder is not None else False,
    )


def steps_of(target: CloudRunLooking, spec: CloudRunSpec, world: World) -> list[Step]:
    """What is done, in order: its own image, the account, its one right, the service, callers."""
    project, region, name = world.project, str(spec.region), spec.name
    email = spec.service_account or account_email(target.target, name, project)
    steps = image_steps(world.image, project, region) if world.image is not None else []
    if not world.account_there:
        steps.append(account_step(name, email, project))
    if spec.service_account is None and not (world.account_there and world.may_read):
        from_bucket = spec.source == "bucket"
        steps.append(
            reader_step(email, project, bucket=str(spec.bucket))
            if from_bucket
            else reader_step(email, project, secret=str(spec.secret))
        )
    steps.append(
        Step(
            title=f"Deploy to Cloud Run in {region}; returns as soon as it is accepted",
            kind="deploy",
            argv=tuple(argv_of(spec, target.profile, world)),
            data={"region": region},
            creates=(f"Cloud Run service {name} in {region}",) if world.found is None else (),
            undo=f"destroy(target={target.target!r}, name={name!r})"
            if world.found is None
            else None,
        )
    )
    for member in spec.invokers:
        bind = ("run", "services", "add-iam-policy-binding", name, *at(project, region))
        unbind = ("run", "services", "remove-iam-policy-binding", name, *at(project, region))
        flags = (f"--member={member}", f"--role={INVOKER}", "--quiet", "--format=json")
        steps.append(
            Step(
                title=f"Let {member} call it",
                kind="gcloud",
                argv=("gcloud", *bind, *flags),
                creates=(f"{INVOKER} of {member} on {name}",),
                undo=" ".join(("gcloud", *unbind, *flags[:2])),
            )
        )
    return steps


def live_of(spec: CloudRunSpec, world: World) -> dict[str, str]:
    """The facts a plan is bound to: when one of them changes, the plan is refused."""
    found = world.found
    live = {
        f"service {spec.name} in {spec.region}": "absent"
        if found is None
        else f"generation {found.generation}",
        "project": world.project,
    }
    if spec.service_account is None:
        live["service account"] = "exists" if world.account_there else "absent"
        live["its right to read"] = "given" if world.may_read else "missing"
    if world.folder is not None:
        live[world.folder.uri] = (
            f"{len(world.folder.sizes)} files, {world.folder.total_gib:.2f} GiB"
        )
    if world.limits is not None:
        limits = world.limits
        live["quota"] = (
            f"{limits.gpus or 0:g} GPU, {limits.cpus or 0:g} vCPU, {limits.memory_gib or 0:g} GiB"
        )
    if world.image is not None:
        live["its folder and image"] = (
            f"{world.image.source.digest}, {'made' if world.image.there else 'to be made'}"
        )
    return live
