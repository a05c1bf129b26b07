"""The simulator against every published table that its profiles cover, cell by cell.

Runs the engine on a virtual clock, so it takes seconds. The one efficiency of each chip was fitted
at concurrency 1 of one run (marked `fit`); everything else is prediction.

    python -m benchmarks.simulator_accuracy
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass

from backends.serving.simulator.__main__ import build_engine
from backends.serving.simulator.config import parse_config
from backends.serving.simulator.engine import Group, SequenceState
from backends.serving.simulator.kv_pool import hash_blocks
from backends.serving.simulator.virtual import Run, run_closed_loop

SAGEMAKER_CLIENT_S = 0.633
"""Fixed time of one `aws sagemaker-runtime invoke-endpoint` call, measured by the article."""


@dataclass(frozen=True)
class Cell:
    """One published run: what was set, and the figures it gave.

    Figures: `rps`, `tok/s`, `mean s`, `p95 s`, `ttft ms`, `tpot ms`, `stream` (tok/s of a stream).
    """

    title: str
    arguments: tuple[str, ...]
    input_tokens: int
    output_tokens: int
    concurrency: int
    requests: int
    published: dict[str, float]
    same_prompt: bool = False
    client_s: float = 0.0


def simulate(cell: Cell) -> Run:
    """The run on a virtual clock."""
    config = parse_config(cell.arguments)
    engine = build_engine(config)

    def make(number: int) -> SequenceState:
        salt = 0 if cell.same_prompt else number + 1
        prompt = [salt, *range(1, cell.input_tokens)]
        return SequenceState(
            prompt_tokens=len(prompt),
            block_hashes=hash_blocks(prompt),
            target_tokens=cell.output_tokens,
            ends_with="length",
            max_tokens=cell.output_tokens,
            group=Group(1, 1),
        )

    return run_closed_loop(
        engine,
        make,
        concurrency=cell.concurrency,
        requests=cell.requests,
        admission_cap=config.admission_cap,
    )


def figures(cell: Cell, run: Run) -> dict[str, float]:
    """The figures of a run, under the names that `Cell.published` uses."""
    client_s = cell.client_s * cell.requests / cell.concurrency
    duration_s = run.duration_s + client_s
    return {
        "rps": cell.requests / duration_s,
        "tok/s": cell.requests * cell.output_tokens / duration_s,
        "mean s": run.mean_latency_s,
        "p95 s": run.latency_percentile_s(95),
        "ttft ms": run.mean_ttft_s * 1e3,
        "tpot ms": run.mean_tpot_s * 1e3,
        "stream": 1 / run.mean_tpot_s,
    }


def cloud_run() -> list[Cell]:
    rows = {
        1: (0.39, 49.63, 2.58, 2.59),
        2: (0.75, 95.36, 2.68, 2.74),
        4: (1.47, 188.46, 2.71, 2.78),
        8: (1.48, 189.53, 4.86, 5.47),
    }
    names = ("rps", "tok/s", "mean s", "p95 s")
    return [
        Cell(
            f"Cloud Run L4 E2B bf16 c{c}{' (fit)' if c == 1 else ''}",
            ("--profile=cloudrun-l4",),
            40,
            128,
            c,
            20,
            dict(zip(names, values, strict=True)),
            same_prompt=True,
        )
        for c, values in rows.items()
    ]


def ec2() -> list[Cell]:
    return [
        Cell(
            f"EC2 g6.2xlarge L4 E2B bf16 c{c}",
            ("--profile=cloudrun-l4", "--admission-cap=0", "--kv-cache-dtype=auto"),
            40,
            128,
            c,
            20,
            {"tok/s": rate},
            same_prompt=True,
        )
        for c, rate in {1: 46.09, 2: 92.6, 4: 175.83, 8: 360.17}.items()
    ]


def sagemaker() -> list[Cell]:
    rows: dict[str, dict[int, float]] = {
        "gemma-4-E2B-it": {1: 45.6, 4: 171.6, 16: 619.1},
        "gemma-4-E2B-it-qat-w4a16-ct": {1: 85.35, 4: 328.7, 16: 1077.25},
        "gemma-4-E4B-it": {16: 323.6},
        "gemma-4-E4B-it-qat-w4a16-ct": {16: 599.5},
        "gemma-4-12B-it-qat-w4a16-ct": {16: 358.05},
        "gemma-4-26B-A4B-it-qat-w4a16-ct": {16: 515.4},
    }
    return [
        Cell(
            f"SageMaker L4 {name.removeprefix('gemma-4-')} c{c}",
            ("--profile=sagemaker-l4", f"--checkpoint={name}"),
            40,
            256,
            c,
            2 * c,
            {"tok/s": rate},
            client_s=SAGEMAKER_CLIENT_S,
        )
        for name, rates in rows.items()
        for c, rate in rates.items()
    ]


def gce_t4() -> list[Cell]:
    names = ("tok/s", "stream", "ttft ms")
    rows = {
        ("gemma-4-E2B-it", 1): (37.04, 40.44, 300),
        ("gemma-4-E2B-it", 4): (109.05, 32.25, 791),
        ("gemma-4-E2B-it", 8): (164.62, 25.49, 1212),
        ("gemma-4-E2B-it", 16): (164.36, 24.97, 7270),
        ("gemma-4-E2B-it-qat-w4a16-ct", 1): (62.27, 72.31, 316),
        ("gemma-4-E2B-it-qat-w4a16-ct", 4): (157.49, 54.50, 937),
        ("gemma-4-E2B-it-qat-w4a16-ct", 8): (215.91, 37.83, 1301),
        ("gemma-4-E2B-it-qat-w4a16-ct", 16): (213.79, 34.69, 5903),
    }
    long_rows = {
        ("gemma-4-E2B-it", 1): (12.11, 7200),
        ("gemma-4-E2B-it", 4): (15.16, 15300),
        ("gemma-4-E2B-it", 8): (15.66, 16800),
        ("gemma-4-E2B-it", 16): (15.46, 81500),
    }
    cells = [
        Cell(
            f"GCE T4 {name.removeprefix('gemma-4-')} 512/128 c{c}",
            ("--profile=gce-t4", f"--checkpoint={name}"),
            512,
            128,
            c,
            8 * c,
            dict(zip(names, values, strict=True)),
        )
        for (name, c), values in rows.items()
    ]
    return cells + [
        Cell(
            f"GCE T4 {name.removeprefix('gemma-4-')} 4096/128 c{c}",
            ("--profile=gce-t4", f"--checkpoint={name}"),
            4096,
            128,
            c,
            4 * c,
            dict(zip(("tok/s", "ttft ms"), values, strict=True)),
        )
        for (name, c), values in long_rows.items()
    ]


def tpu_v6e() -> list[Cell]:
    names = ("tok/s", "ttft ms", "tpot ms")
    rows = {
        1: (209, 16, 4.7),
        8: (1209, 27, 6.2),
        32: (1636, 155, 17.5),
        64: (2140, 122, 25.3),
        100: (2215, 833, 36.8),
    }
    cells = [
        Cell(
            f"v6e-1 E2B 1024/128 c{c}{' (fit)' if c == 1 else ''}",
            ("--profile=tpu-v6e",),
            1024,
            128,
            c,
            3 * c,
            dict(zip(names, values, strict=True)),
        )
        for c, values in rows.items()
    ]
    users = (1, 2, 4, 8, 16, 32, 64)
    sweep = {
        ("gemma-4-E2B-it", 128): (212, 403, 736, 1244, 1876, 1777, 2452),
        ("gemma-4-E2B-it", 2048): (202, 394, 688, 1153, 1656, 1555, 2096),
        ("gemma-4-12B-it", 128): (45, 90, 177, 347, 664, 924, 939),
    }
    for (name, length), rates in sweep.items():
        for c, rate in zip(users, rates, strict=True):
            cells.append(
                Cell(
                    f"v6e-1 {name.removeprefix('gemma-4-')} ctx{length} c{c}",
                    ("--profile=tpu-v6e", f"--checkpoint={name}", "--max-model-len=16384"),
                    length,
                    128,
                    c,
                    3 * c,
                    {"tok/s": rate},
                )
            )
    # Only runs the repository calls clean: its others hit the prefix cache.
    clean = {
        (128, 1): 202.8,
        (128, 8): 1124.4,
        (1024, 16): 1544.3,
        (4096, 64): 1360.0,
        (8192, 32): 758.4,
        (8192, 64): 870.0,
        (16000, 32): 444.0,
        (16000, 64): 469.2,
        (32000, 16): 249.1,
        (32000, 32): 232.8,
    }
    for (length, c), clean_rate in clean.items():
        arguments = ("--profile=tpu-v6e", "--max-model-len=65536")
        title = f"v6e-1 E2B-it {length}/128 c{c} clean"
        cells.append(Cell(title, arguments, length, 128, c, 3 * c, {"tok/s": clean_rate}))
    return cells


def main() -> int:
    print("Simulated figures beside published ones. Error: simulated / published - 1.\n")
    for table in (cloud_run, ec2, sagemaker, gce_t4, tpu_v6e):
        errors = []
        for cell in table():
            got = figures(cell, simulate(cell))
            for name, wanted in cell.published.items():
                error = got[name] / wanted - 1
                errors.append(abs(error))
                print(f"{cell.title:40s} {name:8s} {wanted:10.2f} {got[name]:10.2f} {error:+8.1%}")
        print(
            f"  {table.__name__}: {len(errors)} cells, median error "
            f"{statistics.median(errors):.1%}, worst {max(errors):.1%}, "
            f"{sum(error <= 0.15 for error in errors)} within 15 %\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
