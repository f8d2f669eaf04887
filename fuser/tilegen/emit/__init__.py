"""Regions to tile programs: one emitter for each kind of iteration space, on one shared core.

space.py is the core (coordinates, pieces, memo), maps.py the index maps of movement primitives,
memory.py views, primitives.py the tile of each primitive (and scatter.py, weights.py). The emitters
choose the frame, run their anchors, and leave everything before and after an anchor to the core.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

from fuser.base.limits import kernel_time
from fuser.base.target import Target
from fuser.errors import CompileTimeoutError, LoweringError
from fuser.partition.region import Partition, Region
from fuser.partition.ungroup import Code, is_divisible, ungroup
from fuser.tilegen.emit import (
    attention,
    contraction,
    conv,
    kernel_call,
    map,
    primitives,
    reduce,
    scatter,
    sort,
    weights,
    winograd,
)
from fuser.tilegen.emit.constants import asked
from fuser.tilegen.emit.space import LOWERINGS
from fuser.tilegen.emit.twins import Twins
from fuser.tilegen.program import TileProgram
from fuser.tilegen.schedule import Schedule

LOWERINGS.update(primitives.LOWERINGS | scatter.LOWERINGS | weights.LOWERINGS)


def emit(
    region: Region, partition: Partition, target: Target, schedule: Schedule | None = None
) -> tuple[TileProgram, ...]:
    """The tile programs that compute a region, in order; rules choose the schedule unless given.

    Raises LoweringError for a region that no emitter can express.
    """
    ops = {node.op for node in region.nodes}
    if region.kind == "append":
        return ()
    if region.kind == "host":
        raise LoweringError(f"no tile program for {sorted(ops)}", where=region.name)
    if region.kind == "kernel":
        return kernel_call.emit(region, partition, target, schedule)
    if "sort" in ops:
        return sort.emit(region, partition, target, schedule)
    if any(node.op == "scatter" and scatter.is_large(node) for node in region.nodes):
        return scatter.emit_large(region, partition, target, schedule)
    numerics = partition.graph.numerics
    mixes = "conv" in ops and schedule is None and numerics.allows("fast")
    mixes = mixes and not numerics.batch_invariant  # squares are chosen by how many there are
    way = winograd.choose(region, target) if mixes else None
    if way is not None:
        return winograd.emit(region, partition, target, way)
    if "conv" in ops:
        return conv.emit(region, partition, target, schedule)
    if region.kind == "attention":
        return attention.emit(region, partition, target, schedule)
    if "dot_general" in ops:
        return contraction.emit(region, partition, target, schedule)
    if ops & reduce.REDUCTIONS:
        return reduce.emit(region, partition, target, schedule)
    return map.emit(region, partition, target, schedule)


def emit_or_ungroup(
    region: Region,
    partition: Partition,
    target: Target,
    finish: Callable[[Sequence[TileProgram]], object] = len,  # nothing
    twins: Twins | None = None,
) -> tuple[TileProgram, ...]:
    """The tile programs of a region, or, where it cannot be one kernel or takes longer than a
    kernel may, of its parts, which replace it in the partition; a refusal there says why.

    finish: what else is to be done with the programs of a region, within its time. twins: regions
    that were met before, whose programs serve equal ones. Raises LoweringError for a node that no
    emitter can express alone; such a node may take its time.
    """
    twins = twins or Twins()
    programs: list[TileProgram] = []
    pending = [region]
    while pending:
        current = pending.pop()
        found = twins.find(current, partition)
        if found is not None:
            programs += found
            continue
        try:
            with kernel_time() if is_divisible(current) else nullcontext(), asked() as answers:
                found = emit(current, partition, target)
                finish(found)
            twins.keep(current, partition, found, answers)
            programs += found
        except (LoweringError, CompileTimeoutError) as error:
            late = isinstance(error, CompileTimeoutError)
            code: Code = "slow-kernel" if late else "not-emitted"
            parts = ungroup(partition, current, error.what, code)
            if not parts:
                raise
            pending.extend(reversed(parts))
    return tuple(programs)
