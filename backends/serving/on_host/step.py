"""What a step is: it looks first, acts only where something is missing, and looks again."""

from __future__ import annotations

from .settings import Settings
from .system import Json


class Finding:
    """What a look found.

    Args:
        ok: Whether nothing has to be done.
        found: In words.
        facts: For programs.
    """

    def __init__(self, ok: bool, found: str, facts: Json | None = None) -> None:
        self.ok = ok
        self.found = found
        self.facts: Json = facts or {}


class RebootNeeded(Exception):  # noqa: N818 (not an error)
    """The machine has to restart before this step can go on."""


class Step:
    """One step of a preparation.

    Args:
        settings: What the machine is to become.
        state: What is remembered between runs and boots.
    """

    name = ""

    def __init__(self, settings: Settings, state: Json) -> None:
        self.settings = settings
        self.state = state

    def look(self) -> Finding:
        """See how it is; changes nothing.

        Raises:
            StepError: It cannot be told, or cannot be mended.
        """
        raise NotImplementedError

    def act(self) -> list[str]:
        """Make what is missing; returns what was done.

        Raises:
            StepError: It failed.
            RebootNeeded: It goes on after a restart.
        """
        raise NotImplementedError
