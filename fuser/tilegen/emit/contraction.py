"""Matrix products: one or several dot_generals over one m x n space, with prologue and epilogue.

Batch dims are a grid axis, free dims of the left operand m, of the right n, contracted dims k.
Frame axes are m, k, n in this order, so that operand tiles come out as [m, k] and [k, n]. Operands
are materialised inside the loop over k (the prologue), and what follows the dots is computed on
the accumulators at coordinates that follow from theirs (the epilogue).
"""

from __future__ import annotations

from fuser.dtypes import BY_NAME, DType, f32
from fuser.errors import LoweringError
from fuser.graph.ir import Node, Value
from fuser.graph.ops.registry import is_map
from fuser.graph.precision import operand_dtype
from fuser.graph.sizes import certain, divides, is_symbolic, size_hint
from fuser.partition.region import Partition, Region
from fuser.target import DotUnit, Target
from fuser.tilegen import deep_rules, dot_rules, rules
from fuser.tilegen.candidates import Product
from fuser.tilegen.emit.dot_shape import DotShape, dot_shape
from fuser.tilegen.emit.map import program
from fuser.tilegen.emit.maps import Coords, Guard, backward
from fuser.tilegen.emit.memory import uniform
from fuser.tilegen.emit.space import Emission, Piece, Places, spread
from fuser.tilegen.emit.weights import Matrix, decoded_by, dequantised, k_block
from fuser.tilegen.index import Index, index
from fuser.tilegen.program import Packing, TileProgram
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.value import Value as TileValue

PANEL = 16
"""Columns of a panel of weights for a dot unit: a vector of float32, or a row of a tile."""


SECTOR = 32
"""Bytes that a GPU's L2 answers a request with: rows that begin elsewhere take several requests."""
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
    packed = _packed_schedule(region, dots, target)
    codes = any("codes" in node.attrs for node in nodes)
    chosen = schedule or packed or dot_rules.dot_schedule(
        target, first.m, columns, first.k, _operand_bits(target, first), len(dots), first.b,
        dot_unit(target, first.node),
        streamed=all(can_stream(region, v) for d in dots for v in (d.left, d.right)),
        crooked=(
            not all(can_stream(region, d.left, SECTOR) for d in dots),
            not all(can_stream(region, d.right, SECTOR) for d in dots),
        ),
        folded=is_folded(region), codes=codes,
    )  # fmt: skip
    if schedule is None and packed is None and _may_be_deep(region, dots, target):
        chosen = deep_rules.deep_schedule(
            target, first.m, columns, first.k, first.left.dtype.bits, first.b, chosen
        )
    if chosen.extra.get("span"):
        from fuser.tilegen.emit import deep

        return (deep.emit(region, partition, target, chosen, dots),)
    em = Emission(region, partition, target, chosen)
    batch, m, n, k = frame(em, first.b, first.m, columns, first.k)
    accumulators = multiply(em, dots, batch, m, n, k)
    guards = [(m, first.m)]
    places: Places = {}
    pieces: dict[Value, Piece] = {}
    for dot, piece in zip(dots, accumulators, strict=True):
        places[dot.node.output] = dot.result_coords(batch, m, n), [*guards, (n, dot.n)]
        pieces[dot.node.output] = piece
    store_placed(em, spread(em, places, pieces))
    return (em.finish(sum(2 * d.b * d.m * d.n * d.k for d in dots)),)


def _is_weights(value: Value) -> bool:
    made = value.node
    return value.constant is not None or (made is not None and made.op == "dequantize")


def _packed_schedule(region: Region, dots: list[DotShape], target: Target) -> Schedule | None:
    """The schedule of a CPU product whose weights are decoded on the way; None for others."""
    nodes = [decoded_by(region, dot.right) for dot in dots]
    known = [node for node in nodes if node is not None]
    first = dots[0]
    if target.is_cuda or not known or dot_unit(target, first.node) is not None:
        return None
    blocks = {
        k_block(node, dot.contract[1]) if node is not None else 0
        for node, dot in zip(nodes, dots, strict=True)
    }
    block = blocks.pop() if len(blocks) == 1 else None
    columns = max(dot.n for dot in dots)
    return dot_rules.packed_schedule(target, first.m, columns, first.k, block, len(dots))


