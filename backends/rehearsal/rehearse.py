"""The whole life of one target in its rehearsal, through a real MCP client.

`make rehearse TARGET=cloudrun-l4` plays it: find capacity, stage what is missing, plan, deploy,
wait, verify, query, benchmark, scale, release a candidate and go back, stop, start, destroy. What a
target cannot do is left out, by its abilities; the clouds are played on this machine, the server,
its CLIs and everything else are real.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from backends.base import CanDeploy, CanDestroy
from backends.core.names import TARGETS
from backends.core.settings import PROJECT_DIR, variable_of
from backends.core.state import write_json
from backends.registry import backend_class
from backends.rehearsal import zero_walk
from backends.rehearsal.guest import Guest, Json, RefusedError, run_walk, structured
from backends.rehearsal.stages import (
    BECOMING,
    benchmark,
    end,
    keep,
    look,
    make_sure_it_is_gone,
    print_benchmark,
    show_plan,
    until_finished,
    until_ready,
    until_stopped,
)
from backends.rehearsal.terminal import Terminal

NAME = "rehearsal"
LEVELS = [1, 2, 4, 8]
REQUESTS, MAX_TOKENS = 8, 48
READY_TIMEOUT_S = 900.0

# How a refusal says which weights are missing: the call that brings them.
_STAGE = re.compile(r"stage_model\(target='[\w-]+', model='([\w./-]+)'")


# Circumstances a walk needs and a new account has not: at AWS a candidate takes quota for old and
# new instances at once, of every type that is listed.
_CIRCUMSTANCES: dict[str, list[Json]] = {
    "sagemaker-l4": [
        {"kind": "aws-quota", "type": kind, "value": 4, "region": "us-east-2"}
        for kind in ("ml.g6.xlarge", "ml.g6.2xlarge", "ml.g6.4xlarge")
    ],
}

# What is new about a candidate, where an update that changes nothing is refused.
_CANDIDATE: dict[str, Json] = {"sagemaker-l4": {"gpu_memory_utilization": 0.92}}


class Rehearsal:
    """One target's life, as far as its abilities go.

    Args:
        guest: The client.
        target: The target.
        out: Folder for the benchmark's chart and figures.
        options: Options of the plan; what is not said is the target's own choice.
    """

    def __init__(self, guest: Guest, target: str, out: Path, options: Json | None = None) -> None:
        self.guest = guest
        self.show = guest.terminal
        self.target = target
        self.here: Json = {"target": target, "name": NAME}
        self.wanted: Json = self.here | ({"options": options} if options else {})
        self.out = out
        self.cls = backend_class(target)
        self._parts = 0

    def can(self, tool: str) -> bool:
        """Whether the target can do what a tool needs."""
        return tool in self.cls.abilities()

    async def walk(self) -> None:
        """The whole life.

        Raises:
            WalkError: A call was refused, or something is not as it should be.
        """
        self._part("What the target needs, and where it could run")
        help_ = await self.guest.ask("get_help", topic="doctor", target=self.target)
        self.show.table(help_["doctor"], {"name": "check", "ok": "ok", "detail": "what was found"})
        if self.can("find_capacity"):
            await self._find_capacity()

        self._part("Plan it, deploy exactly that plan, and wait")
        plan = await self._plan()
        show_plan(self.show, plan)
        await self.guest.ask("deploy", **self.here, plan_id=plan["plan_id"])
        await until_ready(self.guest, self.here, READY_TIMEOUT_S)
        await self._look_at_host()

        self._part("Does it work")
        await look(self.guest, self.here, max_tokens=MAX_TOKENS, deep=True)
        await self.guest.ask("get_status", **self.here, detail=True)

        self._part("Benchmark it")
        answer = await benchmark(
            self.guest, self.here, levels=LEVELS, requests=REQUESTS, max_tokens=MAX_TOKENS
        )
        figures = structured(answer)
        print_benchmark(self.show, figures)
        files = keep(answer, self.out)

        if self.can("update_scaling"):
            await self._scale()
        if self.can("shift_traffic"):
            await self._release()
        if self.can("stop_serving"):
            await self._stop_and_start()

        self._part("Destroy it: once for the plan, once with its id")
        gone = await end(self.guest, "destroy", self.here)
        self._left(gone)
        if issubclass(self.cls, CanDestroy) and "data_disk" in self.cls.DestroyOptions.model_fields:
            self.show.say("Its data disk was kept; it is deleted by its own plan.")
            await end(self.guest, "destroy", self.here | {"options": {"data_disk": True}})
        await make_sure_it_is_gone(self.guest, self.here)

        self.show.heading(f"{self.target} was rehearsed ({', '.join(figures['basis'])})")
        for what, path in files.items():
            self.show.good(f"{what}: {path}")

    def _part(self, title: str) -> None:
        self._parts += 1
        self.show.heading(f"{self._parts}. {title}")

    async def _find_capacity(self) -> None:
        found = await self.guest.ask("find_capacity", target=self.target)
        columns = {"place": "place", "verdict": "verdict", "usd_per_hour": "USD/h", "note": "note"}
        self.show.table(found["items"][:6], columns)

    async def _plan(self) -> Json:
        """Plan a deployment; weights that it misses are staged first, as the refusal says."""
        try:
            return await self.guest.ask("plan_deployment", **self.wanted)
        except RefusedError as refused:
            told = _STAGE.search(str(refused.error.get("next_action", "")))
            if not self.can("stage_model") or told is None:
                raise
            self.show.warn(str(refused.error["message"]))
            staged = await self.guest.ask("stage_model", target=self.target, model=told[1])
            await until_finished(self.guest, str(staged["operation_id"]), "Staging")
            return await self.guest.ask("plan_deployment", **self.wanted)

    async def _look_at_host(self) -> None:
        """Whether the machine still is what an engine needs, where the target has machines."""
        if self.can("prepare_host"):
            started = await self.guest.ask("prepare_host", **self.here, check_only=True)
            await until_finished(self.guest, str(started["operation_id"]), "Looking")

    async def _scale(self) -> None:
        self._part("Scale it")
        await self.guest.ask("update_scaling", **self.here, min_instances=1)
        await until_ready(self.guest, self.here, READY_TIMEOUT_S)

    async def _release(self) -> None:
        """A candidate beside what serves: half of the traffic, all of it, and back."""
        if not (issubclass(self.cls, CanDeploy) and "candidate" in self.cls.Spec.model_fields):
            return
        self._part("Release a candidate, promote it, and go back")
        options = {"candidate": True, **_CANDIDATE.get(self.target, {})}
        plan = await self.guest.ask("plan_deployment", **self.here, options=options)
        await self.guest.ask("deploy", **self.here, plan_id=plan["plan_id"])
        await until_ready(self.guest, self.here, READY_TIMEOUT_S)
        for to, percent in (("candidate", 50), ("candidate", 100), ("previous", 100)):
            shifted = await self.guest.ask("shift_traffic", **self.here, to=to, percent=percent)
            self.show.table(
                shifted["shares"], {"revision": "revision", "percent": "%", "tag": "tag"}
            )

    def _left(self, ended: Json) -> None:
        """Say what an end leaves: at a price, and at none."""
        for item in ended.get("keeps_billing", []):
            self.show.say(f"goes on billing: {item}")
        for item in ended.get("stays", []):
            self.show.say(f"stays and costs nothing: {item}")

    async def _stop_and_start(self) -> None:
        self._part("Stop it, and start it again" if self.can("start_serving") else "Stop it")
        stopped = await end(self.guest, "stop_serving", self.here)
        self._left(stopped)
        await until_stopped(self.guest, self.here, READY_TIMEOUT_S)
        if self.can("start_serving"):
            started = await self.guest.ask("start_serving", **self.here)
            if started["state"] in BECOMING:
                await until_ready(self.guest, self.here, READY_TIMEOUT_S)


def set_circumstances(target: str, state_dir: Path) -> None:
    """Give the cloud of a state directory what the walk of a target needs."""
    if target in _CIRCUMSTANCES:
        write_json(_cloud_of(state_dir) / "faults.json", _CIRCUMSTANCES[target])


def _cloud_of(state_dir: Path) -> Path:
    return state_dir / "rehearsal" / "cloud"


def stop_clouds(state_dir: Path) -> None:
    """End the rehearsal clouds of a state directory; they outlive the server by design."""
    from backends.rehearsal.cloud import launcher

    launcher.stop(_cloud_of(state_dir))


def main(arguments: Sequence[str] | None = None) -> int:
    """Rehearse one target; returns 0 if all of it worked and nothing is left running."""
    options = _parser().parse_args(arguments)
    out = options.out or PROJECT_DIR / "build" / "rehearse" / options.target
    settings = {
        variable_of("rehearsal"): "1",
        variable_of("rehearsal_speed"): f"{options.speed:g}",
        variable_of("targets"): options.target,
    }
    if options.scale_to_zero and options.target not in zero_walk.OPTIONS:
        print(f"{options.target} has no option to scale to zero.", file=sys.stderr)
        return 2

    async def walk(guest: Guest) -> None:
        if options.scale_to_zero:
            await zero_walk.walk(guest, options.target, NAME)
        else:
            await Rehearsal(guest, options.target, out, dict(options.option)).walk()

    return run_walk(
        walk,
        {"target": options.target, "name": NAME},
        settings,
        Terminal(),
        what="rehearsal",
        state_dir=options.state_dir,
        prepare=lambda folder: set_circumstances(options.target, folder),
        close=stop_clouds,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m backends.rehearsal.rehearse",
        description="Runs the whole life of one target through a real MCP client, with the clouds "
        "played on this machine: no account, no cost.",
    )
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument(
        "--option",
        type=_option,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of plan_deployment, as JSON or as a word; may be given several times",
    )
    parser.add_argument(
        "--scale-to-zero",
        action="store_true",
        help="walk the life of what goes to no instance and is woken by a request instead "
        f"({', '.join(zero_walk.OPTIONS)})",
    )
    parser.add_argument(
        "--speed",
        type=float,
        default=25.0,
        help="how many times faster than real ones the clouds work (default %(default)g)",
    )
    parser.add_argument(
        "--state-dir", type=Path, help="keep the state there; default: a temporary one"
    )
    parser.add_argument(
        "--out", type=Path, help="folder for chart and figures; default: build/rehearse/TARGET"
    )
    return parser


def _option(text: str) -> tuple[str, object]:
    """`KEY=VALUE` as an option of plan_deployment."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


if __name__ == "__main__":
    sys.exit(main())
