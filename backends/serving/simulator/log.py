"""vLLM's log format, so that one parser reads real logs and ours."""

from __future__ import annotations

import logging
import os
import sys
from datetime import datetime
from typing import Literal

Process = Literal["APIServer", "EngineCore", "Simulator"]

_logger = logging.getLogger("vllm.simulator")


class _VllmFormatter(logging.Formatter):
    """`(EngineCore pid=12) INFO 11-30 17:24:28 [core.py:402] message`, on every line."""

    def format(self, record: logging.LogRecord) -> str:
        process = getattr(record, "vllm_process", "APIServer")
        source = getattr(record, "vllm_source", "")
        stamp = datetime.fromtimestamp(record.created).strftime("%m-%d %H:%M:%S")
        head = f"({process} pid={os.getpid()}) {record.levelname} {stamp} [{source}] "
        return "\n".join(head + line for line in record.getMessage().split("\n"))


def set_up_logging() -> None:
    """Send our lines to stdout in vLLM's format."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_VllmFormatter())
    _logger.handlers = [handler]
    _logger.propagate = False
    _logger.setLevel(logging.INFO)


def log(process: Process, source: str, message: str, level: int = logging.INFO) -> None:
    """Write one entry.

    Args:
        process: The vLLM process that would have written it.
        source: File and line in vLLM 0.32 that writes it.
        message: The text; each of its lines gets the prefix.
        level: A level of `logging`.
    """
    _logger.log(level, message, extra={"vllm_process": process, "vllm_source": source})


def raw(text: str) -> None:
    """Write lines that carry no prefix in vLLM either: progress bars and tracebacks."""
    sys.stderr.write(text.rstrip("\n") + "\n")
    sys.stderr.flush()