def _may_be_deep(region: Region, dots: list[DotShape], target: Target) -> bool:
    """Whether a product may take its k in blocks (deep.py): a CPU's, of packed weights, whose
    results are not reduced."""
    if target.is_cuda or is_folded(region) or dot_unit(target, dots[0].node) is not None:
        return False
    return all(dot.right.constant is not None and uniform(dot.right) is None for dot in dots)


def product_of(region: Region, target: Target) -> Product | None:
    """The product of a region as its schedule rules see it; None where it has none, or a unit of
    the target decides about the blocks."""
    nodes = [node for node in region.nodes if node.op == "dot_general"]
    if region.kind != "contraction" or not nodes or dot_unit(target, nodes[0]) is not None:
        return None
    dots = [dot_shape(node, all(_is_weights(n.inputs[0]) for n in nodes)) for node in nodes]
    first = dots[0]
    if is_symbolic(first.b, first.m, first.k, *(d.n for d in dots)):
        return None
    if _packed_schedule(region, dots, target) is not None:
        return None
    return Product(
        first.m, max(d.n for d in dots), first.k, _operand_bits(target, first), len(dots), first.b,
        streamed=all(can_stream(region, v) for d in dots for v in (d.left, d.right)),
    )  # fmt: skip


def is_folded(region: Region) -> bool:
    """Whether the region reduces, or scans, what it computes."""
    ops = {node.op for node in region.nodes}
    return any(op.startswith("reduce_") or op in ("argmax", "argmin", "cumsum") for op in ops)


def can_stream(region: Region, value: Value, piece: int = 16) -> bool:
    """Whether an operand may be copied by itself in pieces of so many bytes: it is memory behind
    index maps, and its rows begin at such pieces (constants are packed so that they do)."""
    inside = {node.output for node in region.nodes}
    while value in inside and value.node is not None:
        if value.node.op not in MOVEMENT and not _widens(value.node):
            break
        value = value.node.inputs[0]
    if value in inside:
        return False
    if value.constant is not None:
        return True
    return value.type.rank > 0 and divides(piece, value.shape[-1] * value.dtype.bytes)


def frame(em: Emission, b: int, m: int, n: int, k: int) -> tuple[Index, Index, Index, Index]:
    """Indices (batch, m, n) of the program's block, and k within one block of it."""
    block = em.schedule.block
    offset = 0 if em.target.is_cuda and b == 1 else 1
    batch = program(em, 0, b, 1, "") if b > 1 else Index(0)
    # frame axes in the order m, k, n whatever the order of the grid
    grid_m, grid_n = (offset, offset + 1) if em.target.is_cuda else (offset + 1, offset)
    at_m, grid_n = rows_program(em, grid_m, grid_n, m)
    at_k = em.axis(rules.block_of(k, block("k")) if not em.target.is_cuda else block("k"))
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
    em: Emission, dots: list[DotShape], batch: Index, m: Index, n: Index, inner: Index
) -> list[Piece]:
    """The accumulators of all dots, over frame axes (m, n)."""
    depth, total = em.extents[1], dots[0].k
    kinds = [dot_dtype(em.target, d.node) for d in dots]
    late = [late_scales(em, dot) for dot in dots]
    sums = [
        f32 if dot.node.attrs.get("codes") else kind.accumulate
        for dot, kind in zip(dots, kinds, strict=True)
    ]
    inits = [Piece(dtype, (0, 2), splat=0.0 if dtype.is_float else 0) for dtype in sums]

    def body(at: Index, carried: list[Piece]) -> list[Piece]:
        k = at + inner
        em.load_guards = [] if divides(depth, total) else [(k, total)]
        cache: dict[tuple[Value, Coords], TileValue] = {}
        results = []
        for dot, kind, acc, weights in zip(dots, kinds, carried, late, strict=True):
            at_lhs = (dot.left, dot.coords(0, batch, m, k))
            if at_lhs not in cache:
                cache[at_lhs] = operand(em, *at_lhs, (0, 1), kind)
            a = cache[at_lhs]
            if weights is not None:
                at_rhs = (batch, k, n), dot.coords(1, batch, n, k)
                b = em.full_value(weights.numbers(em, *at_rhs), (1, 2))
                blocked = bool(k_block(weights.node, dot.contract[1]))
                c = em.full_value(inits[0] if blocked else acc, (0, 2))
                part = Piece(acc.dtype, (0, 2), dot_op(em, a, b, c))
                if blocked:
                    scale = weights.scale(em, (batch, at, n), dot.coords(1, batch, n, at))
                    part = em.map("add", acc, em.map("mul", part, scale))
                results.append(part)
                continue
            b = panel(em, dot, batch, n, k, kind)
            c = em.full_value(acc, (0, 2))
            codes = dot.node.attrs.get("codes", "")
            results.append(Piece(acc.dtype, (0, 2), dot_op(em, a, b, c, codes)))
        em.load_guards = []
        return results

    if certain(depth - total):
        results = body(Index(0), inits)
    else:
        results = em.loop(0, total, depth, inits, body)
    for number, (dot, weights) in enumerate(zip(dots, late, strict=True)):
        if weights is not None and not k_block(weights.node, dot.contract[1]):
            scale = weights.scale(em, (batch, Index(0), n), dot.coords(1, batch, n, Index(0)))
            results[number] = em.map("mul", results[number], scale)
    outputs = [d.node.output.dtype.compute for d in dots]
    return [em.cast(piece, dtype) for piece, dtype in zip(results, outputs, strict=True)]


