"""How the aws CLI is run: with what variables, how often, and what its silence means."""

from __future__ import annotations

import stat
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from backends.clouds.aws_cli import AwsCli
from backends.clouds.process import Secret
from backends.core.errors import (
    CliMissingError,
    CloudError,
    InvalidInputError,
    OutcomeUnknownError,
    RateLimitedError,
    UnauthenticatedError,
)

pytestmark = pytest.mark.anyio

THROTTLED = (
    "An error occurred (ThrottlingException) when calling the CreateModel operation: Rate exceeded"
)


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which a stub `aws` is found; `body` in it is the stub's Python."""
    program = tmp_path / "bin" / "aws"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable} -S\nimport os, pathlib, sys\n"
        f"home = pathlib.Path({str(tmp_path)!r})\n"
        "calls = home / 'calls'\n"
        "number = len(calls.read_text()) if calls.exists() else 0\n"
        "calls.write_text('x' * (number + 1))\n"
        "exec((home / 'body').read_text())\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(program.parent))
    return tmp_path


def cli(**env: str) -> AwsCli:
    async def variables() -> Mapping[str, str]:
        return env

    async def mend() -> str:
        return "aws sso login --profile work"

    async def bare() -> Mapping[str, str]:
        return {}

    return AwsCli(variables, mend, bare)


def calls(folder: Path) -> int:
    return len((folder / "calls").read_text())


def test_a_command_is_made_for_a_region_with_json_as_its_answer() -> None:
    assert AwsCli.argv(["sagemaker", "list-models"], "us-east-2") == (
        "aws",
        "sagemaker",
        "list-models",
        "--region",
        "us-east-2",
        "--output",
        "json",
    )


async def test_it_runs_without_pager_prompts_and_dead_keys(
    aws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ASIADEAD")
    (aws / "body").write_text(
        "import json; print(json.dumps({key: os.environ.get(key) for key in ('AWS_PAGER',"
        " 'AWS_MAX_ATTEMPTS', 'AWS_RETRY_MODE', 'AWS_CLI_AUTO_PROMPT', 'AWS_ACCESS_KEY_ID')}))"
    )
    assert await cli(AWS_ACCESS_KEY_ID="").json(["aws", "sts", "get-caller-identity"]) == {
        "AWS_PAGER": "",
        "AWS_MAX_ATTEMPTS": "1",
        "AWS_RETRY_MODE": "adaptive",
        "AWS_CLI_AUTO_PROMPT": "off",
        "AWS_ACCESS_KEY_ID": "",
    }


async def test_a_delete_that_prints_nothing_has_worked(aws: Path) -> None:
    (aws / "body").write_text("")
    assert await cli().json(["aws", "sagemaker", "delete-model"]) == {}


async def test_an_answer_that_is_no_json_is_an_error(aws: Path) -> None:
    (aws / "body").write_text("print('Creating...')")
    with pytest.raises(CloudError) as caught:
        await cli().json(["aws", "sagemaker", "create-model"])
    assert "Creating..." in caught.value.words


async def test_what_was_throttled_is_sent_again(aws: Path) -> None:
    (aws / "body").write_text(
        f"number < 2 and (sys.stderr.write({THROTTLED!r}), sys.exit(255)); print('[1]')"
    )
    assert await cli().json(["aws", "sagemaker", "create-model"]) == [1]
    assert calls(aws) == 3


async def test_throttling_that_does_not_end_is_told_within_the_time(aws: Path) -> None:
    (aws / "body").write_text(f"sys.stderr.write({THROTTLED!r}); sys.exit(254)")
    with pytest.raises(RateLimitedError):
        await cli().json(["aws", "sagemaker", "create-model"], timeout_s=3.5)
    assert 1 <= calls(aws) < 4


async def test_a_lost_answer_is_not_asked_for_again(aws: Path) -> None:
    (aws / "body").write_text(
        "sys.stderr.write('Connection was closed before we received a valid response from "
        'endpoint URL: "x".\'); sys.exit(255)'
    )
    with pytest.raises(OutcomeUnknownError) as caught:
        await cli().run(["aws", "sagemaker", "create-endpoint"])
    assert "list_deployments" in caught.value.next_action
    assert calls(aws) == 1


async def test_what_does_not_end_in_time_is_ended_and_may_have_happened(aws: Path) -> None:
    (aws / "body").write_text("import time; time.sleep(60)")
    with pytest.raises(OutcomeUnknownError) as caught:
        await cli().run(["aws", "sagemaker", "create-endpoint"], timeout_s=1)
    assert "did not finish within 1 s" in caught.value.message


async def test_an_expired_login_names_the_command_of_its_profile(aws: Path) -> None:
    (aws / "body").write_text("sys.stderr.write('Your session has expired.'); sys.exit(255)")
    with pytest.raises(UnauthenticatedError) as caught:
        await cli().run(["aws", "sagemaker", "list-models"])
    assert caught.value.next_action == "Ask the person to run: aws sso login --profile work"


async def test_a_secret_goes_in_by_standard_input_and_comes_out_masked(aws: Path) -> None:
    (aws / "body").write_text("print(sys.stdin.read())")
    argv = ["aws", "sagemaker", "create-model", "--cli-input-json", "file:///dev/stdin"]
    assert "hf_abc" not in await cli().run(argv, stdin=Secret("hf_abc"))


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("aws-cli/1.45.11 Python/3.11.7 Linux/6 botocore/1.43.11", (1, 45, 11)),
        ("aws-cli/2.38.5 Python/3.13 exe/x86_64", (2, 38, 5)),
        ("something new", (0,)),
    ],
)
async def test_any_version_is_accepted(aws: Path, said: str, version: tuple[int, ...]) -> None:
    (aws / "body").write_text(f"print({said!r})")
    assert await cli().version() == version


@pytest.mark.parametrize("words", ["login", "sso login", "configure sso"])
async def test_what_waits_for_a_browser_is_never_run(aws: Path, words: str) -> None:
    with pytest.raises(InvalidInputError):
        await cli().run(["aws", *words.split()])
    assert not (aws / "calls").exists()


async def test_without_the_cli_the_way_to_get_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CliMissingError) as caught:
        await cli().run(["aws", "sts", "get-caller-identity"])
    assert "docs.aws.amazon.com/cli" in caught.value.next_action
