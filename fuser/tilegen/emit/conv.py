"""Convolutions of 1 to 3 spatial dims as implicit GEMM.

m runs over output pixels (n, spatial...), k over input channels, n over output channels; a loop
walks the taps of the kernel and blocks of channels as one index, so that it can be pipelined. With
few input channels taps and channels are one k. Groups are a grid axis; where a group has too few
channels for a matmul (depthwise), taps are multiplied and added on [pixels, channels] tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

from fuser.base.target import Target
from fuser.dtypes import DType
from fuser.graph.ir import Node, Value
from fuser.graph.sizes import is_symbolic
from fuser.partition.region import Partition, Region
from fuser.tilegen.emit.constants import uniform
from fuser.tilegen.emit.contraction import can_stream, is_folded, rows_program
from fuser.tilegen.emit.dot_operands import dot_dtype, dot_op, dot_unit, grouped_panel, operand
from fuser.tilegen.emit.map import program
from fuser.tilegen.emit.maps import Coords, Guard, backward, delinearise, product
from fuser.tilegen.emit.placement import Places, spread, store_placed
from fuser.tilegen.emit.primitives import padded, rounded
from fuser.tilegen.emit.space import Emission, Piece
from fuser.tilegen.emit.weights import Matrix, dequantised
from fuser.tilegen.index import Index, in_range
from fuser.tilegen.program import Packing, TileProgram
from fuser.tilegen.rules import rules_of
from fuser.tilegen.rules.problem import Image, Problem, Window
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.value import Value as TileValue


@dataclass(frozen=True)
class ConvShape:
    """Sizes of a conv node. channels and outputs are those of one group."""

    node: Node
    groups: int
    channels: int
    outputs: int
    kernel: tuple[int, ...]
    pixels: tuple[int, ...]  # batch and output spatial dims

    @property
    def x(self) -> Value:
        return self.node.inputs[0]

    @property
    def w(self) -> Value:
        return self.node.inputs[1]

    @property
    def taps(self) -> int:
        return product(self.kernel)

    def source(self, pixel: Index, tap: Index, channel: Index) -> Coords:
        """Coordinates in x under `tap` of the window of an output pixel."""
        n, *spatial = delinearise(pixel, self.pixels)
        attrs = self.node.attrs
        steps = zip(
            spatial, delinearise(tap, self.kernel), attrs["strides"], attrs["dilation"],
            attrs["padding"], strict=True,
        )  # fmt: skip
        return (
            n,
            channel,
            *(o * stride + t * step - low for o, t, stride, step, (low, _) in steps),
        )

    def result(self, pixel: Index, channel: Index) -> Coords:
        n, *spatial = delinearise(pixel, self.pixels)
        return (n, channel, *spatial)


def conv_shape(node: Node) -> ConvShape:
    w = node.inputs[1]
    groups = node.attrs["groups"]
    batch, outputs, *spatial = node.output.shape
    return ConvShape(
        node, groups, w.shape[1], outputs // groups, tuple(w.shape[2:]), (batch, *spatial)
    )


def emit(
    region: Region, partition: Partition, target: Target, schedule: Schedule | None
) -> tuple[TileProgram, ...]:
    """The program of a region around one conv."""
    conv = conv_shape(next(node for node in region.nodes if node.op == "conv"))
    m, n = product(conv.pixels), conv.outputs
    direct = conv.groups > 1 and (conv.channels < 8 or conv.outputs < 8)
    if direct:
        n *= conv.groups
    rules = rules_of(target, partition.graph.numerics)
    chosen = schedule or (
        rules.direct_conv(target, m, n, conv.pixels[-1], conv.taps * conv.channels)
        if direct
        else rules.conv(target, _problem(conv, region, partition, target))
    )
    em = Emission(region, partition, target, chosen)
    build = _multiply_add if direct else _implicit_gemm
    pixel, channel, piece, guards = build(em, conv, m, n)
    dtype = conv.node.output.dtype
    piece = rounded(em, em.cast(piece, dtype.compute), dtype)
    places: Places = {conv.node.output: (conv.result(pixel, channel), guards)}
    store_placed(em, spread(em, places, {conv.node.output: piece}))
    flops = 2 * m * conv.groups * conv.outputs * conv.channels * conv.taps
    return (em.finish(flops),)


def _problem(conv: ConvShape, region: Region, partition: Partition, target: Target) -> Problem:
    """The convolution as its schedule rules see it."""
    image = Image(
        conv.channels, conv.taps, _window(conv, region, partition, target),
        _run(region, partition, conv), _pitch(region, partition, conv),
    )  # fmt: skip
    folded = is_folded(region)
    streamed = (
        not folded
        and can_stream(region, conv.w, dot_dtype(target, conv.node))
        and has_channels_last(region, partition, conv.x)
    )
    return Problem(
        product(conv.pixels), conv.outputs, conv.channels * conv.taps, conv.x.dtype.bits,
        batch=conv.groups, unit=dot_unit(target, conv.node) if conv.groups == 1 else None,
        streamed=streamed, folded=folded, image=image,
    )  # fmt: skip


def _window(conv: ConvShape, region: Region, partition: Partition, target: Target) -> Window | None:
    """The window of a convolution that may slide over its image in memory."""
    kind = dot_dtype(target, conv.node)
    stored = partition.copies.get(conv.x, conv.x.dtype)
    if target.is_cuda or stored is not kind or not has_channels_last(region, partition, conv.x):
        return None
    attrs = conv.node.attrs
    return Window(conv.pixels, conv.kernel, tuple(attrs["strides"]), tuple(attrs["dilation"]))


def _run(region: Region, partition: Partition, conv: ConvShape) -> int:
    """How many taps follow each other in memory, with all their channels."""
    attrs = conv.node.attrs
    whole = conv.groups == 1 and attrs["dilation"][-1] == 1 and attrs["padding"][-1] == (0, 0)
    return conv.kernel[-1] if whole and has_channels_last(region, partition, conv.x) else 1


def _pitch(region: Region, partition: Partition, conv: ConvShape) -> int:
    """Bytes from a pixel of the image to what the next output pixel has under the same tap, where
    the channels of a pixel are adjacent; else 0."""
    if is_symbolic(*conv.x.shape[1:2]) or not has_channels_last(region, partition, conv.x):
        return 0
    step: int = conv.node.attrs["strides"][-1]
    return step * conv.x.shape[1] * conv.x.dtype.bytes


def has_channels_last(region: Region, partition: Partition, x: Value) -> bool:
    """Whether an image is memory whose channels are adjacent, so that it can be copied as it is."""
    inside = {node.output for node in region.nodes}
    if x not in inside:
        return partition.layouts.get(x, (0,))[-1] == 1
    node = x.node
    if node is None or node.op != "transpose" or node.inputs[0] in inside:
        return False
    source = node.inputs[0]
    plain = tuple(range(source.type.rank))
    return bool(node.attrs["perm"][1] == partition.layouts.get(source, plain)[-1])


def _implicit_gemm(
    em: Emission, conv: ConvShape, m: int, n: int
) -> tuple[Index, Index, Piece, list[Guard]]:
    """Accumulate [pixels, channels] x [channels, outputs] over taps."""
    cuda, block = em.target.is_cuda, em.schedule.block
    merged = block("k") > conv.channels and conv.taps > 1  # taps and channels are one k
    depth = conv.channels * (conv.taps if merged else 1)
    offset = 1 if conv.groups > 1 or not cuda else 0
    group = program(em, 0, conv.groups, 1, "") if conv.groups > 1 else Index(0)
    grid_m, grid_n = (offset, offset + 1) if cuda else (offset + 1, offset)
    pixel, grid_n = rows_program(em, grid_m, grid_n, m)
    inner = em.axis(block("k") if cuda else min(block("k"), depth))
    output = program(em, grid_n, n, block("n"))
    width = em.extents[1]
    parts = -(-depth // width)
    kind = dot_dtype(em.target, conv.node)
    start = Piece(kind.accumulate, (0, 2), splat=0.0 if kind.is_float else 0)

    def body(at: Index, carried: list[Piece]) -> list[Piece]:
        if merged:
            k = at * width + inner
            tap, c = k // conv.channels, k % conv.channels
            em.load_guards = [(k, depth)] if depth % width else []
        else:
            tap, c = at // parts, (at % parts) * width + inner
            em.load_guards = [(c, depth)] if depth % width else []
        source = conv.source(pixel, tap, group * conv.channels + c)
        a = _image(em, conv.x, source, kind, conv.node.attrs.get("fill", 0))
        b = _weights(em, conv, group, tap, c, output, kind, merged)
        em.load_guards = []
        return [Piece(start.dtype, (0, 2), dot_op(em, a, b, em.full_value(carried[0], (0, 2))))]

    iterations = parts if merged else conv.taps * parts
    (result,) = (
        body(Index(0), [start]) if iterations == 1 else em.loop(0, iterations, 1, [start], body)
    )
    return pixel, group * n + output, result, [(pixel, m), (output, n)]


def _image(em: Emission, x: Value, source: Coords, kind: DType, fill: int) -> TileValue:
    """The [pixels, k] tile of x, `fill` outside of it: a bare load, whose bounds give that, where
    x is memory behind transpositions. Where there is no k, weights are zero."""
    fits = all(in_range(c, dim) for c, dim in zip(source[2:], x.shape[2:], strict=True))
    while em.is_inside(x) and em.available(x, source) is None:
        node = x.node
        moved = backward(node, source) if node is not None and node.op == "transpose" else None
        if node is None or moved is None:
            break
        x, source = node.inputs[0], moved
    is_memory = not em.is_inside(x) and uniform(x) is None
    if is_memory and not fits and fill:
        loaded = em.load(x, source, fill, (0, 1), dtype=kind)
        return em.full_value(em.cast(loaded, kind, for_matmul=True), (0, 1))
    if is_memory or fits:
        return operand(em, x, source, (0, 1), kind)
    image = padded(em, x, source, 0.0 if kind.is_float else fill)
    piece = em.cast(image, kind, for_matmul=True)
    zero = Piece(kind, splat=0.0 if kind.is_float else 0)
    return em.full_value(em.select(em.within(em.load_guards), piece, zero), (0, 1))


def _weights(
    em: Emission, conv: ConvShape, group: Index, tap: Index, c: Index, output: Index, kind: DType,
    merged: bool,
) -> TileValue:  # fmt: skip
    """The [k, outputs] tile of the weights; constants are packed [group, tap, channel, output]."""
    w, groups, taps, channels = conv.w, conv.groups, conv.taps, conv.channels
    node = dequantised(em, w)
    if node is not None and groups == 1:
        width = 0 if em.target.is_cuda else em.schedule.block("n")
        order = (*range(2, w.type.rank), 1, 0)
        weights = Matrix(node, order, (1, taps * channels, conv.outputs), width)
        coords = (output, c, *delinearise(tap, conv.kernel))
        return weights.tile(em, (Index(0), tap * channels + c, output), coords, kind)
    if em.is_inside(w) or w.constant is None:
        coords = (group * conv.outputs + output, c, *delinearise(tap, conv.kernel))
        return operand(em, w, coords, (1, 2), kind)
    order = (*range(2, w.type.rank), 1, 0)
    rows, n = taps * channels, conv.outputs
    if em.target.is_cuda:
        packing = Packing(
            transpose=order, reshape=(rows, groups, n), split=(rows, groups, n), permute=(1, 0, 2)
        )
        buffer = em.memory.buffer(w, packing)
        shape, at = (groups, taps, channels, n), (group, tap, c, output)
        if merged:
            shape, at = (groups, 1, rows, n), (group, Index(0), tap * channels + c, output)
        return em.full_value(em.load_packed(buffer, shape, at, (1, 2)), (1, 2))
    unit = em.target.dot_unit(kind.name)
    if unit is not None and groups == 1:
        if merged:
            k = tap * channels + c
            return grouped_panel(em, w, order, (1, rows, n), unit, (Index(0), k, output))
        return grouped_panel(em, w, order, (taps, channels, n), unit, (tap, c, output))
    width = em.schedule.block("n")
    panels = -(-n // width)
    packing = Packing(
        transpose=order,
        reshape=(rows, groups, n),
        pad=((0, 0), (0, 0), (0, panels * width - n)) if n % width else (),
        split=(rows, groups, panels, width),
        permute=(1, 2, 0, 3),
        dtype=kind if kind != w.dtype else None,
    )
    buffer = em.memory.buffer(w, packing, groups * panels * rows * width)
    at = (group, output // width, tap * channels + c, output % width)
    shape = (groups, panels, rows, width)
    return em.full_value(em.load_packed(buffer, shape, at, (1, 2)), (1, 2))


def _multiply_add(
    em: Emission, conv: ConvShape, m: int, n: int
) -> tuple[Index, Index, Piece, list[Guard]]:
    """Groups of few channels: sum over taps and channels of x * w on [pixels, outputs] tiles."""
    pixel = program(em, 0, m, em.schedule.block("m"))
    output = program(em, 1, n, em.schedule.block("n"))
    kind = conv.x.dtype.accumulate
    first = (output // conv.outputs) * conv.channels
    constant = not em.is_inside(conv.w) and conv.w.constant is not None
    rows = conv.taps * conv.channels
    order = (*range(2, conv.w.type.rank), 1, 0)

    def term(at: Index, total: Piece | None = None) -> Piece:
        tap, c = at // conv.channels, at % conv.channels
        zero = 0.0 if kind.is_float else 0
        x = padded(em, conv.x, conv.source(pixel, tap, first + c), zero)
        if constant:
            buffer = em.memory.buffer(conv.w, Packing(transpose=order, reshape=(rows, n)))
            w = em.load_packed(buffer, (rows, n), (at, output))
        else:
            w = em.tile(conv.w, (output, c, *delinearise(tap, conv.kernel)))
        x, w = em.cast(x, kind), em.cast(w, kind)
        return em.map("mul", x, w) if total is None else em.multiply_add(x, w, total)

    if rows <= 32:
        result = term(Index(0))
        for row in range(1, rows):
            result = term(Index(row), result)
    else:
        start = Piece(kind, (0, 1), splat=0.0 if kind.is_float else 0)
        (result,) = em.loop(0, rows, 1, [start], lambda at, c: [term(at, c[0])])
    return pixel, output, result, [(pixel, m), (output, n)]
