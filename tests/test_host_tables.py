"""What a model makes the host keep is held against the limit on bytes before it is made.

One test reads the sources of the importers: a function that makes arrays of sizes calls
`check_table` first. The others give every operator with a table a size beyond the limit.
"""

from __future__ import annotations

import ast
import resource
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import fuser
from fuser.base.limits import Limits, check_table, limited
from fuser.errors import LimitError, OutOfMemoryError

ROOT = Path(__file__).parents[1] / "fuser"
SCANNED = (
    *ROOT.glob("frontends/onnx/importer/*.py"),
    *ROOT.glob("frontends/torch/importer/*.py"),
    *ROOT.glob("graph/*.py"),
)
MAKERS = frozenset((
    "arange", "zeros", "ones", "full", "empty", "repeat", "tile", "indices", "meshgrid", "eye",
    "linspace", "outer", "pad", "tri", "hanning", "hamming", "blackman", "kron", "identity",
    "logspace", "geomspace", "fromfunction", "mgrid", "ogrid",
))  # fmt: skip
BOUNDED = {
    "_table": "the codes of a byte",
    "_encode_float": "as many thresholds as codes",
    "_symbolic": "as many dims as a node lists",
    "_plain": "an array that is there, of 4,096 elements at most",
}
"""Functions whose arrays no size of a model reaches, and why."""


