"""Google's own client libraries, for reads: imported on first use, run in threads.

They are made to speak REST: gRPC would bring its own certificates and proxies, and the calls we
make are single reads.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from backends.clouds.google_auth import GoogleLogin, bridge
from backends.clouds.google_errors import LOGIN, http_error
from backends.clouds.google_route import routed
from backends.core.errors import (
    CloudError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)

if TYPE_CHECKING:
    from google.auth.credentials import Credentials
    from google.auth.transport.requests import AuthorizedSession

    _Made = tuple[Any, AuthorizedSession]

T = TypeVar("T")

TIMEOUT_S = 15.0


class GoogleClients:
    """Makes and runs Google's clients as the login of this machine.

    Args:
        login: Who we are.
        env: Provides the variables of the cloud; none in earnest.
    """

    def __init__(self, login: GoogleLogin, env: Callable[[], Awaitable[Mapping[str, str]]]) -> None:
        self._login = login
        self._env = env

    async def run_services(self, work: Callable[[Any], T], what: str) -> T:
        """Run `work` with a client of Cloud Run's services."""

        def made(credentials: Credentials, env: Mapping[str, str]) -> _Made:
            from google.cloud import run_v2

            client = run_v2.ServicesClient(credentials=credentials, transport="rest")
            return client, _as_the_cloud_wants(client, env)

        return await self._with(made, work, what)

    async def run_revisions(self, work: Callable[[Any], T], what: str) -> T:
        """Run `work` with a client of Cloud Run's revisions."""

        def made(credentials: Credentials, env: Mapping[str, str]) -> _Made:
            from google.cloud import run_v2

            client = run_v2.RevisionsClient(credentials=credentials, transport="rest")
            return client, _as_the_cloud_wants(client, env)

        return await self._with(made, work, what)

    async def storage(self, project: str, work: Callable[[Any], T], what: str) -> T:
        """Run `work` with a client of Cloud Storage."""

        def made(credentials: Credentials, env: Mapping[str, str]) -> _Made:
            from google.cloud.storage import Client  # type: ignore[import-untyped]

            session = _session(credentials, env)
            return Client(project=project, credentials=credentials, _http=session), session

        return await self._with(made, work, what)

    async def logging(self, project: str, work: Callable[[Any], T], what: str) -> T:
        """Run `work` with a client of Cloud Logging."""

        def made(credentials: Credentials, env: Mapping[str, str]) -> _Made:
            from google.cloud import logging

            session = _session(credentials, env)
            client: Any = logging.Client(  # type: ignore[no-untyped-call]
                project=project, credentials=credentials, _use_grpc=False, _http=session
            )
            # Each entry read makes a logger, and a logger asks a metadata server what it runs on
            # unless it is told: five seconds for nothing outside Google (3.17.0).
            resource = logging.Resource(type="global", labels={})
            client.logger = functools.partial(client.logger, resource=resource)
            return client, session

        return await self._with(made, work, what)

    async def _with(
        self,
        make: Callable[[Credentials, Mapping[str, str]], _Made],
        work: Callable[[Any], T],
        what: str,
    ) -> T:
        """Make a client and run `work` with it in a thread.

        Raises:
            DevopsError: Refused, by its kind.
        """
        token = await self._login.access_token()
        env = await self._env()
        loop = asyncio.get_running_loop()

        def inside() -> T:
            client, session = make(bridge(self._login, loop, token), env)
            with session:  # whose connections are kept alive, and nobody would close
                return work(client)

        try:
            async with asyncio.timeout(TIMEOUT_S + 10):
                try:
                    return await loop.run_in_executor(_threads(), _translated, inside, what)
                except PermissionDeniedError as error:
                    if not self._login.project_refused(error.words):
                        raise
                    return await loop.run_in_executor(_threads(), _translated, inside, what)
        except TimeoutError:
            raise UnavailableError(
                f"{what}: no answer within {TIMEOUT_S + 10:.0f} s.", next_action="Try again."
            ) from None


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """Threads of their own: work in them may wait for a token, which is fetched in another one."""
    return ThreadPoolExecutor(max_workers=16, thread_name_prefix="google")


def _translated(work: Callable[[], T], what: str) -> T:
    import requests
    from google.api_core import exceptions as api
    from google.auth import exceptions as auth

    try:
        return work()
    except api.GoogleAPICallError as error:
        response = error.response
        body = getattr(response, "content", None) or error.message or ""
        headers = {key.lower(): value for key, value in getattr(response, "headers", {}).items()}
        raise http_error(int(error.code or 0), body, what, headers) from error
    except (api.RetryError, requests.exceptions.RequestException, auth.TransportError) as error:
        raise UnavailableError(
            f"{what}: Google could not be reached.",
            words=f"{type(error).__name__}: {error}"[:1000],
            next_action="Check the network, proxy and certificates of this machine.",
        ) from error
    except auth.GoogleAuthError as error:
        raise UnauthenticatedError(
            f"{what}: Google does not accept the login of this machine.",
            words=str(error)[:500],
            cause="The login has expired or was revoked.",
            next_action=f"Ask the person to run: {LOGIN}",
        ) from error
    except (ValueError, TypeError) as error:
        raise CloudError(f"{what}: the answer cannot be read.", words=str(error)[:500]) from error


def _session(credentials: Credentials, env: Mapping[str, str]) -> AuthorizedSession:
    from google.auth.transport.requests import AuthorizedSession

    return routed(AuthorizedSession(credentials), env)  # type: ignore[no-untyped-call]


def _as_the_cloud_wants(client: Any, env: Mapping[str, str]) -> AuthorizedSession:  # noqa: ANN401
    # The generated REST transports offer no public way to set a proxy of their own.
    session: AuthorizedSession = client.transport._session
    return routed(session, env)
