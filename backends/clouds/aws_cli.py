"""Runs the aws CLI, version 1 or 2: no pager, no prompts, its answer judged first."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from backends.clouds.aws_errors import LOGIN, judge
from backends.clouds.process import Argument, Cli, Finished, Secret, printed_json
from backends.core.errors import DevopsError, InvalidInputError, RateLimitedError

QUIET: Mapping[str, str] = {
    # Version 2 sends its output through a pager otherwise, and waits for it.
    "AWS_PAGER": "",
    "AWS_CLI_AUTO_PROMPT": "off",
    "AWS_RETRY_MODE": "adaptive",
    # The CLI would send a create again when its answer was lost, and then report that the thing
    # exists already. Sent once, a lost answer is told as one; what was throttled is sent again by
    # us.
    "AWS_MAX_ATTEMPTS": "1",
    "AWS_DEFAULT_OUTPUT": "json",
}

READ_TIMEOUT_S = 25.0
WRITE_TIMEOUT_S = 35.0

_CLI = Cli(
    quiet=QUIET,
    # Begun with less, it could only be cut off, and nobody would know what it did.
    least_s=1.0,
    missing="aws is not installed; SageMaker targets change things through it.",
    install="install the AWS CLI "
    "(https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html) and to run: "
    "aws login",
)
_THROTTLED_FIRST_S = 0.5
_THROTTLED_MOST_S = 6.0
_VERSION = re.compile(r"aws-cli/(\d+)\.(\d+)(?:\.(\d+))?")


class AwsCli:
    """The aws CLI.

    Args:
        env: Provides the variables it is run with; an empty value takes a variable away.
        mend: Provides the command that mends a login that has expired.
        bare_env: Provides the variables of the cloud alone, before a login was chosen.
    """

    def __init__(
        self,
        env: Callable[[], Awaitable[Mapping[str, str]]],
        mend: Callable[[], Awaitable[str]],
        bare_env: Callable[[], Awaitable[Mapping[str, str]]],
    ) -> None:
        self._env = env
        self._mend = mend
        self._bare_env = bare_env
        self._version: tuple[int, ...] | None = None

    @staticmethod
    def argv(args: Sequence[str], region: str) -> tuple[str, ...]:
        """A whole command: what `args` say, for a region, its answer as JSON.

        Args:
            args: E.g. `["sagemaker", "delete-model", "--model-name", "m"]`; values that are objects
                as JSON text.
            region: E.g. `us-east-2`.
        """
        return ("aws", *args, "--region", region, "--output", "json")

    async def execute(
        self,
        argv: Sequence[Argument],
        *,
        timeout_s: float = WRITE_TIMEOUT_S,
        stdin: bytes | Secret | None = None,
    ) -> Finished:
        """Run a whole command (`argv[0]` is `aws`) once and return it, not yet judged.

        Args:
            argv: The command.
            timeout_s: Seconds until it is ended.
            stdin: What `--cli-input-json file:///dev/stdin` reads: the way for a request that holds
                a secret.

        Raises:
            InvalidInputError: The command would wait for a browser.
            CliMissingError: aws is not installed.
            OutcomeUnknownError: It did not end in time.
            UnavailableError: The call has no time left for it; it was not started.
        """
        _refuse_login(argv)
        return await _CLI.run(argv, await self._env(), timeout_s=timeout_s, stdin=stdin)

    async def bare(
        self, argv: Sequence[Argument], *, timeout_s: float, env: Mapping[str, str] | None = None
    ) -> Finished:
        """Run a command that needs no login, or that is to find one.

        Args:
            argv: The command.
            timeout_s: Seconds until it is ended.
            env: Further variables.

        Raises:
            CliMissingError: aws is not installed.
            OutcomeUnknownError: It did not end in time.
        """
        return await _CLI.run(argv, {**await self._bare_env(), **(env or {})}, timeout_s=timeout_s)

    async def run(
        self,
        argv: Sequence[Argument],
        *,
        timeout_s: float = WRITE_TIMEOUT_S,
        stdin: bytes | Secret | None = None,
    ) -> str:
        """Run a command and return its stdout; what is throttled is sent again while time is left.

        Args:
            argv: The command.
            timeout_s: Seconds for all of it.
            stdin: What it is given on standard input.

        Raises:
            DevopsError: It was refused or failed: by its kind.
        """
        until = time.monotonic() + timeout_s
        wait_s = _THROTTLED_FIRST_S
        while True:
            finished = await self.execute(
                argv, timeout_s=max(until - time.monotonic(), 1.0), stdin=stdin
            )
            if finished.code == 0:
                return finished.stdout
            try:
                return judge(finished)
            except RateLimitedError:
                # Throttled is refused: nothing was done, and asking again is safe. Another run
                # takes a second or two.
                if time.monotonic() + wait_s + 3.0 > until:
                    raise
            except DevopsError as error:
                if LOGIN in error.next_action:
                    error.next_action = error.next_action.replace(LOGIN, await self._mend())
                raise
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
            wait_s = min(wait_s * 2, _THROTTLED_MOST_S)

    async def json(
        self,
        argv: Sequence[Argument],
        *,
        timeout_s: float = WRITE_TIMEOUT_S,
        stdin: bytes | Secret | None = None,
    ) -> Any:  # noqa: ANN401 (any JSON value)
        """Run a command and return what it printed; `{}` where it printed nothing (deletes).

        Raises:
            DevopsError: It was refused, failed, or printed something else.
        """
        out = await self.run(argv, timeout_s=timeout_s, stdin=stdin)
        return printed_json(argv, out, nothing={})

    async def version(self) -> tuple[int, ...]:
        """The CLI's version, e.g. `(2, 38, 5)`; `(0,)` where it does not say it as expected.

        Raises:
            CliMissingError: aws is not installed.
        """
        if self._version is None:
            finished = await self.bare(["aws", "--version"], timeout_s=READ_TIMEOUT_S)
            # Early 1.x wrote it to stderr.
            found = _VERSION.search(finished.stdout + finished.stderr)
            self._version = tuple(int(part) for part in found.groups() if part) if found else (0,)
        return self._version


def _refuse_login(argv: Sequence[Argument]) -> None:
    """Refuse what waits for a person: it would hang until it is ended.

    Raises:
        InvalidInputError: It is such a command.
    """
    words = [str(item) for item in argv[1:4]]
    if words[:1] == ["login"] or words[:2] in (["sso", "login"], ["configure", "sso"]):
        raise InvalidInputError(
            "argv",
            f"aws {' '.join(words[:2])} waits for a browser, which only a person can use.",
            next_action=f"Ask the person to run: aws {' '.join(words[:2])}",
        )