def late_scales(em: Emission, dot: DotShape) -> Matrix | None:
    """The right operand of a product whose sums are scaled block by block: of few rows, where there
    are fewer sums than weights. None elsewhere."""
    node = dequantised(em, dot.right)
    if node is None or not em.schedule.extra.get("late_scales"):
        return None
    blocks, shape = node.attrs["blocks"], dot.right.shape
    same = all(blocks[axis] == shape[axis] for axis in dot.contract[1])
    return weights_of(em, dot, node) if same or k_block(node, dot.contract[1]) else None


def weights_of(em: Emission, dot: DotShape, node: Node) -> Matrix:
    order = (*dot.batch[1], *dot.contract[1], *dot.free[1])
    width = 0 if em.target.is_cuda else em.schedule.block("n")
    return Matrix(node, order, (dot.b, dot.k, dot.n), width)


def dot_op(em: Emission, a: TileValue, b: TileValue, acc: TileValue, codes: str = "") -> TileValue:
    return em.emit((a, b, acc), lambda: em.b.dot(a, b, acc, codes=codes))


def dot_dtype(target: Target, node: Node) -> DType:
    """What the dots of a product multiply: what it asks for, or storage types where the target has
    an instruction for them; float32 for others on a CPU."""
    dtype = operand_dtype(node)
    if target.is_cuda or "operands" in node.attrs or target.dot_unit(dtype.name) is not None:
        return dtype
    return dtype.compute


def dot_unit(target: Target, node: Node) -> DotUnit | None:
    """The instruction beyond plain vectors that multiplies for a product."""
    return target.dot_unit(dot_dtype(target, node).name)


def _operand_bits(target: Target, dot: DotShape) -> int:
    """Of an element that a GPU multiplies; a CPU's registers hold sums of its own dtype."""
    return (dot_dtype(target, dot.node) if target.is_cuda else dot.left.dtype).bits


def _widens(node: Node) -> bool:
    """Whether a node is a cast of 8-bit integers to wider ones, which has each of their values."""
    source = node.inputs[0].dtype if node.op == "cast" else None
    return source is not None and source.is_integer and source.bits == 8 < node.output.dtype.bits


