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
from backends.clouds.gcloud_config import configured
from backends.core.settings import env_file, variable_of
from backends.rehearsal.terminal import Terminal
from backends.verbs.about import settings_table

_PROJECT = variable_of("google_cloud_project")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def exports() -> str:
    """`export NAME='value'` for each variable of `.env` that the environment does not set.

    And for the project that gcloud is configured for, where neither of them names one: the server
    takes that one too, and commands of the documents use the variable.
    """
    file = env_file()
    found = dotenv_values(file) if file.is_file() else {}
    found = {_PROJECT: configured("core", "project"), **{k: v for k, v in found.items() if v}}
    return "".join(
        f"export {name}={shlex.quote(value)}\n"
        for name, value in found.items()
        if value and not os.environ.get(name) and _NAME.fullmatch(name)
    )


def show(terminal: Terminal) -> int:
    """Print the settings and what is wrong with them; returns how many are wrong."""
    file = env_file()
    there = "read" if file.is_file() else "not there"
    terminal.heading(f"Settings: the environment, then {file} ({there}), then defaults")
    rows = settings_table(App.from_environment())
    for row in rows:
        terminal.say(f"{row['variable']} = {row['value']}")
        terminal.aside(row["meaning"])
    project, account = configured("core", "project"), configured("core", "account")
    if project or account:
        terminal.heading("gcloud's own configuration, where nothing above says otherwise")
        terminal.say(f"project {project or '(not set)'}, account {account or '(none logged in)'}")
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
