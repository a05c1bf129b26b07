"""What a revision's container would do on Google's machines, and the simulator that plays it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from backends.knowledge.checkpoints import Checkpoint
from backends.knowledge.targets import CLOUDRUN_L4, TargetProfile, find_profile
from backends.rehearsal.cloud.catalogue import GIB, GPUS
from backends.rehearsal.cloud.faults import StartTrouble
from backends.rehearsal.cloud.identity import roles_on
from backends.rehearsal.cloud.run.shape import Shape
from backends.rehearsal.cloud.scenarios import (
    CUDA_COMPATIBILITY,
    DISK_FULL,
    NO_NAT,
    OUT_OF_HOST_MEMORY,
)
from backends.rehearsal.cloud.vllm_command import (
    VllmCommand,
    parse_vllm,
    served_checkpoint,
    simulator_argv,
)
from backends.rehearsal.cloud.web import Json

if TYPE_CHECKING:
    from backends.rehearsal.cloud.object_store import ObjectStore
    from backends.rehearsal.cloud.world import World

# Phases of a simulated start that pass before the container's own process runs.
_BEFORE_CONTAINER = {"provision", "container"}

# Measured on the staging image: 17.5 GiB took 386 s by public egress and 65 s by Direct VPC egress.
_PUBLIC_EGRESS_FACTOR = 386 / 65

_READERS = {
    "roles/storage.objectViewer",
    "roles/storage.objectUser",
    "roles/storage.objectAdmin",
    "roles/storage.admin",
    "roles/storage.legacyObjectReader",
    "roles/owner",
    "roles/editor",
    "roles/viewer",
}
_ACCESSORS = {"roles/secretmanager.secretAccessor", "roles/secretmanager.admin", "roles/owner"}

# Environment by which the image that stages weights and reports phases is recognised.
_STAGING_ENV = {"COPY_TO_SHM", "MAX_INFLIGHT"}
_VLLM_PORT = 8000


@dataclass(frozen=True)
class Plan:
    """How one container is played.

    Attributes:
        argv: The simulator's command, without its socket and speed.
        profile: Whose times it takes.
        startup_factor: The whole start takes this many times longer.
        trouble: What goes wrong in this start, if anything.
        stages: Whether the image listens at once and reports phases on /health.
        max_inflight: Requests a staging image lets in; 0: no limit.
        listens: Whether it listens on the port the platform sends requests to.
        env: Variables for the simulator.
    """

    argv: tuple[str, ...]
    profile: TargetProfile
    startup_factor: float = 1.0
    trouble: StartTrouble | None = None
    stages: bool = False
    max_inflight: int = 0
    listens: bool = True
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def before_container_s(self) -> float:
        """Seconds until the container's process starts, at Google's speed."""
        return self._seconds(inside=False)

    @property
    def inside_container_s(self) -> float:
        """Seconds the container's process needs until it answers, at Google's speed."""
        return self._seconds(inside=True)

    def _seconds(self, *, inside: bool) -> float:
        return self.startup_factor * sum(
            phase.seconds.value
            for phase in self.profile.startup
            if (phase.name not in _BEFORE_CONTAINER) is inside
        )


def read_command(shape: Shape) -> VllmCommand:
    """VLLM's command line in a template: given as arguments, or inside `bash -c`."""
    return parse_vllm([*shape.command, *shape.args], shape.env)


