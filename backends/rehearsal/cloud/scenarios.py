"""Faults that have a name: every Cloud Run failure the product must explain, and how to play it.

`seen_as` is what someone meets, in the words they meet it in; the texts come from the reference
articles and repositories, from public reports (quota refusals, container starts) and from Google's
documents, all read by 2026-11-30. `natural` says how the rehearsal produces it without any switch.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from backends.rehearsal.cloud.aws.scenarios import AWS_SCENARIOS
from backends.rehearsal.cloud.catalogue import CPU_QUOTA, GPUS, MEMORY_QUOTA
from backends.rehearsal.cloud.compute.scenarios import COMPUTE_SCENARIOS
from backends.rehearsal.cloud.hosts.scenarios import HOST_SCENARIOS
from backends.rehearsal.cloud.run import pages
from backends.rehearsal.cloud.scenario import Scenario
from backends.rehearsal.cloud.tpu.scenarios import TPU_SCENARIOS
from backends.rehearsal.cloud.web import Json

_ENDPOINT = r"\.run\.app$"
_RUN_SERVICES = r"/(namespaces/[^/]+|locations/[^/]+)/services"
_L4, _RTX = GPUS["nvidia-l4"], GPUS["nvidia-rtx-pro-6000"]
_GPU_QUOTAS = [_L4.quota, _RTX.quota]
_TRACEBACK = "Traceback (most recent call last):"


def _core_failure(*lines: str) -> list[str]:
    """Lines as they look when vLLM's engine process dies of them."""
    head = "(EngineCore pid=136) ERROR 11-30 00:00:00 [core.py:1510] "
    return [
        head + "EngineCore failed to start.",
        head + _TRACEBACK,
        *(head + line for line in lines),
        "RuntimeError: Engine core initialization failed. See root cause above. "
        "Failed core proc(s): {}",
    ]


CUDA_COMPATIBILITY = _core_failure(
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions "
    "before calling NumCudaDevices() that might have already set an error? Error 803: system has "
    "unsupported display driver / cuda driver combination"
)
NO_NAT = [
    _TRACEBACK,
    "httpx.ConnectTimeout: [Errno 110] Connection timed out",
    "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the "
    "file on the Hub and we cannot find the requested files in the local cache. Please check your "
    "connection and try again or make sure your Internet connection is on.",
]
DISK_FULL = [
    _TRACEBACK,
    "OSError: [Errno 28] No space left on device: "
    "'/root/.cache/huggingface/hub/tmp3k2j1x/model.safetensors.incomplete'",
]
OUT_OF_HOST_MEMORY = (
    "Memory limit of {limit} MiB exceeded with {used} MiB used. Consider increasing the memory "
    "limit, see https://cloud.google.com/run/docs/configuring/memory-limits"
)


def _request(**fields: object) -> Json:
    return {"kind": "request", **fields}


def _start(**fields: object) -> Json:
    return {"kind": "start", **fields}


def _google(code: int, status: str, message: str) -> Json:
    return {"error": {"code": code, "status": status, "message": message}}


