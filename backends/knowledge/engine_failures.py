"""How a vLLM that does not start says so: one table of telling lines, causes and next actions.

Data, read by `serving.startup_log` and `failures`. Each rule's text was taken from a recorded log
(vLLM 0.32.0, CPU build, 2026-11-30), from the raising line in vLLM 0.32.0's source, or from a
published log of a cloud deployment. Rules are tried in order and the first that matches a line
names the failure, so the special stand before the general.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class FailureKind(StrEnum):
    """Why an engine did not start, or died. `unknown` carries the log's own last exception."""

    PORT_IN_USE = "port_in_use"
    MODEL_NOT_FOUND = "model_not_found"
    MODEL_GATED = "model_gated"
    UNSUPPORTED_MODEL = "unsupported_model"
    OUT_OF_MEMORY = "out_of_memory"
    KV_TOO_SMALL = "kv_too_small"
    MAX_MODEL_LEN = "max_model_len"
    BAD_ARGUMENT = "bad_argument"
    TENSOR_PARALLEL = "tensor_parallel"
    NO_GPU = "no_gpu"
    UNSUPPORTED_GPU = "unsupported_gpu"
    KILLED = "killed"
    HUB_UNREACHABLE = "hub_unreachable"
    DISK_FULL = "disk_full"
    ENGINE_DIED = "engine_died"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class FailureRule:
    """One way of failing.

    Args:
        id: What it is called.
        kind: The kind that `StartupProgress` reports.
        pattern: Searched in a line with colours, process prefix and log level taken off. Its
            named groups may be used in `cause` and `next_action`; a group that did not take
            part reads `unknown`.
        cause: Why it happens.
        next_action: The setting to change, by its tool argument and its vLLM flag.
    """

    id: str
    kind: FailureKind
    pattern: re.Pattern[str]
    cause: str
    next_action: str


def _rule(id: str, kind: FailureKind, pattern: str, cause: str, next_action: str) -> FailureRule:
    return FailureRule(id, kind, re.compile(pattern), cause, next_action)


