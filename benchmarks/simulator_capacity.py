"""How many concurrent streams the simulator sustains on this machine, and how true it stays.

Starts one simulator in its own process, opens the streams from this one over loopback, and
compares what they got with what the engine's own model says they should get. Every figure is
simulated but the CPU seconds and the errors.

    python -m benchmarks.simulator_capacity --streams 1024 --tokens 128 --rounds 2
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from backends.serving.simulator.__main__ import build_engine
from backends.serving.simulator.config import parse_config
from backends.serving.simulator.engine import Group, SequenceState
from backends.serving.simulator.kv_pool import hash_blocks
from backends.serving.simulator.virtual import Run, run_closed_loop

ROOT = Path(__file__).resolve().parent.parent
USAGE = re.compile(rb'"completion_tokens":(\d+)')
PROMPT = "Explain how to keep a service healthy under load , stream"


@dataclass
class Outcome:
    """What one stream got."""

    sent_s: float = 0.0
    first_s: float = 0.0
    done_s: float = 0.0
    tokens: int = 0
    chunks: int = 0
    error: str = ""


@dataclass
class Stream(asyncio.Protocol):
    """A client that reads one event stream after another on one connection."""

    requests: list[bytes]
    finished: asyncio.Future[None]
    outcomes: list[Outcome] = field(default_factory=list)
    transport: asyncio.Transport | None = None
    tail: bytes = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._next()

    def _next(self) -> None:
        assert self.transport is not None
        if not self.requests:
            self.transport.close()
            if not self.finished.done():
                self.finished.set_result(None)
            return
        self.outcomes.append(Outcome(sent_s=time.monotonic()))
        self.tail = b""
        self.transport.write(self.requests.pop())

    def data_received(self, data: bytes) -> None:
        """Count events; at the end of an answer send the next request."""
        outcome = self.outcomes[-1]
        outcome.chunks += data.count(b'"delta":{"content":"')
        if not outcome.first_s and b"data: " in data:
            outcome.first_s = time.monotonic()
        self.tail = (self.tail + data)[-600:]
        if b'{"error"' in data:
            outcome.error = self.tail.decode(errors="replace")
        if self.tail.endswith(b"0\r\n\r\n"):
            outcome.done_s = time.monotonic()
            found = USAGE.findall(self.tail)
            outcome.tokens = int(found[-1]) if found else 0
            self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note an answer that was cut off."""
        if not self.finished.done():
            self.outcomes[-1].error = repr(exc) or "closed"
            self.finished.set_result(None)


def request_bytes(number: int, round_number: int, tokens: int) -> bytes:
    body = {
        "model": "simulated",
        "messages": [{"role": "user", "content": f"{PROMPT} {number} round {round_number}"}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    payload = json.dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: simulator\r\n"
        f"content-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
    )
    return head.encode() + payload


async def load(port: int, streams: int, rounds: int, tokens: int) -> list[Outcome]:
    loop = asyncio.get_running_loop()
    clients = [
        Stream([request_bytes(n, r, tokens) for r in range(rounds)], loop.create_future())
        for n in range(streams)
    ]

    async def open_one(client: Stream) -> None:
        await loop.create_connection(lambda: client, "127.0.0.1", port)

    await asyncio.gather(*(open_one(client) for client in clients))
    await asyncio.wait_for(asyncio.gather(*(client.finished for client in clients)), 900)
    return [outcome for client in clients for outcome in client.outcomes]


def expected(arguments: list[str], streams: int, rounds: int, tokens: int) -> Run:
    def sequence(number: int) -> SequenceState:
        prompt = [str(number), *("word" for _ in range(24))]
        hashes = hash_blocks(prompt)
        return SequenceState(
            prompt_tokens=len(prompt),
            block_hashes=hashes,
            target_tokens=tokens,
            ends_with="length",
            max_tokens=tokens,
            group=Group(1, 1),
        )

    engine = build_engine(parse_config(arguments))
    return run_closed_loop(engine, sequence, concurrency=streams, requests=streams * rounds)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--streams", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=2, help="requests of each stream")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--profile", default="cloudrun-l4")
    parser.add_argument("--time-scale", type=float, default=1.0)
    options = parser.parse_args()

    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    arguments = [
        *("--fd", str(sock.fileno()), "--profile", options.profile, "--admission-cap", "0"),
        *("--max-num-seqs", str(options.streams), "--served-model-name", "simulated"),
        *("--time-scale", str(options.time_scale), "--max-model-len", "4096"),
    ]
    run = expected(arguments, options.streams, options.rounds, options.tokens)
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115 a pipe nobody reads would stop the server
    server = subprocess.Popen(
        [sys.executable, "-m", "backends.serving.simulator", *arguments],
        cwd=ROOT,
        pass_fds=[sock.fileno()],
        stdout=log,
        stderr=log,
    )
    try:
        wait_until_listening(port)
        idle_cpu_s = cpu_s(server.pid)
        own_cpu_s = time.process_time()
        started_s = time.monotonic()
        outcomes = asyncio.run(load(port, options.streams, options.rounds, options.tokens))
        duration_s = time.monotonic() - started_s
        used_cpu_s = cpu_s(server.pid) - idle_cpu_s
        own_cpu_s = time.process_time() - own_cpu_s
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=20)
        sock.close()
    log.seek(0)
    return report(options, outcomes, run, duration_s, used_cpu_s, own_cpu_s, log.read())


def wait_until_listening(port: int) -> None:
    deadline_s = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)
        else:
            return


def report(
    options: argparse.Namespace,
    outcomes: list[Outcome],
    run: Run,
    duration_s: float,
    used_cpu_s: float,
    own_cpu_s: float,
    log: str,
) -> int:
    wanted = options.streams * options.rounds
    complete = [o for o in outcomes if o.done_s and not o.error and o.tokens == options.tokens]
    tokens = sum(o.tokens for o in outcomes)
    chunks = sum(o.chunks for o in outcomes)
    latency_s = sum(o.done_s - o.sent_s for o in complete) / max(len(complete), 1)
    late = [line for line in log.splitlines() if "too slow" in line]
    print(f"profile {options.profile}, {options.streams} streams, {options.rounds} each, simulated")
    print(f"  complete                {len(complete)} of {wanted}")
    print(f"  errors                  {sum(1 for o in outcomes if o.error)}")
    print(f"  tokens                  {tokens} in {chunks} content events")
    print(f"  output tokens/s         {tokens / duration_s:9.1f}")
    print(f"    by the model          {run.output_tokens_per_s:9.1f}")
    print(f"  mean latency s          {latency_s:9.3f}")
    print(f"    by the model          {run.mean_latency_s:9.3f}")
    print(f"  server CPU s            {used_cpu_s:9.2f} ({used_cpu_s / tokens * 1e6:.0f} us/token)")
    print(f"  server CPU share        {used_cpu_s / duration_s:9.2f} of one core")
    print(f"  client CPU share        {own_cpu_s / duration_s:9.2f} of one core")
    print(f"  'too slow' warnings     {len(late)}")
    for line in late[-3:]:
        print(f"    {line}")
    return 0 if len(complete) == wanted else 1


if __name__ == "__main__":
    sys.exit(main())
