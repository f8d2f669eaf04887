"""A model and a kernel, compiled and run by an installed fuser. Leaves model.onnx behind."""

import sysconfig
from pathlib import Path

import numpy as np
import onnx.helper as make

import fuser
import fuser.triton as triton
import fuser.triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, inside) + tl.load(y + at, inside), inside)


def model():
    """y = relu(x @ w)."""
    w = make.make_tensor("w", 1, (33, 17), np.linspace(-1, 1, 33 * 17))
    nodes = [make.make_node("MatMul", ["x", "w"], ["p"]), make.make_node("Relu", ["p"], ["y"])]
    x, y = (make.make_tensor_value_info(n, 1, (5, k)) for n, k in (("x", 33), ("y", 17)))
    graph = make.make_graph(nodes, "example", [x], [y], [w])
    return make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8)


installed = Path(fuser.__file__).resolve()
assert installed.is_relative_to(Path(sysconfig.get_path("purelib")).resolve()), installed

Path("model.onnx").write_bytes(model().SerializeToString())
x = np.random.default_rng(0).standard_normal((5, 33), np.float32)
plan = fuser.compile("model.onnx", device="cpu")
w = np.linspace(-1, 1, 33 * 17).astype(np.float32).reshape(33, 17)
exact = np.maximum(x.astype(np.float64) @ w, 0)
# A sum of 33 products of float32, in any order.
bound = 34 * 2.0**-24 * (abs(x).astype(np.float64) @ abs(w))
assert (abs(plan.run({"x": x})["y"] - exact) <= bound).all()
plan.save("again.plan")
assert (fuser.Plan.load("again.plan").run({"x": x})["y"] == plan.run({"x": x})["y"]).all()

out = np.full(100, np.nan, np.float32)
add[(triton.cdiv(100, 64),)](x.ravel()[:100], w.ravel()[:100], out, 100, BLOCK=64)
assert (out == x.ravel()[:100] + w.ravel()[:100]).all()
print(f"a model and a kernel are right, by {installed.parent}")
