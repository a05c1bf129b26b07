"""What a newcomer gets: requirements, make, the scripts, the clients' files, the documents."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from backends.core.settings import PROJECT_DIR, Settings, variable_of
from backends.rehearsal import probe
from backends.rehearsal.terminal import Terminal

DOCUMENTS = [
    PROJECT_DIR / "README.md",
    PROJECT_DIR / "CONTRIBUTING.md",
    PROJECT_DIR / "CHANGELOG.md",
    *sorted((PROJECT_DIR / "docs").glob("*.md")),
]
REHEARSAL = PROJECT_DIR / "backends" / "rehearsal"
# A script that runs in an environment of its own, which has what it imports.
ELSEWHERE = REHEARSAL / "tiny_vllm" / "make_model.py"


def requirements(name: str) -> dict[str, str]:
    """Package, in lower case with dashes, to its bounds."""
    found: dict[str, str] = {}
    for line in (PROJECT_DIR / name).read_text(encoding="utf-8").splitlines():
        words = line.partition("#")[0].strip()
        if words and not words.startswith("-r"):
            package = re.split(r"[<>=!\[;]", words)[0]
            found[package.lower().replace("_", "-")] = words.removeprefix(package)
    return found


def imported(files: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Every module that the files import, with who imports it."""
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from ((path, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield path, node.module


@pytest.mark.parametrize(
    "name", ["requirements.txt", "requirements-dev.txt", "requirements-ray.txt"]
)
def test_every_requirement_has_a_lower_and_an_upper_bound(name: str) -> None:
    for package, bounds in requirements(name).items():
        assert re.fullmatch(r">=[\d.]+,<[\d.]+", bounds), package
    assert requirements("requirements.txt")["mcp"] == ">=2.3,<3"


def test_whatever_is_imported_is_required() -> None:
    """The rehearsal cloud and the tests may need more; benchmarks compare with what is at hand."""
    ours = [PROJECT_DIR / "server.py", *(PROJECT_DIR / "backends").rglob("*.py")]
    more = [path for path in ours if path.is_relative_to(REHEARSAL / "cloud")]
    core = [path for path in ours if path not in {*more, ELSEWHERE}]
    more += (PROJECT_DIR / "tests").rglob("*.py")
    # mcp pins the package that holds its wire types to its own version.
    optional = set(requirements("requirements-ray.txt"))
    server = {*requirements("requirements.txt"), "mcp-types", *optional}
    of_module = {name: [name] for name in optional} | dict(packages_distributions())
    own = {"backends", "benchmarks", "tests", "server", *sys.stdlib_module_names}
    for files, required in (
        (core, server),
        (more, server | set(requirements("requirements-dev.txt"))),
    ):
        for path, module in imported(files):
            top = module.split(".")[0]
            if top not in own:
                packages = {name.lower().replace("_", "-") for name in of_module.get(top, [])}
                assert packages & required, f"{path.relative_to(PROJECT_DIR)} imports {module}"


def test_make_help_names_every_target() -> None:
    makefile = (PROJECT_DIR / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    shown = run("make", "help").stdout
    for target in phony[1].split():
        assert re.search(rf"^  make {target} +\w", shown, re.MULTILINE), target


def test_make_says_which_python_it_needs(tmp_path: Path) -> None:
    shutil.copy(PROJECT_DIR / "Makefile", tmp_path)
    (tmp_path / "requirements.txt").touch()
    old = program(tmp_path, "old-python", '[ "$1" = -V ] && echo "Python 3.9.1"; exit 1')
    done = run("make", "setup", f"PYTHON={old}", cwd=tmp_path)
    assert done.returncode != 0
    assert f"needs Python 3.11 or newer; {old} is Python 3.9.1" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_ci_runs_lint_and_test_and_stops_at_the_first_failure(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    program(tmp_path, "make", f'echo "$1" >>"{calls}"; [ "$1" != "$FAIL" ]')
    for fail, expected in (("", ["lint", "test"]), ("lint", ["lint"]), ("test", ["lint", "test"])):
        calls.write_text("", encoding="utf-8")
        done = run("bash", PROJECT_DIR / ".ci" / "run", path=tmp_path, FAIL=fail)
        assert calls.read_text(encoding="utf-8").split() == expected
        assert (done.returncode == 0) == (fail == "")


@pytest.mark.parametrize("file", [".mcp.json", ".agents/mcp_config.json", ".gemini/settings.json"])
def test_the_command_in_a_clients_file_starts_this_server(file: str) -> None:
    text = (PROJECT_DIR / file).read_text(encoding="utf-8")
    # As the clients expand variables: set ones by their value, the others by what follows `:-`.
    expanded = re.sub(r"\$\{CLAUDE_PROJECT_DIR:-\.\}", str(PROJECT_DIR), text)
    expanded = re.sub(r"\$\{\w+:-\}", "", expanded)
    server = json.loads(expanded)["mcpServers"]["vllm-devops"]
    command = PROJECT_DIR / server["command"]
    assert command.relative_to(PROJECT_DIR) == Path(".venv/bin/python")
    assert set(server.get("env", {})) <= {variable_of(field) for field in Settings.model_fields}
    argv = [sys.executable, *(str(PROJECT_DIR / word) for word in server["args"])]
    assert "get_help" in {t["name"] for t in probe.probe(probe.MODERN, argv, Terminal())}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_in_the_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://")):
            assert (document.parent / target).exists(), target


def test_the_licence_is_the_one_the_project_names() -> None:
    text = (PROJECT_DIR / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


# ------------------------------------------------------------------------------------- scripts


@pytest.fixture
def home_of_scripts(tmp_path: Path) -> Path:
    """A copy of the scripts and what they look at, so that nothing here is changed."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name in ("init.sh", "set_env.sh", "requirements.txt", ".env.example"):
        shutil.copy(PROJECT_DIR / name, folder)
    return folder


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """Stand-ins for the CLIs: gcloud is logged in, aws is not, make only says what it was told."""
    folder = tmp_path / "tools"
    folder.mkdir()
    program(
        folder,
        "gcloud",
        'case "$*" in *auth*) echo me@example.com ;; *project*) echo my-project ;; esac',
    )
    program(folder, "aws", "exit 255")
    program(folder, "make", 'echo "make $*"')
    return folder


def test_init_without_a_terminal_looks_and_changes_nothing(
    home_of_scripts: Path, tools: Path
) -> None:
    before = sorted(home_of_scripts.iterdir())
    done = run("bash", home_of_scripts / "init.sh", path=tools)
    assert done.returncode == 0, done.stderr
    assert "gcloud, logged in as me@example.com, project my-project" in done.stdout
    assert "missing  an aws login" in done.stdout
    assert "not done, as nobody can be asked here: make .venv" in done.stdout
    assert sorted(home_of_scripts.iterdir()) == before


def test_init_yes_makes_what_is_missing_and_dry_run_only_says_so(
    home_of_scripts: Path, tools: Path
) -> None:
    said = run("bash", home_of_scripts / "init.sh", "--dry-run", "--yes", path=tools).stdout
    assert "would do: copy .env.example to .env" in said
    assert not (home_of_scripts / ".env").exists()
    said = run("bash", home_of_scripts / "init.sh", "--yes", path=tools).stdout
    assert "make setup" in said.splitlines()
    assert (home_of_scripts / ".env").stat().st_mode & 0o077 == 0


def test_init_refuses_an_option_it_does_not_know(home_of_scripts: Path, tools: Path) -> None:
    done = run("bash", home_of_scripts / "init.sh", "--yse", path=tools)
    assert done.returncode == 2
    assert "not '--yse'" in done.stderr


def test_init_hands_targets_on_to_what_sets_clouds_up(home_of_scripts: Path, tools: Path) -> None:
    done = run("bash", home_of_scripts / "init.sh", "--target=cloudrun-l4", path=tools)
    assert done.returncode == 1
    assert "that needs .venv" in done.stdout
    (home_of_scripts / ".venv" / "bin").mkdir(parents=True)
    program(home_of_scripts / ".venv" / "bin", "python", 'echo "python $*"')
    words = ["--target", "cloudrun-l4", "--target=local", "--project=mine", "--yes", "--dry-run"]
    done = run("bash", home_of_scripts / "init.sh", *words, path=tools)
    wanted = "-m backends.setup --target=,cloudrun-l4,local --project=mine --yes --dry-run"
    assert f"python {wanted}" in done.stdout.splitlines()
    assert done.returncode == 0
    assert run("bash", home_of_scripts / "init.sh", "--target", path=tools).returncode == 2


@pytest.mark.parametrize("script", ["init.sh", "set_env.sh"])
@pytest.mark.parametrize("strict", ["", "set -eu; "])
def test_a_sourced_script_leaves_the_shell_alive_and_clean(
    script: str, strict: str, home_of_scripts: Path, tools: Path
) -> None:
    """set_env.sh fails here, as there is no .venv: even then the shell goes on."""
    command = f". {home_of_scripts / script} || true; echo alive; set | grep -c ^_vllm_devops"
    done = run("bash", "-c", strict + command, path=tools)
    assert done.stdout.splitlines()[-2:] == ["alive", "0"]


def test_set_env_exports_what_env_sets_and_shows_no_secret(
    home_of_scripts: Path, tmp_path: Path
) -> None:
    python = home_of_scripts / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    # The real project behind the copied script, with the file of this test.
    python.write_text(
        f'#!/bin/sh\ncd {PROJECT_DIR} && exec {sys.executable} "$@"\n', encoding="utf-8"
    )
    python.chmod(0o755)
    settings = tmp_path / "settings"
    settings.write_text(
        "VLLM_API_KEY='sk-secret $(touch x) \"1\"'\n"
        "VLLM_DEVOPS_MODE=nonsense\nVLLM_DEVOPS_LOG_LEVEL=INFO\n",
        encoding="utf-8",
    )
    gcloud = tmp_path / "gcloud" / "configurations"
    gcloud.mkdir(parents=True)
    (gcloud / "config_default").write_text("[core]\nproject = mine-123\n", encoding="utf-8")
    command = f'. {home_of_scripts / "set_env.sh"}; printf "%s|" "$VLLM_API_KEY" $? >&2; env'
    done = run(
        *("bash", "-c", command),
        VLLM_DEVOPS_ENV_FILE=str(settings),
        VLLM_DEVOPS_LOG_LEVEL="ERROR",
        CLOUDSDK_CONFIG=str(gcloud.parent),
    )
    shown, _, exported = done.stdout.partition("! VLLM_DEVOPS_MODE")
    assert done.stderr.startswith('sk-secret $(touch x) "1"|')
    assert "sk-secret" not in shown
    assert "(set, not shown)" in shown
    assert "used read-only" in exported
    assert "VLLM_DEVOPS_LOG_LEVEL=ERROR" in exported
    assert "GOOGLE_CLOUD_PROJECT=mine-123" in exported
    words = " ".join(shown.split())
    for field in Settings.model_fields.values():
        assert " ".join(str(field.description).split()) in words, "no meaning is cut"
    assert not (PROJECT_DIR / "x").exists()


def run(
    *command: str | Path, path: Path | None = None, cwd: Path = PROJECT_DIR, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a command without a terminal; `path` comes first on PATH."""
    places = [*([str(path)] if path else []), os.environ["PATH"]]
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, "PATH": os.pathsep.join(places), **more},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def program(folder: Path, name: str, script: str) -> Path:
    """A small shell program."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path
