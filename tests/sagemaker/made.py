"""Endpoints, sights and requests made by hand, for what is decided without asking anybody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from backends.knowledge.sagemaker import image_tag
from backends.sagemaker import component_steps
from backends.sagemaker.components import Bounds, Component
from backends.sagemaker.endpoints import Config, Deployed, Endpoint, PlannedVariant, Pool, Variant
from backends.sagemaker.logs import Sight
from backends.sagemaker.quotas import Limit
from backends.sagemaker.spec import SageMakerSpec, resolved
from backends.sagemaker.world import Place, World
from backends.serving.startup_log import StartupLog

ACCOUNT = "123456789012"
REGION = "us-east-2"
NAME = "gemma4"
TAG = image_tag("0.30.0-gpu-py312-cu130-ubuntu24.04-sagemaker-v1.1")
OURS = {"managed-by": "vllm-devops", "vllm-devops-name": NAME}
POOL = ("ml.g6.xlarge", "ml.g6.2xlarge")

STARTING = (
    "INFO 11-30 10:00:00 [api_server.py:1] vLLM API server version 0.30.0",
    "INFO 11-30 10:00:10 [core.py:1] Initializing a V1 LLM engine (v0.30.0) with config: "
    "model='google/gemma-4-E2B-it'",
    "INFO 11-30 10:00:20 [gpu_model_runner.py:1] Starting to load model google/gemma-4-E2B-it...",
)
READY = (*STARTING, "INFO:     Application startup complete.")


def planned(name: str = "v-1a2b3c4d", **changes: Any) -> PlannedVariant:
    """A variant of a configuration, with changes."""
    first = PlannedVariant(
        name=name,
        model=f"{NAME}-vllm-1a2b3c4d",
        types=POOL,
        count=1,
        weight=1.0,
        startup_timeout_s=1800,
        raw={"VariantName": name},
    )
    return replace(first, **changes)


def config(*variants: PlannedVariant, **changes: Any) -> Config:
    """A configuration of ours."""
    first = Config(
        name=f"{NAME}-vllm-1a2b3c4d",
        region=REGION,
        arn=f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:endpoint-config/{NAME}-vllm-1a2b3c4d",
        created_at=900.0,
        variants=variants or (planned(),),
        tags=OURS,
    )
    return replace(first, **changes)


def endpoint(status: str = "InService", **changes: Any) -> Endpoint:
    """An endpoint of ours, with changes."""
    first = Endpoint(
        name=NAME,
        region=REGION,
        arn=f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:endpoint/{NAME}",
        status=status,
        reason="",
        config=f"{NAME}-vllm-1a2b3c4d",
        next_config="",
        created_at=1000.0,
        modified_at=1000.0,
        variants=(
            Variant("v-1a2b3c4d", 1.0, 1, 1, (Pool("ml.g6.xlarge", 1), Pool("ml.g6.2xlarge", 0))),
        ),
        tags=OURS,
    )
    return replace(first, **changes)


def deployed(status: str = "InService", **changes: Any) -> Deployed:
    """A deployment of ours, with changes to its endpoint."""
    return Deployed(NAME, REGION, config(), endpoint(status, **changes))


def hosting(**changes: Any) -> Deployed:
    """A deployment of ours that scales to zero, with changes to its component; None: it has none.

    Its configuration is that of two instances of one type.
    """
    spec = request(["ml.g6.xlarge"], scale_to_zero=True, instances=2)
    what, name = component_steps.hosted(spec, REGION, TAG)
    variant = planned(what.variant, model="", types=("ml.g6.xlarge",), raw=what.raw)
    first = Component(
        name=NAME,
        arn=f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:inference-component/{NAME}",
        endpoint=NAME,
        status="InService",
        model=what.name,
        copies=1,
        desired=1,
        created_at=1200.0,
        modified_at=1300.0,
        bounds=Bounds(0, 2),
    )
    count = changes.pop("count", 1)
    status = changes.pop("endpoint_status", "InService")
    placed = endpoint(status, config=name, variants=(Variant(what.variant, 1.0, count, count),))
    component = None if changes.pop("empty", False) else replace(first, **changes)
    return Deployed(NAME, REGION, config(variant, name=name), placed, component)


def sight(lines: Sequence[str] = (), began_at: float = 1300.0, **more: Any) -> Sight:
    """What logs of these lines tell."""
    log = StartupLog()
    for line in lines:
        log.feed_line(line)
    if not lines and "stream" not in more:
        return Sight(**more)
    more.setdefault("stream", "v-1a2b3c4d/i-0123")
    return Sight(log.progress, began_at=began_at, last_at=began_at + 30, **more)


def request(types: Sequence[str] = POOL, **options: Any) -> SageMakerSpec:
    """A resolved request."""
    spec = SageMakerSpec(**({"name": NAME} | options))
    return resolved(spec, REGION, types)


def limits(**values: float) -> dict[str, Limit]:
    """Quotas by type, `g6_xlarge=1` for ml.g6.xlarge."""
    return {
        f"ml.{key.replace('_', '.')}": Limit(value, f"L-{key}") for key, value in values.items()
    }


def place(region: str = REGION, **changes: Any) -> Place:
    """A region with quota for two types."""
    first = Place(region, limits(g6_xlarge=1, g6_2xlarge=1), {}, TAG)
    return replace(first, **changes)


def world(*places: Place, **changes: Any) -> World:
    """A world without any deployment."""
    first = World(ACCOUNT, "aws", (), (), None, places or (place(),))
    return replace(first, **changes)
