"""What tests do to a SageMaker target through a client, in a call; and commands without a CLI.

A call of the real aws CLI takes half a second of CPU. The life of a deployment runs with it; the
many ways of failing are arranged by the same commands, read and sent by AWS's client instead.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pytest

from backends.clouds.aws import Aws
from backends.core.plans import Plan, Step
from backends.sagemaker import running
from backends.sagemaker.backend import SageMakerBackend
from backends.sagemaker.later import run_later
from tests.support.clients import Caller, make_app
from tests.support.cloud import SPEED, Cloud
from tests.support.reply import Reply

TARGET = "sagemaker-l4"
NAME = "gemma4"


async def deploy(caller: Caller, name: str = NAME, **options: Any) -> Reply:
    """Plan and deploy; the reply of whichever refused, or of the deployment."""
    arguments = {"model": options.pop("model")} if "model" in options else {}
    planned = await caller.tool(
        "plan_deployment", target=TARGET, name=name, options=options, **arguments
    )
    if planned.is_error:
        return planned
    return await caller.tool("deploy", target=TARGET, name=name, plan_id=planned.plan_id)


async def destroy(caller: Caller, name: str = NAME, **options: Any) -> Reply:
    """Plan and destroy; the reply of whichever refused, or of the deletion."""
    given = {"options": options} if options else {}
    planned = await caller.tool("destroy", target=TARGET, name=name, **given)
    if planned.is_error:
        return planned
    return await caller.tool("destroy", target=TARGET, name=name, plan_id=planned.plan_id)


async def status(caller: Caller, name: str = NAME) -> dict[str, Any]:
    """The status now."""
    return (await caller.tool("get_status", target=TARGET, name=name)).ok


async def settled(caller: Caller, name: str = NAME) -> dict[str, Any]:
    """The status once it is neither creating nor starting."""
    return (await caller.tool("wait_until_ready", target=TARGET, name=name)).ok


async def until(
    caller: Caller, wanted: str, words: str = "", name: str = NAME, within_s: float = 25
) -> dict[str, Any]:
    """The status once it is in the wanted state and says these words."""
    deadline = time.monotonic() + within_s
    while True:
        found = await status(caller, name)
        if found["state"] == wanted and words in found["summary"]:
            return found
        assert time.monotonic() < deadline, found["summary"]
        await asyncio.sleep(0.4)


async def bucket_folder(
    cloud: Cloud, bucket: str, folder: str, region: str = "us-east-2", *, config: bool = True
) -> None:
    """A checkpoint's folder in a bucket of a region, as somebody put it there."""
    app = make_app(cloud.state_dir, rehearsal=True, targets=(TARGET,))
    aws = cast("SageMakerBackend", app.backends.get(TARGET)).aws
    place = {"LocationConstraint": region}
    await aws.call("s3", "create_bucket", region, Bucket=bucket, CreateBucketConfiguration=place)
    files = {"model.safetensors": b"w" * 4096, "tokenizer.json": b"{}"}
    if config:
        files["config.json"] = json.dumps({"model_type": "gemma4"}).encode()
    for name, data in files.items():
        await aws.call("s3", "put_object", region, Bucket=bucket, Key=f"{folder}/{name}", Body=data)


@contextmanager
def slowly(cloud: Cloud) -> Iterator[None]:
    """Let what is begun meanwhile take seconds, as it takes half a minute at AWS."""
    cloud.control("POST", "/settings", {"speed": 10})
    yield
    cloud.control("POST", "/settings", {"speed": SPEED})


async def finished(caller: Caller, operation_id: str) -> dict[str, Any]:
    """An operation once it is over."""
    answer = (await caller.tool("get_operation", operation_id=operation_id, wait_s=40)).ok
    assert answer["finished"], answer
    return answer


def operation_in(done: Sequence[str]) -> str:
    """The id of the operation that a plan's steps started."""
    line = next(line for line in done if "operation op-" in line)
    return f"op-{line.partition('operation op-')[2].partition(';')[0]}"


def without_cli(monkeypatch: pytest.MonkeyPatch, *but: str) -> list[list[str]]:
    """Let AWS's client send what the CLI would, but for some operations; returns what is sent.

    Args:
        monkeypatch: Undone at the test's end.
        but: Operations that the real CLI still runs, e.g. `create-model`.
    """
    sent: list[list[str]] = []
    real = Aws.run

    async def run(self: Aws, argv: Sequence[Any], **more: Any) -> dict[str, Any]:
        words = [str(word) for word in argv]
        sent.append(words)
        if words[2] in but:
            return await real(self, argv, **more)
        region, params = _params(words[3:])
        return await self.call(words[1], words[2].replace("-", "_"), region, **params)

    monkeypatch.setattr(Aws, "run", run)
    return sent


def _params(words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """A command's flags as the client's parameters."""
    flags: dict[str, Any] = {}
    position = 0
    while position < len(words):
        key, following = words[position], words[position + 1 : position + 2]
        has_value = bool(following) and not following[0].startswith("--")
        flags[key.removeprefix("--")] = following[0] if has_value else True
        position += 2 if has_value else 1
    region = str(flags.pop("region"))
    flags.pop("output")
    return region, {_camel(key): _value(key, value) for key, value in flags.items()}


def _camel(key: str) -> str:
    return "".join(part.capitalize() for part in key.split("-"))


def _value(key: str, value: Any) -> Any:
    if key in {"assume-role-policy-document", "policy-document"} or value is True:
        return value
    if key in {"alarm-names", "alarm-actions"}:
        return [value]
    if key in {
        "min-capacity",
        "max-capacity",
        "period",
        "evaluation-periods",
        "datapoints-to-alarm",
    }:
        return int(value)
    if key == "threshold":
        return float(value)
    return json.loads(value) if value[:1] in "[{" else value


class AtOnce:
    """An operation's worker in this process: nobody stops it, and what it says is kept."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def progress(self, done: float, total: float | None, message: str) -> None:
        """Keep what it says."""
        del done, total
        self.said.append(message)

    def should_stop(self) -> bool:
        """Never."""
        return False


def operations_at_once(monkeypatch: pytest.MonkeyPatch) -> AtOnce:
    """Have operations done within the call that starts them, by AWS's client.

    A worker of its own costs seconds of CPU, and runs the real CLI.
    """
    job = AtOnce()

    async def run(target: SageMakerBackend, plan: Plan, step: Step) -> str:
        later = [item.model_dump(mode="json") for item in plan.steps if item.kind == "later"]
        params = {"region": step.data["region"], "steps": later}
        result = await run_later(target, str(step.data["operation"]), plan.name, params, job)
        return f"{step.title}: {result}"

    monkeypatch.setattr(running, "_start_operation", run)
    return job
