"""Cloud Run's rates: from Google's live price list where it is reached, else from our tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.knowledge.cloudrun import CloudRunProfile, Rates, rates_of

if TYPE_CHECKING:
    from backends.clouds.google import GoogleCloud

_TIMEOUT_S = 4.0
_WITHOUT_ZONAL = r"(?:no|without|non)[- ]zonal|zonal redundancy (?:off|disabled)"
_BILLED_BY_INSTANCE = r"instance[- ]based"


class RunPrices:
    """The rates of one profile by region; the price list is asked once in a few hours.

    Args:
        cloud: The project.
        profile: Which GPU.
    """

    def __init__(self, cloud: GoogleCloud, profile: CloudRunProfile) -> None:
        from backends.clouds.google_prices import PriceList

        self._profile = profile
        self._list = PriceList(cloud.rest, cloud.owned)
        self._live: dict[tuple[str, bool], Rates] = {}

    def rates(self, region: str, *, zonal: bool = False) -> Rates | None:
        """What is known now: live rates if they were learned, else the list prices of the tables.

        Args:
            region: Where.
            zonal: With zonal redundancy.
        """
        live = self._live.get((region, zonal))
        return live if live is not None else rates_of(self._profile, region, zonal=zonal)

    @property
    def problem(self) -> str:
        """Why the price list could not be used; empty if it could, or was not asked."""
        return self._list.problem

    async def learn(self, region: str, *, zonal: bool = False) -> None:
        """Ask the price list; what it does not have stays as it is. Never raises for it."""
        from backends.clouds.google_prices import CLOUD_RUN, rate

        skus = await self._list.skus(CLOUD_RUN, _TIMEOUT_S)
        name = self._profile.gpu_type.removeprefix("nvidia-").replace("-", "[ -]?")
        gpu = (
            rate(skus, region, rf"\b{name}\b.*zonal redundancy", without=_WITHOUT_ZONAL)
            if zonal
            else rate(skus, region, rf"\b{name}\b.*(?:{_WITHOUT_ZONAL})")
        )
        cpu = rate(skus, region, rf"\bCPU\b.*{_BILLED_BY_INSTANCE}", without="job|worker|commit")
        memory = rate(skus, region, rf"memory.*{_BILLED_BY_INSTANCE}", without="job|worker|commit")
        if gpu is not None and cpu is not None and memory is not None:
            self._live[region, zonal] = Rates(gpu, cpu, memory, live=True)
