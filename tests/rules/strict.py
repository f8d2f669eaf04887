"""Elementwise graphs under strict numerics: the bits are those of the operators one by one.

    python -m tests.rules.strict --programs 2000 --seed 0 --device cpu

Draws graphs of exact operators (no exp and the like) over all dtypes, compiles each as one kernel,
and compares every output, bit for bit, with NumPy's evaluation of the graph. `--numerics model`
leaves out float16 and bfloat16, which that mode may keep in float32.

The last line is JSON: programs, and failures by kind. Exits with 1 if a graph differs.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from fuser import dtypes
from fuser.dtypes import DType
from fuser.graph.builder import Builder
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph, TensorType, Value
from fuser.graph.numerics import Mode, using
from fuser.graph.passes import run_passes
from fuser.pipeline.compiler import compile_graph
from fuser.pipeline.options import CompileOptions
from tests.fuzzing.jobs import RIGHT, Finding, main
from tests.rules.check import SPECIAL, same

Array = np.ndarray[Any, Any]

FLOATS = (dtypes.f32, dtypes.f16, dtypes.bf16, dtypes.f64)
INTEGERS = (dtypes.i32, dtypes.i64, dtypes.i8, dtypes.u8, dtypes.i16, dtypes.u32)
_UNARY = {"float": ("neg", "abs", "floor", "ceil", "round", "sqrt", "reciprocal"),
          "int": ("neg", "abs", "bitwise_not"), "uint": ("bitwise_not",)}  # fmt: skip
_BINARY = {"float": ("add", "sub", "mul", "div", "min", "max"),
           "int": ("add", "sub", "mul", "min", "max", "bitwise_and", "bitwise_or", "bitwise_xor"),
           "uint": ("add", "sub", "mul", "min", "max", "bitwise_and", "bitwise_xor")}  # fmt: skip
_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")


def draw(seed: int, wide_only: bool) -> Graph:
    """A random elementwise graph of 2 to 24 operators, of three or fewer outputs."""
    rng = np.random.default_rng(seed)
    graph = Graph(f"strict{seed}")
    b = Builder(graph)
    size = int(rng.choice([1, 3, 16, 17, 64, 129]))
    floats = FLOATS[:1] + FLOATS[3:] if wide_only else FLOATS
    first: DType = (*floats, *floats, *INTEGERS)[rng.integers(2 * len(floats) + len(INTEGERS))]
    values = [
        graph.add_input(f"x{i}", TensorType(first, (size,))) for i in range(rng.integers(1, 4))
    ]
    flags: list[Value] = []
    for _ in range(rng.integers(2, 25)):
        x = values[rng.integers(len(values))]
        like = [v for v in values if v.dtype is x.dtype]
        y = like[rng.integers(len(like))]
        if rng.random() < 0.25:
            y = b.full(_number(x.dtype, rng), x.type)
        if rng.random() < 0.3:
            x, y = y, x
        match rng.integers(7):
            case 0:
                names = _UNARY[x.dtype.kind]
                values.append(b.emit(str(rng.choice(names)), x))
            case 1:
                flags.append(b.emit(str(rng.choice(_COMPARE)), x, y))
            case 2 if flags:
                values.append(b.emit("select", flags[rng.integers(len(flags))], x, y))
            case 3 if x.dtype.is_float:
                to = floats[rng.integers(len(floats))]
                values.append(b.cast(x, to))
            case _:
                op = str(rng.choice(_BINARY[x.dtype.kind]))
                made = b.emit(op, x, y)
                if op in ("min", "max") and x.dtype.is_float:
                    made = b.emit("abs", made)  # of 0 and -0 it may be either
                values.append(made)
    found = [v for v in values if v.node is not None and v.node.op != "constant"] or values
    graph.outputs = found[-3:] + flags[-1:]
    graph.output_names = [f"y{i}" for i in range(len(graph.outputs))]
    return graph


def _number(dtype: DType, rng: np.random.Generator) -> float:
    if dtype.is_float:
        with np.errstate(over="ignore"):
            return float(dtype.numpy.type(rng.choice(SPECIAL)))
    return int(rng.integers(max(-5, int(dtype.lowest)), 6))


def feeds_of(graph: Graph, seed: int) -> dict[str, Array]:
    """Numbers of all sizes, with zeros, infinities, NaN and subnormals among them."""
    rng = np.random.default_rng(seed + 1)
    found = {}
    for value in graph.inputs:
        kind = value.dtype.numpy
        words = rng.integers(0, 256, (value.shape[0], value.dtype.bytes), dtype=np.uint8)
        array = words.view(kind).reshape(value.shape).copy()
        if value.dtype.is_float:
            near = rng.standard_normal(value.shape) * 10.0 ** rng.integers(-3, 4)
            with np.errstate(all="ignore"):
                array = np.where(rng.random(value.shape) < 0.3, array, near.astype(kind))
                special = np.array(rng.choice(SPECIAL, value.shape)).astype(kind)
            array = np.where(rng.random(value.shape) < 0.3, special, array)
        found[value.name] = array.astype(kind)
    return found


def check(seed: int, device: Any = "cpu", numerics: Mode = "strict") -> str | None:
    """What differs in graph number `seed`; None if nothing does."""
    with using(numerics):
        graph, original = (draw(seed, numerics != "strict") for _ in range(2))
    feeds = feeds_of(graph, seed)
    with np.errstate(all="ignore"):
        want = evaluate(original, feeds)
    plan = compile_graph(run_passes(graph), CompileOptions(device=device))
    have = plan.run(feeds)
    for name, array in want.items():
        alike = same(array, np.asarray(have[name]))
        if not alike.all():
            at = int(np.argmin(alike))
            return f"seed {seed}: {name}[{at}] is {have[name][at]!r}, not {array[at]!r}"
    return None


def _findings(seed: int, options: argparse.Namespace) -> list[Finding]:
    wrong = check(seed, options.device, options.numerics)
    return [Finding("wrong", wrong) if wrong else Finding(RIGHT)]


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--numerics", default="strict", choices=["strict", "model"])


if __name__ == "__main__":
    raise SystemExit(main("tests.rules.strict", __doc__, "Strict graphs", _findings, _options))
