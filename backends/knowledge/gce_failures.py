"""How T4 machines on Compute Engine fail: the words, why, and what mends it.

Collected 2026-11-30 from the GCE T4 article and its repository, Google's pages and gcloud 528.
vLLM's own start-up failures are in `engine_failures`.
"""

from __future__ import annotations

from backends.knowledge.signatures import Signature, first_found, signature

_ARTICLE = "GCE T4 article"

# Parts of answers, as templates: `{{` stays for the template.
_ANEW = "prepare_host(target='{target}', name='{name}', options={{'upgrade': true}})"
_AGAIN = (
    "destroy(target='{target}', name='{name}') keeps the data disk with packages and weights; then "
    "plan_deployment(target='{target}', name='{name}'"
)

# The first that matches counts.
SIGNATURES: tuple[Signature, ...] = (
    signature(
        "gce_stockout",
        r"ZONE_RESOURCE_POOL_EXHAUSTED|does not have enough resources available to fulfill"
        r"|reason: stockout",
        "Quota is there, but the zone has no free T4 now.",
        "deploy tries the plan's other zones by itself; find_capacity(target='{target}') shows "
        "which zones had none lately. Plan again with options.zones, or later.",
        source=_ARTICLE,
    ),
    signature(
        "gce_global_gpu_quota",
        r"GPUS_ALL_REGIONS",
        "The project may have no GPU at all (new projects: 0), whatever the regions allow.",
        "Ask the person to request GPUS_ALL_REGIONS (1 or more) at "
        "https://console.cloud.google.com/iam-admin/quotas; it usually takes hours.",
        source=_ARTICLE,
    ),
    signature(
        "gce_gpu_quota",
        r"Quota '?(?:PREEMPTIBLE_)?NVIDIA_T4_GPUS'? exceeded",
        "The region's limit of T4s is used up or zero.",
        "find_capacity(target='{target}') shows the regions that have it; or ask the person to "
        "request NVIDIA_T4_GPUS (PREEMPTIBLE_NVIDIA_T4_GPUS for spot) in the region.",
    ),
    signature(
        "gce_disk_quota",
        r"Quota '?SSD_TOTAL_GB'? exceeded",
        "SSD and balanced disks of the region together would pass SSD_TOTAL_GB.",
        "Plan with a smaller options.data_disk_gib, delete disks that nobody uses, or request "
        "SSD_TOTAL_GB.",
    ),
    signature(
        "gce_migrate",
        r"do not support live migration",
        "A machine with a GPU cannot be moved while it runs.",
        "Create it with --maintenance-policy=TERMINATE, as our plans do.",
        source=_ARTICLE,
    ),
    signature(
        "gce_preempted",
        r"compute\.instances\.preempted|Instance was preempted",
        "It was a spot machine, and Google took it back.",
        "start_serving(target='{target}', name='{name}') starts it again where there is hardware; "
        "its disks are still there. On demand it would not be taken.",
    ),
    signature(
        "gce_host_memory",
        r"Out of memory: Killed process \d+ \((?P<process>VLLM::EngineCor\w*|python[\d.]*|vllm)\)",
        "The kernel killed the engine: 7.5 GiB of RAM do not do to load the weights without swap.",
        "start_serving(target='{target}', name='{name}') switches the swap on and starts again; "
        "or prepare_host first; or deploy with options.machine_type='n1-standard-4'.",
        source=_ARTICLE,
    ),
    signature(
        "gce_turing_shared_memory",
        r"OutOfResources: out of resource: shared memory, Required: (?P<need>\d+), "
        r"Hardware limit: 65536",
        "Triton's attention asks for more shared memory than a Turing GPU has: the clamp is not in "
        "the installed file (an upgrade of vLLM takes it out).",
        "prepare_host(target='{target}', name='{name}') puts it back and checks it, then "
        "start_serving.",
        source=_ARTICLE,
    ),
    signature(
        "gce_cudart",
        r"ImportError: libcudart\.so\.\d+",
        "vLLM for CUDA was installed beside a torch for the CPU.",
        _ANEW + " installs them anew, torch with CUDA, then start_serving.",
        source=_ARTICLE,
    ),
    signature(
        "gce_cudnn",
        r"ImportError: libcudnn\.so\.\d+",
        "torch's own dependencies were left out (pip --no-deps).",
        _ANEW + " installs them, then start_serving.",
        source=_ARTICLE,
    ),
    signature(
        "gce_old_vllm",
        r"AmbiguousGlobalPerLayerAttributeError",
        "vLLM 0.26 cannot read Gemma 4's head sizes, which differ by layer.",
        _AGAIN + ", options={{'vllm': '0.29.0'}}): 0.27.2 or newer reads them.",
        source=_ARTICLE,
    ),
    signature(
        "gce_fastsafetensors",
        r"framework hinted GPU runtime 'libcudart\.so' but no GPU was found",
        "The fastsafetensors loader does not find this GPU.",
        _AGAIN + ") without --load-format in options.extra_args: the default loader works.",
        source=_ARTICLE,
    ),
    signature(
        "gce_no_kernel",
        r"no kernel image is available for execution on the device",
        "The installed wheels were built without sm_75 (Turing).",
        _ANEW + " installs them anew and checks their list; the option extra_index_url names an "
        "index that has sm_75. Then start_serving.",
        source=_ARTICLE,
    ),
    signature(
        "gce_tmp_full",
        r"No space left on device.{0,80}(?<!\w)/tmp\b|(?<!\w)/tmp\b.{0,80}No space left on device",
        "The folder for temporary files is in memory (3.9 GB), and what pip unpacks is larger.",
        "prepare_host(target='{target}', name='{name}') uses a TMPDIR on the data disk.",
        source=_ARTICLE,
    ),
    signature(
        "gce_no_driver",
        r"NVIDIA-SMI has failed|nvidia-smi: (?:command )?not found|couldn't communicate with the "
        r"NVIDIA driver|nvidia-smi does not see a GPU|driver is installed but not loaded",
        "The driver is not installed, or not built for the running kernel.",
        "prepare_host(target='{target}', name='{name}') installs headers and driver and reboots.",
        source=_ARTICLE,
    ),
    signature(
        "gce_torch_cpu",
        r"torch \S+\+cpu, which has no CUDA|torch \(CUDA \S+\) does not see a GPU",
        "pip took a torch without CUDA, or one that the driver is too old for.",
        _ANEW + " installs it anew; with the option "
        "extra_index_url='https://download.pytorch.org/whl/cu130' from torch's CUDA builds.",
    ),
    signature(
        "gce_clamp_unknown",
        r"is not built as expected, so it was not changed|This vLLM has no v1/attention",
        "This vLLM's attention kernel differs from those the clamp is known for.",
        "prepare_host(target='{target}', name='{name}', options={{'vllm': 'vllm==0.29.0'}}) "
        "installs one it is known for, then start_serving.",
    ),
    signature(
        "gce_disk_full",
        r"There is not enough room:|\[Errno 28\] No space left on device",
        "The data disk, or the disk that packages go to, is full.",
        "destroy(target='{target}', name='{name}', options={{'data_disk': true}}), then "
        "plan_deployment(target='{target}', name='{name}', options={{'data_disk_gib': 400}}).",
    ),
    signature(
        "gce_act_as",
        r"iam\.serviceAccountUser|does not have access to service account",
        "The login may not run machines as that service account.",
        "Ask the project's owner for roles/iam.serviceAccountUser on it.",
    ),
)


def signature_of(words: str) -> Signature | None:
    """The first signature found in some words, or None."""
    return first_found(SIGNATURES, words)
