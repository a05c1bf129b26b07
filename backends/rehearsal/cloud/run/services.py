"""Services and revisions: what is made of a request, and what becomes of it."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import TYPE_CHECKING, Any

from backends.rehearsal.cloud.log_store import AUDIT, EVENT, run_resource
from backends.rehearsal.cloud.run import names
from backends.rehearsal.cloud.run.conditions import (
    FALSE,
    TRUE,
    UNKNOWN,
    condition,
    is_ready,
    set_condition,
)
from backends.rehearsal.cloud.run.names import Key
from backends.rehearsal.cloud.run.shape import CREATOR, LOCATION, MODIFIER, SCALING_MODE
from backends.rehearsal.cloud.run.status import (
    kept_instances,
    retire,
    route,
    set_conditions,
    wanted,
)
from backends.rehearsal.cloud.run.templates import (
    API,
    KNATIVE,
    OPERATION,
    content,
    make_revision,
    nonce,
)
from backends.rehearsal.cloud.run.validate import check
from backends.rehearsal.cloud.web import ApiError, Json, bad_request
from backends.rehearsal.cloud.world import now

if TYPE_CHECKING:
    from backends.rehearsal.cloud.cloud import Cloud

_URLS = "run.googleapis.com/urls"
_INGRESS = "run.googleapis.com/ingress"

# Deleting takes Google some seconds, in which the service is still there.
_DELETE_S = 4.0


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
            and (not service or revision["metadata"]["labels"][f"{KNATIVE}/service"] == service)
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
        shape = check(
            self._cloud.world, key.region, made, kept_instances(self._cloud.world, key, made)
        )
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
        set_condition(service, condition("Ready", UNKNOWN, "Deleting", "Deleting service."))
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
        if key.name in wanted(service):
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
            set_condition(revision, condition(kind, TRUE))
        self._settled(key, revision, f"Deploying revision succeeded in {took_s:.2f}s.", TRUE)

    def revision_waits(self, key: Key, reason: str, message: str) -> None:
        """A revision does not get what it needs yet."""
        revision = self._cloud.world.revisions.get(str(key))
        if revision is None:
            return
        set_condition(revision, condition("ResourcesAvailable", UNKNOWN, reason, message))
        set_condition(revision, condition("Ready", UNKNOWN, reason, message))
        self.refresh(self.service_of(key.region, revision))

    def revision_failed(self, key: Key, reason: str, message: str) -> None:
        """A revision will not become ready."""
        revision = self._cloud.world.revisions.get(str(key))
        if revision is None:
            return
        set_condition(revision, condition("Ready", FALSE, reason, message))
        set_condition(revision, condition("ContainerHealthy", FALSE, reason, message))
        self._settled(key, revision, message, FALSE)

    def service_of(self, region: str, revision: Json) -> Key:
        """The service a revision belongs to."""
        return Key(region, revision["metadata"]["labels"][f"{KNATIVE}/service"])

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
        status["traffic"], waiting = route(world, key, service)
        set_conditions(service, created, waiting)
        status["observedGeneration"] = service["metadata"]["generation"]
        status["url"] = names.url(world.number, key)
        status["address"] = {"url": status["url"]}
        retire(service, self.revisions(key.region, key.name))
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
            here, there = content(template), content(known["metadata"], known["spec"])
            # gcloud marks a template that must become a new revision with a nonce; one that it
            # names instead comes without.
            if here == there and (asked or nonce(template["metadata"]) == nonce(known["metadata"])):
                return str(known["metadata"]["name"])
            if asked:
                raise ApiError(
                    409,
                    f"Revision named '{asked}' with different configuration already exists.",
                )
        name = str(asked or names.revision_name(key.name, service["metadata"]["generation"]))
        revision = make_revision(world, key, service, name, account)
        world.revisions[f"{key.region}/{name}"] = revision
        self._cloud.fleet.deploy(Key(key.region, name), key)
        return name

    def _settled(self, key: Key, revision: Json, message: str, status: str) -> None:
        world = self._cloud.world
        service = self.service_of(key.region, revision)
        self._cloud.logs.write(
            EVENT,
            run_resource(world, key.region, service.name, key.name),
            "",
            severity="INFO" if status == TRUE else "ERROR",
            protoPayload={
                "@type": "type.googleapis.com/google.cloud.audit.AuditLog",
                "serviceName": "run.googleapis.com",
                "methodName": "/InternalServices.ReplaceInternalService",
                "resourceName": f"namespaces/{world.project}/revisions/{key.name}",
                "status": {
                    **({} if status == TRUE else {"code": 13}),
                    "message": f"Ready condition status changed to {status} for Revision "
                    f"{key.name} with message: {message}",
                },
            },
        )
        self.refresh(service)

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
