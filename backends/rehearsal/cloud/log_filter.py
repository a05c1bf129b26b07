"""Cloud Logging's query language, as far as people use it for Cloud Run.

Comparisons (`= != > >= < <= : =~ !~`) on any field, groups of values, `AND`, `OR`, `NOT`, `-`,
parentheses, bare text that is searched everywhere, `log_id()` and `SEARCH()`. Whitespace is AND,
and OR binds tighter than AND, as in the original.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from backends.rehearsal.cloud.web import ApiError, Json

Test = Callable[[Json], bool]

SEVERITIES = (
    "DEFAULT",
    "DEBUG",
    "INFO",
    "NOTICE",
    "WARNING",
    "ERROR",
    "CRITICAL",
    "ALERT",
    "EMERGENCY",
)

_TOKEN = re.compile(
    r"""
    (?P<space>\s+|--[^\n]*)
  | (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
  | (?P<operator>!=|>=|<=|=~|!~|=|>|<|:)
  | (?P<paren>[()])
  | (?P<comma>,)
  | (?P<minus>-(?=[\w("]))
  | (?P<word>[^\s()"'=<>!:~,]+)
    """,
    re.VERBOSE,
)
_TIMES = {"timestamp", "receiveTimestamp"}


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    at: int

    @property
    def value(self) -> str:
        """A string without its quotes, or the word itself."""
        if self.kind == "string":
            return re.sub(r"\\(.)", r"\1", self.text[1:-1])
        return self.text


def compile_filter(text: str) -> Test:
    """A test of log entries.

    Raises:
        ApiError: 400, with what could not be parsed.
    """
    if not text.strip():
        return lambda _entry: True
    parser = _Parser(text)
    test = parser.conjunction()
    parser.end()
    return test


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._split())
        self._index = 0

    def _split(self) -> list[_Token]:
        tokens: list[_Token] = []
        at = 0
        while at < len(self._text):
            match = _TOKEN.match(self._text, at)
            if match is None:
                raise self._error(at, self._text[at])
            if match.lastgroup != "space":
                tokens.append(_Token(str(match.lastgroup), match.group(), at))
            at = match.end()
        return tokens

    def _error(self, at: int, token: str) -> ApiError:
        line = self._text.count("\n", 0, at) + 1
        column = at - (self._text.rfind("\n", 0, at) + 1) + 1
        return ApiError(
            400,
            f"Unparseable filter: syntax error at line {line}, column {column}, token '{token}'",
        )

    def _peek(self) -> _Token | None:
        return self._tokens[self._index] if self._index < len(self._tokens) else None

    def _take(self) -> _Token:
        token = self._peek()
        if token is None:
            raise self._error(len(self._text), "EOF")
        self._index += 1
        return token

    def _is(self, *texts: str) -> bool:
        token = self._peek()
        return token is not None and token.kind != "string" and token.text in texts

    def end(self) -> None:
        token = self._peek()
        if token is not None:
            raise self._error(token.at, token.text)

    def conjunction(self) -> Test:
        tests = [self._disjunction()]
        while self._peek() is not None and not self._is(")"):
            if self._is("AND"):
                self._take()
            tests.append(self._disjunction())
        return lambda entry: all(test(entry) for test in tests)

    def _disjunction(self) -> Test:
        tests = [self._factor()]
        while self._is("OR"):
            self._take()
            tests.append(self._factor())
        return lambda entry: any(test(entry) for test in tests)

    def _factor(self) -> Test:
        token = self._take()
        if token.kind == "minus" or (token.kind == "word" and token.text == "NOT"):
            return _not(self._factor())
        if token.kind == "paren" and token.text == "(":
            inner = self.conjunction()
            if not self._is(")"):
                self._fail()
            self._take()
            return inner
        if token.kind not in {"word", "string"} or token.text in {"AND", "OR"}:
            raise self._error(token.at, token.text)
        if token.kind == "word" and token.text in {"log_id", "SEARCH"} and self._is("("):
            return self._function(token.text)
        following = self._peek()
        # A quoted part may stand inside a path: labels."k8s-pod/app".
        name = token.value
        while following is not None and name.endswith(".") and following.kind == "string":
            name += self._take().value
            following = self._peek()
        if following is None or following.kind != "operator":
            return _search(token.value)
        return self._comparison(name, self._take())

    def _fail(self) -> None:
        token = self._peek()
        if token is None:
            raise self._error(len(self._text), "EOF")
        raise self._error(token.at, token.text)

    def _function(self, name: str) -> Test:
        self._take()
        values = [self._take().value]
        while self._is(","):
            self._take()
            values.append(self._take().value)
        if not self._is(")"):
            self._fail()
        self._take()
        if name == "SEARCH":
            return _search(values[-1])
        return lambda entry: str(entry.get("logName", "")).endswith(
            "/logs/" + values[0].replace("/", "%2F")
        )

    def _comparison(self, path: str, operator: _Token) -> Test:
        token = self._take()
        if token.kind == "paren" and token.text == "(":
            return self._values(path, operator)
        if token.kind == "minus":
            token = self._take()
            token = _Token(token.kind, "-" + token.text, token.at)
        if token.kind not in {"word", "string"}:
            raise self._error(token.at, token.text)
        value = token.value
        # An unquoted time is split at its colons.
        while token.kind == "word" and path in _TIMES and self._is(":"):
            self._take()
            value += ":" + self._take().value
        return _compare(path, operator.text, value)

    def _values(self, path: str, operator: _Token) -> Test:
        """`field=("a" OR "b")`."""
        tests: list[Test] = []
        every = False
        while True:
            token = self._take()
            negated = token.kind == "minus" or token.text == "NOT"
            if negated:
                token = self._take()
            if token.kind not in {"word", "string"}:
                raise self._error(token.at, token.text)
            test = _compare(path, operator.text, token.value)
            tests.append(_not(test) if negated else test)
            if self._is(")"):
                self._take()
                break
            if self._is("AND"):
                every = True
                self._take()
            elif self._is("OR"):
                self._take()
            else:
                self._fail()
        if every:
            return lambda entry: all(test(entry) for test in tests)
        return lambda entry: any(test(entry) for test in tests)


def _not(test: Test) -> Test:
    return lambda entry: not test(entry)


def _search(text: str) -> Test:
    wanted = text.lower()
    return lambda entry: wanted in json.dumps(entry, ensure_ascii=False).lower()


def lookup(entry: Json, path: str) -> Any:  # noqa: ANN401 (JSON)
    """The value at a dotted path; keys with dots or slashes in them are found too."""
    return _lookup(entry, path)


def _lookup(value: Any, path: str) -> Any:  # noqa: ANN401 (JSON)
    if not path:
        return value
    if isinstance(value, list):
        return next((found for item in value if (found := _lookup(item, path)) is not None), None)
    if not isinstance(value, dict):
        return None
    if path in value:
        return value[path]
    parts = path.split(".")
    for end in range(1, len(parts)):
        key = ".".join(parts[:end])
        if key in value:
            found = _lookup(value[key], ".".join(parts[end:]))
            if found is not None:
                return found
    return None


def _compare(path: str, operator: str, value: str) -> Test:
    if path == "severity":
        return _severity(operator, value)
    if path in _TIMES:
        return _time(path, operator, value)
    if operator in {"!=", "!~"}:
        return _not(_compare(path, {"!=": "=", "!~": "=~"}[operator], value))
    made = {"=~": _pattern, ":": _has, "=": _equal}.get(operator)
    if made is not None:
        return made(path, value)
    return lambda entry: _ordered(lookup(entry, path), operator, value)


def _pattern(path: str, value: str) -> Test:
    try:
        pattern = re.compile(value)
    except re.error as error:
        raise ApiError(400, f"Unparseable filter: invalid regular expression: {error}") from error
    return lambda entry: bool(pattern.search(_text(lookup(entry, path))))


def _has(path: str, value: str) -> Test:
    if value == "*":
        return lambda entry: lookup(entry, path) is not None
    wanted = value.lower()
    return lambda entry: wanted in _text(lookup(entry, path)).lower()


def _equal(path: str, value: str) -> Test:
    # Case does not count in Cloud Logging's comparisons.
    wanted = value.lower()
    return lambda entry: (
        _text(lookup(entry, path)).lower() == wanted
        and bool(wanted or lookup(entry, path) is not None)
    )


def _text(found: Any) -> str:  # noqa: ANN401 (JSON)
    if isinstance(found, str):
        return found
    if found is None:
        return ""
    return json.dumps(found, ensure_ascii=False)


def _order(operator: str, left: float, right: float) -> bool:
    return {
        "=": left == right,
        "!=": left != right,
        ">": left > right,
        ">=": left >= right,
        "<": left < right,
        "<=": left <= right,
    }[operator]


def _ordered(found: Any, operator: str, value: str) -> bool:  # noqa: ANN401 (JSON)
    try:
        return _order(operator, float(_text(found)), float(value))
    except ValueError:
        return False


def _severity(operator: str, value: str) -> Test:
    wanted = value.upper()
    if wanted not in SEVERITIES:
        raise ApiError(400, f"Unparseable filter: invalid value for enum severity: {value}")
    level = SEVERITIES.index(wanted)
    if operator == ":":
        operator = "="
    return lambda entry: _order(operator, SEVERITIES.index(entry.get("severity", "DEFAULT")), level)


def parse_time(text: str) -> float:
    """Seconds since the epoch of an RFC 3339 time or date.

    Raises:
        ValueError: It is none.
    """
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _time(path: str, operator: str, value: str) -> Test:
    try:
        wanted = parse_time(value)
    except ValueError as error:
        raise ApiError(
            400, f"Unparseable filter: timestamps must be in RFC 3339 format, got '{value}'"
        ) from error
    if operator not in {"=", "!=", ">", ">=", "<", "<="}:
        raise ApiError(400, f"Unparseable filter: {path} cannot be compared with {operator}")
    return lambda entry: _order(operator, parse_time(entry[path]), wanted)
