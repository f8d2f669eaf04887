"""How compile time and memory grow with the model, for shapes of growth.

    python -m benchmarks.compile_growth                          # all shapes, 400 to 6,400 nodes
    python -m benchmarks.compile_growth --shapes equal --sizes 6145 18001

Each compile is one of a process of its own, cold, with an empty cache, after a small model of the
same shape (imports and the start of the workers are not what grows). Stages are in milliseconds of
processor time a node of the model in the process that compiles; what LLVM takes in the workers,
once a distinct kernel, shows in the wall time alone. The exponent is that of the least squares line
through (nodes, total) on logarithmic scales: 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Build = Callable[[int], onnx.ModelProto]
WIDTH, ROWS = 64, 32
STAGES = {
    "importing the graph": "graph", "partitioning": "regions", "writing tile programs": "programs",
    "compiling": "kernels", "building the plan": "plan",
}  # fmt: skip
"""What progress says when a stage begins, and the stage."""


class _Net:
    """Nodes and weights of a model in the making."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.functions: list[onnx.FunctionProto] = []
        self._rng = np.random.default_rng(0)

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        array = self._rng.standard_normal(shape).astype(np.float32) / 8
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def add(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"v{len(self.nodes)}"
        node = helper.make_node(op, inputs, [name], name=f"/{name}/{op}", **attrs)
        self.nodes.append(node)
        return name

    def model(
        self, outputs: Sequence[str], inputs: dict[str, Sequence[int | str]] | None = None
    ) -> onnx.ModelProto:
        shapes = inputs or {"x": (ROWS, WIDTH)}
        graph = helper.make_graph(
            self.nodes, "growth",
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
            self.weights,
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
        model: onnx.ModelProto = helper.make_model(
            graph, opset_imports=opsets, functions=self.functions
        )
        model.ir_version = 9
        return model


def _layers(nodes: int, widths: Sequence[int]) -> onnx.ModelProto:
    net, x = _Net(), "x"
    for layer in range(max(1, nodes // 6)):
        width = widths[layer % len(widths)]
        inner = net.add("Add", net.add("MatMul", x, net.weight(WIDTH, width)), net.weight(width))
        outer = net.add("MatMul", net.add("Relu", inner), net.weight(width, WIDTH))
        x = net.add("Softmax", net.add("Add", outer, x), axis=-1)
    return net.model([net.add("Identity", x)])


def equal(nodes: int) -> onnx.ModelProto:
    """Layers: matmul, bias, ReLU, matmul, residual, softmax."""
    return _layers(nodes, (WIDTH,))


def distinct(nodes: int) -> onnx.ModelProto:
    """The same of five widths in turn: no layer is like its neighbours."""
    return _layers(nodes, [WIDTH + 8 * i for i in range(5)])


def fan(nodes: int) -> onnx.ModelProto:
    """One value read by all branches, and their sum, pair by pair."""
    net = _Net()
    ends = [
        net.add("Relu", net.add("MatMul", "x", net.weight(WIDTH, WIDTH)))
        for _ in range(max(2, nodes // 3))
    ]
    while len(ends) > 1:
        pairs = zip(ends[::2], ends[1::2], strict=False)
        ends = [net.add("Add", a, b) for a, b in pairs] + ends[len(ends) & ~1 :]
    return net.model(ends)


def movement(nodes: int) -> onnx.ModelProto:
    """A chain of transpositions, reshapes and slices around a few sums."""
    net, x = _Net(), "x"
    shape = numpy_helper.from_array(np.array([WIDTH, ROWS], np.int64), "shape")
    net.weights.append(shape)
    while len(net.nodes) < nodes:
        x = net.add("Transpose", net.add("Reshape", x, "shape"), perm=[1, 0])
        if len(net.nodes) % 64 == 0:
            x = net.add("Relu", net.add("Softmax", x, axis=-1))
    return net.model([net.add("Relu", x)])


def concat(nodes: int) -> onnx.ModelProto:
    """One concat of as many operands as there are other nodes."""
    net = _Net()
    parts = [net.add("Add", "x", net.weight(1, WIDTH)) for _ in range(max(1, nodes - 1))]
    return net.model([net.add("Concat", *parts, axis=0)])


def outputs(nodes: int) -> onnx.ModelProto:
    """Each second node is an output."""
    net = _Net()
    made = [
        net.add("Softmax", net.add("Add", "x", net.weight(WIDTH)), axis=-1)
        for _ in range(max(1, nodes // 2))
    ]
    return net.model(made)


def functions(nodes: int) -> onnx.ModelProto:
    """Functions that call functions, 12 deep; nodes once they are written out."""
    net, depth = _Net(), 12
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    body = [
        helper.make_node("Softmax", ["a"], ["s"], axis=-1), helper.make_node("Relu", ["s"], ["b"])
    ]  # fmt: skip
    for level in range(depth):
        net.functions.append(helper.make_function("local", f"F{level}", ["a"], ["b"], body, opsets))
        body = [helper.make_node(f"F{level}", ["a"], ["b"], domain="local")]
    x = "x"
    for _ in range(max(1, nodes // 2)):
        x = net.add(f"F{depth - 1}", x, domain="local")
    return net.model([x])


def branches(nodes: int) -> onnx.ModelProto:
    """Ifs in Ifs, 8 deep, whose conditions are constants."""
    net = _Net()
    net.weights.append(numpy_helper.from_array(np.array(True), "yes"))
    x = "x"
    while len(net.nodes) < max(1, nodes // 10):
        x = net.add("Softmax", _nested(net, x, 8), axis=-1)
    return net.model([x])


def _nested(net: _Net, x: str, depth: int) -> str:
    """Ifs of a depth around a ReLU."""
    name = f"t{len(net.nodes)}"
    made = helper.make_node("Relu", [x], [f"{name}_{depth}"])
    for level in reversed(range(depth)):
        inner = made.output[0]
        value = helper.make_tensor_value_info(inner, TensorProto.FLOAT, None)
        taken = helper.make_graph([made], "taken", [], [value])
        other = helper.make_node("Neg", [x], [f"{inner}_not"])
        left = helper.make_tensor_value_info(f"{inner}_not", TensorProto.FLOAT, None)
        made = helper.make_node(
            "If", ["yes"], [f"{name}_{level}"], then_branch=taken,
            else_branch=helper.make_graph([other], "left", [], [left]),
        )  # fmt: skip
    net.nodes.append(made)
    return str(made.output[0])


def dims(nodes: int) -> onnx.ModelProto:
    """Inputs that each have a symbolic dim of their own."""
    net, shapes = _Net(), dict[str, Sequence[int | str]]()
    made = []
    for number in range(max(1, nodes // 2)):
        shapes[f"x{number}"] = (f"n{number}", WIDTH)
        made.append(net.add("Relu", net.add("Softmax", f"x{number}", axis=-1)))
    return net.model(made, shapes)


SHAPES: dict[str, Build] = {
    build.__name__: build
    for build in (equal, distinct, fan, movement, concat, outputs, functions, branches, dims)
}


def nodes_of(model: onnx.ModelProto) -> int:
    """The nodes of a model; of functions and branches those that are written out."""

    def count(nodes: Sequence[onnx.NodeProto]) -> int:
        total = 0
        for node in nodes:
            total += bodies.get(node.op_type, 1) if node.domain == "local" else 1
            total += sum(count(a.g.node) for a in node.attribute if a.HasField("g"))
        return total

    bodies: dict[str, int] = {}
    for function in model.functions:
        bodies[function.name] = count(function.node)
    return count(model.graph.node)


def measure(shape: str, nodes: int) -> dict[str, float]:
    """Compile in this process: seconds by stage, by the clock, and MiB more at the peak."""
    import fuser

    model = SHAPES[shape](nodes)

    def compile(model: onnx.ModelProto, progress: Callable[[str], None]) -> None:
        fuser.compile(model, device="cpu", dims=sizes_of(model), progress=progress)

    compile(SHAPES[shape](24), lambda step: None)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    marks: list[tuple[str, float]] = []

    def progress(step: str) -> None:
        stage = next((s for text, s in STAGES.items() if step.startswith(text)), "")
        marks.append((stage, time.process_time()))

    started, begun = time.perf_counter(), time.process_time()
    compile(model, progress)
    wall, ended = time.perf_counter() - started, time.process_time()
    found = {"nodes": float(nodes_of(model)), "wall": wall, "total": ended - begun}
    found["peak"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    for (stage, at), (_, end) in zip(marks, [*marks[1:], ("", ended)], strict=True):
        found[stage] = found.get(stage, 0.0) + end - at
    return found


def sizes_of(model: onnx.ModelProto) -> dict[str, int]:
    """A size for each symbolic dim."""
    shapes = (value.type.tensor_type.shape for value in model.graph.input)
    return {dim.dim_param: 16 for shape in shapes for dim in shape.dim if dim.dim_param}


def _apart(shape: str, nodes: int) -> dict[str, float]:
    """`measure` in a process of its own, with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        ran = subprocess.run(
            [sys.executable, "-m", "benchmarks.compile_growth", "--one", shape, str(nodes)],
            env={**os.environ, "FUSER_CACHE_DIR": cache}, capture_output=True, text=True,
        )  # fmt: skip
    if ran.returncode:
        raise SystemExit(f"{shape} of {nodes} nodes failed:\n{ran.stderr[-4000:]}")
    found: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return found


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """The slope of the line through points on logarithmic scales."""
    x, y = np.log(np.array(points)).T
    return float(np.polyfit(x, y, 1)[0])


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compile_growth", description=__doc__
    )
    parser.add_argument("--shapes", nargs="*", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--sizes", nargs="*", type=int, default=[400, 1600, 6400])
    parser.add_argument("--one", nargs=2, metavar=("SHAPE", "NODES"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one[0], int(given.one[1]))))
        return 0
    stages = list(STAGES.values())
    columns = ["nodes", *stages, "total", "wall", "MiB", "exponent"]
    print("| shape | " + " | ".join(columns) + " |")
    print("| --- |" + " ---: |" * len(columns))
    for shape in given.shapes:
        points: list[tuple[float, float]] = []
        for size in given.sizes:
            row = _apart(shape, size)
            count = row["nodes"]
            points.append((count, row["total"]))
            each = [row.get(name, 0.0) / count * 1e3 for name in (*stages, "total", "wall")]
            last = f"{exponent(points):.2f}" if size == given.sizes[-1] and len(points) > 1 else ""
            cells = [f"{count:.0f}", *(f"{x:.3f}" for x in each), f"{row['peak']:.0f}", last]
            print(f"| {shape} | " + " | ".join(cells) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
