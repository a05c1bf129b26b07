"""What a deployment costs now, by what is there: a machine that is on, disks, a way out."""

from __future__ import annotations

from collections.abc import Sequence

from backends.clouds.google_compute_prices import ComputePrices
from backends.core.answers import Price
from backends.gce.machines import Attached, Disk, Machine
from backends.knowledge import gce


def running_price(machine: Machine, disks: Sequence[Disk], prices: ComputePrices) -> Price:
    """What it costs per hour while it is on.

    Args:
        machine: The machine.
        disks: The project's disks of ours, for the kinds of those it has.
        prices: The rates.
    """
    rate = prices.machine_rate(machine.zone, machine.kind, machine.spot)
    if rate is None or machine.gpu != gce.GPU_TYPE:
        return Price(basis=f"no rate of {machine.kind} in {machine.zone} is known")
    held = disks_per_hour(machine, disks, prices)
    way, words = 0.0, ""
    if machine.external:
        address = gce.SPOT_ADDRESS_USD_PER_HOUR if machine.spot else gce.ADDRESS_USD_PER_HOUR
        way, words = address.value, f" + address {address.value:g}"
    return Price(
        usd_per_hour=round(rate.machine + held + way, 4),
        basis=f"{machine.zone}: {rate.basis} + disks {held:.4f}{words} USD/h, used or not; "
        f"machine: {prices.freshness(rate.fact, live=rate.live)}",
        source=rate.fact.source,
        as_of=rate.fact.date,
    )


def rate_now(machine: Machine, disks: Sequence[Disk], prices: ComputePrices) -> float | None:
    """What it costs per hour at this moment: disks only once it is off."""
    if not machine.runs:
        return round(disks_per_hour(machine, disks, prices), 4)
    return running_price(machine, disks, prices).usd_per_hour


def disks_per_hour(machine: Machine, disks: Sequence[Disk], prices: ComputePrices) -> float:
    """What a machine's disks cost per hour, whether it is on or off."""
    known = {(disk.zone, disk.name): disk for disk in disks}
    region = gce.region_of(machine.zone)
    total = 0.0
    for attached in machine.disks:
        disk = known.get((machine.zone, attached.name))
        kind = disk.kind if disk is not None else _usual_kind(attached)
        total += prices.disk_usd_per_month(region, kind, attached.gib) or 0.0
    return total / gce.HOURS_A_MONTH


def _usual_kind(attached: Attached) -> str:
    return gce.BOOT_DISK_TYPE if attached.boot else gce.DATA_DISK_TYPE


def monthly(disk: Disk) -> str:
    """A kept disk and its price, in words."""
    price = disk.usd_per_month
    words = f"about {price:.2f} USD a month" if price is not None else "price not known"
    return f"{disk.name} ({disk.gib} GiB {disk.kind} in {disk.zone}): {words}"
