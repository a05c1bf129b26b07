"""The engine in real time, and the gate in front of it."""

from __future__ import annotations

import asyncio
import time

import pytest

from backends.serving.simulator.__main__ import build_engine
from backends.serving.simulator.config import parse_config
from backends.serving.simulator.driver import AdmissionGate, Driver
from backends.serving.simulator.jobs import Delivery, Job, JobBuilder
from backends.serving.simulator.log import set_up_logging
from backends.serving.simulator.protocol import CompletionRequest

CONFIG = parse_config(["--time-scale=5"])


def job(tokens: int) -> Job:
    request = CompletionRequest(prompt="x", max_tokens=tokens, ignore_eos=True, temperature=0)
    made = JobBuilder(CONFIG).completion(request, Delivery())
    made.delivery.whole = True
    return made


async def serve(driver: Driver, request: Job) -> None:
    driver.submit(request)
    while request.delivery.unfinished:
        await request.delivery.wait()
    driver.release(request)


async def test_a_late_event_loop_is_caught_up_with() -> None:
    driver = Driver(build_engine(CONFIG))
    driver.start()
    request = job(100)
    (sequence,) = request.sequences

    async def block() -> None:
        await asyncio.sleep(0.1)
        time.sleep(0.2)

    started_s = time.monotonic()
    await asyncio.gather(serve(driver, request), block())
    wall_s = time.monotonic() - started_s
    await driver.stop()
    # 100 steps of 20 ms, five times faster; the 0.2 s in which nothing ran are made up for.
    scheduled_s = sequence.last_token_s - sequence.arrival_s
    assert scheduled_s == pytest.approx(0.4, rel=0.1)
    assert scheduled_s <= wall_s < scheduled_s + 0.15


async def test_what_arrives_while_a_step_runs_joins_the_next_one() -> None:
    driver = Driver(build_engine(CONFIG))
    driver.start()
    first, second = job(50), job(50)
    await asyncio.gather(serve(driver, first), serve(driver, second))
    await driver.stop()
    (one,), (two,) = first.sequences, second.sequences
    assert abs(one.last_token_s - two.last_token_s) < 0.05
    assert driver.engine.stats.iteration_tokens.count < 60


async def test_the_periodic_line_is_vllms_and_stops_when_nothing_happens(
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_up_logging()
    driver = Driver(build_engine(CONFIG))
    driver.start()
    await serve(driver, job(20))
    await driver.stop()
    for _ in range(3):
        driver.log_stats(10.0)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert (
        "Engine 000: Avg prompt throughput: 0.1 tokens/s, Avg generation throughput: 2.0 "
        "tokens/s, Running: 0 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%, "
        "Prefix cache hit rate: 0.0%" in lines[0]
    )
    assert "Avg generation throughput: 0.0 tokens/s" in lines[1]


async def test_the_gate_lets_in_so_many_and_then_in_order() -> None:
    gate = AdmissionGate(2)
    assert gate.enter() is None
    assert gate.enter() is None
    places = [gate.enter() for _ in range(3)]
    assert all(place is not None and not place.done() for place in places)
    gate.leave()
    assert [place is not None and place.done() for place in places] == [True, False, False]
    # One that gave up is passed over.
    assert places[1] is not None
    places[1].cancel()
    gate.leave()
    assert places[2] is not None
    assert places[2].done()
    gate.leave()
    gate.leave()
    assert gate.inside == 0


async def test_a_gate_without_a_cap_lets_everyone_in() -> None:
    gate = AdmissionGate(0)
    assert all(gate.enter() is None for _ in range(100))
