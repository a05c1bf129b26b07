"""Cloud Quotas API (v1 and v1beta): the limits Cloud Run and Cloud TPU really go by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.rehearsal.cloud.catalogue import CPU_QUOTA, GPUS, MEMORY_QUOTA
from backends.rehearsal.cloud.compute.catalogue import (
    TPU_PREEMPTIBLE_QUOTA,
    TPU_QUOTA,
    ZONES,
)
from backends.rehearsal.cloud.compute.places import limit_of
from backends.rehearsal.cloud.tpu_catalogue import ON_DEMAND_QUOTA, PREEMPTIBLE_QUOTA
from backends.rehearsal.cloud.web import Api, ApiError, Json, Request, page

if TYPE_CHECKING:
    from backends.rehearsal.cloud.cloud import Cloud

RUN = "run.googleapis.com"
TPU = "tpu.googleapis.com"
COMPUTE = "compute.googleapis.com"

_METRICS = {
    ON_DEMAND_QUOTA: "tpu.googleapis.com/tpu_v6e",
    PREEMPTIBLE_QUOTA: "tpu.googleapis.com/tpu_v6e_preemptible",
    CPU_QUOTA: "run.googleapis.com/cpu_allocation",
    MEMORY_QUOTA: "run.googleapis.com/mem_allocation",
    **{gpu.quota: gpu.metric for gpu in GPUS.values()},
    **{gpu.zonal_quota: gpu.metric.removesuffix("_no_zonal_redundancy") for gpu in GPUS.values()},
}
# Quotas of other services than Cloud Run, which count by zone.
_SERVICES = {ON_DEMAND_QUOTA: TPU, PREEMPTIBLE_QUOTA: TPU}
# Compute Engine's own pools of TPU chips, by quota id: the metric they are counted as.
_COMPUTE_TPUS = {
    "TPUS-PER-TPU-FAMILY-per-project-region": TPU_QUOTA,
    "PREEMPTIBLE-TPU-V6E-per-project-region": TPU_PREEMPTIBLE_QUOTA,
}
_ZONAL = frozenset({ON_DEMAND_QUOTA, PREEMPTIBLE_QUOTA})

_TITLES = {
    ON_DEMAND_QUOTA: "TPU v6e cores per project per zone",
    PREEMPTIBLE_QUOTA: "Preemptible TPU v6e cores per project per zone",
    CPU_QUOTA: "Total CPU allocation, in milli vCPU, per project per region",
    MEMORY_QUOTA: "Total memory allocation, in bytes, per project per region",
    **{
        gpu.quota: f"Total {gpu.title} allocation without zonal redundancy, per project per region"
        for gpu in GPUS.values()
    },
    **{
        gpu.zonal_quota: f"Total {gpu.title} allocation with zonal redundancy, per project per "
        "region"
        for gpu in GPUS.values()
    },
}


def api(cloud: Cloud) -> Api:
    """The API."""
    world = cloud.world

    def info(service: str, quota: str) -> Json:
        limits = dict(world.quotas[quota])
        shown = world.knobs.quotas_shown.get(quota)
        if shown is not None:
            limits = dict.fromkeys(limits, shown)
        place = "zone" if quota in _ZONAL else "region"
        return {
            "name": f"projects/{world.number}/locations/global/services/{service}/quotaInfos/"
            f"{quota}",
            "quotaId": quota,
            "metric": _METRICS.get(quota, f"{service}/{quota}"),
            "service": service,
            "isPrecise": True,
            "containerType": "PROJECT",
            "dimensions": [place],
            "metricDisplayName": _TITLES.get(quota, quota),
            "quotaDisplayName": _TITLES.get(quota, quota),
            "metricUnit": "1",
            "quotaIncreaseEligibility": {"isEligible": True},
            "dimensionsInfos": [
                {
                    "dimensions": {place: region},
                    "details": {"value": str(value)},
                    "applicableLocations": [region],
                }
                for region, value in sorted(limits.items())
            ],
        }

    def compute_info(quota: str) -> Json:
        metric = _COMPUTE_TPUS[quota]
        family = {"tpu_family": "CT6E"} if metric == TPU_QUOTA else {}
        return {
            "name": f"projects/{world.number}/locations/global/services/{COMPUTE}/quotaInfos/"
            f"{quota}",
            "quotaId": quota,
            "metric": f"{COMPUTE}/{metric.lower()}",
            "service": COMPUTE,
            "isPrecise": True,
            "containerType": "PROJECT",
            "dimensions": ["region", *family],
            "metricUnit": "1",
            "quotaIncreaseEligibility": {"isEligible": True},
            "dimensionsInfos": [
                {
                    "dimensions": {"region": region, **family},
                    "details": {"value": f"{limit_of(world, region, metric):.0f}"},
                    "applicableLocations": [region],
                }
                for region in ZONES
            ],
        }

    def get(request: Request, project: str, service: str, quota: str) -> Json:
        del request
        world.check_project(project)
        if service == COMPUTE and quota in _COMPUTE_TPUS:
            return compute_info(quota)
        if quota not in world.quotas or _SERVICES.get(quota, RUN) != service:
            raise ApiError(404, f"The quota id {quota} does not exist.")
        return info(service, quota)

    def listed(request: Request, project: str, service: str) -> Json:
        world.check_project(project)
        infos = [
            info(service, quota) for quota in world.quotas if _SERVICES.get(quota, RUN) == service
        ]
        if service == COMPUTE:
            infos += [compute_info(quota) for quota in _COMPUTE_TPUS]
        return page(request, infos, "quotaInfos", default=10)

    def prefer(request: Request, project: str) -> Json:
        """Ask for another limit of v6e chips in one zone; granted at once, as far as it goes."""
        world.check_project(project)
        body = request.json()
        quota = str(body.get("quotaId"))
        zone = str((body.get("dimensions") or {}).get("zone"))
        if quota not in _ZONAL or zone not in world.quotas[quota]:
            raise ApiError(400, f"The quota id {quota} has no limit in {zone!r}.")
        limit = world.quotas[quota][zone]
        wanted = int((body.get("quotaConfig") or {}).get("preferredValue", 0))
        if wanted < 0.9 * limit and not request.value("ignoreSafetyChecks"):
            raise ApiError(
                400,
                f"The quota override {wanted} of {limit} decreases effective quota unsafely",
                status="FAILED_PRECONDITION",
            )
        world.quotas[quota][zone] = wanted
        world.dirty = True
        return body | {"quotaConfig": {"preferredValue": str(wanted), "grantedValue": str(wanted)}}

    made = Api("cloudquotas.googleapis.com", "Cloud Quotas API")
    path = r"/v1(?:beta)?/projects/([^/]+)/locations/global/services/([^/]+)/quotaInfos"
    made.add("GET", path, listed, "cloudquotas.quotas.get")
    made.add("GET", path + r"/([^/]+)", get, "cloudquotas.quotas.get")
    made.add(
        "POST",
        r"/v1(?:beta)?/projects/([^/]+)/locations/global/quotaPreferences",
        prefer,
        "cloudquotas.quotas.update",
    )
    return made
