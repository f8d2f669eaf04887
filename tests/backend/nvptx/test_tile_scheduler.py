"""Tile schedulers: each asked, block by block, for its tiles and for where rings are then, by
integers that are computed instead of recorded; and the loop over tiles, simulated."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fuser.backend.nvptx import compile_kernel, gpu_text
from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.integers import evaluate
from fuser.backend.nvptx.ir.parse import parse_program
from fuser.backend.nvptx.lowering.integers import Integers
from fuser.backend.nvptx.schedule.producer_ring import Stream, ring_after
from fuser.backend.nvptx.simulate import simulate
from fuser.backend.nvptx.simulate.protocol import verify_protocol
from fuser.backend.nvptx.tile_scheduler.persistent import Persistent
from fuser.backend.nvptx.tile_scheduler.static_load_balance import StaticLoadBalance, longest_first
from fuser.backend.nvptx.tile_scheduler.stream_k import StreamK
from fuser.backend.nvptx.tile_scheduler.tile_scheduler import TileScheduler
from fuser.base.target import SM_90A
from fuser.dtypes import f16
from fuser.tilegen import ops
from fuser.tilegen.interpret import run
from fuser.tilegen.ir import Kernel
from fuser.tilegen.stream_k import cut_tiles
from tests.backend.nvptx import kernels
from tests.backend.nvptx.test_simulate import arrays_of
from tests.backend.nvptx.test_static_load_balance import kernel_of
from tests.numerics import assert_close

STEP = 32
Make = Callable[[Any, ops.For, int, int], TileScheduler | None]
"""A scheduler of a kernel, its loop, its programs and its blocks."""


class Block(Integers):
    """Computes what a block would, instead of writing code. chosen: the program of its tile."""

    def __init__(self, number: int, programs: int) -> None:
        super().__init__()
        self.number, self.chosen = number, -1
        self.scalars = self
        self.order = SimpleNamespace(unit="ctaid", programs=programs, choose=self._choose)
        self.needs = SimpleNamespace(tables={})

    def integer(self, fn: str, type: str, operands: tuple[Any, ...], to: str = "") -> Any:
        return self.number if fn == "ctaid.x" else evaluate(fn, type, operands, to)

    def scalar_of(self, op: Any) -> Any:
        return self.needs.tables[op.table][op.at] if isinstance(op, gpu.ReadTable) else self.number

    def _choose(self, e: Integers, number: int) -> None:
        self.chosen = number


def persistent(low: Any, loop: ops.For, programs: int, blocks: int) -> TileScheduler:
    return Persistent(low, blocks)


def balanced(low: Any, loop: ops.For, programs: int, blocks: int) -> TileScheduler:
    return StaticLoadBalance(low, blocks, longest_first([n % 5 for n in range(programs)], blocks))


def stream_k(most: int) -> Make:
    def make(low: Any, loop: ops.For, programs: int, blocks: int) -> TileScheduler | None:
        iterations = loop.stop.constant // loop.step
        cut = cut_tiles(programs % blocks, iterations, blocks, most)
        if cut is None:  # nothing is left over, or a block would have an iteration of each at most
            left = programs % blocks
            assert left == 0 or -(-left // (blocks - left)) >= iterations - 1
            return None
        assert cut.parts < most and 0 < cut.waves < 1 and cut.tails + cut.left <= blocks
        return StreamK(low, loop, programs, blocks, cut)

    return make


SCHEDULERS = {
    "persistent": persistent, "balanced": balanced,
    "stream-k, parts of 2": stream_k(2), "4": stream_k(4), "8": stream_k(8),
}  # fmt: skip


def loop_of(iterations: int) -> ops.For:
    kernel = kernels.matmul(8, 8, STEP * iterations)
    return next(op for op in kernel.walk() if isinstance(op, ops.For))


def tiles(scheduler: TileScheduler) -> Iterator[Any]:
    """The numbers of a block's tiles."""
    at: Any = scheduler.first()
    while scheduler.is_tile(at):
        yield at
        at = scheduler.next(at)


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("iterations", [2, 3, 17])
@pytest.mark.parametrize("blocks", [1, 2, 7, 19])
def test_every_iteration_is_done_once(name: str, iterations: int, blocks: int) -> None:
    """Whoever has the first iteration of a tile owns it; others do their parts before anything
    else, in blocks of lower numbers."""
    loop = loop_of(iterations)
    for programs in range(1, 2 * blocks + 3):
        done = np.full((programs, iterations), -1)
        for number in range(blocks):
            block = Block(number, programs)
            scheduler = SCHEDULERS[name](block, loop, programs, blocks)
            if scheduler is None:
                done[:] = 0
                break
            owns = False
            for at in tiles(scheduler):
                with scheduler.tile(at):
                    start, stop = (
                        int(end) // STEP for end in scheduler.bounds(0, loop.stop.constant)
                    )
                assert scheduler.iterations(loop, at) == stop - start > 0
                own = done[block.chosen, start:stop]
                assert len(own) == stop - start and (own == -1).all()
                own[:] = number
                owns |= start == 0
                assert start == 0 or not owns
        assert (done >= 0).all() and (done.max(axis=1) == done[:, 0]).all()


