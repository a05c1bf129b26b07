"""Whose login is used at AWS, against the rehearsal's STS; and what is said when none lives."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backends.clouds.aws import Aws
from backends.core.deadline import begin_call
from backends.core.errors import (
    ApiDisabledError,
    CliMissingError,
    NotFoundError,
    OutcomeUnknownError,
    UnauthenticatedError,
    UnavailableError,
)
from backends.core.owned import Owned
from tests.cloud.rehearsal import Rehearsal, rehearsal

pytestmark = pytest.mark.anyio

LIVE, DEAD = "AKIAREHEARSAL0000001", "ASIAREHEARSALEXPIRED"
SECRET = "of-no-account"
REGION = "us-east-2"
Make = Callable[..., Aws]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    with rehearsal(tmp_path_factory.mktemp("cloud"), speed=1000, idle_s=30) as client:
        yield client


@pytest.fixture
def made(running: Rehearsal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes an `Aws` with files and keys of the test's own."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"):
        # `Aws` sets them for its process; they go with the test.
        monkeypatch.setenv(name, "")

    def make(*, credentials: str = "", config: str = "", keys: str = "", **variables: str) -> Aws:
        (tmp_path / "credentials").write_text(credentials)
        (tmp_path / "config").write_text(config)
        if keys:
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", keys)
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
            monkeypatch.setenv("AWS_SESSION_TOKEN", "of-an-hour-ago")
        env = {
            name: value
            for name, value in running.env.items()
            if name.startswith(("AWS_", "HTTPS_", "https_", "NO_", "no_", "REQUESTS_"))
        }
        env |= {
            "AWS_CONFIG_FILE": str(tmp_path / "config"),
            "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
            **variables,
        }
        services: Any = SimpleNamespace(
            settings=SimpleNamespace(rehearsal=True), cloud_env=lambda: env, owned=Owned()
        )
        return Aws(services)

    yield make
    running.control("DELETE", "/faults")


def profile(key: str, name: str = "default") -> str:
    return f"[{name}]\naws_access_key_id = {key}\naws_secret_access_key = {SECRET}\n"


def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """An `aws` of the test's own, first on PATH."""
    program = tmp_path / "bin" / "aws"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable} -S\nimport os, sys\n{body}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


@pytest.mark.skipif(shutil.which("aws") is None, reason="the aws CLI is not installed")
async def test_a_live_profile_is_preferred_to_dead_keys_in_the_environment(made: Make) -> None:
    aws = made(credentials=profile(LIVE), keys=DEAD)
    assert (await aws.identity()).arn.endswith(":user/rehearsal")
    assert await aws.login.source() == "profile default (shared-credentials-file)"
    assert (await aws.call("sagemaker", "list_models", REGION)) == {"Models": []}
    # The CLI would take the dead keys; it is run without them.
    assert await aws.cli(["sagemaker", "list-models"], REGION) == {"Models": []}


async def test_live_keys_in_the_environment_are_used_before_a_profile(made: Make) -> None:
    aws = made(credentials=profile(DEAD), keys=LIVE)
    assert (await aws.keys()).access_key == LIVE
    assert await aws.login.source() == "keys in the environment"
    assert await aws.login.cli_env() == {}


