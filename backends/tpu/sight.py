"""One look at a TPU machine: how far its start is, what its container does, what the engine says.

All of it is one command over ssh, so a look costs one session; what it prints is taken apart here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from backends.core.errors import DevopsError, HostUnreachableError
from backends.knowledge.tpu import CONTAINER
from backends.serving.startup_log import StartupLog, StartupProgress

if TYPE_CHECKING:
    from backends.clouds.hosts import Host

STATE_FOLDER = "/var/lib/vllm-devops"

# Steps of the start script before it makes the container.
BEFORE_CONTAINER = frozenset(
    {"booting", "installing docker", "starting docker", "pulling", "waiting"}
)

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
# Below this a disk is as good as full: an image's layer, a checkpoint's part is larger.
_FULL_KIB = 200 * 1024
_NO_DAEMON = "Cannot connect to the Docker daemon"
_MARK = "@@vllm-devops@@"
# The start of a log and its end: between them a busy server writes what nobody reads here.
_LOG_HEAD_BYTES = 400_000
_LOG_TAIL_LINES = 60
_TIMEOUT_S = 20.0
_WORDS = 3
# Exit code of what SIGKILL ended; a child of the container's may be what the kernel chose.
_KILLED = 137
_STATUSES = frozenset({"created", "running", "paused", "restarting", "removing", "exited", "dead"})

# Parts are told apart by a line of their own; `$1` is the container, `$2` whether detail is wanted.
_LOOK = f"""
c=$1; d="${{VLLM_DEVOPS_HOST_ROOT:-}}{STATE_FOLDER}"
part() {{ printf '\\n{_MARK} %s\\n' "$1"; }}
part boot; cat "${{VLLM_DEVOPS_HOST_ROOT:-}}{_BOOT_ID}" "$d/boot" 2> /dev/null
part phases; cat "$d/phases" 2> /dev/null
part container
f='{{{{.State.Status}}}} {{{{.State.ExitCode}}}} {{{{.State.OOMKilled}}}}'
s=$(sudo docker inspect --format "$f" "$c" 2>&1); printf '%s\n' "$s"
case "$s" in
  exited*|dead*) part kernel; sudo dmesg | grep -F 'Out of memory: Killed' | tail -n 1;;
esac
[ -s "$d/startup.log" ] || {{ part free; df -kP "$d"; }}
part log
if [ -s "$d/startup.log" ]; then head -c {_LOG_HEAD_BYTES} "$d/startup.log"; printf '\\n'
else sudo docker logs "$c" 2>&1 | head -c {_LOG_HEAD_BYTES}; fi
part tail; sudo docker logs --tail {_LOG_TAIL_LINES} "$c" 2>&1
[ "$2" = detail ] || exit 0
part uptime; cat /proc/uptime
part cpus; nproc; cat /proc/loadavg
part memory; cat /proc/meminfo
part disks; df -kP / /dev/shm
"""


@dataclass(frozen=True)
class Machine:
    """What a look found.

    Attributes:
        phases: Steps of the start script with the Unix second each began.
        container: `running`, `exited`, ...; empty: there is none.
        exit_code: Of one that ended.
        progress: What the engine's log says about its start.
        log: The text it says it in.
        tail: The newest lines of the log.
        host: CPU, memory and disks, for people; only with detail.
        oom: The kernel's own line, where it killed a process for want of main memory.
        no_daemon: What docker says where its daemon does not run.
        free_kib: Space on the disk, while it starts; None: not looked at.
        problem: Why there was no look; empty if there was one.
        unreachable: Whether that was for want of a connection.
        cause: Of a problem, where it is known.
        fix: Of a problem, where there is one.
        seen_at: Unix seconds.
    """

    phases: tuple[tuple[float, str], ...] = ()
    container: str = ""
    exit_code: int | None = None
    progress: StartupProgress = field(default_factory=StartupProgress)
    log: str = ""
    tail: str = ""
    host: dict[str, str | int | float | bool] = field(default_factory=dict)
    oom: str = ""
    no_daemon: str = ""
    free_kib: int | None = None
    problem: str = ""
    unreachable: bool = False
    cause: str = ""
    fix: str = ""
    seen_at: float = 0.0

    @property
    def phase(self) -> str:
        """The start script's step it is at; empty before the first."""
        return self.phases[-1][1] if self.phases else ""

    @property
    def disk_full(self) -> bool:
        """Whether nothing more can be kept there."""
        return self.free_kib is not None and self.free_kib < _FULL_KIB

    @classmethod
    def unseen(cls, error: DevopsError) -> Machine:
        """A machine that could not be looked at, with what the error says of it."""
        words = error.words.strip().splitlines()
        if isinstance(error, HostUnreachableError):
            problem = words[-1] if words else error.message
            return cls(problem=problem, unreachable=True, seen_at=time.time())
        return cls(
            problem="\n".join([f"{error.code}: {error.message}", *words[:_WORDS]]),
            cause=error.cause,
            fix=error.next_action,
            seen_at=time.time(),
        )


