"""What can go wrong with TPUs on purpose: the kinds of faults behind the scenarios."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.rehearsal.cloud.faults import Undo
from backends.rehearsal.cloud.tpu.scenarios import STOCKOUT
from backends.rehearsal.cloud.web import Json

if TYPE_CHECKING:
    from backends.rehearsal.cloud.cloud import Cloud


def register_tpu_faults(cloud: Cloud) -> None:
    """Teach the fault book what TPU requests and nodes can suffer."""
    slices = cloud.slices

    def wait(values: Json) -> Undo:
        zone = str(values.get("zone", "*"))
        seconds = values.get("seconds")
        slices.waits[zone] = None if seconds is None else float(seconds)

        def undo() -> None:
            slices.waits.pop(zone, None)

        return undo

    def fail(values: Json) -> Undo:
        zone = str(values.get("zone", "*"))
        slices.failures[zone] = dict(values.get("error") or STOCKOUT)

        def undo() -> None:
            slices.failures.pop(zone, None)

        return undo

    def refuse(values: Json) -> Undo:
        zone = str(values["zone"])
        before = slices.refused.get(zone)
        slices.refused[zone] = tuple(values["models"])

        def undo() -> None:
            if before is None:
                slices.refused.pop(zone, None)
            else:
                slices.refused[zone] = before

        return undo

    def no_hardware(values: Json) -> Undo:
        zone = str(values.get("zone", "*"))
        slices.without_hardware.append(zone)
        return lambda: slices.without_hardware.remove(zone)

    def preempt(values: Json) -> None:
        slices.preempt(str(values.get("request", "*")))

    def orphan(values: Json) -> None:
        slices.orphan(str(values.get("request", "*")))

    for kind, action in {
        "tpu-wait": wait,
        "tpu-fail": fail,
        "tpu-refuse": refuse,
        "tpu-no-hardware": no_hardware,
        "tpu-preempt": preempt,
        "tpu-orphan": orphan,
    }.items():
        cloud.faults.register(kind, action)
    cloud.renew.append(lambda _: slices.renewed())
