"""What goes on on a machine: prepared, served and looked at by the program that runs there."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from backends.clouds.google_guest import own_number
from backends.core.errors import (
    DevopsError,
    HostError,
    HostUnreachableError,
    NotFoundError,
    PermissionDeniedError,
)
from backends.gce.commands import TARGET, engine_argv
from backends.gce.sights import EngineSight, HostSight, Preparing
from backends.knowledge import gce
from backends.knowledge.gce_failures import signature_of
from backends.serving.startup_log import StartupLog

if TYPE_CHECKING:
    from backends.clouds.google import GoogleCloud
    from backends.clouds.hosts import Host
    from backends.clouds.hosts.preparing import Prepared
    from backends.clouds.hosts.serving import Engine
    from backends.gce.machines import Machine

_STATUS_TIMEOUT_S = 20.0
# A start's log is a few hundred lines; what follows are requests and statistics.
_LOG_BYTES = 256 * 1024
_LINE_BYTES = 240
_MODULE = ("-m", "vllm.entrypoints.openai.api_server")


class Hosting:
    """The machines of one project, from the inside.

    Args:
        cloud: The project.
    """

    def __init__(self, cloud: GoogleCloud) -> None:
        self._cloud = cloud
        self._hosts: dict[str, Host] = {}

    async def host(self, machine: Machine) -> Host:
        """The way to a machine; none is needed to the one that this process runs on."""
        from backends.clouds.hosts import GceHost, LocalHost

        if machine.number not in self._hosts:
            label = f"{TARGET}/{machine.name} ({machine.zone})"
            if await self._is_here(machine):
                self._hosts[machine.number] = LocalHost(label=label)
                return self._hosts[machine.number]
            self._hosts[machine.number] = GceHost(
                self._cloud,
                project=await self._cloud.project(),
                zone=machine.zone,
                instance=machine.name,
                via="external" if machine.external else "iap",
                label=label,
            )
        return self._hosts[machine.number]

    async def _is_here(self, machine: Machine) -> bool:
        if self._cloud.rehearsal:
            return False
        return await asyncio.to_thread(own_number) == machine.number

    async def wait_until_up(self, machine: Machine, *, timeout_s: float) -> None:
        """Wait until ssh answers.

        Raises:
            HostUnreachableError: It does not.
        """
        from backends.clouds.hosts import GceHost

        host = await self.host(machine)
        if isinstance(host, GceHost):
            await host.wait_until_up(timeout_s=timeout_s)

    async def let_go(self, machine: Machine) -> None:
        """Close tunnel and connection, before the machine goes."""
        await self._cloud.tunnels.close(_key(machine))
        host = self._hosts.pop(machine.number, None)
        if host is not None:
            await host.close()

    async def local_port(self, machine: Machine) -> int:
        """A port of this machine that leads to the server there; kept open, opened when dead.

        Raises:
            HostUnreachableError: There is no way to the machine.
        """
        tunnel = await self._cloud.tunnels.get(_key(machine), await self.host(machine), gce.PORT)
        return tunnel.local_port

    # --------------------------------------------------------------------------------- preparing

    def settings(self, machine: Machine) -> dict[str, Any]:
        """What the machine is to be made into."""
        spec = machine.spec
        made: dict[str, Any] = {
            "data_device": f"/dev/disk/by-id/google-{gce.DATA_DEVICE}",
            "data_folder": gce.MOUNT,
            "swap_gib": gce.SWAP_GIB,
        }
        if spec.get("vllm"):
            made["vllm"] = f"vllm=={spec['vllm']}"
        if spec.get("start_at_boot"):
            made |= {"unit": True, "fstab": True}
        return made

    async def prepare(
        self,
        machine: Machine,
        on_step: Callable[[int, int, str], None],
        should_stop: Callable[[], bool],
    ) -> Prepared:
        """Prepare a machine, or go on with that; each step looks before it acts.

        Args:
            machine: The machine.
            on_step: Told the step's number, how many there are, and what it does.
            should_stop: Whether somebody asked for an end.

        Raises:
            StepFailedError: A step failed; what the earlier ones changed is named.
            HostUnreachableError: It did not come back.
        """
        from backends.clouds.hosts.preparing import prepare

        host = await self.host(machine)
        names: list[str] = []

        def tell(report: dict[str, Any]) -> None:
            if report.get("event") == "begin":
                names[:] = [str(name) for name in report.get("steps") or []]
            elif report.get("event") == "reboot":
                on_step(names.index("driver") + 1 if "driver" in names else 0, len(names),
                        "restarting to load the driver")  # fmt: skip
            elif report.get("event") == "step" and report.get("step") in names:
                step = str(report["step"])
                on_step(names.index(step) + 1, len(names), step)

        done = await prepare(host, self.settings(machine), tell, should_stop=should_stop)
        if not should_stop():
            done.raise_if_failed(host.label)
        return done

    # --------------------------------------------------------------------------------- serving

    async def serve(self, machine: Machine) -> list[str]:
        """Start vLLM after its guards; nothing where it runs already.

        Raises:
            EngineError: A guard failed, or it died at once.
        """
        from backends.clouds.hosts.serving import Launch, start

        launch = Launch(
            argv=[*_MODULE, *engine_argv(machine.spec)],
            port=gce.PORT,
            settings=self.settings(machine),
        )
        token = await self._token(str(machine.spec.get("secret") or ""))
        secrets = {"HF_TOKEN": token} if token else None
        return await start(await self.host(machine), launch, secrets=secrets)

    async def stop(self, machine: Machine) -> str:
        """Stop vLLM and see that the GPU's memory is free.

        Raises:
            HostError: It is not free.
        """
        from backends.clouds.hosts.serving import stop

        host = await self.host(machine)
        words, freed = await stop(host)
        if not freed:
            raise HostError(
                f"{host.label}: vLLM has ended, but the GPU's memory is not free.",
                words=words,
                next_action=f"get_status(target={TARGET!r}, name={machine.name!r}, detail=true)",
            )
        return words

    async def _token(self, secret: str) -> str:
        """The Hugging Face token, for the engine's environment alone; empty where there is none."""
        if not secret:
            return ""
        project = await self._cloud.project()
        try:
            answer = await self._cloud.rest.get(
                f"https://secretmanager.googleapis.com/v1/projects/{project}/secrets/{secret}"
                "/versions/latest:access",
                f"The secret {secret}",
            )
        except (NotFoundError, PermissionDeniedError):
            # Most checkpoints need none; one that does says so itself.
            return ""
        data = str((answer.get("payload") or {}).get("data") or "")
        return base64.b64decode(data).decode().strip()

    # --------------------------------------------------------------------------------- looking

    async def sight(self, machine: Machine) -> HostSight:
        """How preparation and engine are; never raises for a machine that cannot be reached."""
        from backends.clouds.hosts.serving import status

        try:
            host = await self.host(machine)
            engine = await status(host)
            seen = await self._engine(machine, engine)
            preparing = Preparing("done")
            if seen.state in {"absent", "stopped", "died"}:
                preparing = await self._preparing(machine)
        except HostUnreachableError as error:
            return HostSight(problem=error.words or error.message)
        except DevopsError as error:
            return HostSight(problem=f"{error.message} {error.words}".strip())
        return HostSight(preparing=preparing, engine=seen)

    async def _engine(self, machine: Machine, engine: Engine) -> EngineSight:
        states = {
            "absent": "absent",
            "starting": "running",
            "ready": "running",
            "stopped": "stopped",
            "failed": "died",
        }
        state = states.get(engine.state, "absent")
        log = StartupLog()
        if state in {"running", "died"}:
            log.feed((await self.log(machine, "engine", 2000)).encode())
        progress = log.progress
        words = cause = fix = ""
        if state == "died":
            killed = engine.killed_for_memory
            words = "\n".join(([killed] if killed else []) + engine.last_lines[-20:])
            failure = progress.failure
            found = signature_of(words)
            if found is not None:
                cause, fix = found.explained(TARGET, machine.name)
            elif failure is not None:
                cause, fix = failure.cause, failure.next_action
        return EngineSight(
            state=state,  # type: ignore[arg-type]
            progress=progress,
            started_at=float(engine.facts.get("started_at") or 0.0),
            pid=int(engine.facts.get("pid") or 0),
            vram_mib=float(engine.facts.get("vram_mib") or 0.0),
            words=words,
            cause=cause,
            fix=fix,
            restarted=engine.facts.get("reason") == "machine_restarted",
            unit=str(engine.facts.get("unit") or ""),
        )

    async def _preparing(self, machine: Machine) -> Preparing:
        from backends.clouds.hosts.preparing import JOB, under_way
        from backends.clouds.hosts.program import reports

        job = await (await self.host(machine)).job(JOB)
        if job.state == "absent":
            return Preparing()
        names: list[str] = []
        last: dict[str, Any] = {}
        ended: bool | None = None
        for report in reports(job.log):
            if report.get("event") == "begin":
                names = [str(name) for name in report.get("steps") or []]
                ended, last = None, {}
            elif report.get("event") == "end":
                ended = bool(report.get("ok"))
            elif report.get("step"):
                last = report
        step = str(last.get("step", ""))
        number = names.index(step) + 1 if step in names else 0
        if ended:
            return Preparing("done", number, len(names), step)
        if last.get("state") == "failed":
            words = str(last.get("words") or last.get("error") or "")
            # The program there does not know its machine's name; the table has whole calls.
            found = signature_of(f"{last.get('error', '')}\n{words}")
            told = found.explained(TARGET, machine.name) if found else ("", "")
            return Preparing(
                "failed",
                number,
                len(names),
                step,
                words=f"{last.get('error', '')}\n{words}".strip(),
                cause=told[0] or str(last.get("cause") or ""),
                fix=told[1] or str(last.get("next_action") or ""),
            )
        # After a restart the machine goes on by itself, as no job of ours.
        going_on = job.state == "running" or await under_way(await self.host(machine))
        return Preparing("running" if going_on else "absent", number, len(names), step)

    async def log(self, machine: Machine, source: str, lines: int) -> str:
        """The newest lines of one of the machine's logs; empty where it is not there yet."""
        from backends.clouds.hosts.preparing import JOB
        from backends.clouds.hosts.serving import ENGINE_LOG

        host = await self.host(machine)
        if source == "kernel":
            done = await host.run(
                f"sudo -n dmesg --time-format iso 2> /dev/null || dmesg | tail -n {int(lines)}",
                timeout_s=_STATUS_TIMEOUT_S,
                repeatable=True,
            )
            return done.stdout
        paths = {
            "engine": ENGINE_LOG,
            "previous": f"{ENGINE_LOG}.1",
            "prepare": (await host.job(JOB)).log_path if source == "prepare" else "",
        }
        done = await host.run(
            ["bash", "-c", 'tail -n "$2" -- "$1" 2> /dev/null | tail -c "$3"', "tail",
             paths[source], str(lines), str(max(_LOG_BYTES, lines * _LINE_BYTES))],
            timeout_s=_STATUS_TIMEOUT_S,
            check=False,
            repeatable=True,
        )  # fmt: skip
        return done.stdout

    async def facts(self, machine: Machine) -> dict[str, str | int | float | bool]:
        """The machine in figures, for `detail`: GPU, driver, throttling, memory, swap, disks."""
        from backends.clouds.hosts.serving import facts

        try:
            found = await facts(await self.host(machine))
        except DevopsError as error:
            return {"problem": f"{error.code}: {error.message}"}
        return flat(found)


def flat(value: dict[str, Any], before: str = "") -> dict[str, str | int | float | bool]:
    """Nested facts as one level: `gpu.name`, `free_gib./opt1`."""
    made: dict[str, str | int | float | bool] = {}
    for key, item in value.items():
        name = f"{before}{key}"
        if isinstance(item, dict):
            made |= flat(item, f"{name}.")
        elif isinstance(item, str | int | float | bool):
            made[name] = item
        elif isinstance(item, list):
            made[name] = ", ".join(map(str, item))
    return made


def _key(machine: Machine) -> str:
    return f"{TARGET}/{machine.name}/{machine.number}"