def makes(node: ast.AST) -> bool:
    """Whether a node is a call of an array maker of NumPy with a size that is not a literal."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    base = node.func.value
    if isinstance(base, ast.Attribute) and node.func.attr == "outer":
        return True  # np.add.outer
    if not isinstance(base, ast.Name) or base.id != "np" or node.func.attr not in MAKERS:
        return False
    return not all(is_literal(argument) for argument in node.args[:1])


def is_literal(node: ast.AST) -> bool:
    """Numbers, and tuples of them."""
    return all(isinstance(part, ast.Constant | ast.Tuple | ast.Load) for part in ast.walk(node))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node


def unchecked(source: str) -> list[str]:
    """The functions that make an array before they call check_table."""
    found = []
    for function in functions(ast.parse(source)):
        lines = [node.lineno for node in ast.walk(function) if makes(node)]
        checks = [
            node.lineno
            for node in ast.walk(function)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "check_table"
        ]
        if lines and (not checks or min(checks) > min(lines)):
            found.append(function.name)
    return found


@pytest.mark.parametrize("path", SCANNED, ids=lambda path: str(path.relative_to(ROOT)))
def test_importers_check_before_they_make_arrays(path: Path) -> None:
    assert [name for name in unchecked(path.read_text()) if name not in BOUNDED] == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f(n):\n    return np.arange(n)", ["f"]),
        ("def f(n):\n    check_table('a', n)\n    return np.arange(n)", []),
        ("def f(n):\n    x = np.outer(n, n)\n    check_table('a', n)", ["f"]),
        ("def f(n):\n    return np.add.outer(n, n)", ["f"]),
        ("def f():\n    return np.zeros(0, np.float32), np.ones((1, 1), bool)", []),
    ],
)
def test_the_scan_finds_what_is_unchecked(source: str, found: list[str]) -> None:
    assert unchecked(source) == found


def test_a_table_is_counted_with_all_that_is_made_on_the_way() -> None:
    with limited(Limits(bytes=1_000_000)):
        check_table("it", 125_000)
        check_table("it", 1 << 40, 0, item=0)
        with pytest.raises(OutOfMemoryError, match=r"it takes 1000008 bytes"):
            check_table("it", 125_001)
        with pytest.raises(OutOfMemoryError):
            check_table("it", 500, 500, arrays=5)


K = 1 << 27
IMAGE = [1, 1, 1, 8]


def total_of(
    op: str, operands: list[Any], shape: list[int] | None = None, opset: int = 22, **attrs: Any
) -> onnx.ModelProto:
    """The sum of one operator's result: small, whatever it is computed from. An operand that is
    "x" is the input of that shape, None is left out."""
    names = [
        o if isinstance(o, str) else "" if o is None else f"w{i}" for i, o in enumerate(operands)
    ]
    weights = [
        numpy_helper.from_array(np.asarray(o), n)
        for n, o in zip(names, operands, strict=True)
        if n.startswith("w")
    ]
    nodes = [
        helper.make_node(op, names, ["t"], **attrs),
        helper.make_node("ReduceSum", ["t"], ["y"], keepdims=0),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)] if shape else []
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


f32 = np.float32
LARGE = {
    "resize, linear": total_of(
        "Resize", ["x", None, None, np.array([1, 1, 1, K])], IMAGE, mode="linear"
    ),
    "resize, cubic": total_of(
        "Resize", ["x", None, None, np.array([1, 1, 1, K])], IMAGE, mode="cubic"
    ),
    "resize, nearest": total_of("Resize", ["x", None, None, np.array([1, 1, 1, K])], IMAGE),
    "resize by a scale": total_of("Resize", ["x", None, np.array([1, 1, 1, 1e7], f32)], IMAGE),
    "resize of many taps": total_of(
        "Resize", ["x", None, None, np.array([1, 1, 1, 1 << 14])], [1, 1, 1, 1 << 20],
        mode="linear", antialias=1,
    ),
    "upsample": total_of("Upsample", ["x", np.array([1, 1, 1, 1e7], f32)], IMAGE, opset=9),
    "pad, wrap": total_of("Pad", ["x", np.array([0, 0, 0, K, 0, 0, 0, 0])], IMAGE, mode="wrap"),
    "pad, edge": total_of("Pad", ["x", np.array([0, 0, 0, 0, 0, 0, 0, K])], IMAGE, mode="edge"),
    "pad, reflect": total_of(
        "Pad", ["x", np.array([0, 0, 0, 7, 0, 0, 0, 6])], [1, 1, K, 8], mode="reflect"
    ),
    "mel of many bins": total_of(
        "MelWeightMatrix", [np.array(K), np.array(16), np.array(16000), f32(0), f32(8000)]
    ),
    "mel of many bands": total_of(
        "MelWeightMatrix", [np.array(K), np.array(1), np.array(16000), f32(0), f32(8000)]
    ),
    "dft": total_of("DFT", ["x", None, np.array(1)], [1, 20_000, 1], opset=20),
    "dft of a length": total_of("DFT", ["x", np.array(K), np.array(1)], [1, 8, 1], opset=20),
    "stft": total_of("STFT", ["x", np.array(1), None, np.array(20_000)], [1, 100_000, 1]),
    "stft of many frames": total_of("STFT", ["x", np.array(1), None, np.array(2)], [1, K, 1]),
    "window": total_of("HannWindow", [np.array(K)]),
    "pooled sizes": total_of(
        "AveragePool", ["x"], [1, 1, 1, K], kernel_shape=[1, 3], pads=[0, 1, 0, 1]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_a_table_beyond_the_limit_is_refused_before_it_is_made(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(LimitError, match=r"bytes of memory, more than 50000000"):
        fuser.compile(LARGE[name], device="cpu", limits=Limits(bytes=50_000_000))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024


def test_many_tables_are_counted_together() -> None:
    """Each is within the limit; they are refused at the third, not after the last."""
    count, size = 40, 300_000
    nodes = [
        helper.make_node("Resize", ["x", "", "", f"s{i}"], [f"t{i}"], name=f"resize_{i}")
        for i in range(count)
    ]
    sums = [helper.make_node("ReduceSum", [f"t{i}"], [f"r{i}"], keepdims=0) for i in range(count)]
    last = helper.make_node("Sum", [f"r{i}" for i in range(count)], ["y"])
    sizes = [numpy_helper.from_array(np.array([1, 1, 1, size + i]), f"s{i}") for i in range(count)]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", IMAGE), ("y", []))
    )
    graph = helper.make_graph([*nodes, *sums, last], "g", [x], [y], sizes)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    with pytest.raises(LimitError, match=r"on the host takes .* resize_[0-9]"):
        fuser.compile(model, device="cpu", limits=Limits(bytes=20_000_000))


def test_the_structure_of_a_model_is_counted(tmp_path: Path) -> None:
    """Nodes take memory as well: in the file many times their bytes, in the graph some kilobytes.
    Weights are none of it."""
    count = 20_000
    names = ["x", *(f"t{i}" for i in range(count - 1)), "y"]
    nodes = [helper.make_node("Relu", [a], [b]) for a, b in pairwise(names)]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")

    def model(nodes: Any, **options: Any) -> bytes:
        graph = helper.make_graph(nodes, "g", [x], [y], **options)
        imports = [helper.make_opsetid("", 22)]
        made = helper.make_model(graph, opset_imports=imports, ir_version=10)
        return bytes(made.SerializeToString())

    with pytest.raises(LimitError, match="the graph takes"):
        fuser.compile(model(nodes), device="cpu", limits=Limits(bytes=50_000_000))
    with pytest.raises(LimitError, match="the structure of the model takes"):
        fuser.compile(model(nodes), device="cpu", limits=Limits(bytes=5_000_000))
    weight = numpy_helper.from_array(np.ones((1000, 1000), np.float32), "w")
    used = [
        helper.make_node("ReduceMax", ["w"], ["m"], keepdims=0),
        helper.make_node("Add", ["x", "m"], ["y"]),
    ]
    few = model(used, initializer=[weight])
    assert fuser.compile(few, device="cpu", limits=Limits(bytes=5_000_000)).launches


def test_torch_tables_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")

    class Windows(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x.unfold(0, 4000, 1).sum()

    exported = torch.export.export(Windows(), (torch.ones(8000),))
    monkeypatch.setenv("FUSER_MAX_BYTES", "50000000")
    compiled = fuser.compile(exported, device="cpu")
    with pytest.raises(LimitError, match="places of windows takes"):
        compiled(torch.ones(8000))
