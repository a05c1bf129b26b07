"""What set_env.sh shows and exports: the settings as the server sees them, never a secret shown.

`python -m backends.rehearsal.show_env` prints a table; with `--export` it prints shell assignments
for what `.env` sets and the environment does not, for `eval`: those do hold secrets.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import sys
from collections.abc import Sequence

from dotenv import dotenv_values

from backends.app import App
from backends.core.settings import env_file
from backends.rehearsal.terminal import Terminal
from backends.verbs.about import settings_table

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def exports() -> str:
    """`export NAME='value'` for each variable of `.env` that the environment does not set."""
    file = env_file()
    if not file.is_file():
        return ""
    return "".join(
        f"export {name}={shlex.quote(value)}\n"
        for name, value in dotenv_values(file).items()
        if value and not os.environ.get(name) and _NAME.fullmatch(name)
    )


def show(terminal: Terminal) -> int:
    """Print the settings and what is wrong with them; returns how many are wrong."""
    file = env_file()
    there = "read" if file.is_file() else "not there"
    terminal.heading(f"Settings: the environment, then {file} ({there}), then defaults")
    rows = settings_table(App.from_environment())
    terminal.table(rows, {"variable": "variable", "value": "value", "meaning": "meaning"})
    wrong = [row for row in rows if "problem" in row]
    for row in wrong:
        terminal.warn(f"{row['variable']}: {row['problem']}")
    return len(wrong)


def main(arguments: Sequence[str] | None = None) -> int:
    """Show, or print for eval; returns 1 if a setting is wrong."""
    parser = argparse.ArgumentParser(prog="python -m backends.rehearsal.show_env")
    parser.add_argument("--export", action="store_true", help="print assignments for eval")
    if parser.parse_args(arguments).export:
        sys.stdout.write(exports())
        return 0
    return 1 if show(Terminal()) else 0


if __name__ == "__main__":
    # `./set_env.sh | head` closes the pipe early; that is no fault to report.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
