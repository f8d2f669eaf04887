"""Matmuls: one or several dot_generals over one m x n space, with prologue and epilogue.

Batch dims are a grid axis, free dims of the left operand m, of the right n, contracted dims k.
Frame axes are m, k, n in this order, so that operand tiles come out as [m, k] and [k, n]. Operands
are materialised inside the loop over k (the prologue), and what follows the dots is computed on
the accumulators at coordinates that follow from theirs (the epilogue).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fuser.base.target import Target
from fuser.dtypes import DType, f32
from fuser.errors import LoweringError
from fuser.graph.ir import Node, Value
from fuser.graph.numerics import Numerics
from fuser.graph.ops.quantised import bits_of
from fuser.graph.sizes import certain, divides, is_symbolic, size_hint
from fuser.partition.region import Partition, Region
from fuser.tilegen.emit import deep, digits, packing
from fuser.tilegen.emit.constants import uniform
from fuser.tilegen.emit.dot_operands import (
    SECTOR,
    dot_dtype,
    dot_op,
    dot_unit,
    late_scales,
    lone_of,
    operand,
    panel,
    widens,
)
from fuser.tilegen.emit.dot_shape import DotShape, dot_shape
from fuser.tilegen.emit.map import program
from fuser.tilegen.emit.maps import Coords, delinearise
from fuser.tilegen.emit.placement import Places, spread, store_placed
from fuser.tilegen.emit.primitives import neutral_tail, reduced_axes, rounded
from fuser.tilegen.emit.space import Emission, Piece
from fuser.tilegen.emit.weights import decoded_by, k_block
from fuser.tilegen.index import Index, axis, index
from fuser.tilegen.program import TileProgram
from fuser.tilegen.rules import rules_of
from fuser.tilegen.rules.common import block_of
from fuser.tilegen.rules.problem import Problem
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.value import Value as TileValue

N = 2
"""The frame axis of columns."""
MOVEMENT = ("reshape", "transpose", "broadcast", "slice")


def emit(
    region: Region, partition: Partition, target: Target, schedule: Schedule | None
) -> tuple[TileProgram, ...]:
    """The programs of a contraction region."""
    nodes = [node for node in region.nodes if node.op == "dot_general"]
    # weights on the left of every dot: let them be the columns, which targets pack
    flipped = all(_is_weights(v) for node in nodes for v in node.inputs[:1])
    dots = [dot_shape(node, flipped) for node in nodes]
    first = dots[0]
    if any((d.b, d.m, d.k) != (first.b, first.m, first.k) for d in dots):
        raise LoweringError("dots of one region differ in m or k", where=region.name)
    columns = max(d.n for d in dots)
    packed = _packed_schedule(region, dots, target, partition.graph.numerics)
    rules = rules_of(target, partition.graph.numerics)
    problem = _problem(region, dots, target, partition)
    chosen = schedule or packed or rules.matmul(target, problem)
    k_blocks = rules.k_blocks
    undecided = schedule is None and packed is None
    if undecided and k_blocks is not None and _may_be_deep(region, dots, target, chosen):
        chosen = k_blocks(target, replace(problem, bits=first.left.dtype.bits), chosen)
    if chosen.digits:
        return digits.emit(region, partition, target, chosen, dots)
    before: tuple[TileProgram, ...] = ()
    if chosen.packs:
        before = packing.emit(region, partition, target, chosen, dots)
    if chosen.k_panels is not None:
        return (*before, deep.emit(region, partition, target, chosen, dots))
    em = Emission(region, partition, target, chosen)
    batch, m, n, k = frame(em, first.b, first.m, columns, first.k)
    guards = [(m, first.m)]
    if problem.panel:
        _sum_panels(em, problem.panel)
    sums = sums_beside(em, first)
    if not sums:
        _take_totals(em, m, first.m)
    accumulators = multiply(em, dots, batch, m, n, k, sums)
    places: Places = {}
    pieces: dict[Value, Piece] = {}
    for dot, piece in zip(dots, accumulators, strict=True):
        places[dot.node.output] = dot.result_coords(batch, m, n), [*guards, (n, dot.n)]
        pieces[dot.node.output] = piece
    store_placed(em, spread(em, places, pieces))
    return (*before, em.finish(sum(2 * d.b * d.m * d.n * d.k for d in dots)))


def _sum_panels(em: Emission, panel: int) -> None:
    """Let sums over panels of columns fold the columns of a block. Raises LoweringError."""
    columns = em.schedule.block("n")
    if columns != panel:
        what = f"sums of {panel} columns take blocks of {panel} columns, not of {columns}"
        raise LoweringError(what, where=em.region.name)
    em.reduction_axes[panel] = axis(N, panel)


def _take_totals(em: Emission, m: Index, rows: int) -> None:
    """Add up sums over panels of rows in front of the loop, under whose first copies they travel,
    and not behind it."""
    for node in em.region.nodes:
        if "panels" in node.attrs and node.output.type.size == rows:
            at = tuple(delinearise(m, node.output.shape))
            em.provide(node.output, at, em.tile(node.output, at))


def _is_weights(value: Value) -> bool:
    made = value.node
    return value.constant is not None or (made is not None and made.op == "dequantize")


def _is_plain_constant(dot: DotShape) -> bool:
    """Whether the right operand is a constant that panels are packed of (dot_operands.py)."""
    right = dot.right
    return right.constant is not None and right.dtype.bits == 16 and uniform(right) is None


def _decoded_bits(region: Region, dots: list[DotShape]) -> int:
    """Bits of the codes that all right operands are decoded from; 0 where one is not."""
    nodes = [decoded_by(region, dot.right) for dot in dots]
    found = [bits_of(node.attrs["numbers"]) for node in nodes if node is not None]
    return max(found) if len(found) == len(dots) else 0


def _packed_schedule(
    region: Region, dots: list[DotShape], target: Target, numerics: Numerics
) -> Schedule | None:
    """The schedule of a CPU matmul whose weights are decoded on the way; None for others. Under
    fast numerics rows may be split into digits, which lose small elements beside large ones."""
    nodes = [decoded_by(region, dot.right) for dot in dots]
    known = [node for node in nodes if node is not None]
    first = dots[0]
    rule = rules_of(target, numerics).packed_matmul
    if rule is None or not known or dot_unit(target, first.node) is not None:
        return None
    blocks = {
        k_block(node, dot.contract[1]) if node is not None else 0
        for node, dot in zip(nodes, dots, strict=True)
    }
    block = blocks.pop() if len(blocks) == 1 else None
    columns = max(dot.n for dot in dots)
    narrow = (
        numerics.allows("fast")
        and not is_folded(region)
        and all(
            dot.left is first.left and digits.can_split(dot, node, block)
            for node, dot in zip(nodes, dots, strict=True)
        )
    )
    return rule(target, first.m, columns, first.k, block, len(dots), narrow)


def _may_be_deep(region: Region, dots: list[DotShape], target: Target, schedule: Schedule) -> bool:
    """Whether a matmul may take its k in blocks (deep.py): of packed operands, whose results
    are not reduced."""
    if is_folded(region) or dot_unit(target, dots[0].node) is not None:
        return False
    return schedule.packs or all(
        dot.right.constant is not None and uniform(dot.right) is None for dot in dots
    )


def _problem(
    region: Region, dots: list[DotShape], target: Target, partition: Partition | None = None
) -> Problem:
    """The matmul of a region as its schedule rules see it."""
    first, nodes = dots[0], [dot.node for dot in dots]
    plain = not target.is_cuda and dot_unit(target, first.node) is None
    return Problem(
        first.m, max(dot.n for dot in dots), first.k, _operand_bits(target, first), len(dots),
        first.b, dot_unit(target, first.node),
        streamed=_are_streamed(region, target, dots),
        misaligned=(
            not _are_streamed(region, target, dots, (0,), SECTOR),
            not _are_streamed(region, target, dots, (1,), SECTOR),
        ),
        folded=is_folded(region), codes=any("codes" in node.attrs for node in nodes),
        packed=all(map(_is_plain_constant, dots)),
        panel=max(node.attrs.get("panel", 0) for node in nodes),
        decoded=_decoded_bits(region, dots),
        pitch=packing.pitch_of(region, dots, target, partition) if plain else None,
    )  # fmt: skip


def matmul_of(region: Region, target: Target) -> Problem | None:
    """The matmul of a region as its schedule rules see it; None where it has none, or a unit of
    the target decides about the blocks."""
    nodes = [node for node in region.nodes if node.op == "dot_general"]
    if region.kind != "contraction" or not nodes or dot_unit(target, nodes[0]) is not None:
        return None
    dots = [dot_shape(node, all(_is_weights(n.inputs[0]) for n in nodes)) for node in nodes]
    first = dots[0]
    if is_symbolic(first.b, first.m, first.k, *(d.n for d in dots)):
        return None
    if _packed_schedule(region, dots, target, Numerics()) is not None:
        return None
    return _problem(region, dots, target)


def is_folded(region: Region) -> bool:
    """Whether the region reduces, or scans, what it computes or reads."""
    ops = {node.op for node in region.nodes}
    return any(op.startswith("reduce_") or op in ("argmax", "argmin", "cumsum") for op in ops)


def behind_anchors(region: Region) -> set[Value]:
    """The values of a region that its matmuls and convolutions take part in."""
    found: set[Value] = set()
    for node in region.nodes:
        if node.op in ("dot_general", "conv") or not found.isdisjoint(node.inputs):
            found.update(node.outputs)
    return found


def _are_streamed(
    region: Region, target: Target, dots: list[DotShape], sides: Sequence[int] = (0, 1),
    piece: int = 16,
) -> bool:  # fmt: skip
    """Whether each operand of each dot (0 left, 1 right) may be copied by itself."""
    operands = [((dot.left, dot.right)[side], dot.node) for dot in dots for side in sides]
    return all(can_stream(region, v, dot_dtype(target, node), piece) for v, node in operands)


def can_stream(region: Region, value: Value, dtype: DType, piece: int = 16) -> bool:
    """Whether an operand may be copied by itself in pieces of so many bytes: it is memory behind
    index maps, and its rows begin at such pieces (constants are packed so that they do).

    dtype: what is multiplied.
    """
    inside = {node.output for node in region.nodes}
    while value in inside and value.node is not None:
        if value.node.op not in MOVEMENT and not widens(value.node, dtype):
            break
        value = value.node.inputs[0]
    if value in inside:
        return False
    if value.constant is not None:
        return True
    return value.type.rank > 0 and divides(piece, value.shape[-1] * value.dtype.bytes)


def sums_beside(em: Emission, dot: DotShape) -> list[Node]:
    """The sums of rows that a loop over k takes beside its dots, of the operand that these read,
    where each is of what is known in front of the loop; else none."""
    nodes = [node for node in em.region.nodes if node.op.startswith("reduce_")]
    if not nodes or dot.b != 1 or not em.target.is_cuda:
        return []
    made = behind_anchors(em.region)
    folded: set[Value] = set()
    for node in em.region.nodes:
        if not folded.isdisjoint(node.inputs) and node in nodes:
            return []
        if node in nodes or not folded.isdisjoint(node.inputs):
            folded.update(node.outputs)
    for node in nodes:
        x = node.inputs[0]
        whole = node.op == "reduce_sum" and reduced_axes(node) == (x.type.rank - 1,)
        alike = x.shape[-1] == dot.k and node.output.type.size == dot.m
        if not (whole and alike) or node.output in made:
            return []
    return nodes


def frame(em: Emission, b: int, m: int, n: int, k: int) -> tuple[Index, Index, Index, Index]:
    """Indices (batch, m, n) of the program's block, and k within one block of it."""
    block = em.schedule.block
    offset = 0 if em.target.is_cuda and b == 1 else 1
    batch = program(em, 0, b, 1, "") if b > 1 else Index(0)
    # frame axes in the order m, k, n whatever the order of the grid
    grid_m, grid_n = (offset, offset + 1) if em.target.is_cuda else (offset + 1, offset)
    at_m, grid_n = rows_program(em, grid_m, grid_n, m)
    at_k = em.axis(block_of(k, block("k")) if not em.target.is_cuda else block("k"))
    at_n = program(em, grid_n, n, block("n"))
    return batch, at_m, at_n, at_k


