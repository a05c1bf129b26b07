"""The clients `benchmarks/load_engine.py` compares, each run alone in a process of its own.

    python benchmarks/load_clients.py vllm --url http://127.0.0.1:8000 --streams 64 --waves 4 ...

`ours` is the product's load engine. `vllm` is the request function of `vllm bench serve`, taken
from whatever vLLM the interpreter has installed. `httpx` and `aiohttp` are what one writes by hand:
a line at a time, `json.loads`, `perf_counter` after it. Every client first sends one short request
a stream, which is not measured, so that nobody pays for connections. What is written (JSON) are
each request's send, TTFT and gaps as the client saw them, and what the client took for it.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import itertools
import json
import resource
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROMPT = "word " * 200
MODEL = "mock-model"
WARM_TOKENS = 8
PATH = "/v1/chat/completions"


@dataclass
class Seen:
    """One request as a client saw it, in nanoseconds (`sent_ns` on the monotonic clock)."""

    request_id: str
    sent_ns: int
    ttft_ns: int
    gaps_ns: list[int]
    tokens: int


@dataclass
class Outcome:
    """What a client saw, and what it took: CPU from the first measured send to the last parse."""

    seen: list[Seen] = field(default_factory=list)
    failed: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    memory_mib: float = 0.0
    notes: dict[str, Any] = field(default_factory=dict)


One = Callable[[str, int], Awaitable[Seen]]


def body(tokens: int) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def memory_mib() -> float:
    """Return the most memory this process has held; getrusage counts what forked it as well."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split(maxsplit=1)[0]) / 1024


async def closed_loop(asked: argparse.Namespace, one: One) -> Outcome:
    """Keep the streams busy: warm-up first, then the measured requests."""
    outcome = Outcome()
    await asyncio.gather(*(one(f"w{i}", WARM_TOKENS) for i in range(asked.streams)))
    upcoming = iter(range(asked.streams * asked.waves))

    async def stream() -> None:
        for index in upcoming:
            try:
                outcome.seen.append(await one(f"m{index}", asked.tokens))
            except Exception as error:  # noqa: BLE001 - whatever a client fails with is its result
                outcome.failed += 1
                outcome.notes.setdefault("first failure", repr(error)[:300])

    cpu_s, began_s = time.process_time(), time.perf_counter()
    await asyncio.gather(*(stream() for _ in range(asked.streams)))
    outcome.cpu_s = time.process_time() - cpu_s
    outcome.wall_s = time.perf_counter() - began_s
    outcome.memory_mib = memory_mib()
    return outcome


def tls(asked: argparse.Namespace) -> ssl.SSLContext | None:
    return ssl.create_default_context(cafile=asked.ca_file) if asked.ca_file else None


class Lines:
    """Reads a stream's lines the way one does by hand."""

    def __init__(self, request_id: str) -> None:
        self.seen = Seen(request_id, time.perf_counter_ns(), 0, [], 0)
        self._last_ns = 0

    def take(self, line: str | bytes) -> None:
        """Take a line that has just come."""
        text = line.decode() if isinstance(line, bytes) else line
        if not text.startswith("data: ") or text == "data: [DONE]":
            return
        chunk = json.loads(text[6:])
        now_ns = time.perf_counter_ns()
        if chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
            if self._last_ns:
                self.seen.gaps_ns.append(now_ns - self._last_ns)
            else:
                self.seen.ttft_ns = now_ns - self.seen.sent_ns
            self._last_ns = now_ns
        elif chunk.get("usage"):
            self.seen.tokens = chunk["usage"]["completion_tokens"]


async def run_httpx(asked: argparse.Namespace) -> Outcome:
    import httpx

    unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    context = tls(asked)
    async with httpx.AsyncClient(
        timeout=600, limits=unlimited, verify=context if context else True
    ) as client:

        async def one(request_id: str, tokens: int) -> Seen:
            lines = Lines(request_id)
            headers = {"x-request-id": request_id}
            url = asked.url + PATH
            async with client.stream("POST", url, json=body(tokens), headers=headers) as answer:
                answer.raise_for_status()
                async for line in answer.aiter_lines():
                    lines.take(line)
            return lines.seen

        return await closed_loop(asked, one)


async def run_aiohttp(asked: argparse.Namespace) -> Outcome:
    import aiohttp  # type: ignore[import-not-found,unused-ignore]

    connector = aiohttp.TCPConnector(limit=0, ssl=tls(asked) or True)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def one(request_id: str, tokens: int) -> Seen:
            lines = Lines(request_id)
            headers = {"x-request-id": request_id}
            url = asked.url + PATH
            async with session.post(url, json=body(tokens), headers=headers) as answer:
                answer.raise_for_status()
                async for line in answer.content:
                    lines.take(line.strip())
            return lines.seen

        return await closed_loop(asked, one)