RULES: tuple[FailureRule, ...] = (
    _rule(
        "port_in_use",
        FailureKind.PORT_IN_USE,
        r"\[Errno (?:98|48)\].*|[Aa]ddress already in use",
        "Another process listens on the port that vLLM was told to use.",
        "Choose a free `port` (--port), or stop what listens there.",
    ),
    _rule(
        "container_memory",
        FailureKind.KILLED,
        r"Memory limit of (?P<limit>\d+ \w+) exceeded",
        "The container used more memory than the {limit} it may have, and was killed.",
        "Raise the instance's memory, or load less: a smaller checkpoint, or `--load-format "
        "runai_streamer` where weights are staged in memory.",
    ),
    _rule(
        "killed",
        FailureKind.KILLED,
        r"Out of memory: Killed process|oom-kill|[Tt]erminated on signal 9|OOMKilled"
        r"|exit code: -9\b|Failed core proc\(s\): \{[^}]*: -9\b",
        "The kernel killed a process of the engine (signal 9): the machine has too little RAM for "
        "loading these weights.",
        "Use a machine with more RAM or add swap (16 GiB on a 7.8 GiB VM), or serve a smaller "
        "checkpoint.",
    ),
    _rule(
        "kv_below_length",
        FailureKind.KV_TOO_SMALL,
        r"max seq len \((?P<asked>\d+)\).*KV cache is needed.*"
        r"estimated maximum model length is (?P<fits>\d+)",
        "The memory left for the KV cache cannot hold one request of {asked} tokens; it can hold "
        "one of {fits}.",
        "Set `max_model_len` (--max-model-len) to {fits} or less, or leave more memory: raise "
        "`gpu_memory_utilization` (--gpu-memory-utilization), a smaller or quantised checkpoint, "
        "kv_cache_dtype fp8 where the GPU has it.",
    ),
    _rule(
        "kv_below_length_old",
        FailureKind.KV_TOO_SMALL,
        r"max seq len \((?P<asked>\d+)\).*KV cache is needed"
        r"|max seq len \((?P<asked_old>\d+)\) is larger than the maximum number of tokens",
        "The memory left for the KV cache cannot hold one request of the full context length.",
        "Lower `max_model_len` (--max-model-len), or raise `gpu_memory_utilization` "
        "(--gpu-memory-utilization).",
    ),
    _rule(
        "no_kv_memory",
        FailureKind.KV_TOO_SMALL,
        r"No available memory for the cache blocks|Available KV cache memory: -",
        "Weights and working memory already take more than gpu_memory_utilization allows, so "
        "nothing is left for the KV cache.",
        "Raise `gpu_memory_utilization` (--gpu-memory-utilization, at most 0.95), or serve a "
        "smaller or quantised checkpoint, or an accelerator with more memory; "
        "`--limit-mm-per-prompt` with zeros frees the vision and audio towers' share.",
    ),
    _rule(
        "accelerator_taken",
        FailureKind.OUT_OF_MEMORY,
        r"Free memory on device \S* ?\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup "
        r"is less than",
        "Only {free} of {total} GiB are free on the accelerator: another process holds the rest.",
        "Stop the other process (nvidia-smi names it), or lower `gpu_memory_utilization` "
        "(--gpu-memory-utilization) below {free}/{total}.",
    ),
    _rule(
        "cpu_kv_space",
        FailureKind.OUT_OF_MEMORY,
        r"Available memory on node \d+ \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\)",
        "The KV cache that was asked for is larger than this machine's free RAM ({free} of "
        "{total} GiB).",
        "Lower VLLM_CPU_KVCACHE_SPACE (GiB) or `gpu_memory_utilization`, which is a share of RAM "
        "on a CPU build, or free memory.",
    ),
    _rule(
        "host_cannot_map",
        FailureKind.OUT_OF_MEMORY,
        r"unable to mmap (?P<bytes>\d+) bytes.*Cannot allocate memory",
        "The host's RAM, not the accelerator's memory, is too small to map a weights file of "
        "{bytes} bytes.",
        "Choose an instance with the same accelerator and more RAM, or a smaller checkpoint.",
    ),
    _rule(
        "host_memory",
        FailureKind.OUT_OF_MEMORY,
        r"DefaultCPUAllocator: can't allocate memory|\bMemoryError\b|Cannot allocate memory",
        "The host ran out of RAM.",
        "Free memory, use a machine with more RAM, or serve a smaller checkpoint.",
    ),
    _rule(
        "accelerator_memory",
        FailureKind.OUT_OF_MEMORY,
        r"OutOfMemoryError|CUDA out of memory|HIP out of memory"
        r"|RESOURCE_EXHAUSTED.*(?:HBM|[Oo]ut of memory|hbm)|exceeds available HBM",
        "The accelerator's memory is full before the engine is up.",
        "Lower `max_model_len` (--max-model-len), `max_num_seqs` (--max-num-seqs) or "
        "--max-num-batched-tokens, or serve a smaller or quantised checkpoint, raise "
        "`tensor_parallel_size`, or take an accelerator with more memory.",
    ),
    _rule(
        "length_above_config",
        FailureKind.MAX_MODEL_LEN,
        r"max_model_len \((?P<asked>\d+)\) is greater than the derived max_model_len "
        r"\(max_position_embeddings=(?P<limit>\d+)",
        "{asked} tokens were asked for; the model's config.json allows {limit}.",
        "Set `max_model_len` (--max-model-len) to {limit} or less.",
    ),
    _rule(
        "length_above_config_old",
        FailureKind.MAX_MODEL_LEN,
        r"max_model_len \((?P<asked>\d+)\) is greater than the derived max_model_len",
        "{asked} tokens are more than the model's config.json allows.",
        "Lower `max_model_len` (--max-model-len), or leave it out to use the model's own limit.",
    ),
    _rule(
        "heads_indivisible",
        FailureKind.TENSOR_PARALLEL,
        r"attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel size "
        r"\((?P<tp>\d+)\)",
        "The model has {heads} attention heads, which {tp} accelerators cannot share evenly.",
        "Set `tensor_parallel_size` (--tensor-parallel-size) to a divisor of {heads}.",
    ),
    _rule(
        "too_few_accelerators",
        FailureKind.TENSOR_PARALLEL,
        r"World size \((?P<world>\d+)\) is larger than the number of available GPUs "
        r"\((?P<gpus>\d+)\)",
        "{world} accelerators were asked for; this machine has {gpus}.",
        "Set `tensor_parallel_size` (--tensor-parallel-size) to {gpus} or less.",
    ),
    _rule(
        "driver_mismatch",
        FailureKind.NO_GPU,
        r"Error 803|unsupported display driver / cuda driver combination",
        "The CUDA libraries of this vLLM do not fit the host's driver.",
        "Set VLLM_ENABLE_CUDA_COMPATIBILITY=0 and take an image built for the driver's CUDA "
        "version (a -cu129 tag on drivers of the 535 branch), or update the driver.",
    ),
    _rule(
        "no_accelerator",
        FailureKind.NO_GPU,
        r"Failed to infer device type|No CUDA GPUs are available|Found no NVIDIA driver"
        r"|no NVIDIA GPU detected|libcuda\.so\.1: cannot open shared object"
        r"|but no GPU was found",
        "This vLLM was built for an accelerator that it cannot see on this machine.",
        "Check the driver (nvidia-smi, or /dev/accel* on a TPU VM) and that the container was "
        "given the device; on a machine without one use a CPU build of vLLM.",
    ),
    _rule(
        "cuda_libraries",
        FailureKind.NO_GPU,
        r"ImportError: lib(?:cudart|cudnn|cublas)\S*\.so",
        "vLLM's CUDA libraries are missing: it was installed beside a torch for another CUDA "
        "version, or without its dependencies.",
        "Reinstall vllm with its dependencies, and torch from the index of the same CUDA version.",
    ),
    _rule(
        "no_kernel_for_gpu",
        FailureKind.UNSUPPORTED_GPU,
        r"no kernel image is available for execution on the device",
        "The wheel has no code for this GPU's compute capability.",
        "Install a vLLM build that lists the GPU's architecture (a T4 is sm_75).",
    ),
    _rule(
        "shared_memory",
        FailureKind.UNSUPPORTED_GPU,
        r"out of resource: shared memory, Required: (?P<needed>\d+), Hardware limit: (?P<has>\d+)",
        "An attention kernel wants {needed} bytes of shared memory; the GPU has {has}.",
        "On a Turing GPU run `prepare_host` again: the shared-memory clamp is missing, or an "
        "update of vLLM has undone it.",
    ),
    _rule(
        "no_bfloat16",
        FailureKind.UNSUPPORTED_GPU,
        r"[Bb]float16 is only supported on GPUs with compute capability",
        "The GPU is too old for bfloat16.",
        "Set `dtype` (--dtype) to float16.",
    ),
    _rule(
        "model_gated",
        FailureKind.MODEL_GATED,
        r"GatedRepoError|Cannot access gated repo|Access to model \S+ is restricted"
        r"|401 Client Error.*huggingface|RepositoryNotFoundError: 401",
        "The model's page asks for a licence to be accepted, or for a login, and none was given.",
        "Accept the licence on the model's page, then give a read token (HF_TOKEN; "
        "`save_hf_token` for a cloud target).",
    ),
    _rule(
        "hub_unreachable",
        FailureKind.HUB_UNREACHABLE,
        r"error happened while trying to locate the (?:file|files) on the Hub"
        r"|We couldn't connect to '?https?://|NameResolutionError|Temporary failure in name resol"
        r"|Max retries exceeded with url|LocalEntryNotFoundError: (?!Cannot find an appropriate)"
        r"|ConnectionError: .*(?:huggingface|hf\.co)|ConnectTimeout",
        "The model hub could not be reached from there.",
        "Give the engine a way out (NAT, Private Google Access does not cover the hub), or stage "
        "the weights with `stage_model` and serve the directory or bucket path.",
    ),
    _rule(
        "model_not_cached",
        FailureKind.MODEL_NOT_FOUND,
        r"Cannot find an appropriate cached snapshot folder",
        "The model is neither a directory here nor in the local hub cache, and the hub is switched "
        "off (HF_HUB_OFFLINE=1).",
        "Correct `model` to an existing directory with a config.json, or download it first.",
    ),
    _rule(
        "model_not_found",
        FailureKind.MODEL_NOT_FOUND,
        r"RepositoryNotFoundError|is not a local folder and is not a valid model identifier"
        r"|HFValidationError|Repo id must|Invalid repository ID or local directory"
        r"|does not appear to have a file named config\.json|Cannot find any model weights"
        r"|No such file or directory: '[^']*(?:config\.json|safetensors)",
        "There is no such model: no repository of that name, or a directory without config.json "
        "or weights.",
        "Correct `model`: an organisation/name that exists on the hub, or a directory that holds "
        "config.json, the tokenizer and the safetensors files.",
    ),
    _rule(
        "unsupported_model",
        FailureKind.UNSUPPORTED_MODEL,
        r"Model architectures? \S+ (?:are|is) not supported"
        r"|does not recognize this architecture|per-layer attribute",
        "This vLLM, or the transformers beside it, is too old for the model's architecture, or the "
        "model is of a kind vLLM does not serve.",
        "Use a newer vLLM image or wheel (Gemma 4 needs 0.27.2 or later), and check `model_type` "
        "in the model's config.json.",
    ),
    _rule(
        "disk_full",
        FailureKind.DISK_FULL,
        r"[Nn]o space left on device",
        "A disk filled up, usually while weights were downloaded or a cache was written.",
        "Use a larger disk, or point HF_HOME, TMPDIR and VLLM_CACHE_ROOT at one with room.",
    ),
    _rule(
        "unknown_argument",
        FailureKind.BAD_ARGUMENT,
        r"error: unrecognized arguments: (?P<argument>.+)",
        "This version of vLLM does not know {argument}.",
        "Remove {argument} from the extra arguments, or correct its spelling: `vllm serve "
        "--help=all` lists what this version takes.",
    ),
    _rule(
        "bad_value",
        FailureKind.BAD_ARGUMENT,
        r"error: argument (?P<argument>[^:]+): (?P<problem>.+)",
        "{argument}: {problem}.",
        "Correct the value of {argument}: `vllm serve --help=all` lists what it may be.",
    ),
    _rule(
        "bad_parser",
        FailureKind.BAD_ARGUMENT,
        r"invalid (?P<argument>tool call|reasoning) parser: (?P<value>\S+)",
        "This version of vLLM has no {argument} parser {value}.",
        "Correct the parser's name; the message lists those there are.",
    ),
    _rule(
        "bad_command_line",
        FailureKind.BAD_ARGUMENT,
        r"^(?:vllm|api_server\.py|__main__\.py)[\w ]*: error: (?P<problem>.+)",
        "The command line was refused: {problem}.",
        "Correct the argument named: `vllm serve --help=all` lists what this version takes.",
    ),
)

