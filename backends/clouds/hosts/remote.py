"""Hosts at Google, over ssh: gcloud opens the connection, plain ssh rides on it.

`gcloud compute ssh` brings keys, addresses, IAP and host keys, and takes a second or two of its
own. So it opens one master connection (`ControlMaster`), and every command after that is a session
on it. `gcloud compute tpus tpu-vm ssh` also repeats a command by itself, up to ten times, when the
connection drops (gcloud 528, tpu_vm/ssh.py): only `true` is ever given to it.

gcloud keeps host keys in `~/.ssh/google_compute_known_hosts` under the instance's own id, and is
strict once it knows one (528, ssh_utils.py); a changed key is an error here, never overridden.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import socket
import tempfile
import time
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from backends.clouds.google_errors import judge
from backends.clouds.hosts.host import Host, HostResult, failed, quote, shown
from backends.clouds.hosts.tunnel import Tunnel, reap
from backends.clouds.process import run
from backends.core.errors import (
    DevopsError,
    HostError,
    HostKeyError,
    HostUnreachableError,
    OutcomeUnknownError,
)

if TYPE_CHECKING:
    from backends.clouds.google import GoogleCloud
    from backends.clouds.process import Finished

Via = Literal["iap", "external", "internal"]

CONNECT_TIMEOUT_S = 35.0
# A master that nothing uses ends by itself.
_PERSIST_S = 300
_CONTROL_TIMEOUT_S = 10.0
# What the far side's own deadline gets before this side gives up.
_GRACE_S = 10.0
_SSH_FAILED = 255
# A connection that has just carried something is not looked at first.
_TRUSTED_S = 5.0
# sshd lets ten sessions share a connection (MaxSessions); the holders of tunnels need some.
_SESSIONS = 6
_ENDED_BY_TIMEOUT = {124, 137}
_MAX_WORDS = 2000
_NOISE = re.compile(
    r"^(?:Using ssh batch size of.*|SSH: Attempting to connect.*|Warning: Permanently added.*"
    r"|Shared connection to .* closed\.?|mux_client.*|.*\[PKCS.*)\r?\n?",
    re.MULTILINE,
)
_KEY_CHANGED = re.compile(
    r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key verification failed", re.IGNORECASE
)
# The last that ssh says of it: its banner stands above.
_KEY_REFUSED = re.compile(rb"Host key verification failed", re.IGNORECASE)
# What ssh says when it could not connect or lost the connection; anything else is gcloud's.
_NO_CONNECTION = re.compile(
    r"Connection (?:refused|timed out|reset|closed)|closed by remote host|Broken pipe"
    r"|No route to host|kex_exchange_identification|ConnectionReset|Operation timed out"
    r"|Permission denied \(publickey|exited with return code \[255\]|failed to connect to backend"
    r"|4003: |4010: |Could not SSH into the instance|Timeout, server .* not responding"
    r"|Connection to .* (?:closed|aborted)|SSH connectivity",
    re.IGNORECASE,
)
_NO_MASTER = re.compile(
    r"Control socket connect|mux_client_(?:hello|request)|UNKNOWN port|Connection closed by UNKNOWN"
)


class SshHost(Host):
    """A host behind one shared ssh connection that gcloud opens.

    Args:
        cloud: Whose gcloud and login.
        identity: What tells this host from every other.
        label: How it is called in messages.
    """

    def __init__(self, cloud: GoogleCloud, identity: Sequence[str], label: str) -> None:
        self.label = label
        self._cloud = cloud
        self._identity = tuple(identity)
        self._path = ""
        self._carried_at = -_TRUSTED_S
        self._connecting = asyncio.Lock()
        self._sessions = asyncio.Semaphore(_SESSIONS)

    @abstractmethod
    def _gcloud_argv(self, ssh_flags: Sequence[str]) -> list[str]:
        """The gcloud command that runs `true` there with these flags of ssh."""

    async def connect_argv(self) -> list[str]:
        """The command that opens the connection, as it is run."""
        flags = (
            "-oControlMaster=auto",
            f"-oControlPath={await self._control_path()}",
            f"-oControlPersist={_PERSIST_S}",
            "-oBatchMode=yes",
            "-oConnectTimeout=15",
            "-oServerAliveInterval=10",
            "-oServerAliveCountMax=3",
        )
        return self._gcloud_argv(flags)

    async def connect(self, *, timeout_s: float = CONNECT_TIMEOUT_S, sure: bool = False) -> None:
        """Open the connection, if none is open.

        Args:
            timeout_s: Bound of the call.
            sure: Look even where it carried something a moment ago.

        Raises:
            HostUnreachableError: ssh had no answer: still starting, no firewall rule, no address.
            HostKeyError: The host is not the one it was.
            DevopsError: Google refused, by its kind.
        """
        if not sure and time.monotonic() - self._carried_at < _TRUSTED_S:
            return
        async with self._connecting:
            if await self._alive():
                return
            try:
                # For a TPU gcloud tries again and again, for half a minute, whatever ssh says.
                done = await self._cloud.gcloud.execute(
                    await self.connect_argv(), timeout_s=timeout_s, ends_at=_KEY_REFUSED
                )
            except OutcomeUnknownError as error:
                raise self._unreachable(error.words, begun=False) from None
            if done.code == 0:
                return
            if _KEY_CHANGED.search(done.stderr):
                raise self._key_changed(done.stderr)
            if done.code == _SSH_FAILED or _NO_CONNECTION.search(done.stderr):
                raise self._unreachable(done.stderr, begun=False)
            judge(done)

    async def wait_until_up(self, *, timeout_s: float, every_s: float = 2.0) -> None:
        """Connect, again and again while the host is starting.

        Raises:
            HostUnreachableError: Not within `timeout_s`.
            HostKeyError: The host is not the one it was.
        """
        until = time.monotonic() + timeout_s
        while True:
            left = until - time.monotonic()
            try:
                await self.connect(timeout_s=max(5.0, min(CONNECT_TIMEOUT_S, left)), sure=True)
            except HostUnreachableError:
                if time.monotonic() + every_s > until:
                    raise
                await asyncio.sleep(every_s)
            else:
                return

    async def run(
        self,
        script: str | Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes | None = None,
        check: bool = True,
        repeatable: bool = False,
    ) -> HostResult:
        """Run a command there; see `Host.run`."""
        line = script if isinstance(script, str) else "exec " + quote(*script)
        for attempt in range(3):
            await self.connect()
            try:
                result = await self._session(line, timeout_s, stdin)
            except HostUnreachableError as error:
                self._carried_at = -_TRUSTED_S
                # Before it began nothing has happened; after that only what may run twice.
                if attempt == 2 or (error.begun and not repeatable):
                    raise
                continue
            self._carried_at = time.monotonic()
            if check and result.exit_code != 0:
                raise failed(self.label, shown(script), result)
            return result
        raise AssertionError("unreachable")

    async def attach(self, words: Sequence[str]) -> asyncio.subprocess.Process:
        """Start a command over a session of its own; see `Host.attach`."""
        await self.connect(sure=True)
        return await asyncio.create_subprocess_exec(
            *await self._ssh(),
            "--",
            "exec " + quote(*words),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=await self._env(),
            start_new_session=True,
        )

    async def forward(self, remote_port: int, *, remote_host: str = "127.0.0.1") -> Tunnel:
        """Forward a port over the shared connection; a session of its own keeps that open."""
        await self.connect(sure=True)
        port = _free_port()
        way = f"127.0.0.1:{port}:{remote_host}:{remote_port}"
        env = await self._env()
        # `cat` ends when our end of its input closes, however this process ends.
        holder = await asyncio.create_subprocess_exec(
            *await self._ssh(),
            "--",
            "exec cat > /dev/null",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=env,
            start_new_session=True,
        )
        try:
            done = await self._control("forward", "-L", way)
        except BaseException:
            await reap(holder)
            raise
        if done.code != 0:
            await reap(holder)
            raise self._unreachable(done.stderr, begun=False)

        async def closing() -> None:
            await self._control("cancel", "-L", way)

        return Tunnel(port, holder, closing)

    async def close(self) -> None:
        """Close the shared connection, with all tunnels over it."""
        self._carried_at = -_TRUSTED_S
        if Path(await self._control_path()).exists():  # noqa: ASYNC240 (one stat)
            await self._control("exit")

    # ------------------------------------------------------------------------- inside

    async def _session(self, line: str, timeout_s: float, stdin: bytes | None) -> HostResult:
        mark = secrets.token_hex(8)
        remote = (
            f"printf 'begun-{mark}\\n' >&2; "
            f"timeout -k 5 {max(1, round(timeout_s))} bash -c {quote(line)}; c=$?; "
            f"printf '\\nended-{mark} %d\\n' $c >&2; exit $c"
        )
        async with self._sessions:
            began = time.monotonic()
            try:
                done = await run(
                    [*await self._ssh(), "--", remote],
                    timeout_s=timeout_s + _GRACE_S,
                    stdin=stdin,
                    env=await self._env(),
                )
            except OutcomeUnknownError as error:
                words = _split(error.words, mark)[0]
                raise self._too_slow(line, timeout_s, words) from None
        words, begun, code = _split(done.stderr, mark)
        if code is None:
            if _KEY_CHANGED.search(done.stderr):
                raise self._key_changed(words)
            if not begun and not _NO_MASTER.search(done.stderr) and done.code != _SSH_FAILED:
                raise HostError(
                    f"{self.label}: ssh failed with exit code {done.code}.", words=words
                )
            raise self._unreachable(words, begun=begun)
        if code in _ENDED_BY_TIMEOUT and time.monotonic() - began >= timeout_s:
            raise self._too_slow(line, timeout_s, words)
        return HostResult(code, done.stdout, words)

    async def _ssh(self) -> list[str]:
        """A session on the master, and nothing else: without it there is no way to connect."""
        return [
            *("ssh", "-T"),
            f"-oControlPath={await self._control_path()}",
            "-oControlMaster=no",
            "-oBatchMode=yes",
            "-oProxyCommand=false",
            "vllm-devops-host",
        ]

    async def _control(self, *what: str) -> Finished:
        path = await self._control_path()
        argv = ["ssh", "-O", *what, f"-oControlPath={path}", "vllm-devops-host"]
        return await run(argv, timeout_s=_CONTROL_TIMEOUT_S, env=await self._env())

    async def _alive(self) -> bool:
        known = Path(await self._control_path()).exists()  # noqa: ASYNC240 (one stat)
        return known and (await self._control("check")).code == 0

    async def _env(self) -> dict[str, str]:
        return {**os.environ, "TERM": "dumb", **await self._cloud.env()}

    async def _control_path(self) -> str:
        """A socket's name may have about a hundred characters, so it is not in the state folder."""
        if not self._path:
            # A rehearsal's hosts are others than those of that name in earnest.
            whose = (await self._env()).get("CLOUDSDK_CONFIG", "")
            digest = hashlib.sha256("\0".join([whose, *self._identity]).encode()).hexdigest()
            self._path = str(_runtime_folder() / digest[:20])
        return self._path

    def _too_slow(self, line: str, timeout_s: float, words: str) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"{self.label}: {shown(line)} did not finish within {timeout_s:.0f} s and was ended.",
            words=words[-_MAX_WORDS:],
            next_action="Call get_status before trying again.",
        )

    def _unreachable(self, words: str, *, begun: bool) -> HostUnreachableError:
        return HostUnreachableError(
            f"{self.label}: "
            + ("the connection dropped half-way." if begun else "there is no connection."),
            words=_NOISE.sub("", words).strip()[-_MAX_WORDS:],
            cause="It is starting or restarting, is stopped, or no firewall rule lets ssh in "
            "(with IAP: tcp:22 from 35.235.240.0/20).",
            next_action="Call get_status; try again once the machine runs.",
            begun=begun,
        )

    def _key_changed(self, words: str) -> HostKeyError:
        return HostKeyError(
            f"{self.label}: the host's key is not the one it was.",
            words=words.strip()[-_MAX_WORDS:],
            cause="The machine behind this instance id was replaced, or somebody stands between.",
            next_action="Ask the person. If the change is explained: remove the host's line from "
            "~/.ssh/google_compute_known_hosts, and call again.",
        )