class Containers:
    """Plans the containers of one world.

    Args:
        world: Buckets, secrets and roles, which decide what a container can read.
        objects: What the buckets hold.
    """

    def __init__(self, world: World, objects: ObjectStore) -> None:
        self._world = world
        self._objects = objects

    def refused(self, shape: Shape) -> tuple[str, str]:
        """Why a revision cannot even be started: reason and message; empty where it can."""
        world = self._world
        prefix = f"-docker.pkg.dev/{world.project}/"
        if prefix in shape.image and not self._image_exists(shape.image):
            return "ContainerMissing", f"Image '{shape.image}' not found."
        account = shape.service_account or world.default_account
        for index, (secret, version) in enumerate(shape.secret_env.values()):
            name = f"projects/{world.number}/secrets/{secret}"
            where = (
                f"spec.template.spec.containers[0].env[{len(shape.env) + index}]"
                ".value_from.secret_key_ref.name"
            )
            known = world.secrets.get(secret)
            if known is None or not known["versions"]:
                return (
                    "SecretsAccessCheckFailed",
                    f"{where}: Secret {name}/versions/{version} was not found",
                )
            if not _ACCESSORS & roles_on(
                world, account, f"projects/{world.project}/secrets/{secret}"
            ):
                return (
                    "SecretsAccessCheckFailed",
                    f"{where}: Permission denied on secret: {name}/versions/{version} for "
                    f"Revision service account {account}. The service account used must be "
                    "granted the 'Secret Manager Secret Accessor' role "
                    "(roles/secretmanager.secretAccessor) at the secret, project or higher level.",
                )
        return "", ""

    def plan(self, service: str, shape: Shape, troubles: Sequence[StartTrouble]) -> Plan:
        """How a start of this container goes.

        Args:
            service: Name of the service.
            shape: What it asks for.
            troubles: Faults that were switched on for this start.
        """
        command = read_command(shape)
        gpu = GPUS.get(shape.gpu_type) if shape.gpus else None
        profile = find_profile(gpu.profile) if gpu else CLOUDRUN_L4
        stages = bool(_STAGING_ENV & {*shape.env})
        factor = 1.0
        trouble = next((item for item in troubles if item.slow == 1.0), None)
        for item in troubles:
            factor *= item.slow
        if stages and not (shape.network and shape.vpc_egress == "all-traffic"):
            factor *= _with_public_egress(profile)
        checkpoint = served_checkpoint(command)
        if trouble is None:
            trouble = self._natural(service, shape, command, checkpoint)
        argv = _simulator(profile, checkpoint, command, shape)
        if trouble is not None and trouble.fail:
            argv.append(f"--fail={trouble.fail}")
        port = int(command.value("--port", str(shape.port if stages else _VLLM_PORT)))
        return Plan(
            argv=tuple(argv),
            profile=profile,
            startup_factor=factor,
            trouble=trouble,
            stages=stages,
            max_inflight=int(shape.env.get("MAX_INFLIGHT", "0") or 0) if stages else 0,
            listens=stages or port == shape.port,
            env={"VLLM_API_KEY": command.value("--api-key", shape.env.get("VLLM_API_KEY", ""))},
        )

    # ------------------------------------------------------------------------- inside

    def _image_exists(self, image: str) -> bool:
        return image in self._world.images or any(
            image.partition("@")[0] == known.partition("@")[0].rpartition(":")[0]
            for known in self._world.images
            if "@" in image
        )

    def _natural(
        self, service: str, shape: Shape, command: VllmCommand, checkpoint: Checkpoint | None
    ) -> StartTrouble | None:
        """What goes wrong because of what was asked for."""
        trouble = StartTrouble(f"natural-{service}")
        account = shape.service_account or self._world.default_account
        for mount, bucket in shape.buckets.items():
            if bucket not in self._world.buckets:
                return replace(
                    trouble,
                    lines=[f"mounting {mount}: bucket {bucket} does not exist"],
                    exit_code=1,
                )
            if not _READERS & roles_on(self._world, account, f"b/{bucket}"):
                denied = (
                    f"mountWithStorageHandle: fs.NewServer: create file system: SetUpBucket: Error "
                    f"in iterating through objects: googleapi: Error 403: {account} does not have "
                    "storage.objects.list access to the Google Cloud Storage bucket. Permission "
                    "'storage.objects.list' denied on resource (or it may not exist)., forbidden"
                )
                if bool(_STAGING_ENV & {*shape.env}):
                    return replace(trouble, lines=[denied], hang=True)
                return replace(trouble, lines=[denied], exit_code=1)
        if (
            shape.gpu_type == "nvidia-l4"
            and shape.env.get("VLLM_ENABLE_CUDA_COMPATIBILITY", "0") == "1"
        ):
            return replace(
                trouble, after="Starting to load model", lines=CUDA_COMPATIBILITY, exit_code=1
            )
        return self._model_trouble(trouble, shape, command, checkpoint)

    def _model_trouble(
        self,
        trouble: StartTrouble,
        shape: Shape,
        command: VllmCommand,
        checkpoint: Checkpoint | None,
    ) -> StartTrouble | None:
        if command.model.startswith("/"):
            config = self._config_in_bucket(shape, command.model)
            if config is None:
                return replace(
                    trouble,
                    after="non-default args",
                    lines=[
                        "Traceback (most recent call last):",
                        "huggingface_hub.errors.HFValidationError: Repo id must be in the form "
                        f"'repo_name' or 'namespace/repo_name': '{command.model}'. Use "
                        "`repo_type` argument if needed.",
                    ],
                    exit_code=1,
                )
            kind = str(config.get("model_type", ""))
            if "gemma4" in command.value("--tool-call-parser") and not kind.startswith("gemma4"):
                return replace(
                    trouble,
                    after="Resolved architecture",
                    lines=[
                        "Traceback (most recent call last):",
                        "RuntimeError: Gemma4ReasoningParser could not locate think start/end "
                        f"tokens in the tokenizer of a {kind} model!",
                    ],
                    exit_code=1,
                )
        elif command.model and (lines := _download_trouble(shape, checkpoint)):
            return replace(trouble, after="non-default args", lines=lines, exit_code=1)
        elif command.model and checkpoint is None:
            return replace(trouble, fail="bad-model")
        needed = 0.0 if checkpoint is None else checkpoint.disk_gb.value * 1e9
        if shape.env.get("COPY_TO_SHM") == "1" and needed + 14 * GIB > shape.memory:
            limit = shape.memory // 2**20
            return replace(
                trouble,
                after="Loading safetensors checkpoint shards",
                killed_by=9,
                system=OUT_OF_HOST_MEMORY.format(limit=limit, used=limit + 371),
            )
        return None

    def _config_in_bucket(self, shape: Shape, path: str) -> Json | None:
        """config.json of a model below a mounted bucket, as the bucket holds it."""
        for mount, bucket in shape.buckets.items():
            if path.startswith(mount.rstrip("/") + "/") or path == mount:
                folder = path[len(mount.rstrip("/")) :].strip("/")
                name = f"{folder}/config.json" if folder else "config.json"
                found = self._objects.read_json(bucket, name)
                if found is not None:
                    return found
        return None