@pytest.mark.parametrize("name", [name for name in SCHEDULERS if name != "balanced"])
@pytest.mark.parametrize("iterations", [3, 8, 17])
@pytest.mark.parametrize("stages", [2, 3, 8])
def test_consumer_groups_know_where_the_ring_is(name: str, iterations: int, stages: int) -> None:
    """Each of two has every other tile of a block, and begins it where the producer does."""
    loop, blocks = loop_of(iterations), 7
    stream = Stream(loop, [], None, stages=stages)

    def after(low: Block, scheduler: TileScheduler, at: Any) -> None:
        iterations = scheduler.iterations(loop, at)
        stream.turn(ring_after(low, stream, iterations))  # type: ignore[arg-type]

    for programs, number in itertools.product((10, 31), range(blocks)):
        block = Block(number, programs)
        scheduler = SCHEDULERS[name](block, loop, programs, blocks)
        assert scheduler is not None
        filled, want = 0, list[tuple[int, tuple[int, int]]]()
        for at in tiles(scheduler):
            want.append((at, (filled % stages, filled // stages % 2)))
            filled += scheduler.iterations(loop, at)  # type: ignore[operator]
        found = list[list[tuple[int, tuple[int, int]]]]()
        for group in (0, 1):
            stream.turn((0, 0))
            if group:
                after(block, scheduler, scheduler.first())
            at, own = scheduler.next(scheduler.first(), group), []
            while scheduler.is_tile(at):  # type: ignore[arg-type]
                own.append((at, stream.ring))
                after(block, scheduler, at)
                at = scheduler.next(at)
                after(block, scheduler, at)
                at = scheduler.next(at)
            found.append(own)  # type: ignore[arg-type]
        assert found == [want[::2], want[1::2]]


def ping_pong() -> Kernel:
    return kernels.matmul(
        384, 128, 320, f16, (128, 128, 64), stages=3, persistent=True, teams=2, epilogue=False
    )


def attention_of_pairs() -> Kernel:
    """Two warp groups take turns at the tensor cores, in each of two blocks that are fed for
    each other."""
    kernel = kernel_of((1, 3, 3, 256, 128, 64, 64, None))
    kernel.schedule = replace(kernel.schedule, neighbours=(1, 2))
    return kernel


@pytest.mark.parametrize("make", [ping_pong, attention_of_pairs])
def test_a_block_has_several_tiles(make: Callable[[], Kernel], rng: np.random.Generator) -> None:
    kernel, target = make(), replace(SM_90A, units=2)
    assert compile_kernel(kernel, target).launch[0] == 2 < math.prod(kernel.grid)
    program = parse_program(gpu_text(kernel, target))
    verify_protocol(program)
    found = arrays_of(kernel, rng)
    want = {name: array.copy() for name, array in found.items()}
    run(kernel, want)
    simulate(program, found)
    for buffer in kernel.buffers:
        if buffer.role == "output":
            assert_close(found[buffer.name], want[buffer.name], buffer.dtype, 320)
