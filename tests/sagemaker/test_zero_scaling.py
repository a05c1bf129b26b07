"""Which commands set the copies of what scales to zero, and what ends it; nobody is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from backends.base import Scaling
from backends.core.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    NotManagedError,
)
from backends.sagemaker import component_ending, component_scaling
from backends.sagemaker.component_deploying import check_kind
from backends.sagemaker.component_later import put_on
from backends.sagemaker.component_steps import create_steps
from backends.sagemaker.components import Bounds, Component, component_of
from backends.sagemaker.endpoints import Deployed
from tests.sagemaker.acting import AtOnce
from tests.sagemaker.made import NAME, OURS, deployed, hosting, place, request, world

BY_HAND = Bounds()
ON, OFF = "register-scalable-target", "deregister-scalable-target"
LOAD = "put-scaling-policy"
ALARM, NO_ALARM = "put-metric-alarm", "delete-alarms"
COPIES = "update-inference-component-runtime-config"


def commands(scaling: Scaling, **changes: Any) -> list[str]:
    found = hosting(**changes)
    assert found.component is not None
    return [step.argv[2] for step in component_scaling._steps(found, found.component, scaling)]


@pytest.mark.parametrize(
    ("scaling", "changes", "expected"),
    [
        (Scaling(instances=0), {}, [COPIES]),
        (Scaling(instances=0), {"copies": 0, "desired": 0}, []),
        # A request could not wake what may not have none.
        (Scaling(instances=0), {"bounds": Bounds(1, 2)}, [ON, LOAD, LOAD, ALARM, COPIES]),
        (Scaling(instances=2), {}, [OFF, NO_ALARM, COPIES]),
        (Scaling(instances=1), {}, [OFF, NO_ALARM]),
        (Scaling(instances=1), {"bounds": BY_HAND}, []),
        (Scaling(min_instances=0), {"bounds": BY_HAND}, [ON, LOAD, LOAD, ALARM]),
        (Scaling(automatic=True), {"bounds": BY_HAND}, [ON, LOAD, LOAD, ALARM]),
        (Scaling(min_instances=0), {}, []),
        (Scaling(max_instances=1), {}, [ON, LOAD, LOAD, ALARM]),
        (Scaling(min_instances=1), {}, [ON, LOAD]),
        (Scaling(min_instances=1), {"copies": 0, "desired": 0}, [COPIES, ON, LOAD]),
    ],
)
def test_the_commands_are_those_that_are_needed_and_no_other(
    scaling: Scaling, changes: dict[str, Any], expected: list[str]
) -> None:
    assert commands(scaling, **changes) == expected


@pytest.mark.parametrize(
    "scaling", [Scaling(instances=3), Scaling(max_instances=3), Scaling(min_instances=2)]
)
def test_more_than_its_instances_have_room_for_is_refused(scaling: Scaling) -> None:
    changes = {"bounds": Bounds(0, 1)} if scaling.min_instances else {}
    with pytest.raises(InvalidInputError):
        commands(scaling, **changes)


def test_copies_that_take_fewer_gpus_share_an_instance() -> None:
    four = hosting(accelerators=1)
    assert four.config is not None
    variant = replace(four.config.variants[0], types=("ml.g6.12xlarge",))
    big = replace(four, config=replace(four.config, variants=(variant,)))
    assert component_scaling.most_copies(big) == 8
    assert component_scaling.most_copies(hosting()) == 2


def test_what_the_api_leaves_out_has_sagemakers_own_values() -> None:
    bare = {
        "InferenceComponentName": NAME,
        "InferenceComponentArn": "arn",
        "EndpointName": NAME,
        "InferenceComponentStatus": "Creating",
    }
    found = component_of(bare, BY_HAND)
    assert (found.copies, found.desired, found.startup_timeout_s) == (0, 0, 600)


def test_one_kind_of_endpoint_is_not_made_of_the_other() -> None:
    target = cast("Any", FakeTarget(FakeApi(None)))
    zero, plain = request(scale_to_zero=True), request()
    with pytest.raises(ConflictError, match="cannot be turned into one that scales to zero") as one:
        check_kind(target, zero, deployed())
    assert "destroy(" in one.value.next_action
    with pytest.raises(ConflictError, match="would have to be another endpoint"):
        check_kind(target, plain, hosting())
    for spec, found in ((zero, hosting()), (plain, deployed()), (zero, None)):
        check_kind(target, spec, found)


# ------------------------------------------------------------------------------- ending it


@dataclass
class FakeApi:
    """SageMaker's answers about what an endpoint hosts."""

    own: Component | None
    hosted: Mapping[str, Mapping[str, str]] | None = None
    tags: Mapping[str, str] = field(default_factory=lambda: OURS)

    async def components_on(self, region: str, name: str) -> dict[str, Mapping[str, str]]:
        del region
        if self.hosted is None:
            raise NotFoundError(f"There is no endpoint {name}.")
        return dict(self.hosted)

    async def component_or_none(self, region: str, name: str) -> Component | None:
        del region, name
        return self.own

    async def component_tags(self, region: str, component: Component) -> Mapping[str, str]:
        del region, component
        return self.tags


class FakeAws:
    """CloudWatch, with no alarm."""

    async def call(self, *_: str, **__: Any) -> dict[str, Any]:
        return {"MetricAlarms": []}


class FakeTarget:
    """As much of the target as an end needs."""

    target = "sagemaker-l4"

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.aws = FakeAws()

    def at(self, name: str) -> str:
        return f"{self.target}/{name}"

    def call(self, tool: str, name: str) -> str:
        return f"{tool}(target={self.target!r}, name={name!r})"

    def remember(self, name: str, region: str) -> None:
        """Nothing to keep."""


async def _deletions(api: FakeApi, found: Deployed) -> list[str]:
    steps = await component_ending.deletions(cast("Any", FakeTarget(api)), found)
    return [step.argv[2] for step in steps]


async def test_a_component_that_outlived_its_endpoint_is_deleted_too() -> None:
    gone = replace(hosting(), endpoint=None)
    found = await _deletions(FakeApi(hosting().component), gone)
    assert found == [OFF, "delete-inference-component"]
    # Of another endpoint it only has the name.
    other = replace(cast("Component", hosting().component), endpoint="other", bounds=BY_HAND)
    assert await _deletions(FakeApi(other), gone) == []


async def test_what_is_not_ours_is_named_and_stays() -> None:
    api = FakeApi(hosting().component, {NAME: OURS, "theirs": {}})
    with pytest.raises(NotManagedError, match="theirs"):
        await _deletions(api, hosting())


async def test_an_operation_that_is_to_stop_puts_nothing_more_on() -> None:
    class Stopping(AtOnce):
        def should_stop(self) -> bool:
            return True

    async def settled() -> Any:
        return hosting().endpoint

    spec = request(["ml.g6.xlarge"], scale_to_zero=True)
    steps = create_steps(spec, world(), place(), model_there=True, config_there=True)
    later = [step for step in steps if step.kind == "later"]
    target = cast("Any", FakeTarget(FakeApi(None)))
    ended = await put_on(target, NAME, "us-east-2", later, Stopping(), settled)
    assert "stopped" in ended
