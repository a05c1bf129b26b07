"""Faults of machines of Compute Engine that have a name.

`seen_as` is verbatim where Compute Engine's documents, the T4 repository or public reports (all
read by 2026-11-30) have the words. What happens inside a machine is a fault of its own kind,
`{"kind": "host", "fault": ...}`.
"""

from __future__ import annotations

from backends.rehearsal.cloud.scenario import Scenario
from backends.rehearsal.cloud.web import Json


def _quota(metric: str, region: str) -> Json:
    return {"kind": "compute-quota", "metric": metric, "region": region, "value": 0}


COMPUTE_SCENARIOS: dict[str, Scenario] = {
    "gce-stockout": Scenario(
        "ZONE_RESOURCE_POOL_EXHAUSTED: The zone 'Z' does not have enough resources available to "
        "fulfill the request. Try a different zone, or try again later.",
        "The zone has no free GPU of that type, though the project may have quota there.",
        "",
        ({"kind": "stockout", "zone": "*"},),
    ),
    "gce-no-gpus": Scenario(
        "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally.",
        "A new project may have no GPU in any region, whatever its regions' quotas say.",
        "",
        (_quota("GPUS_ALL_REGIONS", "global"),),
    ),
    "gce-no-t4-quota": Scenario(
        "Quota 'NVIDIA_T4_GPUS' exceeded.  Limit: 0.0 in region R.",
        "The region's own quota of that GPU is 0 until it is asked for.",
        "",
        (_quota("NVIDIA_T4_GPUS", "*"), _quota("PREEMPTIBLE_NVIDIA_T4_GPUS", "*")),
    ),
    "gce-preempted": Scenario(
        "compute.instances.preempted; the machine is TERMINATED",
        "Google took a spot machine back.",
        "",
        ({"kind": "preempt"},),
    ),
    "gce-gpu-not-terminate": Scenario(
        "Instances with guest accelerators do not support live migration.",
        "A machine with a GPU must have onHostMaintenance TERMINATE.",
        "Create one with onHostMaintenance MIGRATE.",
    ),
}