def vllms_request_functions() -> Any:  # noqa: ANN401 - theirs, and not installed where this is checked
    """Load the module of the installed vLLM by itself: it needs nothing of vLLM, nor PyTorch."""
    found = importlib.util.find_spec("vllm")
    assert found is not None
    (folder,) = found.submodule_search_locations or [""]
    path = Path(folder) / "benchmarks" / "lib" / "endpoint_request_func.py"
    spec = importlib.util.spec_from_file_location("endpoint_request_func", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


async def run_vllm(asked: argparse.Namespace) -> Outcome:
    import aiohttp

    theirs = vllms_request_functions()

    # as `vllm bench serve` makes its session
    connector = aiohttp.TCPConnector(
        limit=asked.streams,
        limit_per_host=asked.streams,
        ttl_dns_cache=300,
        use_dns_cache=True,
        keepalive_timeout=60,
        enable_cleanup_closed=True,
        force_close=False,
        ssl=tls(asked) or False,
    )
    timeout = aiohttp.ClientTimeout(total=6 * 60 * 60)
    async with aiohttp.ClientSession(
        connector=connector, trust_env=True, timeout=timeout
    ) as session:

        async def one(request_id: str, tokens: int) -> Seen:
            output = await theirs.async_request_openai_chat_completions(
                theirs.RequestFuncInput(
                    prompt=PROMPT,
                    api_url=asked.url + PATH,
                    prompt_len=200,
                    output_len=tokens,
                    model=MODEL,
                    ignore_eos=True,
                    extra_body={"temperature": 0.0},
                    extra_headers={"x-request-id": request_id},
                    request_id=request_id,
                ),
                session=session,
            )
            if not output.success:
                raise RuntimeError(output.error)
            return Seen(
                request_id,
                round(output.start_time * 1e9),
                round(output.ttft * 1e9),
                [round(gap * 1e9) for gap in output.itl],
                output.output_tokens,
            )

        return await closed_loop(asked, one)


async def run_ours(asked: argparse.Namespace) -> Outcome:
    sys.path.insert(0, str(ROOT))
    from backends.serving.endpoint import Endpoint
    from backends.serving.engine.epoll_engine import EpollEngine
    from backends.serving.loadgen import LevelSpec

    own_cpu_s = 0.0

    async def begin() -> None:
        nonlocal own_cpu_s
        own_cpu_s = time.process_time()

    async def end() -> None:
        nonlocal own_cpu_s
        own_cpu_s = time.process_time() - own_cpu_s

    spec = LevelSpec(
        asked.streams,
        PATH,
        [json.dumps(body(asked.tokens)).encode()] * (asked.streams * asked.waves),
        warmup_bodies=[json.dumps(body(WARM_TOKENS)).encode()] * asked.streams,
        before_window=begin,
        after_window=end,
    )
    endpoint = Endpoint(asked.url, ca_file=Path(asked.ca_file) if asked.ca_file else None)
    engine = EpollEngine(asked.workers)
    raw = await engine.run_level(spec, endpoint, lambda _: None, lambda: False)
    outcome = Outcome(
        failed=sum(record.failure is not None for record in raw.records),
        cpu_s=raw.cpu_total_s + own_cpu_s,
        wall_s=(raw.ended_ns - raw.started_ns) / 1e9,
        memory_mib=raw.peak_memory_mib + memory_mib(),
    )
    lags = sorted(raw.loop_lag_ns)
    outcome.notes = {
        "timestamps": raw.timestamp_source,
        "workers": raw.workers,
        "workers_mib": raw.peak_memory_mib,
        "lag_p99_ms": lags[int(len(lags) * 0.99)] / 1e6 if lags else None,
        "run_delay_s": raw.run_delay_s,
        "cut_short": raw.cut_short,
    }
    for record in raw.records:
        times = record.content_ns
        if record.failure is None:
            gaps = [after - before for before, after in itertools.pairwise(times)]
            outcome.seen.append(
                Seen(
                    record.request_id,
                    record.sent_ns,
                    times[0] - record.sent_ns,
                    gaps,
                    record.completion_tokens or 0,
                )
            )
        else:
            outcome.notes.setdefault("first failure", record.failure.message)
    return outcome


CLIENTS: dict[str, Callable[[argparse.Namespace], Awaitable[Outcome]]] = {
    "ours": run_ours,
    "vllm": run_vllm,
    "aiohttp": run_aiohttp,
    "httpx": run_httpx,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("client", choices=CLIENTS)
    parser.add_argument("--url", required=True)
    parser.add_argument("--ca-file")
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--waves", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--output", type=Path, required=True)
    asked = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < asked.streams + 100:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, asked.streams + 1000), hard))

    async def run() -> Outcome:
        return await CLIENTS[asked.client](asked)

    outcome = asyncio.run(run())
    asked.output.write_text(json.dumps(asdict(outcome)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
