"""ECR: the registry of AWS's own vLLM images, with all the tags that mislead."""

from __future__ import annotations

import hashlib
import time

from backends.rehearsal.cloud.aws.account import ACCOUNT_ID
from backends.rehearsal.cloud.aws.catalogue import IMAGE_ACCOUNT, IMAGE_PUSHES, IMAGE_REPOSITORY
from backends.rehearsal.cloud.aws.wire import AwsError, Call, Service, page
from backends.rehearsal.cloud.web import Json

_DAY_S = 86_400.0
_PAGE = 6
"""Items on a page; the real service gives 100, of which nobody wants so many here."""


def service() -> Service:
    """The service's handlers."""
    return Service("ecr", "json", "ecr").on(DescribeImages=_describe, ListImages=_list)


def _pushed(call: Call) -> list[Json]:
    registry = call.text("registryId") or ACCOUNT_ID
    name = call.text("repositoryName")
    if registry != IMAGE_ACCOUNT or name != IMAGE_REPOSITORY:
        raise AwsError(
            "RepositoryNotFoundException",
            f"The repository with name '{name}' does not exist in the registry with id "
            f"'{registry}'",
        )
    # The registry does not list in any order that means something.
    pushes = [IMAGE_PUSHES[index] for index in _shuffled(len(IMAGE_PUSHES))]
    return [
        {
            "registryId": registry,
            "repositoryName": name,
            "imageDigest": f"sha256:{hashlib.sha256(repr((days, tags)).encode()).hexdigest()}",
            "imageSizeInBytes": 9_700_000_000,
            "imagePushedAt": round(time.time() - days * _DAY_S, 3),
            "imageManifestMediaType": "application/vnd.docker.distribution.manifest.v2+json",
            **({"imageTags": list(tags)} if tags else {}),
        }
        for days, tags in pushes
    ]


def _shuffled(count: int) -> list[int]:
    return sorted(range(count), key=lambda index: (index * 7) % count)


def _describe(call: Call) -> Json:
    found = _pushed(call)
    wanted = call.params.get("imageIds") or []
    status = (call.params.get("filter") or {}).get("tagStatus", "ANY")
    if status != "ANY":
        found = [item for item in found if ("imageTags" in item) is (status == "TAGGED")]
    for item in wanted:
        tag, digest = item.get("imageTag"), item.get("imageDigest")
        if not any(
            tag in image.get("imageTags", ()) or digest == image["imageDigest"] for image in found
        ):
            raise AwsError(
                "ImageNotFoundException",
                f"The image with imageId {{imageDigest:'{digest or 'null'}', "
                f"imageTag:'{tag or 'null'}'}} does not exist within the repository with name "
                f"'{IMAGE_REPOSITORY}' in the registry with id '{IMAGE_ACCOUNT}'",
            )
    if wanted:
        tags = {item.get("imageTag") for item in wanted}
        digests = {item.get("imageDigest") for item in wanted}
        found = [
            image
            for image in found
            if image["imageDigest"] in digests or tags & set(image.get("imageTags", ()))
        ]
        return {"imageDetails": found}
    return page(call, found, "imageDetails", _PAGE, next_name="nextToken")


def _list(call: Call) -> Json:
    found = [
        {"imageDigest": item["imageDigest"], **({"imageTag": tag} if tag else {})}
        for item in _pushed(call)
        for tag in item.get("imageTags") or [""]
    ]
    return page(call, found, "imageIds", _PAGE, next_name="nextToken")