def operand(
    em: Emission, value: Value, coords: Coords, axes: tuple[int, ...], dtype: DType
) -> TileValue:
    """A dot operand over exactly `axes`: a bare load where it is memory behind index maps only.
    What is the same for every k (a broadcast) ends at no bound of memory, and is masked."""
    source, at = behind_movement(em, value, coords)
    while em.is_inside(source) and source.node is not None and _widens(source.node):
        if source.node.inputs[0].dtype is not dtype:
            break
        source, at = behind_movement(em, source.node.inputs[0], at)  # the product widens
    used = frozenset[int]().union(*(c.axes() for c in at))
    bounded = all(guard[0].axes() & used for guard in em.load_guards)
    if not em.is_inside(source) and uniform(source) is None and bounded:
        piece = em.load(source, at, axes=axes, dtype=dtype)
        return em.full_value(em.cast(piece, dtype, for_product=True), axes)
    piece = em.cast(em.tile(value, coords), dtype, for_product=True)
    if em.load_guards:
        zero = Piece(dtype, splat=0.0 if dtype.is_float else 0)
        piece = em.select(em.within(em.load_guards), piece, zero)
    return em.full_value(piece, axes)


def behind_movement(em: Emission, value: Value, coords: Coords) -> tuple[Value, Coords]:
    """The value and coordinates from which movement primitives alone make `value` at `coords`."""
    while em.is_inside(value) and em.available(value, coords) is None:
        node = value.node
        assert node is not None
        moved = backward(node, coords) if len(node.inputs) == 1 else None
        if moved is None:
            break
        value, coords = node.inputs[0], moved
    return value, coords


