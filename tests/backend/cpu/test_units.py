"""Products that round their operands: by tiles, by dot-product vectors, and without either."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from fuser import dtypes
from fuser.backend.cpu import assembly, compile_kernel
from fuser.backend.cpu.analysis.placement import analyse
from fuser.base.target import AARCH64, DOT_UNITS, X86_64_V3, X86_64_V4, Target, cpu_target
from fuser.dtypes import DType
from fuser.graph import precision
from fuser.graph.evaluate import evaluate
from fuser.graph.int8_matmuls import to_int8_matmuls
from fuser.graph.ir import Value
from fuser.graph.precision import quantise_weights, round_operands
from fuser.partition import Options, partition
from fuser.tilegen.emit import emit
from fuser.tilegen.passes import run_passes
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.text import print_kernel
from tests import interpreted
from tests.backend.cpu import native
from tests.interpreted import check, one_region, run_partition
from tests.tilegen_emit.graphs import Model

UNITS = ("amx", "avx512_bf16", "plain")
DROPPED = {
    "amx": (),
    "avx512_bf16": ("+amx-tile", "+amx-bf16"),
    "plain": ("+amx-tile", "+amx-bf16", "+avx512bf16"),
}
ROUNDING = 2.0**-9
"""Of a number to the nearest bfloat16, relative: 8 bits of significand."""


@pytest.fixture(autouse=True)
def _any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small weights are quantised, too."""
    monkeypatch.setattr(precision, "LEAST_WEIGHTS", 1)


def target_of(unit: str) -> Target:
    """This machine with nothing better than `unit`. Skips where it has not even that."""
    features = [f for f in native.HOST.features.split(",") if f not in DROPPED[unit]]
    target = replace(native.HOST, features=",".join(features))
    found = target.dot_unit("bf16")
    if (found.name if found else "plain") != unit:
        pytest.skip(f"this processor has no {unit}")
    return target


@pytest.fixture(params=UNITS)
def target(request: pytest.FixtureRequest) -> Target:
    return target_of(request.param)


