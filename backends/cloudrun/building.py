"""Weights from Hugging Face by Cloud Build: what it is told, and following it to its end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backends.cloudrun.tokens import SECRET_NAME
from backends.cloudrun.transfer import EXCLUDE, Transfer
from backends.clouds.google_builds import API, UNDER_WAY, follow_build
from backends.core.errors import CloudError, OperationError
from backends.core.state import write_json

if TYPE_CHECKING:
    from backends.base import WorkerJob
    from backends.cloudrun.looking import CloudRunLooking

_BUILD_TIMEOUT_S = 7200
_MIN_BUILD_DISK_GB = 100
_MAX_BUILD_DISK_GB = 2000

# Runs in the build with the model's id and the token in its environment, never in its text. It is
# given to the shell between double quotes, so it has none, and nothing that a shell or Cloud Build
# would take for a variable. Every folder it writes to is looked at first: a build that fills its
# disk has run, and been paid for, for nothing. The caches go to that disk too, for /tmp may be
# memory.
_DOWNLOAD = """
import os, shutil
from huggingface_hub import HfApi, snapshot_download
model, token = os.environ['MODEL'], os.environ.get('HF_TOKEN') or None
files = HfApi(token=token).model_info(model, files_metadata=True).siblings
need = sum(file.size or 0 for file in files)
for path in (os.environ['STAGE'], os.environ['HF_HOME'], os.environ['TMPDIR']):
    os.makedirs(path, exist_ok=True)
    free = shutil.disk_usage(path).free
    wanted = need if path == os.environ['STAGE'] else 10**9
    print(f'{path}: {free / 1e9:.1f} GB free, {wanted / 1e9:.1f} GB needed', flush=True)
    if free < wanted:
        raise SystemExit(f'No space left on device: {path} has {free / 1e9:.1f} GB free, '
                         f'{model} needs {wanted / 1e9:.1f} GB there. Nothing was downloaded.')
snapshot_download(repo_id=model, local_dir=os.environ['STAGE'], token=token)
"""
_STAGE = "/workspace/model"
_SCRIPT = f'pip install -q huggingface_hub && python -c "{_DOWNLOAD}"'


def build_config(transfer: Transfer) -> dict[str, Any]:
    """What Cloud Build is told: download, then copy what is not there yet."""
    download: dict[str, Any] = {
        "id": "download",
        "name": "python:3.11-slim",
        "entrypoint": "bash",
        "env": [
            f"MODEL={transfer.model}",
            f"STAGE={_STAGE}",
            "HF_HOME=/workspace/cache",
            "TMPDIR=/workspace/tmp",
            "HF_HUB_DISABLE_TELEMETRY=1",
        ],
        "args": ["-c", _SCRIPT],
    }
    config: dict[str, Any] = {
        "steps": [
            download,
            {
                "id": "copy",
                "name": "gcr.io/google.com/cloudsdktool/google-cloud-cli:slim",
                "entrypoint": "gcloud",
                "args": [
                    *("storage", "rsync", _STAGE, transfer.uri),
                    *("--recursive", f"--exclude={EXCLUDE}"),
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
    need = int(transfer.total_gib * 2 + 30)
    return min(max(need, _MIN_BUILD_DISK_GB), _MAX_BUILD_DISK_GB)


def submit_argv(transfer: Transfer, config: Path) -> list[str]:
    """The command that starts the build."""
    return [
        *("gcloud", "builds", "submit", "--no-source", f"--config={config}"),
        *(f"--project={transfer.project}", f"--region={transfer.region}"),
        *("--async", "--quiet", "--format=json"),
    ]


def config_file(target: CloudRunLooking, transfer: Transfer) -> Path:
    """Where the build's configuration is written for gcloud."""
    return target.services.state.root / "staging" / f"{transfer.tag}.json"


async def build(target: CloudRunLooking, transfer: Transfer, job: WorkerJob) -> None:
    """Follow the build of this transfer that runs, or start one and follow it."""
    build = await _running_build(target, transfer)
    if build is None:
        if transfer.secret:
            await _let_builder_read(target, transfer)
        config = config_file(target, transfer)
        await asyncio.to_thread(write_json, config, build_config(transfer))
        job.progress(0.0, None, "asking Cloud Build")
        await target.cloud.gcloud.run(submit_argv(transfer, config))
        build = await _running_build(target, transfer, also_done=True)
    if build is None:
        raise CloudError(
            "Cloud Build took the request, but lists no build of it.",
            next_action="Call stage_model again: a build that runs is found and followed.",
        )
    what = f"Cloud Build did not bring {transfer.model} to {transfer.uri}"
    try:
        await follow_build(target.cloud, transfer.region, str(build["id"]), what, job)
    except OperationError:
        return  # cancelled as asked: what was copied stays


async def _running_build(
    target: CloudRunLooking, transfer: Transfer, *, also_done: bool = False
) -> dict[str, Any] | None:
    """The newest build of this transfer, if one runs (or has ended just now)."""
    answer = await target.cloud.rest.get(
        f"{API}/{transfer.project}/locations/{transfer.region}/builds",
        f"The builds in {transfer.region}",
        {"filter": f'tags="{transfer.tag}"', "pageSize": "20"},
    )
    builds = [
        build
        for build in answer.get("builds", [])
        if transfer.tag in build.get("tags", []) and (also_done or build.get("status") in UNDER_WAY)
    ]
    return max(builds, key=lambda build: str(build.get("createTime", "")), default=None)


async def _let_builder_read(target: CloudRunLooking, transfer: Transfer) -> None:
    """Let the account that builds run as read the token."""
    answer = await target.cloud.rest.get(
        f"{API}/{transfer.project}/locations/{transfer.region}/defaultServiceAccount",
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
