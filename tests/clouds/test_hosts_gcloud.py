"""Hosts through the real gcloud, which opens the connection, onto machines of the rehearsal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backends.clouds.google import GoogleCloud
from backends.clouds.hosts import GceHost, TpuHost
from backends.core.errors import HostUnreachableError, NotFoundError
from tests.support.clients import make_app
from tests.support.cloud import Cloud, as_good_as_new, running_cloud
from tests.support.processes import wait_for

ZONE = "us-west2-b"
COMPUTE = f"https://compute.googleapis.com/compute/v1/projects/vllm-rehearsal/zones/{ZONE}"
TPU = "https://tpu.googleapis.com/v2/projects/vllm-rehearsal/locations/us-east5-b"


@pytest.fixture(scope="module")
def hosts_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """A rehearsal cloud, started once."""
    with running_cloud(tmp_path_factory.mktemp("hosts"), "gcloud") as running:
        config = running.state_dir / "rehearsal" / "cloud" / "gcloud" / "gce"
        config.write_text("False", encoding="utf-8")
        yield running


@pytest.fixture
def cloud(hosts_cloud: Cloud) -> Iterator[Cloud]:
    """An empty project in it."""
    with as_good_as_new(hosts_cloud) as fresh:
        yield fresh


def google(cloud: Cloud) -> GoogleCloud:
    """The way into it."""
    return GoogleCloud(make_app(cloud.state_dir, rehearsal=True).backends._services)


async def test_gcloud_opens_the_way_to_a_machine_and_ssh_goes_it(cloud: Cloud) -> None:
    body = {
        "name": "t4",
        "machineType": f"zones/{ZONE}/machineTypes/n1-standard-2",
        "scheduling": {"onHostMaintenance": "TERMINATE"},
        "guestAccelerators": [
            {
                "acceleratorType": f"zones/{ZONE}/acceleratorTypes/nvidia-tesla-t4",
                "acceleratorCount": 1,
            }
        ],
        "disks": [{"boot": True, "initializeParams": {"sourceImage": "debian-13"}}],
        "networkInterfaces": [{"network": "global/networks/default"}],
    }
    cloud.google("POST", f"{COMPUTE}/instances", body)
    host = GceHost(google(cloud), project="vllm-rehearsal", zone=ZONE, instance="t4")
    await host.wait_until_up(timeout_s=60, every_s=0.2)
    cloud.control("DELETE", "/requests")
    said = await host.run(["printf", "%s|", "it's", "$HOME", "ü"], timeout_s=20)
    assert said.stdout == "it's|$HOME|ü|"
    await host.put(b"text", "folder/file")
    assert await host.read("folder/file") == b"text"
    # Everything after the connection is ssh's alone.
    assert cloud.requests() == []
    argv = await host.connect_argv()
    assert argv[:4] == ["gcloud", "compute", "ssh", "t4"]
    assert "--tunnel-through-iap" in argv
    await host.close()
    cloud.fault(kind="host", fault="refused")
    with pytest.raises(HostUnreachableError) as refused:
        await host.run("true", timeout_s=20)
    assert "Connection refused" in refused.value.words
    gone = GceHost(google(cloud), project="vllm-rehearsal", zone=ZONE, instance="other")
    with pytest.raises(NotFoundError):
        await gone.run("true", timeout_s=20)


async def test_each_worker_of_a_node_is_a_host_of_its_own(cloud: Cloud) -> None:
    body = {
        "tpu": {
            "nodeSpec": [
                {
                    "parent": "projects/vllm-rehearsal/locations/us-east5-b",
                    "nodeId": "v6e",
                    "node": {
                        "acceleratorType": "v6e-1",
                        "runtimeVersion": "v2-alpha-tpuv6e",
                        "networkConfig": {"enableExternalIps": True},
                    },
                }
            ]
        }
    }
    cloud.google("POST", f"{TPU}/queuedResources?queuedResourceId=q", body)
    host = TpuHost(google(cloud), project="vllm-rehearsal", zone="us-east5-b", node="v6e")

    def is_ready() -> bool:
        """the node is READY"""
        nodes = cloud.google("GET", f"{TPU}/nodes").get("nodes") or []
        return bool(nodes) and nodes[0]["state"] == "READY"

    wait_for(is_ready, 30)
    await host.wait_until_up(timeout_s=60, every_s=0.2)
    said = await host.run("hostname > /dev/null; docker version", timeout_s=20)
    assert said.stdout
    beta = TpuHost(
        google(cloud), project="p", zone="z", node="n", worker=3, via="iap", queued_resource="q"
    )
    argv = await beta.connect_argv()
    assert argv[:6] == ["gcloud", "alpha", "compute", "tpus", "tpu-vm", "ssh"]
    assert {"--worker=3", "--tunnel-through-iap"} <= {*argv}
    assert "n worker 3 of q" in beta.label
