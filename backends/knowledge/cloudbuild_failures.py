"""How builds at Cloud Build fail: the words, why, and what mends it.

Collected 2026-11-30 from the articles that stage weights by Cloud Build, from Docker's and Hugging
Face's own messages, and from Cloud Build's troubleshooting page.
"""

from __future__ import annotations

from backends.knowledge.signatures import Signature, most_telling, signature

_GRANT = "./init.sh --target cloudrun-l4 grants that account roles/cloudbuild.builds.builder."

# The first that matches counts.
SIGNATURES: tuple[Signature, ...] = (
    signature(
        "build_disk_full",
        r"No space left on device",
        "The build's disk, or a folder in its memory such as /tmp, is smaller than what it holds.",
        "Write to /workspace, which is the build's disk, and give the build a larger one "
        "(--disk-size).",
    ),
    signature(
        "build_hub_rate_limit",
        r"429 Client Error|HTTP Error 429|Too Many Requests",
        "Hugging Face limits requests from addresses that many share, as Cloud Build's are.",
        "save_hf_token, so that it knows who asks, then call again: what is there is skipped.",
    ),
    signature(
        "build_hub_gated",
        r"GatedRepo|gated repo|Access to model .* is restricted|401 Client Error",
        "Hugging Face wants a token of somebody who has accepted the model's licence.",
        "Accept the licence on the model's page, then save_hf_token and call again.",
    ),
    signature(
        "build_push_denied",
        r"uploadArtifacts.{0,40}denied|denied: Permission|artifactregistry.*PERMISSION_DENIED",
        "The account that builds run as may not write to Artifact Registry.",
        _GRANT,
    ),
    signature(
        "build_bucket_denied",
        r"does not have (?:storage|serviceusage)\.\S+ (?:access|permission)|storage\.objects\.\w+ "
        r"access",
        "The account that builds run as may not use the bucket.",
        _GRANT,
    ),
    signature(
        "build_base_image",
        r"manifest for \S+ not found|pull access denied|failed to resolve source metadata",
        "The Dockerfile's FROM names an image that is not there, or may not be read.",
        "Correct the FROM line; vLLM's own images are vllm/vllm-openai:vVERSION.",
    ),
    signature(
        "build_no_dockerfile",
        r"unable to evaluate symlinks in Dockerfile path|Dockerfile: no such file",
        "There is no Dockerfile at the top of the folder.",
        "Name the folder that holds the Dockerfile.",
    ),
    signature(
        "build_timeout",
        r"context deadline exceeded|Build timed out|status.{0,20}TIMEOUT",
        "It took longer than the build may.",
        "Give it longer (--timeout), or a larger machine (--machine-type).",
    ),
)


def signature_of(*words: str) -> Signature | None:
    """What explains these words best, or None."""
    return most_telling(SIGNATURES, *words)
