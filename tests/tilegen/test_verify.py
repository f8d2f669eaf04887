"""The verifier, the builder and the parser refuse what is wrong, and say what and where."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from fuser.dtypes import bool_, f16, f32, i32
from fuser.errors import ParseError, VerifyError
from fuser.tilegen import ops
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import axis, index
from fuser.tilegen.parse import parse_kernel
from fuser.tilegen.text import print_kernel
from fuser.tilegen.value import TileType, Value
from fuser.tilegen.verify import verify
from tests.tilegen import programs

BODY = """
kernel @k grid(4) {{
  buffer x: input f32[64]
  buffer h: input f16[64]
  buffer y: output f32[64]
  view &x: x[64] strides(1)
  view &h: h[64] strides(1)
  view &y: y[64] strides(1)
  %p = program_id {{axis = 0}} : index
  %t = load &x, [%p*16 + #0] : tile<16xf32>
  %u = load &h, [%p*16 + #0] : tile<16xf16>
  %m = full {{value = 0.0}} : tile<16x16xf32>
  %b = full {{value = true}} : tile<16xbool>
  %q = full {{value = true}} : bool
{}
}}
"""

WRONG = {
    "%a = program_id {axis = 1} : index": "the grid has no axis 1",
    "%a = full {value = 0.5} : tile<4xi32>": "0.5 is not a value of i32",
    "%a = full {value = 300} : tile<4xu8>": "300 is not a value of u8",
    "%a = load &x, [#0, #0] : tile<16xf32>": "2 indices for &x",
    "%a = load &x, [#0] : tile<16xf16>": "the result is tile<16xf16>, and should be tile<16xf32>",
    "%a = load &x, [%m[#0, #0]] : tile<16xf32>": "%m: tile<16x16xf32> holds no integers",
    "%a = load &x, [%t + 1] : tile<16xf32>": "%t: tile<16xf32> is not an index scalar",
    "store &h, [#0], %t": "%t: tile<16xf32> goes to &h",
    "store &x, [#0], %t": "a store to the input &x",
    "%a = map.wibble(%t) : tile<16xf32>": "there is no map 'wibble'",
    "%a = map.cast(%t) : tile<16xf32>": "there is no map 'cast'",
    "%a = map.add(%t) : tile<16xf32>": "add takes 2 operands, not 1",
    "%a = map.add(%t, %u) : tile<16xf32>": "the operand dtypes differ",
    "%a = map.add(%t, %m) : tile<16xf32>": "the operand shapes differ",
    "%a = map.exp(%u) : tile<16xf16>": "16-bit floats are cast to f32 first",
    "%a = map.lt(%t, %t) : tile<16xf32>": "should be tile<16xbool>",
    "%a = broadcast %t {axes = (1,)} : tile<16x8xf32>": "cannot be broadcast to (16, 8)",
    "%a = broadcast %m {axes = (0, 0)} : tile<16x16xf32>": "cannot be broadcast",
    "%a = reshape %t : tile<4x5xf32>": "cannot have shape (4, 5)",
    "%a = permute %m {axes = (0, 0)} : tile<16x16xf32>": "not an order of the axes",
    "%a = reduce.sum %t {axis = 1} : tile<16xf32>": "has no axis 1",
    "%a = reduce.sum %b {axis = 0} : bool": "the sum of %b",
    "%a = dot %m, %t, %m : tile<16x16xf32>": "do not multiply",
    "%a = dot %m, %m, %m {precision = wild} : tile<16x16xf32>": "no precision 'wild'",
    "for 0, 4, () {step = 0} (%i: index) {\nyield()\n}": "the step 0 is not positive",
    "%a = for 0, 4, (%t) {step = 1} : tile<16xf32> (%i: index, %c: tile<16xf32>) {\nyield()\n}":
        "it yields (), not (tile<16xf32>)",
    "for 0, 4, () {step = 1} (%i: i32) {\nyield()\n}": "the body takes (i32), not (index)",
    "for 0, 4, () {step = 1} (%i: index) {\n}": "ends without a yield",
    "if %b {\nyield()\n} other {\nyield()\n}": "%b: tile<16xbool> is no condition",
    "%a = if %q : tile<16xf32> {\nyield(%t)\n} other {\nyield(%m)\n}":
        "it yields (tile<16x16xf32>)",
    "yield()": "a yield ends a nested block",
    "%a = for 0, 4, (%t) {step = 1} : tile<16xf32> (%i: index, %c: tile<16xf32>) {\n"
    "%n = map.neg(%c) : tile<16xf32>\nyield(%n)\n}\n%z = map.neg(%n) : tile<16xf32>":
        "%n: tile<16xf32> is used where it is not defined",
}  # fmt: skip


def test_the_frame_is_right() -> None:
    verify(parse_kernel(BODY.format("")))


@pytest.mark.parametrize("line", WRONG)
def test_verifier_refuses(line: str) -> None:
    with pytest.raises(VerifyError, match=re.escape(WRONG[line])):
        verify(parse_kernel(BODY.format(line + "  # /net/Bad")))


def test_verifier_names_the_op_and_its_nodes() -> None:
    kernel = parse_kernel(BODY.format("%a = map.exp(%u) : tile<16xf16>  # /net/Exp, /net/Cast"))
    with pytest.raises(VerifyError) as caught:
        verify(kernel)
    where = "`%a = map.exp(%u) : tile<16xf16>` of kernel k, from /net/Exp, /net/Cast"
    assert caught.value.where == where


def test_verifier_checks_views_and_buffers() -> None:
    b = Builder("k")
    b.view(b.buffer("x", f32, 10), (2, 6))
    with pytest.raises(VerifyError, match="covers elements 0 to 11 of x, which has 10"):
        verify(b.build())
    b = Builder("k")
    b.view(b.buffer("x", f32, 10), (4,), (-3,), 8)
    with pytest.raises(VerifyError, match="covers elements -1 to 8"):
        verify(b.build())
    b = Builder("k")
    b.buffer("x", f32, 10)
    b.buffer("x", f32, 10)
    with pytest.raises(VerifyError, match="two buffers share a name"):
        verify(b.build())


def test_verifier_checks_axes() -> None:
    b = Builder("k")
    x = b.view(b.buffer("x", f32, 10), (10,))
    b.load(x, (axis(0, 8),), (4,))
    with pytest.raises(VerifyError, match=re.escape("axis #0 of 8 in a tile of shape (4,)")):
        verify(b.build())


def test_verifier_finds_two_definitions() -> None:
    kernel = programs.scale()
    kernel.body.ops[2].results = kernel.body.ops[1].results
    with pytest.raises(VerifyError, match="defined twice"):
        verify(kernel)


@pytest.mark.parametrize(
    "build",
    [
        lambda b, x, h, view: b.map("add", x, b.full(0.0, (5,), f32)),
        lambda b, x, h, view: b.load(view, (index(0), axis(0, 4)), (4,)),
        lambda b, x, h, view: b.store(view, (axis(0, 4),), h),
        lambda b, x, h, view: b.atomic_add(view, (axis(0, 4),), h),
        lambda b, x, h, view: b.broadcast(x, (3, 4), (0,)),
        lambda b, x, h, view: b.reshape(x, (3,)),
        lambda b, x, h, view: b.dot(x, x, x),
        lambda b, x, h, view: b.loop(0, 4, 1, (x,), lambda i, a: (h,)),
        lambda b, x, h, view: b.branch(b.full(True, (), bool_), lambda: (x,), lambda: (h,)),
    ],
)
def test_builder_refuses(build: Callable[..., object]) -> None:
    b = Builder("k")
    view = b.view(b.buffer("y", f32, 4, "output"), (4,))
    x, h = b.full(1.0, (4,), f32), b.full(1.0, (4,), f16)
    with pytest.raises(VerifyError):
        build(b, x, h, view)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%a = wibble %t : tile<16xf32>", "there is no op 'wibble'"),
        ("%a = map.neg(%z) : tile<16xf32>", "%z is not defined"),
        ("%t = map.neg(%t) : tile<16xf32>", "%t is defined twice"),
        ("%a = load &z, [#0] : tile<16xf32>", "there is no view &z"),
        ("%a = load &x, [#1] : tile<16xf32>", "#1 in a tile of shape (16,)"),
        ("%a = load &x, [#0 // 0] : tile<16xf32>", "a divisor must be positive"),
        ("%a = load &x, [#0 : tile<16xf32>", "expected ']', found ':'"),
        ("%a = reduce.sum %t : f32", "reduce needs axis"),
        ("%a = cast %t {speed = 1} : tile<16xf32>", "cast has no speed"),
        ("%a = cast %t : tile<16xf99>", "there is no element type 'f99'"),
        ("%a, %c = cast %t : tile<16xf16>", "2 results and 1 types"),
        ("%a = cast ?", "unexpected character '?'"),
        (
            "%a = reduce.mean %t {axis = 0} : f32",
            "fn of reduce is 'mean', and should be one of sum,",
        ),
        ("%a = program_id {axis = 1.5} : index", "axis of program_id is 1.5, and should be int"),
        ("%a = program_id {axis 0} : index", "expected '=', found '0'"),
        ("%a = broadcast %t {axes = (true,)} : tile<16xf32>", "should be tuple[int, ...]"),
        (
            "%a = load %t, [#0] : tile<16xf32>",
            "view of load is %t: tile<16xf32>, and should be",
        ),
        ("%a = map.add(%t, 2) : tile<16xf32>", "and should be tuple[Value, ...]"),
        ("%a = load &x, [#0 #0] : tile<16xf32>", "expected the end of an expression, found '#0'"),
        ("%a = index (#0 + 1 : tile<16xi32>", "expected ')', found ':'"),
        ("%a in [0, 3] = load &x, [#0] : tile<16xf32>", "follows its type"),
        ("%a = load &x, [#0] : tile<16xf32> in [3]", "expected a least and a greatest value"),
    ],
)
def test_parser_refuses(line: str, message: str) -> None:
    with pytest.raises(ParseError, match=re.escape(message)) as caught:
        parse_kernel(BODY.format(line))
    assert "line 15" in caught.value.where


@pytest.mark.parametrize("first", ["%z = full {value = 1} : i32", "store &y, [#0], %t", ""])
def test_the_first_block_of_an_op_without_results(first: str) -> None:
    """A brace after the operands opens it, and no attributes."""
    line = f"if %q {{\n{first}\nyield()\n}} other {{\nyield()\n}}"
    kernel = parse_kernel(BODY.format(line))
    verify(kernel)
    assert len(kernel.body.ops[-1].blocks()[0].ops) == 1 + bool(first)
    assert print_kernel(parse_kernel(print_kernel(kernel))) == print_kernel(kernel)


def test_text_keeps_claims_and_odd_names() -> None:
    b = Builder("odd name")
    x = b.buffer("/layer/x:0", i32, 9)
    y = b.view(b.buffer("y", i32, 9, "output"), (9,))
    b.origin = ("/a b", "c,d", "#e")
    tile = b.load(b.view(x, (9,)), (axis(0, 9),), (9,))
    tile.low, tile.high, tile.multiple = 0, 64, 8
    b.store(y, (axis(0, 9),), tile)
    text = print_kernel(b.build())
    assert 'buffer "/layer/x:0": input i32[9]' in text
    assert "in [0, 64] by 8" in text
    parsed = parse_kernel(text)
    assert print_kernel(parsed) == text
    assert parsed.body.ops[0].origin == (("/a b", "c,d", "#e"),)
    assert parsed.body.ops[0].result.range == (0, 64)


def test_verifier_checks_fields() -> None:
    kernel = programs.scale()
    load = next(op for op in kernel.walk() if isinstance(op, ops.Load))
    load.pad = "none"  # type: ignore[assignment]
    with pytest.raises(VerifyError, match="pad of load is 'none', and should be float") as caught:
        verify(kernel)
    assert "kernel scale" in caught.value.where


def test_an_unknown_op_is_refused() -> None:
    kernel = programs.scale()
    op = ops.Op(results=(Value(TileType(f32), "x"),))
    kernel.body.ops.append(op)
    with pytest.raises(VerifyError, match="there is no op"):
        verify(kernel)
