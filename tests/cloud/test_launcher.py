"""The process: one for a folder, found again, with what it has, and nothing left when it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from backends.core.errors import CliMissingError, UnavailableError
from backends.rehearsal.cloud import launcher
from tests.cloud.rehearsal import BUCKET, KNATIVE, Rehearsal, ready, rehearsal
from tests.support.processes import gone, wait_for


def test_a_second_start_finds_the_first(tmp_path: Path) -> None:
    with rehearsal(tmp_path, speed=400) as client:
        again = launcher.start(tmp_path, speed=1)
        assert again == client.running
        assert again.speed == 400


def test_two_starts_at_once_make_one_cloud(tmp_path: Path) -> None:
    def begin(_: int) -> int:
        return launcher.start(tmp_path, speed=400).pid

    with ThreadPoolExecutor(3) as pool:
        pids = set(pool.map(begin, range(3)))
    assert len(pids) == 1
    assert launcher.stop(tmp_path)
    assert not launcher.stop(tmp_path)
    assert launcher.find(tmp_path) is None


def test_a_cloud_that_cannot_start_says_why(tmp_path: Path) -> None:
    with rehearsal(tmp_path / "one", speed=400) as client:
        with pytest.raises(UnavailableError) as caught:
            launcher.start(tmp_path / "two", port=client.running.port)
        assert "Address already in use" in caught.value.words


def test_what_it_has_outlives_the_process(tmp_path: Path) -> None:
    with rehearsal(tmp_path, speed=400) as client:
        assert ready(client.deploy("kept"))["status"] == "True"
        url = f"https://storage.googleapis.com/upload/storage/v1/b/{BUCKET}/o"
        client.rest.post(url, params={"uploadType": "media", "name": "note.txt"}, content=b"hi")
    with rehearsal(tmp_path, speed=400) as client:
        kept = client.rest.get(f"{KNATIVE}/services/kept").json()
        assert ready(kept)["status"] == "True"
        assert client.call(kept["status"]["url"]).json()["data"]
        url = f"https://storage.googleapis.com/storage/v1/b/{BUCKET}/o/note.txt"
        assert client.rest.get(url, params={"alt": "media"}).content == b"hi"


def test_a_killed_cloud_takes_its_containers_with_it(tmp_path: Path) -> None:
    running = launcher.start(tmp_path, speed=400)
    client = Rehearsal(running, dict(os.environ))
    client.deploy("doomed")
    children = [item["pid"] for item in client.instances("doomed")]
    assert children
    client.close()
    os.kill(running.pid, signal.SIGKILL)

    def no_child_is_left() -> bool:
        """the containers died with the cloud"""
        return all(gone(pid) for pid in children)

    wait_for(no_child_is_left)
    assert launcher.find(tmp_path) is None
    # A deployment that was under way goes on in the next one.
    with rehearsal(tmp_path, speed=400) as again:
        assert again.running.pid != running.pid


def test_it_ends_with_its_owner(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as owner:
        running = launcher.start(tmp_path, speed=400, owner_pid=owner.pid)
        owner.kill()

    def ended() -> bool:
        """the cloud ended"""
        return gone(running.pid)

    wait_for(ended)
    assert launcher.find(tmp_path) is None


def test_nothing_leaves(tmp_path: Path) -> None:
    with rehearsal(tmp_path, speed=400) as client:
        for url in ("https://example.org/simple/", "https://huggingface.co/google"):
            with pytest.raises(httpx.ProxyError, match="403"):
                client.rest.get(url)
        assert client.rest.get("http://example.com/x").status_code == 403
        unknown = client.rest.get("https://run.googleapis.com/v9/none")
        assert unknown.status_code == 404
        assert "not part of the rehearsal" in unknown.json()["error"]["message"]
        refused = [
            item["host"]
            for item in client.control("GET", "/requests")["requests"]
            if item["method"] == "CONNECT"
        ]
        assert refused == ["example.org:443", "huggingface.co:443"]


def test_the_control_api_answers_on_loopback_only_and_names_what_is_wrong(tmp_path: Path) -> None:
    with rehearsal(tmp_path, speed=400) as client:
        about = client.control("GET", "")
        assert about["rehearsal"] is True
        assert about["pid"] == client.running.pid
        for method, path, body, words in (
            ("POST", "/faults", {"name": "nothing"}, "no scenario"),
            ("POST", "/faults", {"kind": "nothing"}, "no kind"),
            ("POST", "/faults", {"kind": "request", "colour": 1}, "colour"),
            ("POST", "/faults", {"kind": "request", "action": "explode"}, "action must be"),
            ("POST", "/faults", {"name": "admission-plateau"}, "is not switched on"),
            ("DELETE", "/faults/none", None, "No fault"),
            ("POST", "/settings", {"speed": 0}, "above 0"),
            ("POST", "/settings", {"colour": 1}, "unknown setting"),
            ("GET", "/elsewhere", None, "not part of the control API"),
        ):
            with pytest.raises(UnavailableError) as caught:
                client.control(method, path, body)
            assert words in caught.value.words
        # Through the proxy the same path is a host like any other.
        assert client.rest.get("https://run.googleapis.com/rehearsal").status_code == 404


def test_its_environment_keeps_children_inside(tmp_path: Path) -> None:
    with rehearsal(tmp_path, speed=400) as client:
        foreign = {
            "PATH": "/bin",
            "GOOGLE_CLOUD_QUOTA_PROJECT": "mine",
            "CLOUDSDK_AUTH_ACCESS_TOKEN": "ya29.mine",
            "https_proxy": "http://elsewhere:1",
            "SSL_CERT_DIR": "/etc/ssl/certs",
            "KEPT": "1",
        }
        env = launcher.clean(client.running, foreign)
        assert env["PATH"] == f"{client.running.state_dir}/hosts/clients:/bin"
        assert env["KEPT"] == "1"
        assert {"GOOGLE_CLOUD_QUOTA_PROJECT", "CLOUDSDK_AUTH_ACCESS_TOKEN"}.isdisjoint(env)
        assert "SSL_CERT_DIR" not in env
        proxy = f"http://127.0.0.1:{client.running.port}"
        assert env["https_proxy"] == env["HTTPS_PROXY"] == proxy
        secrets = tmp_path / "gcloud" / "application_default_credentials.json"
        assert json.loads(secrets.read_text(encoding="utf-8"))["type"] == "authorized_user"
        for path in (secrets, tmp_path / "certificates" / "ca.key"):
            assert path.stat().st_mode & 0o077 == 0


def test_without_gcloud_there_is_a_clear_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CliMissingError) as caught:
        launcher.gcloud()
    assert "Install the Google Cloud CLI" in caught.value.next_action


def test_the_command_line_names_what_is_wrong() -> None:
    command = [sys.executable, "-m", "backends.rehearsal.cloud"]
    root = Path(__file__).resolve().parents[2]
    for arguments, words in ((["--state-dir=x", "--speed=0"], "above 0"), ([], "--state-dir")):
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, cwd=root, check=False
        )
        assert done.returncode == 2
        assert words in done.stderr
