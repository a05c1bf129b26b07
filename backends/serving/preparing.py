"""What has to be known of an endpoint before any load: which model it serves, what it can hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.core.errors import EndpointError, EndpointRejectedError
from backends.serving.metrics import parse_metrics, serving_metrics

if TYPE_CHECKING:
    from backends.knowledge.roofline import StepModel
    from backends.serving.endpoint import Endpoint, EndpointClient
    from backends.serving.runs import BenchmarkRun


async def served_model(client: EndpointClient, endpoint: Endpoint, run: BenchmarkRun) -> list[str]:
    """Return the model's served name, and the name of its weights where it is told.

    Args:
        client: Asks.
        endpoint: Names the model, or leaves it to the server.
        run: Takes the context limit, and a warning where the models are not listed.

    Raises:
        EndpointRejectedError: The model is not served; what is served is named.
        EndpointError: The endpoint does not answer.
    """
    wanted = endpoint.model
    try:
        served = await client.models()
    except EndpointRejectedError:
        if wanted is None:
            raise
        run.endpoint.max_model_len = endpoint.max_model_len
        if endpoint.wire is not None:
            await client.first_look()
        run.warnings.append("the endpoint does not list its models")
        return [wanted]
    names = [entry.id for entry in served]
    for entry in served:
        if wanted is None or entry.id == wanted:
            run.endpoint.max_model_len = entry.max_model_len
            return [entry.id, *([entry.root] if entry.root else [])]
    raise EndpointRejectedError(
        f"{endpoint.base_url} does not serve {wanted or 'any model'}.",
        cause=f"It serves: {', '.join(names) or 'nothing'}.",
        next_action=f"Benchmark {names[0]}." if names else "Read get_logs.",
    )


async def find_pool(client: EndpointClient, run: BenchmarkRun, model: StepModel | None) -> None:
    """Find the size of the KV cache: the engine's own word, else the memory plan.

    Args:
        client: Asks.
        run: Takes the size, or a warning that it is not known.
        model: The roofline of what is measured, where it is known.
    """
    facts = run.endpoint
    try:
        published = serving_metrics(parse_metrics(await client.metrics_text()))
        facts.kv_cache_tokens = published.kv_cache_tokens
    except EndpointError as error:
        run.warnings.append(f"the engine does not publish its KV cache: {error.message}")
    if facts.kv_cache_tokens is not None:
        facts.kv_cache_source = "engine"
    elif model is not None and facts.max_model_len is not None:
        facts.kv_cache_tokens = model.kv_capacity_tokens(facts.max_model_len)
        facts.kv_cache_source = "memory plan"
    else:
        run.warnings.append(
            "the size of the KV cache is not known: no cell can be called infeasible for it"
        )
