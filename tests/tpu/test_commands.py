"""The exact commands, the start script and the manifest: what is sent, and what never is."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backends.core.errors import InvalidInputError
from backends.tpu.commands import (
    create_argv,
    delete_argv,
    labels_of,
    power_argv,
    rule_argv,
)
from backends.tpu.gke import manifest
from backends.tpu.records import read_instance
from backends.tpu.start import engine_args, settings_json, start_script
from tests.tpu.made import PROJECT, ZONE, request, spec

FILES = (Path("/state/start.sh"), Path("/state/settings.json"))
ACCOUNT = f"vllm-v6e-gemma4@{PROJECT}.iam.gserviceaccount.com"


def created(**options: Any) -> list[str]:
    """The command that asks for a slice."""
    asked = spec(**options)
    return create_argv(asked, ZONE, PROJECT, ACCOUNT, labels_of(asked, "abc"), FILES)


@pytest.mark.parametrize(
    ("options", "words", "never"),
    [
        (
            {},
            ["--provisioning-model=flex-start", "--max-run-duration=14400s"],
            ["--spot", "--reserved"],
        ),
        ({"provisioning": "spot"}, ["--provisioning-model=spot"], ["--spot", "--max-run-duration"]),
        ({"provisioning": "on-demand"}, ["--provisioning-model=standard"], ["--spot"]),
        (
            {"provisioning": "reservation", "reservation": "r1"},
            ["--provisioning-model=reservation-bound", "--reservation=r1"],
            ["--reserved"],
        ),
    ],
)
def test_each_provisioning_model_is_asked_for_in_googles_words(
    options: dict[str, Any], words: list[str], never: list[str]
) -> None:
    argv = created(**options)
    assert argv[:7] == [
        "gcloud",
        "alpha",
        "compute",
        "tpus",
        "queued-resources",
        "create",
        "gemma4",
    ]
    assert "--async" in argv
    assert f"--service-account={ACCOUNT}" in argv
    assert "--valid-until-duration=14400s" in argv
    assert set(words) <= set(argv)
    assert not [item for item in argv if item.split("=")[0] in never]


def test_a_machine_of_compute_engine_is_asked_for_behind_the_same_options() -> None:
    argv = created(control_plane="compute", provisioning="spot", size="v6e-8")
    assert argv[:5] == ["gcloud", "compute", "instances", "create", "gemma4"]
    assert "--machine-type=ct6e-standard-8t" in argv
    assert "--boot-disk-size=200GB" in argv
    assert "--scopes=cloud-platform" in argv
    assert "--instance-termination-action=DELETE" in argv
    flex = created(control_plane="compute")
    assert flex[:2] == ["gcloud", "alpha"]
    held = created(control_plane="compute", provisioning="reservation", reservation="r1")
    assert {"--reservation-affinity=specific", "--reservation=r1"} <= set(held)
    assert "--instance-termination-action=DELETE" not in held


def test_network_service_account_and_addresses_are_as_asked() -> None:
    argv = created(network="n1", subnet="s1", internal_ips=True)
    assert {"--network=n1", "--subnetwork=s1", "--internal-ips"} <= set(argv)
    assert "--no-address" in created(control_plane="compute", internal_ips=True)


def test_force_is_said_only_where_google_wants_it() -> None:
    for state in ("ACCEPTED", "WAITING_FOR_RESOURCES", "SUSPENDED", "FAILED"):
        assert "--force" not in delete_argv(request(state, None), PROJECT)
    for state in ("ACTIVE", "PROVISIONING", "SUSPENDING"):
        assert "--force" in delete_argv(request(state), PROJECT)


def test_the_machine_is_started_and_stopped_by_its_control_plane() -> None:
    assert power_argv(request(), "stop", PROJECT)[:6] == [
        *("gcloud", "compute", "tpus", "tpu-vm", "stop", "gemma4-node"),
    ]
    machine = read_instance(
        {"name": "g", "machineType": "x/ct6e-standard-4t", "zone": f"x/{ZONE}", "status": "RUNNING"}
    )
    assert machine.size == "v6e-4"
    assert power_argv(machine, "start", PROJECT)[:5] == [
        *("gcloud", "compute", "instances", "start", "g"),
    ]


def test_the_firewall_lets_in_the_named_callers_to_one_port_of_one_deployment() -> None:
    argv = rule_argv(spec(public=True, allow_from=["203.0.113.7"]), PROJECT)
    assert "--source-ranges=203.0.113.7/32" in argv
    assert "--rules=tcp:8000" in argv
    assert "--target-tags=vllm-devops-gemma4" in argv
    assert "--tags=vllm-devops-gemma4" in created(public=True, allow_from=["203.0.113.7"])


def test_without_public_the_server_listens_on_the_machine_only() -> None:
    assert "--host=127.0.0.1" in engine_args(spec(), 1)
    assert "--host=0.0.0.0" in engine_args(spec(public=True, allow_from=["203.0.113.7"]), 1)


def test_over_several_hosts_vllm_is_told_of_ray() -> None:
    asked = spec(size="v6e-16", model="google/gemma-4-31B-it")
    assert "--distributed-executor-backend=ray" in engine_args(asked, 16)
    script = start_script(asked, 16, PROJECT)
    assert "HOSTS=4" in script
    assert "ray start --head" in script


def test_no_text_of_a_request_becomes_a_command_of_the_start_script(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    nasty = f"x'; touch {mark}; echo '$(touch {mark})`touch {mark}`"
    asked = spec(model=nasty, extra_args=[f"--x={nasty}"], env=[f"A={nasty}"])
    head = start_script(asked, 1, PROJECT).partition("# Runs as root")[0]
    done = subprocess.run(
        ["bash", "-c", head + '\nprintf "%s\\n" "${SERVE[2]}" "${ENVIRONMENT[0]}"'],
        capture_output=True, text=True, check=True, timeout=20,
    )  # fmt: skip
    assert done.stdout.splitlines() == [nasty, f"A={nasty}"]
    assert not mark.exists()


def test_the_start_script_is_bash_and_holds_no_secret_but_its_name() -> None:
    script = start_script(spec(), 1, PROJECT, key_secret="key-1")
    subprocess.run(["bash", "-n", "-c", script], check=True, timeout=20)
    assert "SECRET=hf-token" in script
    assert "KEY_SECRET=key-1" in script
    assert "hf_" not in script
    assert "--env HF_TOKEN" in script
    assert "set -x" not in script
    assert "hf_" not in settings_json(spec(), 1)


def test_a_path_that_gcloud_would_take_apart_is_refused() -> None:
    asked = spec()
    files = (Path("/a,b/start.sh"), FILES[1])
    with pytest.raises(InvalidInputError):
        create_argv(asked, ZONE, PROJECT, ACCOUNT, labels_of(asked, "abc"), files)


def test_the_manifest_is_whole() -> None:
    text = manifest(spec(size="v6e-4", model="google/gemma-4-26B-A4B-it", provisioning="spot"))
    for part in (
        'kind: "Deployment"',
        'kind: "Service"',
        'kind: "PersistentVolumeClaim"',
        'cloud.google.com/gke-tpu-accelerator: "tpu-v6e-slice"',
        'cloud.google.com/gke-tpu-topology: "2x2"',
        'google.com/tpu: "4"',
        "startupProbe:",
        "readinessProbe:",
        "livenessProbe:",
        'path: "/health"',
        "matchLabels:",
        '- "--tensor-parallel-size=4"',
        '- "google/gemma-4-26B-A4B-it"',
        "secretKeyRef:",
        "--spot",
    ):
        assert part in text, part
    assert "hf_" not in text
    with pytest.raises(InvalidInputError, match="4 hosts"):
        manifest(spec(size="v6e-16", model="google/gemma-4-31B-it"))


def test_a_request_that_is_reserved_is_known_as_such() -> None:
    assert request(guaranteed={"reserved": True}).provisioning == "reservation"
    assert replace(request(), plane="compute").needs_force is False
