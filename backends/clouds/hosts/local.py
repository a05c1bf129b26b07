"""This machine as a host: the server may itself run on the virtual machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from backends.clouds.hosts.host import Host, HostResult, failed, shown
from backends.clouds.hosts.tunnel import Tunnel
from backends.clouds.process import run
from backends.core.errors import CliMissingError, NotSupportedError

_NOT_FOUND = 127


class LocalHost(Host):
    """This machine.

    Args:
        home: The folder that relative paths begin in; the login's home unless given.
        env: Variables added to this process's own.
        label: How it is called in messages.
    """

    def __init__(
        self,
        home: Path | None = None,
        env: Mapping[str, str] | None = None,
        label: str = "this machine",
    ) -> None:
        self.label = label
        self._home = home or Path.home()
        self._env = dict(env or {})

    async def run(
        self,
        script: str | Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes | None = None,
        check: bool = True,
        repeatable: bool = False,
    ) -> HostResult:
        """Run a command here; see `Host.run`."""
        del repeatable
        argv = ["bash", "-c", script] if isinstance(script, str) else list(script)
        try:
            done = await run(
                argv, timeout_s=timeout_s, stdin=stdin, env=self._env, cwd=str(self._home)
            )
            result = HostResult(done.code, done.stdout, done.stderr)
        except CliMissingError as error:  # as a shell would say it, over ssh too
            result = HostResult(_NOT_FOUND, "", error.words)
        if check and result.exit_code != 0:
            raise failed(self.label, shown(script), result)
        return result

    async def attach(self, words: Sequence[str]) -> asyncio.subprocess.Process:
        """Start a command here and talk to it; see `Host.attach`."""
        return await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **self._env},
            cwd=self._home,
            start_new_session=True,
        )

    async def forward(self, remote_port: int, *, remote_host: str = "127.0.0.1") -> Tunnel:
        """The port itself: nothing lies between."""
        if remote_host not in {"127.0.0.1", "localhost"}:
            raise NotSupportedError("On this machine only its own ports can be reached.")
        return Tunnel(remote_port)
