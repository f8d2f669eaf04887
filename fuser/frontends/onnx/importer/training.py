"""ai.onnx.preview.training: one step of an optimizer. Operands are R, T, then tensors in groups:
all parameters, all gradients, and one group for each state."""

from __future__ import annotations

from collections.abc import Sequence

from fuser.frontends.onnx.importer.registry import OnnxNode, onnx_op
from fuser.graph.builder import Builder
from fuser.graph.ir import Value

DOMAIN = "ai.onnx.preview.training"


def _groups(node: OnnxNode, count: int) -> list[list[Value]]:
    values = [node.operand(i) for i in range(2, len(node.inputs))]
    size = len(values) // count
    return [values[i * size : (i + 1) * size] for i in range(count)]


def _regularized(b: Builder, node: OnnxNode, x: Value, gradient: Value) -> Value:
    factor = node.attr("norm_coefficient", 0.0)
    return b.map("add", gradient, b.map("mul", x, factor)) if factor else gradient


def _gather(results: Sequence[tuple[Value, ...]]) -> list[Value | None]:
    """Results by parameter as results by group."""
    return [value for group in zip(*results, strict=True) for value in group]


@onnx_op("Adagrad", domain=DOMAIN)
def adagrad(b: Builder, node: OnnxNode) -> list[Value | None]:
    rate, step = node.operand(0), node.operand(1)
    decay, epsilon = node.attr("decay_factor", 0.0), node.attr("epsilon", 0.0)
    slowed = b.map("add", b.map("mul", b.cast(step, rate.dtype), decay), 1)
    rate = b.map("div", b.reshape(rate, ()), b.reshape(slowed, ()))
    results = []
    for x, gradient, history in zip(*_groups(node, 3), strict=True):
        g = _regularized(b, node, x, gradient)
        total = b.map("add", history, b.map("mul", g, g))
        scaled = b.map("div", g, b.map("add", b.map("sqrt", total), epsilon))
        results.append((b.map("sub", x, b.map("mul", scaled, rate)), total))
    return _gather(results)


@onnx_op("Momentum", domain=DOMAIN)
def momentum(b: Builder, node: OnnxNode) -> list[Value | None]:
    rate, step = b.reshape(node.operand(0), ()), b.reshape(node.operand(1), ())
    alpha, beta = node.required("alpha"), node.required("beta")
    results = []
    for x, gradient, velocity in zip(*_groups(node, 3), strict=True):
        g = _regularized(b, node, x, gradient)
        # The first step has no history to weigh against.
        first = b.map("eq", step, 0)
        weight = b.map("select", first, b.scalar(1, x.dtype), b.scalar(beta, x.dtype))
        fresh = b.map("add", b.map("mul", velocity, alpha), b.map("mul", g, weight))
        move = fresh
        if node.attr("mode", "standard") == "nesterov":
            move = b.map("add", g, b.map("mul", fresh, alpha))
        results.append((b.map("sub", x, b.map("mul", move, rate)), fresh))
    return _gather(results)


@onnx_op("Adam", domain=DOMAIN)
def adam(b: Builder, node: OnnxNode) -> list[Value | None]:
    rate, step = b.reshape(node.operand(0), ()), b.reshape(node.operand(1), ())
    alpha, beta = node.attr("alpha", 0.9), node.attr("beta", 0.999)
    epsilon, after = node.attr("epsilon", 1e-6), node.attr("norm_coefficient_post", 0.0)
    wide = b.cast(step, rate.dtype)
    bias = [
        b.map("sub", b.scalar(1, rate.dtype), b.map("pow", b.scalar(base, rate.dtype), wide))
        for base in (beta, alpha)
    ]
    corrected = b.map("mul", rate, b.map("div", b.map("sqrt", bias[0]), bias[1]))
    started = b.map("gt", step, 0)
    rate = b.map("select", started, corrected, rate)
    results = []
    for x, gradient, first, second in zip(*_groups(node, 4), strict=True):
        g = _regularized(b, node, x, gradient)
        mean = b.map("add", b.map("mul", first, alpha), b.map("mul", g, 1 - alpha))
        square = b.map(
            "add", b.map("mul", second, beta), b.map("mul", b.map("mul", g, g), 1 - beta)
        )
        scaled = b.map("div", mean, b.map("add", b.map("sqrt", square), epsilon))
        moved = b.map("sub", x, b.map("mul", scaled, rate))
        results.append((b.map("mul", moved, 1 - after) if after else moved, mean, square))
    return _gather(results)
