"""Watching a deployment, whatever its target says of its clock."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import ClassVar

from backends.base import Backend
from backends.core.answers import Deployment, Status
from backends.serving.endpoint import Endpoint
from tests.support.clients import make_app


class Told(Backend):
    """A target whose count of seconds begins anew in the middle of a start."""

    target = "told"
    title = "Told"
    hardware = "none"
    look_every_s = 0.001

    says: ClassVar[tuple[tuple[str, float | None], ...]] = (
        ("starting", 5.0),
        ("starting", 9.0),
        ("starting", 2.0),
        ("ready", None),
    )

    looked = 0

    async def deployments(self) -> list[Deployment]:
        return []

    async def endpoint(self, name: str) -> Endpoint:
        raise AssertionError(name)

    async def status(self, name: str, *, detail: bool = False) -> Status:
        state, elapsed_s = self.says[self.looked]
        self.looked += 1
        return Status.model_validate(
            {
                "summary": f"{name} is {state}",
                "target": self.target,
                "name": name,
                "state": state,
                "ready": state == "ready",
                "elapsed_s": elapsed_s,
            }
        )


def test_progress_never_goes_back_though_the_count_begins_anew(tmp_path: Path) -> None:
    told: list[float] = []

    async def progress(done: float, total: float | None, message: str) -> None:
        told.append(done)

    async def watch() -> Status:
        app = make_app(tmp_path)
        status, _ = await Told(app.services).watch("one", 30.0, progress)
        return status

    status = asyncio.run(watch())
    assert status.ready
    assert told == [5.0, 9.0, 9.0, 9.0]
