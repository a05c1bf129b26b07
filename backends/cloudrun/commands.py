"""The exact commands: what gcloud is told, from the request and the profile, and nothing else."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Sequence

from backends.cloudrun.spec import CloudRunSpec, folder_of, probe_of
from backends.clouds.gcloud import joined
from backends.core.names import MANAGED_BY, MANAGED_BY_US, TTL_LABEL
from backends.knowledge.cloudrun import CloudRunProfile

MOUNT = "/mnt/models"
COPY = "/mnt/weights"
VOLUME = "model-volume"
COPY_VOLUME = "weights"
SPEC_LABEL = "vllm-devops-spec"
TARGET_LABEL = "vllm-devops-target"
CANDIDATE_TAG = "candidate"

INVOKER = "roles/run.invoker"

# As the reference runs it: the module works with every entry point the image has had.
_SERVER = ("python3", "-m", "vllm.entrypoints.openai.api_server")


def at(project: str, region: str) -> list[str]:
    """The flags that say where."""
    return [f"--project={project}", f"--region={region}"]


def model_path(spec: CloudRunSpec) -> str:
    """What vLLM is given as its model."""
    model = str(spec.model)
    if spec.source == "huggingface":
        return model
    if spec.load == "copy" and spec.server == "vllm":  # an image of its own copies by itself
        return f"{COPY}/{folder_of(model).rpartition('/')[2]}"
    return f"{MOUNT}/{folder_of(model)}"


def engine_args(spec: CloudRunSpec, profile: CloudRunProfile, *, quantised: bool) -> list[str]:
    """What vLLM is told.

    Args:
        spec: The resolved request.
        profile: The profile.
        quantised: Whether the checkpoint is quantised already, so that vLLM must not do it.
    """
    args = [f"--model={model_path(spec)}"]
    if spec.served_model_name:
        args.append(f"--served-model-name={spec.served_model_name}")
    args += [
        f"--max-model-len={spec.max_model_len}",
        f"--max-num-seqs={spec.max_num_seqs}",
        f"--max-num-batched-tokens={spec.max_num_batched_tokens}",
        f"--kv-cache-dtype={spec.kv_cache_dtype}",
    ]
    if spec.gpu_memory_utilization is not None:
        args.append(f"--gpu-memory-utilization={spec.gpu_memory_utilization:g}")
    args += profile.engine_flags
    quantization = spec.quantization or (None if quantised else profile.quantization)
    if quantization and quantization != "none":
        args.append(f"--quantization={quantization}")
    if spec.load == "stream":
        args.append("--load-format=runai_streamer")
    args += spec.extra_args
    return [*args, "--host=0.0.0.0", f"--port={spec.port}"]


def deploy_argv(
    spec: CloudRunSpec,
    profile: CloudRunProfile,
    project: str,
    account: str,
    *,
    exists: bool,
    quantised: bool = False,
) -> list[str]:
    """`gcloud beta run deploy`, whole. Beta for `--scaling` and mount options (528, 2026-11-30).

    Args:
        spec: The resolved request.
        profile: The profile.
        project: The project.
        account: The account it runs as.
        exists: Whether it is a new revision of a service that is there already.
        quantised: Whether the checkpoint is quantised already.
    """
    probe = probe_of(spec, profile)
    argv = ["gcloud", "beta", "run", "deploy", spec.name, *at(project, str(spec.region))]
    argv.append(f"--image={spec.image}")
    argv += _program(spec, profile, quantised=quantised)
    argv += [
        f"--service-account={account}",
        "--gpu=1",
        f"--gpu-type={profile.gpu_type}",
        "--gpu-zonal-redundancy" if spec.zonal_redundancy else "--no-gpu-zonal-redundancy",
        "--no-cpu-throttling",
        f"--cpu={spec.cpu}",
        f"--memory={spec.memory_gib}Gi",
        f"--concurrency={spec.concurrency}",
        f"--timeout={spec.request_timeout_s}",
        f"--port={spec.port}",
        "--execution-environment=gen2",
        f"--startup-probe={probe.flag(int(spec.port or profile.port))}",
        "--cpu-boost" if profile.cpu_boost else "--no-cpu-boost",
        # What is kept warm belongs to the service, not to a revision: it can then be changed
        # without a new revision, which would load the model once more.
        "--min-instances=0",
        f"--max-instances={spec.max_instances}",
    ]
    if spec.min_instances or exists:
        argv.append(f"--min={spec.min_instances}")
    if spec.scaling is not None:
        argv.append(f"--scaling={spec.scaling}")
    elif not exists:
        argv.append("--scaling=auto")
    argv += _variables(spec, profile)
    argv += _volumes(spec, exists=exists)
    if spec.vpc:
        argv += [
            f"--network={spec.network or 'default'}",
            f"--subnet={spec.subnet or 'default'}",
            "--vpc-egress=all-traffic",
        ]
    elif exists:
        argv.append("--clear-network")
    argv.append("--allow-unauthenticated" if spec.public else "--no-allow-unauthenticated")
    if spec.candidate:
        argv += ["--no-traffic", f"--tag={CANDIDATE_TAG}"]
    labels = f"{MANAGED_BY}={MANAGED_BY_US},{TARGET_LABEL}={profile.target}"
    if spec.ttl_hours:
        labels += f",{TTL_LABEL}={round(spec.ttl_hours * 60)}"
    argv.append(f"--labels={labels},{SPEC_LABEL}={digest_of(argv)}")
    return [*argv, "--async", "--quiet", "--format=json"]


def digest_of(argv: Sequence[str]) -> str:
    """What a deployment of exactly these arguments is recognised by."""
    return hashlib.sha256(json.dumps(list(argv)).encode()).hexdigest()[:16]


def label_of(argv: Sequence[str]) -> str:
    """The recognising label inside a deploy command."""
    found = re.search(rf"{SPEC_LABEL}=([0-9a-f]+)", " ".join(argv))
    return found.group(1) if found else ""


def _program(spec: CloudRunSpec, profile: CloudRunProfile, *, quantised: bool) -> list[str]:
    if spec.server == "image":
        return []
    args = engine_args(spec, profile, quantised=quantised)
    if spec.load != "copy":
        return [f"--command={','.join(_SERVER)}", f"--args={joined(args)}"]
    # One quoting function between the bucket's folder and the shell that copies it.
    source = shlex.quote(f"{MOUNT}/{folder_of(str(spec.model))}")
    serve = shlex.join([*_SERVER, *args])
    script = f"cp -r {source} {COPY}/ && exec {serve}"
    return ["--command=bash", f"--args={joined(['-c', script])}"]


def _variables(spec: CloudRunSpec, profile: CloudRunProfile) -> list[str]:
    values = dict(profile.env)
    if spec.server == "image":
        values |= {
            "MODEL": model_path(spec),
            "MAX_MODEL_LEN": str(spec.max_model_len),
            "MAX_SEQS": str(spec.max_num_seqs),
            "COPY_TO_SHM": "1" if spec.load == "copy" else "0",
        }
        if spec.gpu_memory_utilization is not None:
            values["GPU_UTIL"] = f"{spec.gpu_memory_utilization:g}"
    values |= dict(item.split("=", 1) for item in spec.env)
    pairs = [f"{key}={value}" for key, value in values.items()]
    flags = [f"--set-env-vars={joined(pairs)}"] if pairs else []
    if spec.source == "huggingface":
        flags.append(f"--set-secrets=HF_TOKEN={spec.secret}:latest")
    return flags


def _volumes(spec: CloudRunSpec, *, exists: bool) -> list[str]:
    flags = ["--clear-volumes", "--clear-volume-mounts"] if exists else []
    if spec.source != "bucket":
        return flags
    options = "uid=1001;gid=1001" if spec.load == "mount" else "enable-buffered-read=true"
    flags += [
        f"--add-volume=name={VOLUME},type=cloud-storage,bucket={spec.bucket},readonly=true,"
        f"mount-options={options}",
        f"--add-volume-mount=volume={VOLUME},mount-path={MOUNT}",
    ]
    if spec.load == "copy" and spec.server == "vllm":
        flags += [
            f"--add-volume=name={COPY_VOLUME},type=in-memory,size-limit={_copy_gib(spec)}Gi",
            f"--add-volume-mount=volume={COPY_VOLUME},mount-path={COPY}",
        ]
    return flags


def _copy_gib(spec: CloudRunSpec) -> int:
    """Half of the instance's memory for the copy; the rest is the engine's."""
    return int(spec.memory_gib or 0) // 2
