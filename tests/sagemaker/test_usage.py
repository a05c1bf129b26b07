"""Who uses an endpoint, and until when it is wanted: AWS ends nothing, so answers say it aloud."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from backends.verbs import usage
from tests.sagemaker.acting import NAME, TARGET, deploy, settled, status, without_cli
from tests.support.clients import Caller
from tests.support.cloud import Cloud


async def test_the_last_invocation_and_the_end_of_its_time_are_told(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_cli(monkeypatch)
    deployed = await deploy(caller, instance_types=["ml.g6.xlarge"], ttl_hours=1)
    assert not deployed.is_error, deployed.text
    assert (await settled(caller))["state"] == "ready"

    (fresh,) = (await caller.tool("list_deployments", target=TARGET)).ok["items"]
    assert "last_request_at" not in fresh
    assert fresh["no_request_for_h"] < 1, "no longer than it exists"
    ends, began = (datetime.fromisoformat(fresh[key]) for key in ("ends_at", "created_at"))
    assert ends - began == timedelta(hours=1)

    await caller.tool("query_model", target=TARGET, name=NAME, prompt="Hello", max_tokens=4)
    (used,) = (await caller.tool("list_deployments", target=TARGET)).ok["items"]
    assert used["last_request_at"] >= fresh["created_at"]
    assert "overdue_h" not in used

    # Its hour is over.
    monkeypatch.setattr(usage, "now", lambda: ends + timedelta(hours=2))
    listed = await caller.tool("list_deployments", target=TARGET)
    assert f"OVERDUE: {TARGET}/{NAME} was wanted until 2.0 h ago" in listed.text
    call = f"destroy(target='{TARGET}', name='{NAME}')"
    assert listed.ok["items"][0]["overdue_h"] == 2
    assert listed.ok["next_steps"] == [call]
    late = await status(caller)
    assert any(warning.startswith("OVERDUE") for warning in late["warnings"])
    assert late["next_steps"][-1] == call


async def test_when_an_endpoint_was_used_is_absent_where_cloudwatch_does_not_say(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_cli(monkeypatch)
    await deploy(caller, instance_types=["ml.g6.xlarge"])
    assert (await settled(caller))["state"] == "ready"
    cloud.fault("aws-denied", action="cloudwatch:*")
    (item,) = (await caller.tool("list_deployments", target=TARGET)).ok["items"]
    assert not {"last_request_at", "no_request_for_h", "ends_at"} & set(item)


async def test_what_we_deploy_takes_tool_calls(
    cloud: Cloud, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    del cloud
    without_cli(monkeypatch)
    await deploy(caller, instance_types=["ml.g6.xlarge"])
    assert (await settled(caller))["state"] == "ready"
    health = (await caller.tool("verify_model_health", target=TARGET, name=NAME, deep=True)).ok
    checks = {check["name"]: check["ok"] for check in health["checks"]}
    assert checks["tool_call"] is True, health
