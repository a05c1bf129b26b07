"""AWS as a target sees it: reads by AWS's own client library, changes by the aws CLI, one login.

```
aws = Aws(services)
await aws.call("sagemaker", "describe_endpoint", "us-east-2", EndpointName="gemma")   # a read
await aws.items("sagemaker", "list_endpoints", "Endpoints", "us-east-2")             # all pages
argv = aws.argv(["sagemaker", "delete-model", "--model-name", "gemma"], "us-east-2")  # for a plan
await aws.run(argv)                                                                   # the deed
await aws.cli(["sagemaker", "delete-model", "--model-name", "gemma"], "us-east-2")    # both at once
(await aws.identity()).account                                                        # 123456789012
await aws.keys()                                   # for whoever signs requests itself (load engine)
async for event in aws.events("sagemaker-runtime", "invoke_endpoint_with_response_stream", "Body",
                              "us-east-2", EndpointName="gemma", Body=b"{...}"): ...
```

In a rehearsal everything, the CLI included, goes to the rehearsal (`AWS_ENDPOINT_URL`); AWS's real
host names lead there too, through its door (`HTTPS_PROXY`, its own certificate authority), for
whoever makes an address by itself. `env()` has the variables. The region is the signature's.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from backends.clouds.aws_cli import WRITE_TIMEOUT_S, AwsCli
from backends.clouds.aws_clients import CALL_S, translated
from backends.clouds.aws_login import AwsIdentity, AwsKeys, AwsLogin, region_of
from backends.clouds.process import Argument, Secret
from backends.clouds.route import InSurroundings
from backends.core.errors import ApiDisabledError, UnauthenticatedError

if TYPE_CHECKING:
    from backends.base import Services

T = TypeVar("T")


class Aws(InSurroundings):
    """One account at AWS, reached as the login of this machine.

    Args:
        services: Settings, and the variables of the cloud.

    Attributes:
        login: Whose credentials are used, and what mends a dead login.
    """

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._cli = AwsCli(self._cli_env, self._mend, self.env)
        self.login = AwsLogin(self._cli, self.env)
        services.owned.at_end(self.login.close)

    async def region(self) -> str | None:
        """The region that the environment names, if any; profiles are not looked into."""
        return region_of({**os.environ, **await self.env()})

    # ------------------------------------------------------------------------- who

    async def identity(self) -> AwsIdentity:
        """Account number and ARN of the login; asked once.

        Raises:
            UnauthenticatedError: No login lives; `next_action` is the command that mends it.
        """
        return await self.login.identity()

    async def keys(self) -> AwsKeys:
        """Keys that are valid now, for whoever signs requests itself.

        Raises:
            UnauthenticatedError: No login lives.
        """
        return await self.login.keys()

    # ------------------------------------------------------------------------- reads

    async def call(
        self,
        service: str,
        operation: str,
        region: str,
        *,
        within_s: float = CALL_S,
        **params: Any,  # noqa: ANN401 (as AWS has them)
    ) -> dict[str, Any]:
        """Ask a service, in a thread, and return its answer.

        Throttled and failed requests are sent again within the time; a read that dies with an
        expired login is asked once more with whatever login lives now.

        Args:
            service: E.g. `sagemaker`, `sagemaker-runtime`, `logs`, `service-quotas`.
            operation: As the client has it, e.g. `describe_endpoint`.
            region: E.g. `us-east-2`.
            within_s: Seconds to wait.
            **params: The operation's own parameters, e.g. `EndpointName="gemma"`.

        Returns:
            Its answer without `ResponseMetadata`; a body that is a stream is read, as bytes.

        Raises:
            DevopsError: Refused or not reached, by its kind.
        """

        def work(client: Any) -> dict[str, Any]:  # noqa: ANN401
            return _whole(getattr(client, operation)(**params))

        return await self.with_client(service, region, work, operation, within_s=within_s)

    async def items(
        self,
        service: str,
        operation: str,
        key: str,
        region: str,
        *,
        most: int | None = None,
        within_s: float = CALL_S,
        **params: Any,  # noqa: ANN401
    ) -> list[Any]:
        """All items of a list, page by page.

        Args:
            service: E.g. `sagemaker`.
            operation: One that AWS pages, e.g. `list_endpoints`.
            key: Where the items are, e.g. `Endpoints`.
            region: E.g. `us-east-2`.
            most: Stop after that many.
            within_s: Seconds to wait for all of it.
            **params: The operation's own parameters.

        Raises:
            DevopsError: A page was refused or not reached: there is no shorter list then.
        """

        def work(client: Any) -> list[Any]:  # noqa: ANN401
            found: list[Any] = []
            for page in client.get_paginator(operation).paginate(**params):
                found += page.get(key) or []
                if most is not None and len(found) >= most:
                    return found[:most]
            return found

        return await self.with_client(service, region, work, operation, within_s=within_s)

    async def with_client(
        self,
        service: str,
        region: str,
        work: Callable[[Any], T],
        operation: str,
        *,
        within_s: float = CALL_S,
    ) -> T:
        """Run `work` with a client of a service in a thread; for what `call` cannot say.

        Raises:
            DevopsError: Refused, by its kind.
        """
        what = f"aws {service} {operation.replace('_', '-')} in {region}"
        clients = await self.login.clients()
        try:
            return await clients.run(service, region, work, what, within_s=within_s)
        except UnauthenticatedError:
            # It lived when it was chosen. Another one may live now; if none does, that says why.
            self.login.forget()
            await self.login.identity()
            clients = await self.login.clients()
        try:
            return await clients.run(service, region, work, what, within_s=within_s)
        except UnauthenticatedError as error:
            raise ApiDisabledError(
                error.message,
                words=error.words,
                cause=f"The login lives, AWS takes it elsewhere: {region} is not enabled for this "
                "account.",
                next_action="Use another region, or ask the person to run: aws account "
                f"enable-region --region-name {region}",
            ) from error

    async def events(
        self,
        service: str,
        operation: str,
        key: str,
        region: str,
        *,
        within_s: float = CALL_S,
        **params: Any,  # noqa: ANN401
    ) -> AsyncIterator[dict[str, Any]]:
        """Events of an answer that is a stream, as they come.

        Args:
            service: E.g. `sagemaker-runtime`.
            operation: E.g. `invoke_endpoint_with_response_stream`.
            key: Where the stream is, e.g. `Body`.
            region: E.g. `us-east-2`.
            within_s: Seconds to wait for the first of it.
            **params: The operation's own parameters.

        Yields:
            E.g. `{"PayloadPart": {"Bytes": b"data: ..."}}`: a part of the container's answer, cut
            anywhere.

        Raises:
            DevopsError: Refused, or broken off with an exception in the stream.
        """

        def begin(client: Any) -> Any:  # noqa: ANN401
            return getattr(client, operation)(**params)[key]

        stream = await self.with_client(service, region, begin, operation, within_s=within_s)
        what = f"aws {service} {operation.replace('_', '-')} in {region}"
        each = iter(stream)
        try:
            while True:
                event = await asyncio.to_thread(translated, lambda: next(each, None), what)
                if event is None:
                    return
                yield event
        finally:
            stream.close()

    # ------------------------------------------------------------------------- changes

    def argv(self, args: Sequence[str], region: str) -> tuple[str, ...]:
        """The whole command for `args` in a region, as it is shown in a plan and then run."""
        return self._cli.argv(args, region)

    async def run(
        self,
        argv: Sequence[Argument],
        *,
        timeout_s: float = WRITE_TIMEOUT_S,
        stdin: bytes | Secret | None = None,
    ) -> dict[str, Any]:
        """Run a whole aws command; return what it printed as JSON, `{}` where it printed nothing.

        It is sent once; only what was throttled is sent again, so that a lost answer shows as
        OutcomeUnknownError and not as a conflict with oneself.

        Args:
            argv: The command, `argv[0]` being `aws`.
            timeout_s: Seconds until it is ended.
            stdin: What `--cli-input-json file:///dev/stdin` reads: a request that holds a secret.

        Raises:
            CliMissingError: aws is not installed.
            OutcomeUnknownError: It did not end in time or its answer was lost: look, then retry.
            DevopsError: Refused, by its kind.
        """
        return dict(await self._cli.json(argv, timeout_s=timeout_s, stdin=stdin))

    async def cli(
        self, args: Sequence[str], region: str, timeout_s: float = WRITE_TIMEOUT_S
    ) -> dict[str, Any]:
        """Run `aws ARGS --region REGION --output json`; see `run`."""
        return await self.run(self.argv(args, region), timeout_s=timeout_s)

    async def cli_version(self) -> tuple[int, ...]:
        """The CLI's version, e.g. `(1, 45, 11)`.

        Raises:
            CliMissingError: aws is not installed.
        """
        return await self._cli.version()

    # ------------------------------------------------------------------------- inside

    async def _cli_env(self) -> Mapping[str, str]:
        return {**await self.env(), **await self.login.cli_env()}

    async def _mend(self) -> str:
        return await self.login.mend()


def _whole(answer: Mapping[str, Any]) -> dict[str, Any]:
    """An answer without what HTTP said, its streams read."""
    return {
        key: value.read() if hasattr(value, "iter_chunks") else value
        for key, value in answer.items()
        if key != "ResponseMetadata"
    }
