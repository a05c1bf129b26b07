"""Weights into the bucket: from Hugging Face by Cloud Build, or from a folder of this machine.

What is there already is skipped, so a stopped transfer goes on where it was. Hugging Face is read
inside Google's network: nothing passes through this machine, and its disk is not needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backends.cloudrun.building import build, build_config, config_file, submit_argv
from backends.cloudrun.facts import BucketFolder, bucket_folder
from backends.cloudrun.models import bucket_of
from backends.cloudrun.spec import default_region, folder_of
from backends.cloudrun.tokens import SECRET_NAME
from backends.cloudrun.transfer import EXCLUDE, GIB, Transfer
from backends.clouds.google_facts import disabled_apis, or_problem, refuse_disabled, secret_exists
from backends.core.answers import Staged
from backends.core.errors import CloudError, DevopsError, InvalidInputError, NotFoundError
from backends.core.owned import ended
from backends.core.state import write_json
from backends.knowledge.cloudrun import BUCKET_USD_PER_GIB_MONTH

if TYPE_CHECKING:
    from backends.base import WorkerJob
    from backends.cloudrun.looking import CloudRunLooking

_SKIPPED = (".cache/", ".git/")
_COPY_TIMEOUT_S = 24 * 3600.0
_COUNT_EVERY_S = 5.0


async def look(target: CloudRunLooking, model: str, destination: str | None) -> Transfer:
    """What is there and what is wanted.

    Raises:
        InvalidInputError: Neither a folder with config.json nor a Hugging Face id.
        DevopsError: The bucket or Secret Manager could not be asked.
    """
    cloud = target.cloud
    project = await cloud.project()
    local = await asyncio.to_thread(_local, model)
    name = local.name if local is not None else folder_of(model)
    bucket, folder = await bucket_of(target), name
    if destination:
        text = destination.removeprefix("gs://").strip("/")
        if destination.startswith("gs://"):
            bucket, _, rest = text.partition("/")
            folder = rest or name
        else:
            folder = text
    refuse_disabled(await disabled_apis(cloud, "storage"), project)
    found = await or_problem(bucket_folder(cloud, bucket, folder))
    if isinstance(found, DevopsError) and not isinstance(found, NotFoundError):
        raise found
    secret = False
    if local is None:
        refuse_disabled(await disabled_apis(cloud, "cloudbuild", "secretmanager"), project)
        secret = await secret_exists(cloud, SECRET_NAME)
    return Transfer(
        model=model,
        local=local,
        bucket=bucket,
        folder=folder,
        region=default_region(target.profile, target.services.settings),
        found=None if isinstance(found, DevopsError) else found,
        wanted=await asyncio.to_thread(_sizes, local) if local is not None else {},
        secret=secret,
        project=project,
    )


async def plan_staging(target: CloudRunLooking, model: str, destination: str | None) -> Staged:
    """What is there, what is missing, and the commands that bring it."""
    transfer = await look(target, model, destination)
    missing = transfer.missing
    config = config_file(target, transfer)
    commands = [" ".join(argv) for argv in _commands(transfer, config)] if missing else []
    if commands and transfer.local is None:
        await asyncio.to_thread(write_json, config, build_config(transfer))
    gib = transfer.total_gib
    sizes = transfer.found.sizes if transfer.found is not None else {}
    warnings: list[str] = []
    if transfer.local is None and missing and not transfer.secret:
        warnings.append(
            f"There is no secret {SECRET_NAME}, so Hugging Face is asked without a token: gated "
            f"models are refused. save_hf_token(target={target.target!r}) first."
        )
    if transfer.found is not None and transfer.found.config and not transfer.found.is_gemma4:
        warnings.append(f"What is there is no Gemma 4: {transfer.found.model_type or 'unknown'}.")
    how = "from this machine" if transfer.local is not None else "by Cloud Build"
    return Staged(
        summary=f"{transfer.uri} holds all of {model} already; nothing to do."
        if not missing
        else f"{len(missing)} missing in {transfer.uri}; brought {how}.",
        target=target.target,
        model=model,
        destination=transfer.uri,
        present=sorted(f"{name} ({size / GIB:.3f} GiB)" for name, size in sizes.items())[:50],
        commands=commands,
        usd_per_month=round(gib * BUCKET_USD_PER_GIB_MONTH.value, 2) if gib else None,
        warnings=warnings,
        next_steps=[f"plan_deployment(target={target.target!r}, model={transfer.uri!r})"],
    )


async def stage(
    target: CloudRunLooking, model: str, destination: str | None, job: WorkerJob
) -> dict[str, Any]:
    """Bring what is missing; runs in a worker.

    Raises:
        DevopsError: Refused, failed, or not whole afterwards.
    """
    transfer = await look(target, model, destination)
    if not transfer.missing:
        return {"destination": transfer.uri, "done": "all was there already"}
    if transfer.found is None:
        job.progress(0.0, None, f"making the bucket gs://{transfer.bucket}")
        await target.cloud.gcloud.run(_make_bucket(transfer))
    if transfer.local is not None:
        await _copy(target, transfer, job)
    else:
        await build(target, transfer, job)
    if job.should_stop():
        return {"destination": transfer.uri, "done": "stopped; what was copied stays"}
    after = await look(target, model, destination)
    if after.missing:
        raise CloudError(
            f"{transfer.uri} is not whole: {', '.join(after.missing[:5])} missing or of another "
            "size.",
            cause="The transfer ended early, or the source changed meanwhile.",
            next_action="Call stage_model again: it goes on where this one stopped.",
        )
    found = after.found
    return {
        "destination": transfer.uri,
        "files": len(found.sizes) if found else 0,
        "total_gib": round(found.total_gib, 3) if found else 0.0,
        "model_type": (found.model_type if found else "") or "not said",
        "is_gemma4": bool(found and found.is_gemma4),
    }


def _commands(transfer: Transfer, config: Path) -> list[list[str]]:
    commands = [] if transfer.found is not None else [_make_bucket(transfer)]
    if transfer.local is not None:
        return [*commands, _rsync(transfer)]
    return [*commands, submit_argv(transfer, config)]


def _make_bucket(transfer: Transfer) -> list[str]:
    return [
        *("gcloud", "storage", "buckets", "create", f"gs://{transfer.bucket}"),
        *(f"--project={transfer.project}", f"--location={transfer.region}"),
        *("--uniform-bucket-level-access", "--public-access-prevention", "--quiet"),
    ]


def _rsync(transfer: Transfer) -> list[str]:
    return [
        *("gcloud", "storage", "rsync", str(transfer.local), transfer.uri),
        *("--recursive", f"--exclude={EXCLUDE}", f"--project={transfer.project}", "--quiet"),
    ]


# ------------------------------------------------------------------------------- this machine


async def _copy(target: CloudRunLooking, transfer: Transfer, job: WorkerJob) -> None:
    total = float(sum(transfer.wanted.values()))
    copying = asyncio.create_task(
        target.cloud.gcloud.run(_rsync(transfer), timeout_s=_COPY_TIMEOUT_S)
    )
    counted_at = 0.0
    try:
        while not copying.done():
            if job.should_stop():
                copying.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await copying
                return
            if time.monotonic() - counted_at > _COUNT_EVERY_S:
                counted_at = time.monotonic()
                there = await or_problem(
                    bucket_folder(target.cloud, transfer.bucket, transfer.folder)
                )
                if isinstance(there, BucketFolder):
                    done = float(sum(there.sizes.values()))
                    words = f"{done / GIB:.2f} of {total / GIB:.2f} GiB"
                    job.progress(done, total, words)
            await asyncio.wait([copying], timeout=0.5)
        await copying
    finally:
        await ended([copying])


def _local(model: str) -> Path | None:
    """The folder of this machine that is meant, if one is.

    Raises:
        InvalidInputError: A path without a folder, or a folder that is no checkpoint.
    """
    path = Path(model).expanduser()
    if not path.is_dir():
        looks_like_path = model.startswith(("/", "./", "../", "~"))
        if looks_like_path or model.count("/") != 1:
            raise InvalidInputError(
                "model",
                "is neither a folder here nor a Hugging Face id.",
                allowed="ORGANISATION/NAME, or a folder with config.json",
            )
        return None
    if not (path / "config.json").is_file():
        raise InvalidInputError(
            "model", f"{path} has no config.json.", allowed="a folder that holds a checkpoint"
        )
    return path.resolve()


def _sizes(folder: Path) -> dict[str, int]:
    """Bytes of what would be copied, by path inside the folder."""
    sizes: dict[str, int] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        left_out = name.startswith(_SKIPPED) or name.endswith((".lock", ".incomplete"))
        if path.is_file() and not left_out:
            sizes[name] = path.stat().st_size
    return sizes
