"""Results measured elsewhere: an agent takes them in and compares them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import connected, make_app

BENCH = Path(__file__).parent / "recorded" / "vllm" / "bench"
WHERE = {"target": "local", "name": "elsewhere"}


async def take_in(state_dir: Path, *paths: Path, **options: object) -> Any:
    async with connected(make_app(state_dir)) as caller:
        given = {"import_paths": [str(path) for path in paths], **options}
        return await caller.tool("run_benchmark", **WHERE, options=given)


async def test_results_of_vllm_bench_become_a_run_that_compares(state_dir: Path) -> None:
    first = (
        await take_in(state_dir, BENCH / "serve-c1.json", BENCH / "serve-c8.json", usd_per_hour=1.4)
    ).ok
    assert [level["concurrency"] for level in first["levels"]] == [1, 8]
    assert all(level["usd_per_million_output_tokens"] > 0 for level in first["levels"])
    second = (await take_in(state_dir, BENCH / "serve-c8.json", label="again")).ok
    ids = [*first["benchmark_ids"], *second["benchmark_ids"]]
    async with connected(make_app(state_dir)) as caller:
        listed = (await caller.tool("get_benchmarks", target="local")).ok["items"]
        assert {item["benchmark_id"] for item in listed} == set(ids)
        assert {item["name"] for item in listed} == {"elsewhere"}
        compared = (await caller.tool("get_benchmarks", benchmark_ids=ids)).ok
    assert len(compared["comparison"]) == 2
    assert compared["findings"]


async def test_a_run_of_ours_from_another_machine_is_taken_in_as_it_is(
    state_dir: Path, tmp_path: Path
) -> None:
    made = (await take_in(state_dir, BENCH / "serve-c8.json")).ok
    copied = tmp_path / "copied.json"
    copied.write_bytes(Path(made["files"]["run_json"]).read_bytes())
    elsewhere = tmp_path / "elsewhere"
    taken = (await take_in(elsewhere, copied)).ok
    assert taken["benchmark_ids"] == made["benchmark_ids"]
    again = await take_in(elsewhere, copied)
    assert again.error["code"] == "conflict"


@pytest.mark.parametrize(
    ("path", "options", "words"),
    [
        ("results.json", {}, "must be absolute paths"),
        ("/nowhere/results.json", {}, "import_paths"),
        (str(BENCH / "serve-c8.json"), {"mode": "knee"}, "options.mode"),
        (str(BENCH / "serve-c8.json"), {"usd_per_hour": -1}, "options.usd_per_hour"),
        (str(Path(__file__)), {}, "import_paths"),
    ],
)
async def test_what_cannot_be_taken_in_is_named_and_nothing_is_kept(
    state_dir: Path, path: str, options: dict[str, object], words: str
) -> None:
    reply = await take_in(state_dir, Path(path), **options)
    assert reply.error["code"] == "invalid_input"
    assert words in json.dumps(reply.error)
    async with connected(make_app(state_dir)) as caller:
        assert (await caller.tool("get_benchmarks")).ok["items"] == []


async def test_the_option_is_in_the_help(state_dir: Path) -> None:
    async with connected(make_app(state_dir)) as caller:
        options = (await caller.tool("get_help", topic="benchmark")).ok["options"]
    assert "import_paths" in {row["option"] for row in options}
