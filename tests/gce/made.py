"""Machines, worlds and operations as values, for tests of what is decided without asking Google."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from backends.core.operations import Operation
from backends.gce.commands import labels_of
from backends.gce.machines import SPEC_KEY, Attached, Machine, Quota
from backends.gce.spec import GceSpec, resolved
from backends.gce.world import Limits, World
from backends.knowledge import gce

PROJECT = "vllm-rehearsal"
NOW = 1_796_000_000.0


def request(**options: Any) -> GceSpec:
    """A resolved request for `t4` in us-west2-b, unless said otherwise."""
    return resolved(GceSpec(**({"name": "t4", "zones": ["us-west2-b"]} | options)))


def machine(**changes: Any) -> Machine:
    """A machine of ours that runs and was started ten minutes ago."""
    made = Machine(
        name="t4",
        zone="us-west2-b",
        status="RUNNING",
        number="4242",
        labels=labels_of("t4"),
        metadata={SPEC_KEY: json.dumps({"model": gce.MODEL, "gpu_memory_utilization": 0.9,
                                        "max_model_len": 16384, "max_num_seqs": 8})},
        kind="n1-standard-2",
        gpu=gce.GPU_TYPE,
        disks=(Attached("t4", 32, True, True), Attached("t4-data", 250, False, False)),
        account=f"vllm-t4-t4@{PROJECT}.iam.gserviceaccount.com",
        created_at=NOW - 900,
        started_at=NOW - 600,
    )  # fmt: skip
    return replace(made, **changes)


def limits(**changes: float) -> Limits:
    """Quotas of a project with one GPU: by metric, for all regions."""
    values = {gce.GPU_QUOTA: 1.0, gce.SPOT_GPU_QUOTA: 1.0, gce.DISK_QUOTA: 500.0} | changes
    everywhere = values.pop(gce.GLOBAL_QUOTA, 1.0)
    region = {metric: Quota(limit, 0.0) for metric, limit in values.items()}
    return Limits(Quota(everywhere, 0.0), dict.fromkeys(gce.REGIONS, region))


def world(**changes: Any) -> World:
    """A project with one GPU, in which nothing is deployed."""
    made = World(
        project=PROJECT,
        machines=[],
        kept=None,
        account_there=False,
        secret_there=True,
        limits=limits(),
        selling=frozenset(gce.all_zones()),
        ssh_open=True,
        nats=frozenset(),
    )
    return replace(made, **changes)


def operation(state: str = "running", progress: str = "", **status: object) -> Operation:
    """Background work on `t4`."""
    told = {"message": progress} if progress else {}
    return Operation(
        id="op-20261130-000000-0001",
        kind="deploy",
        target="gce-t4",
        name="t4",
        params={},
        state=state,
        started_at="2026-11-30T00:00:00.000Z",
        folder=Path("/nonexistent"),
        status={"state": state, **told, **status},
    )