async def test_dead_keys_alone_are_one_error_with_the_command_that_mends_it(
    made: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub(tmp_path, monkeypatch, "print('aws-cli/2.38.5 Python/3.13')")
    aws = made(keys=DEAD)
    asked = [aws.identity(), aws.call("sagemaker", "list_models", REGION), aws.keys()]
    errors = await asyncio.gather(*asked, return_exceptions=True)
    texts = {(type(error), str(error)) for error in errors}
    assert texts == {(UnauthenticatedError, "AWS does not accept the login of this machine.")}
    assert isinstance(errors[0], UnauthenticatedError)
    assert "ExpiredToken" in errors[0].words
    assert errors[0].next_action == (
        "Ask the person to run: aws login (the keys in this server's environment are of a session "
        "that has ended)"
    )


@pytest.mark.parametrize(
    ("config", "mended_by"),
    [
        (
            "[profile work]\nsso_session = s\nsso_account_id = 1\nsso_role_name = r\n"
            "[sso-session s]\nsso_start_url = https://x.awsapps.com\nsso_region = us-east-1\n",
            "aws sso login --profile work",
        ),
        ("", "aws configure --profile work"),
        # A role is taken on with another profile's login: that one is to be mended.
        (
            "[profile work]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = base\n"
            "[profile base]\nsso_start_url = https://x.awsapps.com\nsso_region = us-east-1\n",
            "aws sso login --profile base",
        ),
    ],
)
async def test_a_profile_that_is_dead_or_absent_says_how_to_mend_it(
    made: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, mended_by: str
) -> None:
    stub(tmp_path, monkeypatch, "print('aws-cli/1.45.11 Python/3.11')")
    aws = made(config=config, AWS_PROFILE="work")
    with pytest.raises(UnauthenticatedError) as caught:
        await aws.call("sagemaker", "list_models", REGION)
    assert caught.value.next_action == f"Ask the person to run: {mended_by}"


@pytest.mark.parametrize(
    ("settings", "mended_by"),
    [
        ("login_session = arn:aws:iam::1:user/u", "aws login --profile work"),
        ("credential_process = /bin/keys", "what profile work names as its credential_process"),
        ("aws_session_token = t", "aws configure set aws_session_token ... --profile work"),
    ],
)
async def test_what_mends_a_login_is_said_by_its_kind_and_with_its_profile(
    made: Make, settings: str, mended_by: str
) -> None:
    aws = made(config=f"[profile work]\n{settings}\n", AWS_PROFILE="work")
    assert (await aws.login.mend()).startswith(mended_by)


async def test_a_login_that_dies_meanwhile_and_one_made_meanwhile_are_noticed(
    made: Make, running: Rehearsal
) -> None:
    aws = made(credentials=profile(LIVE))
    await aws.call("sagemaker", "list_models", REGION)
    with_fault = running.control("POST", "/faults", {"name": "aws-login-expired"})["faults"][0]
    with pytest.raises(UnauthenticatedError) as caught:
        await aws.call("sagemaker", "list_models", REGION)
    assert caught.value.next_action.startswith("Ask the person to run: aws ")
    running.control("DELETE", f"/faults/{with_fault['id']}")
    await aws.call("sagemaker", "list_models", REGION)


EXPORT = """
if '--version' in sys.argv:
    print('aws-cli/2.38.5 Python/3.13')
elif sys.argv[1:3] == ['configure', 'export-credentials']:
    assert not os.environ.get('AWS_ACCESS_KEY_ID')
    import json
    print(json.dumps({'Version': 1, 'AccessKeyId': '%s', 'SecretAccessKey': 's',
                      'SessionToken': 't', 'Expiration': '2999-01-01T00:00:00+00:00'}))
"""
LOGIN = "[default]\nlogin_session = arn:aws:iam::123456789012:user/rehearsal\nregion = us-east-2\n"


async def test_a_login_of_the_browser_is_read_by_the_cli_where_only_it_can(
    made: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub(tmp_path, monkeypatch, EXPORT % LIVE)
    aws = made(config=LOGIN, keys=DEAD)
    assert (await aws.identity()).account == "123456789012"
    assert await aws.login.source() == "profile default (aws-cli)"
    assert (await aws.keys()).token == "t"


async def test_an_expired_login_of_the_browser_is_told_as_such(
    made: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "Error loading login session token: Please reauthenticate with 'aws login'."
    stub(tmp_path, monkeypatch, f"sys.stderr.write({words!r}); sys.exit(253)")
    with pytest.raises(UnauthenticatedError) as caught:
        await made(config=LOGIN).identity()
    assert caught.value.next_action == "Ask the person to run: aws login"


async def test_a_login_of_the_browser_needs_the_second_generation_of_the_cli(
    made: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub(
        tmp_path,
        monkeypatch,
        "sys.stderr.write('aws: error: argument subcommand: Invalid choice'); sys.exit(2)",
    )
    with pytest.raises(CliMissingError) as caught:
        await made(config=LOGIN).identity()
    assert "2.32" in caught.value.next_action


async def test_reads_are_refused_in_our_terms_and_pages_are_joined(
    made: Make, running: Rehearsal
) -> None:
    aws = made(credentials=profile(LIVE))
    with pytest.raises(NotFoundError):
        await aws.call("sagemaker", "describe_endpoint", REGION, EndpointName="nope")
    regions = ["us-east-1", "us-east-2", "us-west-2"]
    asked = [
        aws.items(
            "service-quotas", "list_service_quotas", "Quotas", region, ServiceCode="sagemaker"
        )
        for region in regions
    ]
    # They are asked for one after the other, whoever asks: AWS refuses two at once.
    assert all(len(found) > 100 for found in await asyncio.gather(*asked))
    running.control("POST", "/faults", {"name": "aws-throttled"})
    assert await aws.call("sagemaker", "list_models", REGION) == {"Models": []}
    running.control("POST", "/faults", {"name": "aws-cut", "times": -1, "operation": "ListModels"})
    with pytest.raises(UnavailableError):
        await aws.call("sagemaker", "list_models", REGION, within_s=2)


async def test_a_region_that_is_not_enabled_is_told_from_a_dead_login(made: Make) -> None:
    aws = made(credentials=profile(LIVE))
    with pytest.raises(ApiDisabledError) as caught:
        await aws.call("sagemaker", "list_models", "af-south-1")
    assert "enable-region --region-name af-south-1" in caught.value.next_action
    await aws.call("sagemaker", "list_models", REGION)


async def test_what_a_call_has_no_time_for_is_not_begun(made: Make, running: Rehearsal) -> None:
    aws = made(credentials=profile(LIVE))
    await aws.identity()
    running.control("DELETE", "/requests")

    async def late() -> None:
        begin_call(0.0)
        with pytest.raises(UnavailableError, match="it was not started"):
            await aws.call("sagemaker", "list_models", REGION)
        with pytest.raises(UnavailableError, match="No time was left for aws sagemaker"):
            await aws.cli(["sagemaker", "list-models"], REGION)

    await asyncio.create_task(late())
    assert running.control("GET", "/requests")["requests"] == []


@pytest.mark.skipif(shutil.which("aws") is None, reason="the aws CLI is not installed")
async def test_a_change_whose_answer_is_lost_may_have_happened(
    made: Make, running: Rehearsal
) -> None:
    aws = made(credentials=profile(LIVE))
    running.control(
        "POST", "/faults", {"kind": "request", "action": "lose-answer", "operation": "CreateRole"}
    )
    trust = json.dumps({"Version": "2012-10-17", "Statement": []})
    command = ["iam", "create-role", "--role-name=r", f"--assume-role-policy-document={trust}"]
    with pytest.raises(OutcomeUnknownError):
        await aws.cli(command, REGION)
    assert (await aws.call("iam", "get_role", REGION, RoleName="r"))["Role"]["RoleName"] == "r"


async def test_keys_are_never_shown(made: Make) -> None:
    keys: Mapping[str, object] = {"keys": await made(credentials=profile(LIVE)).keys()}
    assert SECRET not in repr(keys)
