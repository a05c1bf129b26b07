"""How a vLLM that has started, its host or a request to it fails: the words, why, what mends it.

What stops an engine from starting is in `engine_failures`, what a control plane says in its own
table. Collected 2026-11-30 from the reference articles and repositories, vLLM's documentation and
its issue tracker (numbers are of vllm-project/vllm).
"""

from __future__ import annotations

from backends.knowledge.signatures import Signature, signature

_REFERENCE = "reference articles and repositories"
_VLLM_DOCS = "vLLM documentation, troubleshooting"

# Special ones stand before general ones.
SIGNATURES: tuple[Signature, ...] = (
    # ------------------------------------------------------------------ the engine, while it serves
    signature(
        "sampler_warmup_memory",
        r"out of memory occurred when warming up sampler with (?P<requests>\d+) dummy requests",
        "The logits of {requests} sequences do not fit beside weights and KV cache.",
        "Deploy again with a lower max_num_seqs (plan_deployment(target='{target}', "
        "max_num_seqs=64)), or a lower gpu_memory_utilization.",
        source="vLLM issue 17939",
    ),
    signature(
        "tpu_hbm",
        r"HLO temporaries \((?P<need>[\d.]+G)\) exceeds? available HBM \((?P<has>[\d.]+G)\)",
        "The compiled program needs {need} of temporaries; the chip has {has} left.",
        "Deploy again with a smaller max_model_len or max_num_batched_tokens, more chips, or a "
        "smaller checkpoint; leave gpu_memory_utilization unset on a TPU.",
        source=f"{_REFERENCE} (v5e, 0.95 failed after a 691 s compile)",
    ),
    signature(
        "tpu_busy",
        r"TPU is already in use by (?:another )?process|libtpu\.so already in use"
        r"|/dev/vfio/\d+\)?: Device or resource busy|libtpu_lockfile",
        "Another process, or the lock file of one that was killed, holds the TPU.",
        "Stop the other container, remove /tmp/libtpu_lockfile on the VM if none runs, then "
        "start_serving(target='{target}', name='{name}', restart=True).",
        source="jax-ml/jax 10192, marin-community/marin 4675",
    ),
    signature(
        "gpu_fault",
        r"CUDA error: (?:an illegal memory access|uncorrectable ECC|device-side assert|unspecified "
        r"launch failure|misaligned address)|NVRM: Xid|cudaErrorIllegalAddress"
        r"|CUDA error: the launch timed out",
        "A kernel crashed on the GPU: a fault of vLLM's kernel for this model and GPU, or of the "
        "hardware (Xid, ECC).",
        "start_serving(target='{target}', name='{name}', restart=True); if it comes back, deploy "
        "with another image version, or extra_args=['--enforce-eager'] to tell the two apart.",
        source="vLLM issues 6976, 24430",
    ),
    signature(
        "nccl",
        r"NCCL error|ncclSystemError|ncclInternalError|unhandled (?:system|cuda) error .*NCCL"
        r"|NCCL_ERROR_SYSTEM_ERROR",
        "The chips of one model cannot talk to each other: too little shared memory in the "
        "container (Docker gives 64 MB), or a broken link.",
        "Run the container with --shm-size=10gb or --ipc=host; NCCL_DEBUG=INFO names the call.",
        source="vLLM issues 1710, 10626",
    ),
    signature(
        "flashinfer_capability",
        r"FlashInfer requires GPUs with sm75 or higher|requires CUDA >= [\d.]+",
        "The image's CUDA is older than the GPU needs: Blackwell (RTX PRO 6000, compute "
        "capability 12.0) needs 12.9 or newer.",
        "plan_deployment(target='{target}', options={{'image': ...}}) with a -cu129 or -cu130 "
        "image; VLLM_USE_FLASHINFER_SAMPLER=0 goes without FlashInfer.",
        source="public notes on vLLM 0.22 with compute capability 12.0",
    ),
    signature(
        "no_compiler",
        r"Failed to find C compiler|fatal error: Python\.h: No such file|ninja: command not found",
        "Triton compiles a launcher when vLLM starts and finds no C compiler or Python headers.",
        "Install gcc and the Python headers (apt-get install build-essential python3-dev) on the "
        "host, or use vLLM's image, which has them.",
        source="vLLM issues 2997, 11865",
    ),
    signature(
        "broken_weights",
        r"SafetensorError|HeaderTooLarge|MetadataIncompleteBuffer|invalid load key"
        r"|Error while deserializing header",
        "A weights file is cut short or is not a safetensors file (a pointer of Git LFS, an "
        "upload that broke off).",
        "stage_model(target='{target}', model=...) brings what is missing or wrong; "
        "list_models(target='{target}', inspect=...) says what is there.",
        source=_VLLM_DOCS,
    ),
    signature(
        "weights_mismatch",
        r"size mismatch for|weight .* (?:not found|is missing) in the (?:model|checkpoint)"
        r"|There is no module or parameter named|KeyError: '(?:model\.)?layers\.\d+\.",
        "The weights do not belong to the architecture that config.json names, or this vLLM does "
        "not know the encoding.",
        "list_models(target='{target}', inspect=...) says what the files are; use a newer vLLM "
        "image.",
        source=_VLLM_DOCS,
    ),
    signature(
        "quantization_refused",
        r"quantization method .* is not supported for the current GPU|Minimum capability: \d+"
        r"|Unknown quantization method|does not match the quantization method specified"
        r"|Quantization method specified in the model config",
        "The GPU or this vLLM cannot compute in the checkpoint's encoding, or --quantization "
        "contradicts config.json.",
        "Leave quantization out for weights that are quantised already; see formats with "
        "list_models(target='{target}', inspect=...), or take another encoding.",
        source=_VLLM_DOCS,
    ),
    signature(
        "driver_gone",
        r"NVIDIA-SMI has failed because it couldn.t communicate|Driver/library version mismatch"
        r"|nvidia-container-cli: initialization error|could not select device driver",
        "The NVIDIA driver is not loaded: the kernel was updated without it, or it was never "
        "installed.",
        "prepare_host(target='{target}', name='{name}') checks and installs it; then reboot the "
        "VM.",
        source="GoogleCloudPlatform/compute-gpu-installation 18",
    ),
    signature(
        "engine_timeout",
        r"RPC call to \w+ timed out|TimeoutError: RPC|Engine iteration timed out"
        r"|execute_model.*timed out",
        "The engine did not answer its own server for minutes: a step hangs, or the host is "
        "overloaded.",
        "get_metrics(target='{target}', name='{name}') for what it does; then "
        "start_serving(target='{target}', name='{name}', restart=True) with fewer max_num_seqs.",
        source=_VLLM_DOCS,
    ),
    signature(
        "child_killed_with_parent",
        r"server exited (?:about )?\d+ ?s after (?:the )?start with an empty log",
        "The server was started as a child of a process that ended, and went with it.",
        "start_serving(target='{target}', name='{name}'): it detaches the server.",
        source=f"{_REFERENCE} (T4)",
    ),
    # --------------------------------------------------------------------------- requests to it
    signature(
        "prompt_too_long",
        r"maximum context length is (?P<limit>\d+) tokens|longer than the maximum model length of "
        r"(?P<length>\d+)|too long to fit into the model",
        "The prompt and the tokens asked for are more than max_model_len.",
        "Ask with a shorter prompt or fewer max_tokens, or deploy with a larger max_model_len: "
        "plan_deployment(target='{target}', max_model_len=...) says whether it fits.",
        source="vLLM issues 12165, 19464",
    ),
    signature(
        "no_chat_template",
        r"default chat template is no longer allowed|does not define (?:a|one) chat template"
        r"|Cannot use chat template functions because tokenizer\.chat_template is not set",
        "The checkpoint's tokenizer has no chat template: it is a base model (not -it), or its "
        "files are incomplete.",
        "Deploy the instruction-tuned checkpoint (-it), or add "
        "extra_args=['--chat-template=FILE'].",
        source="vLLM issue 39279",
    ),
    signature(
        "tools_not_enabled",
        r'"auto" tool choice requires --enable-auto-tool-choice|tool choice requires '
        r"--enable-auto-tool-choice",
        "The server was started without a tool-call parser.",
        "Deploy again with this server's plan_deployment(target='{target}'), which sets "
        "--enable-auto-tool-choice --tool-call-parser=gemma4 --reasoning-parser=gemma4.",
        source=f"{_REFERENCE}, vLLM documentation on tool calling",
    ),
    signature(
        "tool_calls_as_text",
        r"tool_calls?: ?\[\].*<\|tool_call|content.{0,40}<\|tool_call>|tool calls? come back as "
        r"text",
        "The model called a tool, and the server passed its words on as text: no parser for them.",
        "Deploy again with --enable-auto-tool-choice --tool-call-parser=gemma4 "
        "--reasoning-parser=gemma4 (plan_deployment(target='{target}') sets them).",
        source=f"{_REFERENCE} (Cloud Run)",
    ),
    signature(
        "wrong_model_name",
        r"The model [`'\"]?(?P<asked>\S+?)[`'\"]? does not exist",
        "The request asks for model {asked}, which is not served under that name.",
        "get_status(target='{target}', name='{name}') lists the names; query_model uses the right "
        "one by itself.",
        source="vLLM's answer, recorded with 0.32.0",
    ),
    signature(
        "images_refused",
        r"At most 0 (?:image|audio|video)|is not a multimodal model|(?:image|audio) input is not "
        r"supported",
        "The server was started without the image or audio tower, or with its limit at 0.",
        "Ask with text only, or deploy again with --limit-mm-per-prompt that allows it.",
        source="vLLM documentation, multimodal inputs",
    ),
    signature(
        "first_image_422",
        r"422 (?:Unprocessable Entity|Unprocessable Content).*(?:image|audio|multimodal)"
        r"|first multimodal request.*422",
        "The first image after a start meets a processor that is still warming up.",
        "Ask once more.",
        kind="symptom",
        source=f"{_REFERENCE} (TPU)",
    ),
    signature(
        "empty_reply",
        r"content\W+null\W.*reasoning|reasoning only, empty content|finish_reason\W+length\W.*"
        r"content\W+(?:null|\"\")",
        "max_tokens was used up by the reasoning, so nothing was left for the answer.",
        "query_model(target='{target}', name='{name}', max_tokens=512) or more; at least 64.",
        source=f"{_REFERENCE} (T4)",
    ),
    signature(
        "api_key",
        r'"error": ?"Unauthorized"|Incorrect API key|invalid_api_key',
        "The endpoint wants an API key and got none, or another one.",
        "Set VLLM_API_KEY to the key the engine was started with (VLLM_BASE_URL's key for an "
        "attached one), then start this MCP server again.",
        source="vLLM's answer, recorded with 0.32.0",
    ),
    signature(
        "structured_output",
        r"Grammar error|Failed to (?:compile|convert) .*(?:grammar|schema)|Invalid (?:json )?schema"
        r"|structured[ _]outputs?.*(?:unsupported|not supported)",
        "The JSON schema or grammar of the request uses what the backend cannot enforce.",
        "Simplify the schema, or ask without structured output.",
        source="vLLM documentation, structured outputs",
    ),
    # ------------------------------------------------------------------- this server and its host
    signature(
        "mcp_sdk",
        r"No module named 'mcp\.server\.fastmcp'|This is mcp 2\.x",
        "Code for the MCP SDK 1.x runs with 2.x: FastMCP became MCPServer.",
        "Reinstall with this project's requirements.txt (make setup); pin mcp>=2 in your own code.",
        source=f"{_REFERENCE} (Cloud Run)",
    ),
    signature(
        "stdin_closed",
        r"only `?initialize`? (?:was )?answered|stdin (?:was )?closed before",
        "The client closed stdin after its first message, which ends a stdio server.",
        "Keep stdin open until the last answer has come (make probe shows how).",
        source=f"{_REFERENCE} (Cloud Run)",
    ),
    signature(
        "tmp_full",
        r"OSError: \[Errno 122\]|Disk quota exceeded|\[Errno 28\].*(?:/tmp|pip-)"
        r"|(?:/tmp|pip).*No space left on device",
        "The folder pip unpacks into is a small tmpfs.",
        "Set TMPDIR and PIP_CACHE_DIR to a disk with room; prepare_host(target='{target}', "
        "name='{name}') does.",
        source=f"{_REFERENCE} (T4: /tmp of 3.9 GB)",
    ),
    signature(
        "stale_settings",
        r"served max_model_len \d+ (?:though|although) (?:the )?env(?:ironment)? says \d+",
        "The MCP process keeps the environment it was started with.",
        "Start this MCP server again after changing its settings.",
        source=f"{_REFERENCE} (TPU)",
    ),
    # ------------------------------------------- what people say rather than what programs print
    signature(
        "flat_throughput",
        r"throughput.{0,60}(?:is flat|flat (?:above|from|beyond)|stops? rising"
        r"|does(?: not|n't) (?:rise|grow|scale))",
        "More requests are sent than are let through at once: by the platform (Cloud Run's "
        "concurrency) or by the engine (max_num_seqs).",
        "plan_deployment(target='{target}', options={{'concurrency': N}}) with N at least "
        "max_num_seqs; get_benchmarks says at which level it stops.",
        source=f"{_REFERENCE} (Cloud Run: --concurrency=4)",
    ),
    signature(
        "scaled_to_zero_by_redeploy",
        r"silently scales? to zero|manual scaling (?:was |is )?(?:lost|gone|dropped)",
        "A redeploy or an update with --scaling=auto ended the manual scaling it had.",
        "update_scaling(target='{target}', name='{name}', instances=1); this server keeps the mode "
        "it finds.",
        source=f"{_REFERENCE} (Cloud Run)",
    ),
    signature(
        "client_gave_up_waiting",
        r"(?:gcloud|client|deploy\w*).{0,40}(?:gives? up|gave up|stopped) waiting|Deployment is "
        r"taking longer than expected|create\b.{0,60}\btimed out"
        r"|timed out.{0,60}(?:creat|deploy)ing",
        "The client stopped waiting; the request lives on, may become ready, and bills.",
        "list_deployments() before anything is tried again, then "
        "wait_until_ready(target='{target}', name='{name}').",
        source=f"{_REFERENCE} (Cloud Run, TPU)",
    ),
    signature(
        "staging_stuck",
        r"staging_tmpfs.{0,80}(?:stuck|0\.0|for \d{3,})|stuck.{0,40}staging_tmpfs",
        "The container does not get its weights from the bucket: no right to read it, or a slow "
        "way (public egress took 386 s, Direct VPC with Private Google Access 65 s).",
        "plan_deployment(target='{target}') grants roles/storage.objectViewer and warns of a "
        "subnet without Private Google Access.",
        source="DiffusionGemma repository",
    ),
    signature(
        "log_quota",
        r"Quota exceeded for quota metric 'Read requests'|ReadRequestsPerMinutePerProject"
        r"|logging\.googleapis\.com.{0,80}(?:429|RATE_LIMIT_EXCEEDED)",
        "A project may read Cloud Logging 60 times a minute; something asks more often.",
        "Wait a minute; this server backs off by itself.",
        source="DiffusionGemma repository",
    ),
    signature(
        "health_window",
        r"Creating for (?:exactly )?1800 ?s|stays? Creating.{0,40}after (?:a|the) crash",
        "SageMaker waits out its start-up health check window although the container has crashed.",
        "get_logs(target='{target}', name='{name}') now; plan with a smaller "
        "startup_timeout_s for the next try.",
        source=f"{_REFERENCE} (SageMaker)",
    ),
    signature(
        "schema_not_enforced",
        r"json_schema (?:was |is )?(?:ignored|not enforced)|response_format (?:was |is )?ignored",
        "On TPU structured output is not enforced while thinking is off.",
        "Ask with chat_template_kwargs enable_thinking=true, or check the answer yourself.",
        source=f"{_REFERENCE} (TPU)",
    ),
    signature(
        "cached_benchmark",
        r"(?:second|later|next|low) (?:cell|level|run|anchor)s? (?:is |was |are |were )?(?:too fast"
        r"|faster than|~?100 ?% hits)",
        "Prompts repeat, so the prefix cache answers what should be computed.",
        "run_benchmark makes every prompt its own unless one is given; in other tools a new seed "
        "for each cell.",
        kind="symptom",
        source=f"{_REFERENCE} (TPU)",
    ),
    signature(
        "utilization_on_tpu",
        r"0\.95.{0,60}(?:TPU|v5e|HBM)|(?:TPU|v5e).{0,60}gpu[-_]memory[-_]utilization.{0,4}0\.95",
        "A TPU needs room for compiled programs: 0.95 failed after 691 s of compiling on v5e.",
        "Deploy again without gpu_memory_utilization.",
        source=f"{_REFERENCE} (TPU)",
    ),
    # ------------------------------------------------------------------------------- what follows
    signature(
        "engine_dead",
        r"EngineDeadError|EngineCore encountered an issue|Engine core initialization failed"
        r"|EngineCore failed to start|engine core exited unexpectedly|AsyncEngineDeadError"
        r"|EngineCore encountered a fatal error|WorkerProc initialization failed",
        "The engine process ended; what it said just before is the reason.",
        "get_logs(target='{target}', name='{name}', lines=500) has the lines before it; then "
        "start_serving(target='{target}', name='{name}', restart=True).",
        kind="symptom",
        source="vLLM 0.32.0 source",
    ),
    signature(
        "refused",
        r"Connection refused|ECONNREFUSED|Failed to connect to \S+ port|connect: connection refused"
        r"|All connection attempts failed",
        "Nothing listens there yet or any more: vLLM is still loading, or has ended.",
        "get_status(target='{target}', name='{name}'), then wait_until_ready.",
        kind="symptom",
        source=_REFERENCE,
    ),
    signature(
        "not_allowed",
        r"HTTP 40[13]\b|(?<!\" )\b40[13] (?:Unauthorized|Forbidden)|Your client does not have "
        r"permission to get URL",
        "The endpoint does not let this login in: no identity token, or no right to invoke.",
        "get_help(topic='doctor', target='{target}') says who is logged in; on Cloud Run grant "
        "roles/run.invoker (options.invokers of plan_deployment).",
        kind="symptom",
        source=_REFERENCE,
    ),
    signature(
        "many_waiting",
        r"Running: \d+ reqs, Waiting: (?:[1-9]\d+) reqs",
        "More requests come than the engine batches: they wait in its queue.",
        "Lower the load, or raise max_num_seqs (plan_deployment says whether it fits); "
        "get_metrics(target='{target}', name='{name}', interval_s=10) shows it live.",
        kind="symptom",
        source="vLLM's statistics line",
    ),
    signature(
        "preempted",
        r"is preempted by (?:RECOMPUTE|SWAP)|PreemptionMode\.RECOMPUTE|not enough KV cache space",
        "The KV cache is full: sequences are thrown out and computed again.",
        "Lower max_num_seqs or max_model_len, or use kv_cache_dtype fp8 where the GPU has it: "
        "plan_deployment(target='{target}') shows how many requests fit.",
        source="vLLM documentation, optimization",
    ),
)
