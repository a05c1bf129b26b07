"""Weights into the bucket: from Hugging Face by Cloud Build, or from a folder of this machine.

What is there already is skipped, so a stopped transfer goes on where it was. Hugging Face is read
inside Google's network: nothing passes through this machine, and its disk is not needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backends.cloudrun.facts import (
    BucketFolder,
    bucket_folder,
    disabled_apis,
    refuse_disabled,
    secret_exists,
)
from backends.cloudrun.models import bucket_of
from backends.cloudrun.quotas import or_problem
from backends.cloudrun.spec import default_region, folder_of
from backends.cloudrun.tokens import SECRET_NAME
from backends.core.answers import Staged
from backends.core.errors import CloudError, DevopsError, InvalidInputError, NotFoundError
from backends.core.state import write_json
from backends.knowledge.checkpoints import find_checkpoint
from backends.knowledge.cloudrun import BUCKET_USD_PER_GIB_MONTH

if TYPE_CHECKING:
    from backends.base import WorkerJob
    from backends.cloudrun.looking import CloudRunLooking

GIB = 2**30
# A list of patterns. None begins with ^: gcloud takes `^...^` for a delimiter of the list.
_EXCLUDE = r"\.cache/.*,\.git/.*,.*\.lock$,.*\.incomplete$"
_SKIPPED = (".cache/", ".git/")
_BUILD_TIMEOUT_S = 7200
_BUILD_POLL_S = 3.0
_COPY_TIMEOUT_S = 24 * 3600.0
_COUNT_EVERY_S = 5.0
_MIN_BUILD_DISK_GB = 100
_MAX_BUILD_DISK_GB = 2000
_BUILDS = "https://cloudbuild.googleapis.com/v1/projects"

# Runs in the build with the model's id and the token in its environment, never in its text.
_DOWNLOAD = (
    "import os; from huggingface_hub import snapshot_download; "
    "snapshot_download(repo_id=os.environ['MODEL'], local_dir='/workspace/model', "
    "token=os.environ.get('HF_TOKEN') or None)"
)


@dataclass(frozen=True)
class Transfer:
    """What is to be brought where.

    Attributes:
        model: What was asked for.
        local: Its folder on this machine; None for Hugging Face.
        bucket: Where to.
        folder: Where to in the bucket.
        region: Where a bucket and a build are made.
        found: What is there; None where there is no bucket.
        wanted: Bytes by file, where that is known: of a local folder.
        secret: Whether the token is in Secret Manager.
        project: The project.
    """

    model: str
    local: Path | None
    bucket: str
    folder: str
    region: str
    found: BucketFolder | None
    wanted: Mapping[str, int]
    secret: bool
    project: str

    @property
    def uri(self) -> str:
        """`gs://bucket/folder`."""
        return f"gs://{self.bucket}/{self.folder}"

    @property
    def tag(self) -> str:
        """By which a build of exactly this transfer is found again."""
        return f"vllm-stage-{hashlib.sha256(f'{self.model} {self.uri}'.encode()).hexdigest()[:12]}"

    @property
    def missing(self) -> list[str]:
        """Files that are not there in their size; of Hugging Face only whether all is there."""
        sizes = self.found.sizes if self.found is not None else {}
        if self.local is not None:
            return [name for name, size in self.wanted.items() if sizes.get(name) != size]
        return [] if self.found is not None and whole(self.found) else ["the checkpoint"]


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
    config = _config_file(target, transfer)
    commands = [" ".join(argv) for argv in _commands(transfer, config)] if missing else []
    if commands and transfer.local is None:
        await asyncio.to_thread(write_json, config, build_config(transfer))
    gib = _total_gib(transfer)
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
        await _build(target, transfer, job)
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


def whole(folder: BucketFolder) -> bool:
    """Whether a folder holds all of a checkpoint: config, tokenizer, weights, each shard named.

    A single file is whole by its name; shards carry `-00001-of-00004` in theirs.
    """
    names = folder.sizes
    weights = [name for name, size in names.items() if name.endswith(".safetensors") and size > 0]
    if not folder.has_weights or not weights:
        return False
    for name in weights:
        head, found, tail = name.removesuffix(".safetensors").rpartition("-of-")
        if found and tail.isdecimal():
            stem = head.rpartition("-")[0]
            count = sum(1 for other in weights if other.startswith(f"{stem}-"))
            if count < int(tail):
                return False
    return True


def build_config(transfer: Transfer) -> dict[str, Any]:
    """What Cloud Build is told: download, then copy what is not there yet."""
    download: dict[str, Any] = {
        "id": "download",
        "name": "python:3.11-slim",
        "entrypoint": "bash",
        "env": [f"MODEL={transfer.model}", "HF_HUB_DISABLE_TELEMETRY=1"],
        "args": ["-c", f'pip install -q huggingface_hub && python -c "{_DOWNLOAD}"'],
    }
    config: dict[str, Any] = {
        "steps": [
            download,
            {
                "id": "copy",
                "name": "gcr.io/google.com/cloudsdktool/google-cloud-cli:slim",
                "entrypoint": "gcloud",
                "args": [
                    *("storage", "rsync", "/workspace/model", transfer.uri),
                    *("--recursive", f"--exclude={_EXCLUDE}"),
                ],
            },
        ],
        "timeout": f"{_BUILD_TIMEOUT_S}s",
        "tags": ["vllm-devops", transfer.tag],
        "options": {
            "machineType": "E2_HIGHCPU_8",
            "diskSizeGb": _build_disk_gb(transfer),
            "logging": "CLOUD_LOGGING_ONLY",
        },
    }
    if transfer.secret:
        download["secretEnv"] = ["HF_TOKEN"]
        version = f"projects/{transfer.project}/secrets/{SECRET_NAME}/versions/latest"
        config["availableSecrets"] = {
            "secretManager": [{"versionName": version, "env": "HF_TOKEN"}]
        }
    return config


def _build_disk_gb(transfer: Transfer) -> int:
    """Twice the checkpoint and room to work in: the build's disk holds all of it at once."""
    need = int(_total_gib(transfer) * 2 + 30)
    return min(max(need, _MIN_BUILD_DISK_GB), _MAX_BUILD_DISK_GB)


