"""An empty project at Google becomes one that targets can use, and nothing is done twice."""

from __future__ import annotations

import io
import json
import os
import stat
from pathlib import Path

import pytest

from backends.core.names import TARGETS
from backends.knowledge.google_setup import NEEDS
from backends.setup.__main__ import PARTS, main, set_up
from backends.setup.desk import Desk
from tests.cloudrun.conftest import Cloud
from tests.support.clients import make_app

RTX = "cloudrun-rtx6000"
BUILDER = "roles/cloudbuild.builds.builder"


@pytest.fixture
def empty(cloud: Cloud) -> Cloud:
    """A project in which nothing is enabled and Google's accounts have no roles."""
    cloud.control("POST", "/reset", {"empty": True})
    cloud.control("DELETE", "/requests")
    return cloud


async def run(
    cloud: Cloud, *, project: str | None = None, yes: bool = False, dry_run: bool = False
) -> tuple[str, Desk]:
    """Set the RTX target up; returns what was said."""
    out = io.StringIO()
    desk = Desk(out=out, yes=yes, dry_run=dry_run)
    app = make_app(cloud.state_dir, rehearsal=True, targets=(RTX,))
    await set_up(desk, app, [RTX], project)
    return out.getvalue(), desk


def changes(cloud: Cloud) -> list[str]:
    """Paths of the requests that changed something."""
    looks = (":testIamPermissions", ":getIamPolicy", "/token", "entries:list")
    return [
        request["path"]
        for request in cloud.requests()
        if request["method"] != "GET" and not request["path"].endswith(looks)
    ]


async def test_an_empty_project_is_set_up_by_commands_that_were_shown_and_only_once(
    empty: Cloud,
) -> None:
    empty.fault(kind="deny", permission="run.services.create")
    said, desk = await run(empty, yes=True)
    assert desk.missing_still == 0, said
    assert "$ gcloud services enable run.googleapis.com" in said
    assert "--role=roles/run.admin" in said
    assert "--enable-private-ip-google-access" in said
    world = empty.world()
    assert {f"{name}.googleapis.com" for name in NEEDS[RTX].apis} <= set(world["enabled"])
    policy = json.dumps(world["policies"]["projects/vllm-rehearsal"])
    assert "user:rehearsal@example.com" in policy
    empty.mend()

    empty.control("DELETE", "/requests")
    said, desk = await run(empty, yes=True)
    assert desk.missing_still == 0
    assert "missing" not in said
    assert "$" not in said
    assert changes(empty) == []


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A gcloud that knows who is logged in and writes down whatever else it is told."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "gcloud"
    program.write_text(
        "#!/bin/sh\n"
        f'case "$*" in\n*print-access-token*) [ ! -e {folder}/out ] || {{ echo "ERROR: '
        '(gcloud.auth.print-access-token) You do not currently have an active account selected." '
        ">&2; exit 1; }; echo token ;;\n"
        '*"auth list"*) echo \'[{"account": "me@example.com"}]\' ;;\n'
        f'*) echo "$*" >> {folder}/told ;;\nesac\n',
        encoding="utf-8",
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@pytest.mark.parametrize("dry_run", [True, False], ids=["dry run", "nobody to ask"])
async def test_looking_changes_nothing_and_names_every_command(
    empty: Cloud, stub: Path, dry_run: bool
) -> None:
    said, desk = await run(empty, yes=dry_run, dry_run=dry_run)
    assert "gcloud, logged in as me@example.com" in said
    assert "project vllm-rehearsal (number 424242424242)" in said
    assert "$ gcloud services enable run.googleapis.com" in said
    assert desk.missing_still > 0
    assert changes(empty) == []
    assert not (stub / "told").exists()


async def test_a_role_that_googles_account_lacks_is_granted(cloud: Cloud, stub: Path) -> None:
    # As in organisations whose policy gives default accounts nothing.
    cloud.fault(
        kind="request", host="cloudresourcemanager", path=":getIamPolicy$", status=200, times=-1,
        body={"version": 1, "etag": "ACAB", "bindings": []},
    )  # fmt: skip
    said, _ = await run(cloud, yes=True)
    told = (stub / "told").read_text(encoding="utf-8")
    assert f"{BUILDER} for serviceAccount:424242424242-compute@" in said
    assert f"--role={BUILDER} --condition=None" in told


async def test_billing_that_is_off_is_named_and_never_switched_on(cloud: Cloud, stub: Path) -> None:
    cloud.fault(
        kind="request", host="cloudbilling", path="billingInfo$", status=200, times=-1,
        body={"billingEnabled": False},
    )  # fmt: skip
    said, desk = await run(cloud, yes=True)
    assert "missing  a billing account" in said
    assert "console.cloud.google.com/billing" in said
    assert desk.missing_still > 0
    assert "billing" not in (stub / "told").read_text(encoding="utf-8")


async def test_what_cannot_be_told_is_said_and_hides_nothing_else(cloud: Cloud, stub: Path) -> None:
    cloud.fault(kind="deny", permission="serviceusage.services.get")
    said, desk = await run(cloud, dry_run=True)
    assert "which APIs are on could not be told (permission_denied)" in said
    assert "you may do all that these targets do" in said
    assert desk.missing_still > 0


async def test_without_a_login_nothing_else_is_looked_at(cloud: Cloud, stub: Path) -> None:
    (stub / "out").touch()
    said, desk = await run(cloud, yes=True)
    assert "missing  a login at Google" in said
    assert "$ gcloud auth login --update-adc" in said
    assert "needs a person at a terminal" in said
    assert "billing" not in said
    assert desk.missing_still > 0


async def test_another_project_is_made_gclouds_own_and_a_contradiction_is_named(
    cloud: Cloud, stub: Path
) -> None:
    said, desk = await run(cloud, project="another-project", yes=True)
    assert (stub / "told").read_text(encoding="utf-8") == "config set project another-project\n"
    assert "says vllm-rehearsal" in said
    assert desk.missing_still > 0


async def test_without_gcloud_it_says_where_to_get_it(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said, desk = await run(cloud)
    assert "https://cloud.google.com/sdk/docs/install" in said
    assert desk.missing_still > 0


def test_a_target_of_this_machine_needs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--target=local", "--yes"]) == 0
    assert "local: nothing to set up" in capsys.readouterr().out


def test_an_unknown_target_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["--target=cloudrun-h100"])
    assert refused.value.code == 2
    assert "cloudrun-l4" in capsys.readouterr().err


def test_every_google_target_says_what_it_needs() -> None:
    google = {word for word, (module, _) in PARTS.items() if module.endswith(".google")}
    assert {name for name in TARGETS if name.partition("-")[0] in google} == set(NEEDS)
