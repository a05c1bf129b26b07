"""`python -m backends.rehearsal.cloud --state-dir DIR`: run the rehearsal cloud until SIGTERM."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from backends.rehearsal.cloud import launcher


def main() -> int:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(
        prog="python -m backends.rehearsal.cloud",
        description="Google's APIs on loopback: a cloud to rehearse in.",
    )
    parser.add_argument("--state-dir", type=Path, required=True, help="where everything is kept")
    parser.add_argument("--port", type=int, default=0, help="on 127.0.0.1; 0: any free one")
    parser.add_argument(
        "--speed",
        type=float,
        default=launcher.DEFAULT_SPEED,
        help="Google's times take this many times less (default %(default)g)",
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
    options = parser.parse_args()
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


if __name__ == "__main__":
    sys.exit(main())