_DEPLOYMENT: dict[str, Scenario] = {
    "cuda-compatibility": Scenario(
        "Error 803: system has unsupported display driver / cuda driver combination",
        "VLLM_ENABLE_CUDA_COMPATIBILITY=1 on the driver of the L4 fleet.",
        "Deploy on nvidia-l4 with VLLM_ENABLE_CUDA_COMPATIBILITY=1.",
        (_start(after="Starting to load model", lines=CUDA_COMPATIBILITY, exit_code=1),),
    ),
    "service-disabled": Scenario(
        "HTTP 503 'Service is disabled.' at once, while ContainerHealthy is True",
        "Manual scaling at zero instances.",
        "gcloud beta run services update S --scaling=0.",
        ({"kind": "scaling", "mode": "manual", "count": 0},),
    ),
    "manual-scaling": Scenario(
        "A service with a fixed number of instances, which --scaling=auto would silently undo",
        "Manual scaling; a redeploy must keep the mode it finds.",
        "gcloud beta run deploy S --scaling=N.",
        ({"kind": "scaling", "mode": "manual", "count": 1},),
    ),
    "gpu-quota-none": Scenario(
        "You do not have quota for using GPUs without zonal redundancy. To request quota: "
        "g.co/cloudrun/gpu-quota",
        "The project has no GPU quota in the region.",
        "",
        ({"kind": "quota", "quota": _GPU_QUOTAS, "value": 0},),
    ),
    "gpu-quota-short": Scenario(
        "Quota violated: NvidiaL4GpuAllocNoZonalRedundancyPerProjectRegion requested: 3 allowed: 1",
        "max-instances times revisions is above the GPU quota.",
        "Deploy with more --max-instances than the quota allows.",
        ({"kind": "quota", "quota": _GPU_QUOTAS, "value": 1},),
    ),
    "gpu-quota-misread": Scenario(
        "The Quotas API says 1000, the deployment is refused: requested: 3 allowed: 1",
        "quotas info shows a ceiling that is not what the project was given.",
        "",
        (
            {"kind": "quota", "quota": _GPU_QUOTAS, "value": 1},
            {"kind": "quota-shown", "quota": _L4.quota, "value": 1000},
            {"kind": "quota-shown", "quota": _RTX.quota, "value": 1000},
        ),
    ),
    "memory-quota": Scenario(
        "Quota violated: MemAllocPerProjectRegion requested: 85899345920 allowed: 42949672960",
        "A new project may use 40 GiB a region; 80 GiB times max-instances is more.",
        "",
        ({"kind": "quota", "quota": MEMORY_QUOTA, "value": 40 * 2**30},),
    ),
    "cpu-quota": Scenario(
        "Quota violated: CpuAllocPerProjectRegion requested: 60000 allowed: 20000",
        "A new project may use 20 vCPU a region.",
        "",
        ({"kind": "quota", "quota": CPU_QUOTA, "value": 20_000},),
    ),
    "new-project": Scenario(
        "All of the above at once: no GPU, 20 vCPU, 40 GiB",
        "A project to which no quota was ever given.",
        "",
        ({"kind": "new-project"},),
    ),
    "no-capacity": Scenario(
        "The revision stays without an instance: no available GPU in the region",
        "Quota is there, hardware is not.",
        "",
        ({"kind": "no-capacity"},),
    ),
    "slow-start": Scenario(
        "gcloud stops waiting after about ten minutes; the revision becomes ready later",
        "The start takes longer than the client waits.",
        "Run with a low --speed.",
        # Some thirteen minutes: longer than gcloud waits, within the reference startup probe.
        (_start(slow=3.0),),
    ),
    "stuck-start": Scenario(
        "The revision never becomes ready; the log stops at 'Starting to load model'",
        "The load hangs, e.g. on a bucket that does not answer.",
        "",
        (_start(fail="stall-startup"),),
    ),
    "admission-plateau": Scenario(
        "Throughput is flat above concurrency 4",
        "--concurrency=4 lets four requests in at once.",
        "Benchmark a service deployed with --concurrency=4.",
    ),
    "no-tool-parser": Scenario(
        "Tool calls come back as text, or tool_choice is refused",
        "--tool-call-parser and --reasoning-parser are missing.",
        "Deploy without --enable-auto-tool-choice --tool-call-parser=gemma4.",
    ),
    "hf-rate-limited": Scenario(
        "HTTP Error 429 thrown while requesting HEAD https://huggingface.co/...; Rate limited. "
        "Waiting 253.0s before retry [Retry 1/5].",
        "Hugging Face counts requests by the shared address they leave from.",
        "",
        (
            _start(
                after="non-default args",
                lines=[
                    "HTTP Error 429 thrown while requesting HEAD "
                    "https://huggingface.co/google/gemma-4-E2B-it/resolve/main/config.json",
                    "Rate limited. Waiting 253.0s before retry [Retry 1/5].",
                ],
                hang=True,
            ),
        ),
    ),
    "wrong-architecture": Scenario(
        "The gemma4 parsers fail: the folder holds another architecture",
        "A bucket folder is named Gemma 4 but its config.json says otherwise.",
        "Serve a folder whose config.json has another model_type than gemma4.",
        ({"kind": "seed-model", "folder": "gemma-4-E2B-it", "model_type": "gemma"},),
    ),
    "startup-probe-kill": Scenario(
        "The user-provided container failed the configured startup probe checks.",
        "The probe gives up before the model is loaded (failureThreshold 1, short periods).",
        "Deploy with a startup probe whose delay + period x threshold is below the load time.",
        (_start(slow=40.0),),
    ),
    "engine-out-of-memory": Scenario(
        "torch.OutOfMemoryError: CUDA out of memory.",
        "The weights do not fit the GPU.",
        "Deploy a checkpoint larger than the GPU's memory.",
        (_start(fail="oom"),),
    ),
    "no-kv-cache": Scenario(
        "ValueError: No available memory for the cache blocks.",
        "Nothing is left for the KV cache.",
        "Deploy with a --gpu-memory-utilization that leaves nothing.",
        (_start(fail="kv"),),
    ),
    "model-not-found": Scenario(
        "huggingface_hub.errors...: the model is neither a folder nor a repository",
        "The path is not in the bucket, or the volume is not mounted there.",
        "Deploy with --model=/mnt/models/NAME where the bucket has no such folder.",
        (_start(fail="bad-model"),),
    ),
    "gpu-kernel-mismatch": Scenario(
        "_C::gptq_marlin_repack() Expected a value of type 'Tensor' for argument 'perm' but "
        "instead found type 'int'.",
        "vLLM and its compiled kernels do not belong together.",
        "",
        (
            _start(
                after="Starting to load model",
                lines=_core_failure(
                    "RuntimeError: _C::gptq_marlin_repack() Expected a value of type 'Tensor' for "
                    "argument 'perm' but instead found type 'int'."
                ),
                exit_code=1,
            ),
        ),
    ),
    "host-out-of-memory": Scenario(
        "The instance dies some ten minutes into its start: Memory limit of 32768 MiB exceeded",
        "Weights copied to tmpfs count as memory, beside the engine and the vision tower.",
        "Deploy the staging image with COPY_TO_SHM=1 and 32 GiB.",
        (
            _start(
                after="Loading safetensors checkpoint shards",
                killed_by=9,
                system=OUT_OF_HOST_MEMORY,
            ),
        ),
    ),
    "staging-stuck": Scenario(
        "/health stays at staging_tmpfs",
        "The service account may not read the bucket.",
        "Deploy the staging image with a service account that has no role on the bucket.",
        (_start(hang=True, lines=["[entrypoint] staging weights from /mnt/gcs to /dev/shm"]),),
    ),
    "slow-staging": Scenario(
        "Copying the weights takes six minutes and more",
        "The bucket is reached by public egress instead of Direct VPC egress.",
        "Deploy the staging image without --network and --vpc-egress=all-traffic.",
    ),
    "no-nat": Scenario(
        "The download from Hugging Face times out",
        "--vpc-egress=all-traffic without Cloud NAT.",
        "Deploy a Hugging Face id with --vpc-egress=all-traffic.",
        (_start(after="non-default args", lines=NO_NAT, exit_code=1),),
    ),
    "container-disk-full": Scenario(
        "OSError: [Errno 28] No space left on device",
        "The container's file system is memory, and smaller than the download.",
        "Deploy a Hugging Face id whose files are larger than the instance's memory.",
        (_start(after="non-default args", lines=DISK_FULL, exit_code=1),),
    ),
    "image-not-found": Scenario(
        "Image '...' not found.",
        "No such tag in Artifact Registry.",
        "Deploy an image of the project's registry that was never built.",
    ),
    "secret-denied": Scenario(
        "Permission denied on secret: projects/N/secrets/S/versions/latest for Revision service "
        "account ...",
        "The service account lacks roles/secretmanager.secretAccessor.",
        "Deploy with --set-secrets and a service account that was not granted the secret.",
    ),
}

