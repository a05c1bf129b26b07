"""The accelerators the targets run on: memory, bandwidth, arithmetic, and how well vLLM uses them.

`efficiency` is the one fitted number of each accelerator: the share of the data-sheet bandwidth a
decode step reaches, fitted at concurrency 1 (`roofline.fit_efficiency`). The overheads beside it
are not fitted to the table they predict: they come from pairs of other runs on the same chip.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from backends.core.errors import NotFoundError
from backends.knowledge.facts import Fact, assumed, derived, measured, published

_HANDLING = assumed(5.0, "a few milliseconds of tokenizing and queueing")


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One chip.

    Args:
        name: Our short name.
        title: The vendor's name.
        kind: `gpu` shares KV memory between sliding-window and full layers; `tpu` does not.
        memory_gib: What the driver shows of the chip's memory.
        default_memory_utilization: Share vLLM may claim unless told otherwise.
        bandwidth_gb_per_s: Memory bandwidth of the data sheet, 1e9 bytes per second.
        tflops: Dense (not sparse) TFLOP/s by arithmetic format.
        formats: Weight formats vLLM can serve on it.
        efficiency: Share of the bandwidth a decode step reaches; fitted at concurrency 1.
        launch_overhead_us_per_layer: Fixed time of a step for each layer, whatever the batch.
        sequence_overhead_us: Time each sequence of a batch adds (sampling, scheduling, output).
        compute_utilization: Share of `tflops` that matrix products reach in prefill.
        attention_utilization: Share of `tflops` that attention reaches in prefill.
        request_overhead_ms: Time the API server takes with a request before the engine sees it.
        compute_capability: NVIDIA's number (`8.9`); empty for a TPU.
        board_gb: Memory as the vendor counts it, 1e9 bytes.
    """

    name: str
    title: str
    kind: Literal["gpu", "tpu"]
    memory_gib: Fact
    default_memory_utilization: Fact
    bandwidth_gb_per_s: Fact
    tflops: Mapping[str, Fact]
    formats: tuple[str, ...]
    efficiency: Fact
    launch_overhead_us_per_layer: Fact
    sequence_overhead_us: Fact
    compute_utilization: Fact
    attention_utilization: Fact
    request_overhead_ms: Fact = _HANDLING
    compute_capability: str = ""
    board_gb: float = 0.0

    @property
    def computes_in(self) -> tuple[str, ...]:
        """Formats its arithmetic units have."""
        return tuple(self.tflops)

    def peak_tflops(self) -> float:
        """Dense TFLOP/s of the 16-bit format (bf16, or fp16 where there is no bf16)."""
        return (self.tflops.get("bf16") or self.tflops["fp16"]).value


_CLOUD_RUN_L4 = "Cloud Run L4 article: E2B bf16 at concurrency 1, 49.63 tok/s"
_SAGEMAKER_L4 = "SageMaker L4 article"
_GCE_T4 = "GCE T4 article"
_TPU_V6E = "TPU v6e repository"

L4 = Accelerator(
    name="l4",
    title="NVIDIA L4",
    kind="gpu",
    memory_gib=measured(21.96, "torch.OutOfMemoryError text: 'total capacity of 21.96 GiB'"),
    default_memory_utilization=published(0.92, "vLLM 0.32 cache_config_info default"),
    bandwidth_gb_per_s=published(300.0, "NVIDIA L4 data sheet"),
    tflops=MappingProxyType(
        {
            "bf16": published(121.0, "NVIDIA L4 data sheet, dense"),
            "fp8": published(242.5, "NVIDIA L4 data sheet, dense"),
        }
    ),
    formats=("bf16", "fp8", "w4a16"),
    efficiency=derived(0.890, f"fitted with roofline.fit_efficiency on: {_CLOUD_RUN_L4}"),
    launch_overhead_us_per_layer=derived(
        77.0,
        f"{_SAGEMAKER_L4}: E2B decodes 51.3 tok/s in bf16 and 105.1 in w4a16; what does not "
        "shrink with the bytes is 2.7 ms over 35 layers",
    ),
    sequence_overhead_us=derived(
        230.0, f"{_SAGEMAKER_L4}: step time of E2B from c1 to c16, bf16 +0.26 and w4a16 +0.21 ms"
    ),
    compute_utilization=derived(
        0.6, "12B w4a16 grid on Cloud Run: 23.8 req/s of 128 tokens need at least 0.56"
    ),
    attention_utilization=assumed(0.3, "half of the matrix products: Triton kernel, head 512"),
    compute_capability="8.9",
    board_gb=24,
)

