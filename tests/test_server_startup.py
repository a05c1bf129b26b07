"""Starting costs no more than the SDK itself: what is imported, opened, and asked for."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.probe import ERAS, ROOT, Era, Probe

# A server with one tool and nothing else, in the same interpreter.
BARE = """\
from mcp.server.mcpserver import MCPServer
server = MCPServer("bare")
@server.tool()
def ping() -> str:
    "Answer."
    return "pong"
server.run()
"""

# Written by the server when it ends: the modules it has, and which sockets it opened.
LOOK = """\
import atexit, json, os, sys
sockets = []
def hook(event, args):
    if event == "socket.__new__":
        sockets.append(int(args[1]))
sys.addaudithook(hook)
real_exit = os._exit
def leave(code):
    with open(os.environ["TESTS_LOOK"], "w") as file:
        json.dump({"modules": sorted(sys.modules), "sockets": sockets}, file)
    real_exit(code)
os._exit = leave
atexit.register(leave, 0)
"""

# What our server imports before `initialize` is answered, beyond what the SDK does: our own
# modules, and of others only these.
ALLOWED = {
    "dotenv",  # .env, read by:
    "pydantic_settings",
    "pydantic",  # a submodule that only the one before needs
}
# Nothing of these may come with the start, by whatever way; each costs 50 ms to a second.
HEAVY = {
    "boto3",
    "botocore",
    "google",
    "httpcore",
    "httpx",
    "matplotlib",
    "numpy",
    "PIL",
    "prometheus_client",
    "psutil",
    "yaml",
}


def look(tmp_path: Path, argv: list[str], era: Era = "legacy") -> dict[str, list[Any]]:
    out = tmp_path / "look.json"
    starter = tmp_path / "starter.py"
    starter.write_text(
        LOOK + "import runpy\nsys.argv = sys.argv[1:]\nsys.path.insert(0, os.getcwd())\n"
        'runpy.run_path(sys.argv[0], run_name="__main__")\n',
        encoding="utf-8",
    )
    with Probe(
        era=era, argv=[sys.executable, str(starter), *argv], env={"TESTS_LOOK": str(out)}
    ) as probe:
        assert probe.call("tools/list")["tools"]
    seen = json.loads(out.read_text(encoding="utf-8"))
    assert isinstance(seen, dict)
    return seen


@pytest.mark.parametrize("era", ERAS)
def test_the_start_imports_nothing_heavy_and_opens_no_socket(tmp_path: Path, era: Era) -> None:
    bare_file = tmp_path / "bare.py"
    bare_file.write_text(BARE, encoding="utf-8")
    ours = look(tmp_path, [str(ROOT / "server.py")], era)
    bare = look(tmp_path, [str(bare_file)], era)
    assert ours["modules"] != bare["modules"]
    added = {module.partition(".")[0] for module in set(ours["modules"]) - set(bare["modules"])}
    others = {name for name in added if name not in sys.stdlib_module_names} - {"backends"}
    assert others <= ALLOWED, sorted(others)
    roots = {module.partition(".")[0] for module in ours["modules"]}
    assert not roots & HEAVY - {module.partition(".")[0] for module in bare["modules"]}
    # The event loop's own wake-up pair is all that either opens.
    assert set(ours["sockets"]) <= {int(socket.AF_UNIX)}
    assert len(ours["sockets"]) == len(bare["sockets"])


def test_no_backend_of_a_cloud_and_no_serving_code_is_loaded_before_it_is_used(
    tmp_path: Path,
) -> None:
    ours = look(tmp_path, [str(ROOT / "server.py")])
    loaded = {module for module in ours["modules"] if module.startswith("backends.")}
    assert not {m for m in loaded if m.startswith("backends.serving.simulator")}
    assert not {m for m in loaded if m.startswith("backends.rehearsal.")}
    assert not {m for m in loaded if m.endswith((".sweep", ".chart", ".epoll_engine"))}


def test_importing_the_server_runs_nothing_and_writes_nothing(tmp_path: Path) -> None:
    home = tmp_path / "untouched"
    home.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", "import server; server.create_server()"],
        cwd=ROOT,
        env={"HOME": str(home), "PATH": "/nonexistent", "VLLM_DEVOPS_ENV_FILE": "/dev/null"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""
    assert done.stderr == ""
    assert list(home.iterdir()) == []
