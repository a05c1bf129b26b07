"""What serving costs: offers of the targets by their parts, months, idle cost, break-even.

List prices with their dates; a live price list replaces a rate where it was reachable
(`live`). Where no rate is known there is no number.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from backends.core.words import plural
from backends.knowledge import cloudrun, gce, sagemaker, sagemaker_components, tpu
from backends.knowledge.facts import Fact, published
from backends.knowledge.targets import (
    CLOUDRUN_L4,
    CLOUDRUN_RTX6000,
    GCE_T4,
    SAGEMAKER_L4,
    TPU_V6E,
    TargetProfile,
)

DAYS_A_MONTH = 365 / 12
HOURS_A_DAY = 24.0
OLD_DAYS = 90
"""A list price older than this is said to be old."""

BUCKET_USD_PER_GIB_MONTH = cloudrun.BUCKET_USD_PER_GIB_MONTH
IMAGE_USD_PER_GIB_MONTH = published(0.10, "Artifact Registry pricing page, storage")


@dataclass(frozen=True, slots=True)
class Part:
    """One component of a price.

    Args:
        name: What it is: `GPU`, `8 vCPU`, ...
        usd_per_hour: While it exists.
        fact: Where the rate comes from.
        live: Whether it was read from the provider's price list now.
    """

    name: str
    usd_per_hour: float
    fact: Fact
    live: bool = False

    def words(self, today: date | None = None) -> str:
        """The part with its price, source and age."""
        age = age_days(self.fact.date, today)
        when = "read now" if self.live else f"of {self.fact.date}, {plural(age, 'day')} old"
        old = " (old: check it)" if not self.live and age > OLD_DAYS else ""
        return f"{self.name} {self.usd_per_hour:.4g} USD/h ({self.fact.source}, {when}{old})"


@dataclass(frozen=True, slots=True)
class Offer:
    """One way to serve, at one place and provisioning model.

    Args:
        target: The target.
        variant: What tells it from the target's other offers, e.g. `spot`; empty for the usual.
        profile: The reference deployment.
        place: Region or zone of the prices.
        chips: Accelerators.
        parts: What its price is made of.
        scales_to_zero: Whether it costs nothing while nobody asks.
        stoppable: Whether it can be stopped and started without losing what is on it.
        idle_s: How long it goes on, at full price, after the last request (scale to zero).
        stopped_usd_per_month: What goes on billing while it is stopped or at zero.
        after_destroy: What goes on billing after `destroy`, each with USD a month.
        may_end: Whether the cloud may take it away.
        options: Entries of plan_deployment's `options` that ask for this offer and no other.
        refuses_asleep: Whether requests are refused, not kept waiting, while it wakes up.
    """

    target: str
    variant: str
    profile: TargetProfile
    place: str
    chips: int
    parts: tuple[Part, ...]
    scales_to_zero: bool = False
    stoppable: bool = False
    idle_s: float = 0.0
    stopped_usd_per_month: float = 0.0
    after_destroy: tuple[tuple[str, float], ...] = ()
    may_end: bool = False
    host_memory_gib: float = 0.0
    host_swap_gib: float = 0.0
    options: tuple[tuple[str, str | bool | list[str]], ...] = ()
    refuses_asleep: bool = False

    @property
    def title(self) -> str:
        """Target and variant."""
        return f"{self.target} {self.variant}".strip()

    @property
    def usd_per_hour(self) -> float:
        """Of all parts, while it serves."""
        return sum(part.usd_per_hour for part in self.parts)


@dataclass(frozen=True, slots=True)
class MonthlyCost:
    """What a month costs.

    Args:
        usd: In all.
        serving_usd: While it serves or waits at full price.
        idle_usd: While it is stopped or at zero.
        hours: Hours a month at full price, of one instance.
    """

    usd: float
    serving_usd: float
    idle_usd: float
    hours: float


@dataclass(frozen=True, slots=True)
class Duty:
    """How much of a day something is used.

    Args:
        hours_a_day: Hours in which requests come, 0 to 24.
        requests_per_hour: Requests in such an hour.
    """

    hours_a_day: float = HOURS_A_DAY
    requests_per_hour: float = 60.0


def month(offer: Offer, duty: Duty, instances: int = 1) -> MonthlyCost:
    """What an offer costs a month at a duty cycle.

    Args:
        offer: The offer.
        duty: When requests come.
        instances: How many serve at once.
    """
    hours = HOURS_A_DAY
    if offer.scales_to_zero:
        hours = min(HOURS_A_DAY, _awake_hours(offer, duty))
    elif offer.stoppable and duty.hours_a_day < HOURS_A_DAY:
        # It is started before and stopped after: its start is paid for too.
        hours = min(HOURS_A_DAY, duty.hours_a_day + offer.profile.startup_s / 3600)
    serving = offer.usd_per_hour * instances * hours * DAYS_A_MONTH
    idle = offer.stopped_usd_per_month * (1 - hours / HOURS_A_DAY)
    return MonthlyCost(serving + idle, serving, idle, hours * DAYS_A_MONTH)


def _awake_hours(offer: Offer, duty: Duty) -> float:
    """Hours a day in which an instance of something that scales to zero exists."""
    after_h = offer.idle_s / 3600
    start_h = offer.profile.startup_s / 3600
    if duty.requests_per_hour <= 0 or duty.hours_a_day <= 0:
        return 0.0
    if duty.requests_per_hour * after_h >= 1:
        # Requests come before it falls asleep: one stretch a day.
        return duty.hours_a_day + after_h + start_h
    return duty.hours_a_day * duty.requests_per_hour * (after_h + start_h)


def break_even_hours(zero: Offer, always: Offer) -> float | None:
    """Hours a day below which scaling to zero is cheaper than running always.

    Returns:
        Hours, at most 24 (always cheaper); None where neither number is known or it never is.
    """
    if zero.usd_per_hour <= 0:
        return None
    day = always.usd_per_hour * HOURS_A_DAY - zero.stopped_usd_per_month / DAYS_A_MONTH
    hours = day / zero.usd_per_hour - (zero.idle_s + zero.profile.startup_s) / 3600
    return None if hours <= 0 else min(hours, HOURS_A_DAY)


def age_days(of: str, today: date | None = None) -> int:
    """Days since a date."""
    return max(0, ((today or date.today()) - date.fromisoformat(of)).days)


def offers(weights_gib: float = 10.0) -> tuple[Offer, ...]:
    """Every offer whose rates are known.

    Args:
        weights_gib: Weights kept in a bucket.
    """
    found: list[Offer | None] = [_cloud_run(cloudrun.L4, CLOUDRUN_L4, weights_gib),
             _cloud_run(cloudrun.RTX6000, CLOUDRUN_RTX6000, weights_gib)]  # fmt: skip
    found += [_sagemaker(name) for name in ("ml.g6.xlarge", "ml.g6.2xlarge")]
    found += [_sagemaker("ml.g6.xlarge", zero=True)]
    found += [_gce(spot=False), _gce(spot=True)]
    found += [_tpu(kind, chips) for chips in (1, 4, 8) for kind in ("on-demand", "flex-start")]
    found += [_tpu("spot", 1)]
    return tuple(offer for offer in found if offer is not None)


def offers_of(target: str) -> tuple[Offer, ...]:
    """The offers of one target."""
    return tuple(offer for offer in offers() if offer.target == target)


def _bucket(weights_gib: float) -> tuple[tuple[str, float], ...]:
    usd = round(weights_gib * BUCKET_USD_PER_GIB_MONTH.value, 2)
    return ((f"{weights_gib:.0f} GiB of weights in the bucket", usd),)


def cloud_run_parts(
    profile: cloudrun.CloudRunProfile,
    cpu: float,
    memory_gib: float,
    *,
    region: str = "",
    zonal: bool = False,
    live: dict[str, Fact] | None = None,
) -> tuple[Part, ...]:
    """What an instance costs, by its parts; empty where a rate is not known.

    Args:
        profile: Which GPU.
        cpu: vCPUs.
        memory_gib: Memory.
        region: Where; empty for the profile's own region.
        zonal: With zonal redundancy.
        live: Rates per second from the price list: `gpu`, `cpu`, `memory`, as far as it has them.
    """
    known = live or {}
    rates = cloudrun.rates_of(profile, region or profile.default_region, zonal=zonal)
    gpu = known.get("gpu") or (rates.gpu if rates else None)
    vcpu = known.get("cpu") or (rates.cpu if rates else None)
    gib = known.get("memory") or (rates.memory if rates else None)
    if gpu is None or vcpu is None or gib is None:
        return ()
    return (
        Part(profile.hardware, gpu.value * 3600, gpu, "gpu" in known),
        Part(f"{cpu:g} vCPU", vcpu.value * 3600 * cpu, vcpu, "cpu" in known),
        Part(f"{memory_gib:g} GiB", gib.value * 3600 * memory_gib, gib, "memory" in known),
    )


def _cloud_run(
    profile: cloudrun.CloudRunProfile, reference: TargetProfile, weights_gib: float
) -> Offer:
    bucket = _bucket(weights_gib)
    return Offer(
        profile.target,
        "",
        reference,
        profile.default_region,
        1,
        cloud_run_parts(profile, profile.cpu, profile.memory_gib),
        scales_to_zero=True,
        idle_s=cloudrun.IDLE_S.value,
        stopped_usd_per_month=bucket[0][1],
        after_destroy=bucket,
        host_memory_gib=profile.memory_gib,
    )


def _sagemaker(name: str, *, zero: bool = False) -> Offer | None:
    rate = sagemaker.USD_PER_HOUR.get(("us-east-2", name))
    if rate is None:
        return None
    kind = sagemaker.TYPES[name]
    variant = "" if name == "ml.g6.xlarge" else name
    options: tuple[tuple[str, str | bool | list[str]], ...] = (("instance_types", [name]),)
    if zero:
        return Offer(
            "sagemaker-l4",
            f"{variant} scale to zero".strip(),
            SAGEMAKER_L4,
            "us-east-2",
            1,
            (Part(name, rate.value, rate),),
            scales_to_zero=True,
            idle_s=sagemaker_components.IDLE_S.value,
            stopped_usd_per_month=3 * sagemaker_components.ALARM_USD_PER_MONTH.value,
            host_memory_gib=kind.memory_gib,
            options=(*options, ("scale_to_zero", True)),
            refuses_asleep=True,
        )
    return Offer(
        "sagemaker-l4",
        variant,
        SAGEMAKER_L4,
        "us-east-2",
        1,
        (Part(name, rate.value, rate),),
        host_memory_gib=kind.memory_gib,
        options=options,
    )


def _gce(*, spot: bool) -> Offer | None:
    zone = "us-west2-b"
    rate = gce.machine_rate(zone, gce.DEFAULT_MACHINE, spot)
    data = gce.disk_usd_per_month(gce.DATA_DISK_TYPE, gce.DATA_DISK_GIB) or 0.0
    boot = gce.disk_usd_per_month(gce.BOOT_DISK_TYPE, gce.BOOT_DISK_GIB) or 0.0
    if rate is None:
        return None
    hours = DAYS_A_MONTH * HOURS_A_DAY
    disks = gce.DISK_USD_PER_GIB_MONTH[gce.DATA_DISK_TYPE]
    return Offer(
        "gce-t4",
        "spot" if spot else "",
        GCE_T4,
        zone,
        1,
        (
            Part(rate.basis, rate.machine, rate.fact),
            Part("disks", (data + boot) / hours, disks),
        ),
        stoppable=True,
        stopped_usd_per_month=data + boot,
        after_destroy=((f"data disk of {gce.DATA_DISK_GIB} GiB, if it is kept", data),),
        may_end=spot,
        host_memory_gib=gce.MACHINES[gce.DEFAULT_MACHINE].memory_gib,
        host_swap_gib=16.0,
        options=(("provisioning", "spot"),) if spot else (),
    )


def _tpu(provisioning: str, chips: int) -> Offer | None:
    zone = "us-east5-b"
    rate = tpu.usd_per_chip_hour(provisioning, zone)
    if rate is None:
        return None
    variant = f"v6e-{chips}" + ("" if provisioning == "on-demand" else f" {provisioning}")
    name = f"v6e-{chips} {provisioning}"
    return Offer(
        "tpu-v6e",
        variant,
        TPU_V6E,
        zone,
        chips,
        (Part(name, rate.value * chips, rate),),
        may_end=provisioning != "on-demand",
        host_memory_gib=float(tpu.find_slice(f"v6e-{chips}").memory_gib),
        options=(("size", f"v6e-{chips}"), ("provisioning", provisioning)),
    )
