"""Commands, files, jobs and ports on a host behind ssh."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from backends.clouds.hosts import Host, LocalHost, TunnelKeeper, quote
from backends.core.errors import (
    HostError,
    HostKeyError,
    HostUnreachableError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
)
from tests.hosts.conftest import Grounds

HOSTILE = (
    "two words",
    "it's",
    'say "hi"',
    "$HOME `id` $(id)",
    "a;b|c&d>e<f",
    "line\nbreak",
    "-rf",
    "*?[a]",
    "\\ back\\slash",
    "Grüße 你好 🦙",
    "",
    "%s %n",
    "~root",
    "!history",
    "\t tab",
)


@pytest.fixture(params=["local", "ssh"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    """Each kind of host."""
    if request.param == "local":
        return LocalHost(tmp_path)
    grounds: Grounds = request.getfixturevalue("grounds")
    grounds.boot()
    return grounds.host()


async def up(host: Host) -> Host:
    """The host once it answers."""
    if hasattr(host, "wait_until_up"):
        await host.wait_until_up(timeout_s=20, every_s=0.1)
    return host


async def test_words_reach_a_command_as_they_are(host: Host) -> None:
    await up(host)
    result = await host.run(["printf", "%s\\0", *HOSTILE], timeout_s=20)
    assert result.stdout.split("\0")[:-1] == list(HOSTILE)
    nested = await host.run(f"bash -c {quote('printf %s ' + quote(*HOSTILE))}", timeout_s=20)
    assert nested.exit_code == 0


async def test_a_nul_is_refused_before_it_reaches_a_shell() -> None:
    with pytest.raises(InvalidInputError):
        quote("a\0b")


async def test_a_failing_command_says_its_own_words_and_code(host: Host) -> None:
    await up(host)
    with pytest.raises(HostError) as error:
        await host.run("echo no room >&2; exit 255", timeout_s=20)
    assert (error.value.exit_code, error.value.words) == (255, "no room")
    unchecked = await host.run("exit 7", timeout_s=20, check=False)
    assert unchecked.exit_code == 7


async def test_a_file_is_put_whole_with_its_mode_and_read_in_parts(host: Host) -> None:
    await up(host)
    data = bytes(range(256)) * 400
    path = "deep er/$x/file"
    await host.put(data, path, mode=0o640)
    assert await host.read(path, offset=100, limit=300) == data[100:400]
    assert await host.read(path, offset=len(data)) == b""
    mode = await host.run(["stat", "-c", "%a", path], timeout_s=20)
    assert mode.stdout.strip() == "640"
    with pytest.raises(NotFoundError):
        await host.read("no such file")


async def test_a_job_outlives_the_call_and_keeps_its_output_and_code(host: Host) -> None:
    await up(host)
    assert (await host.job("work")).state == "absent"
    script = "echo first; until [ -e go ]; do sleep 0.02; done; echo $$-last; exit 3"
    await host.start_detached(script, name="work")
    running = await host.job("work")
    assert running.state == "running"
    await host.start_detached("echo second", name="work")
    assert (await host.job("work")).pid == running.pid
    await host.put(b"", "go")
    until = time.monotonic() + 10
    while (done := await host.job("work")).state == "running":
        assert time.monotonic() < until
        await asyncio.sleep(0.05)
    assert (done.state, done.exit_code) == ("exited", 3)
    assert done.log.splitlines()[0] == "first"
    assert await host.read(done.log_path) == done.log.encode()
    await host.start_detached("sleep 100", name="work")
    await host.end_job("work", patience_s=1)
    assert (await host.job("work")).state != "running"


async def test_what_takes_too_long_is_ended_on_the_host_too(host: Host) -> None:
    await up(host)
    with pytest.raises(OutcomeUnknownError, match="did not finish within 1 s"):
        await host.run("echo $$ > pid; sleep 50", timeout_s=1)
    if not isinstance(host, LocalHost):
        alive = await host.run("kill -0 $(cat pid)", timeout_s=20, check=False)
        assert alive.exit_code != 0


async def test_a_port_is_forwarded_until_its_tunnel_is_closed(grounds: Grounds) -> None:
    machine = grounds.boot()
    host = grounds.host()
    await up(host)
    address = machine.read()["address"]

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello\n")
        writer.close()

    server = await asyncio.start_server(greet, address, 18000)
    keeper = TunnelKeeper()
    async with server:
        tunnel = await keeper.get("t4", host, 18000)
        assert await keeper.get("t4", host, 18000) is tunnel
        reader, writer = await asyncio.open_connection("127.0.0.1", tunnel.local_port)
        assert await asyncio.wait_for(reader.read(), 5) == b"hello\n"
        writer.close()
        machine.reboot()
        until = time.monotonic() + 10
        while tunnel.alive:
            assert time.monotonic() < until
            await asyncio.sleep(0.02)
        await up(host)
        again = await keeper.get("t4", host, 18000)
        assert again is not tunnel
        reader, writer = await asyncio.open_connection("127.0.0.1", again.local_port)
        assert await asyncio.wait_for(reader.read(), 5) == b"hello\n"
        writer.close()
        await keeper.close()
        assert not again.alive


async def test_a_host_that_is_starting_refuses_and_is_waited_for(grounds: Grounds) -> None:
    grounds.farm.speed = 25.0
    grounds.boot()
    host = grounds.host()
    with pytest.raises(HostUnreachableError, match="no connection") as error:
        await host.run("true", timeout_s=20)
    assert "Connection refused" in error.value.words
    assert not error.value.begun
    await host.wait_until_up(timeout_s=20, every_s=0.1)
    assert (await host.run("echo up", timeout_s=20)).stdout == "up\n"


async def test_a_dropped_connection_repeats_only_what_may_run_twice(grounds: Grounds) -> None:
    grounds.boot()
    host = grounds.host()
    await up(host)
    command = "echo x >> runs; sleep 0.3; wc -l < runs"
    grounds.fault("drop", command="runs", after_s=0.1)
    with pytest.raises(HostUnreachableError, match="dropped half-way") as error:
        await host.run(command, timeout_s=20)
    assert error.value.begun
    grounds.fault("drop", command="runs", after_s=0.1)
    again = await host.run(command, timeout_s=20, repeatable=True)
    assert again.stdout.strip() == "3"


async def test_a_file_whose_connection_dropped_half_way_is_not_there(grounds: Grounds) -> None:
    grounds.boot()
    host = grounds.host()
    await up(host)
    grounds.fault("drop", command="sha256sum", times=3, after_bytes=200_000)
    with pytest.raises(HostUnreachableError):
        await host.put(b"x" * 1_000_000, "file")
    with pytest.raises(NotFoundError):
        await host.read("file")
    grounds.fault("drop", command="sha256sum", times=2, after_bytes=200_000)
    await host.put(b"x" * 1_000_000, "file")
    assert len(await host.read("file")) == 1_000_000


async def test_a_changed_host_key_is_an_error_and_never_overridden(grounds: Grounds) -> None:
    machine = grounds.boot()
    host = grounds.host()
    await up(host)
    await host.close()
    grounds.fault("host-key-changed")
    with pytest.raises(HostKeyError) as error:
        await host.run("true", timeout_s=20)
    assert "IDENTIFICATION HAS CHANGED" in error.value.words
    assert "google_compute_known_hosts" in error.value.next_action
    assert machine.running()


async def test_a_job_is_lost_when_the_host_restarts(grounds: Grounds) -> None:
    machine = grounds.boot()
    host = grounds.host()
    await up(host)
    await host.start_detached("echo here; sleep 100", name="work")
    machine.reboot()
    await up(host)
    job = await host.job("work")
    assert (job.state, job.exit_code) == ("lost", None)
