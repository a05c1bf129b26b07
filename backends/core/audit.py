"""The audit log: who asked for which change, with which plan, and what came of it."""

from __future__ import annotations

import json
import os
from typing import Any

from backends.core.errors import SettingsError
from backends.core.masking import mask
from backends.core.state import StateDir, private_folder, stamp, writing

# One line is one write, so lines of several servers never mix; longer values are cut.
_VALUE_CHARS = 500


class AuditLog:
    """Append-only JSON lines in the state directory.

    Args:
        state: The state directory.
    """

    def __init__(self, state: StateDir) -> None:
        self._path = state.audit_log

    def record(
        self,
        *,
        event: str,
        call_id: str,
        tool: str,
        client: str,
        arguments: dict[str, Any],
        outcome: str,
        **more: str,
    ) -> None:
        """Append one line.

        Args:
            event: started, finished, refused, timed out, cancelled, crashed or plan.
            call_id: Ties the lines of one call together.
            tool: The tool's name.
            client: The calling client.
            arguments: The call's arguments. Tools take no secrets; one pasted all the same is
                masked here.
            outcome: What came of it, in words.
            more: Further facts, e.g. plan_hash and steps.

        Raises:
            SettingsError: The log cannot be written.
        """
        line = {
            "time": stamp(),
            "event": event,
            "call_id": call_id,
            "client": client,
            "tool": tool,
            "target": _shown(arguments.get("target")),
            "name": _shown(arguments.get("name")),
            "arguments": {
                key: _shown(value) for key, value in arguments.items() if value is not None
            },
            "outcome": _shown(outcome),
            **{key: _shown(value) for key, value in more.items()},
        }
        text = json.dumps(line, ensure_ascii=False, default=str)
        data = text.encode("utf-8", "backslashreplace") + b"\n"
        with writing(self._path):
            private_folder(self._path.parent)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(descriptor, data)
            finally:
                os.close(descriptor)

    def tail(self, max_bytes: int = 20_000) -> str:
        """The newest whole lines, at most `max_bytes` of them; empty where nothing was changed.

        Raises:
            SettingsError: The log is there and cannot be read.
        """
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - max_bytes))
                data = file.read()
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise SettingsError(
                f"{self._path} cannot be read.",
                words=error.strerror or str(error),
                next_action="Set VLLM_DEVOPS_STATE_DIR to a folder you own.",
            ) from error
        if size > max_bytes:
            data = data[data.find(b"\n") + 1 :]
        return data.decode("utf-8", "replace")


def _shown(value: object) -> object:
    if isinstance(value, str):
        text = mask(value)
        short = len(text) <= _VALUE_CHARS
        return text if short else text[:_VALUE_CHARS] + f"… ({len(value)} characters)"
    if isinstance(value, dict):
        return {mask(str(key)): _shown(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    return value
