"""How Cloud Run deployments fail: the words, why, and what mends it.

Collected 2026-11-30 from the reference articles, their repositories and codelab reports. vLLM's own
start-up failures are in `backends.knowledge.engine_failures`; these are the platform's, and those
that the platform shows differently. `{name}` and `{target}` are filled in.
"""

from __future__ import annotations

from backends.knowledge.signatures import Signature, most_telling, signature

# The first that matches counts.
SIGNATURES: tuple[Signature, ...] = (
    signature(
        "cuda_803",
        r"Error 803|unsupported display driver / cuda driver combination",
        "The image's CUDA compatibility libraries do not fit the driver of Cloud Run's L4 hosts "
        "(535); VLLM_ENABLE_CUDA_COMPATIBILITY=1 switches them on.",
        "Deploy again without that variable (0 is our default) and with a -cu129 image.",
    ),
    signature(
        "disabled",
        r"Service is disabled",
        "The service is in manual scaling at 0 instances: Cloud Run answers 503 at once.",
        "start_serving(target='{target}', name='{name}') brings automatic scaling back; or "
        "update_scaling(target='{target}', name='{name}', instances=1).",
    ),
    signature(
        "memory_quota",
        r"MemAllocPerProjectRegion",
        "Memory of one instance times max_instances, of the new and the old revision, is more than "
        "the project may allocate in this region (new projects: 40 GiB).",
        "Lower max_instances or memory_gib, or request MemAllocPerProjectRegion "
        "(find_capacity(target='{target}') has the numbers).",
    ),
    signature(
        "cpu_quota",
        r"CpuAllocPerProjectRegion",
        "vCPUs of one instance times max_instances are more than the project may allocate in this "
        "region (new projects: 20 vCPU).",
        "Lower max_instances or cpu, or request CpuAllocPerProjectRegion "
        "(find_capacity(target='{target}') has the numbers).",
    ),
    signature(
        "gpu_quota_rollout",
        r"Nvidia\w+GpuAlloc\w* requested: \d+\s+allowed: [1-9]",
        "max_instances of the new and the old revision together pass the GPU quota while one "
        "replaces the other.",
        "Deploy with max_instances=1, or destroy the old one first, or request more GPUs.",
    ),
    signature(
        "gpu_quota",
        r"do not have quota for using GPUs|total allowable count of GPUs"
        r"|Nvidia\w+GpuAlloc\w* requested: \d+\s+allowed: 0",
        "The project has no GPU quota in this region.",
        "Request it at g.co/cloudrun/gpu-quota under the name find_capacity(target='{target}') "
        "gives, or take a region that has it.",
    ),
    signature(
        "host_memory",
        r"Memory limit of [\d.]+ \w+ exceeded|container instance exceeded the memory",
        "The host's memory is full: weights copied into memory, the vision tower and the engine "
        "together.",
        "Take 80 GiB, or load='mount' (no copy in memory), or leave images out.",
    ),
    signature(
        "hub_rate_limit",
        r"HTTP Error 429 thrown while requesting|Rate limited\. Waiting",
        "Hugging Face limits requests from addresses that many share, as Cloud Run's are.",
        "Stage the weights with stage_model(target='{target}') and deploy with source='bucket', or "
        "save_hf_token.",
    ),
    signature(
        "hub_unreachable",
        r"locate the files? on the Hub|couldn't connect to '?https://huggingface"
        r"|huggingface\.co.*(?:timed out|unreachable|Max retries)",
        "The container has no way to Hugging Face: all egress goes into a VPC that has no NAT.",
        "Stage the weights with stage_model(target='{target}'), or add Cloud NAT to the network.",
    ),
    signature(
        "bucket_access",
        r"(?:staging_tmpfs|mounting_gcs).*stuck|gcsfuse.*(?:403|permission)"
        r"|storage\.objects\.(?:get|list) (?:access|denied)|does not have storage\.\w+\.\w+ access",
        "The service's account may not read the bucket.",
        "Deploy again with this server, which grants roles/storage.objectViewer on the bucket.",
    ),
    signature(
        "secret_access",
        r"Permission denied on secret",
        "The service's account may not read the secret with the Hugging Face token.",
        "Deploy again with this server, which grants roles/secretmanager.secretAccessor on it.",
    ),
    signature(
        "disk_full",
        r"No space left on device",
        "The container's file system is memory on Cloud Run, and smaller than the model.",
        "Stage the weights with stage_model(target='{target}') and read them from the bucket.",
    ),
    signature(
        "not_gemma4",
        r"architectures? \S+ (?:are|is) not supported|invalid (?:tool call|reasoning) parser"
        r"|gemma4.*(?:parser|tokens?).*not found|Gemma4\w*Parser could not locate",
        "The folder does not hold a Gemma 4, whatever its name says, or the image is too old.",
        "list_models(target='{target}', inspect='gs://...') says what the folder really is.",
    ),
    signature(
        "truncated_headers",
        r"early terminated the request|truncated headers",
        "A proxy in the image speaks HTTP/1.0 or closes connections under Cloud Run.",
        "Let it speak HTTP/1.1 with keep-alive.",
    ),
    signature(
        "model_loading",
        r"model is (?:still )?loading",
        "The container answers before its model is loaded, as images with a server of their own "
        "do: being up is not being ready.",
        "wait_until_ready(target='{target}', name='{name}'), which reads the image's /health, then "
        "ask again.",
    ),
    signature(
        "engine_overload",
        r"EngineCore encountered an issue|no healthy backend",
        "More was asked of the engine at once than it stands; it restarts, which takes minutes.",
        "Lower concurrency (Cloud Run's cap) to what the engine batches, and wait.",
    ),
    signature(
        "busy",
        r"server busy|no available instance|instances? (?:is|are) (?:all )?at (?:the )?max",
        "More requests wait than the instances admit.",
        "Lower the load's concurrency, or raise max_instances or concurrency.",
    ),
    signature(
        "kernel_mismatch",
        r"gptq_marlin_repack.*Expected a value of type|undefined symbol",
        "The image's compiled kernels belong to another vLLM.",
        "Rebuild the image from one vLLM release, or take the stock image.",
    ),
    signature(
        "image_missing",
        r"Image '?[^']*'? (?:not found|does not exist)|manifest unknown|failed to pull image"
        r"|image.*not found",
        "There is no image of that name and tag, or the service agent may not read it.",
        "Correct options.image; an image in Artifact Registry needs "
        "roles/artifactregistry.reader for Cloud Run's service agent.",
    ),
    signature(
        "gpu_capacity",
        r"no (?:GPU )?capacity|insufficient (?:GPU )?capacity|resources? exhausted.*region",
        "Cloud Run has no free GPU of this kind in the region now.",
        "Try another region (find_capacity(target='{target}')), or later.",
    ),
    signature(
        "probe_killed",
        r"STARTUP \w+ probe failed|startup probe.*(?:failed|timed out)"
        r"|failed to start and (?:then )?listen on the port",
        "The container did not answer its startup probe in time: loading takes longer than the "
        "probe waits, or the engine failed.",
        "Read get_logs(target='{target}', name='{name}') for the engine's own words; if it was "
        "still loading, raise the probe's failure threshold (10 or more).",
        kind="symptom",
    ),
)


def signature_of(*words: str) -> Signature | None:
    """What explains these texts of one failure best, or None; see `most_telling`."""
    return most_telling(SIGNATURES, *words)
