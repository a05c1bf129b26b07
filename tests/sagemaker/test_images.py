"""The newest pinned image, and the machine image its CUDA needs."""

from __future__ import annotations

import pytest

from backends.knowledge.sagemaker import ami_for, image_tag, newest_image, registry

NEWEST = "0.30.0-gpu-py312-cu130-ubuntu24.04-sagemaker-v1.1"
# As a registry lists them: by push date, in which a rebuilt old line comes first.
TAGS = (
    "0.29.0-gpu-py312-cu130-ubuntu24.04-sagemaker-v1.4",
    NEWEST,
    "0.30-gpu-py312",
    "0.30.0-gpu-py312-cu130-ubuntu24.04-sagemaker-v1.1-soci",
    "omni-0.31.0-gpu-py312-cu130-ubuntu24.04-sagemaker-v1.0",
    "server-sagemaker-cuda-v1",
    "0.30.0-gpu-py312-cu130-ubuntu24.04-ec2-v1.9",
    "0.9.2-gpu-py312-cu128-ubuntu22.04-sagemaker-v1.12",
)


def test_the_newest_image_is_that_of_the_highest_version_not_of_the_last_push() -> None:
    found = newest_image(TAGS)
    assert found is not None
    assert found.tag == NEWEST
    assert found.version == "0.30.0"


def test_builds_of_one_version_are_ordered_as_numbers() -> None:
    first, tenth = (f"0.30.0-gpu-py312-cu130-ubuntu24.04-sagemaker-v1.{n}" for n in (9, 10))
    found = newest_image([tenth, first])
    assert found is not None
    assert found.tag == tenth


@pytest.mark.parametrize("tag", TAGS[2:7])
def test_floating_and_foreign_tags_are_left_out(tag: str) -> None:
    assert image_tag(tag) is None


def test_no_pinned_tag_is_no_image() -> None:
    assert newest_image(["latest", "0.30-gpu-py312"]) is None


@pytest.mark.parametrize(
    ("cuda", "driver"), [((13, 0), 580), ((12, 9), 550), ((12, 8), 550), ((14, 0), 580)]
)
def test_the_machine_image_has_a_driver_for_the_cuda(cuda: tuple[int, int], driver: int) -> None:
    assert ami_for(cuda).driver == driver


def test_the_registry_is_that_of_the_region() -> None:
    assert registry("us-east-2") == "763104351884.dkr.ecr.us-east-2.amazonaws.com/vllm"
