"""What is the same in judging every cloud's refusals: a table of rules, and a command's name."""

from __future__ import annotations

import re
from dataclasses import dataclass

from backends.core.errors import DevopsError, InvalidInputError

MAX_WORDS = 2000
"""How much of a cloud's own words an error carries, characters."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One way in which a cloud refuses.

    Args:
        error: What it is.
        pattern: Searched in what was said; named groups may be used in the texts below.
        cause: The likely reason.
        next_action: What mends it.
    """

    error: type[DevopsError]
    pattern: re.Pattern[str]
    cause: str
    next_action: str


def rule(error: type[DevopsError], pattern: str, cause: str, next_action: str) -> Rule:
    """A rule, its pattern read without regard to case and across lines."""
    return Rule(error, re.compile(pattern, re.IGNORECASE | re.DOTALL), cause, next_action)


def error_by(known: Rule, message: str, words: str, next_action: str) -> DevopsError:
    """The error of a rule.

    Args:
        known: The rule.
        message: What failed.
        words: The cloud's own.
        next_action: The rule's, filled in.
    """
    if known.error is InvalidInputError:
        error: DevopsError = InvalidInputError("request", message, next_action=next_action)
        error.words, error.cause = words, known.cause
        return error
    return known.error(message, words=words, cause=known.cause, next_action=next_action)


def command_of(argv: tuple[str, ...]) -> str:
    """The command without its flags: `gcloud run services describe`."""
    words: list[str] = []
    for item in argv:
        if item.startswith("-") or len(words) == 5 or not re.fullmatch(r"[a-z][a-z-]*", item):
            break
        words.append(item)
    return " ".join(words)
