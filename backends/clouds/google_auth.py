"""Who we are at Google: access tokens for its APIs, identity tokens for Cloud Run services.

Application-default credentials where they are alive, the CLI's own login otherwise. Tokens are
kept until shortly before they expire.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backends.clouds.gcloud import Gcloud
from backends.clouds.gcloud_config import gcloud_folder
from backends.clouds.google_errors import LOGIN
from backends.clouds.google_route import routed
from backends.core.errors import CloudError, DevopsError, UnauthenticatedError

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

QUOTA_HEADER = "x-goog-user-project"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"

# Renewed this long before the end, so that no request leaves with a token that dies on the way.
_MARGIN_S = 120.0
# gcloud renews a token that has less than five minutes left, and does not say how much it has.
_CLI_TOKEN_S = 280.0
# After application-default credentials were found dead, the CLI is asked directly for a while.
_ADC_DEAD_S = 300.0
_TOKEN_TIMEOUT_S = 20.0
_REFUSED_S = 3.0


@dataclass(frozen=True)
class _Token:
    value: str
    until: float

    @property
    def alive(self) -> bool:
        return time.time() < self.until


class GoogleLogin:
    """The login of this machine at Google, whichever of the two is alive.

    Args:
        gcloud: The CLI.
        env: Provides the variables of the cloud; none in earnest.

    Attributes:
        source: Which of the two the access token came from, in words.
        quota_project: The project that requests are counted on. A person's token belongs to no
            project (or to gcloud's own, where the APIs are off), so some APIs refuse it without.
    """

    def __init__(self, gcloud: Gcloud, env: Callable[[], Awaitable[Mapping[str, str]]]) -> None:
        self._gcloud = gcloud
        self._env = env
        self._access: _Token | None = None
        self._identity: dict[str, _Token] = {}
        self._lock = asyncio.Lock()
        self._refusal: tuple[float, UnauthenticatedError] | None = None
        self._adc_dead_until = 0.0
        self.source = ""
        self.quota_project = ""

    def project_refused(self, words: str) -> bool:
        """Whether a refusal was about counting on that project; it is not tried again then.

        A service account may use an API without the right to use the project's quota.
        """
        said = ("USER_PROJECT_DENIED", "required permission to use project")
        if self.quota_project and any(text in words for text in said):
            self.quota_project = ""
            return True
        return False

    async def access_token(self, *, refused: str | None = None) -> str:
        """A token for Google's APIs.

        Args:
            refused: A token that Google has refused although it seemed alive: not that one again.

        Raises:
            UnauthenticatedError: Nobody is logged in, or the login has expired.
        """
        async with self._lock:
            kept = self._access
            if kept is None or not kept.alive or kept.value == refused:
                if self._refusal is not None and time.monotonic() < self._refusal[0]:
                    raise self._refusal[1]
                try:
                    self._access = await self._adc_token() or await self._cli_token()
                except UnauthenticatedError as error:
                    # Many ask at once; gcloud need not be run again for each to say the same.
                    self._refusal = (time.monotonic() + _REFUSED_S, error)
                    raise
                self._refusal = None
                return self._access.value
            return kept.value

    async def identity_token(self, audience: str) -> str:
        """A token that says to a Cloud Run service who calls.

        A person's token is not bound to an audience (gcloud refuses to); a service account's is.

        Args:
            audience: The service's own URL, without tag and path.

        Raises:
            UnauthenticatedError: No such token can be had with this login.
        """
        async with self._lock:
            kept = self._identity.get(audience)
            if kept is None or not kept.alive:
                kept = self._identity[audience] = await self._new_identity(audience)
            return kept.value

    async def account(self) -> str:
        """The account of the CLI's login, for help texts; empty where it cannot be told."""
        rows = await self._gcloud.json(["gcloud", "auth", "list", "--filter=status:ACTIVE"])
        return str(rows[0].get("account", "")) if isinstance(rows, list) and rows else ""

    async def _new_identity(self, audience: str) -> _Token:
        base = ["gcloud", "auth", "print-identity-token"]
        try:
            text = await self._gcloud.run(
                [*base, f"--audiences={audience}"], timeout_s=_TOKEN_TIMEOUT_S
            )
        except DevopsError as error:
            if "Invalid account type for" not in error.words:
                raise _no_identity(error) from error
            try:
                text = await self._gcloud.run(base, timeout_s=_TOKEN_TIMEOUT_S)
            except DevopsError as second:
                raise _no_identity(second) from second
        value = text.strip()
        return _Token(value, _expiry(value) - _MARGIN_S)

    async def _cli_token(self) -> _Token:
        text = await self._gcloud.run(
            ["gcloud", "auth", "print-access-token"], timeout_s=_TOKEN_TIMEOUT_S
        )
        self.source = "the gcloud CLI's login"
        value = text.strip()
        if not value:
            raise UnauthenticatedError(
                "gcloud printed no access token.", next_action=f"Ask the person to run: {LOGIN}"
            )
        return _Token(value, time.time() + _CLI_TOKEN_S - _MARGIN_S / 2)

    async def _adc_token(self) -> _Token | None:
        """A token of application-default credentials, or None where there are none alive."""
        env = await self._env()
        path = adc_file(env)
        if path is None or time.monotonic() < self._adc_dead_until:
            return None
        try:
            token = await asyncio.to_thread(_refreshed, path, env)
        except DevopsError:
            self._adc_dead_until = time.monotonic() + _ADC_DEAD_S
            return None
        self.source = f"application-default credentials ({path})"
        return token


def adc_file(env: Mapping[str, str]) -> Path | None:
    """The file of application-default credentials, if there is one.

    Args:
        env: The cloud's variables. Where there are any, this is a rehearsal, in which a person's
            own credentials must not be read.
    """
    if env:
        named = env.get("GOOGLE_APPLICATION_CREDENTIALS")
        return Path(named) if named else None
    named = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if named:
        return Path(named)
    path = gcloud_folder() / "application_default_credentials.json"
    return path if path.is_file() else None


def _refreshed(path: Path, env: Mapping[str, str]) -> _Token:
    """A new token of the credentials in a file. Blocks.

    Raises:
        UnauthenticatedError: They are dead.
        CloudError: The file cannot be used.
    """
    import requests
    from google.auth import exceptions
    from google.auth.transport.requests import Request

    try:
        credentials = _loaded(json.loads(path.read_text(encoding="utf-8")))
        with requests.Session() as session:
            credentials.refresh(Request(routed(session, env)))
    except exceptions.RefreshError as error:
        raise UnauthenticatedError(f"{path} is no longer valid.", words=str(error)) from error
    except (exceptions.GoogleAuthError, OSError, ValueError) as error:
        raise CloudError(f"{path} cannot be used.", words=str(error)) from error
    expiry = credentials.expiry
    left_s = (expiry - _utcnow(expiry)).total_seconds() if expiry is not None else _CLI_TOKEN_S
    return _Token(str(credentials.token), time.time() + left_s - _MARGIN_S)


def _loaded(info: Mapping[str, Any]) -> Any:  # noqa: ANN401 (one of google-auth's kinds)
    """Credentials of the two kinds that a machine of ours has; others are left to gcloud.

    Raises:
        ValueError: Another kind, or a damaged file.
    """
    from google.oauth2 import credentials, service_account

    kind = info.get("type")
    if kind == "authorized_user":
        return credentials.Credentials.from_authorized_user_info(info, scopes=[SCOPE])  # type: ignore[no-untyped-call]
    if kind == "service_account":
        return service_account.Credentials.from_service_account_info(  # type: ignore[no-untyped-call]
            info, scopes=[SCOPE]
        )
    raise ValueError(f"credentials of type {kind!r} are used through gcloud only")


def _utcnow(like: Any) -> Any:  # noqa: ANN401 (google-auth keeps naive times, in UTC)
    from datetime import UTC, datetime

    now = datetime.now(UTC)
    return now if like.tzinfo is not None else now.replace(tzinfo=None)


def bridge(login: GoogleLogin, loop: asyncio.AbstractEventLoop, token: str) -> Credentials:
    """Credentials for Google's client libraries, which run in threads beside `loop`.

    They carry `token`; when the other side refuses it in the middle, it is renewed once.
    """
    from google.auth import exceptions
    from google.auth.credentials import Credentials as Base

    class Bridge(Base):  # type: ignore[misc, no-any-unimported, unused-ignore]
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.token = token
            self._renewed = False

        def apply(self, headers: dict[str, str], token: str | None = None) -> None:
            super().apply(headers, token)  # type: ignore[no-untyped-call]
            if login.quota_project:
                headers[QUOTA_HEADER] = login.quota_project

        def refresh(self, request: object) -> None:
            del request
            if self._renewed:
                raise exceptions.RefreshError("the renewed token was refused too")  # type: ignore[no-untyped-call]
            self._renewed = True
            renewing = asyncio.run_coroutine_threadsafe(login.access_token(refused=token), loop)
            self.token = renewing.result(_TOKEN_TIMEOUT_S)

    return Bridge()


def _no_identity(error: DevopsError) -> DevopsError:
    if isinstance(error, UnauthenticatedError):
        return UnauthenticatedError(
            "No identity token can be had with this login, and a private Cloud Run service "
            "answers nobody without one.",
            words=error.words,
            cause=error.cause,
            next_action=f"Ask the person to run: {LOGIN}",
        )
    return error


def _expiry(jwt: str) -> float:
    """When a JSON web token ends, in Unix seconds; five minutes from now where it does not say."""
    try:
        part = jwt.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        return float(claims["exp"])
    except (IndexError, ValueError, KeyError, TypeError):
        return time.time() + 300
