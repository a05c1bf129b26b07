"""The played docker: containers of vLLM images are the simulator in a process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from backends.rehearsal.cloud.hosts.machine import REPO, Machine

Json = dict[str, Any]

# Options of `docker run` that have no value.
_FLAGS = {"-d", "--detach", "--privileged", "--rm", "-i", "-t", "-it", "--init", "--no-healthcheck"}
_STOP_S = 3.0


def main(machine: Machine, argv: list[str]) -> int:
    """Run a docker command; returns its exit code."""
    verb, rest = (argv[0] if argv else ""), argv[1:]
    known = {
        "pull": _pull,
        "run": _run,
        "start": _start,
        "stop": _stop,
        "restart": _restart,
        "kill": _stop,
        "rm": _remove,
        "ps": _list,
        "logs": _logs,
        "inspect": _inspect,
        "image": _image,
        "images": _images,
        "version": _version,
        "info": _version,
    }
    if machine.fault("docker-down") is not None:
        # Who ends the daemon ends what it runs.
        for name, container in machine.read()["containers"].items():
            _end(machine, name, container)
        with machine.change() as state:
            state["docker_down"] = True
    if verb in {"--version", "-v"}:
        return _out("Docker version 26.1.4, build 5650f9b")
    if machine.read().get("docker_down"):
        return _fail(
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker "
            "daemon running?"
        )
    if verb not in known:
        return _fail(f"docker: '{verb}' is not a docker command.")
    return known[verb](machine, rest)


def _pull(machine: Machine, argv: list[str]) -> int:
    image = argv[-1]
    if machine.fault("pull", image) is not None or machine.fault("disk-full") is not None:
        return _fail(
            f"Error response from daemon: failed to register layer: write {image}: "
            "no space left on device"
        )
    time.sleep(machine.seconds(60))
    with machine.change() as state:
        if image not in state["images"]:
            state["images"].append(image)
    return _out(f"Status: Downloaded newer image for {image}")


def _run(machine: Machine, argv: list[str]) -> int:
    name, env, restart, words = "", {}, "no", list(argv)
    while words and words[0].startswith("-"):
        word = words.pop(0)
        key, equals, value = word.partition("=")
        if key in _FLAGS:
            continue
        if not equals:
            value = words.pop(0)
        if key == "--name":
            name = value
        elif key in {"-e", "--env"}:
            variable, given, text = value.partition("=")
            env[variable] = text if given else os.environ.get(variable, "")
        elif key == "--restart":
            restart = value
    if not words:
        return _fail('"docker run" requires at least 1 argument.')
    image, command = words[0], words[1:]
    name = name or f"c{uuid.uuid4().hex[:8]}"
    state = machine.read()
    if name in state["containers"]:
        return _fail(
            f'docker: Error response from daemon: Conflict. The container name "/{name}" is '
            f'already in use by container "{state["containers"][name]["id"]}".',
            125,
        )
    if image not in state["images"]:
        code = _pull(machine, [image])
        if code:
            return code
    container: Json = {
        "id": uuid.uuid4().hex + uuid.uuid4().hex,
        "image": image,
        "command": command,
        "restart": restart,
        "env": env,
        "created": time.time(),
    }
    with machine.change() as kept:
        kept["containers"][name] = container
    _begin(machine, name)
    return _out(container["id"])


def _begin(machine: Machine, name: str) -> None:
    container = machine.read()["containers"][name]
    log = machine.folder / f"container-{container['id'][:12]}.log"
    env = {**machine.env(), **container["env"], "PYTHONPATH": str(REPO)}
    code = (
        "from backends.rehearsal.cloud.hosts.engine import main; import sys; "
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, *container["command"]]
    if container["command"][:1] in (["bash"], ["ray"]):
        # The image's own shell, with its vllm and ray first on the way.
        env["PATH"] = f"{machine.farm / 'container'}:{env['PATH']}"
        command = list(container["command"])
    with log.open("ab") as output:
        pid = machine.spawn(command, env=env, output=output)
    with machine.change() as state:
        state["containers"][name] |= {
            "pid": pid,
            "log": str(log),
            "started_at": time.time(),
            "stopped": False,
        }


def _find(machine: Machine, which: str) -> tuple[str, Json] | None:
    for name, container in machine.read()["containers"].items():
        if which == name or str(container["id"]).startswith(which):
            return name, dict(container)
    return None


def _alive(container: Json) -> bool:
    try:
        stat = Path(f"/proc/{container.get('pid', 0)}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def _each(machine: Machine, argv: list[str], verb: Any) -> int:  # noqa: ANN401
    code = 0
    for which in argv:
        if which.startswith("-") or which.isdigit():
            continue
        found = _find(machine, which)
        if found is None:
            code = _fail(f"Error response from daemon: No such container: {which}")
            continue
        verb(*found)
        _out(which)
    return code


def _start(machine: Machine, argv: list[str]) -> int:
    def start(name: str, container: Json) -> None:
        if not _alive(container):
            _begin(machine, name)

    return _each(machine, argv, start)


def _end(machine: Machine, name: str, container: Json) -> None:
    if _alive(container):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(container["pid"]), signal.SIGTERM)
        until = time.monotonic() + _STOP_S
        while _alive(container) and time.monotonic() < until:
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(container["pid"]), signal.SIGKILL)
    with machine.change() as state:
        state["containers"][name]["stopped"] = True


def _stop(machine: Machine, argv: list[str]) -> int:
    return _each(machine, argv, lambda name, container: _end(machine, name, container))


def _restart(machine: Machine, argv: list[str]) -> int:
    def again(name: str, container: Json) -> None:
        _end(machine, name, container)
        _begin(machine, name)

    return _each(machine, argv, again)


def _remove(machine: Machine, argv: list[str]) -> int:
    force = any(word in {"-f", "--force"} for word in argv)

    def remove(name: str, container: Json) -> None:
        if _alive(container) and force:
            _end(machine, name, container)
        with machine.change() as state:
            state["containers"].pop(name)

    for which in argv:
        found = None if which.startswith("-") else _find(machine, which)
        if found is not None and _alive(found[1]) and not force:
            return _fail(
                f"Error response from daemon: cannot remove container {which}: container is "
                "running: stop the container before removing or force remove"
            )
    return _each(machine, argv, remove)


def _status(container: Json) -> str:
    if _alive(container):
        return "running"
    return "exited"


def _list(machine: Machine, argv: list[str]) -> int:
    everything = any(word in {"-a", "--all"} for word in argv)
    wanted = ""
    for index, word in enumerate(argv):
        value = argv[index + 1] if word in {"-f", "--filter"} else word.partition("=")[2]
        if value.startswith("name="):
            wanted = value.removeprefix("name=").strip("^$/")
    form = next(
        (
            argv[i + 1] if w == "--format" else w[9:]
            for i, w in enumerate(argv)
            if w[:8] == "--format"
        ),
        "",
    )
    for name, container in machine.read()["containers"].items():
        status = _status(container)
        if (status == "running" or everything) and wanted in name:
            shown = "Up 2 minutes" if status == "running" else "Exited (1) 1 minute ago"
            if form:
                line = form
                for key, value in (
                    ("{{.Names}}", name),
                    ("{{.Status}}", shown),
                    ("{{.State}}", status),
                    ("{{.ID}}", container["id"][:12]),
                    ("{{.Image}}", container["image"]),
                ):
                    line = line.replace(key, value)
                if line == "{{json .}}":
                    line = json.dumps(
                        {
                            "Names": name,
                            "State": status,
                            "Status": shown,
                            "Image": container["image"],
                        }
                    )
                _out(line)
            elif "-q" in argv or "-aq" in argv:
                _out(container["id"][:12])
            else:
                _out(f"{container['id'][:12]}   {container['image']}   {shown}   {name}")
    return 0


def _logs(machine: Machine, argv: list[str]) -> int:
    found = _find(machine, argv[-1])
    if found is None:
        return _fail(f"Error response from daemon: No such container: {argv[-1]}")
    text = Path(found[1]["log"]).read_text(encoding="utf-8", errors="replace")
    lines = text.splitlines()
    for index, word in enumerate(argv):
        if word in {"--tail", "-n"}:
            lines = lines if argv[index + 1] == "all" else lines[-int(argv[index + 1]) :]
        elif word.startswith("--tail="):
            lines = lines[-int(word[7:]) :]
    return _out("".join(f"{line}\n" for line in lines))


def _inspect(machine: Machine, argv: list[str]) -> int:
    names = [word for word in argv if not word.startswith("-") and "{{" not in word]
    if names and names[0] in {"container"}:
        names.pop(0)
    found = _find(machine, names[-1]) if names else None
    if found is None:
        _out("[]")
        return _fail(f"Error: No such object: {names[-1] if names else ''}")
    name, container = found
    status = _status(container)
    oom = any(
        f"Killed process {container.get('pid')}" in line
        for line in machine.read().get("kernel_log", [])
    )
    shown: Json = {
        "Id": container["id"],
        "Name": f"/{name}",
        "Created": _moment(container["created"]),
        "State": {
            "Status": status,
            "Running": status == "running",
            "OOMKilled": oom,
            "Pid": container.get("pid", 0) if status == "running" else 0,
            "ExitCode": _exit_code(container, oom=oom),
            "StartedAt": _moment(container.get("started_at") or container["created"]),
        },
        "Config": {"Image": container["image"], "Cmd": container["command"]},
        "HostConfig": {"RestartPolicy": {"Name": container["restart"]}},
    }
    form = next((word for word in argv if "{{" in word), "").partition("=")[2] or next(
        (word for word in argv if word.startswith("{{")), ""
    )
    if not form:
        return _out(json.dumps([shown]))
    state: Json = shown["State"]
    for key, value in state.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        form = form.replace(f"{{{{.State.{key}}}}}", text)
    form = form.replace("{{json .State}}", json.dumps(state))
    return _out(form.replace("{{.Config.Image}}", container["image"]))


def _exit_code(container: Json, *, oom: bool) -> int:
    if _alive(container):
        return 0
    return 137 if oom else 143 if container.get("stopped") else 1


def _image(machine: Machine, argv: list[str]) -> int:
    if argv[:1] == ["inspect"]:
        if argv[-1] in machine.read()["images"]:
            return _out("[]")
        return _fail(f"Error: No such image: {argv[-1]}")
    return _images(machine, argv)


def _images(machine: Machine, argv: list[str]) -> int:
    del argv
    return _out("".join(f"{image}\n" for image in machine.read()["images"]))


def _version(machine: Machine, argv: list[str]) -> int:
    del machine, argv
    return _out("26.1")


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _out(text: str) -> int:
    sys.stdout.write(text if not text or text.endswith("\n") else text + "\n")
    sys.stdout.flush()
    return 0


def _fail(text: str, code: int = 1) -> int:
    sys.stderr.write(text + "\n")
    return code
