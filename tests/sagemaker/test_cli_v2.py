"""The same commands with version 2 of the aws CLI: TESTS_AWS_V2=/path/to/aws, or `aws` on PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.sagemaker.acting import (
    NAME,
    TARGET,
    deploy,
    destroy,
    finished,
    operation_in,
    settled,
    until,
)
from tests.support.clients import Caller
from tests.support.cloud import Cloud


def _version_2() -> Path | None:
    """Where a version 2 is, if there is one."""
    named = os.environ.get("TESTS_AWS_V2") or shutil.which("aws")
    if named is None:
        return None
    said = subprocess.run(
        [named, "--version"], capture_output=True, text=True, timeout=30, check=False
    ).stdout
    return Path(named) if said.startswith("aws-cli/2.") else None


@pytest.fixture
def program(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Version 2, which is then the first on PATH."""
    del cloud
    found = _version_2()
    if found is None:
        pytest.skip("no version 2 of the aws CLI here; TESTS_AWS_V2 names one (version 1 is run)")
    monkeypatch.setenv("PATH", f"{found.parent}:{os.environ['PATH']}")
    return found


async def test_a_life_by_version_2(cloud: Cloud, caller: Caller, program: Path) -> None:
    done = await deploy(caller, instance_types=["ml.g6.xlarge"])
    assert len(done.ok["done"]) == 5
    again = await deploy(caller, instance_types=["ml.g6.2xlarge"])
    assert again.error["code"] == "conflict"
    assert (await settled(caller))["state"] == "ready"
    more = (await caller.tool("update_scaling", target=TARGET, name=NAME, max_instances=2)).ok
    assert "1 to 2 instances" in more["summary"]
    doctor = (await caller.tool("get_help", topic="doctor", target=TARGET)).ok["doctor"]
    assert any(check["detail"].startswith(f"{program} 2.") for check in doctor)
    gone = await destroy(caller, role=True)
    assert not gone.is_error, gone.text
    assert f"vllm-devops-{NAME}" not in str(cloud.world())
    # A refusal in version 2's own dress is understood as version 1's is.
    cloud.fault("aws-quota-none")
    refused = await deploy(caller, instance_types=["ml.g6.xlarge"], ignore_quota=True)
    assert refused.error["failure"] == "quota"
    assert "account-level service limit" in refused.error["words"]


@pytest.mark.usefixtures("program")
async def test_what_scales_to_zero_by_version_2(caller: Caller) -> None:
    done = await deploy(caller, scale_to_zero=True, instance_types=["ml.g6.xlarge"])
    made = await finished(caller, operation_in(done.ok["done"]))
    assert len(made["result"]["done"]) == 5, made
    assert (await settled(caller))["state"] == "ready"
    zero = await caller.tool("update_scaling", target=TARGET, name=NAME, instances=0)
    assert zero.ok["usd_per_hour"] == 0
    await until(caller, "scaled_to_zero")
    left = await destroy(caller, role=True)
    gone = await finished(caller, operation_in(left.ok["done"]))
    assert gone["state"] == "succeeded", gone
    assert (await caller.tool("list_deployments")).ok["items"] == []
