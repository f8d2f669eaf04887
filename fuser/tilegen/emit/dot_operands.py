"""Operands of dots: loads behind index maps, computed prologues, packed panels of constants."""

from __future__ import annotations

import math

from fuser.base.target import DotUnit, Target
from fuser.dtypes import BY_NAME, DType
from fuser.graph.ir import Node, Value
from fuser.graph.sizes import is_symbolic, size_hint
from fuser.graph.work import operand_dtype
from fuser.tilegen.emit.constants import uniform
from fuser.tilegen.emit.dot_shape import DotShape
from fuser.tilegen.emit.maps import Coords, backward
from fuser.tilegen.emit.space import Emission, Piece
from fuser.tilegen.emit.weights import Matrix, dequantised, k_block
from fuser.tilegen.index import Index
from fuser.tilegen.ir import Buffer
from fuser.tilegen.program import Packing
from fuser.tilegen.rules.common import FEW_ROWS, STREAMED, WIDEST
from fuser.tilegen.value import Value as TileValue

PANEL = 16
"""Columns of a panel of weights for a dot unit: a vector of float32, or a row of a tile."""


SECTOR, LINE = 32, 128
"""Bytes that a GPU's L2 answers a request with: rows that begin elsewhere take several requests. Of
a line, of which boxes of the copy engine consist."""


CODES_PANEL = 64
"""Columns of a panel of codes in a GPU's memory, in which all rows of k lie together: blocks of few
rows read it in order, and blocks of more columns have it, too, so that prompts and steps share
what is packed."""


def late_scales(em: Emission, dot: DotShape) -> Matrix | None:
    """The right operand of a matmul whose sums are scaled block by block: of few rows, where there
    are fewer sums than weights. None elsewhere."""
    node = dequantised(em, dot.right)
    if node is None or not em.schedule.late_scales:
        return None
    blocks, shape = node.attrs["blocks"], dot.right.shape
    same = all(blocks[axis] == shape[axis] for axis in dot.contract[1])
    return weights_of(em, dot, node) if same or k_block(node, dot.contract[1]) else None


def weights_of(em: Emission, dot: DotShape, node: Node) -> Matrix:
    order = (*dot.batch[1], *dot.contract[1], *dot.free[1])
    width = CODES_PANEL if em.target.is_cuda else em.schedule.block("n")
    return Matrix(node, order, (dot.b, dot.k, dot.n), width)


def dot_op(em: Emission, a: TileValue, b: TileValue, acc: TileValue, codes: str = "") -> TileValue:
    return em.emit((a, b, acc), lambda: em.b.dot(a, b, acc, codes=codes))


def dot_dtype(target: Target, node: Node) -> DType:
    """What the dots of a matmul multiply: what it asks for, or storage types where the target has
    an instruction for them; float32 for others on a CPU."""
    dtype = operand_dtype(node)
    if target.is_cuda or "operands" in node.attrs or target.dot_unit(dtype.name) is not None:
        return dtype
    return dtype.compute


def dot_unit(target: Target, node: Node) -> DotUnit | None:
    """The instruction beyond plain vectors that multiplies for a matmul."""
    return target.dot_unit(dot_dtype(target, node).name)


def widens(node: Node, dtype: DType) -> bool:
    """Whether a node is a cast of `dtype` to a wider one, which has each of its values: matmuls
    that multiply in `dtype` may as well read what is cast."""
    if node.op != "cast" or node.inputs[0].dtype is not dtype:
        return False
    wide = node.output.dtype
    if dtype.is_integer:
        return wide.is_integer and dtype.bits == 8 < wide.bits
    return dtype.is_float and wide.is_float and dtype.bits < wide.bits


def operand(
    em: Emission, value: Value, coords: Coords, axes: tuple[int, ...], dtype: DType,
    lone: Index | None = None,
) -> TileValue:  # fmt: skip
    """A dot operand over exactly `axes`: a bare load where it is memory behind index maps only.
    What is the same for every k (a broadcast) ends at no bound of memory, and is masked.

    lone: the row, or column, of an operand on a GPU that has one alone.
    """
    source, at = behind_movement(em, value, coords)
    while em.is_inside(source) and source.node is not None and widens(source.node, dtype):
        source, at = behind_movement(em, source.node.inputs[0], at)  # the matmul widens
    used = frozenset[int]().union(*(c.axes() for c in at))
    bounded = all(guard[0].axes() & used for guard in em.load_guards)
    if not em.is_inside(source) and uniform(source) is None and bounded:
        piece = em.load(source, at, axes=axes, dtype=dtype, lone=lone)
        return em.full_value(em.cast(piece, dtype, for_matmul=True), axes)
    piece = em.cast(em.tile(value, coords), dtype, for_matmul=True)
    if em.load_guards:
        zero = Piece(dtype, splat=0.0 if dtype.is_float else 0)
        piece = em.select(em.within(em.load_guards), piece, zero)
    return em.full_value(piece, axes)


