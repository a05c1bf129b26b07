"""Services and revisions: what is made of a request, and what becomes of it."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import TYPE_CHECKING, Any

from backends.rehearsal.cloud.log_store import AUDIT, EVENT, run_resource
from backends.rehearsal.cloud.run import names
from backends.rehearsal.cloud.run.names import Key
from backends.rehearsal.cloud.run.shape import (
    CREATOR,
    INVOKER_CHECK_DISABLED,
    LOCATION,
    MODIFIER,
    SCALING_MODE,
    SERVICE_MAX_SCALE,
    SERVICE_MIN_SCALE,
    read_shape,
)
from backends.rehearsal.cloud.run.validate import check
from backends.rehearsal.cloud.web import ApiError, Json, bad_request
from backends.rehearsal.cloud.world import now

if TYPE_CHECKING:
    from backends.rehearsal.cloud.cloud import Cloud

API = "serving.knative.dev/v1"
_URLS = "run.googleapis.com/urls"
OPERATION = "run.googleapis.com/operation-id"
_INGRESS = "run.googleapis.com/ingress"
_NONCE = "client.knative.dev/nonce"

# Deleting takes Google some seconds, in which the service is still there.
_DELETE_S = 4.0

_UNKNOWN, _TRUE, _FALSE = "Unknown", "True", "False"


def condition(kind: str, status: str, reason: str = "", message: str = "") -> Json:
    """One condition of a service or revision."""
    made: Json = {"type": kind, "status": status, "lastTransitionTime": now()}
    if reason:
        made["reason"] = reason
    if message:
        made["message"] = message
    return made


def condition_of(resource: Json, kind: str = "Ready") -> Json:
    """A condition of a resource, by type; empty where it has none of that type."""
    conditions: list[Json] = resource.get("status", {}).get("conditions", [])
    return next((item for item in conditions if item["type"] == kind), {})


def is_ready(resource: Json) -> bool:
    """Whether a service or revision is ready."""
    return bool(condition_of(resource).get("status") == _TRUE)


class Services:
    """Creates, changes and deletes services, and follows their revisions.

    Args:
        cloud: The parts of the cloud.
    """

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._tasks: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------------- reading

    def find(self, key: Key) -> Json:
        """A service.

        Raises:
            ApiError: 404.
        """
        service = self._cloud.world.services.get(str(key))
        if service is None:
            raise ApiError(
                404,
                f"Resource '{key.name}' of kind 'SERVICE' in region '{key.region}' in project "
                f"'{self._cloud.world.project}' does not exist.",
            )
        return service

    def find_revision(self, key: Key) -> Json:
        """A revision.

        Raises:
            ApiError: 404.
        """
        revision = self._cloud.world.revisions.get(str(key))
        if revision is None:
            raise ApiError(
                404,
                f"Resource '{key.name}' of kind 'REVISION' in region '{key.region}' in project "
                f"'{self._cloud.world.project}' does not exist.",
            )
        return revision

    def listed(self, region: str) -> list[Json]:
        """Services of a region (`-`: of all), by region and name."""
        return [
            service
            for key, service in sorted(self._cloud.world.services.items())
            if region in {"-", Key.parse(key).region}
        ]

    def revisions(self, region: str, service: str = "") -> list[Json]:
        """Revisions of a region, or of one service in it; newest first."""
        found = [
            revision
            for key, revision in self._cloud.world.revisions.items()
            if region in {"-", Key.parse(key).region}
            and (not service or revision["metadata"]["labels"][f"{_KNATIVE}/service"] == service)
        ]
        return sorted(found, key=lambda item: item["metadata"]["creationTimestamp"], reverse=True)

    def serving(self, service: Json) -> dict[str, int]:
        """Ready revisions that get traffic: name -> percent. Tagged ones without traffic: 0."""
        shares: dict[str, int] = {}
        for target in service.get("status", {}).get("traffic", []):
            name = target.get("revisionName")
            if name:
                shares[name] = shares.get(name, 0) + int(target.get("percent") or 0)
        return shares

    # ------------------------------------------------------------------------- changing

    def create(self, region: str, service: Json, account: str, *, dry_run: bool = False) -> Json:
        """Make a service.

        Args:
            region: Where.
            service: As it was sent, API v1.
            account: Who asks.
            dry_run: Check only.

        Raises:
            ApiError: It exists, or cannot be.
        """
        key = Key(region, str(service["metadata"]["name"]))
        if str(key) in self._cloud.world.services:
            raise ApiError(409, f"Resource '{key.name}' already exists.")
        made = copy.deepcopy(service)
        self._defaults(made)
        shape = check(self._cloud.world, region, made, 0)
        self._check_service_account(shape.service_account)
        self._check_traffic(key, made)
        if dry_run:
            return made
        metadata = made["metadata"]
        metadata |= {
            "uid": self._cloud.world.uid(),
            "creationTimestamp": now(),
            "generation": 0,
        }
        metadata["annotations"][CREATOR] = account
        self._cloud.world.services[str(key)] = made
        self._apply(key, made, account)
        self._audit("Create", key, account)
        return made

    def replace(self, key: Key, service: Json, account: str, *, dry_run: bool = False) -> Json:
        """Change a service to what was sent.

        Raises:
            ApiError: It does not exist, has changed since it was read, or cannot be.
        """
        old = self.find(key)
        said = service["metadata"].get("resourceVersion")
        has = old["metadata"]["resourceVersion"]
        if said and said != has:
            raise ApiError(
                409,
                f"Conflict for resource '{key.name}': version '{said}' was specified but current "
                f"version is '{has}'.",
                status="ABORTED",
            )
        if old["metadata"].get("deletionTimestamp"):
            raise ApiError(409, f"Resource '{key.name}' is being deleted.", status="ABORTED")
        made = copy.deepcopy(service)
        made["metadata"]["name"] = key.name
        self._defaults(made)
        shape = check(self._cloud.world, key.region, made, self._kept_instances(key, made))
        self._check_service_account(shape.service_account)
        self._check_traffic(key, made)
        if dry_run:
            return made
        for name in ("uid", "creationTimestamp", "generation"):
            made["metadata"][name] = old["metadata"][name]
        annotations = made["metadata"]["annotations"]
        annotations[CREATOR] = old["metadata"]["annotations"][CREATOR]
        made["status"] = old["status"]
        self._cloud.world.services[str(key)] = made
        self._apply(key, made, account)
        self._audit("Replace", key, account)
        return made

    def delete(self, key: Key, account: str) -> Json:
        """Delete a service; it is gone some seconds later."""
        service = self.find(key)
        service["metadata"]["deletionTimestamp"] = now()
        # What its conditions said is not of this generation: gcloud must not take an old failure
        # for one of the deletion.
        service["metadata"]["generation"] += 1
        self._set(service, condition("Ready", _UNKNOWN, "Deleting", "Deleting service."))
        self._spawn(self._delete_later(key, str(service["metadata"]["uid"])))
        self._audit("Delete", key, account)
        return service

    def delete_revision(self, key: Key) -> None:
        """Delete a revision that gets no traffic.

        Raises:
            ApiError: It is in use.
        """
        revision = self.find_revision(key)
        service = self.find(self.service_of(key.region, revision))
        if key.name in self._wanted(service):
            raise ApiError(
                400,
                f"Revision '{key.name}' cannot be deleted because it is actively receiving "
                "traffic or is the latest created revision.",
                status="FAILED_PRECONDITION",
            )
        del self._cloud.world.revisions[str(key)]

    def set_scaling(self, key: Key, mode: str, count: int) -> None:
        """Change how a service scales, as if someone had."""
        service = copy.deepcopy(self.find(key))
        annotations = service["metadata"]["annotations"]
        annotations[SCALING_MODE] = mode
        if mode == "manual":
            annotations["run.googleapis.com/manualInstanceCount"] = str(count)
        service["metadata"].pop("resourceVersion", None)
        self.replace(key, service, self._cloud.world.account)

    # ------------------------------------------------------------------------- following

    def revision_ready(self, key: Key, took_s: float) -> None:
        """A revision's first instance answers its startup probe."""
        revision = self._cloud.world.revisions.get(str(key))
        if revision is None:
            return
        for kind in ("Ready", "ContainerReady", "ContainerHealthy", "ResourcesAvailable"):
            self._set(revision, condition(kind, _TRUE))
        self._settled(key, revision, f"Deploying revision succeeded in {took_s:.2f}s.", _TRUE)

    def revision_waits(self, key: Key, reason: str, message: str) -> None:
        """A revision does not get what it needs yet."""
        revision = self._cloud.world.revisions.get(str(key))
        if revision is None:
            return
        self._set(revision, condition("ResourcesAvailable", _UNKNOWN, reason, message))
        self._set(revision, condition("Ready", _UNKNOWN, reason, message))
        self.refresh(self.service_of(key.region, revision))

    def revision_failed(self, key: Key, reason: str, message: str) -> None:
        """A revision will not become ready."""
        revision = self._cloud.world.revisions.get(str(key))
        if revision is None:
            return
        self._set(revision, condition("Ready", _FALSE, reason, message))
        self._set(revision, condition("ContainerHealthy", _FALSE, reason, message))
        self._settled(key, revision, message, _FALSE)

    def service_of(self, region: str, revision: Json) -> Key:
        """The service a revision belongs to."""
        return Key(region, revision["metadata"]["labels"][f"{_KNATIVE}/service"])

    def refresh(self, key: Key) -> None:
        """Bring a service's status up to date with its revisions, and the fleet with both."""
        service = self._cloud.world.services.get(str(key))
        if service is None or "deletionTimestamp" in service["metadata"]:
            return
        world = self._cloud.world
        status = service["status"]
        created = world.revisions.get(f"{key.region}/{status['latestCreatedRevisionName']}")
        if created is not None and is_ready(created):
            status["latestReadyRevisionName"] = created["metadata"]["name"]
        status["traffic"], waiting = self._route(key, service)
        self._conditions(service, created, waiting)
        status["observedGeneration"] = service["metadata"]["generation"]
        status["url"] = names.url(world.number, key)
        status["address"] = {"url": status["url"]}
        self._retire(key, service)
        world.dirty = True
        self._cloud.fleet.sync(key)

    def resume(self) -> None:
        """After a restart of the cloud: go on with what was being deleted."""
        for text, service in self._cloud.world.services.items():
            if "deletionTimestamp" in service["metadata"]:
                self._spawn(self._delete_later(Key.parse(text), service["metadata"]["uid"]))

    async def close(self) -> None:
        """End what is under way."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ------------------------------------------------------------------------- inside

    def _spawn(self, work: Any) -> None:  # noqa: ANN401 (a coroutine)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _delete_later(self, key: Key, uid: str) -> None:
        await asyncio.sleep(self._cloud.after(_DELETE_S))
        world = self._cloud.world
        service = world.services.get(str(key))
        if service is None or service["metadata"]["uid"] != uid:
            return
        del world.services[str(key)]
        for name in [
            name
            for name, revision in world.revisions.items()
            if Key.parse(name).region == key.region and self.service_of(key.region, revision) == key
        ]:
            del world.revisions[name]
        world.policies.pop(names.policy_name(world.project, key), None)
        world.dirty = True
        await self._cloud.fleet.remove(key)

    def _defaults(self, service: Json) -> None:
        service.setdefault("apiVersion", API)
        service.setdefault("kind", "Service")
        metadata = service["metadata"]
        metadata["namespace"] = self._cloud.world.number
        metadata["labels"] = metadata.get("labels") or {}
        metadata["annotations"] = metadata.get("annotations") or {}
        spec = service["spec"]
        # gcloud's --no-traffic zeroes the target it finds here.
        if not spec.get("traffic"):
            spec["traffic"] = [{"latestRevision": True, "percent": 100}]
        template = spec["template"]
        template.setdefault("metadata", {}).setdefault("annotations", {})
        service.pop("status", None)

    def _check_service_account(self, email: str) -> None:
        world = self._cloud.world
        if email and email not in world.service_accounts:
            raise ApiError(
                403,
                f"Permission 'iam.serviceaccounts.actAs' denied on service account {email} (or it "
                "may not exist).",
            )

    def _check_traffic(self, key: Key, service: Json) -> None:
        new = service["spec"]["template"]["metadata"].get("name")
        for index, target in enumerate(service["spec"]["traffic"]):
            name = target.get("revisionName")
            if name and name != new and f"{key.region}/{name}" not in self._cloud.world.revisions:
                raise bad_request(
                    [(f"spec.traffic[{index}].revision_name", f"Revision '{name}' not found.")]
                )

    def _apply(self, key: Key, service: Json, account: str) -> None:
        """Give a checked service its next generation, and a revision if its template is new."""
        world = self._cloud.world
        metadata = service["metadata"]
        metadata["generation"] += 1
        metadata["resourceVersion"] = f"AAZ{world.next():08x}"
        metadata["selfLink"] = f"/apis/{API}/namespaces/{world.number}/services/{key.name}"
        metadata["labels"][LOCATION] = key.region
        annotations = metadata["annotations"]
        annotations[MODIFIER] = account
        annotations[OPERATION] = world.uid()
        annotations.setdefault(_INGRESS, "all")
        annotations["run.googleapis.com/ingress-status"] = annotations[_INGRESS]
        annotations[_URLS] = json.dumps(
            [f"https://{host}" for host in reversed(names.hosts(world.number, key))],
            separators=(",", ":"),
        )
        status = service.setdefault("status", {"conditions": [], "traffic": []})
        name = self._revision_for(key, service, account)
        status["latestCreatedRevisionName"] = name
        self.refresh(key)

    def _revision_for(self, key: Key, service: Json, account: str) -> str:
        """The revision of the service's template: the latest one if it is the same, else new.

        Raises:
            ApiError: The template names a revision that exists and is different.
        """
        world = self._cloud.world
        template = service["spec"]["template"]
        asked = template["metadata"].get("name")
        latest = service["status"].get("latestCreatedRevisionName")
        known = world.revisions.get(f"{key.region}/{asked or latest}")
        if known is not None:
            here, there = _content(template), _content(known["metadata"], known["spec"])
            # gcloud marks a template that must become a new revision with a nonce; one that it
            # names instead comes without.
            if here == there and (
                asked or _nonce(template["metadata"]) == _nonce(known["metadata"])
            ):
                return str(known["metadata"]["name"])
            if asked:
                raise ApiError(
                    409,
                    f"Revision named '{asked}' with different configuration already exists.",
                )
        name = str(asked or names.revision_name(key.name, service["metadata"]["generation"]))
        revision = self._make_revision(key, service, name, account)
        world.revisions[f"{key.region}/{name}"] = revision
        self._cloud.fleet.deploy(Key(key.region, name), key)
        return name

    def _make_revision(self, key: Key, service: Json, name: str, account: str) -> Json:
        template = service["spec"]["template"]
        world = self._cloud.world
        meta = template["metadata"]
        return {
            "apiVersion": API,
            "kind": "Revision",
            "metadata": {
                "name": name,
                "namespace": world.number,
                "uid": world.uid(),
                "resourceVersion": f"AAZ{world.next():08x}",
                "selfLink": f"/apis/{API}/namespaces/{world.number}/revisions/{name}",
                "generation": 1,
                "creationTimestamp": now(),
                "labels": {
                    **(meta.get("labels") or {}),
                    f"{_KNATIVE}/service": key.name,
                    f"{_KNATIVE}/configuration": key.name,
                    f"{_KNATIVE}/route": key.name,
                    f"{_KNATIVE}/configurationGeneration": str(service["metadata"]["generation"]),
                    f"{_KNATIVE}/serviceUid": service["metadata"]["uid"],
                    LOCATION: key.region,
                },
                "annotations": {
                    **(meta.get("annotations") or {}),
                    CREATOR: account,
                    OPERATION: service["metadata"]["annotations"][OPERATION],
                },
                "ownerReferences": [
                    {
                        "apiVersion": API,
                        "kind": "Configuration",
                        "name": key.name,
                        "uid": service["metadata"]["uid"],
                        "controller": True,
                        "blockOwnerDeletion": True,
                    }
                ],
            },
            "spec": copy.deepcopy(template["spec"]),
            "status": {
                "observedGeneration": 1,
                "logUrl": _log_url(world.project, key.name, name),
                "imageDigest": _digest(read_shape(template).image),
                "conditions": [
                    condition("Ready", _UNKNOWN, "Deploying", "Deploying Revision."),
                    condition("ResourcesAvailable", _UNKNOWN, "Deploying", "Provisioning."),
                    condition("ContainerReady", _UNKNOWN, "Deploying", "Deploying Revision."),
                    condition("ContainerHealthy", _UNKNOWN, "Deploying", "Deploying Revision."),
                ],
            },
        }

    def _set(self, resource: Json, made: Json) -> None:
        conditions: list[Json] = resource["status"]["conditions"]
        for index, known in enumerate(conditions):
            if known["type"] == made["type"]:
                same = all(
                    known.get(name) == made.get(name) for name in ("status", "reason", "message")
                )
                if not same:
                    conditions[index] = made
                return
        conditions.append(made)

    def _settled(self, key: Key, revision: Json, message: str, status: str) -> None:
        world = self._cloud.world
        service = self.service_of(key.region, revision)
        self._cloud.logs.write(
            EVENT,
            run_resource(world, key.region, service.name, key.name),
            "",
            severity="INFO" if status == _TRUE else "ERROR",
            protoPayload={
                "@type": "type.googleapis.com/google.cloud.audit.AuditLog",
                "serviceName": "run.googleapis.com",
                "methodName": "/InternalServices.ReplaceInternalService",
                "resourceName": f"namespaces/{world.project}/revisions/{key.name}",
                "status": {
                    **({} if status == _TRUE else {"code": 13}),
                    "message": f"Ready condition status changed to {status} for Revision "
                    f"{key.name} with message: {message}",
                },
            },
        )
        self.refresh(service)

    def _route(self, key: Key, service: Json) -> tuple[list[Json], str]:
        """Status traffic, and the first revision it waits for (empty: none)."""
        world = self._cloud.world
        status = service["status"]
        before = status.get("traffic", [])
        routed: list[Json] = []
        waiting = ""
        for wanted in service["spec"]["traffic"]:
            target = {name: value for name, value in wanted.items() if name != "url"}
            if target.get("latestRevision"):
                target["revisionName"] = status.get("latestReadyRevisionName", "")
                if target["revisionName"] != status["latestCreatedRevisionName"]:
                    waiting = waiting or status["latestCreatedRevisionName"]
            name = target.get("revisionName", "")
            revision = world.revisions.get(f"{key.region}/{name}")
            if not name or revision is None or not is_ready(revision):
                waiting = waiting or name or status["latestCreatedRevisionName"]
            if not name:
                target.pop("revisionName", None)
            if target.get("tag"):
                target["url"] = names.url(world.number, key, target["tag"])
            routed.append(target)
        ready = all(
            is_ready(world.revisions.get(f"{key.region}/{item.get('revisionName')}", {}))
            for item in routed
            if item.get("percent")
        )
        # Traffic moves only to what can take it; tags appear at once.
        if not ready and any(item.get("percent") for item in before):
            tags = [item for item in routed if item.get("tag") and not item.get("percent")]
            kept = [item for item in before if item.get("percent")]
            return [*kept, *tags], waiting
        return routed, waiting

    def _conditions(self, service: Json, created: Json | None, waiting: str) -> None:
        ready = condition_of(created or {})
        state = ready.get("status", _UNKNOWN)
        reason, message = ready.get("reason", ""), ready.get("message", "")
        if state == _FALSE:
            name = service["status"]["latestCreatedRevisionName"]
            message = f"Revision '{name}' is not ready and cannot serve traffic. {message}"
        if state == _TRUE:
            reason = message = ""
        self._set(service, condition("ConfigurationsReady", state, reason, message))
        routes = _UNKNOWN if waiting else _TRUE
        if waiting and state == _FALSE:
            routes = _FALSE if waiting == service["status"]["latestCreatedRevisionName"] else routes
        self._set(
            service,
            condition("RoutesReady", routes, reason if waiting else "", message if waiting else ""),
        )
        both = {state, routes}
        whole = _FALSE if _FALSE in both else _UNKNOWN if _UNKNOWN in both else _TRUE
        self._set(service, condition("Ready", whole, reason, message))
        service["status"]["conditions"].sort(
            key=lambda item: ("Ready", "ConfigurationsReady", "RoutesReady").index(item["type"])
        )

    def _wanted(self, service: Json) -> set[str]:
        """Revisions that have to stay up: those with traffic or a tag, and the latest."""
        status = service["status"]
        named = {
            item["revisionName"]
            for item in [*status.get("traffic", []), *service["spec"]["traffic"]]
            if item.get("revisionName")
        }
        return named | {status["latestCreatedRevisionName"]}

    def _kept_instances(self, key: Key, service: Json) -> int:
        """Most instances of the revisions that keep traffic or a tag beside a new template."""
        world = self._cloud.world
        template = service["spec"]["template"]
        asked = template["metadata"].get("name", "")
        known = world.revisions.get(f"{key.region}/{asked}")
        if known is not None:
            # Only traffic or scaling changes: nothing further is started.
            return 0
        kept = {
            item["revisionName"]
            for item in service["spec"]["traffic"]
            if item.get("revisionName") and item["revisionName"] != asked
        }
        return sum(
            read_shape(revision).max_instances or 1
            for name in kept
            if (revision := world.revisions.get(f"{key.region}/{name}")) is not None
        )

    def _retire(self, key: Key, service: Json) -> None:
        wanted = self._wanted(service)
        for revision in self.revisions(key.region, key.name):
            name = revision["metadata"]["name"]
            if not is_ready(revision):
                continue
            if name in wanted:
                self._set(revision, condition("Active", _TRUE) | {"severity": "Info"})
                self._set(revision, condition("Ready", _TRUE))
            else:
                self._set(
                    revision,
                    condition("Active", _FALSE, "Retired", "Revision retired.")
                    | {"severity": "Info"},
                )
                self._set(revision, condition("Ready", _TRUE, "Retired"))

    def _audit(self, verb: str, key: Key, account: str) -> None:
        world = self._cloud.world
        self._cloud.logs.write(
            AUDIT,
            run_resource(world, key.region, key.name, ""),
            "",
            severity="NOTICE",
            protoPayload={
                "@type": "type.googleapis.com/google.cloud.audit.AuditLog",
                "serviceName": "run.googleapis.com",
                "methodName": f"google.cloud.run.v1.Services.{verb}Service",
                "resourceName": f"namespaces/{world.project}/services/{key.name}",
                "authenticationInfo": {"principalEmail": account},
            },
        )


_KNATIVE = "serving.knative.dev"

# What Cloud Run adds to a revision's own labels and annotations.
_ADDED = (CREATOR, MODIFIER, OPERATION, LOCATION)


def _content(meta: Json, spec: Json | None = None) -> Json:
    """What makes two templates the same: spec, labels and annotations, without the added ones."""
    if spec is None:
        meta, spec = meta.get("metadata") or {}, meta["spec"]

    def own(values: Json | None) -> Json:
        return {
            name: value
            for name, value in (values or {}).items()
            if name not in _ADDED
            and not name.startswith((f"{_KNATIVE}/", "run.googleapis.com/client-"))
            and name != _NONCE
        }

    return {
        "labels": own(meta.get("labels")),
        "annotations": own(meta.get("annotations")),
        "spec": spec,
    }


def _nonce(meta: Json) -> str:
    return str((meta.get("labels") or {}).get(_NONCE, ""))


def _digest(image: str) -> str:
    import hashlib

    repository = image.partition("@")[0]
    return (
        f"{repository.rpartition(':')[0] or repository}@sha256:"
        + hashlib.sha256(image.encode()).hexdigest()
    )


def _log_url(project: str, service: str, revision: str) -> str:
    return (
        f"https://console.cloud.google.com/logs/viewer?project={project}&resource="
        f"cloud_run_revision/service_name/{service}/revision_name/{revision}&advancedFilter="
        "resource.type%3D%22cloud_run_revision%22%0Aresource.labels.service_name%3D%22"
        f"{service}%22%0Aresource.labels.revision_name%3D%22{revision}%22"
    )


__all__ = [
    "INVOKER_CHECK_DISABLED",
    "SERVICE_MAX_SCALE",
    "SERVICE_MIN_SCALE",
    "Services",
    "condition",
    "condition_of",
    "is_ready",
]
