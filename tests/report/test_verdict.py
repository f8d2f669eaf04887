"""What bounds a kernel, and what could change it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fuser.base.target import TARGETS
from fuser.report.roofline import device_of
from fuser.report.verdict import COSTLIEST, Measured, verdict, verdicts
from fuser.runtime.plan_report import Device

GPU = Device("cuda", "sm_90a", 132, 60e12, 900e12, 4e12, 50 << 20)
CPU = Device("cpu", "avx512", 2, 2e11, 2e11, 2e10, 32 << 20)
AMX = replace(CPU, arch="amx", flops_f16=16e11)
"""One that multiplies 16-bit floats faster."""


def kernel(kind: str, time: float, least: float, dram: int, programs: int = 1000) -> Measured:
    return Measured(0, "k", kind, time, least, dram, programs)


@pytest.mark.parametrize(
    ("one", "device", "precision", "bound", "change"),
    [
        (kernel("map", 120, 100, 400_000_000), GPU, "model", "bandwidth", "16-bit floats moves"),
        (kernel("contraction", 120, 100, 1000), GPU, "model", "arithmetic", "16-bit floats comp"),
        (kernel("map", 120, 100, 1000), GPU, "model", "arithmetic", ""),
        (kernel("reduce", 4, 1, 4_000_000), GPU, "model", "latency", "a larger batch"),
        (kernel("reduce", 40, 1, 4_000_000, 16), GPU, "model", "parallelism", "16 blocks for 132"),
        (kernel("reduce", 40, 1, 4_000_000), GPU, "model", "bandwidth", "16-bit"),
        (kernel("contraction", 120, 100, 2_000_000), CPU, "model", "bandwidth", "int8w"),
        (kernel("contraction", 120, 100, 2_000_000), CPU, "int8w", "bandwidth", "16-bit"),
        (kernel("conv", 120, 100, 1000), AMX, "model", "arithmetic", "--precision bf16"),
        (kernel("conv", 120, 100, 1000), AMX, "bf16", "arithmetic", "16-bit floats"),
        (kernel("conv", 120, 100, 1000), CPU, "model", "arithmetic", ""),
        (kernel("conv", 120, 100, 1000), CPU, "bf16", "arithmetic", ""),
        (kernel("conv", 500, 100, 1000, 1), CPU, "model", "parallelism", "1 blocks for 2"),
    ],
)
def test_bounds(one: Measured, device: Device, precision: str, bound: str, change: str) -> None:
    found = verdict(one, device, precision)
    assert found.bound == bound and change in found.change and bool(change) == bool(found.change)
    assert found.reached == pytest.approx(one.least / one.time)


@pytest.mark.parametrize(
    ("kind", "moved", "dram", "bound"),
    [
        ("map", 4_000_000, 0, "cache"),
        ("reduce", 4_000_000, 1_900_000, "cache"),
        ("map", 4_000_000, 4_000_000, "bandwidth"),  # nothing stays
        ("conv", 4_000_000, 0, "arithmetic"),
    ],
)
def test_bytes_that_stay_in_the_cache(kind: str, moved: int, dram: int, bound: str) -> None:
    """They have no term in the least time, which says little of such a kernel then."""
    least = max(5.0, dram / CPU.bandwidth * 1e6)
    one = Measured(0, "k", kind, 1000.0, least, dram, 1000, moved)
    found = verdict(one, CPU)
    assert found.bound == bound
    said = found.sentence(2000.0)
    assert ("of what is possible" in said) == (bound != "cache")
    if bound == "cache":
        size = "4.00 MB" if not dram else "2.10 MB"
        assert said.startswith(
            f"k: 1.00 ms (50.0 %), bound by cache, where {size} stay; a model of"
        )


def test_the_costliest_come_first() -> None:
    kernels = [kernel("map", time, 1, 1000) for time in (3.0, 0.0, 9.0, 5.0, 7.0)]
    assert [item.kernel.time for item in verdicts(kernels, GPU)] == [9.0, 7.0, 5.0]
    assert len(verdicts(kernels[:2], GPU)) == 1 <= COSTLIEST


def test_what_is_to_be_changed_is_said_once() -> None:
    kernels = [kernel(kind, time, 100, 1000) for kind, time in
               (("conv", 140), ("map", 130), ("contraction", 120))]  # fmt: skip
    found = [one.change for one in verdicts(kernels, AMX)]
    assert found == [
        "--precision bf16 takes the instructions that this processor has for it",
        "",
        "",
    ]
    idle = [kernel("conv", 900, 100, 1000, programs) for programs in (1, 1, 64)]
    first, second, third = (one.change for one in verdicts(idle, replace(AMX, units=128)))
    assert first.startswith("1 blocks") and second == "" and third.startswith("64 blocks")


@pytest.mark.parametrize(
    ("name", "told"), [("avx2", False), ("avx512", False), ("avx512_vnni", True), ("amx", True)]
)
def test_bf16_is_advised_where_the_processor_has_it(name: str, told: bool) -> None:
    found = verdict(kernel("conv", 120, 100, 1000), device_of(TARGETS[name]))
    assert ("bf16" in found.change) == told and bool(found.change) == told


def test_a_line() -> None:
    one = verdict(kernel("map", 120, 100, 400_000_000), GPU)
    assert one.sentence(240.0) == (
        "k: 120 µs (50.0 %), bound by bandwidth, 83.3 % of what is possible; a model of 16-bit"
        " floats moves half of the bytes"
    )
    faster = verdict(kernel("map", 90, 100, 400_000_000), GPU)
    assert faster.reached == 1.0