def lone_of(em: Emission, free: Index, extent: int) -> Index | None:
    """The index of an operand's only row, or column, where blocks have several."""
    single = not is_symbolic(extent) and extent == 1
    return free if single and free.axes() and em.target.is_cuda else None


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
    lone = lone_of(em, n, dot.n)
    if em.schedule.packs:
        width = em.schedule.block("n")
        buffer, extents = runtime_panels(em, dot, dtype, width)
        place = (batch, n // width, k, n % width)
        return em.full_value(em.load_packed(buffer, extents, place, (1, 2)), (1, 2))
    node = dequantised(em, rhs)
    if node is not None:
        weights = weights_of(em, dot, node)
        return weights.tile(em, (batch, k, n), dot.coords(1, batch, n, k), dtype)
    if em.is_inside(rhs) or rhs.constant is None or uniform(rhs) is not None:
        return operand(em, rhs, dot.coords(1, batch, n, k), (1, 2), dtype, lone)
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
        along = bool(inner) and inner[0] in dot.contract[1][-1:]
        # tensor cores want 8-bit operands with k innermost, and rows of k that begin at sectors
        misaligned = along and dtype.bits == 16 and em.target.wgmma and dot.k * 2 % SECTOR != 0
        if dtype.bits == 8 or misaligned or (_wants_k_inside(em, dot, dtype) and not along):
            return _columns_of(em, dot, (batch, n, k), dtype)
        if not inner or (inner[0] in whole and not spare):
            return operand(em, rhs, dot.coords(1, batch, n, k), (1, 2), dtype, lone)
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


def runtime_panels(
    em: Emission, dot: DotShape, dtype: DType, width: int
) -> tuple[Buffer, tuple[int, ...]]:
    """The workspace of a right operand in panels of `width` columns (packing.py), and its extents
    (batch, panels, k, width)."""
    nodes = [node for node in em.region.nodes if node.op == "dot_general"]
    # sums of blocks of k (deep.py) have the first numbers
    number = len(nodes) + nodes.index(dot.node)
    extents = (dot.b, -(-dot.n // width), dot.k, width)
    return em.memory.panels(dtype, math.prod(extents), number), extents


def _wants_k_inside(em: Emission, dot: DotShape, dtype: DType) -> bool:
    """Whether a constant is packed with k inside, where lines are as long as a stage is deep: of
    what wgmma reads in columns that are no whole lines of memory, of which the copy engine brings
    whole ones, or slowly parts of them; and of what blocks of few rows stream, which wait for
    nothing but lines. There blocks of many rows read it so, too: plans of a model for prompts and
    for steps share what is packed."""
    block = em.schedule.block
    whole = block("k") * dtype.bytes % LINE == 0
    if not em.target.wgmma or dtype.bits != 16 or not whole:
        return False
    few, many = block("m") <= FEW_ROWS, block("m") % 64 == 0
    if block("n") * dtype.bytes % LINE and (many or (few and size_hint(dot.k) >= STREAMED)):
        return True
    if not many or dot.b != 1 or size_hint(dot.k) < STREAMED:
        return False
    columns = em.target.one_wave_columns(dot.n)
    dots = sum(node.op == "dot_general" for node in em.region.nodes)
    return columns * dots <= WIDEST and columns * dtype.bytes % LINE != 0


def _columns_of(
    em: Emission, dot: DotShape, at: tuple[Index, Index, Index], dtype: DType
) -> TileValue:
    """The [k, n] tile at (batch, n, k) of a constant packed column by column, each with k inner and
    zeros up to a whole number of 16 bytes, long ones of sectors."""
    rhs = dot.right
    spare = -dot.k % ((SECTOR if dot.k >= 64 else 16) // dtype.bytes)
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
