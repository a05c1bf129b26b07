"""How TPU requests, nodes and servers fail.

Collected 2026-11-30 from the TPU v6e article and its repository, Google's pages and public reports.
vLLM's own start-up failures are in `backends.serving.startup_failures`.
"""

from __future__ import annotations

from backends.knowledge.signatures import Signature, first_found, signature

# The first that matches counts.
SIGNATURES: tuple[Signature, ...] = (
    signature(
        "no_hardware",
        r"could not be found in the zonal accelerator configurations"
        r"|the accelerator \S+ was not found in zone",
        "The zone has no hardware of that size; quota there means nothing.",
        "find_capacity(target='{target}') shows the zones that have it; plan again with "
        "options.zone or options.zones of those.",
    ),
    signature(
        "no_zone",
        r"The requested zone \S+ is not supported|Zone \S+ not found",
        "The Cloud TPU API does not know that zone.",
        "find_capacity(target='{target}') shows the zones.",
    ),
    signature(
        "model_refused",
        r"provisioning model is not supported for accelerator type",
        "That provisioning model is not offered for this size in this zone.",
        "Plan again with options.provisioning='spot' or 'on-demand', or in another zone "
        "(flex-start was confirmed in us-east5-a, us-east5-b and europe-west4-a).",
    ),
    signature(
        "spot_flag",
        r"STANDARD provisioning model is incompatible with spot requests",
        "--spot stood beside a provisioning model.",
        "Say --provisioning-model=spot instead, as our plans do.",
    ),
    signature(
        "delete_active",
        r"DeleteQueuedResource is not supported when state is",
        "The request has nodes, or is on its way to them; it is deleted only by force.",
        "destroy(target='{target}', name='{name}') uses --force where it is needed.",
    ),
    signature(
        "quota_compute",
        r"TPUS_PER_TPU_FAMILY|TPUS-PER-TPU-FAMILY|PREEMPTIBLE-TPU-V6E",
        "Compute Engine counts TPU chips in a pool of its own; the TPU API's quota does not help.",
        "Ask the person to request TPUS-PER-TPU-FAMILY-per-project-region (family CT6E), or "
        "PREEMPTIBLE-TPU-V6E-per-project-region for spot and flex-start, or plan with "
        "options.control_plane='tpu'.",
    ),
    signature(
        "quota_vcpus",
        r"Quota '?CPUS(?:_ALL_REGIONS|_PER_VM_FAMILY)?'? exceeded",
        "A ct6e machine brings vCPUs that count on Compute Engine's limits: 44 with one chip, 180 "
        "with four or eight.",
        "Ask the person to request CPUS-ALL-REGIONS-per-project (or the limit that is named) for "
        "as many at https://console.cloud.google.com/iam-admin/quotas, or plan with "
        "options.control_plane='tpu', whose hosts do not count there.",
    ),
    signature(
        "quota",
        r"Quota limit '?TPUV6E\w*'? has been exceeded|Quota '?TPUV6E\w*'? exhausted",
        "The project may not have that many chips there. Failed and suspended requests count too.",
        "list_deployments() shows requests that can be destroyed; find_capacity(target='{target}') "
        "names the quota and the zones where it is enough.",
    ),
    signature(
        "stockout",
        r"no more capacity in the zone|ZONE_RESOURCE_POOL_EXHAUSTED"
        r"|does not have enough resources available|reason: stockout",
        "The zone has no free hardware now. Quota is not capacity.",
        "Plan with options.zones, an ordered list: the search moves on by itself; or take "
        "flex-start, which waits in a queue.",
    ),
    signature(
        "gated_machine",
        r"user agent is not allowed to use the machine type",
        "That machine type is not open to everybody on Compute Engine.",
        "Plan with options.control_plane='tpu'.",
    ),
    signature(
        "quota_override",
        r"quota override .* decreases effective quota unsafely",
        "A quota would be lowered by more than a tenth at once; Google asks to be forced.",
        "Leave that quota as it is, or ask the person to force it.",
    ),
    signature(
        "hbm",
        r"RESOURCE_EXHAUSTED: Ran out of memory|Ran out of memory on HBM|exceeds available HBM",
        "Weights, KV cache and what compiled programs need do not fit the chip's memory.",
        "Plan again with a smaller max_model_len or max_num_seqs, a larger slice, or without "
        "options.gpu_memory_utilization.",
    ),
    signature(
        "kv_dtype",
        r"argument --kv-cache-dtype: invalid choice|TypeError: data type not understood",
        "vLLM on TPU does not know that KV cache type (int8 is none of its choices).",
        "Plan again with options.kv_cache_dtype='auto'.",
    ),
    signature(
        "w4a16",
        r"NotImplementedError.*(?:compressed|w4a16|wna16)|compressed-tensors.*not supported",
        "vLLM on TPU cannot load w4a16 compressed-tensors checkpoints (tpu-inference issue 3225).",
        "Serve the bf16 checkpoint.",
    ),
    signature(
        "no_docker",
        r"docker: command not found",
        "Compute Engine's accelerator image comes without docker.",
        "Our start script installs it; read get_logs(target='{target}', name='{name}', "
        "source='serial') for why it could not, then start_serving(restart=true).",
    ),
    signature(
        "docker_down",
        r"Cannot connect to the Docker daemon",
        "The Docker daemon has ended, or was stopped.",
        "start_serving(target='{target}', name='{name}', restart=true) starts it with the "
        "container; get_logs(target='{target}', name='{name}', source='systemd') says why it "
        "ended.",
    ),
    signature(
        "host_memory",
        r"Out of memory: Killed process",
        "The kernel killed the engine: the machine's main memory ran out.",
        "start_serving(target='{target}', name='{name}', restart=true) tries again; if it comes "
        "back, plan with a smaller checkpoint, or a larger slice, whose machine has more memory.",
    ),
    signature(
        "disk_full",
        r"no space left on device",
        "The boot disk is full, or too small for image and weights (Compute Engine's: 10 GB).",
        "On Compute Engine plan again with options.disk_gb=200 (gcloud's warning about the image's "
        "size is harmless). A node of the TPU API comes with a disk of one size: ask the person to "
        "remove what fills it, then start_serving(target='{target}', name='{name}', restart=true).",
    ),
    signature(
        "no_scope",
        r"insufficient authentication scopes|ACCESS_TOKEN_SCOPE_INSUFFICIENT"
        r"|cannot read the secret",
        "The machine's account may not read the secret: no cloud-platform scope, or no "
        "roles/secretmanager.secretAccessor.",
        "Plan again: our plans set the scope and give the account that one right.",
    ),
    signature(
        "ssh_early",
        r"ConnectionResetError|kex_exchange_identification|Connection (?:reset|refused|closed)"
        r"|Connection timed out|port 22",
        "The machine is still booting, its key has not arrived, or the firewall keeps ssh out.",
        "Wait a minute and try again; get_logs(target='{target}', name='{name}', source='serial') "
        "works without ssh on Compute Engine. Through IAP the rule must let in 35.235.240.0/20.",
    ),
    signature(
        "preempted",
        r"\bPREEMPTED\b",
        "Spot capacity was taken back; disks and node are gone with it.",
        "destroy(target='{target}', name='{name}'), then plan again; on-demand and flex-start are "
        "not preempted.",
    ),
    signature(
        "ran_out",
        r"max.?run.?duration|maxRunDuration",
        "It has run for as long as was asked for.",
        "destroy(target='{target}', name='{name}'), then plan again with options.max_run_hours.",
    ),
)


def signature_of(words: str) -> Signature | None:
    """The first signature found in some words, or None."""
    return first_found(SIGNATURES, words)


# What no log says, and a user of these servers should know.
ADVICE: tuple[str, ...] = (
    "The first request with an image or sound after a start may get 422 while its encoder warms "
    "up: send it again once.",
    "Structured output (json_schema) is not enforced with thinking switched off: ask with "
    "enable_thinking, or check the answer yourself.",
    "A benchmark with one seed for all cells measures the prefix cache (about 100 % hits): "
    "run_benchmark takes fresh prompts for each level.",
    "gpu_memory_utilization=0.95 fails on smaller chips after eleven minutes of compiling: leave "
    "it out.",
)
