"""Inference components as values: the copies of a model on an endpoint that may have none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

BUSY_COMPONENT = frozenset({"Creating", "Updating", "Deleting"})
"""Statuses in which SageMaker refuses every change (InferenceComponentStatus, botocore 1.44.8)."""


@dataclass(frozen=True)
class Bounds:
    """What automatic scaling may do.

    Attributes:
        low: Least copies; None: it is not set up, so nothing but a call changes the number.
        high: Most copies.
        problem: Why it is not known; empty if it is.
    """

    low: int | None = None
    high: int | None = None
    problem: str = ""

    @property
    def on(self) -> bool:
        """Whether it is set up."""
        return self.low is not None


@dataclass(frozen=True)
class Component:
    """An inference component as SageMaker describes it.

    Attributes:
        name: Its name.
        arn: Its ARN.
        endpoint: Whose instances it is on.
        status: SageMaker's word for its state.
        reason: Why it failed, or why it could not be scaled; empty if nothing did.
        model: The model that each copy runs.
        copies: Copies that run.
        desired: Copies that are to run.
        accelerators: GPUs that each copy takes.
        startup_timeout_s: How long a copy may take until it is healthy.
        created_at: Unix seconds.
        modified_at: Unix seconds: since when its status is what it is.
        bounds: What automatic scaling may do.
    """

    name: str
    arn: str
    endpoint: str
    status: str
    reason: str = ""
    model: str = ""
    copies: int = 0
    desired: int = 0
    accelerators: int = 1
    startup_timeout_s: int = 1800
    created_at: float = 0.0
    modified_at: float = 0.0
    bounds: Bounds = Bounds()

    @property
    def in_words(self) -> str:
        """How many copies there are, are to be, and may be."""
        scaled = "set by hand"
        if self.bounds.on:
            scaled = f"{self.bounds.low} to {self.bounds.high} by load"
        elif self.bounds.problem:
            scaled = "whether by load is not known"
        return f"{self.copies} of {self.desired} ({scaled})"

    @property
    def began_at(self) -> float:
        """Since when what its containers say is about its present start, Unix seconds."""
        return self.modified_at if self.status == "Updating" else self.created_at


def component_of(raw: Mapping[str, Any], bounds: Bounds) -> Component:
    """A component from what DescribeInferenceComponent says."""
    spec = raw.get("Specification") or {}
    counts = raw.get("RuntimeConfig") or {}
    startup = spec.get("StartupParameters") or {}
    needs = spec.get("ComputeResourceRequirements") or {}
    return Component(
        name=str(raw["InferenceComponentName"]),
        arn=str(raw["InferenceComponentArn"]),
        endpoint=str(raw["EndpointName"]),
        status=str(raw["InferenceComponentStatus"]),
        reason=str(raw.get("FailureReason") or ""),
        model=str(spec.get("ModelName") or ""),
        copies=int(counts.get("CurrentCopyCount") or 0),
        desired=int(counts.get("DesiredCopyCount") or 0),
        accelerators=int(needs.get("NumberOfAcceleratorDevicesRequired") or 1),
        startup_timeout_s=int(startup.get("ContainerStartupHealthCheckTimeoutInSeconds") or 600),
        created_at=seconds_of(raw.get("CreationTime")),
        modified_at=seconds_of(raw.get("LastModifiedTime")),
        bounds=bounds,
    )


def seconds_of(value: object) -> float:
    """A time of AWS's as Unix seconds; 0 where there is none."""
    return value.timestamp() if isinstance(value, datetime) else 0.0