def _commands(transfer: Transfer, config: Path) -> list[list[str]]:
    commands = [] if transfer.found is not None else [_make_bucket(transfer)]
    if transfer.local is not None:
        return [*commands, _rsync(transfer)]
    return [*commands, _submit(transfer, config)]


def _make_bucket(transfer: Transfer) -> list[str]:
    return [
        *("gcloud", "storage", "buckets", "create", f"gs://{transfer.bucket}"),
        *(f"--project={transfer.project}", f"--location={transfer.region}"),
        *("--uniform-bucket-level-access", "--public-access-prevention", "--quiet"),
    ]


def _rsync(transfer: Transfer) -> list[str]:
    return [
        *("gcloud", "storage", "rsync", str(transfer.local), transfer.uri),
        *("--recursive", f"--exclude={_EXCLUDE}", f"--project={transfer.project}", "--quiet"),
    ]


def _submit(transfer: Transfer, config: Path) -> list[str]:
    return [
        *("gcloud", "builds", "submit", "--no-source", f"--config={config}"),
        *(f"--project={transfer.project}", f"--region={transfer.region}"),
        *("--async", "--quiet", "--format=json"),
    ]


def _config_file(target: CloudRunLooking, transfer: Transfer) -> Path:
    return target.services.state.root / "staging" / f"{transfer.tag}.json"


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
        copying.cancel()


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


def _total_gib(transfer: Transfer) -> float:
    if transfer.wanted:
        return sum(transfer.wanted.values()) / GIB
    if transfer.found is not None and not transfer.missing:
        return transfer.found.total_gib
    try:
        return find_checkpoint(transfer.model).disk_gb.value * 1e9 / GIB
    except NotFoundError:
        return 0.0


