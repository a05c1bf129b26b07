"""Plain words that every match of a pattern contains, so that a huge log is searched quickly.

A pattern's top-level alternatives are walked; the longest run of plain characters of each is its
hint. Where an alternative has none that is long enough, the pattern has no hints and is tried on
every line.
"""

from __future__ import annotations

MIN_HINT_CHARS = 4
_CLASSES = "dDwWsSbBAZ0123456789"


def hints_of(pattern: str) -> tuple[str, ...]:
    """Lower-case words, one of which every match contains; empty where that cannot be told."""
    hints: list[str] = []
    for part in _alternatives(pattern):
        runs, groups = _parts(part)
        longest = max(runs, key=len)
        if len(longest) >= MIN_HINT_CHARS:
            hints.append(longest)
            continue
        inner = next((found for group in groups if (found := hints_of(group))), ())
        if not inner:
            return ()
        hints += inner
    return tuple(hints)


def _alternatives(pattern: str) -> list[str]:
    """The pattern split at `|` outside groups and classes."""
    parts: list[str] = []
    depth, start, index, inside = 0, 0, 0, False
    while index < len(pattern):
        char = pattern[index]
        if char == "\\":
            index += 1
        elif inside:
            inside = char != "]"
        elif char == "[":
            inside = True
            if pattern[index + 1 : index + 2] in {"]", "^"}:
                index += 1
        elif char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
        elif char == "|" and depth == 0:
            parts.append(pattern[start:index])
            start = index + 1
        index += 1
    parts.append(pattern[start:])
    return parts


def _parts(part: str) -> tuple[list[str], list[str]]:
    """The runs of plain characters that are always there, and the insides of groups that are."""
    runs: list[str] = []
    groups: list[str] = []
    run = ""
    index = 0

    def end() -> None:
        nonlocal run
        runs.append(run.lower())
        run = ""

    while index < len(part):
        char = part[index]
        if char == "\\":
            index += 1
            following = part[index : index + 1]
            if following in _CLASSES:
                end()
            else:
                run += following
        elif char in "?*{":
            run = run[:-1]
            end()
            if char == "{":
                index = part.find("}", index)
        elif char in "+.^$":
            end()
        elif char == "[":
            end()
            index = _close(part, index, "[", "]")
        elif char == "(":
            end()
            start, index = index, _close(part, index, "(", ")")
            if part[index + 1 : index + 2] not in {"?", "*", "{"}:
                groups += _inside(part[start + 1 : index])
        else:
            run += char
        index += 1
    end()
    return runs, groups


def _inside(group: str) -> list[str]:
    """What stands in a group that must match; nothing for one that looks around."""
    if group.startswith("?:"):
        return [group[2:]]
    if group.startswith("?P<"):
        return [group[group.index(">") + 1 :]]
    return [] if group.startswith("?") else [group]


def _close(part: str, index: int, opening: str, closing: str) -> int:
    """Where the class or group that opens at `index` closes."""
    depth = 0
    while index < len(part):
        char = part[index]
        if char == "\\":
            index += 1
        elif char == opening and (depth == 0 or opening == "("):
            depth += 1
        elif char == closing:
            depth -= 1
            if depth == 0:
                return index
        index += 1
    return index