T4 = Accelerator(
    name="t4",
    title="NVIDIA Tesla T4",
    kind="gpu",
    memory_gib=measured(
        14.56, "15 360 MiB board; 13 371 MiB claimed at utilization 0.9 after driver reserve"
    ),
    default_memory_utilization=published(0.90, f"{_GCE_T4}: its serve command"),
    bandwidth_gb_per_s=measured(277.0, f"{_GCE_T4}: measured; the data sheet says 320"),
    tflops=MappingProxyType({"fp16": published(65.0, "NVIDIA T4 data sheet, dense")}),
    formats=("fp16", "w4a16"),
    efficiency=derived(0.917, f"fitted with roofline.fit_efficiency on: {_GCE_T4}, 40.44 tok/s"),
    launch_overhead_us_per_layer=derived(
        180.0,
        f"{_GCE_T4}: E2B decodes 40.44 tok/s in fp16 and 72.31 in w4a16; what does not shrink "
        "with the bytes is 6.4 ms over 35 layers",
    ),
    sequence_overhead_us=assumed(230.0, "as measured on L4"),
    compute_utilization=derived(
        0.45, f"{_GCE_T4}: first token after 0.300 s at 512 and 7.2 s at 4096 input tokens"
    ),
    attention_utilization=derived(
        0.0033, f"{_GCE_T4}: the same two figures; the Turing clamp makes attention slow"
    ),
    request_overhead_ms=derived(
        16.0, f"{_GCE_T4}: 300 ms to the first token at c1, less the step; two vCPUs serve"
    ),
    compute_capability="7.5",
    board_gb=16,
)

RTX_PRO_6000 = Accelerator(
    name="rtx-pro-6000",
    title="NVIDIA RTX PRO 6000 Blackwell Server Edition",
    kind="gpu",
    memory_gib=published(95.0, "96 GB GDDR7 of the data sheet less the driver's reserve"),
    default_memory_utilization=published(0.92, "vLLM 0.32 cache_config_info default"),
    bandwidth_gb_per_s=published(1792.0, "announcement of 2025: 512 bits of GDDR7 at 28 Gbit/s"),
    tflops=MappingProxyType(
        {
            "bf16": derived(500.0, "data sheet: 4 PFLOPS sparse FP4, an eighth of it dense bf16"),
            "fp8": derived(1000.0, "data sheet: 4 PFLOPS sparse FP4, a quarter of it dense fp8"),
            "fp4": derived(2000.0, "data sheet: 4 PFLOPS sparse FP4, half of it dense"),
        }
    ),
    formats=("bf16", "fp8", "w4a16", "nvfp4"),
    efficiency=assumed(0.80, "no clean run at concurrency 1 is published; a little below L4"),
    launch_overhead_us_per_layer=assumed(60.0, "as L4, on a faster host"),
    sequence_overhead_us=assumed(150.0, "as L4, on a faster host"),
    compute_utilization=assumed(0.5, "no published run"),
    attention_utilization=assumed(0.25, "no published run"),
    compute_capability="12.0",
    board_gb=96,
)

V6E = Accelerator(
    name="v6e",
    title="Google TPU v6e chip",
    kind="tpu",
    memory_gib=measured(31.24, f"{_TPU_V6E}: 'total_hbm_limit_gb=31.24GiB'"),
    default_memory_utilization=measured(
        0.92, f"{_TPU_V6E}: 'total_hbm_limit_cap_gb=28.74GiB' of 31.24"
    ),
    bandwidth_gb_per_s=published(1638.0, "Google Cloud TPU v6e page"),
    tflops=MappingProxyType(
        {
            "bf16": published(918.0, "Google Cloud TPU v6e page"),
            "int8": published(1836.0, "Google Cloud TPU v6e page"),
        }
    ),
    # fp8 weights are stored so and computed in bf16 (26B-A4B-it-FP8 on v6e-4); the MXU has no fp8.
    formats=("bf16", "fp8"),
    efficiency=derived(
        0.749, f"fitted with roofline.fit_efficiency on: {_TPU_V6E}, E2B 1024/128 c1, TPOT 4.7 ms"
    ),
    launch_overhead_us_per_layer=derived(
        20.0, f"{_TPU_V6E}: E2B 212 and 12B 45 tok/s at ctx128 c1; the part that follows layers"
    ),
    sequence_overhead_us=assumed(230.0, "as measured on L4: it is vLLM's own bookkeeping"),
    # Its c1 table says 0.53, but the repository's own later note is that low anchors of that run
    # were prefix-cache hits; the knee at 16 000 tokens is a clean run and no cell of any table.
    compute_utilization=derived(
        0.289,
        f"{_TPU_V6E}: at 16 000 input tokens each user adds 265 ms to the first token (knee of "
        "2026-08-10), less attention at the share below",
    ),
    attention_utilization=assumed(0.5, "no clean run tells it apart from the matrix products"),
    request_overhead_ms=derived(
        7.0, f"{_TPU_V6E}: first token after 12.2 ms at 128 tokens and c1, less the step"
    ),
    board_gb=32,
)

# For comparison: no target of ours sells them.

