"""The source of a worker in one file, for machines that have none of ours: a host, a node of Ray.

A worker imports nothing but Python's own library (`certifi` for HTTPS and `botocore` for SageMaker
come in only where they are needed), from Python 3.10 on: that of the TPU images (Ubuntu 22.04), the
oldest of any host. A test reads and runs it so.
"""

from __future__ import annotations

import functools
import io
import zipfile

from backends.serving.engine.crew import PROJECT_DIR

OLDEST_PYTHON = (3, 10)

_SOURCES = ("backends/core", "backends/serving", "backends/serving/engine")
# An entry carries a time; the same sources must make the same bytes.
_EPOCH = (2020, 1, 1, 0, 0, 0)


@functools.cache
def worker_source() -> bytes:
    """Return the source code that a worker is started from, as a zip archive."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packing:
        entries = {"backends/__init__.py": b""}
        for folder in _SOURCES:
            for path in (PROJECT_DIR / folder).glob("*.py"):
                entries[path.relative_to(PROJECT_DIR).as_posix()] = path.read_bytes()
        for name, source in sorted(entries.items()):
            packing.writestr(zipfile.ZipInfo(name, _EPOCH), source, zipfile.ZIP_DEFLATED)
    return archive.getvalue()
