"""Levels run by the engine, and their records held against what the server did."""

from __future__ import annotations

import itertools
import json
import statistics
from dataclasses import dataclass

from backends.serving.endpoint import Endpoint
from backends.serving.engine.epoll_engine import EpollEngine
from backends.serving.loadgen import LevelRaw, LevelSpec, RequestRecord
from tests.serving.mock_servers import MockSse, Truth

CHAT = "/v1/chat/completions"


def bodies(count: int, tokens: int = 16, text: str = "Hi") -> list[bytes]:
    asked = {
        "model": "mock-model",
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": text}],
    }
    return [json.dumps(asked).encode()] * count


async def run_level(
    server: MockSse,
    spec: LevelSpec,
    *,
    workers: int | None = None,
    headers: dict[str, str] | None = None,
) -> LevelRaw:
    async def provide() -> dict[str, str]:
        return headers or {}

    endpoint = Endpoint(server.base_url, ca_file=server.ca_file, headers=provide)
    return await EpollEngine(workers).run_level(spec, endpoint, lambda _: None, lambda: False)


def kinds(raw: LevelRaw) -> list[str]:
    return [record.failure.kind if record.failure else "ok" for record in raw.records]


@dataclass
class Errors:
    """How far times were off, in milliseconds: of every request, and of every gap."""

    ttft_ms: list[float]
    itl_ms: list[float]

    @property
    def ttft_median_ms(self) -> float:
        return statistics.median(map(abs, self.ttft_ms))

    @property
    def itl_median_ms(self) -> float:
        return statistics.median(map(abs, self.itl_ms))


def errors(raw: LevelRaw, truth: dict[str, Truth]) -> Errors:
    """Return the errors of every request; each must have as many events as the server sent."""
    out = Errors([], [])
    for record in raw.records:
        sent = truth[record.request_id]
        assert len(record.content_ns) == len(sent.content_ns)
        true_ttft_ns = sent.content_ns[0] - sent.arrived_ns
        out.ttft_ms.append((record.content_ns[0] - record.sent_ns - true_ttft_ns) / 1e6)
        gaps = [b - a for a, b in itertools.pairwise(record.content_ns)]
        true_gaps = [b - a for a, b in itertools.pairwise(sent.content_ns)]
        out.itl_ms += [(a - b) / 1e6 for a, b in zip(gaps, true_gaps, strict=True)]
    return out


def lag_of(record: RequestRecord) -> int:
    assert record.send_lag_ns is not None
    return record.send_lag_ns
