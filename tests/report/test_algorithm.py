"""Kernels that compute otherwise than their operators spell: names and rooflines of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fuser import dtypes
from fuser.backend.cpu.host import USUAL_CLOCK, fastest_clock, host_target
from fuser.base.target import CORE_BANDWIDTH, SM_75, SM_80, SM_90A, X86_64_V4, Target, cpu_target
from fuser.graph.ir import Graph
from fuser.graph.numerics import using
from fuser.partition import Options, partition
from fuser.pipeline.kernels import emit_programs
from fuser.pipeline.outline import outline
from fuser.report.build import Planned, launch_figures
from fuser.report.roofline import device_of
from fuser.runtime.plan_report import KernelReport
from fuser.tilegen.emit import winograd
from fuser.tilegen.rules import RULES
from fuser.tilegen.rules.cpu import CPU_RULES
from tests.partition.support import Net
from tests.partition.test_split_k import normed
from tests.tilegen_emit.graphs import Model


def launches_of(graph: Graph, target: Target) -> tuple[KernelReport, ...]:
    cut = partition(graph, target, Options())
    programs = emit_programs(cut, target)
    return launch_figures(Planned(cut, programs, outline(cut, programs, target))).launches


def conv() -> Graph:
    m = Model()
    x = m.input(1, 64, 16, 16)
    y = m.b.emit(
        "conv", x, m.weight(64, 64, 3, 3), strides=(1, 1), padding=((1, 1), (1, 1)),
        dilation=(1, 1), groups=1,
    )  # fmt: skip
    m.output(y)
    return m.graph


@pytest.mark.parametrize("side", [2, 4])
def test_winograd_has_the_roofline_of_its_products(
    side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RULES, "cpu", replace(CPU_RULES, winograd_side=lambda *_: side))
    target = replace(X86_64_V4, l2_cache_bytes=1 << 30)  # nothing leaves the cache
    plain = launches_of(conv(), target)
    with using("fast"):
        found = launches_of(conv(), target)
    asked = 2 * 9 * 64 * 64 * 16 * 16
    assert [one.algorithm for one in plain] == [""]
    assert plain[0].flops == asked and plain[0].roofline_us == asked / target.peak() * 1e6
    assert [one.algorithm for one in found] == ["winograd"] * 3
    assert asked - 3 <= sum(one.flops for one in found) <= asked  # what the operator asks for
    products = 2 * winograd.WAYS[side].matmuls * 64 * 64 * (16 // side) ** 2
    assert found[1].roofline_us == pytest.approx(products / target.peak() * 1e6)
    together = sum(one.roofline_us for one in found)
    assert products < together * target.peak() / 1e6 < asked


def attention(queries: int, keys: int, *, causal: bool = False) -> Graph:
    net = Net()
    q, k, v = (net.input(n, 1, 8, s, 64) for n, s in (("q", queries), ("k", keys), ("v", keys)))
    scores = net.b.map("mul", net.b.matmul(q, net.b.transpose(k, (0, 1, 3, 2))), 0.125)
    if causal:
        hidden = np.where(np.tri(queries, keys, dtype=bool), 0, -np.inf).astype(np.float32)
        scores = net.b.map("add", scores, net.b.constant(hidden))
    best = net.b.reduce("reduce_max", scores, (3,), keep=True)
    weights = net.b.map("exp", net.b.map("sub", scores, best))
    weights = net.b.map("div", weights, net.b.reduce("reduce_sum", weights, (3,), keep=True))
    return net.finish(net.b.matmul(weights, v))


def test_keys_in_parts_are_named() -> None:
    found = launches_of(attention(1, 4096), X86_64_V4)
    names = {one.algorithm for one in found}
    assert len(found) == 2 and len(names) == 1
    (name,) = names
    words, count = name.rsplit(" ", 1)
    assert words == "split k" and int(count) > 1
    assert [one.algorithm for one in launches_of(attention(512, 512), X86_64_V4)] == [""]


def test_keys_that_nobody_sees_are_not_counted() -> None:
    """Of a triangle of blocks somewhat more than a half is computed."""
    target = replace(X86_64_V4, l2_cache_bytes=1 << 30)
    (whole,), (half,) = (
        launches_of(attention(1024, 1024, causal=c), target) for c in (False, True)
    )
    assert whole.roofline_us == 4 * 8 * 1024 * 1024 * 64 / target.peak() * 1e6
    assert 0.5 <= half.roofline_us / whole.roofline_us < 0.75
    assert half.flops >= whole.flops


def test_sums_that_a_pass_cut_are_named() -> None:
    def names(norm: bool) -> list[str]:
        graph = normed(128, 3072, 768, norm=norm)
        for node in graph.nodes:
            node.origin = (node.op,)
        return [one.algorithm for one in launches_of(graph, SM_90A)]

    assert names(norm=True) == ["split k 4", ""]  # the norm adds up
    assert names(norm=False) == ["split k 4"]  # blocks of a cluster do


def test_peaks() -> None:
    """Units x lanes x multiply-adds x clock, and what units for narrow operands add to that."""
    core = replace(cpu_target("znver4", "+avx512f", 1, 512), clock=3.7e9)
    assert core.peak() == pytest.approx(118.4e9)  # one vector of 16 a cycle
    assert replace(core, arch="sapphirerapids").peak() == pytest.approx(2 * 118.4e9)
    assert cpu_target("x86-64-v3", "+avx2", 4).peak() == pytest.approx(4 * 8 * 4 * 2.6e9)
    amx = replace(core, features="+amx-tile,+amx-bf16,+amx-int8")
    assert amx.peak("bf16", 16) == 8 * core.peak() and amx.peak("i8", 8) == 16 * core.peak()
    vnni = replace(core, features="+avx512vnni,+avx512vl")
    assert vnni.peak("u8", 8) == 4 * core.peak() and vnni.peak("bf16", 16) == core.peak()
    assert SM_90A.peak("f16", 16) == SM_90A.flops_f16
    assert SM_90A.peak() == SM_90A.flops_f16 / 6  # on tensor cores, in three products
    assert SM_75.peak() == SM_75.flops_f32 and SM_80.peak("i8", 8) == 2 * SM_80.flops_f16
    assert core.peak_bandwidth == CORE_BANDWIDTH and SM_80.peak_bandwidth == SM_80.bandwidth


def test_costs_do_not_depend_on_the_clock() -> None:
    target = host_target()
    assert target.clock == fastest_clock() >= 1e9
    nominal = cpu_target(target.arch, target.features, target.units, target.vector_bits)
    rates = ("flops_f32", "flops_f16", "bandwidth", "launch_cost")
    assert [getattr(target, name) for name in rates] == [getattr(nominal, name) for name in rates]
    told = device_of(target)
    assert (told.flops_f32, told.bandwidth) == (target.peak(), target.peak_bandwidth)


def test_the_clock_is_that_of_the_fastest_core(tmp_path: Path) -> None:
    assert fastest_clock(tmp_path) == USUAL_CLOCK
    for core, text in enumerate(("3200000\n", "4100000\n", "", "none")):
        folder = tmp_path / f"cpu{core}" / "cpufreq"
        folder.mkdir(parents=True)
        (folder / "cpuinfo_max_freq").write_text(text)
    assert fastest_clock(tmp_path) == 4.1e9


def test_narrow_operands_count_in_a_roofline() -> None:
    net = Net()
    x = net.input("x", 256, 512, dtype=dtypes.f16)
    (found,) = launches_of(
        net.finish(net.b.matmul(x, net.input("w", 512, 256, dtype=dtypes.f16))), SM_80
    )
    assert (
        found.roofline_us
        == max(found.flops / SM_80.flops_f16, found.dram.total / SM_80.bandwidth) * 1e6
    )
