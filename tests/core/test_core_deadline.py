"""Parts of a call share its time; a worker's parts have all of theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import copy_context

import pytest

from backends.clouds import process
from backends.clouds.gcloud import Gcloud
from backends.core.deadline import begin_call, left_s
from backends.core.errors import UnavailableError


def test_outside_of_a_call_a_part_has_all_its_time() -> None:
    assert copy_context().run(left_s, 600.0) == 600.0


async def test_parts_of_a_call_have_what_is_left_of_it_in_every_task() -> None:
    begin_call(10.0)
    assert left_s(5.0) == 5.0
    assert 9.0 < (await asyncio.gather(asyncio.to_thread(left_s, 60.0)))[0] <= 10.0
    begin_call(0.0)
    assert left_s(5.0) == 0.0


async def test_gcloud_is_not_started_where_no_time_is_left_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def env() -> Mapping[str, str]:
        return {}

    bounds: list[float] = []

    async def run(argv: object, *, timeout_s: float, **_: object) -> object:
        bounds.append(timeout_s)
        raise UnavailableError("seen")

    monkeypatch.setattr(process, "run", run)
    begin_call(12.0)
    with pytest.raises(UnavailableError, match="seen"):
        await Gcloud(env).run(["gcloud", "info"], timeout_s=20.0)
    assert 11.0 < bounds[0] <= 12.0
    begin_call(1.0)
    with pytest.raises(UnavailableError, match="not started"):
        await Gcloud(env).run(["gcloud", "info"], timeout_s=20.0)
    assert len(bounds) == 1
