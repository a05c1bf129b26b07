"""Runs gcloud: no prompts, no colours, nothing enabled silently, and its answer judged first."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from backends.clouds.google_errors import judge
from backends.clouds.process import Argument, Cli, Finished, Secret, printed_json
from backends.core.errors import ConflictError

QUIET: Mapping[str, str] = {
    "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
    # Without it `run deploy --quiet` enables APIs in the project without a word (528, 2026-11-30).
    "CLOUDSDK_CORE_SHOULD_PROMPT_TO_ENABLE_API": "0",
    "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
    "CLOUDSDK_SURVEY_DISABLE_PROMPTS": "1",
    "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
}

# A refused read takes gcloud up to 37 s of its own retries; a call of ours may take 45.
READ_TIMEOUT_S = 25.0
WRITE_TIMEOUT_S = 35.0

_CLI = Cli(
    quiet=QUIET,
    # It takes about a second to begin: with less than this it would only be cut off.
    least_s=2.0,
    missing="gcloud is not installed; Google Cloud targets change things through it.",
    install="install the Google Cloud CLI (https://cloud.google.com/sdk/docs/install) and to run: "
    "gcloud auth login --update-adc",
)

# Two who change a policy at once: Google asks the later one to read it again.
_POLICY_S = 15.0
_POLICY_EVERY_S = 1.0

_DELIMITERS = "|;#~!"


class Gcloud:
    """The gcloud CLI.

    Args:
        env: Provides the variables it is run with besides this process's own.
    """

    def __init__(self, env: Callable[[], Awaitable[Mapping[str, str]]]) -> None:
        self._env = env

    async def execute(
        self,
        argv: Sequence[Argument],
        *,
        timeout_s: float = WRITE_TIMEOUT_S,
        stdin: bytes | Secret | None = None,
        ends_at: re.Pattern[bytes] | None = None,
    ) -> Finished:
        """Run a whole command (`argv[0]` is `gcloud`) and return it, not yet judged.

        Args:
            argv: The command.
            timeout_s: Bound of this command; less where the call it belongs to has less left.
            stdin: What it is given on standard input.
            ends_at: See `process.run`.

        Raises:
            CliMissingError: gcloud is not installed.
            OutcomeUnknownError: It did not end in time.
            UnavailableError: The call has no time left for it; it was not started.
        """
        return await _CLI.run(
            argv, await self._env(), timeout_s=timeout_s, stdin=stdin, ends_at=ends_at
        )

    async def run(
        self,
        argv: Sequence[Argument],
        *,
        timeout_s: float = WRITE_TIMEOUT_S,
        stdin: bytes | Secret | None = None,
    ) -> str:
        """Run a command and return its stdout.

        Raises:
            DevopsError: It was refused or failed: by its kind.
        """
        return judge(await self.execute(argv, timeout_s=timeout_s, stdin=stdin))

    async def change_policy(self, argv: Sequence[Argument]) -> str:
        """Run a command that reads, changes and writes an IAM policy, again while others do too.

        Raises:
            ConflictError: Others would not stop.
            DevopsError: It was refused or failed: by its kind.
        """
        until = time.monotonic() + _POLICY_S
        while True:
            try:
                return await self.run(argv, timeout_s=_POLICY_S)
            except ConflictError as error:
                if "concurrent policy changes" not in error.words or time.monotonic() > until:
                    raise
                await asyncio.sleep(_POLICY_EVERY_S)

    async def json(
        self,
        argv: Sequence[Argument],
        *,
        timeout_s: float = READ_TIMEOUT_S,
        stdin: bytes | Secret | None = None,
    ) -> Any:  # noqa: ANN401 (any JSON value)
        """Run a command with `--format=json` and return what it printed.

        Raises:
            DevopsError: It was refused, failed, or printed something else.
        """
        out = await self.run([*argv, "--format=json"], timeout_s=timeout_s, stdin=stdin)
        return printed_json(argv, out, nothing=None)


def joined(items: Sequence[str]) -> str:
    """A list as gcloud takes it, with a delimiter of its own where an item holds a comma."""
    if not any("," in item for item in items) and not (items and items[0].startswith("^")):
        return ",".join(items)
    text = "".join(items)
    mark = next((mark for mark in _DELIMITERS if mark not in text), "@@@")
    return f"^{mark}^{mark.join(items)}"
