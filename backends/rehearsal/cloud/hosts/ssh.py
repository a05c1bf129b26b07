"""The stub `ssh`: takes ssh's arguments and runs the command on a rehearsal machine.

It knows what gcloud and we use: options, one command, `ControlMaster` with `ControlPath`, and
`-O check|forward|cancel|exit`. A control path is a small file here; a forward is a relay process
that ends when the file is gone or the machine is.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from backends.rehearsal.cloud.hosts.machine import REPO, Machine

_FAILED = 255
_LOOK_S = 0.05
_WITH_VALUE = set("bcDeEFIiJlLmoOpQRSwW")


@dataclass
class _Asked:
    """A command line of ssh."""

    options: dict[str, str] = field(default_factory=dict)
    control: str = ""
    forward: str = ""
    destination: str = ""
    command: str = ""


def main(name: str, argv: list[str], farm: Path) -> int:
    """Run as `ssh` for the machines of a farm; returns its exit code."""
    if name != "ssh":
        return _say(f"{name}: not played in the rehearsal", 1)
    asked = _parse(argv)
    path = asked.options.get("controlpath", "")
    if asked.control:
        return _control(farm, path, asked)
    machine = _by_control(farm, path)
    if machine is None and asked.options.get("proxycommand") == "false":
        return _say(
            f"Control socket connect({path}): No such file or directory\n"
            "Connection closed by UNKNOWN port 65535"
        )
    if machine is None:
        machine, code = _connect(farm, asked)
        if machine is None:
            return code
        if path and asked.options.get("controlmaster", "") in {"auto", "yes"}:
            _write_control(path, machine)
    return _session(machine, asked.command)


def _parse(argv: list[str]) -> _Asked:
    asked = _Asked()
    words = list(argv)
    while words:
        word = words.pop(0)
        if word == "--":
            if asked.destination:
                asked.command = " ".join(words)
                break
            continue
        if (word.startswith("-") and not asked.destination) or word.startswith("-o"):
            letter, value = word[1:2], word[2:]
            if letter in _WITH_VALUE and not value and words:
                value = words.pop(0)
            if letter == "o":
                key, _, text = re.sub(r"^\s*(\w+)[\s=]+", r"\1=", value).partition("=")
                asked.options.setdefault(key.lower(), text)
            elif letter == "O":
                asked.control = value
            elif letter == "L":
                asked.forward = value
        elif not asked.destination:
            asked.destination = word
        elif word.startswith("-"):
            continue
        else:
            asked.command = " ".join([word, *words])
            break
    return asked


# ----------------------------------------------------------------------------------- connecting


def _connect(farm: Path, asked: _Asked) -> tuple[Machine | None, int]:
    alias = asked.options.get("hostkeyalias", "")
    where = asked.destination.rpartition("@")[2]
    known = farm / "aliases" / alias
    if alias.startswith("tpu.") and not known.is_file():
        # gcloud adds the end of the host key that guest attributes told it (528).
        known = farm / "aliases" / alias.rpartition("-")[0]
    if not alias or not known.is_file():
        return None, _say(f"ssh: connect to host {where} port 22: Connection timed out")
    machine = Machine(farm / "machines" / known.read_text(encoding="utf-8"))
    if not machine.running():
        return None, _say(f"ssh: connect to host {where} port 22: Connection timed out")
    if not machine.reachable() or machine.fault("refused") is not None:
        return None, _say(f"ssh: connect to host {where} port 22: Connection refused")
    if machine.fault("host-key-changed") is not None:
        with machine.change() as state:
            state["host_key"] = os.urandom(16).hex()
    key = str(machine.read()["host_key"])
    hosts = Path(asked.options.get("userknownhostsfile", "~/.ssh/known_hosts")).expanduser()
    lines = hosts.read_text(encoding="utf-8").splitlines() if hosts.exists() else []
    kept = [line.split()[2] for line in lines if line.split()[:1] == [alias]]
    if kept and key not in kept:
        banner = "@" * 59
        if asked.options.get("stricthostkeychecking", "ask") != "no":
            return None, _say(
                f"{banner}\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n{banner}\n"
                "IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!\n"
                f"Host key for {alias} has changed and you have requested strict checking.\n"
                "Host key verification failed."
            )
    if not kept:
        hosts.parent.mkdir(parents=True, exist_ok=True)
        with hosts.open("a", encoding="utf-8") as file:
            file.write(f"{alias} ssh-ed25519 {key}\n")
        sys.stderr.write(
            f"Warning: Permanently added '{alias}' (ED25519) to the list of known hosts.\n"
        )
    return machine, 0


def _write_control(path: str, machine: Machine) -> None:
    content = {"machine": machine.folder.name, "boot": machine.read()["boot_id"]}
    new = Path(f"{path}.{os.getpid()}")
    new.write_text(json.dumps(content), encoding="utf-8")
    new.replace(path)


def _by_control(farm: Path, path: str) -> Machine | None:
    """The machine behind a control path; a path whose connection has died is removed."""
    if not path:
        return None
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    machine = Machine(farm / "machines" / content["machine"])
    if machine.reachable() and machine.read().get("boot_id") == content["boot"]:
        return machine
    Path(path).unlink(missing_ok=True)
    return None


def _control(farm: Path, path: str, asked: _Asked) -> int:
    machine = _by_control(farm, path)
    if machine is None:
        return _say(f"Control socket connect({path}): No such file or directory")
    if asked.control == "check":
        sys.stderr.write("Master running (pid=1)\n")
    elif asked.control == "exit":
        Path(path).unlink(missing_ok=True)
        sys.stderr.write("Exit request sent.\n")
    elif asked.control == "forward":
        return _forward(machine, path, asked.forward)
    elif asked.control == "cancel":
        (Path(f"{path}.forward.{asked.forward.split(':')[1]}")).unlink(missing_ok=True)
    return 0


# ----------------------------------------------------------------------------------- a session


def _session(machine: Machine, command: str) -> int:
    """Run a command there until it ends, or the connection does."""
    boot = machine.read()["boot_id"]
    drop = machine.fault("drop", command)
    process = subprocess.Popen(
        ["bash", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=machine.env(),
        cwd=machine.home,
        start_new_session=True,
    )
    limit = drop.get("after_bytes") if drop is not None else None
    cut = threading.Event()
    threading.Thread(target=_feed, args=(process, limit, cut), daemon=True).start()
    began = time.monotonic()
    selector = selectors.DefaultSelector()
    for stream, out in ((process.stdout, 1), (process.stderr, 2)):
        if stream is None:
            raise RuntimeError("pipes were asked for")
        os.set_blocking(stream.fileno(), False)
        selector.register(stream, selectors.EVENT_READ, out)
    looked = began
    while selector.get_map():
        for key, _ in selector.select(_LOOK_S):
            data = key.fileobj.read(65536)  # type: ignore[union-attr]
            if data:
                _write(key.data, data)
            elif data is not None:
                selector.unregister(key.fileobj)
        now = time.monotonic()
        if cut.is_set() or (
            drop is not None and limit is None and now - began >= float(drop.get("after_s", 0))
        ):
            return _say("client_loop: send disconnect: Broken pipe")
        if now - looked >= _LOOK_S:
            looked = now
            if machine.read().get("boot_id") != boot:
                return _say("Connection to host closed by remote host.")
    code = process.wait()
    if machine.read().get("boot_id") != boot:
        return _say("Connection to host closed by remote host.")
    return code if code >= 0 else 128 - code


def _feed(process: subprocess.Popen[bytes], limit: int | None, cut: threading.Event) -> None:
    """Carry standard input over, at most `limit` bytes of it before the connection is cut."""
    sent = 0
    with contextlib.suppress(OSError, ValueError):
        while data := os.read(0, 65536):
            if limit is not None and sent + len(data) > limit:
                os.write(process.stdin.fileno(), data[: limit - sent])  # type: ignore[union-attr]
                cut.set()
                return
            _write(process.stdin.fileno(), data)  # type: ignore[union-attr]
            sent += len(data)
    with contextlib.suppress(OSError):
        process.stdin.close()  # type: ignore[union-attr]


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _say(text: str, code: int = _FAILED) -> int:
    sys.stderr.write(text + "\n")
    return code


# ----------------------------------------------------------------------------------- forwards


def _forward(machine: Machine, path: str, way: str) -> int:
    address, port, host, remote = way.rsplit(":", 3)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, int(port)))
    except OSError as error:
        return _say(f"mux_client_forward: forwarding request failed: {error}")
    listener.listen(64)
    mark = Path(f"{path}.forward.{port}")
    mark.touch()
    target = (
        machine.env()["VLLM_DEVOPS_HOST_LOOPBACK"] if host in {"127.0.0.1", "localhost"} else host
    )
    start = (
        f"import sys; sys.path.insert(0, {str(REPO)!r}); "
        "from backends.rehearsal.cloud.hosts.ssh import relay; relay(*sys.argv[1:])"
    )
    os.set_inheritable(listener.fileno(), True)
    subprocess.Popen(
        [
            *(sys.executable, "-S", "-E", "-c", start, str(listener.fileno())),
            *(target, remote, path, str(mark), str(machine.folder)),
        ],
        pass_fds=(listener.fileno(),),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return 0


def relay(descriptor: str, host: str, port: str, control: str, mark: str, folder: str) -> None:
    """Carry connections until the forward is cancelled, the connection closed or the host gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listener = socket.socket(fileno=int(descriptor))
    listener.settimeout(0.2)
    machine = Machine(Path(folder))
    boot = machine.read().get("boot_id")
    paths = (Path(mark), Path(control))
    while all(path.exists() for path in paths) and machine.read().get("boot_id") == boot:
        try:
            client, _ = listener.accept()
        except TimeoutError:
            continue
        try:
            server = socket.create_connection((host, int(port)), timeout=5)
        except OSError:
            client.close()
            continue
        client.settimeout(None)
        server.settimeout(None)
        for near, far in ((client, server), (server, client)):
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_pump, args=(near, far), daemon=True).start()
    Path(mark).unlink(missing_ok=True)


def _pump(near: socket.socket, far: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := near.recv(65536):
            far.sendall(data)
    for end in (near, far):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
