"""Lines that look bad and mean nothing: named as harmless, so that nobody chases them.

Collected 2026-11-30 from the reference articles and repositories, recorded logs of vLLM 0.32.0, and
vLLM's issue tracker.
"""

from __future__ import annotations

from backends.knowledge.signatures import Kind, Signature, signature

_HARMLESS: Kind = "harmless"
_REFERENCE = "reference articles and repositories"
_LOGS = "recorded logs of vLLM 0.32.0"


def _fine(id: str, pattern: str, why: str, source: str) -> Signature:
    return signature(id, pattern, why, "Nothing to do.", kind=_HARMLESS, source=source)


SIGNATURES: tuple[Signature, ...] = (
    _fine(
        "fp8_kv_on_tpu",
        r"Automatically using fp8_e5m2 for FP8 KV cache on TPU",
        "The line is repeated and wrong: the KV cache stays bf16 (tokens x 18 KiB for E2B shows "
        "it).",
        f"{_REFERENCE} (TPU)",
    ),
    _fine(
        "raising_batched_tokens",
        r"Raising max_num_batched_tokens from \d+ to \d+",
        "vLLM makes its token budget large enough for one image by itself.",
        f"{_REFERENCE} (SageMaker)",
    ),
    _fine(
        "waiting_for_resources",
        r"WAITING_FOR_RESOURCES|state: (?:ACCEPTED|PROVISIONING)\b|STATUS=PENDING"
        r"|state\W+PENDING\b",
        "A queued resource waits for hardware: normal queueing, for hours at times. Deleting it "
        "loses the place in the queue.",
        f"{_REFERENCE} (TPU)",
    ),
    _fine(
        "role_exists",
        r"EntityAlreadyExists",
        "The role is there from an earlier deployment and is used.",
        f"{_REFERENCE} (SageMaker)",
    ),
    _fine(
        "disk_larger_than_image",
        r"Disk size: '?\d+ GB'? is larger than image size",
        "gcloud reminds that the file system is grown at the first start; Google's images do.",
        f"{_REFERENCE} (TPU)",
    ),
    _fine(
        "shm_wait",
        r"No available shared memory broadcast block found in \d+ seconds",
        "A worker is busy for long: usual while it compiles or loads. Only if it goes on after "
        "the start, and nothing is answered, does something hang.",
        "vLLM issues 27313, 46611",
    ),
    _fine(
        "process_group",
        r"destroy_process_group\(\) was not called|resource_tracker: There appear to be \d+ leaked",
        "Printed at every end of a process; nothing was lost.",
        _LOGS,
    ),
    _fine(
        "probe_before_ready",
        r"GET /(?:health|ping) HTTP/[\d.]+\" 503|Startup probe failed.*\(attempt \d+\)",
        "A health check came before the engine was up; it is asked again.",
        _LOGS,
    ),
    _fine(
        "generation_config",
        r"Default (?:vLLM )?sampling parameters have been overridden by the model's "
        r"[`']?generation_config",
        "vLLM uses the model's own temperature and top-p where a request names none.",
        _LOGS,
    ),
    _fine(
        "no_cuda_on_cpu",
        r"No platform detected, vLLM is running on UnspecifiedPlatform.*cpu"
        r"|Triton is installed but \d+ active driver|Triton not installed or not compatible",
        "A CPU build looks for a GPU's compiler and does without.",
        _LOGS,
    ),
    _fine(
        "cpu_threads",
        r"Auto thread-binding|(?:auto|OMP) thread-binding is not supported|"
        r"VLLM_CPU_KVCACHE_SPACE .* not set",
        "A default of the CPU build; slower, not wrong.",
        _LOGS,
    ),
    _fine(
        "tpu_compiles",
        r"Compilation of worker\d+ .* finished in|Compiling .* with different input shapes",
        "A TPU compiles a program for each shape, at the first start for ten minutes and more; "
        "with a kept cache, not again.",
        f"{_REFERENCE} (TPU)",
    ),
    _fine(
        "sigterm",
        r"Received (?:signal )?SIGTERM|Shutting down\b|Application shutdown complete"
        r"|Container called exit\(0\)",
        "It was asked to end, as at every scale-down, redeploy or stop.",
        _LOGS,
    ),
    _fine(
        "scaled_to_zero",
        r"Instance was terminated because|instance.*scaled? (?:down )?to zero|No instances? (?:is|"
        r"are) running.*min",
        "Nothing is running because nobody asks; the next request starts it (minutes).",
        f"{_REFERENCE} (Cloud Run)",
    ),
    _fine(
        "client_went",
        r"Aborted request|request \S+ (?:was )?aborted|Client disconnected",
        "The client left before its answer was complete; vLLM stopped computing it.",
        _LOGS,
    ),
    _fine(
        "hf_unauthenticated",
        r"You are sending unauthenticated requests to the HF Hub|Xet Storage is enabled for this "
        r"repo, but the 'hf_xet' package is not installed",
        "Downloads work, only slower and with lower limits.",
        _LOGS,
    ),
    _fine(
        "deprecations",
        r"(?:Future|Deprecation|User)Warning:|is deprecated and will be removed",
        "A note to programmers.",
        _LOGS,
    ),
    _fine(
        "mistral_regex",
        r"tokenizer class you load from this checkpoint is not the same type|incorrect regex "
        r"pattern",
        "A note of the tokenizer library; Gemma's tokenizer is the right one.",
        _LOGS,
    ),
    _fine(
        "cuda_graph_cost",
        r"Capturing (?:the model for )?CUDA graphs?|CUDA graph .* can take additional|"
        r"Graph capturing finished in",
        "A step of every start.",
        _LOGS,
    ),
)
