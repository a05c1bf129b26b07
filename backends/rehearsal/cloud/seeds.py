"""What a rehearsal starts with, and faults that other parts of the cloud carry out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.knowledge.checkpoints import DEFAULT_CHECKPOINT, find_checkpoint
from backends.rehearsal.cloud.faults import Undo
from backends.rehearsal.cloud.run.names import Key
from backends.rehearsal.cloud.tpu.troubles import register_tpu_faults
from backends.rehearsal.cloud.web import Json
from backends.rehearsal.cloud.world import now

if TYPE_CHECKING:
    from backends.rehearsal.cloud.cloud import Cloud
    from backends.rehearsal.cloud.object_store import ObjectStore
    from backends.rehearsal.cloud.run.services import Services
    from backends.rehearsal.cloud.world import World


def model_bucket(world: World) -> str:
    """The bucket of the reference deployments."""
    return f"{world.project}-bucket"


def stage_reference_model(world: World, objects: ObjectStore) -> None:
    """Make the reference bucket and put Gemma 4 E2B into it, as a project that is set up has."""
    bucket = model_bucket(world)
    world.buckets[bucket] = {
        "kind": "storage#bucket",
        "id": bucket,
        "name": bucket,
        "selfLink": f"https://www.googleapis.com/storage/v1/b/{bucket}",
        "projectNumber": world.number,
        "location": "US-EAST4",
        "locationType": "region",
        "storageClass": "STANDARD",
        "metageneration": "1",
        "generation": "1",
        "etag": "CAE=",
        "timeCreated": now(),
        "updated": now(),
        "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}},
    }
    objects.put_model(bucket, DEFAULT_CHECKPOINT, find_checkpoint(DEFAULT_CHECKPOINT), "gemma4")


def register_actions(cloud: Cloud, services: Services, objects: ObjectStore) -> None:
    """Teach the fault book what services, instances and buckets can suffer."""

    def scaling(values: Json) -> Undo | None:
        wanted = str(values.get("service", ""))
        for text in list(cloud.world.services):
            key = Key.parse(text)
            if wanted in {"", "*", key.name}:
                services.set_scaling(key, str(values["mode"]), int(values.get("count", 0)))
        return None

    def kill(values: Json) -> Undo | None:
        cloud.fleet.kill_instances(str(values.get("service", "*")))
        return None

    def seed(values: Json) -> Undo | None:
        bucket = str(values.get("bucket") or model_bucket(cloud.world))
        folder = str(values["folder"])
        checkpoint = find_checkpoint(str(values.get("checkpoint", DEFAULT_CHECKPOINT)))
        kind = str(values.get("model_type", "gemma4"))
        objects.put_model(bucket, folder, checkpoint, kind)

        def undo() -> None:
            objects.put_model(bucket, folder, checkpoint, "gemma4")

        return undo if kind != "gemma4" else None

    def host(values: Json) -> Undo:
        number = cloud.world.next()
        cloud.hosts.set_faults([*cloud.hosts.faults(), {"number": number, "times": 1, **values}])

        def undo() -> None:
            left = [item for item in cloud.hosts.faults() if item.get("number") != number]
            cloud.hosts.set_faults(left)

        return undo

    def renew(empty: bool) -> None:
        objects.clear()
        cloud.hosts.clear()
        cloud.hosts.prepare()
        if not empty:
            stage_reference_model(cloud.world, objects)

    cloud.renew.append(renew)
    cloud.faults.register("host", host)
    cloud.faults.register("scaling", scaling)
    cloud.faults.register("kill-instances", kill)
    cloud.faults.register("seed-model", seed)
    register_tpu_faults(cloud)