class GceHost(SshHost):
    """A virtual machine of Compute Engine, over `gcloud compute ssh`.

    Args:
        cloud: Whose gcloud and login.
        project: Its project.
        zone: Its zone.
        instance: Its name.
        via: `iap` (no address needed), `external` or `internal` address.
        label: How it is called in messages.
    """

    def __init__(
        self,
        cloud: GoogleCloud,
        *,
        project: str,
        zone: str,
        instance: str,
        via: Via = "iap",
        label: str | None = None,
    ) -> None:
        super().__init__(
            cloud, ("gce", project, zone, instance, via), label or f"{instance} ({zone})"
        )
        self._project, self._zone, self._instance, self._via = project, zone, instance, via

    def _gcloud_argv(self, ssh_flags: Sequence[str]) -> list[str]:
        argv = [
            *("gcloud", "compute", "ssh", self._instance),
            f"--project={self._project}",
            f"--zone={self._zone}",
            "--quiet",
            "--command=true",
        ]
        if self._via == "iap":
            argv.append("--tunnel-through-iap")
        if self._via == "internal":
            argv.append("--internal-ip")
        return argv + [f"--ssh-flag={flag}" for flag in ssh_flags]


class TpuHost(SshHost):
    """One worker of a TPU node, over `gcloud compute tpus tpu-vm ssh`.

    Args:
        cloud: Whose gcloud and login.
        project: Its project.
        zone: Its zone.
        node: The node's id.
        worker: Which of its machines, from 0.
        via: `external`, or `iap` (which only gcloud's alpha track can).
        queued_resource: The queued resource it belongs to, for messages.
        label: How it is called in messages.
    """

    def __init__(
        self,
        cloud: GoogleCloud,
        *,
        project: str,
        zone: str,
        node: str,
        worker: int = 0,
        via: Via = "external",
        queued_resource: str | None = None,
        label: str | None = None,
    ) -> None:
        of = f" of {queued_resource}" if queued_resource else ""
        super().__init__(
            cloud,
            ("tpu", project, zone, node, str(worker), via),
            label or f"{node} worker {worker}{of} ({zone})",
        )
        self._project, self._zone, self._node = project, zone, node
        self._worker, self._via = worker, via

    def _gcloud_argv(self, ssh_flags: Sequence[str]) -> list[str]:
        argv = [
            *(["gcloud", "alpha"] if self._via == "iap" else ["gcloud"]),
            *("compute", "tpus", "tpu-vm", "ssh", self._node),
            f"--project={self._project}",
            f"--zone={self._zone}",
            f"--worker={self._worker}",
            "--quiet",
            "--command=true",
        ]
        if self._via == "iap":
            argv.append("--tunnel-through-iap")
        if self._via == "internal":
            argv.append("--internal-ip")
        return argv + [f"--ssh-flag={flag}" for flag in ssh_flags]


def _split(stderr: str, mark: str) -> tuple[str, bool, int | None]:
    """What the command itself wrote, whether it began, and its exit code if it ended."""
    _, begun, rest = stderr.partition(f"begun-{mark}\n")
    if not begun:
        return stderr, False, None
    words, ended, code = rest.rpartition(f"\nended-{mark} ")
    if not ended:
        return rest, True, None
    return words, True, int(code.split()[0])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _runtime_folder() -> Path:
    """A short folder that only this user can enter.

    Raises:
        DevopsError: Somebody else made it.
    """
    base = os.environ.get("XDG_RUNTIME_DIR")
    root = Path(base) if base and len(base) < 40 else Path(tempfile.gettempdir())
    folder = root / f"vllm-devops-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    if facts.st_uid != os.getuid() or facts.st_mode & 0o077 or folder.is_symlink():
        raise DevopsError(
            f"{folder} is not ours alone; connections are not kept there.",
            next_action=f"Remove {folder}.",
        )
    return folder
