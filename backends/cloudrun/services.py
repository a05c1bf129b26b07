"""Cloud Run services and revisions as we read them: one look at the API, in plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from backends.core.names import MANAGED_BY, MANAGED_BY_US
from backends.core.owned import together

if TYPE_CHECKING:
    from backends.clouds.google import GoogleCloud

GIB = 2**30
_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Condition:
    """One condition of a service or revision: `ok` is None while it is not decided."""

    type: str
    ok: bool | None
    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class Share:
    """Traffic of one revision."""

    revision: str
    percent: int
    tag: str = ""
    url: str = ""
    latest: bool = False


@dataclass(frozen=True)
class RunService:
    """A Cloud Run service.

    Attributes:
        name: Its name.
        region: Where it is.
        url: Its own URL, the audience of identity tokens.
        labels: Its labels.
        etag: Changes whenever it does.
        generation: Counts its changes.
        created_at: Unix seconds, 0 if unknown.
        updated_at: Unix seconds of its last change, 0 if unknown.
        ready: Whether it can serve; None while that is not decided.
        reconciling: Whether Cloud Run is working on it.
        conditions: All conditions.
        gpu: The GPU's type; empty without one.
        cpu: vCPUs of an instance.
        memory_gib: Memory of an instance.
        zonal: Whether the GPU is redundant across zones.
        image: The image of the newest revision.
        args: Its container's arguments.
        env: Its variables; of secrets only the name.
        account: The account it runs as.
        concurrency: Requests an instance admits.
        port: Where the container listens.
        min_instances: Kept warm.
        revision_min: The part of it that belongs to the newest revision.
        max_instances: At most.
        manual: The number of instances in manual scaling, None in automatic.
        created_revision: The newest revision.
        ready_revision: The newest revision that could serve.
        traffic: Who gets how much.
        buckets: Buckets it mounts.
        secrets: Secrets it reads.
        being_deleted: Whether its deletion was accepted and goes on.
    """

    name: str
    region: str
    url: str
    labels: dict[str, str]
    etag: str
    generation: int
    created_at: float
    updated_at: float
    ready: bool | None
    reconciling: bool
    conditions: tuple[Condition, ...]
    gpu: str
    cpu: float
    memory_gib: float
    zonal: bool
    image: str
    args: tuple[str, ...]
    env: dict[str, str] = field(repr=False)
    account: str
    concurrency: int
    port: int
    min_instances: int
    revision_min: int
    max_instances: int
    manual: int | None
    created_revision: str
    ready_revision: str
    traffic: tuple[Share, ...]
    buckets: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    being_deleted: bool = False

    @property
    def managed(self) -> bool:
        """Whether it carries our label."""
        return self.labels.get(MANAGED_BY) == MANAGED_BY_US

    @property
    def serving(self) -> Share | None:
        """The revision that gets the most traffic."""
        shares = [share for share in self.traffic if share.percent > 0]
        return max(shares, key=lambda share: share.percent, default=None)

    @property
    def watched_revision(self) -> str:
        """The revision whose instances say how the service is.

        The new one until it is settled, then the one that gets the traffic.
        """
        settled = self.ready is True and not self.reconciling
        serving = self.serving
        if settled and self.created_revision == self.ready_revision and serving is not None:
            return serving.revision
        return self.created_revision

    @property
    def tagged(self) -> dict[str, Share]:
        """Revisions that have a URL of their own, by tag."""
        return {share.tag: share for share in self.traffic if share.tag}

    @property
    def warm_instances(self) -> int:
        """Instances that exist whether or not anybody asks."""
        return self.manual if self.manual is not None else self.min_instances

    @property
    def trouble(self) -> Condition | None:
        """The condition that says most about why it is not ready."""
        failed = [item for item in self.conditions if item.ok is False]
        return max(failed, key=lambda item: len(item.message), default=None)


@dataclass(frozen=True)
class RunRevision:
    """A revision: one immutable version of a service."""

    name: str
    created_at: float
    ready: bool | None
    conditions: tuple[Condition, ...]
    image: str


class RunApi:
    """Reads Cloud Run.

    Args:
        cloud: The project.
    """

    def __init__(self, cloud: GoogleCloud) -> None:
        self._cloud = cloud

    async def service(self, region: str, name: str) -> RunService:
        """One service.

        Raises:
            NotFoundError: It is not there.
            DevopsError: It could not be asked.
        """
        project = await self._cloud.project()
        path = f"projects/{project}/locations/{region}/services/{name}"
        return await self._cloud.clients.run_services(
            lambda client: _service(client.get_service(name=path, retry=None, timeout=_TIMEOUT_S)),
            f"Cloud Run service {name} in {region}",
        )

    async def services(self, regions: Sequence[str]) -> list[RunService]:
        """All services of some regions. One region that does not answer fails the whole."""
        project = await self._cloud.project()

        def listed(region: str) -> Any:  # noqa: ANN401 (work for a client of a library)
            parent = f"projects/{project}/locations/{region}"
            return lambda client: [
                _service(item)
                for item in client.list_services(parent=parent, retry=None, timeout=_TIMEOUT_S)
            ]

        lists = await together(
            *(
                self._cloud.clients.run_services(
                    listed(region), f"The list of Cloud Run services in {region}"
                )
                for region in regions
            )
        )
        return [service for found in lists for service in found]

    async def revisions(self, region: str, name: str) -> list[RunRevision]:
        """The revisions of a service, newest first."""
        project = await self._cloud.project()
        parent = f"projects/{project}/locations/{region}/services/{name}"
        found: list[RunRevision] = await self._cloud.clients.run_revisions(
            lambda client: [
                _revision(item)
                for item in client.list_revisions(parent=parent, retry=None, timeout=_TIMEOUT_S)
            ],
            f"The revisions of Cloud Run service {name} in {region}",
        )
        return sorted(found, key=lambda revision: revision.created_at, reverse=True)


def _service(raw: Any) -> RunService:  # noqa: ANN401 (run_v2.Service, imported on first use)
    parts = raw.name.split("/")
    template = raw.template
    container = template.containers[0] if template.containers else None
    limits = dict(container.resources.limits) if container else {}
    annotations = dict(raw.annotations)
    manual = _manual(raw.scaling, annotations)
    conditions = tuple(
        _condition(item) for item in [raw.terminal_condition, *raw.conditions] if item.type_
    )
    return RunService(
        name=parts[-1],
        region=parts[3] if len(parts) > 3 else "",
        url=raw.uri,
        labels=dict(raw.labels),
        etag=raw.etag,
        generation=int(raw.generation),
        being_deleted=_seconds(raw.delete_time) > 0,
        created_at=_seconds(raw.create_time),
        updated_at=_seconds(raw.update_time),
        ready=_condition(raw.terminal_condition).ok if raw.terminal_condition.type_ else None,
        reconciling=bool(raw.reconciling),
        conditions=conditions,
        gpu=template.node_selector.accelerator if "nvidia.com/gpu" in limits else "",
        cpu=_cpu(limits.get("cpu", "0")),
        memory_gib=_gib(limits.get("memory", "0")),
        zonal=not template.gpu_zonal_redundancy_disabled,
        image=container.image if container else "",
        args=tuple(container.args) if container else (),
        env={item.name: item.value for item in container.env} if container else {},
        account=template.service_account,
        concurrency=int(template.max_instance_request_concurrency),
        port=int(container.ports[0].container_port) if container and container.ports else 8080,
        min_instances=max(
            int(template.scaling.min_instance_count), int(raw.scaling.min_instance_count)
        ),
        revision_min=int(template.scaling.min_instance_count),
        max_instances=int(template.scaling.max_instance_count)
        or int(raw.scaling.max_instance_count)
        or 100,
        manual=manual,
        created_revision=_last(raw.latest_created_revision),
        ready_revision=_last(raw.latest_ready_revision),
        traffic=_traffic(raw),
        buckets=tuple(item.gcs.bucket for item in template.volumes if item.gcs.bucket),
        secrets=tuple(
            _last(item.value_source.secret_key_ref.secret)
            for item in (container.env if container else ())
            if item.value_source.secret_key_ref.secret
        ),
    )


def _revision(raw: Any) -> RunRevision:  # noqa: ANN401 (run_v2.Revision)
    conditions = tuple(_condition(item) for item in raw.conditions)
    ready = next((item.ok for item in conditions if item.type == "Ready"), None)
    return RunRevision(
        name=_last(raw.name),
        created_at=_seconds(raw.create_time),
        ready=ready,
        conditions=conditions,
        image=raw.containers[0].image if raw.containers else "",
    )


def _condition(raw: Any) -> Condition:  # noqa: ANN401 (run_v2.Condition)
    state = raw.state.name
    ok = {"CONDITION_SUCCEEDED": True, "CONDITION_FAILED": False}.get(state)
    reasons = (raw.reason, raw.revision_reason, raw.execution_reason)
    reason = next(
        (
            item.name
            for item in reasons
            if item
            and not item.name.endswith("UNDEFINED")
            and not item.name.endswith("UNSPECIFIED")
        ),
        "",
    )
    return Condition(raw.type_, ok, reason, raw.message)


def _manual(scaling: Any, annotations: dict[str, str]) -> int | None:  # noqa: ANN401
    if scaling.scaling_mode.name == "MANUAL":
        return int(scaling.manual_instance_count or 0)
    if annotations.get("run.googleapis.com/scalingMode") == "manual":
        return int(annotations.get("run.googleapis.com/manualInstanceCount", "0"))
    return None


def _traffic(raw: Any) -> tuple[Share, ...]:  # noqa: ANN401
    latest = "TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST"
    return tuple(
        Share(
            revision=_last(item.revision or raw.latest_ready_revision),
            percent=int(item.percent),
            tag=item.tag,
            url=item.uri,
            latest=item.type_.name == latest,
        )
        for item in raw.traffic_statuses
    )


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _seconds(moment: Any) -> float:  # noqa: ANN401 (DatetimeWithNanoseconds, or nothing)
    return float(moment.timestamp()) if moment else 0.0


def _cpu(text: str) -> float:
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text or 0)


def _gib(text: str) -> float:
    units = {"Gi": 1.0, "Mi": 1 / 1024, "G": 1e9 / GIB, "M": 1e6 / GIB, "Ki": 1 / 1024**2}
    for unit, factor in units.items():
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    return float(text or 0) / GIB