A10G = Accelerator(
    name="a10g",
    title="NVIDIA A10G",
    kind="gpu",
    memory_gib=published(22.06, "nvidia-smi: 23 028 MiB, of which torch sees 22.06 GiB"),
    default_memory_utilization=published(0.92, "vLLM 0.32 cache_config_info default"),
    bandwidth_gb_per_s=published(600.0, "NVIDIA A10G data sheet"),
    tflops=MappingProxyType({"bf16": published(70.0, "NVIDIA A10G data sheet, dense")}),
    formats=("bf16", "w4a16"),
    efficiency=assumed(0.85, "a little below L4; no run is published"),
    launch_overhead_us_per_layer=assumed(77.0, "as measured on L4"),
    sequence_overhead_us=assumed(230.0, "as measured on L4"),
    compute_utilization=assumed(0.6, "as measured on L4"),
    attention_utilization=assumed(0.3, "as measured on L4"),
    compute_capability="8.6",
    board_gb=24,
)

L40S = Accelerator(
    name="l40s",
    title="NVIDIA L40S",
    kind="gpu",
    memory_gib=published(44.39, "nvidia-smi: 46 068 MiB, of which torch sees 44.39 GiB"),
    default_memory_utilization=published(0.92, "vLLM 0.32 cache_config_info default"),
    bandwidth_gb_per_s=published(864.0, "NVIDIA L40S data sheet"),
    tflops=MappingProxyType(
        {
            "bf16": published(362.0, "NVIDIA L40S data sheet, dense"),
            "fp8": published(733.0, "NVIDIA L40S data sheet, dense"),
        }
    ),
    formats=("bf16", "fp8", "w4a16"),
    efficiency=derived(
        0.961,
        f"fitted with roofline.fit_efficiency on: {_SAGEMAKER_L4}, L40S, 12B w4a16 at "
        "concurrency 1, 77.0 tok/s",
    ),
    launch_overhead_us_per_layer=assumed(55.0, "as L4, on a faster host"),
    sequence_overhead_us=assumed(230.0, "as measured on L4"),
    compute_utilization=assumed(0.6, "as measured on L4"),
    attention_utilization=assumed(0.3, "as measured on L4"),
    compute_capability="8.9",
    board_gb=48,
)

H100 = Accelerator(
    name="h100",
    title="NVIDIA H100 SXM",
    kind="gpu",
    memory_gib=published(79.1, "nvidia-smi: 81 559 MiB, of which torch sees 79.1 GiB"),
    default_memory_utilization=published(0.92, "vLLM 0.32 cache_config_info default"),
    bandwidth_gb_per_s=published(3350.0, "NVIDIA H100 data sheet, SXM"),
    tflops=MappingProxyType(
        {
            "bf16": published(989.0, "NVIDIA H100 data sheet, dense"),
            "fp8": published(1979.0, "NVIDIA H100 data sheet, dense"),
        }
    ),
    formats=("bf16", "fp8", "w4a16"),
    efficiency=assumed(0.75, "no run is published; small models leave it idle"),
    launch_overhead_us_per_layer=assumed(45.0, "as L4, on a faster host"),
    sequence_overhead_us=assumed(150.0, "as L4, on a faster host"),
    compute_utilization=assumed(0.5, "no published run"),
    attention_utilization=assumed(0.3, "as measured on L4"),
    compute_capability="9.0",
    board_gb=80,
)

V5E = Accelerator(
    name="v5e",
    title="Google TPU v5e chip",
    kind="tpu",
    memory_gib=measured(15.75, f"{_TPU_V6E}: 'exceeds available HBM (15.75G)'"),
    default_memory_utilization=assumed(0.92, "as measured on v6e"),
    bandwidth_gb_per_s=published(819.0, "Google Cloud TPU v5e page"),
    tflops=MappingProxyType(
        {
            "bf16": published(197.0, "Google Cloud TPU v5e page"),
            "int8": published(393.0, "Google Cloud TPU v5e page"),
        }
    ),
    formats=("bf16",),
    efficiency=assumed(0.749, "as measured on v6e"),
    launch_overhead_us_per_layer=assumed(20.0, "as measured on v6e"),
    sequence_overhead_us=assumed(230.0, "as measured on L4"),
    compute_utilization=assumed(0.289, "as measured on v6e"),
    attention_utilization=assumed(0.5, "as measured on v6e"),
    board_gb=16,
)

ACCELERATORS: Mapping[str, Accelerator] = MappingProxyType(
    {chip.name: chip for chip in (L4, T4, RTX_PRO_6000, V6E, A10G, L40S, H100, V5E)}
)


def find_accelerator(name: str) -> Accelerator:
    """The accelerator of that short name (`l4`, `t4`, `rtx-pro-6000`, `v6e`).

    Raises:
        NotFoundError: There is no such accelerator in the table.
    """
    try:
        return ACCELERATORS[name.lower()]
    except KeyError:
        raise NotFoundError(
            f"No accelerator named {name!r} is known.",
            next_action=f"Use one of: {', '.join(ACCELERATORS)}.",
        ) from None