def panel(em: Emission, dot: DotShape, batch: Index, n: Index, k: Index, dtype: DType) -> TileValue:
    """The [k, n] tile of the rhs; constants are packed where the target wants it."""
    rhs = dot.right
    node = dequantised(em, rhs)
    if node is not None:
        weights = weights_of(em, dot, node)
        return weights.tile(em, (batch, k, n), dot.coords(1, batch, n, k), dtype)
    if em.is_inside(rhs) or rhs.constant is None or uniform(rhs) is not None:
        return operand(em, rhs, dot.coords(1, batch, n, k), (1, 2), dtype)
    order = (*dot.batch[1], *dot.contract[1], *dot.free[1])
    order = () if order == tuple(range(len(order))) else order
    if em.target.is_cuda:
        strides = em.partition.strides(rhs)
        inner = [a for a in range(rhs.type.rank) if rhs.shape[a] != 1 and strides[a] == 1]
        whole = [a for side in (dot.contract[1], dot.free[1]) for a in side[-1:]]
        # rows of an odd number of bytes cannot be copied 16 bytes at a time: they get a pad; long
        # ones begin at sectors
        across = bool(inner) and inner[0] in dot.free[1][-1:]
        step = 64 if dot.n * dtype.bytes % 16 else SECTOR // dtype.bytes if dot.n >= 64 else 1
        spare = -dot.n % step if across else 0
        if dtype.bits == 8:  # tensor cores want their k innermost
            return _columns_of(em, dot, (batch, n, k), dtype)
        if not inner or (inner[0] in whole and not spare):
            return operand(em, rhs, dot.coords(1, batch, n, k), (1, 2), dtype)
        pad = ((0, 0), (0, 0), (0, spare)) if spare else ()
        packing = Packing(transpose=order, reshape=(dot.b, dot.k, dot.n), pad=pad)
        extents = (dot.b, dot.k, dot.n + spare)
        buffer = em.memory.buffer(rhs, packing, dot.b * dot.k * (dot.n + spare))
        packed = em.load_packed(buffer, extents, (batch, k, n), (1, 2))
        return em.full_value(packed, (1, 2))
    unit = em.target.dot_unit(dtype.name)
    if unit is not None:
        return grouped_panel(em, rhs, order, (dot.b, dot.k, dot.n), unit, (batch, k, n))
    narrow = "stored" in dot.node.attrs and rhs is dot.node.inputs[1]  # else the sides are swapped
    stored = BY_NAME[dot.node.attrs["stored"]] if narrow else dtype
    width = em.schedule.block("n")
    panels = -(-dot.n // width)
    packing = Packing(
        transpose=order,
        reshape=(dot.b, dot.k, dot.n),
        pad=((0, 0), (0, 0), (0, panels * width - dot.n)) if dot.n % width else (),
        split=(dot.b, dot.k, panels, width),
        permute=(0, 2, 1, 3),
        dtype=stored if stored != rhs.dtype else None,
    )
    buffer = em.memory.buffer(rhs, packing, dot.b * panels * dot.k * width)
    shape, at = (dot.b, panels, dot.k, width), (batch, n // width, k, n % width)
    return em.full_value(em.cast(em.load_packed(buffer, shape, at, (1, 2)), dtype, True), (1, 2))


def _columns_of(
    em: Emission, dot: DotShape, at: tuple[Index, Index, Index], dtype: DType
) -> TileValue:
    """The [k, n] tile at (batch, n, k) of a constant packed column by column, each with k inner and
    zeros up to a whole number of 16 bytes."""
    rhs, spare = dot.right, -dot.k % (16 // dtype.bytes)
    order = (*dot.batch[1], *dot.free[1], *dot.contract[1])
    packing = Packing(
        transpose=() if order == tuple(range(len(order))) else order,
        reshape=(dot.b, dot.n, dot.k),
        pad=((0, 0), (0, 0), (0, spare)) if spare else (),
        dtype=dtype if dtype != rhs.dtype else None,
    )
    extents = (dot.b, dot.n, dot.k + spare)
    buffer = em.memory.buffer(rhs, packing, dot.b * dot.n * (dot.k + spare))
    return em.full_value(em.load_packed(buffer, extents, at, (1, 2)), (1, 2))


def grouped_panel(
    em: Emission, rhs: Value, order: tuple[int, ...], shape: tuple[int, int, int], unit: DotUnit,
    at: tuple[Index, Index, Index],
) -> TileValue:  # fmt: skip
    """The [k, n] tile at (batch, k, n) of a constant packed for a dot unit: panels of 16 columns,
    in each the groups of k that an instruction adds up lie together. Zeros fill the last step of k
    and the last block of n.

    order: axes of rhs that make it [batch, k, n], of extents `shape`.
    """
    batches, depth, columns = shape
    batch, k, n = at
    block = em.schedule.block("n")
    high, wide = -(-depth // unit.depth) * unit.depth, -(-columns // block) * block
    wide = -(-wide // PANEL) * PANEL
    dtype = BY_NAME[unit.dtype]
    packing = Packing(
        transpose=order,
        reshape=shape,
        pad=((0, 0), (0, high - depth), (0, wide - columns)),
        split=(batches, high // unit.group, unit.group, wide // PANEL, PANEL),
        permute=(0, 3, 1, 4, 2),
        dtype=dtype if dtype != rhs.dtype else None,
    )
    buffer = em.memory.buffer(rhs, packing, batches * high * wide)
    packed = (batches, wide // PANEL, high // unit.group, PANEL, unit.group)
    place = (batch, n // PANEL, k // unit.group, n % PANEL, k % unit.group)
    return em.full_value(em.load_packed(buffer, packed, place, (1, 2)), (1, 2))


def store_placed(em: Emission, places: Places) -> None:
    """Store every output of the region where it was placed, the parts of a concat one by one.

    Raises LoweringError.
    """
    _place_operands(em, places)
    for value in em.region.outputs:
        node = value.node
        if node is not None and node.op == "concat" and all(v in places for v in node.inputs):
            start, axis = 0, node.attrs["axis"]
            for part in node.inputs:
                coords, guards = places[part]
                shifted = (*coords[:axis], coords[axis] + start, *coords[axis + 1 :])
                em.store(value, shifted, em.tile(part, coords), guards)
                start += part.shape[axis]
            continue
        if value not in places:
            raise LoweringError(
                f"output {value!r} does not follow the anchor", where=em.region.name
            )
        coords, guards = places[value]
        em.store(value, coords, em.tile(value, coords), guards)


def _place_operands(em: Emission, places: Places) -> None:
    """Place outputs that do not follow the anchor themselves: operands of a map that does live
    where its result lives; maps beside it live at any value of their shape."""
    for node in reversed(em.region.nodes):
        if is_map(node) and node.output not in places and node.output in em.region.outputs:
            twin = next((v for v in places if v.shape == node.output.shape), None)
            if twin is not None:
                places[node.output] = places[twin]
        if is_map(node) and node.output in places:
            for operand in node.inputs:
                if operand.node is not None and is_map(operand.node) and em.is_inside(operand):
                    places.setdefault(operand, places[node.output])


__all__ = ["DotShape", "Guard", "dot_shape", "emit", "frame", "multiply", "operand", "store_placed"]
