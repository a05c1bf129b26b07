"""What an account at AWS lacks is said, with the command that mends it, and nothing done twice."""

from __future__ import annotations

import io
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from backends.rehearsal.cloud import launcher
from backends.setup.__main__ import set_up
from backends.setup.desk import Desk
from tests.support.clients import make_app

TARGET = "sagemaker-l4"
Running = launcher.Running


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("aws") / "rehearsal" / "cloud"
    yield launcher.start(folder, speed=1000, owner_pid=os.getpid())
    launcher.stop(folder)


@pytest.fixture
def account(running: Running) -> Iterator[Running]:
    """A new account; this process's environment is put back afterwards."""
    launcher.control(running, "POST", "/reset")
    before = dict(os.environ)
    yield running
    os.environ.clear()
    os.environ.update(before)
    launcher.control(running, "DELETE", "/faults")


@pytest.fixture(autouse=True)
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An aws that knows its version and writes down whatever else it is told."""
    program = tmp_path / "bin" / "aws"
    program.parent.mkdir()
    told = tmp_path / "told"
    program.write_text(
        f"#!{sys.executable} -S\nimport sys\n"
        "if '--version' in sys.argv: print('aws-cli/2.38.5 Python/3.13')\n"
        f"else: open({str(told)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return told


async def run(
    account: Running, *, project: str | None = None, yes: bool = False, dry_run: bool = False
) -> tuple[str, Desk]:
    out = io.StringIO()
    desk = Desk(out=out, yes=yes, dry_run=dry_run)
    app = make_app(Path(account.state_dir).parents[1], rehearsal=True, targets=("local",))
    await set_up(desk, app, [TARGET], project)
    return out.getvalue(), desk


def fault(account: Running, **fields: object) -> None:
    launcher.control(account, "POST", "/faults", fields)


async def test_an_account_that_has_all_is_only_looked_at(account: Running, stub: Path) -> None:
    said, desk = await run(account, yes=True)
    assert "AWS, for sagemaker-l4" in said
    assert "ok       aws 2.38.5" in said
    assert "logged in as arn:aws:iam::123456789012:user/rehearsal, by profile default" in said
    assert "region us-east-2" in said
    assert "endpoint quota in us-east-2: 2 ml.g6.xlarge, 1 ml.g6.2xlarge, 1 ml.g6.4xlarge" in said
    assert desk.missing_still == 0
    assert "$" not in said
    assert not stub.exists()


async def test_quota_is_asked_for_once_and_if_agreed_to(account: Running, stub: Path) -> None:
    fault(account, name="aws-quota-none")
    command = "service-quotas request-service-quota-increase --service-code=sagemaker"
    for yes, dry_run in ((False, False), (True, True)):
        said, desk = await run(account, yes=yes, dry_run=dry_run)
        assert f"$ aws {command}" in said
        assert desk.missing_still > 0
        assert not stub.exists()
    said, _ = await run(account, yes=True)
    assert "AWS answers within hours to days" in said
    assert stub.read_text().startswith(command)
    assert "--region us-east-2" in stub.read_text()


@pytest.mark.skipif(shutil.which("aws") is None, reason="the aws CLI is not installed")
async def test_what_was_asked_for_is_not_asked_for_again(
    account: Running, stub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = os.environ["PATH"].partition(":")[2]
    monkeypatch.setenv("PATH", own)
    fault(account, name="aws-quota-none")
    await run(account, yes=True)
    said, _ = await run(account, yes=True)
    assert "ml.g6.xlarge for endpoint usage: asked for already, PENDING" in said
    assert not stub.exists()


async def test_a_dead_login_is_handed_to_a_person_and_ends_it(account: Running) -> None:
    fault(account, name="aws-login-expired")
    said, desk = await run(account, yes=True)
    assert "missing  a login at AWS" in said
    assert "$ aws login" in said
    assert "needs a person at a terminal" in said
    assert "region" not in said
    assert desk.missing_still == 1


async def test_permissions_that_are_missing_are_named(account: Running) -> None:
    fault(account, name="aws-denied", action="logs:*")
    fault(account, name="aws-denied", action="servicequotas:*")
    said, desk = await run(account)
    assert "permissions to read: logs:DescribeLogGroups" in said
    assert "the endpoint quota could not be told (permission_denied)" in said
    assert desk.missing_still == 2


async def test_another_account_than_the_one_that_is_meant_is_not_used(account: Running) -> None:
    said, desk = await run(account, project="999999999999")
    assert "a login of account 999999999999; this one is of 123456789012" in said
    assert desk.missing_still == 1


async def test_without_the_cli_only_the_way_to_get_it_is_said(
    account: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    said, desk = await run(account)
    assert "missing  the AWS CLI, version 2" in said
    assert desk.missing_still == 1