# -------------------------------------------------------------------------------- Cloud Build


async def _build(target: CloudRunLooking, transfer: Transfer, job: WorkerJob) -> None:
    """Follow the build of this transfer that runs, or start one and follow it."""
    build = await _running_build(target, transfer)
    if build is None:
        if transfer.secret:
            await _let_builder_read(target, transfer)
        config = _config_file(target, transfer)
        await asyncio.to_thread(write_json, config, build_config(transfer))
        job.progress(0.0, None, "asking Cloud Build")
        await target.cloud.gcloud.run(_submit(transfer, config))
        build = await _running_build(target, transfer, also_done=True)
    if build is None:
        raise CloudError(
            "Cloud Build took the request, but lists no build of it.",
            next_action="Call stage_model again: a build that runs is found and followed.",
        )
    number = str(build["id"])
    began = time.time()
    while True:
        build = await target.cloud.rest.get(
            f"{_BUILDS}/{transfer.project}/locations/{transfer.region}/builds/{number}",
            f"The build {number}",
        )
        state = str(build.get("status", ""))
        if state == "SUCCESS":
            return
        if state not in {"PENDING", "QUEUED", "WORKING"}:
            raise _build_error(build, transfer)
        if job.should_stop():
            await target.cloud.gcloud.run(
                [
                    *("gcloud", "builds", "cancel", number, f"--project={transfer.project}"),
                    *(f"--region={transfer.region}", "--quiet", "--format=json"),
                ]
            )
            return
        elapsed = time.time() - began
        job.progress(elapsed, None, f"build {number} is {state.lower()}, {elapsed:.0f} s")
        await asyncio.sleep(_BUILD_POLL_S)


async def _running_build(
    target: CloudRunLooking, transfer: Transfer, *, also_done: bool = False
) -> dict[str, Any] | None:
    """The newest build of this transfer, if one runs (or has ended just now)."""
    answer = await target.cloud.rest.get(
        f"{_BUILDS}/{transfer.project}/locations/{transfer.region}/builds",
        f"The builds in {transfer.region}",
        {"filter": f'tags="{transfer.tag}"', "pageSize": "20"},
    )
    builds = [
        build
        for build in answer.get("builds", [])
        if transfer.tag in build.get("tags", [])
        and (also_done or build.get("status") in {"PENDING", "QUEUED", "WORKING"})
    ]
    return max(builds, key=lambda build: str(build.get("createTime", "")), default=None)


async def _let_builder_read(target: CloudRunLooking, transfer: Transfer) -> None:
    """Let the account that builds run as read the token."""
    answer = await target.cloud.rest.get(
        f"{_BUILDS}/{transfer.project}/locations/{transfer.region}/defaultServiceAccount",
        "The account that builds run as",
    )
    email = str(answer.get("serviceAccountEmail", "")).rpartition("/")[2]
    if not email:
        return
    await target.cloud.gcloud.change_policy(
        [
            *("gcloud", "secrets", "add-iam-policy-binding", SECRET_NAME),
            *(f"--project={transfer.project}", f"--member=serviceAccount:{email}"),
            *("--role=roles/secretmanager.secretAccessor", "--condition=None"),
            *("--quiet", "--format=json"),
        ]
    )


def _build_error(build: Mapping[str, Any], transfer: Transfer) -> CloudError:
    failure = build.get("failureInfo") or {}
    words = str(failure.get("detail") or build.get("statusDetail") or build.get("status"))
    cause = "The download or the copy failed; the build's log says which."
    if "401" in words or "gated" in words.lower() or not transfer.secret:
        cause = "Hugging Face wants a token of somebody who has accepted the model's licence."
    return CloudError(
        f"Cloud Build did not bring {transfer.model} to {transfer.uri}: {build.get('status')}.",
        words=json.dumps(words)[1:-1],
        cause=cause,
        next_action=f"Its log: {build.get('logUrl', 'gcloud builds log')}. stage_model again goes "
        "on with what is missing.",
    )
