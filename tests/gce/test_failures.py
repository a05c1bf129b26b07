"""Every failure of the T4 references is known by its words and has an answer."""

from __future__ import annotations

import pytest

from backends.gce.backend import GceT4Backend
from backends.knowledge.gce_failures import SIGNATURES, signature_of

SEEN = {
    "gce_host_memory": "[  812.4] Out of memory: Killed process 4242 (VLLM::EngineCor) "
    "total-vm:21474836kB, anon-rss:6912000kB",
    "gce_turing_shared_memory": "triton.runtime.errors.OutOfResources: out of resource: shared "
    "memory, Required: 98304, Hardware limit: 65536. Reducing block sizes or num_stages may help.",
    "gce_cudart": "ImportError: libcudart.so.13: cannot open shared object file: No such file",
    "gce_cudnn": "ImportError: libcudnn.so.9: cannot open shared object file: No such file",
    "gce_old_vllm": "AmbiguousGlobalPerLayerAttributeError: 'head_dim' is a per-layer attribute",
    "gce_fastsafetensors": "[FAIL] framework hinted GPU runtime 'libcudart.so' but no GPU was "
    "found on this machine",
    "gce_no_kernel": "CUDA error: no kernel image is available for execution on the device",
    "gce_migrate": "Instances with guest accelerators do not support live migration.",
    "gce_global_gpu_quota": "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally.",
    "gce_gpu_quota": "Quota 'NVIDIA_T4_GPUS' exceeded.  Limit: 0.0 in region us-west2.",
    "gce_stockout": "code: ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS\nmessage: The zone "
    "'projects/p/zones/us-west2-b' does not have enough resources available to fulfill the "
    "request.  '(resource type:compute)'.",
    "gce_tmp_full": "ERROR: Could not install packages due to an OSError: [Errno 28] No space "
    "left on device: '/tmp/pip-unpack-x/torch-2.13.0.whl'",
    "gce_no_driver": "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA "
    "driver.",
    "gce_torch_cpu": "pip installed torch 2.13.0+cpu, which has no CUDA.",
    "gce_clamp_unknown": "triton_unified_attention.py is not built as expected, so it was not "
    "changed.",
    "gce_disk_full": "ERROR: Could not install packages due to an OSError: [Errno 28] No space "
    "left on device: '/opt1/tmp/pip-unpack-x/torch-2.13.0.whl'",
    "gce_preempted": "compute.instances.preempted",
    "gce_disk_quota": "Quota 'SSD_TOTAL_GB' exceeded.  Limit: 250.0 in region us-west2.",
    "gce_act_as": "The user does not have access to service account 'vllm-t4@p'. User: 'a@b'. Ask "
    "a project owner to grant you the iam.serviceAccountUser role on the service account",
}


@pytest.mark.parametrize(("name", "words"), SEEN.items(), ids=SEEN)
def test_it_is_known_by_its_words_and_answered(name: str, words: str) -> None:
    found = signature_of(words)
    assert found is not None
    assert found.id == name
    cause, fix = found.explained("gce-t4", "t4")
    assert cause.endswith(".")
    assert not [part for part in ("{target", "{name", "{{", "unknown") if part in cause + fix]


def test_every_signature_is_seen_here_and_explained_by_the_target() -> None:
    assert {item.id for item in SIGNATURES} == SEEN.keys()
    assert GceT4Backend.failure_signatures() is SIGNATURES


@pytest.mark.parametrize("words", ["", "Killed process 4242 (sshd)", "Quota 'CPUS' exceeded."])
def test_words_of_something_else_are_not_taken_for_one(words: str) -> None:
    assert signature_of(words) is None