@pytest.fixture(params=["interpreted", "native"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "native":
        monkeypatch.setattr(interpreted, "run", native.run)
    yield request.param


def linear(rows: int, depth: int, columns: int, turned: bool = False) -> Model:
    m = Model()
    shape = (columns, depth) if turned else (depth, columns)
    z = m.dot(m.input(rows, depth), m.weight(*shape), (1, 1 if turned else 0))
    m.output(m.b.map("tanh", m.b.map("add", z, m.weight(columns))))
    return m


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    "sizes",
    [(1, 1, 1), (3, 5, 7), (16, 32, 16), (17, 33, 31), (33, 100, 50), (64, 64, 96), (1, 300, 130)],
)
def test_weights(how: str, target: Target, sizes: tuple[int, int, int], turned: bool) -> None:
    m = linear(*sizes, turned)
    graph = round_operands(m.graph, dtypes.bf16)
    check(one_region(graph, "contraction"), m.feeds, target)


@pytest.mark.parametrize("blocks", [(32, 32), (16, 64), (48, 96)])
def test_blocks_that_do_not_divide(how: str, target: Target, blocks: tuple[int, int]) -> None:
    m = linear(70, 40, 150)
    graph = round_operands(m.graph, dtypes.bf16)
    schedule = Schedule(blocks=(("m", blocks[0]), ("n", blocks[1]), ("k", 40)))
    check(one_region(graph, "contraction"), m.feeds, target, schedule)


@pytest.mark.parametrize("contract", [(2, 1), (2, 2), (1, 1), (1, 2)])
@pytest.mark.parametrize("sizes", [(2, 5, 9, 3), (3, 33, 64, 40), (1, 20, 70, 33)])
def test_two_activations(
    how: str, target: Target, sizes: tuple[int, int, int, int], contract: tuple[int, int]
) -> None:
    """Every order of the axes, with code in front of one operand."""
    batch, rows, depth, columns = sizes
    m = Model()
    x = m.input(*((batch, rows, depth) if contract[0] == 2 else (batch, depth, rows)))
    y = m.input(*((batch, depth, columns) if contract[1] == 1 else (batch, columns, depth)))
    z = m.dot(m.b.map("tanh", x), y, contract, (0,))
    m.output(m.b.map("mul", z, 0.5))
    check(one_region(round_operands(m.graph, dtypes.bf16), "contraction"), m.feeds, target)


def test_two_products_of_one_operand(how: str, target: Target) -> None:
    m = Model()
    x = m.input(2, 19, 40)
    gate, up = m.dot(x, m.weight(40, 50), (2, 0)), m.dot(x, m.weight(50, 40), (2, 1))
    m.output(m.b.map("mul", m.b.map("tanh", gate), up))
    check(one_region(round_operands(m.graph, dtypes.bf16), "contraction"), m.feeds, target)


@pytest.mark.parametrize("rows", [16, 49, 98, 128, 130, 200])
@pytest.mark.parametrize("columns,blocks", [(128, True), (64, True), (40, False)])
def test_stores_by_blocks(how: str, rows: int, columns: int, blocks: bool) -> None:
    """Whatever the rows, blocks of a result end in the stores that read it: no sums of the whole
    block are kept, and an operand in memory is not copied."""
    target = target_of("amx")
    m = Model(dtypes.bf16)
    x, other, bias = m.input(rows, 64), m.input(rows, columns), m.input(columns)
    y = m.dot(x, m.weight(64, columns), (1, 0))
    bias = m.b.emit("broadcast", bias, shape=(rows, columns), axes=(1,))
    y = m.b.emit("add", m.b.emit("add", y, bias), other)
    m.output(y, m.b.map("tanh", y))
    cut = one_region(m.graph, "contraction")
    check(cut, m.feeds, target)
    for program in emit(cut.regions[0], cut, target, None):
        run_passes(program.kernel)
        compiled = compile_kernel(program.kernel, target)
        assert (compiled.scratch_bytes <= 4096 + 4 * columns) == blocks


@pytest.mark.parametrize("channels,outputs,window", [(3, 20, 3), (40, 33, 3), (64, 48, 1)])
def test_convolution(how: str, target: Target, channels: int, outputs: int, window: int) -> None:
    m = Model()
    pad = window // 2
    y = m.b.emit(
        "conv", m.input(2, channels, 9, 7), m.weight(outputs, channels, window, window),
        strides=(1, 1), padding=((pad, pad), (pad, pad)), dilation=(1, 1), groups=1,
    )  # fmt: skip
    m.output(m.b.map("max", y, 0.0))
    check(one_region(round_operands(m.graph, dtypes.bf16), "conv"), m.feeds, target)


WINDOWS = [
    (3, (7, 7), (2, 2), ((3, 3), (3, 3))),
    (5, (3, 5), (1, 2), ((1, 0), (2, 1))),
    (33, (3, 3), (1, 1), ((1, 1), (1, 1))),
    (64, (3, 3), (1, 1), ((1, 1), (1, 1))),
    (96, (2, 3), (2, 1), ((0, 1), (1, 1))),
    (160, (5, 3), (1, 1), ((2, 2), (1, 1))),
    (64, (2, 2), (2, 2), ((0, 0), (0, 0))),
]
"""Channels, window, strides and padding: runs of odd lengths, and of one or several vectors."""


def windows(
    channels: int, window: tuple[int, int], strides: tuple[int, int],
    padding: tuple[tuple[int, int], ...], dtype: DType,
) -> tuple[Model, Value]:  # fmt: skip
    m = Model(dtype)
    x = m.input(2, channels, 11, 18)
    m.output(m.b.emit(
        "conv", x, m.weight(20, channels, *window), strides=strides, padding=padding,
        dilation=(1, 1), groups=1,
    ))  # fmt: skip
    return m, x


@pytest.mark.parametrize("case", WINDOWS)
def test_windows_of_an_input(
    how: str, case: tuple[int, tuple[int, int], tuple[int, int], tuple[tuple[int, int], ...]]
) -> None:
    """Channels that lie apart are copied first. What is infinite stays in the windows it is in."""
    target = target_of("amx")
    m, x = windows(*case, dtypes.f32)
    cut = partition(m.graph, target, Options(operands=dtypes.bf16))
    assert [region.kind for region in cut.regions] == ["map", "conv"]
    assert len(cut.narrow) == 1
    check(cut, m.feeds, target)
    m.feeds[x.name][1, -1, 5, 17] = np.inf
    want = evaluate(cut.graph, m.feeds, float64=True)
    found = run_partition(cut, m.feeds, target)
    for name, array in want.items():
        assert not np.isfinite(array).all()
        np.testing.assert_array_equal(np.isfinite(found[name]), np.isfinite(array))


@pytest.mark.parametrize("case", WINDOWS)
def test_windows_of_channels_last(
    how: str, target: Target,
    case: tuple[int, tuple[int, int], tuple[int, int], tuple[tuple[int, int], ...]],
) -> None:  # fmt: skip
    """Runs of a bfloat16 image that end at its edges."""
    m, x = windows(*case, dtypes.bf16)
    check(one_region(m.graph, "conv", {x: (0, 2, 3, 1)}), m.feeds, target)


Pairs = tuple[tuple[int, int], ...]
SLIDING: list[tuple[tuple[int, ...], tuple[int, int], Pairs, Pairs]] = [
    ((1, 64, 14, 14), (3, 3), ((1, 1), (1, 1)), ((1, 1), (1, 1))),
    ((1, 32, 31, 20), (3, 3), ((2, 2), (1, 1)), ((1, 1), (1, 1))),  # rows hang over the image
    ((2, 32, 15, 22), (3, 3), ((1, 1), (1, 1)), ((0, 0), (0, 0))),
    ((1, 64, 9, 41), (2, 5), ((2, 2), (1, 1)), ((0, 1), (2, 2))),
    ((2, 96, 12, 30), (5, 3), ((1, 2), (1, 1)), ((2, 2), (1, 0))),
    ((1, 32, 20, 40), (3, 2), ((3, 1), (2, 3)), ((4, 0), (3, 3))),
    ((1, 32, 8, 33), (1, 7), ((1, 1), (1, 1)), ((0, 0), (3, 3))),
    ((1, 32, 33, 16), (7, 1), ((2, 1), (1, 1)), ((3, 3), (0, 0))),
]
"""Image, window, (strides, dilation) and padding of convolutions that copy the image once."""


@pytest.mark.parametrize("case", SLIDING)
def test_windows_that_slide(
    how: str, case: tuple[tuple[int, ...], tuple[int, int], Pairs, Pairs]
) -> None:
    """Tiles are read from a copy of the image; what is infinite stays in the windows it is in."""
    shape, window, (strides, dilation), padding = case
    target = target_of("amx")
    m = Model(dtypes.bf16)
    x = m.input(*shape)
    y = m.b.emit(
        "conv", x, m.weight(40, shape[1], *window), strides=strides, padding=padding,
        dilation=dilation, groups=1,
    )  # fmt: skip
    m.output(m.b.map("max", y, 0.5))
    cut = one_region(m.graph, "conv", {x: (0, 2, 3, 1)})
    (program,) = emit(cut.regions[0], cut, target, None)
    run_passes(program.kernel)
    (found,) = analyse(program.kernel, target).implicit_im2col.values()
    assert found.strides == strides and found.channels == shape[1]
    assert found.high > 1 and found.taps == window
    check(cut, m.feeds, target)
    m.feeds[x.name][:, 7, 4, shape[3] - 3] = np.inf
    want = evaluate(cut.graph, m.feeds, float64=True)["y0"]
    have = run_partition(cut, m.feeds, target)["y0"]
    assert not np.isfinite(want).all()
    np.testing.assert_array_equal(np.isfinite(have), np.isfinite(want))


@pytest.mark.parametrize("fill", [0, 3])
@pytest.mark.parametrize("stride", [1, 2])
def test_windows_of_bytes_that_slide(how: str, stride: int, fill: int) -> None:
    """Exactly, with whatever surrounds the image."""
    target = target_of("amx")
    m = Model(dtypes.i8)
    draw = np.random.default_rng(1).integers
    x = m.input(1, 64, 15, 20)
    m.feeds[x.name] = draw(-100, 100, x.shape).astype(np.int8)
    w = m.b.constant(draw(-100, 100, (48, 64, 3, 3)).astype(np.int8))
    m.output(m.b.emit(
        "conv", x, w, strides=(stride, stride), padding=((1, 1), (1, 1)), dilation=(1, 1),
        groups=1, fill=fill,
    ))  # fmt: skip
    cut = one_region(m.graph, "conv", {x: (0, 2, 3, 1)})
    (program,) = emit(cut.regions[0], cut, target, None)
    run_passes(program.kernel)
    assert len(analyse(program.kernel, target).implicit_im2col) == 1
    have, want = run_partition(cut, m.feeds, target)["y0"], evaluate(cut.graph, m.feeds)["y0"]
    np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize("sizes", [(3, 5, 40, 20), (2, 33, 64, 48)])
def test_batches_of_weights(how: str, target: Target, sizes: tuple[int, int, int, int]) -> None:
    batch, rows, depth, columns = sizes
    m = Model()
    z = m.dot(m.input(batch, rows, depth), m.weight(batch, columns, depth), (2, 2), (0,))
    m.output(m.b.map("max", z, 0.0))
    check(one_region(round_operands(m.graph, dtypes.bf16), "contraction"), m.feeds, target)


@pytest.mark.parametrize("sizes", [(9, 33, 20), (64, 64, 64)])
def test_models_in_bfloat16(how: str, target: Target, sizes: tuple[int, int, int]) -> None:
    """They multiply what they store, without being asked."""
    rows, depth, columns = sizes
    m = Model(dtypes.bf16)
    z = m.dot(m.input(rows, depth), m.weight(depth, columns), (1, 0))
    m.output(m.b.map("add", z, m.weight(columns)))
    check(one_region(m.graph, "contraction"), m.feeds, target)


@pytest.mark.parametrize("length", [5, 40, 130])
def test_attention(how: str, target: Target, length: int) -> None:
    """The probabilities are rounded before their sum divides them: half a unit in either case."""
    m = Model()
    q, k, v = (m.input(2, length, 24) for _ in range(3))
    scores = m.b.map("mul", m.dot(q, k, (2, 2), (0,)), 24**-0.5)
    m.output(m.dot(m.softmax(scores), v, (2, 1), (0,)))
    schedule = Schedule(blocks=(("m", 32), ("n", 48)))
    graph = round_operands(m.graph, dtypes.bf16)
    check(one_region(graph, "attention"), m.feeds, target, schedule, tolerance=2 * ROUNDING)


def test_error_beside_unrounded_operands(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """No element is farther off than the roundings of its operands and of the float32 sum allow."""
    monkeypatch.setattr(interpreted, "run", native.run)
    m = Model()
    x, w = m.input(50, 257), m.weight(257, 70)
    m.output(m.dot(x, w, (1, 0)))
    have = run_partition(
        one_region(round_operands(m.graph, dtypes.bf16), "contraction"), m.feeds, target
    )["y0"]
    left, right = m.feeds["x0"].astype(np.float64), w.constant
    assert right is not None
    size = np.abs(left) @ np.abs(right)
    error = np.abs(have - left @ right)
    assert (error <= (2 * ROUNDING + ROUNDING**2 + 257 * 2.0**-24) * size).all()
    assert error.max() > 1e-3 * ROUNDING * size.max()  # it did round


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("sizes", [(1, 64, 64), (1, 33, 130), (5, 100, 70), (40, 70, 96)])
def test_weights_of_8_bits(how: str, sizes: tuple[int, int, int], turned: bool) -> None:
    m = linear(*sizes, turned)
    graph = quantise_weights(m.graph)
    assert any("stored" in node.attrs for node in graph.nodes)
    cut = one_region(graph, "contraction")
    check(cut, m.feeds, native.HOST)
    (program,) = emit(cut.regions[0], cut, native.HOST)
    weights = [b for b in program.kernel.buffers if b.dtype is dtypes.i8]
    assert len(weights) == 1 and weights[0].size >= sizes[1] * sizes[2]


@pytest.mark.parametrize("target", [X86_64_V3, X86_64_V4, AARCH64], ids=lambda t: t.arch)
def test_weights_of_8_bits_compile_elsewhere(target: Target) -> None:
    cut = one_region(quantise_weights(linear(3, 70, 90).graph), "contraction")
    (program,) = emit(cut.regions[0], cut, target)
    assert "dot" in print_kernel(program.kernel) and assembly(program.kernel, target)


def test_error_of_weights_of_8_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight is off by half a scale at most, a 254th of the largest of its column."""
    monkeypatch.setattr(interpreted, "run", native.run)
    m = Model()
    x, w = m.input(7, 129), m.weight(129, 70)
    m.output(m.dot(x, w, (1, 0)))
    assert w.constant is not None
    w.constant[:, 5] = 0
    have = run_partition(
        one_region(quantise_weights(m.graph), "contraction"), m.feeds, native.HOST
    )["y0"]
    left, right = m.feeds["x0"].astype(np.float64), w.constant.astype(np.float64)
    half = np.abs(right).max(axis=0) / 254
    limit = np.abs(left).sum(axis=1)[:, None] * half
    error = np.abs(have - left @ right)
    assert (error <= limit * 1.0001 + 1e-5).all() and not have[:, 5].any()
    assert error.max() > 1e-3 * limit.max()


BYTE_UNITS = {
    "amx": (), "avx512_vnni": ("+amx-int8",), "avx_vnni": ("+amx-int8", "+avx512vnni"),
    "plain": ("+amx-int8", "+avx512vnni", "+avxvnni"),
}  # fmt: skip


@pytest.fixture(params=[*BYTE_UNITS, "avx_vnni alone"])
def byte_target(request: pytest.FixtureRequest) -> Target:
    name, _, alone = request.param.partition(" ")
    features = [f for f in native.HOST.features.split(",") if f not in BYTE_UNITS[name]]
    target = replace(native.HOST, features=",".join(features))
    if alone:  # a processor without AVX-512, which reaches 16 registers
        kept = {"+avx2", "+fma", "+f16c", "+bmi2", "+avxvnni"}.intersection(features)
        target = cpu_target("x86-64-v3", ",".join(sorted(kept)), 8, 256)
    found = target.dot_unit("i8")
    if (found.name if found else "plain") != name:
        pytest.skip(f"this processor has no {request.param}")
    return target


@pytest.mark.parametrize("codes", [dtypes.u8, dtypes.i8], ids=str)
@pytest.mark.parametrize("zero", ["none", "constant", "input"])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (5, 9, 7), (33, 130, 50), (64, 128, 96)])
def test_products_of_bytes(
    how: str, byte_target: Target, sizes: tuple[int, int, int], zero: str, codes: DType
) -> None:
    """Exact, for the extremes of both operands and any zero point."""
    rows, depth, columns = sizes
    m = Model()
    low, high = int(codes.lowest), int(codes.highest)
    x = m.b.cast(m.integers(low, high + 1, rows, depth, dtype=codes), dtypes.i32)
    m.feeds["x0"][0, :] = high
    if zero != "none":
        number = m.integers(low, high + 1, dtype=codes) if zero == "input" else None
        number = m.b.constant(np.asarray(high, codes.numpy)) if number is None else number
        x = m.b.emit("sub", x, m.b.broadcast_to(m.b.cast(number, dtypes.i32), x.shape))
    w = m.random.integers(-128, 128, (depth, columns)).astype(np.int32)
    w[:, 0] = -128
    m.output(m.dot(x, m.b.constant(w), (1, 0)))
    graph = to_int8_matmuls(m.graph)
    assert any(node.attrs.get("operands") == "i8" for node in graph.nodes)
    check(one_region(graph, "contraction"), m.feeds, byte_target)


@pytest.mark.parametrize("fill", [0, 3, -128])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels", [3, 24, 32, 64])
def test_windows_of_bytes(
    how: str, byte_target: Target, channels: int, stride: int, fill: int
) -> None:
    """Exact, with whatever surrounds the image, for runs of a few bytes and of whole vectors."""
    m = Model(dtypes.i8)
    draw = np.random.default_rng(1).integers
    x = m.input(1, channels, 9, 11)
    m.feeds[x.name] = draw(-128, 128, x.shape).astype(np.int8)
    w = m.b.constant(draw(-128, 128, (40, channels, 3, 3)).astype(np.int8))
    m.output(m.b.emit(
        "conv", x, w, strides=(stride, stride), padding=((1, 1), (1, 1)), dilation=(1, 1),
        groups=1, fill=fill,
    ))  # fmt: skip
    check(one_region(m.graph, "conv", {x: (0, 2, 3, 1)}), m.feeds, byte_target)


@pytest.mark.parametrize("rows", [4, 64])
@pytest.mark.parametrize("name", ["avx512_vnni", "avx_vnni"])
def test_left_bytes_are_made_unsigned_in_their_copy(name: str, rows: int) -> None:
    """The loops of products read them as they are, and vectors of all rows share sums of columns
    where there is more than one tile of rows."""
    base, bits = ("+avx512f,+avx512vl,+avx512dq,+avx512bw,+avx512vnni", 512)
    if name == "avx_vnni":
        base, bits = "+avx2,+fma,+avxvnni", 256
    target = cpu_target("x86-64-v4" if bits == 512 else "x86-64-v3", base, 8, bits)
    unit = target.dot_unit("i8")
    assert unit is not None and unit.name == name
    m = Model(dtypes.i8)
    m.output(m.dot(m.input(rows, 64), m.weight(64, 64), (1, 0)))
    cut = one_region(m.graph, "contraction")
    (program,) = emit(cut.regions[0], cut, target)
    loops = inner_loops(assembly(program.kernel, target), "vpdpbusd")
    assert loops and not any("xor" in line for loop in loops for line in loop)
    products = [sum("vpdpbusd" in line for line in loop) for loop in loops]
    assert (min(products) == 2) == (rows == 64)


def test_products_that_are_not_of_bytes() -> None:
    m = Model()
    x = m.integers(0, 5, 4, 8, dtype=dtypes.i32)
    wide = m.b.constant(np.full((8, 4), 128, np.int32))
    small = m.b.constant(np.full((8, 4), 127, np.int32))
    codes = m.b.cast(m.integers(0, 5, 4, 8, dtype=dtypes.u8), dtypes.i32)
    m.output(m.dot(x, small, (1, 0)), m.dot(codes, wide, (1, 0)))
    assert to_int8_matmuls(m.graph) is m.graph


def test_special_numbers(how: str, target: Target) -> None:
    """Infinities and NaNs stay in their rows; padding along k must not make more of them."""
    m = linear(20, 33, 20)
    m.feeds["x0"][3, 32], m.feeds["x0"][7, 0], m.feeds["x0"][9, 5] = np.inf, np.nan, 3e38
    graph = round_operands(m.graph, dtypes.bf16)
    want = evaluate(graph, m.feeds, float64=False)["y0"]
    have = run_partition(one_region(graph, "contraction"), m.feeds, target)["y0"]
    np.testing.assert_allclose(have, want, 1e-4, 1e-5)


@pytest.mark.parametrize(
    "unit,dtype,instruction",
    [("amx", "bf16", "tdpbf16ps"), ("avx512_bf16", "bf16", "vdpbf16ps"),
     ("amx", "i8", "tdpbssd"), ("avx512_vnni", "i8", "vpdpbusd"), ("avx_vnni", "i8", "vpdpbusd"),
     ("neon_bf16", "bf16", "bfdot"), ("neon_dotprod", "i8", "sdot")],
)  # fmt: skip
@pytest.mark.parametrize("rows", [3, 64])
def test_instructions(unit: str, dtype: str, instruction: str, rows: int) -> None:
    """Code for such a processor can be made anywhere, and uses its instruction."""
    features = next(u.features for u in DOT_UNITS if (u.name, u.dtype) == (unit, dtype))
    if unit.startswith("neon"):
        arch, base, bits = "aarch64", "+neon", 128
    elif unit == "avx_vnni":
        arch, base, bits = "x86-64-v3", "+avx2,+fma", 256
    else:
        arch, base, bits = "x86-64-v4", "+avx512f,+avx512vl,+avx512dq,+avx512bw", 512
    target = cpu_target(arch, ",".join([base, *(f"+{f}" for f in features)]), 8, bits)
    found = target.dot_unit(dtype)
    assert found is not None and found.name == unit
    graph = round_operands(linear(rows, 64, 64).graph, dtypes.BY_NAME[dtype])
    cut = one_region(graph, "contraction")
    (program,) = emit(cut.regions[0], cut, target)
    text = assembly(program.kernel, target)
    assert instruction in text
    assert ("ldtilecfg" in text) == ("tilerelease" in text) == (unit == "amx")
    assert unit != "avx_vnni" or ("%zmm" not in text and "{vex}" in text)
    if unit != "amx":  # the sums stay in registers while k goes on
        assert not spills(text, instruction)


def spills(assembly_text: str, instruction: str) -> list[str]:
    """Moves to or from the stack in the innermost loops with products."""
    loops = inner_loops(assembly_text, instruction)
    return [line for loop in loops for line in loop if "(%rsp" in line or "[sp" in line]


def inner_loops(assembly_text: str, instruction: str) -> list[list[str]]:
    """The lines of the innermost loops that have an instruction."""
    found: list[list[str]] = []
    lines = assembly_text.splitlines()
    labels = {line[:-1]: at for at, line in enumerate(lines) if line.startswith(".L")}
    for end, line in enumerate(lines):
        target = line.split()[-1] if line.startswith("\t") and line.split() else ""
        body = lines[labels.get(target, end) : end]
        inner = not any(other.startswith(".L") for other in body[1:])
        if inner and any(instruction in other for other in body):
            found.append(body)
    return found


def test_same_bits_again(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreted, "run", native.run)
    m = linear(40, 70, 50)
    cut = one_region(round_operands(m.graph, dtypes.bf16), "contraction")
    first, second = (run_partition(cut, m.feeds, target)["y0"] for _ in range(2))
    np.testing.assert_array_equal(first, second)
