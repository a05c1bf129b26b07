"""Plans that end something: destroy with all that was made for it, or stop without deleting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.cloudrun.commands import at
from backends.cloudrun.facts import bucket_folder
from backends.cloudrun.looking import model_of
from backends.cloudrun.services import RunService
from backends.clouds.google_facts import (
    account_email,
    account_is_ours,
    or_problem,
    words_of,
)
from backends.clouds.google_steps import remove_account_steps
from backends.core.answers import Price
from backends.core.errors import ConflictError, DevopsError
from backends.core.plans import Plan, Step
from backends.knowledge.cloudrun import BUCKET_USD_PER_GIB_MONTH

if TYPE_CHECKING:
    from backends.cloudrun.looking import CloudRunLooking


async def plan_destroy(target: CloudRunLooking, name: str) -> Plan:
    """Delete the service, its account's rights, and its account if that was made for it.

    Raises:
        NotFoundError: There is none.
        NotManagedError: It is not ours.
    """
    service = await target.ours(name)
    project = await target.cloud.project()
    region = service.region
    steps = [
        Step(
            title=f"Delete the Cloud Run service {name} with its revisions and who may call it",
            kind="delete",
            argv=(
                *("gcloud", "run", "services", "delete", name, *at(project, region)),
                *("--async", "--quiet"),
            ),
            data={"region": region},
        )
    ]
    account = service.account
    own = account_email(target.target, name, project)
    if account == own and await account_is_ours(target.cloud, account):
        steps += remove_account_steps(
            account, project, buckets=tuple(service.buckets), secrets=tuple(service.secrets)
        )
    keeps = await _keeps(target, service)
    serving = service.serving
    return Plan(
        verb="destroy",
        target=target.target,
        name=name,
        summary=f"delete {target.at(name)} in {region}"
        + (", and the service account that was made for it." if len(steps) > 1 else "."),
        spec={"region": region},
        steps=steps,
        live={
            f"service {name} in {region}": f"generation {service.generation}",
            "serving": serving.revision if serving else "nothing",
        },
        price=Price(usd_per_hour=0, basis="nothing of it runs afterwards"),
        keeps_billing=keeps,
        warnings=["Its URL answers nobody afterwards, and its logs stay for 30 days only."],
    )


async def _keeps(target: CloudRunLooking, service: RunService) -> list[str]:
    keeps: list[str] = []
    for bucket in service.buckets:
        model = model_of(service) or ""
        folder = await or_problem(bucket_folder(target.cloud, bucket, model.rpartition("/")[2]))
        if isinstance(folder, DevopsError):
            keeps.append(f"gs://{bucket} stays with what it holds ({words_of(folder)}).")
            continue
        month = folder.total_gib * BUCKET_USD_PER_GIB_MONTH.value
        keeps.append(
            f"{folder.uri} stays: {folder.total_gib:.2f} GiB, about {month:.2f} USD a month. "
            f"To remove it: gcloud storage rm --recursive {folder.uri}"
        )
    if "docker.pkg.dev/" in service.image:
        keeps.append(f"The image {service.image} stays in Artifact Registry (0.10 USD/GiB/month).")
    keeps += [f"The secret {secret} stays (0.06 USD a month)." for secret in service.secrets]
    return keeps


async def plan_stop(target: CloudRunLooking, name: str) -> Plan:
    """Manual scaling at zero: nothing runs, nothing is deleted, everybody gets 503.

    Raises:
        ConflictError: It is stopped already.
    """
    service = await target.ours(name)
    if service.manual == 0:
        raise ConflictError(
            f"{target.at(name)} is stopped already (manual scaling at 0).",
            next_action=target.call("start_serving", name),
        )
    project = await target.cloud.project()
    back = "auto" if service.manual is None else str(service.manual)
    update = ("gcloud", "beta", "run", "services", "update", name, *at(project, service.region))
    return Plan(
        verb="stop_serving",
        target=target.target,
        name=name,
        summary=f"stop {target.at(name)}: manual scaling at 0, so that it costs nothing and "
        "answers 503 to everybody.",
        steps=[
            Step(
                title="Scale to zero by hand",
                kind="gcloud",
                argv=(*update, "--scaling=0", "--quiet", "--format=json"),
                undo=" ".join((*update, f"--scaling={back}")),
            )
        ],
        live={
            f"service {name} in {service.region}": f"generation {service.generation}",
            "scaling": "automatic" if service.manual is None else f"manual {service.manual}",
        },
        price=Price(usd_per_hour=0, basis="no instance runs"),
        keeps_billing=await _keeps(target, service),
        warnings=[
            "Automatic scaling with min_instances=0 costs nothing either while nobody asks, and "
            "wakes by itself: update_scaling. Stopping is for when nobody shall be able to wake it."
        ],
    )
