"""A command that prints what authorises requests, run again before that has expired.

For an endpoint whose tokens live an hour, measured from a machine that has no server of ours: on
Google Cloud `gcloud auth print-identity-token` prints one. No shell is involved, and no secret
stands in the command.
"""

from __future__ import annotations

import asyncio
import shlex
import time

from backends.core.errors import InvalidInputError, UnauthenticatedError

FRESH_S = 600.0
"""Identity tokens live an hour; what a metadata server or gcloud has cached may have less left."""

TIMEOUT_S = 30.0


class TokenCommand:
    """Gives the headers of a bearer token that a command prints.

    Args:
        command: The program and its arguments, as a shell would split them.

    Raises:
        InvalidInputError: It is empty, or a quote in it is not closed.
    """

    def __init__(self, command: str) -> None:
        try:
            self._argv = shlex.split(command)
        except ValueError as error:
            raise InvalidInputError("token-command", f"cannot be read: {error}.") from None
        if not self._argv:
            raise InvalidInputError("token-command", "is empty.")
        self._headers: dict[str, str] = {}
        self._until_s = 0.0
        self._lock = asyncio.Lock()

    async def headers(self) -> dict[str, str]:
        """Return the headers that authorise a request now.

        Raises:
            UnauthenticatedError: The command failed, printed nothing, or took too long.
            CliMissingError: There is no such program.
        """
        async with self._lock:
            if time.monotonic() >= self._until_s:
                token = await self._token()
                self._headers = {"authorization": f"Bearer {token}"}
                self._until_s = time.monotonic() + FRESH_S
            return self._headers

    async def _token(self) -> str:
        from backends.clouds.process import run

        done = await run(self._argv, timeout_s=TIMEOUT_S)
        token = done.stdout.strip()
        if done.code != 0 or not token or len(token.split()) != 1:
            what = f"ended with code {done.code}" if done.code else "did not print one token"
            raise UnauthenticatedError(
                f"The command that gives the token {what}: {self._argv[0]}.",
                words=done.stderr.strip()[-500:],
                next_action="Run it by hand; it must print the token and nothing else.",
            )
        return token
