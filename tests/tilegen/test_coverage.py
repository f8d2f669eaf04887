"""The proof that kernels write their outputs: what it finds, and that its algebra is true."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fuser.dtypes import f32, i64
from fuser.errors import VerifyError
from fuser.frontends.onnx.model import open_model
from fuser.graph.dims import symbol
from fuser.graph.ir import Graph, TensorType
from fuser.graph.sizes import Sizes
from fuser.partition import Options, partition
from fuser.pipeline.kernels import emit_programs
from fuser.tilegen.coverage import Proof, prove_order, prove_reads, prove_region, prove_whole
from fuser.tilegen.coverage.access import Access, loads_of, stores_of
from fuser.tilegen.coverage.box import Box, box_of, tile_exactly
from fuser.tilegen.coverage.count import addresses, count
from fuser.tilegen.emit import emit
from fuser.tilegen.parse import parse_kernel
from fuser.tilegen.passes import run_passes
from models import TINY, build
from tests.interpreted import TARGETS
from tests.random_graphs.check import prepared
from tests.random_graphs.draw import draw


def stores(grid: str, size: int, view: str, *lines: str) -> list[Access]:
    """The stores of a kernel of these lines, to `out` of `size` elements, seen through `view`."""
    body = "\n".join(f"  {line}" for line in lines)
    text = f"""kernel @k grid({grid}) {{
  buffer out: output f32[{size}]
  view &out: out{view}

{body}
}}
"""
    return stores_of(parse_kernel(text))


ZERO = "%c = full {value = 0.0} : tile<4x8xf32>"
LINE = "%c = full {value = 0.0} : tile<8xf32>"
P = "%p = program_id {axis = 0} : index"
Q = "%q = program_id {axis = 1} : index"

WHOLE = {
    "blocks": (
        "3, 2", 120, "[10, 12] strides(12, 1)", P, Q, ZERO,
        "store &out, [%p*4 + #0, %q*8 + #1], %c",
    ),
    "a transpose": (
        "3, 2", 120, "[12, 10] strides(1, 12)", P, Q, ZERO,
        "store &out, [%q*8 + #1, %p*4 + #0], %c",
    ),
    "digits": (
        "4", 30, "[6, 5] strides(5, 1)", P, LINE,
        "store &out, [(%p*8 + #0) // 5, (%p*8 + #0) % 5], %c",
    ),
    "digits with a bound": (
        "4", 25, "[5, 5, 25] strides(5, 1, 0)", P, LINE,
        "store &out, [(%p*8 + #0) // 5, (%p*8 + #0) % 5, %p*8 + #0], %c",
    ),
    "backwards": ("2", 16, "[16] strides(1)", P, LINE, "store &out, [15 - %p*8 - #0], %c"),
    "halves": (
        "1", 16, "[16] strides(1)", LINE, "store &out, [#0], %c", "store &out, [#0 + 8], %c",
    ),
    "even and odd": (
        "1", 16, "[16] strides(1)", LINE, "store &out, [#0*2], %c", "store &out, [#0*2 + 1], %c",
    ),
    "one column of a tile": (
        "5", 5, "[5, 1] strides(1, 0)", P, LINE, "store &out, [%p, #0 - 3], %c",
    ),
    "a loop": (
        "2", 24, "[2, 12] strides(12, 1)", P, LINE,
        "for 0, 12, () {step = 8} (%i: index) {", "store &out, [%p, %i + #0], %c", "yield()", "}",
    ),
}  # fmt: skip
BROKEN = {
    "half of a tile": (
        "3", 24, "[24] strides(1)", "is stored by nobody", P,
        "%c = full {value = 0.0} : tile<4xf32>", "store &out, [%p*8 + #0], %c",
    ),
    "bounds that contradict": (
        "1", 1, "[1, 1, 1] strides(1, 0, 0)", "is stored by nobody", LINE,
        "store &out, [0, #0, #0 - 5], %c",
    ),
    "an index off by one": (
        "2", 16, "[16] strides(1)", "element 0 is stored by nobody", P, LINE,
        "store &out, [%p*8 + #0 + 1], %c",
    ),
    "a bound that is missing": (
        "2", 10, "[2, 5] strides(5, 1)", "more than once", P, LINE,
        "store &out, [%p, #0 % 5], %c",
    ),
    "a program too many": (
        "2, 2", 16, "[16] strides(1)", "is stored 2 times", P, LINE, "store &out, [%p*8 + #0], %c",
    ),
    "an axis that no index has": (
        "1", 8, "[8] strides(1)", "is stored 4 times", P, ZERO, "store &out, [#1], %c",
    ),
    "programs that overlap": (
        "3", 16, "[16] strides(1)", "more than once", P, LINE, "store &out, [%p*4 + #0], %c",
    ),
    "the wrong axis": (
        "2, 2", 64, "[8, 8] strides(8, 1)", "element", P, Q, ZERO,
        "store &out, [%q*4 + #0, %p*4 + #1], %c",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WHOLE)
def test_whole_by_algebra(case: str) -> None:
    grid, size, view, *lines = WHOLE[case]
    found = stores(str(grid), int(size), str(view), *map(str, lines))
    assert prove_whole(found) == "algebra"
    assert (count(found, int(size)) == 1).all()


@pytest.mark.parametrize("case", BROKEN)
def test_broken_stores(case: str) -> None:
    grid, size, view, message, *lines = BROKEN[case]
    found = stores(str(grid), int(size), str(view), *map(str, lines))
    with pytest.raises(VerifyError, match=str(message)):
        prove_whole(found)


def test_no_store_that_can_be_looked_at_whole() -> None:
    """A box beyond the limit is looked at in part: elements stored twice are found."""
    lines = (P, Q, LINE, "store &out, [min(%p*8 + #0, %q*8 + #0)], %c")
    with pytest.raises(VerifyError, match="more than once"):
        prove_whole(stores("4000, 4000", 32000, "[32000] strides(1)", *lines))


WORK = """kernel @k grid(2) {{
  buffer work: workspace f32[16]
  view &work: work[16] strides(1)

  %p = program_id {{axis = 0}} : index
  %c = full {{value = 0.0}} : tile<8xf32>
  store &work, [{place}], %c
  %x = load &work, [%p*8 + #0] : tile<8xf32>
}}
"""


@pytest.mark.parametrize(
    ("place", "wrong"),
    [("%p*8 + #0", ""), ("%p*8 + #0 + 4", "element 0 is read"), ("#0*2", "element 1 is read")],
)
def test_reads_of_a_workspace(place: str, wrong: str) -> None:
    kernel = parse_kernel(WORK.format(place=place))
    loads = loads_of(kernel, kernel.buffers[0])
    if wrong:
        with pytest.raises(VerifyError, match=wrong):
            prove_reads(stores_of(kernel), lambda: loads)
    else:
        assert prove_reads(stores_of(kernel), lambda: loads) == "algebra"


def elements(box: Box) -> np.ndarray:
    """The elements of a buffer that a box is, in any order."""
    _, strides, offset = box.layout
    found = np.asarray([offset])
    for stride, (low, high, step) in zip(strides, box.ranges, strict=True):
        found = (found[:, None] + np.arange(low, high, step) * stride).reshape(-1)
    return found


@pytest.mark.parametrize("first", range(0, 60, 15))
def test_boxes_are_what_is_met(first: int) -> None:
    """On kernels of drawn graphs: the box of the algebra is what the evaluated indices meet."""
    boxes = whole = 0
    for seed in range(first, first + 15):
        graph = prepared(draw(seed).graph, fusion=bool(seed % 2))
        for name in ("cpu", "sm_90a"):
            target = TARGETS[name]
            cut = partition(graph, target, Options())
            for region in cut.regions:
                for program in emit(region, cut, target):
                    run_passes(program.kernel)
                    for access in stores_of(program.kernel):
                        box = box_of(access)
                        if box is None:
                            continue
                        met = np.sort(addresses(access))
                        np.testing.assert_array_equal(met, np.sort(elements(box)))
                        boxes += 1
                        whole += tile_exactly([box], access.buffer.size)
    assert boxes > 50 and whole > 50


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("target", TARGETS)
def test_models_by_algebra(name: str, target: str) -> None:
    """Nearly all stores of models need no evaluation; none depends on data."""
    device = TARGETS[target]
    graph = open_model(build(name, **TINY[name])).graph({})
    cut = partition(graph, device, Options())
    proofs: list[Proof] = []
    programs = emit_programs(cut, device)
    for _, group in itertools.groupby(programs, key=lambda program: program.region):
        proofs += prove_region(list(group))
    methods = [proof.method for proof in proofs]
    assert set(methods) <= {"algebra", "counted"}
    assert methods.count("algebra") > 0.8 * len(methods)


def test_open_sizes_by_algebra() -> None:
    """A grid of ceil(rows / 32) blocks covers any number of rows, and asks for no guard."""
    with Sizes({"rows": 100}) as sizes:
        rows = symbol("rows")
        text = """kernel @k grid(`rows // 32 + 1`) {
  sizes(rows = 100)
  buffer out: output f32[`12*rows`]
  view &out: out[`rows`, 12] strides(12, 1)

  %p = program_id {axis = 0} : index
  %c = full {value = 0.0} : tile<32x12xf32>
  store &out, [%p*32 + #0, #1], %c
}
"""
        (found,) = stores_of(parse_kernel(text))
        kernel = parse_kernel(text)
        before = len(sizes.guards)
        assert prove_whole([found]) == "counted"  # one block too many at multiples of 32
        kernel.grid = (-(-rows // 32),)
        assert prove_whole(stores_of(kernel)) == "algebra"
        assert len(sizes.guards) == before


def test_values_are_written_before_they_are_read() -> None:
    graph = Graph("g")
    x = graph.add_input("x", TensorType(f32, (4, 5)))
    y = graph.add("exp", [x], [x.type]).output
    total = graph.add("reduce_sum", [y], [TensorType(f32, (5,))], axes=(0,)).output
    z = graph.add("sort", [total], [total.type, TensorType(i64, (5,))], axis=0).outputs[0]
    graph.outputs, graph.output_names = [z], ["z"]
    cut = partition(graph, TARGETS["cpu"], Options(no_fusion=True))
    programs = emit_programs(cut, TARGETS["cpu"])
    assert len(programs) > 1
    with pytest.raises(VerifyError, match="is read before a program writes it"):
        prove_order(list(reversed(programs)), cut.graph.inputs, cut.graph.outputs)
    with pytest.raises(VerifyError, match="no program writes the output"):
        prove_order(programs[:-1], cut.graph.inputs, cut.graph.outputs)


def test_a_compile_stops_at_a_program_without_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """An emitter that stores to the wrong place is an internal error with the kernel's text."""
    from fuser.tilegen.emit.space import Emission

    store_view = Emission.store_view

    def shifted(self, view, indices, *args, **kwargs):  # type: ignore[no-untyped-def]
        store_view(self, view, (indices[0] + 1, *indices[1:]), *args, **kwargs)

    monkeypatch.setattr(Emission, "store_view", shifted)
    graph = open_model(build("softmax", **TINY["softmax"])).graph({})
    with pytest.raises(VerifyError, match=r"stored by nobody.*\nkernel @") as caught:
        emit_programs(partition(graph, TARGETS["cpu"], Options()), TARGETS["cpu"])
    assert caught.value.exit_code == 70
    assert "region 0" in caught.value.where
