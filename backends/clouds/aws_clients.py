"""boto3's clients, for reads: imported on first use, kept, run in threads."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from backends.clouds.aws_errors import botocore_error
from backends.clouds.route import ca_file_of, proxy_of
from backends.core.deadline import part_s
from backends.core.errors import DevopsError, OutcomeUnknownError, UnavailableError

T = TypeVar("T")

CALL_S = 25.0
"""Seconds for one read with its retries; a call of ours may take 45."""

CONNECT_S = 5.0
READ_S = 15.0
_ATTEMPTS = 4
_THREADS = 16
_LEAST_S = 0.5

# These refuse a caller that asks twice at once (TooManyRequestsException on ListServiceQuotas).
_ONE_AT_A_TIME = frozenset({"service-quotas"})


class AwsClients:
    """Makes and runs AWS's clients.

    Args:
        env: The variables of the cloud; none in earnest.
        session: botocore's session, which has the credentials.
    """

    def __init__(self, env: Mapping[str, str], session: Any) -> None:  # noqa: ANN401
        self._env = env
        self._login = session
        self._session: Any = None
        self._made: dict[tuple[str, str], Any] = {}
        self._making = threading.Lock()
        self._turns = {service: asyncio.Lock() for service in _ONE_AT_A_TIME}

    async def run(
        self, service: str, region: str, work: Callable[[Any], T], what: str, *, within_s: float
    ) -> T:
        """Run `work` with a client of a service in a thread.

        Args:
            service: E.g. `sagemaker`.
            region: E.g. `us-east-2`.
            work: Takes the client; blocks.
            what: What is asked, for messages.
            within_s: Seconds to wait for it.

        Raises:
            DevopsError: Refused, by its kind.
        """
        turn = self._turns.get(service)
        if turn is None:
            return await self._in_a_thread(service, region, work, what, within_s)
        async with turn:
            # What is left after the wait for the turn.
            return await self._in_a_thread(service, region, work, what, within_s)

    def client(self, service: str, region: str) -> Any:  # noqa: ANN401 (a generated class)
        """The client of a service in a region, made on first use. Blocks for as much as 0.3 s."""
        with self._making:
            made = self._made.get((service, region))
            if made is None:
                made = self._made[service, region] = self._make(service, region)
            return made

    async def close(self) -> None:
        """Close the connections; a client that is asked again connects again."""
        with self._making:
            made = list(self._made.values())
        for client in made:
            client.close()

    # ------------------------------------------------------------------------- inside

    async def _in_a_thread(
        self, service: str, region: str, work: Callable[[Any], T], what: str, within_s: float
    ) -> T:
        loop = asyncio.get_running_loop()
        bound_s = part_s(what, within_s, least_s=_LEAST_S)
        try:
            async with asyncio.timeout(bound_s):
                return await loop.run_in_executor(
                    _threads(), lambda: translated(lambda: work(self.client(service, region)), what)
                )
        except TimeoutError:
            raise UnavailableError(
                f"{what}: no answer within {bound_s:.0f} s.", next_action="Try again."
            ) from None

    def _make(self, service: str, region: str) -> Any:  # noqa: ANN401
        import boto3  # type: ignore[import-untyped]
        from botocore.config import Config  # type: ignore[import-untyped]

        if self._session is None:
            self._session = boto3.Session(botocore_session=self._login)
        # A rehearsal has one address for all of AWS; otherwise botocore knows where to go.
        endpoint = self._env.get("AWS_ENDPOINT_URL")
        proxy = None if endpoint else proxy_of(self._env)
        config = Config(
            retries={"mode": "adaptive", "total_max_attempts": _ATTEMPTS},
            connect_timeout=CONNECT_S,
            read_timeout=READ_S,
            max_pool_connections=_THREADS,
            # Without one botocore looks into the environment by itself.
            proxies={"https": proxy, "http": proxy} if proxy else None,
        )
        return self._session.client(
            service,
            region_name=region,
            config=config,
            verify=ca_file_of(self._env),
            endpoint_url=endpoint,
        )


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="aws")


def translated(work: Callable[[], T], what: str) -> T:
    """Run `work`, botocore's errors as ours.

    Raises:
        DevopsError: By its kind. A lost answer of a read is an unavailable service.
    """
    from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]

    try:
        return work()
    except (BotoCoreError, ClientError) as error:
        made: DevopsError = botocore_error(error, what)
        if isinstance(made, OutcomeUnknownError):
            made = UnavailableError(made.message, words=made.words, next_action="Try again.")
        raise made from error
