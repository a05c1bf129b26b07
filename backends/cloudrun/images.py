"""An image of one's own: the folder it is made from, what is there already, the steps that make it.

The tag is made of the folder's contents, so the same folder is built once, and a plan whose folder
has changed since is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from backends.cloudrun.commands import at
from backends.clouds.google_builds import API, UNDER_WAY, follow_build
from backends.core.errors import CloudError, InvalidInputError, NotFoundError, OperationError
from backends.core.names import MANAGED_BY, MANAGED_BY_US
from backends.core.plans import Step

if TYPE_CHECKING:
    from backends.base import WorkerJob
    from backends.cloudrun.looking import CloudRunLooking
    from backends.clouds.google import GoogleCloud

REPOSITORY = "vllm-devops"

# The whole folder is sent to Google with each build; more is a checkpoint that strayed into it.
_MAX_SOURCE_BYTES = 500 * 1024 * 1024
_SKIPPED = frozenset({".git", "__pycache__"})
_BUILD_TIMEOUT = "3600s"
# vLLM's image takes about 10 GB packed and 30 GB unpacked; Cloud Build's own disk has 100.
_BUILD_DISK_GB = 200
_SUBMIT_TIMEOUT_S = 3900.0
_LOOK_EVERY_S = 2.0
_REGISTRY = "https://artifactregistry.googleapis.com/v1/projects"


@dataclass(frozen=True)
class Source:
    """A folder that an image is made from.

    Attributes:
        folder: Where it is.
        digest: Of all its files' names and contents, 12 characters.
        files: How many they are.
        total_bytes: Their size.
    """

    folder: Path
    digest: str
    files: int
    total_bytes: int


@dataclass(frozen=True)
class ImageWorld:
    """What there is of an image that is to be made.

    Attributes:
        image: Its whole name.
        source: What it is made from.
        repository: Whether its repository is there.
        there: Whether the image is there already, made from exactly that folder.
    """

    image: str
    source: Source
    repository: bool
    there: bool


def read_source(folder: str) -> Source:
    """Look at a folder. Blocks.

    Raises:
        InvalidInputError: It is no folder with a Dockerfile, or too large to be one.
    """
    path = Path(folder).expanduser()
    if not path.is_absolute():
        raise InvalidInputError("options.build", "must be an absolute path.")
    if not (path / "Dockerfile").is_file():
        raise InvalidInputError("options.build", "is no folder with a Dockerfile at its top.")
    digest = hashlib.sha256()
    files = total = 0
    for file in sorted(path.rglob("*")):
        inside = file.relative_to(path)
        if not file.is_file() or not _SKIPPED.isdisjoint(inside.parts):
            continue
        size = file.stat().st_size
        files, total = files + 1, total + size
        if total > _MAX_SOURCE_BYTES:
            raise InvalidInputError(
                "options.build",
                f"holds more than {_MAX_SOURCE_BYTES // 1024**2} MiB, which would be sent to "
                "Google with each build.",
                allowed="a folder without weights; those belong into the bucket (stage_model)",
            )
        digest.update(json.dumps([inside.as_posix(), size]).encode())
        digest.update(file.read_bytes())
    return Source(path.resolve(), digest.hexdigest()[:12], files, total)


def image_name(project: str, region: str, name: str, source: Source) -> str:
    """The whole name of the image of a deployment, with a tag for what it is made from."""
    return f"{region}-docker.pkg.dev/{project}/{REPOSITORY}/{name}:src-{source.digest}"


async def look_at_image(cloud: GoogleCloud, region: str, image: str, source: Source) -> ImageWorld:
    """What is there of it.

    Raises:
        DevopsError: Artifact Registry could not be asked.
    """
    project = await cloud.project()
    repository = f"{_REGISTRY}/{project}/locations/{region}/repositories/{REPOSITORY}"
    package, _, tag = image.rpartition("/")[2].partition(":")
    try:
        await cloud.rest.get(repository, f"The repository {REPOSITORY} in {region}")
    except NotFoundError:
        return ImageWorld(image, source, repository=False, there=False)
    try:
        await cloud.rest.get(f"{repository}/packages/{package}/tags/{tag}", f"The image {image}")
    except NotFoundError:
        return ImageWorld(image, source, repository=True, there=False)
    return ImageWorld(image, source, repository=True, there=True)


def image_steps(world: ImageWorld, project: str, region: str) -> list[Step]:
    """What makes the image: the repository where there is none, then the build."""
    steps: list[Step] = []
    words = ("gcloud", "artifacts", "repositories")
    where = (f"--project={project}", f"--location={region}")
    if not world.repository:
        steps.append(
            Step(
                title=f"Make the repository {REPOSITORY} for images in {region}",
                kind="gcloud",
                argv=(
                    *(*words, "create", REPOSITORY, "--repository-format=docker", *where),
                    *(f"--labels={MANAGED_BY}={MANAGED_BY_US}", "--quiet", "--format=json"),
                ),
                data={"exists_ok": True},
                creates=(f"Artifact Registry repository {REPOSITORY} in {region}",),
                undo=" ".join((*words, "delete", REPOSITORY, *where, "--quiet")),
            )
        )
    if not world.there:
        size = world.source.total_bytes / 1e6
        steps.append(
            Step(
                title=f"Make the image from {world.source.folder} by Cloud Build",
                kind="build",
                background=True,
                argv=(
                    *("gcloud", "builds", "submit", str(world.source.folder)),
                    *(f"--tag={world.image}", *at(project, region)),
                    *("--machine-type=e2-highcpu-8", f"--disk-size={_BUILD_DISK_GB}"),
                    *(f"--timeout={_BUILD_TIMEOUT}", "--suppress-logs", "--quiet", "--format=json"),
                ),
                data={
                    "image": world.image,
                    "region": region,
                    "source": f"{world.source.files} files, {size:.3g} MB",
                },
                creates=(f"image {world.image}", "the source, kept by gcloud in a bucket"),
                undo=f"gcloud artifacts docker images delete {world.image} --quiet",
            )
        )
    return steps


async def build_image(target: CloudRunLooking, step: Step, job: WorkerJob) -> str:
    """Start the build of a step, or take up one that runs, and follow it to its end.

    gcloud itself waits for the build, as it does for whoever runs the step by hand; what is said of
    it comes from Cloud Build.

    Raises:
        CloudError: It failed; the words are the end of its log.
        OperationError: It was cancelled as asked.
    """
    cloud = target.cloud
    image, region = str(step.data["image"]), str(step.data["region"])
    builds = await _builds_of(cloud, region, image)
    number = next((key for key, status in builds.items() if status in UNDER_WAY), None)
    what = f"Cloud Build did not make {image}"
    if number is not None:
        await follow_build(cloud, region, number, what, job)
        return f"Cloud Build made {image} (build {number}, which ran already)"
    submitting = asyncio.create_task(cloud.gcloud.run(step.argv, timeout_s=_SUBMIT_TIMEOUT_S))
    try:
        while number is None and not submitting.done():
            if job.should_stop():
                raise OperationError("It was cancelled while the folder was sent.")
            job.progress(0.0, None, "sending the folder to Cloud Build")
            await asyncio.wait([submitting], timeout=_LOOK_EVERY_S)
            now = await _builds_of(cloud, region, image)
            number = next((key for key in now if key not in builds), None)
        if number is None:
            await submitting  # it was refused before there was a build, and says why
            raise CloudError(
                "Cloud Build was asked, but lists no build of the image.",
                next_action="Deploy again: a build that runs is found and followed.",
            )
        await follow_build(cloud, region, number, what, job)
    finally:
        submitting.cancel()
        # What gcloud says of a build that failed is less than its log does.
        await asyncio.gather(submitting, return_exceptions=True)
    return f"Cloud Build made {image} (build {number})"


async def _builds_of(cloud: GoogleCloud, region: str, image: str) -> dict[str, str]:
    """The state of each build of an image by its id, the newest first."""
    project = await cloud.project()
    answer = await cloud.rest.get(
        f"{API}/{project}/locations/{region}/builds",
        f"The builds in {region}",
        {"pageSize": "50"},
    )
    found = [item for item in answer.get("builds", []) if image in (item.get("images") or [])]
    found.sort(key=lambda build: str(build.get("createTime", "")), reverse=True)
    return {str(build["id"]): str(build.get("status", "")) for build in found}
