"""Equal regions get one kernel: the programs that each would have had alone."""

import numpy as np
import pytest
from onnx import numpy_helper, parser

from benchmarks.compile_growth import SHAPES
from fuser.base.target import SM_90A, X86_64_V3, Target
from fuser.graph.ir import Graph
from fuser.partition import partition
from fuser.pipeline.kernels import emit_programs, programs_of
from fuser.tilegen.emit.twins import Twins, form_of
from fuser.tilegen.program import TileProgram
from fuser.tilegen.text import print_kernel
from tests.test_growth import imported


def bodies(programs: list[TileProgram]) -> int:
    return len({id(program.kernel.body) for program in programs})


@pytest.mark.parametrize("target", [X86_64_V3, SM_90A], ids=["cpu", "gpu"])
@pytest.mark.parametrize("shape", ["equal", "distinct", "fan"])
def test_twins_are_what_they_would_be_alone(shape: str, target: Target) -> None:
    """Texts with their sources, and arguments; ten layers have the kernels of five."""
    cut = partition(imported(SHAPES[shape](60)), target)
    found = emit_programs(cut, target)
    alone = [program for r in cut.regions for program in programs_of(r, cut, target, Twins())]
    assert bodies(found) < bodies(alone) == len(alone)
    assert [print_kernel(p.kernel) for p in found] == [print_kernel(p.kernel) for p in alone]
    for one, other in zip(found, alone, strict=True):
        assert (one.region, one.flops, one.notes) == (other.region, other.flops, other.notes)
        for a, b in zip(one.arguments, other.arguments, strict=True):
            assert (a.buffer.name, a.value, a.packing) == (b.buffer.name, b.value, b.packing)


def sums(*constants: np.ndarray) -> Graph:
    """softmax(x) + a constant, a matmul, and again."""
    names = "".join(
        f"s{i} = Softmax(x{i}) a{i} = Add(s{i}, c{i}) x{i + 1} = MatMul(a{i}, w)"
        for i in range(len(constants))
    )
    model = parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 17]> g (float[4, 6] x0) => (float[4, 6] y) '
        f"{{ {names} y = Identity(x{len(constants)}) }}"
    )
    weights = {"w": np.tri(6), **{f"c{i}": array for i, array in enumerate(constants)}}
    model.graph.initializer.extend(
        numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()
    )
    return imported(model)


def test_layers_may_share_what_each_names_anew() -> None:
    """A node that all layers compute, under a name in each, is one with all of their names."""

    def layers(count: int) -> tuple[list[TileProgram], list[TileProgram]]:
        names = "".join(
            f"n{i} = Neg(p) s{i} = Softmax(x{i}) m{i} = Mul(s{i}, n{i}) x{i + 1} = MatMul(m{i}, w)"
            for i in range(count)
        )
        model = parser.parse_model(
            f'<ir_version: 9, opset_import: ["": 17]> g (float[4, 6] x0, float[6] p) '
            f"=> (float[4, 6] y) {{ {names} y = Identity(x{count}) }}"
        )
        weight = numpy_helper.from_array(np.tri(6, dtype=np.float32), "w")
        model.graph.initializer.append(weight)
        cut = partition(imported(model), X86_64_V3)
        alone = [p for r in cut.regions for p in programs_of(r, cut, X86_64_V3, Twins())]
        return emit_programs(cut, X86_64_V3), alone

    (few, _), (many, alone) = layers(4), layers(9)
    assert bodies(few) == bodies(many) < 9
    texts = [print_kernel(program.kernel) for program in many]
    assert texts == [print_kernel(program.kernel) for program in alone]
    assert any("n0" in text and "n8" in text for text in texts)


ANY = np.arange(6) ** 2


@pytest.mark.parametrize(
    ("constants", "kernels"),
    [
        ((ANY, ANY[::-1]), 1),
        ((ANY, np.full(6, 3.0), np.full(6, 4.0), ANY + 1), 3),  # numbers are in the code
        ((np.where(np.tri(4, 6), 0, -1e9), np.where(np.tri(4, 6, -1), 0, -1e9)), 2),
        ((np.where(np.tri(4, 6), 0, -1e9), np.where(np.tri(4, 6), 0, -1e9) * 1.0), 1),
    ],
    ids=["weights", "numbers", "triangles", "equal triangles"],
)
def test_values_of_constants_count_where_they_are_asked_for(
    constants: tuple[np.ndarray, ...], kernels: int
) -> None:
    programs = emit_programs(partition(sums(*constants), X86_64_V3), X86_64_V3)
    around = [program for program in programs if program.region.kind == "reduce"]
    assert len(around) == len(constants)
    assert bodies(around) == kernels


def test_forms_tell_apart_what_equality_does_not() -> None:
    items = [0, 0.0, -0.0, False, "0", None, (0,), (0.0,), np.float32(0), np.float64(0)]
    assert len({form_of(item) for item in items}) == len(items)
    assert form_of(float("nan")) == form_of(float("nan"))
    assert form_of(np.arange(3)) == form_of(np.arange(3)) != form_of(np.arange(3.0))
    large = np.zeros(2000)
    assert form_of(large) == form_of(large) != form_of(large.copy())