def _download_trouble(shape: Shape, checkpoint: Checkpoint | None) -> list[str]:
    """What a download from Hugging Face says where it fails; nothing where it does not."""
    if shape.vpc_egress == "all-traffic":
        return NO_NAT
    # The file system of a container is its memory.
    if checkpoint is not None and checkpoint.disk_gb.value * 1e9 > shape.memory:
        return DISK_FULL
    return []


def _with_public_egress(profile: TargetProfile) -> float:
    """How many times longer a whole start takes when the weights come by public egress."""
    weights_s = sum(item.seconds.value for item in profile.startup if item.name == "weights")
    return 1 + weights_s * (_PUBLIC_EGRESS_FACTOR - 1) / profile.startup_s


def _simulator(
    profile: TargetProfile, checkpoint: Checkpoint | None, command: VllmCommand, shape: Shape
) -> list[str]:
    if _STAGING_ENV & {*shape.env}:
        command = replace(
            command,
            flags={
                flag: (shape.env[name],) for flag, name in _ENV_NAMES.items() if name in shape.env
            }
            | dict(command.flags),
        )
    return simulator_argv(profile, checkpoint, command)


# What the staging image reads from its environment instead.
_ENV_NAMES = {
    "--max-model-len": "MAX_MODEL_LEN",
    "--max-num-seqs": "MAX_SEQS",
}