def rows_program(em: Emission, grid_m: int, grid_n: int, m: int) -> tuple[Index, int]:
    """The rows of the program's block, and the grid axis that is left for its columns. On a CPU
    the schedule's group is that many blocks of rows, the grid axis before the columns."""
    block, group = em.schedule.block("m"), em.schedule.group
    if em.target.is_cuda or not 0 < group < size_hint(-(-m // block)):
        return program(em, grid_m, m, block), grid_n
    if is_symbolic(m):
        # groups of one size, so that few programs hang over the rows
        blocks = -(-m // block)
        group = -(-blocks // -(-blocks // group))
    outer = index(em.b.program_id(grid_n, -(-m // (block * group)))) * group
    inner = index(em.b.program_id(grid_m + 1, group))
    return (outer + inner) * block + em.axis(block), grid_n + 1


def multiply(
    em: Emission, dots: list[DotShape], batch: Index, m: Index, n: Index, inner: Index,
    sums_of: Sequence[Node] = (),
) -> list[Piece]:  # fmt: skip
    """The accumulators of all dots, over frame axes (m, n). sums_of: sums of rows that the loop
    takes beside them, which are provided behind it."""
    depth, total = em.extents[1], dots[0].k
    kinds = [dot_dtype(em.target, d.node) for d in dots]
    late = [late_scales(em, dot) for dot in dots]
    sums = [
        f32 if dot.node.attrs.get("codes") else kind.accumulate
        for dot, kind in zip(dots, kinds, strict=True)
    ]
    inits = [Piece(dtype, (0, 2), splat=0.0 if dtype.is_float else 0) for dtype in sums]
    rows = [delinearise(m, node.output.shape) for node in sums_of]
    beside = [Piece(f32, (0, 1), splat=0.0) for _ in sums_of]

    def body(at: Index, carried: list[Piece]) -> list[Piece]:
        k = at + inner
        em.load_guards = [] if divides(depth, total) else [(k, total)]
        cache: dict[tuple[Value, Coords], TileValue] = {}
        results = []
        products, partial = carried[: len(dots)], carried[len(dots) :]
        for dot, kind, acc, weights in zip(dots, kinds, products, late, strict=True):
            at_lhs = (dot.left, dot.coords(0, batch, m, k))
            if at_lhs not in cache:
                cache[at_lhs] = operand(em, *at_lhs, (0, 1), kind, lone_of(em, m, dot.m))
            a = cache[at_lhs]
            if weights is not None:
                at_rhs = (batch, k, n), dot.coords(1, batch, n, k)
                b = em.full_value(weights.numbers(em, *at_rhs), (1, 2))
                blocked = bool(k_block(weights.node, dot.contract[1]))
                c = em.full_value(inits[0] if blocked else acc, (0, 2))
                part = Piece(acc.dtype, (0, 2), dot_op(em, a, b, c))
                if blocked:
                    scale = weights.scale(em, (batch, at, n), dot.coords(1, batch, n, at))
                    part = em.multiply_add(part, scale, acc)
                results.append(part)
                continue
            b = panel(em, dot, batch, n, k, kind)
            c = em.full_value(acc, (0, 2))
            codes = dot.node.attrs.get("codes", "")
            results.append(Piece(acc.dtype, (0, 2), dot_op(em, a, b, c, codes)))
        for node, at_row, part in zip(sums_of, rows, partial, strict=True):
            x = em.tile(node.inputs[0], (*at_row, k))
            results.append(em.map("add", part, neutral_tail(em, "sum", x, k, total)))
        em.load_guards = []
        return results

    if certain(depth - total):
        results = body(Index(0), [*inits, *beside])
    else:
        results = em.loop(0, total, depth, [*inits, *beside], body)
    for node, at_row, part in zip(sums_of, rows, results[len(dots) :], strict=True):
        em.provide(node.output, tuple(at_row), em.reduce("sum", part, 1))
    del results[len(dots) :]
    for number, (dot, weights) in enumerate(zip(dots, late, strict=True)):
        if weights is not None and not k_block(weights.node, dot.contract[1]):
            scale = weights.scale(em, (batch, Index(0), n), dot.coords(1, batch, n, Index(0)))
            results[number] = em.map("mul", results[number], scale)
    outputs = [d.node.output.dtype for d in dots]
    return [
        rounded(em, em.cast(piece, dtype.compute), dtype)
        for piece, dtype in zip(results, outputs, strict=True)
    ]


def _operand_bits(target: Target, dot: DotShape) -> int:
    """Of an element that a GPU multiplies; a CPU's registers hold sums of its own dtype."""
    return (dot_dtype(target, dot.node) if target.is_cuda else dot.left.dtype).bits
