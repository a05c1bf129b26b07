"""The start script as a machine runs it at boot: what it waits for, how it says what is wrong."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from backends.tpu import start
from backends.tpu.start import start_script
from tests.support.cloud import Cloud
from tests.support.processes import wait_for
from tests.tpu.acting import Zone
from tests.tpu.made import spec

PROJECT = "vllm-rehearsal"
_SECRETS = f"https://secretmanager.googleapis.com/v1/projects/{PROJECT}/secrets"


def phases(cloud: Cloud) -> str:
    """What the start script has noted down."""
    machine = Path(cloud.running.state_dir) / "hosts/machines/tpu.us-east5-b.gemma4-node.0"
    path = machine / "root/var/lib/vllm-devops/phases"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def boot(zone: Zone, *, secret: str = "") -> None:
    """Boot a machine with the script of a deployment, without its pauses."""
    script = start_script(spec().model_copy(update={"secret": secret}), 1, PROJECT)
    assert "PAUSE=10\n" in script
    zone.ask("gemma4", script=script.replace("PAUSE=10\n", "PAUSE=0.3\n"))


def until(cloud: Cloud, words: str) -> None:
    """Wait until the script has said something."""

    def said() -> bool:
        """the start script has said it"""
        return words in phases(cloud)

    wait_for(said, 30)


def keep_secret(zone: Zone) -> None:
    """A token in Secret Manager that nobody may read yet."""
    rest = zone.client.rest
    assert rest.post(_SECRETS, params={"secretId": "hf-token"}, json={}).status_code == 200
    payload = {"payload": {"data": "aGZfeA=="}}
    assert rest.post(f"{_SECRETS}/hf-token:addVersion", json=payload).status_code == 200


def test_a_secret_that_may_not_be_read_is_waited_for_and_then_read(
    cloud: Cloud, zone: Zone
) -> None:
    keep_secret(zone)
    boot(zone, secret="hf-token")
    until(cloud, "waiting: cannot read the secret hf-token")
    account = "424242424242-compute@developer.gserviceaccount.com"
    binding = {
        "role": "roles/secretmanager.secretAccessor",
        "members": [f"serviceAccount:{account}"],
    }
    policy = {"policy": {"bindings": [binding]}}
    assert zone.client.rest.post(
        f"{_SECRETS}/hf-token:setIamPolicy", json=policy
    ).status_code == 200  # fmt: skip
    until(cloud, "ready")
    assert "hf_x" not in phases(cloud)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"fault": "pull", "times": -1}, "could not be pulled: Error response from daemon"),
        ({"fault": "network", "command": "metadata", "times": -1}, "no answer from the metadata"),
    ],
)
def test_what_stops_a_boot_is_noted_down_in_the_words_of_what_failed(
    cloud: Cloud, zone: Zone, fault: dict[str, Any], words: str
) -> None:
    cloud.fault(kind="host", **fault)
    boot(zone)
    until(cloud, words)
    assert phases(cloud).splitlines()[-1].partition(" ")[2].startswith("failed: ")


@pytest.mark.parametrize(
    ("said", "last"), [("stopped", "stopped"), ("starting", "failed: the container has ended")]
)
def test_a_start_whose_container_was_stopped_meanwhile_has_not_failed(
    tmp_path: Path, said: str, last: str
) -> None:
    phases = tmp_path / "var/lib/vllm-devops/phases"
    phases.parent.mkdir(parents=True)
    phases.write_text(f"1 starting\n2 {said}\n", encoding="utf-8")
    script = (Path(start.__file__).parent / "start.sh").read_text(encoding="utf-8")
    functions = script.partition("again() {")[0]
    ran = subprocess.run(
        ["bash", "-c", f"{functions}\nsleep() {{ :; }}\nended"],
        env={"PATH": os.environ["PATH"], "VLLM_DEVOPS_HOST_ROOT": str(tmp_path)},
        timeout=20,
        check=False,
    )
    assert ran.returncode == (0 if said == "stopped" else 1)
    assert phases.read_text(encoding="utf-8").splitlines()[-1].partition(" ")[2] == last
