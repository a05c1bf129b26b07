"""The desk at which a set-up is talked over: what is there, what is missing, may it be done."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TextIO

from backends.core.errors import DevopsError

# Runs a command that asks nobody anything, and raises what went wrong.
Runner = Callable[[Sequence[str]], Awaitable[str]]


class Desk:
    """Says what a machine or project has, and does what is agreed to.

    Every command is shown whole before it runs. It runs when `yes` is set or the person at the
    terminal says so; where there is neither, it is only named.

    Args:
        yes: Everything is agreed to.
        dry_run: Nothing is done, whatever is agreed to.
        out: Where it is said; by default stdout.
        ask: Puts a question to the person, or None where there is nobody; by default whoever sits
            at the terminal.
    """

    def __init__(
        self,
        *,
        yes: bool = False,
        dry_run: bool = False,
        out: TextIO | None = None,
        ask: Callable[[str], str] | None = None,
    ) -> None:
        self._yes = yes
        self._dry_run = dry_run
        self._out = out or sys.stdout
        self._ask = ask
        if ask is None and sys.stdin.isatty() and sys.stdout.isatty():
            self._ask = input
        self.missing_still = 0

    @property
    def somebody(self) -> bool:
        """Whether a person can be asked."""
        return self._ask is not None

    def heading(self, text: str) -> None:
        """A part begins."""
        self._out.write(f"{text}\n")

    def ok(self, text: str) -> None:
        """Something holds."""
        self._out.write(f"  ok       {text}\n")

    def missing(self, text: str) -> None:
        """Something does not hold; what mends it is said next."""
        self._out.write(f"  missing  {text}\n")

    def note(self, text: str) -> None:
        """A further line."""
        self._out.write(f"           {text}\n")

    def left(self, text: str = "") -> None:
        """What was missing stays so; with a line that says why."""
        self.missing_still += 1
        if text:
            self.note(text)

    def answer(self, question: str) -> str:
        """What a person types; empty where nobody can be asked, or in a dry run."""
        if self._ask is None or self._dry_run:
            return ""
        return self._ask(f"           {question} ").strip()

    async def change(self, argv: Sequence[str], run: Runner) -> bool:
        """Show a command, and run it if that is agreed to.

        Args:
            argv: The command.
            run: Runs it.

        Returns:
            Whether it was run and went well. Otherwise what it mends counts as missing still.
        """
        if not self._agreed(argv):
            return False
        try:
            await run(argv)
        except DevopsError as error:
            self.left(f"refused: {error.message}")
            for line in filter(None, (error.words.strip(), error.cause, error.next_action)):
                self.note(line.replace("\n", "\n           "))
            return False
        self.note("done")
        return True

    def hand_over(self, argv: Sequence[str]) -> bool:
        """Show a command that talks to a person, and let it have the terminal if that is agreed to.

        Returns:
            Whether it was run and went well.
        """
        if not self.somebody and not self._dry_run:
            self._show(argv)
            self.left("not done: this needs a person at a terminal")
            return False
        if not self._agreed(argv):
            return False
        self._out.flush()
        if subprocess.run(list(argv), check=False).returncode != 0:
            self.left("it ended without success")
            return False
        return True

    def _show(self, argv: Sequence[str]) -> None:
        self.note(f"$ {shlex.join(argv)}")

    def _agreed(self, argv: Sequence[str]) -> bool:
        self._show(argv)
        if self._dry_run:
            self.left("would run that")
            return False
        if self._yes:
            return True
        if self._ask is None:
            self.left("not done, as nobody can be asked here (--yes does it)")
            return False
        if self.answer("run that? [y/N]").lower().startswith("y"):
            return True
        self.left("not done")
        return False
