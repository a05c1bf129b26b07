"""The project, its regions and zones, and what their quotas allow and hold already."""

from __future__ import annotations

from backends.rehearsal.cloud.compute.catalogue import (
    GPUS,
    GPUS_ALL_REGIONS,
    MACHINES,
    PROJECT_QUOTAS,
    QUOTAS,
    TPU_PREEMPTIBLE_QUOTA,
    TPU_QUOTA,
    TPU_QUOTAS,
    ZONES,
    all_zones,
    is_zone,
    region_of,
)
from backends.rehearsal.cloud.compute.common import VERSION, Compute
from backends.rehearsal.cloud.web import Api, Json, Request
from backends.rehearsal.cloud.world import World

# Machines that count: those that exist and are not stopped.
_COUNTING = frozenset({"PROVISIONING", "STAGING", "RUNNING", "STOPPING", "SUSPENDING"})


def limit_of(world: World, region: str, metric: str) -> float:
    """A limit of Compute Engine; of the project where `region` is empty."""
    own = world.options.get("compute_quotas", {})
    for place in (region or "global", "*"):
        if metric in own.get(place, {}):
            return float(own[place][metric])
    return {**QUOTAS, **TPU_QUOTAS, **PROJECT_QUOTAS}.get(metric, 0.0)


class Places:
    """Routes of the project, regions and zones.

    Args:
        compute: What all parts stand on.
    """

    def __init__(self, compute: Compute) -> None:
        self._compute = compute
        self._world = compute.world

    def add_to(self, api: Api) -> None:
        """Register the routes."""
        add = api.add
        add("GET", VERSION, self.project, "compute.projects.get")
        add(
            "POST",
            VERSION + "/setCommonInstanceMetadata",
            self.set_metadata,
            "compute.projects.setCommonInstanceMetadata",
        )
        add("GET", VERSION + "/regions", self.regions, "compute.regions.list")
        add("GET", VERSION + r"/regions/([^/]+)", self.region, "compute.regions.get")
        add("GET", VERSION + "/zones", self.zones, "compute.zones.list")
        add("GET", VERSION + r"/zones/([^/]+)", self.zone, "compute.zones.get")

    def project(self, request: Request, project: str) -> Json:
        """The project, as Compute Engine sees it."""
        del request
        self._compute.check(project)
        return {
            "kind": "compute#project",
            "id": self._world.number,
            "name": self._world.project,
            "selfLink": self._compute.url(""),
            "commonInstanceMetadata": {
                "kind": "compute#metadata",
                "fingerprint": "Zm9v",
                "items": [],
                **self._world.project_metadata,
            },
            "defaultServiceAccount": self._world.default_account,
            "quotas": [
                {
                    "metric": metric,
                    "limit": self.limit("", metric),
                    "usage": self.usage("", metric),
                }
                for metric in PROJECT_QUOTAS
            ],
        }

    async def set_metadata(self, request: Request, project: str) -> Json:
        """Metadata of all machines: where gcloud puts ssh keys."""
        self._compute.check(project)
        self._world.project_metadata = {**request.json(), "fingerprint": "Zm9v"}
        return self._compute.at_once("setCommonInstanceMetadata", "")

    def regions(self, request: Request, project: str) -> Json:
        """All regions."""
        self._compute.check(project)
        return {
            "kind": "compute#regionList",
            "items": [self.region(request, project, region) for region in ZONES],
        }

    def region(self, request: Request, project: str, region: str) -> Json:
        """One region with its quotas (which are not those of Cloud Run)."""
        del request
        self._compute.check(project)
        if region not in ZONES:
            raise self._compute.not_found(f"regions/{region}")
        url = self._compute.url
        return {
            "kind": "compute#region",
            "id": str(1000 + list(ZONES).index(region)),
            "name": region,
            "status": "UP",
            "selfLink": url(f"regions/{region}"),
            "zones": [url(f"zones/{region}-{letter}") for letter in ZONES[region]],
            "quotas": [
                {
                    "metric": metric,
                    "limit": self.limit(region, metric),
                    "usage": self.usage(region, metric),
                }
                for metric in QUOTAS
            ],
        }

    def zones(self, request: Request, project: str) -> Json:
        """All zones."""
        self._compute.check(project)
        return {
            "kind": "compute#zoneList",
            "items": [self.zone(request, project, name) for name in all_zones()],
        }

    def zone(self, request: Request, project: str, zone: str) -> Json:
        """One zone."""
        del request
        self._compute.check(project)
        if not is_zone(zone):
            raise self._compute.not_found(f"zones/{zone}")
        region = region_of(zone)
        return {
            "kind": "compute#zone",
            "id": str(2000 + all_zones().index(zone)),
            "name": zone,
            "status": "UP",
            "region": self._compute.url(f"regions/{region}"),
            "selfLink": self._compute.url(f"zones/{zone}"),
        }

    # ------------------------------------------------------------------------- quotas

    def limit(self, region: str, metric: str) -> float:
        """A limit; of the project where `region` is empty."""
        return limit_of(self._world, region, metric)

    def usage(self, region: str, metric: str) -> float:
        """What machines and disks hold of a limit."""
        total = 0.0
        for key, instance in self._world.instances.items():
            if region in ("", region_of(key.partition("/")[0])):
                total += self.counted(instance).get(metric, 0.0)
        for key, disk in self._world.disks.items():
            if region in ("", region_of(key.partition("/")[0])):
                kind = str(disk["type"]).rpartition("/")[2]
                counted = "DISKS_TOTAL_GB" if kind == "pd-standard" else "SSD_TOTAL_GB"
                total += float(disk["sizeGb"]) if metric == counted else 0.0
        return total

    def counted(self, instance: Json) -> dict[str, float]:
        """What a machine counts on which limits; nothing once it is stopped."""
        if instance.get("status", "PROVISIONING") not in _COUNTING:
            return {"INSTANCES": 1.0}
        region = region_of(str(instance.get("zone", "")).rpartition("/")[2])
        model = (instance.get("scheduling") or {}).get("provisioningModel")
        spot = model == "SPOT"
        machine = MACHINES.get(str(instance.get("machineType")).rpartition("/")[2])
        counts = {"INSTANCES": 1.0}

        def count(metric: str, amount: float) -> None:
            # Spot machines count on the preemptible limit where the project was given one.
            own = f"PREEMPTIBLE_{metric}"
            name = own if spot and self.limit(region, own) > 0 else metric
            counts[name] = counts.get(name, 0.0) + amount

        if machine is not None:
            # N1 and E2 share the limit of a region; the families after them have their own. That
            # this holds for TPU machines too is assumed: no published run was near it.
            if not machine.tpus:
                count("CPUS", float(machine.cpus))
            counts["CPUS_ALL_REGIONS"] = float(machine.cpus)
        if machine is not None and machine.tpus and model != "RESERVATION_BOUND":
            pool = TPU_PREEMPTIBLE_QUOTA if model in {"SPOT", "FLEX_START"} else TPU_QUOTA
            counts[pool] = float(machine.tpus)
        for item in instance.get("guestAccelerators") or []:
            gpu = GPUS.get(str(item.get("acceleratorType")).rpartition("/")[2])
            if gpu is not None:
                amount = float(item.get("acceleratorCount") or 0)
                count(gpu.quota, amount)
                counts[GPUS_ALL_REGIONS] = counts.get(GPUS_ALL_REGIONS, 0.0) + amount
        if any(item.get("accessConfigs") for item in instance.get("networkInterfaces") or []):
            counts["IN_USE_ADDRESSES"] = 1.0
        return counts

    def exceeded(self, instance: Json, zone: str) -> tuple[str, str, float] | None:
        """The first limit that a machine about to be made (or started) would pass.

        Returns:
            The metric, its region (empty: the project) and the limit; None where it fits.
        """
        region = region_of(zone)
        wanted = self.counted(
            instance | {"status": "PROVISIONING", "zone": self._compute.url(f"zones/{zone}")}
        )
        for metric, amount in wanted.items():
            place = "" if metric in PROJECT_QUOTAS else region
            limit = self.limit(place, metric)
            if self.usage(place, metric) + amount > limit:
                return metric, place, limit
        return None
