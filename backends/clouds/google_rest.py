"""Google's REST APIs over one HTTP client: for reads that no client library of ours covers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from backends.clouds.google_auth import QUOTA_HEADER, GoogleLogin
from backends.clouds.google_errors import http_error
from backends.clouds.google_route import ca_file_of, proxy_of
from backends.core.errors import CloudError, UnavailableError
from backends.core.owned import ended

if TYPE_CHECKING:
    import ssl

    import httpx

TIMEOUT_S = 15.0
_MAX_PAGES = 50


class GoogleRest:
    """Asks Google's APIs as the login of this machine.

    Args:
        login: Who we are.
        env: Provides the variables of the cloud; none in earnest.
    """

    def __init__(self, login: GoogleLogin, env: Callable[[], Awaitable[Mapping[str, str]]]) -> None:
        self._login = login
        self._env = env
        self._http: httpx.AsyncClient | None = None
        self._asking: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """End what is asked at this moment, and close the connections."""
        await ended(self._asking)
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    async def get(
        self,
        url: str,
        what: str,
        params: Mapping[str, str] | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> dict[str, Any]:
        """The JSON object behind a URL.

        Args:
            url: Whole, with the real host name.
            what: What is asked, for error messages: "the quota X of project P".
            params: The query.
            timeout_s: Bound of the call.

        Raises:
            DevopsError: Refused, by its kind; UnavailableError where nobody answered.
        """
        return await self._call("GET", url, what, params=params, timeout_s=timeout_s)

    async def post(
        self, url: str, what: str, body: Mapping[str, Any], *, timeout_s: float = TIMEOUT_S
    ) -> dict[str, Any]:
        """The JSON object answered to a body; for reads that are POSTs."""
        return await self._call("POST", url, what, body=body, timeout_s=timeout_s)

    async def pages(
        self, url: str, what: str, field: str, params: Mapping[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """All items of a list, page by page."""
        found: list[dict[str, Any]] = []
        query = dict(params or {})
        for _ in range(_MAX_PAGES):
            answer = await self.get(url, what, query)
            found += answer.get(field) or []
            token = answer.get("nextPageToken")
            if not token:
                return found
            query["pageToken"] = str(token)
        raise CloudError(f"{what}: more than {_MAX_PAGES} pages.")

    async def _call(
        self,
        method: str,
        url: str,
        what: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        timeout_s: float,
    ) -> dict[str, Any]:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("asked outside of a task")
        self._asking.add(task)
        try:
            return await self._answer(method, url, what, params, body, timeout_s)
        finally:
            self._asking.discard(task)

    async def _answer(
        self,
        method: str,
        url: str,
        what: str,
        params: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
        timeout_s: float,
    ) -> dict[str, Any]:
        import httpx

        http = await self._client()
        token = await self._login.access_token()
        for attempt in range(2):
            try:
                async with asyncio.timeout(timeout_s):
                    answer = await http.request(
                        method,
                        url,
                        params=params,
                        json=body,
                        headers=self._headers(token),
                    )
            except TimeoutError:
                raise UnavailableError(
                    f"{what}: no answer within {timeout_s:.0f} s.", next_action="Try again."
                ) from None
            except httpx.RequestError as error:
                raise UnavailableError(
                    f"{what}: Google could not be reached.",
                    words=f"{type(error).__name__}: {error}",
                    next_action="Check the network, proxy and certificates of this machine.",
                ) from None
            if attempt > 0:
                break
            if answer.status_code == 401:
                token = await self._login.access_token(refused=token)
            elif not (answer.status_code == 403 and self._login.project_refused(answer.text)):
                break
        if not 200 <= answer.status_code < 300:
            raise http_error(answer.status_code, answer.content, what, answer.headers)
        try:
            parsed = answer.json() if answer.content else {}
        except ValueError:
            raise CloudError(f"{what}: the answer is not JSON.", words=answer.text[:500]) from None
        if not isinstance(parsed, dict):
            raise CloudError(f"{what}: the answer is no JSON object.", words=answer.text[:500])
        return parsed

    def _headers(self, token: str) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {token}"}
        if self._login.quota_project:
            headers[QUOTA_HEADER] = self._login.quota_project
        return headers

    async def _client(self) -> httpx.AsyncClient:
        if self._http is None:
            import httpx

            env = await self._env()
            self._http = httpx.AsyncClient(
                verify=await asyncio.to_thread(_trust, ca_file_of(env)),
                proxy=proxy_of(env),
                # In a rehearsal nothing of the machine's own network settings may count.
                trust_env=not env,
                timeout=None,  # noqa: S113 - each call is bounded as a whole
                # Nothing is left open between calls: a server may live for days.
                limits=httpx.Limits(max_keepalive_connections=0),
                headers={"user-agent": "vllm-devops"},
            )
        return self._http


def _trust(ca_file: str | None) -> ssl.SSLContext:
    import ssl

    import certifi

    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    if ca_file or os.environ.get("REQUESTS_CA_BUNDLE"):
        context.load_verify_locations(ca_file or os.environ["REQUESTS_CA_BUNDLE"])
    return context
