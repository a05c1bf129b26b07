"""Faults of TPUs that have a name.

`seen_as` is verbatim where the TPU v6e repository, Google's pages or public reports (all read by
2026-11-30) have the words.
"""

from __future__ import annotations

from backends.rehearsal.cloud.compute.catalogue import TPU_QUOTAS
from backends.rehearsal.cloud.scenario import Scenario
from backends.rehearsal.cloud.tpu_catalogue import ON_DEMAND_QUOTA, PREEMPTIBLE_QUOTA

_QUEUED = r"/queuedResources"
STOCKOUT = {
    "code": 8,
    "message": "There is no more capacity in the zone; you can try in another zone where Cloud TPU "
    "Nodes are offered (see https://cloud.google.com/tpu/docs/regions) [EID: 0xba393c906974e61]",
}
_GATED = "This user agent is not allowed to use the machine type [ct6e-standard-1t]."
_INTERNAL = {
    "code": 13,
    "message": "an internal error has occurred [EID: 0x2f9b3e60584d1c7a]",
}

TPU_SCENARIOS: dict[str, Scenario] = {
    "tpu-no-hardware": Scenario(
        "The requested accelerator configuration for accelerator type, could not be found in "
        "the zonal accelerator configurations",
        "The zone has no v6e hardware, though the project may have quota there.",
        "Ask for v6e-4 in us-central1-a.",
        ({"kind": "tpu-no-hardware"},),
    ),
    "tpu-zone-unsupported": Scenario(
        'The requested zone "Z" is not supported.',
        "The Cloud TPU API does not know the zone.",
        "Ask in a zone that does not exist.",
    ),
    "tpu-flex-refused": Scenario(
        'FLEX_START provisioning model is not supported for accelerator type "v6e-1" in '
        'location "Z"',
        "Provisioning models are allowed by zone.",
        "Ask for flex-start in us-central1-b or us-south1-a.",
        ({"kind": "tpu-refuse", "zone": "us-east5-a", "models": ["FLEX_START"]},),
    ),
    "tpu-never-comes": Scenario(
        "WAITING_FOR_RESOURCES for ever",
        "There is no capacity; the request keeps its place in the queue.",
        "",
        ({"kind": "tpu-wait", "zone": "*", "seconds": None},),
    ),
    "tpu-stockout": Scenario(
        "FAILED: There is no more capacity in the zone",
        "The request was taken and then failed for want of capacity.",
        "",
        ({"kind": "tpu-fail", "zone": "*", "error": STOCKOUT},),
    ),
    "tpu-internal-error": Scenario(
        "FAILED: an internal error has occurred",
        "Provisioning broke on Google's side.",
        "",
        ({"kind": "tpu-fail", "zone": "*", "error": _INTERNAL},),
    ),
    "tpu-quota-none": Scenario(
        f"Quota limit '{ON_DEMAND_QUOTA}' has been exceeded. Limit: 0 in zone Z.",
        "On-demand v6e quota is 0 until it is asked for.",
        "Ask on demand in us-south1-a.",
        ({"kind": "quota", "quota": [ON_DEMAND_QUOTA, PREEMPTIBLE_QUOTA], "value": 0},),
    ),
    "tpu-compute-quota": Scenario(
        "Quota 'TPUS_PER_TPU_FAMILY' exceeded.  Limit: 0.0 in region R.",
        "Compute Engine counts TPU chips in a pool of its own, which may be empty though the TPU "
        "API's is not.",
        "",
        tuple(
            {"kind": "compute-quota", "metric": metric, "region": "*", "value": 0}
            for metric in TPU_QUOTAS
        ),
    ),
    "tpu-vcpus": Scenario(
        "Quota 'CPUS_ALL_REGIONS' exceeded.  Limit: 32.0 globally.",
        "A ct6e machine brings 44 or 180 vCPUs, and a new project may have fewer in all.",
        "",
        (
            {
                "kind": "compute-quota",
                "metric": "CPUS_ALL_REGIONS",
                "region": "global",
                "value": 32,
            },
        ),
    ),
    "tpu-gated-machine": Scenario(
        "This user agent is not allowed to use the machine type [ct5lp-hightpu-1t].",
        "The machine type is not open to everybody on Compute Engine.",
        "",
        (
            {
                "kind": "request",
                "method": "POST",
                "host": r"^compute\.googleapis\.com$",
                "path": r"/instances$",
                "status": 403,
                "times": -1,
                "body": {"error": {"code": 403, "status": "PERMISSION_DENIED", "message": _GATED}},
            },
        ),
    ),
    "tpu-quota-override": Scenario(
        "The quota override decreases effective quota unsafely",
        "A quota would be lowered by more than a tenth at once, and nobody said that it is meant.",
        "Ask Cloud Quotas for a lower limit of v6e chips without ignoreSafetyChecks.",
    ),
    "tpu-preempted": Scenario(
        "The node is PREEMPTED, its request SUSPENDING, then SUSPENDED",
        "Spot capacity was needed elsewhere.",
        "",
        ({"kind": "tpu-preempt"},),
    ),
    "tpu-orphan-node": Scenario(
        "A node runs and bills, and no queued resource owns it",
        "Its request was removed without it.",
        "",
        ({"kind": "tpu-orphan"},),
    ),
    "tpu-create-unheard": Scenario(
        "The client never hears that its request was taken; it lives on and bills",
        "The answer to the create was lost.",
        "",
        (
            {
                "kind": "request",
                "action": "lose-answer",
                "method": "POST",
                "path": _QUEUED + "$",
            },
        ),
    ),
    "tpu-delete-active": Scenario(
        "DeleteQueuedResource is not supported when state is ACTIVE (must be one of [ACCEPTED "
        "WAITING_FOR_RESOURCES SUSPENDED FAILED])",
        "A request that has nodes is deleted only by force.",
        "Delete an active request without --force.",
    ),
    "tpu-spot-flag": Scenario(
        "STANDARD provisioning model is incompatible with spot requests",
        "gcloud's --spot beside a provisioning model.",
        "Create with --spot through the alpha commands.",
    ),
    "tpu-hbm": Scenario(
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM; HLO temporaries exceeds available HBM",
        "Weights, KV cache and compiled programs do not fit the chip.",
        "",
        ({"kind": "host", "fault": "hbm"},),
    ),
    "tpu-secret-denied": Scenario(
        "cannot read the secret: no scope, or no roles/secretmanager.secretAccessor",
        "The machine's account has no right on the secret; the start waits for it.",
        "Boot a machine as an account that was not given the right.",
    ),
}
