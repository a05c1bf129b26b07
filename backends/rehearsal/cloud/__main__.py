"""`python -m backends.rehearsal.cloud --state-dir DIR`: run the rehearsal cloud until SIGTERM.

With `--env` it only prints what brings a shell into a cloud that runs already.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from backends.rehearsal.cloud import launcher


def main() -> int:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(
        prog="python -m backends.rehearsal.cloud",
        description="Google's and AWS's APIs on loopback: a cloud to rehearse in.",
    )
    parser.add_argument("--state-dir", type=Path, required=True, help="where everything is kept")
    parser.add_argument("--port", type=int, default=0, help="on 127.0.0.1; 0: any free one")
    parser.add_argument(
        "--speed",
        type=float,
        default=launcher.DEFAULT_SPEED,
        help="the clouds' times take this many times less (default %(default)g)",
    )
    parser.add_argument(
        "--idle-s", type=float, default=None, help="seconds until an idle instance is stopped"
    )
    parser.add_argument(
        "--empty", action="store_true", help="a new project: nothing enabled, nothing staged"
    )
    parser.add_argument(
        "--owner-pid", type=int, default=None, help="end when this process has ended"
    )
    parser.add_argument(
        "--env",
        action="store_true",
        help='start nothing; print what a shell needs: eval "$(... --env)"',
    )
    options = parser.parse_args()
    if options.env:
        return _print_env(options.state_dir)
    if options.speed <= 0:
        parser.error("--speed must be above 0")
    from backends.rehearsal.cloud.server import ServerOptions, run

    run(
        ServerOptions(
            state_dir=options.state_dir,
            port=options.port,
            speed=options.speed,
            idle_s=options.idle_s,
            empty=options.empty,
            owner_pid=options.owner_pid,
        )
    )
    return 0


def _print_env(folder: Path) -> int:
    """Print what brings a shell into the cloud of a folder, and takes it out of others."""
    running = launcher.find(folder)
    if running is None:
        print(f"No rehearsal cloud runs in {folder}.", file=sys.stderr)
        return 1
    inside = launcher.clean(running)
    for name in sorted(os.environ.keys() - inside.keys()):
        print(f"unset {name}")
    for name, value in launcher.environment(running).items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