_ENDPOINTS: dict[str, Scenario] = {
    "endpoint-401": Scenario(
        "401 Unauthorized",
        "The identity token is missing its signature, expired, or for another audience.",
        "Call with an expired or foreign token.",
        (
            _request(
                host=_ENDPOINT,
                times=-1,
                status=401,
                body=pages.UNAUTHORIZED.replace("{path}", "/"),
                headers={
                    "content-type": "text/html; charset=UTF-8",
                    "www-authenticate": 'Bearer error="invalid_token" error_description="The '
                    'access token could not be verified"',
                },
            ),
        ),
    ),
    "endpoint-403": Scenario(
        "403 Forbidden: Your client does not have permission to get URL / from this server.",
        "No identity token, or no roles/run.invoker.",
        "Call without a token.",
        ({"kind": "no-invoker"},),
    ),
    "endpoint-429": Scenario(
        "429 Rate exceeded.",
        "All instances are full, or the container still loads.",
        "Ask for more than max-instances x concurrency, and wait.",
        (
            _request(
                host=_ENDPOINT,
                times=-1,
                status=429,
                body=pages.NO_INSTANCE,
                headers={"content-type": "text/plain; charset=utf-8"},
            ),
        ),
    ),
    "loading-refused": Scenario(
        "429 or a refused connection just after the start",
        "The container listens before the model is loaded; /health must be read, not its status.",
        "Call the staging image before its /health says vllm_ready and warmed.",
        (
            _request(
                host=_ENDPOINT,
                path="^/v1/",
                times=3,
                status=429,
                body={"error": "model is loading"},
            ),
        ),
    ),
    "server-busy": Scenario(
        "503 server busy",
        "More than MAX_INFLIGHT requests wait for 30 s.",
        "Ask the staging image for more than MAX_INFLIGHT at once.",
        (_request(host=_ENDPOINT, path="^/v1/", times=-1, status=503, body="server busy"),),
    ),
    "truncated-headers": Scenario(
        "503 Model server early terminated the request (truncated headers)",
        "A proxy in the container speaks HTTP/1.0.",
        "",
        (
            _request(
                host=_ENDPOINT,
                path="^/v1/",
                times=-1,
                status=503,
                body="Model server early terminated the request (truncated headers)",
            ),
        ),
    ),
    "engine-crash": Scenario(
        "HTTP 502 upstream 500: EngineCore encountered an issue, then 503 no healthy backend",
        "The engine died under load; the instance comes back by itself.",
        "",
        (
            _request(
                host=_ENDPOINT,
                path="^/v1/",
                times=1,
                status=502,
                body="upstream 500: EngineCore encountered an issue. See stack trace (above) for "
                "the root cause.",
            ),
            _request(host=_ENDPOINT, path="^/v1/", times=4, status=503, body="no healthy backend"),
        ),
    ),
    "instance-killed": Scenario(
        "503 upstream connect error, then a cold start",
        "The instance died.",
        "",
        ({"kind": "kill-instances"},),
    ),
    "endpoint-slow": Scenario(
        "The answer takes seconds longer",
        "The platform or the engine is busy.",
        "",
        (_request(host=_ENDPOINT, times=-1, action="delay", delay_s=2.0),),
    ),
    "endpoint-cut": Scenario(
        "The connection breaks without an answer",
        "Network, or an instance that is replaced.",
        "",
        (_request(host=_ENDPOINT, action="cut"),),
    ),
}

