"""What every test stands on: no network but the loopback, and no trace of who runs it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import end_all_under

_GUARD = Path(__file__).resolve().parent / "support" / "guard" / "sitecustomize.py"
_REFUSED = Path(__file__).resolve().parents[1] / "build" / "network-refused"
_REPORT_VARIABLE = "TESTS_NETWORK_REPORT"

# What a process needs to run at all; all else (credentials, proxies, our own settings) is removed.
_KEPT = frozenset({"PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "TERM", "VIRTUAL_ENV"})
_KEPT_PREFIXES = ("PYTEST", "PYTHON", "COVERAGE", "TESTS_", "VLLM_DEVOPS_TEST_")


def pytest_configure() -> None:
    """Clear the environment and guard this process and every Python process it starts."""
    for name in list(os.environ):
        if name not in _KEPT and not name.startswith(_KEPT_PREFIXES):
            del os.environ[name]
    # A developer's own .env must not decide how tests end.
    os.environ["VLLM_DEVOPS_ENV_FILE"] = os.devnull
    # Clouds are asked in tests that rehearse (tests/cloudrun and others say so themselves). The
    # rest is about what is the same on every target, and stays on this machine.
    os.environ["VLLM_DEVOPS_TARGETS"] = "local"
    paths = [str(_GUARD.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    spec = importlib.util.spec_from_file_location("network_guard", _GUARD)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


# What takes longest, longest first: begun last, one of them would keep a single worker busy when
# the others have nothing left to do. In the order of what they took on a busy machine, 2026-12-01.
_LONGEST_FIRST = (
    "sagemaker/test_faults.py",
    "test_server_operations.py",
    "test_server_lifecycle.py",
    "hosts/test_preparing.py",
    "tpu/test_lives.py",
    "tpu/test_search.py",
    "gce/test_life.py",
    "tpu/test_life.py",
    "cloudrun/test_faults.py",
    "cloudrun/test_life.py",
    "gce/test_rows.py",
    "sagemaker/test_zero_faults.py",
    "test_server_life.py",
    "sagemaker/test_life.py",
    "test_server_failures.py",
    "serving/test_sweep_modes.py",
    "serving/test_benchmark.py",
    "test_server_benchmarks.py",
    "test_server_confirmation.py",
    "sagemaker/test_zero.py",
    "hosts/test_serving.py",
    "rehearsal/test_demo.py",
    "tpu/test_engine.py",
    "cloud/test_endpoints.py",
    "cloud/test_aws_endpoints.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take longest first; all else stays where it was."""
    root = Path(__file__).resolve().parent
    rank = {root / name: number for number, name in enumerate(_LONGEST_FIRST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The event loop that the product runs on."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def nothing_left_this_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail the session if a process that a test started tried to reach another machine."""
    folder = tmp_path_factory.mktemp("session")
    report = folder / "network-refused"
    os.environ[_REPORT_VARIABLE] = str(report)
    # Module fixtures run before any test's own HOME is set.
    os.environ["HOME"] = str(folder / "home")
    (folder / "home").mkdir()
    yield
    if report.exists():
        # For `make test`, which would otherwise give the test that ends a session a second chance.
        _REFUSED.parent.mkdir(exist_ok=True)
        _REFUSED.write_text(report.read_text(encoding="utf-8"), encoding="utf-8")
    assert not report.exists(), report.read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def private_home(
    nothing_left_this_machine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A HOME and a state directory of the test's own; engines and workers in it are ended."""
    del nothing_left_this_machine
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield home
    end_all_under(tmp_path)


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """Where a server of this test, started with default settings, keeps its files."""
    return tmp_path / "state" / "vllm-devops"
