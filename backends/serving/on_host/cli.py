"""The command line; see the package's own words."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from . import clamp, load, prepare, serve
from .settings import Settings
from .system import StepError, boot_id, read_json, report

USAGE = "usage: prepare [--check|--resume] | serve VERB | clamp check|apply FILE | facts"


def main(argv: list[str]) -> int:  # noqa: PLR0911 (one for each verb)
    """Run a command; returns the exit code: 0 done, 1 failed, 2 wrong usage, 75 restarting."""
    verb, rest = (argv[0] if argv else ""), argv[1:]
    try:
        if verb == "prepare":
            return _prepare(rest)
        if verb == "serve" and rest:
            return _serve(rest[0])
        if verb == "load" and len(rest) == 2:
            return load.load(*rest)
        if verb == "clamp" and len(rest) == 2:
            return _clamp(rest[0], Path(rest[1]))
        if verb == "facts":
            report(**serve.facts())
            return 0
    except StepError as error:
        report(event="failed", **error.facts())
        return 1
    except (ValueError, KeyError) as error:
        report(event="failed", error=str(error), kind="settings")
        return 2
    sys.stderr.write(USAGE + "\n")
    return 2


def _prepare(flags: list[str]) -> int:
    if "--status" in flags:
        going_on = prepare.is_running() or prepare.is_pending()
        report(running=going_on, boot=boot_id())
        return 0
    if "--stop" in flags:
        report(stopped=prepare.stop())
        return 0
    if "--resume" in flags:
        given = read_json(prepare.FOLDER / "settings.json")
    else:
        given = json.loads(sys.stdin.read() or "{}")
    return prepare.prepare(Settings(given), check="--check" in flags)


def _serve(verb: str) -> int:
    if verb == "start":
        given = json.loads(sys.stdin.read() or "{}")
        secrets = given.pop("secrets", {})
        return serve.start(given, secrets)
    if verb == "boot":
        return serve.start({}, {})
    if verb == "supervise":
        return serve.supervise()
    if verb == "stop":
        return serve.stop()
    if verb == "status":
        report(**serve.status())
        return 0
    sys.stderr.write(USAGE + "\n")
    return 2


def _clamp(verb: str, path: Path) -> int:
    """`check` exits 0 clamped, 1 not clamped, 2 where it cannot be told."""
    try:
        if verb == "check":
            found = clamp.is_clamped(path.read_text(encoding="utf-8"))
            report(file=str(path), clamped=found)
            return 0 if found else 1
        changed = clamp.apply(path)
        report(file=str(path), clamped=True, changed=changed)
    except clamp.AnchorsError as error:
        report(file=str(path), error=str(error), kind="no_anchors")
        return 2
    return 0
