"""The program that runs on hosts: packed from `backends/serving/on_host`, put there, talked to."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from backends.clouds.hosts.host import STATE_FOLDER, Host, HostResult
from backends.core.errors import HostError

Json = dict[str, Any]

PROGRAM = f"{STATE_FOLDER}/vllm-devops.pyz"
UNPACKED = f"{STATE_FOLDER}/program"
PYTHON = "python3"
_SOURCES = Path(__file__).resolve().parents[2] / "serving" / "on_host"
_START = "import sys\nfrom on_host.cli import main\nsys.exit(main(sys.argv[1:]))\n"
# A zip's entries carry a time; the same sources must make the same bytes.
_EPOCH = (2020, 1, 1, 0, 0, 0)


@functools.cache
def packed() -> bytes:
    """The program as one file that Python runs."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        entries = {f"on_host/{path.name}": path.read_bytes() for path in _SOURCES.glob("*.py")}
        for name, data in sorted({"__main__.py": _START.encode(), **entries}.items()):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    return made.getvalue()


async def install(host: Host) -> None:
    """Put the program on a host, unless that very one is there.

    Raises:
        HostError: It cannot be written, or the host has no Python.
    """
    digest = hashlib.sha256(packed()).hexdigest()[:16]
    seen = await host.run(
        f'[ "$(cat {UNPACKED}/digest 2> /dev/null)" = {digest} ]',
        timeout_s=20,
        check=False,
        repeatable=True,
    )
    if seen.exit_code == 0:
        return
    await host.put(packed(), PROGRAM, mode=0o755)
    # Unpacked, Python compiles it only once; looking at a machine is done often.
    await host.run(
        f"set -e; rm -rf {UNPACKED}.new; {PYTHON} -m zipfile -e {PROGRAM} {UNPACKED}.new; "
        f"echo {digest} > {UNPACKED}.new/digest; rm -rf {UNPACKED}; mv {UNPACKED}.new {UNPACKED}",
        timeout_s=60,
        repeatable=True,
    )


async def call(
    host: Host,
    words: Sequence[str],
    given: Mapping[str, Any] | None = None,
    *,
    timeout_s: float,
    repeatable: bool = False,
) -> list[Json]:
    """Run the program on a host and return what it reported, whether or not it succeeded.

    Args:
        host: Where; `install` must have been there.
        words: Its arguments, e.g. `["serve", "status"]`.
        given: What it reads; may hold secrets, for it goes over standard input.
        timeout_s: Bound of the call.
        repeatable: Whether it may run twice, should the connection drop.

    Raises:
        HostError: It did not report at all.
    """
    result = await host.run(
        [PYTHON, UNPACKED, *words],
        timeout_s=timeout_s,
        stdin=None if given is None else json.dumps(given).encode(),
        check=False,
        repeatable=repeatable,
    )
    found = reports(result.stdout)
    if not found:
        raise no_report(host, words, result)
    return found


def reports(text: str) -> list[Json]:
    """The objects in what the program printed; what commands printed is left out."""
    found: list[Json] = []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                value = json.loads(line)
            except ValueError:  # a torn line: the connection or the machine ended in it
                continue
            if isinstance(value, dict):
                found.append(value)
    return found


def no_report(host: Host, words: Sequence[str], result: HostResult) -> HostError:
    """The error for a run that said nothing we understand."""
    return HostError(
        f"{host.label}: {' '.join(words)} did not report.",
        words=(result.stderr.strip() or result.stdout.strip())[-2000:],
        cause="Python 3.9 or newer is needed there."
        if result.exit_code in {126, 127} or "SyntaxError" in result.stderr
        else "",
        exit_code=result.exit_code,
    )
