"""Compositions in their one canonical spelling, shared by every front end and operator.

The partitioner meets only these forms, whichever operator or exporter they come from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fuser import dtypes
from fuser.dtypes import DType
from fuser.graph.builder import Builder
from fuser.graph.dims import Dim, as_int
from fuser.graph.ir import Value
from fuser.graph.numeric import log1p


def softmax(b: Builder, x: Value, axes: Sequence[int]) -> Value:
    """div(exp(sub(x, max)), sum). A row that is -inf throughout gives nan, as in ONNX."""
    peak = b.reduce("reduce_max", x, axes)
    powers = b.map("exp", b.map("sub", x, b.restore(peak, x, axes)))
    total = b.reduce("reduce_sum", powers, axes)
    return b.map("div", powers, b.restore(total, powers, axes))


def log_softmax(b: Builder, x: Value, axes: Sequence[int]) -> Value:
    """sub(x - max, log(sum(exp(x - max))))."""
    peak = b.reduce("reduce_max", x, axes)
    centred = b.map("sub", x, b.restore(peak, x, axes))
    total = b.reduce("reduce_sum", b.map("exp", centred), axes)
    return b.map("sub", centred, b.restore(b.map("log", total), x, axes))


def log_sum_exp(b: Builder, x: Value, axes: Sequence[int]) -> Value:
    """max + log(sum(exp(x - max))), with an infinite max replaced by 0 to keep inf - inf out."""
    peak = b.reduce("reduce_max", x, axes)
    peak = b.map("select", b.map("is_inf", peak), 0, peak)
    powers = b.map("exp", b.map("sub", x, b.restore(peak, x, axes)))
    return b.map("add", peak, b.map("log", b.reduce("reduce_sum", powers, axes)))


def zero_masked_rows(b: Builder, probabilities: Value) -> Value:
    """Softmax of a fully masked row is nan: make it 0, in the spelling of the exporters."""
    return b.map("select", b.map("is_nan", probabilities), 0, probabilities)


def standardize(b: Builder, x: Value, axes: Sequence[int], epsilon: float) -> list[Value]:
    """(x - mean) * rsqrt(mean((x - mean)^2) + epsilon); also the mean and that rsqrt, reduced.

    The variance is of centred values: the sum of squares minus the squared mean cancels badly.
    """
    mean = b.mean(x, axes)
    centred = b.map("sub", x, b.restore(mean, x, axes))
    variance = b.mean(b.map("mul", centred, centred), axes)
    scale = b.map("rsqrt", b.map("add", variance, epsilon))
    return [b.map("mul", centred, b.restore(scale, x, axes)), mean, scale]


def rms_normalize(b: Builder, x: Value, axes: Sequence[int], epsilon: float) -> Value:
    """x * rsqrt(mean(x^2) + epsilon)."""
    square = b.mean(b.map("mul", x, x), axes)
    scale = b.map("rsqrt", b.map("add", square, epsilon))
    return b.map("mul", x, b.restore(scale, x, axes))


def stash(b: Builder, x: Value, dtype: DType = dtypes.f32) -> Value:
    """x in the wider type that statistics are computed in: float32 for the 16-bit floats."""
    return b.cast(x, dtype) if x.dtype.is_float and x.dtype.bits < dtype.bits else x


def attention_scale(features: Dim) -> float:
    """What attention multiplies scores by where nothing else is said: 1 / sqrt(features). Scores of
    no features are 0, and stay so."""
    return 1 / math.sqrt(max(int(as_int(features)), 1))


def sigmoid(b: Builder, x: Value) -> Value:
    """1 / (1 + exp(-x)): exp overflows to inf for very negative x, which gives the limit 0."""
    return b.map("reciprocal", b.map("add", b.map("exp", b.map("neg", x)), 1))


def softplus(b: Builder, x: Value) -> Value:
    """log(1 + exp(x)) without overflow: max(x, 0) + log1p(exp(-|x|)), which keeps its digits where
    exp(x) is small."""
    tail = b.map("exp", b.map("neg", b.map("abs", x)))
    return b.map("add", b.map("max", x, 0), log1p(b, tail))


def gelu(b: Builder, x: Value) -> Value:
    """x/2 * (1 + erf(x / sqrt 2))."""
    phi = b.map("add", b.map("erf", b.map("mul", x, math.sqrt(0.5))), 1)
    return b.map("mul", b.map("mul", x, 0.5), phi)


def gelu_tanh(b: Builder, x: Value) -> Value:
    """x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))."""
    cube = b.map("mul", b.map("mul", x, x), x)
    inner = b.map("add", x, b.map("mul", cube, 0.044715))
    phi = b.map("add", b.map("tanh", b.map("mul", inner, math.sqrt(2 / math.pi))), 1)
    return b.map("mul", b.map("mul", x, 0.5), phi)


def exp_minus_one(b: Builder, x: Value) -> Value:
    """exp(x) - 1 of x <= 0, for the negative branch of the ELU family, as 2t / (1 - t) with
    t = tanh(x / 2): the difference itself has no digits left near 0. Of larger x it is anything."""
    t = b.map("tanh", b.map("mul", b.map("min", x, 0), 0.5))
    far = b.map("div", b.map("mul", t, 2), b.map("sub", b.scalar(1, t.dtype), t))
    return b.map("select", b.map("lt", b.map("abs", x), 2.0**-54), x, far)
