"""`python -m backends.setup --target TARGET`: what init.sh does for the clouds."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
from collections.abc import Sequence

from backends.app import App
from backends.base import Services
from backends.core.errors import DevopsError
from backends.core.names import TARGETS
from backends.setup.desk import Desk

# The first word of a target's name -> module and class that set its control plane up.
PARTS: dict[str, tuple[str, str]] = {
    "cloudrun": ("backends.setup.google", "GoogleSetup"),
    "tpu": ("backends.setup.google", "GoogleSetup"),
    "gce": ("backends.setup.google", "GoogleSetup"),
    "sagemaker": ("backends.setup.amazon", "AwsSetup"),
}


async def set_up(desk: Desk, app: App, targets: Sequence[str], project: str | None) -> None:
    """Run the part of each control plane once, for its targets.

    Args:
        desk: Where it is talked over.
        app: The application.
        targets: What is to be set up.
        project: The project or account that is meant; None: the one that is set.
    """
    parts: dict[tuple[str, str], list[str]] = {}
    for target in targets:
        part = PARTS.get(target.partition("-")[0])
        if part is None:
            desk.ok(f"{target}: nothing to set up beyond .venv")
        else:
            parts.setdefault(part, []).append(target)
    services: Services = app.services
    for (module, name), theirs in parts.items():
        made = getattr(importlib.import_module(module), name)(desk, services, theirs, project)
        try:
            await made.run()
        except DevopsError as error:
            desk.missing(f"{error.message} {error.next_action}")
            desk.left()


def main(arguments: Sequence[str] | None = None) -> int:
    """Set up; returns 0 if nothing is missing any more, or nothing was to be done."""
    parser = argparse.ArgumentParser(
        prog="init.sh",
        description="Looks at what a cloud has for vllm-devops, and offers to make what is "
        "missing: each command is shown, and asked before it runs.",
    )
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        help=f"what to set up, several by commas: {', '.join(TARGETS)}",
    )
    parser.add_argument("--project", help="project at Google; default: the one that is set")
    parser.add_argument("--yes", "-y", action="store_true", help="do it without asking")
    parser.add_argument("--dry-run", "-n", action="store_true", help="only say what would be done")
    options = parser.parse_args(arguments)
    names = [name.strip() for item in options.target for name in item.split(",") if name.strip()]
    unknown = [name for name in names if name not in TARGETS]
    if unknown:
        parser.error(f"no target {', '.join(unknown)}; there are: {', '.join(TARGETS)}")
    desk = Desk(yes=options.yes, dry_run=options.dry_run)
    asyncio.run(set_up(desk, App.from_environment(), names, options.project))
    return 1 if desk.missing_still and not options.dry_run else 0


if __name__ == "__main__":
    sys.exit(main())