_APIS: dict[str, Scenario] = {
    "api-401": Scenario(
        "UNAUTHENTICATED: Request had invalid authentication credentials.",
        "The access token is not valid any more; one refresh mends it.",
        "",
        ({"kind": "expire-tokens"},),
    ),
    "login-expired": Scenario(
        "invalid_grant: Token has been expired or revoked.",
        "The login is over: gcloud auth login.",
        "",
        ({"kind": "login", "value": "expired"},),
    ),
    "login-reauth": Scenario(
        "Reauthentication is needed / Reauthentication failed",
        "The organisation asks for a fresh login: gcloud auth login.",
        "",
        ({"kind": "login", "value": "reauth"},),
    ),
    "short-tokens": Scenario(
        "Tokens run out in the middle of the work",
        "Tokens live for seconds instead of an hour.",
        "",
        ({"kind": "token-lifetime", "seconds": 3},),
    ),
    "permission-denied": Scenario(
        "PERMISSION_DENIED: Permission 'run.services.create' denied on resource ... (or resource "
        "may not exist).",
        "The login may not do this. Give `permission` to choose which, e.g. run.services.list.",
        "",
        ({"kind": "deny", "permission": "run.services.create"},),
    ),
    "api-disabled": Scenario(
        "PERMISSION_DENIED: Cloud Run Admin API has not been used in project N before or it is "
        "disabled.",
        "The API is not enabled. Give `service` to choose which.",
        "Start with --empty.",
        ({"kind": "disable-api", "service": "run.googleapis.com"},),
    ),
    "api-429": Scenario(
        "RESOURCE_EXHAUSTED: Quota exceeded for quota metric 'Read requests' ...",
        "Too many requests a minute.",
        "",
        (
            _request(
                host=r"(^|-)run\.googleapis\.com$",
                times=-1,
                status=429,
                headers={"retry-after": "7"},
                body=_google(
                    429,
                    "RESOURCE_EXHAUSTED",
                    "Quota exceeded for quota metric 'Read requests' and limit 'Read requests per "
                    "minute per region' of service 'run.googleapis.com' for consumer "
                    "'project_number:424242424242'.",
                ),
            ),
        ),
    ),
    "logging-429": Scenario(
        "RESOURCE_EXHAUSTED: Quota exceeded for quota metric 'Read requests' ... of service "
        "'logging.googleapis.com'",
        "Cloud Logging allows 60 reads a minute.",
        "",
        (
            _request(
                host=r"^logging\.googleapis\.com$",
                times=-1,
                status=429,
                body=_google(
                    429,
                    "RESOURCE_EXHAUSTED",
                    "Quota exceeded for quota metric 'Read requests' and limit 'Read requests per "
                    "minute' of service 'logging.googleapis.com' for consumer "
                    "'project_number:424242424242'.",
                ),
            ),
        ),
    ),
    "api-503": Scenario(
        "UNAVAILABLE: The service is currently unavailable.",
        "Google has a problem; gcloud tries for half a minute.",
        "",
        (
            _request(
                host=r"googleapis\.com$",
                status=503,
                times=-1,
                body=_google(503, "UNAVAILABLE", "The service is currently unavailable."),
            ),
        ),
    ),
    "api-slow": Scenario(
        "Answers take many seconds",
        "Google is slow, or the network is.",
        "",
        (_request(host=r"googleapis\.com$", action="delay", delay_s=5.0, times=-1),),
    ),
    "api-cut": Scenario(
        "The connection breaks before anything was done",
        "Network.",
        "",
        (_request(host=r"googleapis\.com$", action="cut"),),
    ),
    "create-answer-lost": Scenario(
        "The client sees a broken connection, and the service exists",
        "The create was accepted, its answer was lost.",
        "",
        (_request(action="lose-answer", method="POST", path=_RUN_SERVICES + "$"),),
    ),
    "update-answer-lost": Scenario(
        "The client sees a broken connection, and the service has changed",
        "The update was accepted, its answer was lost.",
        "",
        (_request(action="lose-answer", method="PUT", path=_RUN_SERVICES + "/[^/]+$"),),
    ),
    "update-conflict": Scenario(
        "ABORTED: Conflict for resource 'S': version '1' was specified but current version is '2'.",
        "Someone else changed the service between reading and writing.",
        "Two updates at once.",
        (
            _request(
                method="PUT",
                path=_RUN_SERVICES + "/[^/]+$",
                status=409,
                body=_google(
                    409,
                    "ABORTED",
                    "Conflict for resource 'S': version '1' was specified but current version is "
                    "'2'.",
                ),
            ),
        ),
    ),
    "build-disk-full": Scenario(
        "OSError: [Errno 28] No space left on device",
        "The disk (or tmpfs) of the download is smaller than the model.",
        "",
        (
            {
                "kind": "build",
                "lines": [
                    _TRACEBACK,
                    "OSError: [Errno 28] No space left on device: '/tmp/model.safetensors'",
                ],
            },
        ),
    ),
    "build-hf-rate-limited": Scenario(
        "HTTP Error 429 thrown while requesting HEAD https://huggingface.co/... in a build",
        "Hugging Face counts requests by the shared address they leave from.",
        "",
        (
            {
                "kind": "build",
                "lines": [
                    "HTTP Error 429 thrown while requesting HEAD "
                    "https://huggingface.co/google/gemma-4-E2B-it/resolve/main/config.json",
                    "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests",
                ],
            },
        ),
    ),
}

SCENARIOS: Mapping[str, Scenario] = MappingProxyType(
    {
        **_DEPLOYMENT,
        **_ENDPOINTS,
        **_APIS,
        **COMPUTE_SCENARIOS,
        **HOST_SCENARIOS,
        **TPU_SCENARIOS,
        **AWS_SCENARIOS,
    }
)
