"""Lowering for GPUs takes time in proportion to the kernel: counted calls, not seconds."""

from __future__ import annotations

from functools import partial

import pytest
from onnx import ModelProto, parser

from fuser.backend import nvptx
from fuser.backend.nvptx.cluster.multicast import _program_axes
from fuser.backend.nvptx.tile_scheduler import static_load_balance
from fuser.backend.nvptx.tile_scheduler.raster import growing_axes
from fuser.base.target import SM_90A
from fuser.dtypes import f32
from fuser.partition import partition
from fuser.pipeline.kernels import emit_programs
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import axis, index
from fuser.tilegen.ir import Kernel
from fuser.tilegen.value import Value
from tests.test_growth import LINKS, counted, imported

LINKS = LINKS | {
    "tanh": "t{i} = Tanh({p}) m{i} = Mul({p}, t{i}) x{i} = Add(m{i}, {p})",
    "norm": "r{i} = ReduceMean<keepdims=1>({p}, last) q{i} = Sub({p}, r{i}) w{i} = Mul(q{i}, q{i}) "
    "v{i} = ReduceMean<keepdims=1>(w{i}, last) z{i} = Sqrt(v{i}) x{i} = Div(q{i}, z{i})",
}
AROUND = {
    "map": ("[256, 1024] x", "", "y = Identity({0})", "[256, 1024]"),
    "rows": ("[64, 16384] x", "", "y = Softmax<axis=-1>({0})", "[64, 16384]"),
    "product": ("[9, 512] a, {0}[512, 512] b", "x = MatMul(a, b)", "y = Identity({0})", "[9, 512]"),
    "operand": ("[512, 512] x, {0}[512, 512] b", "", "y = MatMul({0}, b)", "[512, 512]"),
}  # fmt: skip
"""Inputs, what comes before a chain, what comes after it, the shape of the result."""


def model(around: str, kind: str, links: int, dtype: str = "float16") -> ModelProto:
    inputs, before, after, shape = AROUND[around]
    names = ["x", "x", *(f"x{i}" for i in range(links))]
    body = [LINKS[kind].format(i=i, p=names[i + 1], q=names[i]) for i in range(links)]
    lines = ["c = CastLike(number, {})".format("x" if "x" in inputs else "a"), before, *body]
    return parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 20]> g ({dtype}{inputs.format(dtype)}) => '
        f"({dtype}{shape} y) <float number = {{0.3}}, int64[1] last = {{-1}}> "
        f"{{ {' '.join(lines)} {after.format(names[-1])} }}"
    )


def calls(around: str, kind: str, links: int) -> int:
    graph = imported(model(around, kind, links))

    def work() -> None:
        for program in emit_programs(partition(graph, SM_90A), SM_90A):
            nvptx.lower_to_llvm(program.kernel, SM_90A)

    return counted(work)


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("kind", ["swish", "square", "tanh"])
def test_calls_double_with_the_links(kind: str, around: str) -> None:
    calls(around, kind, 2)
    few, many = (calls(around, kind, links) for links in (10, 20))
    assert many < 2.3 * few


def test_rows_that_are_normalised_over_and_over() -> None:
    """Strip by strip every pass would compute all that is before it."""
    few, many = (calls("rows", "norm", links) for links in (10, 20))
    assert many < 2.3 * few


DEPTH = 16


def tangled() -> tuple[Kernel, Value]:
    """A loop whose end depends on the program by 2 ** DEPTH ways, and the value that it is."""
    b = Builder("tangled")
    x, y = b.buffer("x", f32, 1 << 20), b.buffer("y", f32, 1 << 20, "output")
    left = right = b.program_id(0, 1 << 12)
    for _ in range(DEPTH):
        left, right = (
            b.index(index(left) // 2 + index(right) // 3 + 1),
            b.index(index(left) // 3 + index(right) // 2 + 2),
        )
    zero = b.full(0.0, (8,), f32)

    def trip(at: Value, total: Value) -> list[Value]:
        return [
            b.map("add", total, b.load(b.view(x, (1 << 20,)), (index(at) * 8 + axis(0, 8),), (8,)))
        ]

    (total,) = b.loop(0, index(left), 1, [zero], trip)
    b.store(b.view(y, (1 << 20,)), (index(b.program_id(0, 1 << 12)) * 8 + axis(0, 8),), total)
    return b.build(), left


def test_tangled_numbers_of_programs() -> None:
    kernel, value = tangled()
    assert counted(partial(_program_axes, kernel, [value])) < 100 * DEPTH
    assert _program_axes(kernel, [value]) == {0}
    assert counted(partial(growing_axes, kernel)) < 1000 * DEPTH
    assert growing_axes(kernel) == {0}
    loops = static_load_balance._Loops(kernel)
    assert counted(partial(loops.trip_count, (5,))) < 1000 * DEPTH
    expected = [5, 5]
    for _ in range(DEPTH):
        one, two = expected
        expected = [one // 2 + two // 3 + 1, one // 3 + two // 2 + 2]
    assert loops.trip_count((5,)) == expected[0]
