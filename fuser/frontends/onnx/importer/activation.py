"""ONNX activation functions."""

from __future__ import annotations

from fuser.frontends.onnx.importer.registry import OnnxNode, onnx_op
from fuser.graph import compose
from fuser.graph.builder import Builder
from fuser.graph.ir import Value


@onnx_op("Relu")
def relu(b: Builder, node: OnnxNode) -> Value:
    return b.map("max", node.x, 0)


@onnx_op("Sigmoid")
def sigmoid(b: Builder, node: OnnxNode) -> Value:
    return compose.sigmoid(b, node.x)


@onnx_op("Gelu", since=20)
def gelu(b: Builder, node: OnnxNode) -> Value:
    if node.attr("approximate", "none") == "tanh":
        return compose.gelu_tanh(b, node.x)
    return compose.gelu(b, node.x)


@onnx_op("LeakyRelu")
def leaky_relu(b: Builder, node: OnnxNode) -> Value:
    x = node.x
    return b.map("select", b.map("lt", x, 0), b.map("mul", x, node.attr("alpha", 0.01)), x)


@onnx_op("PRelu")
def prelu(b: Builder, node: OnnxNode) -> Value:
    x, slope = node.operand(0), node.operand(1)
    if slope.type.rank == 1 and node.opset < 7 and x.type.rank > 1:
        # Before opset 7 a vector of slopes was one per channel.
        slope = b.unsqueeze(slope, range(1, x.type.rank - 1))
    return b.map("select", b.map("lt", x, 0), b.map("mul", x, slope), x)


@onnx_op("Elu")
def elu(b: Builder, node: OnnxNode) -> Value:
    x = node.x
    negative = b.map("mul", compose.exp_minus_one(b, x), node.attr("alpha", 1.0))
    return b.map("select", b.map("lt", x, 0), negative, x)


@onnx_op("Celu")
def celu(b: Builder, node: OnnxNode) -> Value:
    x, alpha = node.x, node.attr("alpha", 1.0)
    negative = b.map("mul", compose.exp_minus_one(b, b.map("div", x, alpha)), alpha)
    return b.map("add", b.map("max", x, 0), b.map("min", negative, 0))


@onnx_op("Selu")
def selu(b: Builder, node: OnnxNode) -> Value:
    x = node.x
    alpha = node.attr("alpha", 1.6732632423543772 if node.opset >= 6 else 1.6732)
    gamma = node.attr("gamma", 1.0507009873554805 if node.opset >= 6 else 1.0507)
    negative = b.map("mul", compose.exp_minus_one(b, x), alpha)
    return b.map("mul", b.map("select", b.map("gt", x, 0), x, negative), gamma)


@onnx_op("ThresholdedRelu")
def thresholded_relu(b: Builder, node: OnnxNode) -> Value:
    return b.map("select", b.map("gt", node.x, node.attr("alpha", 1.0)), node.x, 0)


@onnx_op("Softplus")
def softplus(b: Builder, node: OnnxNode) -> Value:
    return compose.softplus(b, node.x)


@onnx_op("Softsign")
def softsign(b: Builder, node: OnnxNode) -> Value:
    return b.map("div", node.x, b.map("add", b.map("abs", node.x), 1))


def _hard_sigmoid(b: Builder, x: Value, alpha: float, beta: float) -> Value:
    line = b.map("add", b.map("mul", x, alpha), beta)
    return b.map("min", b.map("max", line, 0), 1)


@onnx_op("HardSigmoid")
def hard_sigmoid(b: Builder, node: OnnxNode) -> Value:
    return _hard_sigmoid(b, node.x, node.attr("alpha", 0.2), node.attr("beta", 0.5))


@onnx_op("HardSwish", since=14)
def hard_swish(b: Builder, node: OnnxNode) -> Value:
    return b.map("mul", node.x, _hard_sigmoid(b, node.x, 1 / 6, 0.5))


@onnx_op("Mish", since=18)
def mish(b: Builder, node: OnnxNode) -> Value:
    return b.map("mul", node.x, b.map("tanh", compose.softplus(b, node.x)))


@onnx_op("Swish", since=24)
def swish(b: Builder, node: OnnxNode) -> Value:
    alpha = node.attr("alpha", 1.0)
    scaled = node.x if alpha == 1.0 else b.map("mul", node.x, alpha)
    return b.map("mul", node.x, compose.sigmoid(b, scaled))


@onnx_op("Shrink")
def shrink(b: Builder, node: OnnxNode) -> Value:
    x, limit, bias = node.x, node.attr("lambd", 0.5), node.attr("bias", 0.0)
    above = b.map("select", b.map("gt", x, limit), b.map("sub", x, bias), 0)
    return b.map("select", b.map("lt", x, -limit), b.map("add", x, bias), above)
