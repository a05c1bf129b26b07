"""Tokens: kept until they die, the living one of two logins, bound to an audience if possible."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from backends.clouds.gcloud import QUIET, Gcloud
from backends.clouds.google_auth import QUOTA_HEADER, GoogleLogin, adc_file, bridge
from backends.core.errors import UnauthenticatedError

pytestmark = pytest.mark.anyio

# Plays `gcloud auth`: logs its arguments, prints what the file beside it says.
_STUB = """#!{python}
import json, os, sys
here = os.path.dirname(os.path.abspath(__file__))
with open(here + "/calls", "a") as file:
    quiet = os.environ.get("CLOUDSDK_CORE_DISABLE_PROMPTS")
    file.write(json.dumps([sys.argv[1:], quiet]) + chr(10))
answers = json.load(open(here + "/answers.json"))
for key, (code, out, err) in answers.items():
    if key in " ".join(sys.argv):
        sys.stdout.write(out)
        sys.stderr.write(err)
        sys.exit(code)
"""


class Stub:
    """A gcloud of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program = folder / "gcloud"
        program.write_text(_STUB.replace("{python}", sys.executable), encoding="utf-8")
        program.chmod(0o755)

    def says(self, **answers: tuple[int, str, str]) -> None:
        """What it answers to a command that holds the key (with - for _)."""
        known = {key.replace("_", "-"): value for key, value in answers.items()}
        (self.folder / "answers.json").write_text(json.dumps(known), encoding="utf-8")

    def calls(self) -> list[list[str]]:
        """Arguments of its calls."""
        path = self.folder / "calls"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        assert all(json.loads(line)[1] == QUIET["CLOUDSDK_CORE_DISABLE_PROMPTS"] for line in lines)
        return [json.loads(line)[0] for line in lines]


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stub:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return Stub(folder)


async def _no_env() -> Mapping[str, str]:
    return {}


def _login() -> GoogleLogin:
    return GoogleLogin(Gcloud(_no_env), _no_env)


def _jwt(seconds: float, name: str = "") -> str:
    claims = json.dumps({"exp": time.time() + seconds, "name": name}).encode()
    return f"e30.{base64.urlsafe_b64encode(claims).rstrip(b'=').decode()}.c2ln"


async def test_an_access_token_is_fetched_once_and_again_only_when_it_was_refused(
    stub: Stub,
) -> None:
    stub.says(print_access_token=(0, "ya29.one\n", ""))
    login = _login()
    tokens = await asyncio.gather(*(login.access_token() for _ in range(5)))
    assert set(tokens) == {"ya29.one"}
    assert len(stub.calls()) == 1
    assert "CLI" in login.source
    stub.says(print_access_token=(0, "ya29.two\n", ""))
    renewed = await asyncio.gather(*(login.access_token(refused="ya29.one") for _ in range(5)))
    assert set(renewed) == {"ya29.two"}
    assert len(stub.calls()) == 2


async def test_dead_application_default_credentials_give_way_to_the_clis_login(
    stub: Stub, private_home: Path
) -> None:
    folder = private_home / ".config" / "gcloud"
    folder.mkdir(parents=True)
    path = folder / "application_default_credentials.json"
    path.write_text('{"type": "external_account"}', encoding="utf-8")
    assert adc_file({}) == path
    stub.says(print_access_token=(0, "ya29.cli\n", ""))
    assert await _login().access_token() == "ya29.cli"


def test_a_rehearsal_never_reads_a_persons_own_credentials(private_home: Path) -> None:
    folder = private_home / ".config" / "gcloud"
    folder.mkdir(parents=True)
    (folder / "application_default_credentials.json").write_text("{}", encoding="utf-8")
    assert adc_file({"CLOUDSDK_CORE_PROJECT": "played"}) is None


async def test_a_service_accounts_identity_token_is_bound_to_the_service_and_kept(
    stub: Stub,
) -> None:
    stub.says(print_identity_token=(0, _jwt(3600) + "\n", ""))
    login = _login()
    first = await login.identity_token("https://a.run.app")
    assert await login.identity_token("https://a.run.app") == first
    await login.identity_token("https://b.run.app")
    assert [call[-1] for call in stub.calls()] == [
        "--audiences=https://a.run.app",
        "--audiences=https://b.run.app",
    ]


async def test_a_persons_identity_token_has_no_audience(stub: Stub) -> None:
    refusal = "ERROR: (gcloud.auth.print-identity-token) Invalid account type for `--audiences`."
    token = _jwt(3600)
    stub.says(__audiences=(1, "", refusal), print_identity_token=(0, token, ""))
    assert await _login().identity_token("https://a.run.app") == token
    assert len(stub.calls()) == 2


async def test_an_identity_token_that_is_about_to_die_is_not_used_again(stub: Stub) -> None:
    stub.says(print_identity_token=(0, _jwt(60, "old"), ""))
    login = _login()
    await login.identity_token("https://a.run.app")
    fresh = _jwt(3600, "new")
    stub.says(print_identity_token=(0, fresh, ""))
    assert await login.identity_token("https://a.run.app") == fresh


async def test_no_login_is_one_error_with_the_command(stub: Stub) -> None:
    words = "ERROR: (gcloud.auth.print-access-token) You do not currently have an active account"
    stub.says(print_access_token=(1, "", words), print_identity_token=(1, "", words))
    with pytest.raises(UnauthenticatedError) as caught:
        await _login().access_token()
    assert "gcloud auth login --update-adc" in caught.value.next_action
    with pytest.raises(UnauthenticatedError) as caught:
        await _login().identity_token("https://a.run.app")
    assert "private Cloud Run service" in caught.value.message


async def test_requests_are_counted_on_the_project_until_google_refuses_that(stub: Stub) -> None:
    login = _login()
    login.quota_project = "my-project"
    credentials = bridge(login, asyncio.get_running_loop(), "ya29.one")
    headers: dict[str, str] = {}
    credentials.apply(headers)  # type: ignore[no-untyped-call]
    assert headers[QUOTA_HEADER] == "my-project"
    assert not login.project_refused("PERMISSION_DENIED of something else")
    assert login.project_refused("... reason: USER_PROJECT_DENIED")
    headers = {}
    credentials.apply(headers)  # type: ignore[no-untyped-call]
    assert QUOTA_HEADER not in headers
    assert stub.calls() == []
