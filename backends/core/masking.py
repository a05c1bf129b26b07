"""What looks like a credential never reaches a file or a person, wherever it was pasted."""

from __future__ import annotations

import re

MASKED = "***"

# The shapes in which the tokens of this product's world come. Documented prefixes, 2026-11: Hugging
# Face (hf_), OpenAI-style keys (sk-), Google OAuth access tokens (ya29.) and API keys (AIza), AWS
# key ids (AKIA, ASIA), GitHub (ghp_, github_pat_), and JSON web tokens (eyJ…).
_TOKEN = re.compile(
    r"\b(hf_|sk-|ya29\.|AIza|AKIA|ASIA|gh[pousr]_|github_pat_|eyJ)[A-Za-z0-9._~+/=-]{8,}"
)
_BEARER = re.compile(r"(?i)\b(bearer\s+)\S{8,}")


def mask(text: str) -> str:
    """`text` with every credential in it cut to its kind, e.g. `hf_***`."""
    return _BEARER.sub(rf"\1{MASKED}", _TOKEN.sub(rf"\1{MASKED}", text))
