"""Rates of what Compute Engine bills, N1 machines, T4s, disks and TPU v6e chips.

From Google's live price list where it was reached, else from our dated tables; where neither has
one there is none. Descriptions: Cloud Billing Catalog, service 6F81-5844-456A (those of TPU v6e
from the TPU v6e repository, 2026-11-30; the others as the SkyPilot catalogue reads them).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from backends.clouds.google_prices import COMPUTE, PriceList, Sku, freshness, rate
from backends.knowledge import gce, tpu
from backends.knowledge.facts import Fact, published

_WAIT_S = 4.0
_CORE = r"N1 Predefined Instance Core running in "
_RAM = r"N1 Predefined Instance Ram running in "
_SPOT = r"^(?:Spot )?Preemptible "
_T4 = r"^Nvidia Tesla T4 GPU running in "
_T4_SPOT = r"^Nvidia Tesla T4 GPU attached to Spot Preemptible VMs"
_DISKS: Mapping[str, str] = MappingProxyType(
    {
        "pd-standard": r"^Storage PD Capacity",
        "pd-balanced": r"^Balanced PD Capacity",
        "pd-ssd": r"^SSD backed PD Capacity",
    }
)
_CHIPS: Mapping[str, str] = MappingProxyType(
    {
        "on-demand": r"^TpuV6e running in ",
        "flex-start": r"^DWS Defined Duration V6e running in ",
        "spot": r"^TpuV6e attached to Spot Preemptible VMs",
    }
)


class ComputePrices:
    """Rates as they are known now; only `learn` asks, and never fails or waits long.

    Args:
        price_list: Google's; None for our tables alone.
    """

    def __init__(self, price_list: PriceList | None) -> None:
        self._list = price_list

    @property
    def problem(self) -> str:
        """Why the price list could not be used; empty if it could, or was not asked."""
        return self._list.problem if self._list is not None else ""

    async def learn(self) -> None:
        """Ask the price list, at most once in a few hours and for at most 4 s. Never raises."""
        if self._list is not None:
            await self._list.skus(COMPUTE, _WAIT_S)

    def freshness(self, fact: Fact, *, live: bool) -> str:
        """How old a rate is, and why it is not the live one, in words."""
        return freshness(fact, live=live, problem=self.problem)

    def machine_rate(self, zone: str, machine: str, spot: bool) -> gce.Rate | None:
        """The rate of a machine with one T4 in a zone; None where no rate is known.

        Args:
            zone: The zone.
            machine: The machine type.
            spot: Whether on spot.
        """
        region = gce.region_of(zone)
        usage, before = ("Preemptible", _SPOT) if spot else ("OnDemand", "^")
        gpu = self._hourly(region, _T4_SPOT if spot else _T4, usage)
        core = self._hourly(region, before + _CORE, usage)
        ram = self._hourly(region, before + _RAM, usage)
        kind = gce.MACHINES.get(machine)
        if gpu is None or core is None or ram is None or kind is None:
            return gce.machine_rate(zone, machine, spot)
        usd = kind.vcpus * core.value + kind.memory_gib * ram.value
        return gce.made_up(machine, spot, gpu, usd, live=True)

    def gib_month(self, region: str, kind: str) -> tuple[Fact | None, bool]:
        """USD per GiB and month of a kind of disk, and whether the price list says so."""
        pattern = _DISKS.get(kind)
        hourly = self._hourly(region, pattern, "OnDemand") if pattern else None
        if hourly is None:
            return gce.DISK_USD_PER_GIB_MONTH.get(kind), False
        return published(hourly.value * gce.HOURS_A_MONTH, hourly.source, hourly.date), True

    def disk_usd_per_month(self, region: str, kind: str, gib: float) -> float | None:
        """What a disk costs a month, used or not; None where no rate is known."""
        fact, _ = self.gib_month(region, kind)
        return None if fact is None else round(fact.value * gib, 2)

    def chip_hour(self, provisioning: str, zone: str) -> tuple[Fact | None, bool]:
        """USD per TPU v6e chip and hour, and whether the price list says so.

        Args:
            provisioning: How it is got; reservations have no rate.
            zone: Where.
        """
        pattern = _CHIPS.get(provisioning)
        fact = self._hourly(tpu.region_of(zone), pattern, "") if pattern else None
        return (fact, True) if fact else (tpu.usd_per_chip_hour(provisioning, zone), False)

    def _hourly(self, region: str, pattern: str, usage: str) -> Fact | None:
        skus: tuple[Sku, ...] = self._list.kept(COMPUTE) if self._list is not None else ()
        found = rate(skus, region, pattern, usage=usage)
        if found is None:
            return None
        return published(round(found.value * 3600, 9), found.source, found.date)
