"""Loops and branches. A loop whose loads feed dots copies what they load at its head; what is
prefetched, by a ring of stages, is made of it later (schedule/pipeline_plan.py):

    for i:
        copy(i); wait until it has landed
        body(i)
"""

from __future__ import annotations

from fuser.backend.nvptx.cluster.cluster_reduction import merge_over_cluster
from fuser.backend.nvptx.cluster.loop_bounds import bounds, has_iterations, needs_long
from fuser.backend.nvptx.ir import op as ir
from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.values import Operand, Tile
from fuser.backend.nvptx.layouts.assignment import summing_dots
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.lowering.dot import add_partials, operand, zeros
from fuser.backend.nvptx.memory.operand_staging import (
    commit_copies,
    copy_async,
    land_copies,
    wait_copies,
)
from fuser.backend.nvptx.schedule import consumer_warps
from fuser.backend.nvptx.schedule.attention_pipeline import AttentionPipeline
from fuser.backend.nvptx.schedule.dot_chain import find_dot_chain
from fuser.backend.nvptx.schedule.pipeline_plan import (
    Pipeline,
    plan_pipeline,
    schedule_copies,
)
from fuser.backend.nvptx.schedule.producer_ring import CarriedRings, Stream, advance
from fuser.backend.nvptx.schedule.tf32x3 import Tf32x3Loop
from fuser.backend.nvptx.schedule.while_loops import long_for, yielded
from fuser.backend.nvptx.tile_scheduler.tile_loop import arrive_order_barrier
from fuser.tilegen import ops
from fuser.tilegen.ir import Block, Op


def lower_for(low: Builder, op: ops.For) -> None:
    """Emit a loop. Carried tiles become phis, one a register."""
    e = low.scalars
    if needs_long(low, op):
        long_for(low, op)
        return
    start, stop = bounds(low, op)
    carried = op.body.params[1:]
    inits = [
        low.tile(value, low.layout(param)) for value, param in zip(op.inits, carried, strict=True)
    ]
    if isinstance(start, int) and isinstance(stop, int) and start >= stop:
        for result, init in zip(op.results, inits, strict=True):
            low.env[result] = init
        return
    _prepare_operands(low, op.body)
    once = isinstance(start, int) and isinstance(stop, int) and start + op.step >= stop
    if once:
        land_copies(low)
        low.env[op.body.params[0]] = start
        for param, init in zip(carried, inits, strict=True):
            low.env[param] = init
        low.block(op.body)
        for result, final in zip(op.results, yielded(low, op.body, inits), strict=True):
            low.env[result] = final
        return
    stream = low.producer.streams.get(op)
    pipeline = None if stream else plan_pipeline(low, op)
    # copies from before the loop are older than those of its body: who waits for these has those
    pending = low.copies.pending and pipeline is not None
    if not pending:
        land_copies(low)
    if stream and stream.split:
        low.env[op.results[0]] = Tf32x3Loop(low, stream, stream.split).emit(inits[0])
        _free_ring(low, stream)
        return
    chain = find_dot_chain(low, stream) if stream else None
    if sum(isinstance(item, ops.Dot) for item in op.body.ops) == 2:
        _decide_chain(low, stream is not None, chain is not None)
    if stream and chain:
        finals = AttentionPipeline(low, stream, chain).emit(start, stop, inits)
        _free_ring(low, stream)
        _bind_results(low, op, finals)
        return
    sums = {
        op.body.params.index(dot.acc) - 1: dot
        for dot in summing_dots(op, low.assignment) if low.assignment.dots[dot].partial
    }  # fmt: skip
    whole = {place: inits[place] for place in sums}
    for place, dot in sums.items():
        inits[place] = zeros(low, dot)
    if stream:
        consumer_warps.start_sums(low, stream, inits)
    variable = e.name_of()
    scalars: list[str] = [variable]
    firsts: list[Operand] = [start]
    if stream:
        stage, phase = e.name_of(), e.name_of()
        scalars += [stage, phase]
        firsts += stream.ring
    rings = CarriedRings(low, low.producer.streams.values(), op)
    scalars += rings.names
    firsts += rings.firsts
    ring = pipeline or (stream if stream and stream.in_flight else None)
    phis = [low.like(init) for init in inits]
    certain = has_iterations(low, op)
    loop = gpu.For(
        stop=stop, scalars=tuple(scalars), firsts=tuple(firsts), params=tuple(phis),
        inits=tuple(inits), body=ir.Block(), certain=certain,
        stages=ring.stages if ring else 1, in_flight=ring.in_flight if ring else 0,
        goes_on=stream is not None and stream.goes_on,
        results=tuple(low.like(init) for init in inits),
    )  # fmt: skip
    region = low.region(loop)
    low.env[op.body.params[0]] = variable
    for param, phi in zip(carried, phis, strict=True):
        low.env[param] = phi
    if stream:
        stream.enter(stage, phase)
        stream.count(start, variable)
        consumer_warps.begin_iteration(low, stream)
    elif pipeline:
        _issue_copies(low, pipeline)
        schedule_copies(loop, pipeline)
        low.copies.await_later(False)
    low.block(op.body)
    results = yielded(low, op.body, inits)
    following: list[Operand] = [e.compute("add", variable, op.step)]
    if stream:
        stream.turn(advance(low, stream, stage, phase))
        following += stream.ring
    following += rings.ends()
    low.do(gpu.Yield(scalars=tuple(following), values=tuple(results)))
    region.following()
    finals = list(loop.results)
    if not certain:
        rings.leave()
    if stream and not certain:
        stream.turn((stage, phase))
    low.copies.await_later(pending)  # there may have been no iteration
    if stream:
        arrive_order_barrier(low, stream)
        _free_ring(low, stream)
    for buffer in pipeline.tiles if pipeline else []:
        low.shared.free(buffer.slot)
    for place, dot in sums.items():
        finals[place] = add_partials(low, dot, finals[place], whole[place])
    _bind_results(low, op, finals)


