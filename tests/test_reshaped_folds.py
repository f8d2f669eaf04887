"""Matmuls that are reshaped and then folded over their outermost axis, by every entry point.

The rows under a fold then lie in one flat axis, and where columns end depends on the row.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx.parser
import pytest

import fuser

SHAPES = [
    ((15, 5, 5), (5, 75)), ((15, 5, 5), (5, 3, 5, 5)), ((6, 5, 5), (2, 3, 5, 5)),
    ((24, 17, 17), (2, 12, 17, 17)), ((6, 8, 8), (2, 3, 8, 8)), ((8, 77, 33), (2, 4, 77, 33)),
    ((8, 7, 33), (8, 231)), ((9, 6, 11), (3, 3, 66)), ((7, 9, 13), (7, 3, 39)),
]  # fmt: skip
EVERY = pytest.mark.parametrize(("given", "reshaped"), SHAPES, ids=str)
FOLDS: dict[str, Any] = {
    "ReduceSum": np.sum,
    "ReduceMax": np.max,
    "ReduceMean": np.mean,
    "ReduceL2": lambda w, axis: np.sqrt((w * w).sum(axis)),
    "ReduceLogSumExp": lambda w, axis: np.log(np.exp(w).sum(axis)),
}


def _softmax(w: np.ndarray) -> np.ndarray:
    shifted = np.exp(w - w.max(0))
    return np.asarray(shifted / shifted.sum(0))


def _operands(given: tuple[int, ...], dtype: Any = np.float32) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(given).astype(dtype)
    return x, rng.standard_normal((given[0], given[2], given[2])).astype(dtype)


def _close(got: np.ndarray, want: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    """Within the error of dots and of the fold, for terms as large as those of this matmul."""
    terms = np.abs(x).astype(np.float64) @ np.abs(y).astype(np.float64)
    eps = float(np.finfo(x.dtype).eps)
    count = x.shape[0] + x.shape[2] + 8
    np.testing.assert_allclose(got, want, rtol=0, atol=terms.max() * x.shape[0] * count * eps)


def _text(dims: tuple[int, ...]) -> str:
    return ",".join(map(str, dims))


@EVERY
def test_onnx(given: tuple[int, ...], reshaped: tuple[int, ...]) -> None:
    """One graph with every fold, and a graph for each of three: they share nests, or have none."""
    x, y = _operands(given)
    w = (x.astype(np.float64) @ y).reshape(reshaped)
    want = {name: fold(w, axis=0) for name, fold in FOLDS.items()} | {"Softmax": _softmax(w)}
    for names in (tuple(want), ("ReduceSum",), ("ReduceMax",), ("Softmax",)):
        nodes = []
        for name in names:
            if name == "Softmax":
                nodes.append(f"{name}_out = Softmax <axis = 0> (r)")
            elif name == "ReduceSum":
                nodes.append(f"{name}_out = ReduceSum <keepdims = 0> (r, a)")
            else:
                nodes.append(f"{name}_out = {name} <keepdims = 0, axes = [0]> (r)")
        outputs = ", ".join(f"float[{_text(want[name].shape)}] {name}_out" for name in names)
        model = onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": 17]> g (float[{_text(x.shape)}] x, '
            f"float[{_text(y.shape)}] y) => ({outputs}) {{ "
            f"a = Constant <value = int64[1] {{0}}> () p = MatMul(x, y) "
            f"s = Constant <value = int64[{len(reshaped)}] {{{_text(reshaped)}}}> () "
            f"r = Reshape(p, s) {' '.join(nodes)} }}"
        )
        found = fuser.compile(model, device="cpu").run({"x": x, "y": y})
        for name in names:
            _close(found[f"{name}_out"], want[name], x, y)


@EVERY
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numpy(given: tuple[int, ...], reshaped: tuple[int, ...], dtype: Any) -> None:
    x, y = _operands(given, dtype)

    def every(x: Any, y: Any) -> Any:
        w = (x @ y).reshape(reshaped)
        return w.sum(0), w.max(0), w.min(0), w.std(0)

    w = (x.astype(np.float64) @ y).reshape(reshaped)
    found = fuser.jit(every, device="cpu")(x, y)
    for have, want in zip(found, (w.sum(0), w.max(0), w.min(0), w.std(0)), strict=True):
        _close(have, want, x, y)
    _close(fuser.jit(lambda x, y: (x @ y).reshape(reshaped).sum(0))(x, y), w.sum(0), x, y)


PROGRAMS: dict[str, tuple[tuple[int, ...], Any]] = {
    "logsumexp": ((5, 3, 5, 5), lambda x: (x @ x.mT).logsumexp(0)),
    "logsumexp of both": ((5, 3, 5, 5), lambda x: (x @ x.mT).logsumexp((0, 1))),
    "softmax": ((5, 3, 5, 5), lambda x: (x @ x.mT).softmax(0)),
    "amax": ((8, 16, 32), lambda x: (x @ x.mT).amax(0)),
    "std": ((5, 4, 6), lambda x: (x @ x.mT).std(0)),
    "reshaped": ((15, 5, 5), lambda x: (x @ x.mT).reshape(5, 75).sum(0)),
    "normalised": ((5, 3, 5, 5), lambda x: x @ x.mT / (x @ x.mT).norm(dim=0)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    shape, program = PROGRAMS[name]
    torch.manual_seed(0)
    x = torch.randn(shape)
    torch._dynamo.reset()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error", RuntimeWarning)  # "leaves a graph to PyTorch"
        found = torch.compile(program, backend="fuser")(x)
        torch.testing.assert_close(found, program(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", [(5, -1), (3, -1, 7)], ids=str)
@pytest.mark.parametrize("name", ["ReduceSum", "Softmax"])
def test_open_sizes(target: tuple[int, ...], name: str) -> None:
    """Where columns end is known when the plan runs."""
    fold = "ReduceSum <keepdims = 0> (r, a)" if name == "ReduceSum" else "Softmax <axis = 0> (r)"
    rank = len(target) - (name == "ReduceSum")
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N, 5, K] x, float[N, K, 5] y) => '
        f"(float[{', '.join('ABC'[:rank])}] z) {{ a = Constant <value = int64[1] {{0}}> () "
        f"p = MatMul(x, y) s = Constant <value = int64[{len(target)}] {{{_text(target)}}}> () "
        f"r = Reshape(p, s) z = {fold} }}"
    )
    plan = fuser.compile(model, device="cpu", dynamic=True)
    rng = np.random.default_rng(0)
    for rows, depth in ((21, 3), (63, 40), (105, 1), (42, 17)):
        x, y = (rng.standard_normal(shape).astype(np.float32)
                for shape in ((rows, 5, depth), (rows, depth, 5)))  # fmt: skip
        w = (x.astype(np.float64) @ y).reshape(target)
        want = w.sum(0) if name == "ReduceSum" else _softmax(w)
        _close(plan.run({"x": x, "y": y})["z"], want, x, y)
