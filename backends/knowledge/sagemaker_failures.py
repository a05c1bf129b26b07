"""How SageMaker deployments fail: the words, why, and what mends it.

Collected 2026-11-30 from the SageMaker L4 article and its repository. vLLM's own start-up failures
are in `backends.knowledge.engine_failures`; these are the platform's, and those that have another
cause or fix there. `{name}` and `{target}` are filled in.
"""

from __future__ import annotations

from backends.knowledge.signatures import Signature, first_found, signature

# The first that matches counts.
SIGNATURES: tuple[Signature, ...] = (
    signature(
        "login_throttled",
        r"CreateOAuth2Token.*Rate exceeded|Rate exceeded.*CreateOAuth2Token",
        "Several calls refreshed the same `aws login` at once, and the sign-in service throttled "
        "them; nothing is wrong with the login.",
        "Call again in a few seconds; calls are spread out and tried again by themselves.",
    ),
    signature(
        "login_expired",
        r"session has expired|ExpiredToken|security token included in the request is expired"
        r"|SSO session .* (?:has )?expired|Token has expired and refresh failed",
        "The AWS login has run out.",
        "Ask the person to run `aws login` (or `aws sso login`), and to unset AWS_SESSION_TOKEN "
        "where an old one is set.",
    ),
    signature(
        "quota_calls_throttled",
        r"TooManyRequestsException.*ListServiceQuotas|ListServiceQuotas.*TooManyRequests",
        "Service Quotas answers few requests a second, and several asked at once.",
        "Call again in a minute: one region is asked at a time, and what was answered is kept.",
    ),
    signature(
        "quota",
        r"ResourceLimitExceeded|account-level service limit",
        "The account's endpoint quota of an instance type is used up. A pool holds quota for every "
        "type it lists, whichever type is placed; a blue/green update needs the old and the new "
        "instances at once.",
        "find_capacity(target='{target}') has limit and use of each type and region: take another "
        "region or fewer instance_types, destroy what is not needed, or ask the person to request "
        "the quota named.",
    ),
    signature(
        "capacity",
        r"InsufficientInstanceCapacity|Unable to provision requested ML compute capacity",
        "AWS has no free instance of these types in this region now. Quota is permission, not "
        "hardware. SageMaker looked for about 30 minutes; nothing was started and nothing is "
        "charged.",
        "Deploy in another region where you have quota, or with options.fallback_regions so that "
        "the next region is tried by itself: find_capacity(target='{target}').",
    ),
    signature(
        "in_progress",
        r"Cannot (?:update|delete) in-progress endpoint",
        "SageMaker changes or deletes no endpoint that is Creating or Updating.",
        "wait_until_ready(target='{target}', name='{name}'); or destroy it: its plan leaves an "
        "operation that deletes it as soon as it settles.",
    ),
    signature(
        "cannot_start",
        r"CannotStartContainerError",
        "The container could not be started at all (there is no log): the image's CUDA is newer "
        "than the NVIDIA driver of the machine image.",
        "Deploy again with options.ami='al2023-ami-sagemaker-inference-gpu-4-1' (driver 580; "
        "gpu-3-1 has 550, gpu-2 has 535), which cu130 images need.",
    ),
    signature(
        "host_memory",
        r"unable to mmap \d+ bytes.*Cannot allocate memory",
        "The host's RAM, not the GPU's memory, is too small to map the weights: ml.g6.xlarge has "
        "16 GiB.",
        "Deploy with larger types of the same GPU: options.instance_types=['ml.g6.2xlarge', "
        "'ml.g6.4xlarge'].",
    ),
    signature(
        "kv_too_small",
        r"No available memory for the cache blocks|Available KV cache memory: -",
        "Weights and working memory take more of the L4's 21.96 GiB than gpu_memory_utilization "
        "allows, so nothing is left for the KV cache.",
        "Serve a smaller or quantised checkpoint, or options.text_only=true (no vision and audio "
        "towers), or raise options.gpu_memory_utilization (at most 0.95).",
    ),
    signature(
        "gpu_memory",
        r"CUDA out of memory|OutOfMemoryError",
        "The model does not fit the L4: 24 GB, of which CUDA sees 21.96 GiB.",
        "Serve a smaller or quantised checkpoint, or options.text_only=true, or lower "
        "max_model_len and max_num_seqs.",
    ),
    signature(
        "batched_tokens",
        r"Chunked MM input disabled but|max_tokens_per_mm_item.*larger than max_num_batched_tokens",
        "With image input one picture takes 2,496 tokens, and vLLM batches no less at once.",
        "options.max_num_batched_tokens=2496 or more, or options.text_only=true.",
    ),
    signature(
        "health_check",
        r"did not pass the ping health check|health check (?:failed|timed? ?out)",
        "The container did not answer its health check (/ping) in time: the engine failed, or was "
        "still loading when the window closed.",
        "get_logs(target='{target}', name='{name}') has the engine's own words. If it was still "
        "loading, raise options.startup_timeout_s (at most 3600).",
    ),
    signature(
        "role",
        r"Could not assume role|role.*is (?:invalid|not authorized)|cannot be assumed",
        "SageMaker may not assume the execution role: it is new and not yet known everywhere, or "
        "its trust policy does not name sagemaker.amazonaws.com.",
        "Deploy again in a minute; a role of your own needs that trust policy.",
    ),
    signature(
        "image_missing",
        r"(?:image|repository).*(?:does not exist|not found)|Failed to pull|CannotPullContainer",
        "There is no image of that name and tag in this region's registry, or the role may not "
        "pull it.",
        "Leave options.image out (the newest pinned one is taken), or correct it.",
    ),
    signature(
        "role_exists",
        r"EntityAlreadyExists",
        "A role of that name is there already, which is no fault.",
        "Plan again: it is then used as it is.",
    ),
    signature(
        "not_found",
        r"Could not find (?:endpoint|model|endpoint configuration)|Endpoint \S+ of account \d+ not",
        "There is no such thing in this region (any more).",
        "list_deployments(target='{target}') shows what there is, in every region.",
    ),
    signature(
        "no_log",
        r"ResourceNotFoundException.*log (?:group|stream)|specified log group does not exist",
        "There is no log: no container has been started yet. It waits for capacity, or its image "
        "could not be started.",
        "get_status(target='{target}', name='{name}') says which.",
    ),
    signature(
        "zero_not_offered",
        r"Min instance count needs to be greater than 0|only supported for inference component",
        "This region, or this kind of endpoint, does not let the number of instances be zero.",
        "Deploy in another region (us-east-1 takes it), or without options.scale_to_zero: then "
        "stop_serving(target='{target}', name='{name}') ends the cost and keeps the settings.",
    ),
    signature(
        "no_copy",
        r"Inference Component has no capacity to process this request",
        "It is at zero copies, so nothing could answer. Where automatic scaling is set up, the "
        "request wakes it, which takes some twelve minutes.",
        "wait_until_ready(target='{target}', name='{name}'), then ask again; "
        "start_serving(target='{target}', name='{name}') starts it where no request does.",
    ),
    signature(
        "no_room",
        r"not enough hardware resources on the instances for this endpoint",
        "A copy asks for more than an instance gives, or the most instances are taken: a copy "
        "takes whole GPUs, and of the memory only a small part can be reserved (1024 MB is, 4096 "
        "MB is not, of 16 GiB).",
        "destroy(target='{target}', name='{name}') and deploy with more options.instances or types "
        "with more GPUs (options.tensor_parallel_size is what a copy takes).",
    ),
    signature(
        "component_busy",
        r"Cannot \w+ inference component .* while it is in state",
        "A component that is being made or scaled is not changed; that passes by itself.",
        "wait_until_ready(target='{target}', name='{name}'), then again.",
    ),
    signature(
        "component_named",
        r"Inference Component Name header is required",
        "The endpoint hosts inference components, and the request named none.",
        "query_model names it by itself; other clients pass InferenceComponentName='{name}'.",
    ),
    signature(
        "no_components",
        r"Inference Components are not supported in this Endpoint",
        "The endpoint holds its model itself, so nothing can be put on it.",
        "destroy(target='{target}', name='{name}') and deploy with options.scale_to_zero.",
    ),
    signature(
        "copies_at_first",
        r"copy count an integer larger than 0",
        "SageMaker makes no component without a copy: the first one is always started.",
        "Deploy with one copy; update_scaling(target='{target}', name='{name}', instances=0) takes "
        "it away afterwards.",
    ),
    signature(
        "hosts_components",
        r"while it hosts inference components",
        "An endpoint is deleted after what it hosts, not before.",
        "destroy(target='{target}', name='{name}') deletes both, in that order.",
    ),
)


def signature_of(words: str) -> Signature | None:
    """The first signature found in some words, or None."""
    return first_found(SIGNATURES, words)