def _free_ring(low: Builder, stream: Stream) -> None:
    """Others may have the buffers of a loop, after the last loop that uses them."""
    leader = stream.leader or stream
    if stream is [s for s in low.producer.streams.values() if leader in (s, s.leader)][-1]:
        for channel in stream.channels:
            for buffer in channel.tiles:
                low.shared.free(buffer.slot)


def _decide_chain(low: Builder, streamed: bool, chained: bool) -> None:
    """Note whether the two matmuls of a loop run under what is between them."""
    mechanism = "matmuls under softmax"
    if chained:
        low.decisions.apply(mechanism, "both matmuls of an iteration are in flight")
    elif not streamed:
        low.decisions.refuse(mechanism, "no producer warp feeds the loop")
    else:
        low.decisions.refuse(mechanism, "no two chained matmuls with straight code between them")


def _bind_results(low: Builder, op: ops.For, finals: list[Tile]) -> None:
    """Give the results what the last iteration left, in all blocks where these shared the
    iterations."""
    if op in low.assignment.reduction_merges:
        low.env.update(merge_over_cluster(low, op, finals))
    else:
        low.env.update(zip(op.results, low.scheduler.complete(finals), strict=True))


def _prepare_operands(low: Builder, body: Block) -> None:
    """Make what dots read, before the loop, of what is there then."""
    inside = {value for op in body.walk() for value in op.results}
    inside |= {value for op in body.walk() for block in op.blocks() for value in block.params}
    inside |= set(body.params)
    for op in body.walk():
        if low.attempt.frugal or not isinstance(op, ops.Dot):
            continue
        if low.assignment.dots[op].kind == "fma":
            continue
        for role in ("a", "b"):
            value = getattr(op, role)
            if value not in inside and isinstance(entry := low.env.get(value), Tile):
                plan = low.assignment.dots[op]
                low.env.prepare(entry, role, plan, operand(low, op, role))


def _issue_copies(low: Builder, plan: Pipeline) -> None:
    """The head of an iteration: copy what it loads, and wait for it."""
    for scalar in plan.scalars:
        low.op(scalar)
    for load, tile in zip(plan.loads, plan.tiles, strict=True):
        copy_async(low, load, tile)
        low.env[load.result] = tile
    commit_copies(low)
    wait_copies(low, 0)
    low.copies.piped.update(plan.loads)


# branches -----------------------------------------------------------------------------------------


def lower_if(low: Builder, op: ops.If) -> None:
    """A branch that every thread of the program takes alike."""
    land_copies(low)
    condition = low.tile(op.condition, low.assignment.scalar_layout)
    results = [low.new(r.dtype, r.shape, low.layout(r), r.name) for r in op.results]
    region = low.region(
        gpu.If(condition=condition, then=ir.Block(), other=ir.Block(), results=tuple(results))
    )
    for block in (op.then, op.other):
        low.block(block)
        last: Op = block.ops[-1]
        assert isinstance(last, ops.Yield)
        tiles = [
            low.tile(value, low.layout(result))
            for value, result in zip(last.args, op.results, strict=True)
        ]
        land_copies(low)
        low.do(gpu.Yield(values=tuple(tiles)))
        region.following()
    low.env.update(zip(op.results, results, strict=True))
