"""Vertex AI: the publishers' models of Model Garden, as far as they are listed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.rehearsal.cloud.web import Api, Json, Request, page

if TYPE_CHECKING:
    from backends.rehearsal.cloud.cloud import Cloud

# Open models and one that is none, so that a reader has something to leave out.
_MODELS = (
    ("gemma4", "gemma-4-e2b-it", "GOOGLE_OWNED_OSS_WITH_GOOGLE_CHECKPOINT"),
    ("gemma4", "gemma-4-26b-a4b-it", "GOOGLE_OWNED_OSS_WITH_GOOGLE_CHECKPOINT"),
    ("gemma3", "gemma-3-4b-it", "GOOGLE_OWNED_OSS_WITH_GOOGLE_CHECKPOINT"),
    ("text-embedding-005", "default", "PROPRIETARY"),
)


def api(cloud: Cloud) -> Api:
    """The API."""
    del cloud

    def models(request: Request, publisher: str) -> Json:
        known: list[Json] = [
            {
                "name": f"publishers/{publisher}/models/{name}",
                "versionId": version,
                "openSourceCategory": category,
                "launchStage": "GA",
            }
            for name, version, category in _MODELS
            if publisher == "google"
        ]
        return page(request, known, "publisherModels", default=100)

    made = Api("aiplatform.googleapis.com", "Vertex AI API", always_on=True)
    made.add("GET", r"/v1beta1/publishers/([^/]+)/models", models)
    return made
