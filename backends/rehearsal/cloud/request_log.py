"""Every request the rehearsal cloud saw, as JSON lines: what golden files are made from."""

from __future__ import annotations

import copy
import json
import os
import time
from collections import deque
from pathlib import Path
from typing import Any

from backends.core.masking import MASKED
from backends.rehearsal.cloud.web import Json, Request

_KEPT = 20_000
_MAX_TEXT = 400


class RequestLog:
    """Keeps the last requests in memory and appends all of them to a file.

    Args:
        path: The file; one JSON object a line.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._file = os.fdopen(descriptor, "a", encoding="utf-8")
        self._entries: deque[Json] = deque(maxlen=_KEPT)
        self.tag = ""

    def add(
        self,
        request: Request,
        status: int | None,
        *,
        body: Any,  # noqa: ANN401 (JSON)
        began: float,
        fault: str = "",
        note: str = "",
    ) -> None:
        """Write one request down.

        Args:
            request: The request.
            status: What it was answered with; None: nothing, the connection was cut.
            body: Its JSON body as it was sent (handlers change theirs), or a piece of its text.
            began: When it came, by `time.perf_counter`.
            fault: The fault that met it.
            note: Anything else.
        """
        self._append(
            {
                "t": round(time.time(), 3),
                "method": request.method,
                "scheme": request.scheme,
                "host": request.host,
                "path": request.path,
                "query": {
                    key: values[0] if len(values) == 1 else values
                    for key, values in request.query.items()
                },
                "account": request.account,
                "user_agent": request.headers.get("user-agent", "")[:160],
                "body": body,
                "status": status,
                "ms": round((time.perf_counter() - began) * 1000, 2),
            }
            | ({"fault": fault} if fault else {})
            | ({"note": note} if note else {})
        )

    def refused(self, target: str) -> None:
        """Write down a connection that was refused because nobody plays that host."""
        self._append(
            {
                "t": round(time.time(), 3),
                "method": "CONNECT",
                "host": target,
                "path": "",
                "query": {},
                "body": None,
                "status": 403,
                "note": "refused: not part of the rehearsal",
            }
        )

    def entries(self, *, since: int = 0, tag: str = "") -> list[Json]:
        """Requests after number `since`, of one tag if given."""
        return [
            entry
            for entry in self._entries
            if entry["n"] > since and (not tag or entry.get("tag") == tag)
        ]

    def clear(self) -> None:
        """Forget what is in memory; the file stays."""
        self._entries.clear()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append(self, entry: Json) -> None:
        number = self._entries[-1]["n"] + 1 if self._entries else 1
        entry = {"n": number} | entry | ({"tag": self.tag} if self.tag else {})
        self._entries.append(entry)
        self._file.write(json.dumps(entry, ensure_ascii=False) + "\n")
        self._file.flush()


def loggable(request: Request) -> Any:  # noqa: ANN401 (JSON)
    """The body of a request as it may be written down: a copy, without secrets."""
    parsed = request.parsed()
    if parsed is not None:
        value = copy.deepcopy(parsed)
        if isinstance(value, dict) and isinstance(value.get("payload"), dict):
            value["payload"] = value["payload"] | {"data": MASKED}
        return value
    if not request.size:
        return None
    if "x-www-form-urlencoded" in request.headers.get("content-type", ""):
        # Refresh tokens and assertions.
        return MASKED
    request.body.seek(0)
    return request.body.read(_MAX_TEXT).decode("utf-8", "replace")