# Lines by which a running engine says that it has died. Only these may turn `ready` into
# `failed`: a served request's text can contain any of the words above.
DEATH = re.compile(
    r"engine core exited unexpectedly|^EngineCore encountered a fatal error"
    r"|EngineDeadError: EngineCore encountered an issue|^Worker proc \S+ died unexpectedly"
)

DEATH_CAUSE = "The engine process died while it was serving; the API process only answers 503 now."
DEATH_ACTION = (
    "Read the log above these lines for the reason, then start the server again "
    "(`start_serving` with restart)."
)
KILLED_CAUSE = "The process was killed (signal 9): by the kernel for want of RAM, or by someone."
KILLED_ACTION = (
    "Look for 'Out of memory: Killed process' in the kernel log (dmesg); use a machine with more "
    "RAM, add swap, or serve a smaller checkpoint."
)
UNKNOWN_CAUSE = "The log names no reason that is known here; these are its own last words."
UNKNOWN_ACTION = "Read the log's end with `get_logs`, and give it to `diagnose`."


def match_failure(text: str) -> tuple[FailureRule, str, str] | None:
    """The first rule that `text` (one line, prefixes off) meets, with cause and action filled in.

    Returns:
        The rule, its cause and its next action, or None when no rule matches.
    """
    for rule in RULES:
        found = rule.pattern.search(text)
        if found:
            words = {
                name: (value or "unknown").strip().rstrip(".")
                for name, value in found.groupdict().items()
            }
            return rule, rule.cause.format(**words), rule.next_action.format(**words)
    return None