async def look(host: Host, *, detail: bool = False) -> Machine:
    """Look at a machine; a machine that cannot be looked at is an answer too.

    Args:
        host: The first machine of the slice.
        detail: Whether CPU, memory and disks are wanted.
    """
    try:
        result = await host.run(
            ["bash", "-c", _LOOK, "look", CONTAINER, "detail" if detail else ""],
            timeout_s=_TIMEOUT_S,
            check=False,
            repeatable=True,
        )
    except DevopsError as error:
        return Machine.unseen(error)
    return read_look(result.stdout)


def read_look(text: str) -> Machine:
    """Take what a look printed apart."""
    parts: dict[str, str] = {}
    for block in text.split(f"\n{_MARK} ")[1:]:
        name, _, body = block.partition("\n")
        parts[name.strip()] = body
    now, *noted = parts.get("boot", "").split()[:2] or [""]
    if noted and noted[0] != now:
        # The start script has not run since the machine restarted: all this is of another boot.
        parts |= {"phases": "", "log": "", "tail": "", "container": ""}
    said = parts.get("container", "").strip()
    no_daemon = said if _NO_DAEMON in said else ""
    phases = _phases(parts.get("phases", ""))
    if phases and phases[-1][1].partition(":")[0] in BEFORE_CONTAINER:
        # What is there of a container and its log is of the boot before.
        parts |= {"log": "", "tail": "", "container": ""}
    log = StartupLog()
    log.feed(parts.get("log", ""))
    log.feed("\n")
    words = parts.get("container", "").split()
    status = words[0] if words and words[0] in _STATUSES else ""
    code = int(words[1]) if len(words) > 1 and words[1].lstrip("-").isdigit() else None
    if status in {"exited", "dead"}:
        log.process_ended(code)
    return Machine(
        phases=phases,
        container=status,
        exit_code=code,
        progress=log.progress,
        log=parts.get("log", ""),
        tail=parts.get("tail", "").strip("\n"),
        host=_host_facts(parts) if "memory" in parts else {},
        oom=parts.get("kernel", "").strip() if "true" in words[2:3] or code == _KILLED else "",
        no_daemon=no_daemon,
        free_kib=_free_kib(parts.get("free", "")),
        seen_at=time.time(),
    )


def _free_kib(text: str) -> int | None:
    """The available space that `df -kP` tells of one path."""
    words = text.strip().splitlines()[-1].split() if text.strip() else []
    return int(words[3]) if len(words) > 3 and words[3].isdigit() else None


def _phases(text: str) -> tuple[tuple[float, str], ...]:
    found = []
    for line in text.splitlines():
        moment, _, name = line.strip().partition(" ")
        if moment.isdigit() and name:
            found.append((float(moment), name))
    return tuple(found)


def _host_facts(parts: dict[str, str]) -> dict[str, str | int | float | bool]:
    facts: dict[str, str | int | float | bool] = {}
    cpus = parts.get("cpus", "").split()
    if len(cpus) > 1:
        facts["cpus"] = int(cpus[0])
        facts["load_1_min"] = float(cpus[1])
    uptime = parts.get("uptime", "").split()
    if uptime:
        facts["up_s"] = round(float(uptime[0]))
    memory = {
        words[0].rstrip(":"): int(words[1])
        for line in parts.get("memory", "").splitlines()
        if len(words := line.split()) > 1 and words[1].isdigit()
    }
    if "MemTotal" in memory:
        facts["memory_gib"] = round(memory["MemTotal"] / 2**20, 1)
        if "MemAvailable" in memory:
            facts["memory_free_gib"] = round(memory["MemAvailable"] / 2**20, 1)
    for line in parts.get("disks", "").splitlines()[1:]:
        words = line.split()
        if len(words) >= 6:
            facts[f"disk {words[5]}"] = (
                f"{int(words[3]) / 2**20:.1f} of {int(words[1]) / 2**20:.1f} GiB free"
            )
    return facts
