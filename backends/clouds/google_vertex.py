"""Vertex AI Model Garden: which open Gemma checkpoints Google itself offers to copy or deploy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.core.answers import ModelEntry
from backends.core.errors import DevopsError

if TYPE_CHECKING:
    from backends.clouds.google_rest import GoogleRest

_URL = "https://aiplatform.googleapis.com/v1beta1/publishers/google/models"


async def garden_models(rest: GoogleRest) -> list[ModelEntry]:
    """Open Gemma models of Model Garden; where it cannot be asked, one entry that says why.

    Args:
        rest: Asks Google.
    """
    try:
        found = await rest.pages(_URL, "Vertex AI Model Garden", "publisherModels")
    except DevopsError as error:
        note = f"not asked: {error.message} {error.next_action}".strip()
        return [ModelEntry(id="Vertex AI Model Garden", where="Vertex AI", note=note)]
    entries: list[ModelEntry] = []
    for item in found:
        name = str(item.get("name", ""))
        model = name.rpartition("/")[2]
        if "gemma" not in model.lower() or item.get("openSourceCategory") == "PROPRIETARY":
            continue
        version = str(item.get("versionId") or "")
        entries.append(
            ModelEntry(
                id=f"{name}@{version}" if version else name,
                where="Vertex AI Model Garden",
                kind=model,
                note="its weights are copied from there with stage_model of the same Hugging Face "
                "id, or deployed by Vertex itself",
            )
        )
    return entries
