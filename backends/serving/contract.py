"""Whether a candidate keeps the contract of what serves: both are asked the same, and compared."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from backends.core.answers import Check
from backends.core.errors import ConflictError, DevopsError
from backends.serving.answers import ServedModel
from backends.serving.endpoint import Endpoint, EndpointClient

# Both sides are asked these, greedily; what counts is that the contract holds, not the wording.
PROMPTS = ("Answer with one word: the capital of France.", "Count from 1 to 5.")
_MAX_TOKENS = 48
_TIMEOUT_S = 14.0
# A candidate's first token may come later than this many times the serving one's, plus 1 s.
_TTFT_FACTOR = 3.0


@dataclass(frozen=True)
class _Side:
    """What one of the two answered."""

    models: tuple[str, ...]
    max_model_len: int | None
    answers: tuple[str, ...]
    ttft_ms: float | None


async def compare(serving: Endpoint, candidate: Endpoint) -> list[Check]:
    """Ask both the same, and say where the candidate is worse.

    Args:
        serving: What serves now.
        candidate: What may take its place.

    Returns:
        A check each; one that is not ok breaks the contract.
    """
    old, new = await asyncio.gather(_ask(serving), _ask(candidate), return_exceptions=True)
    if isinstance(new, BaseException):
        return [Check(name="candidate answers", ok=False, detail=_said(new))]
    checks = [
        Check(
            name="candidate answers",
            ok=all(new.answers),
            detail=f"{sum(map(bool, new.answers))} of {len(new.answers)} prompts",
        )
    ]
    if isinstance(old, BaseException):
        # Nothing to compare with: what serves does not answer, so the candidate cannot be worse.
        checks.append(Check(name="serving revision answers", ok=True, detail=f"no ({_said(old)})"))
        return checks
    checks.append(
        Check(
            name="same served model",
            ok=set(old.models) <= set(new.models),
            detail=f"serving {', '.join(old.models)}; candidate {', '.join(new.models)}",
        )
    )
    longer = (new.max_model_len or 0) >= (old.max_model_len or 0)
    checks.append(
        Check(
            name="context not shorter",
            ok=longer,
            detail=f"serving {old.max_model_len}, candidate {new.max_model_len} tokens",
        )
    )
    if old.ttft_ms is not None and new.ttft_ms is not None:
        limit = old.ttft_ms * _TTFT_FACTOR + 1000
        checks.append(
            Check(
                name="first token in time",
                ok=new.ttft_ms <= limit,
                detail=f"serving {old.ttft_ms:.0f} ms, candidate {new.ttft_ms:.0f} ms "
                f"(limit {limit:.0f})",
            )
        )
    return checks


def refuse_broken(checks: Sequence[Check], candidate: str) -> None:
    """Refuse to shift traffic to a candidate that breaks the contract.

    Args:
        checks: What `compare` found.
        candidate: Its name.

    Raises:
        ConflictError: A check is not ok.
    """
    broken = [item for item in checks if not item.ok]
    if broken:
        raise ConflictError(
            f"{candidate} breaks the contract, so no traffic was shifted: "
            + "; ".join(f"{item.name}: {item.detail}" for item in broken),
            cause="It was compared with what serves now, on the same prompts.",
            next_action="Mend the candidate and deploy it again; check=false shifts all the same.",
        )


async def _ask(endpoint: Endpoint) -> _Side:
    async with EndpointClient(endpoint, timeout_s=_TIMEOUT_S) as client:
        models = await _models(endpoint, client)
        answers: list[str] = []
        ttft_ms: float | None = None
        for prompt in PROMPTS:
            said = await client.chat(
                prompt, max_tokens=_MAX_TOKENS, temperature=0.0, timeout_s=_TIMEOUT_S
            )
            answers.append(said.text or said.reasoning or "")
            ttft_ms = said.ttft_ms  # the last: the first may have waited for an instance
        return _Side(
            tuple(model.id for model in models),
            models[0].max_model_len if models else None,
            tuple(answers),
            ttft_ms,
        )


async def _models(endpoint: Endpoint, client: EndpointClient) -> list[ServedModel]:
    """What is served; through SageMaker it cannot be asked, and is what was deployed."""
    if endpoint.wire is None:
        return await client.models()
    return [ServedModel(id=str(endpoint.model), max_model_len=endpoint.max_model_len)]


def _said(error: BaseException) -> str:
    if isinstance(error, DevopsError):
        return f"{error.message} {error.cause}".strip()
    raise error
