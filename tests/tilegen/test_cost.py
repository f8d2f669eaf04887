"""The cost of schedules: microseconds, above the roofline, by which rules and tuner choose."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fuser.base.target import SM_80, SM_90A, TARGETS, X86_64_V3, X86_64_V4, Target
from fuser.graph.dims import symbol
from fuser.graph.sizes import Sizes
from fuser.tilegen.candidates import ranked
from fuser.tilegen.rules import ROW_ORDER_RULES, RULES
from fuser.tilegen.rules.cost import cost
from fuser.tilegen.rules.cpu import matmul as cpu
from fuser.tilegen.rules.gpu import conv
from fuser.tilegen.rules.gpu import matmul as gpu
from fuser.tilegen.rules.gpu.cost import START, stage_bytes
from fuser.tilegen.rules.problem import Problem
from fuser.tilegen.schedule import Schedule
from tests.test_tuning import product, program_of
from tests.tilegen.problems import image

GPUS = [target for target in TARGETS.values() if target.is_cuda]
CPUS = [X86_64_V3, X86_64_V4]
SIZES = (17, 64, 100, 197, 512, 768, 1000, 2304, 4096)


def drawn(seed: int, bits: int = 16) -> Problem:
    rng = random.Random(seed)
    m, n, k = (rng.choice(SIZES) for _ in range(3))
    misaligned = (rng.random() < 0.3, rng.random() < 0.3)
    return Problem(
        m, n, k, bits, rng.choice((1, 1, 2)), rng.choice((1, 1, 12)), misaligned=misaligned,
        streamed=rng.random() < 0.8, folded=rng.random() < 0.5,
    )  # fmt: skip


def options(target: Target, problem: Problem) -> list[Schedule]:
    if problem.image is not None:
        return list(conv.candidates(target, problem))
    return list((gpu if target.is_cuda else cpu).candidates(target, problem))


def roofline(target: Target, p: Problem) -> float:
    """Microseconds of operations and of bytes at the rates of the target, whichever are more."""
    flops = 2 * p.m * p.n * p.k * p.batch * p.accumulators
    peak = target.peak(bits=p.bits) if target.is_cuda else target.flops_f32
    return 1e6 * max(flops / peak, p.bytes / target.bandwidth)


@pytest.mark.parametrize("target", [SM_90A, SM_80, *CPUS], ids=lambda t: t.arch)
@pytest.mark.parametrize("sizes", [(8192, 8192, 8192), (16384, 16384, 1024), (4096, 4096, 4096)])
def test_large_matmuls_cost_what_the_roofline_says(
    target: Target, sizes: tuple[int, int, int]
) -> None:
    problem = Problem(*sizes, 16 if target.is_cuda else 32)
    found = cost(target, problem, RULES[target.name].matmul(target, problem))
    assert 0.95 < found / roofline(target, problem) < (2.2 if target is SM_80 else 1.4)


@pytest.mark.parametrize("target", [*GPUS, *CPUS], ids=lambda t: t.arch)
@pytest.mark.parametrize("bits", [8, 16, 32])
def test_nothing_is_faster_than_the_roofline(target: Target, bits: int) -> None:
    for seed in range(8):
        problem = drawn(seed, bits if target.is_cuda else 32)
        for schedule in options(target, problem):
            assert cost(target, problem, schedule) > 0.9 * roofline(target, problem)


@pytest.mark.parametrize("target", [SM_90A, SM_80, *CPUS], ids=lambda t: t.arch)
@pytest.mark.parametrize("name", ["m", "n", "k", "batch", "accumulators"])
def test_more_of_anything_costs_no_less(target: Target, name: str) -> None:
    """With one schedule whose tiles nobody shares: how many may depends on the sizes."""
    for seed in range(30):
        problem = replace(
            drawn(seed, 16 if target.is_cuda else 32), accumulators=1, m=384 << seed % 4
        )
        larger = replace(problem, **{name: 2 * getattr(problem, name)})  # type: ignore[arg-type]
        for schedule in options(target, problem):
            if not schedule.stream_k and schedule.neighbours == (1, 1):
                before, after = (cost(target, p, schedule) for p in (problem, larger))
                assert after >= 0.999999 * before, (problem, schedule)


def test_terms_of_a_shape() -> None:
    """What makes a kernel slower, on a GPU, at the same sizes."""

    def time(problem: Problem, **more: Any) -> float:
        blocks = (("m", 64), ("n", 128), ("k", 64))
        return cost(SM_90A, problem, Schedule(blocks=blocks, stages=4, **more))

    plain = Problem(512, 2048, 2048, 16, folded=False)
    assert time(replace(plain, misaligned=(True, False))) > time(plain)
    assert time(replace(plain, misaligned=(True, True))) > time(
        replace(plain, misaligned=(True, True)), neighbours=(2, 1)
    )
    assert time(plain, neighbours=(2, 1)) > time(plain)  # clusters start later
    assert time(replace(plain, streamed=False)) > time(plain)
    assert time(replace(plain, m=511 * 8)) > time(replace(plain, m=512 * 7))  # a wave more
    gathered = image(512, 2048, 2048, 1)
    assert time(gathered) > time(replace(plain, streamed=False))
    few = Problem(64, 512, 16384, 16, folded=False)
    assert time(few, stream_k=1) < time(few)  # four blocks instead of one, for their sums
    short = replace(few, k=256)
    assert time(short, stream_k=1) > time(short)
    partial = replace(gathered, image=replace(gathered.image, channels=2040), k=2040)
    assert time(replace(partial, streamed=True)) == time(partial)  # no whole lines to copy
    codes = Problem(16, 65536, 65536, 16, decoded=4)
    assert codes.bytes < 0.3 * replace(codes, decoded=0).bytes


@pytest.mark.parametrize(("side", "warps", "hidden"), [(128, 8, False), (64, 4, True)])
def test_blocks_that_fit_hide_what_others_wait_for(side: int, warps: int, hidden: bool) -> None:
    """Of two waves, each with three stages; two warp groups and a third that fetches for them have
    all registers of a multiprocessor."""

    def time(waves: int) -> float:
        blocks = (("m", side), ("n", side), ("k", 64))
        problem = Problem(side * SM_90A.units * waves, side, 8192, 16, folded=False)
        return cost(SM_90A, problem, Schedule(blocks=blocks, stages=3, warps=warps)) - START

    assert (time(2) < 1.7 * time(1)) == hidden


def test_few_blocks_ask_a_faster_l2() -> None:
    """What all multiprocessors share is a smaller part for each where more ask."""
    blocks = (("m", 64), ("n", 192), ("k", 64))
    few, all = (
        cost(SM_90A, Problem(64, 192 * n, 8192, 16, folded=False, misaligned=(True, True)),
             Schedule(blocks=blocks, stages=6))
        for n in (40, SM_90A.units)
    )  # fmt: skip
    assert few < 0.8 * all


@pytest.mark.parametrize("target", GPUS, ids=lambda t: t.arch)
@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_candidates_are_legal(target: Target, bits: int) -> None:
    """Sums fit registers, rings shared memory; what the target does not have is no candidate."""
    for seed in range(12):
        convolution = image(784, 128, 64 * (seed + 1), 9, bits, streamed=seed % 2 == 0)
        for problem in (drawn(seed, bits), convolution):
            found = options(target, problem)
            assert found
            for s in found:
                rows, wide = s.block("m"), s.block("n") * problem.accumulators
                warps = s.warps
                assert wide <= 256 and rows * wide <= 32 * warps * 256
                ring = s.stages * stage_bytes(problem, rows, s.block("n"), s.block("k"))
                assert s.stages >= 2 and ring <= target.shared_bytes
                hopper = s.persistent or s.stream_k or s.cluster > 1 or s.tf32x3
                assert target.wgmma or not hopper
                assert not problem.folded or not (s.stream_k or s.cluster > 1)
                assert s.neighbours == (1, 1) or any(problem.misaligned)
                if s.stream_k and not s.persistent:
                    assert 2 * problem.tiles(rows, s.block("n")) <= target.units


@pytest.mark.parametrize("target", [SM_90A, SM_80, *CPUS], ids=lambda t: t.arch)
def test_rules_take_the_least(target: Target) -> None:
    for seed in range(20):
        problem = drawn(seed, 16 if target.is_cuda else 32)
        chosen = cost(target, problem, RULES[target.name].matmul(target, problem))
        least = min(cost(target, problem, s) for s in options(target, problem))
        assert chosen == pytest.approx(least, rel=1e-6)


def test_open_sizes_are_those_of_the_example() -> None:
    """Whose tiles nobody shares, as other sizes have other ones; and no guard is left."""
    with Sizes({"batch": 197}) as sizes:
        problem = Problem(symbol("batch"), 768, 3072, 16, folded=False)
        found = RULES["cuda"].matmul(SM_90A, problem)
        assert problem.closed() == Problem(197, 768, 3072, 16, folded=False, open=True)
        assert not found.stream_k and not sizes.guards
    found = RULES["cuda"].matmul(SM_90A, Problem(128, 768, 3072, 16, folded=False))
    assert found.cluster == 4


@pytest.mark.parametrize("bits", [16, 32])
def test_rows_do_not_decide_how_k_is_added_up(bits: int) -> None:
    """Of batch invariant numerics: one unit, one depth, k whole, whatever the number of rows."""
    rule = ROW_ORDER_RULES["cuda"]
    for n, k in ((768, 3072), (4096, 4096), (64, 8192)):
        found = [
            rule.matmul(SM_90A, Problem(m, n, k, bits, folded=False)) for m in (1, 8, 197, 4096)
        ]
        found += [rule.conv(SM_90A, image(m, n, 128, 9, bits, streamed=True)) for m in (49, 25088)]
        assert {s.cluster for s in found} == {1} == {s.split_k for s in found}
        assert not any(s.stream_k or s.tf32x3 for s in found)
        assert len({s.block("k") for s in found}) == 1
        assert bits > 16 or all(s.block("m") >= 64 for s in found)


@pytest.mark.parametrize("target", [SM_90A, SM_80, X86_64_V4], ids=lambda t: t.arch)
def test_the_tuner_tries_in_the_order_of_cost(target: Target) -> None:
    program = program_of(product(1000, 768, 2048, np.float16), target)
    problem = Problem(1000, 768, 2048, 16 if target.is_cuda else 32, folded=False)
    found = ranked(program, target, problem)
    costs = [time for _, time in found]
    assert all(time is not None and time > 0 for time in costs)
    first = [time for time in costs[1 : 1 + len(costs) * 3 // 4] if time is not None]
    assert first == sorted(first) and len(first) >= 4
