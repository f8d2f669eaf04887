"""ATen's softmax and norms, in the spellings that the partitioner knows."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuser import dtypes
from fuser.errors import UnsupportedError
from fuser.frontends.torch.importer.registry import along_axis, aten, axis_of
from fuser.graph import compose
from fuser.graph.builder import Builder
from fuser.graph.ir import Value


@aten("_softmax")
@along_axis
def softmax(b: Builder, x: Value, axis: int, half_to_float: bool = False) -> Value:
    wide = compose.stash(b, x)
    found = compose.softmax(b, wide, [axis_of(axis, x.type.rank)])
    return found if half_to_float else b.narrowed(found, x.dtype)


@aten("_safe_softmax")
@along_axis
def safe_softmax(b: Builder, x: Value, axis: int, dtype: Any = None) -> Value:
    wide = compose.stash(b, x)
    found = compose.softmax(b, wide, [axis_of(axis, x.type.rank)])
    return b.narrowed(compose.zero_masked_rows(b, found), x.dtype)


@aten("_log_softmax")
@along_axis
def log_softmax(b: Builder, x: Value, axis: int, half_to_float: bool = False) -> Value:
    wide = compose.stash(b, x)
    found = compose.log_softmax(b, wide, [axis_of(axis, x.type.rank)])
    return found if half_to_float else b.narrowed(found, x.dtype)


@aten("native_layer_norm")
def layer_norm(
    b: Builder, x: Value, shape: Any, weight: Value | None, bias: Value | None, epsilon: float
) -> tuple[Value, Value, Value]:
    rank = x.type.rank
    axes = list(range(rank - len(shape), rank))
    wide = compose.stash(b, x)
    normal, mean, scale = compose.standardize(b, wide, axes, epsilon)
    normal = b.narrowed(normal, x.dtype)
    normal = normal if weight is None else b.map("mul", normal, weight)
    normal = normal if bias is None else b.map("add", normal, bias)
    return normal, b.unsqueeze(mean, axes), b.unsqueeze(scale, axes)


@aten("rms_norm")
def rms_norm(
    b: Builder, x: Value, shape: Any, weight: Value | None = None, epsilon: float | None = None
) -> Value:
    return fused_rms_norm(b, x, shape, weight, epsilon)[0]


@aten("_fused_rms_norm")
def fused_rms_norm(
    b: Builder, x: Value, shape: Any, weight: Value | None = None, epsilon: float | None = None
) -> tuple[Value, Value]:
    """The result, and the inverse root of the mean square with its axes kept."""
    axes = list(range(x.type.rank - len(shape), x.type.rank))
    small = float(np.finfo(np.float32).eps) if epsilon is None else epsilon
    wide = compose.stash(b, x)
    normal = b.narrowed(compose.rms_normalize(b, wide, axes, small), x.dtype)
    scale = b.map("rsqrt", b.map("add", b.mean(b.map("mul", wide, wide), axes, keep=True), small))
    return normal if weight is None else b.map("mul", normal, weight), scale


@aten("native_group_norm")
def group_norm(
    b: Builder, x: Value, weight: Value | None, bias: Value | None, n: int, channels: int,
    area: int, groups: int, epsilon: float,
) -> tuple[Value, Value, Value]:  # fmt: skip
    apart = b.reshape(compose.stash(b, x), (n, groups, channels // groups * area))
    normal, mean, scale = compose.standardize(b, apart, [2], epsilon)
    normal = b.narrowed(b.reshape(normal, x.type.shape), x.dtype)
    normal = normal if weight is None else b.map("mul", normal, _by_channel(b, weight, x))
    normal = normal if bias is None else b.map("add", normal, _by_channel(b, bias, x))
    return normal, mean, scale


def _by_channel(b: Builder, vector: Value, x: Value) -> Value:
    return b.broadcast(vector, x.type.shape, (1,))


def _affine(
    b: Builder, x: Value, mean: Value, scale: Value, weight: Value | None, bias: Value | None
) -> Value:
    """(x - mean) * scale * weight + bias by channel, factors joined first so that they fold."""
    factor = scale if weight is None else b.map("mul", scale, b.cast(weight, scale.dtype))
    wide = b.cast(x, factor.dtype)
    normal = b.map("mul", b.map("sub", wide, _by_channel(b, mean, x)), _by_channel(b, factor, x))
    if bias is not None:
        normal = b.map("add", normal, _by_channel(b, b.cast(bias, factor.dtype), x))
    return b.narrowed(normal, x.dtype)


@aten("_native_batch_norm_legit_no_training")
def batch_norm(
    b: Builder, x: Value, weight: Value | None, bias: Value | None, mean: Value, variance: Value,
    momentum: float, epsilon: float,
) -> tuple[Value, Value, Value]:  # fmt: skip
    scale = b.map("rsqrt", b.map("add", variance, epsilon))
    empty = b.constant(np.zeros(0, np.float32))
    return _affine(b, x, mean, scale, weight, bias), empty, empty


def _batch_statistics(
    b: Builder, x: Value, weight: Value | None, bias: Value | None, epsilon: float
) -> tuple[Value, Value, Value, Value]:
    axes = [axis for axis in range(x.type.rank) if axis != 1]
    wide = compose.stash(b, x)
    mean = b.mean(wide, axes)
    centred = b.map("sub", wide, b.restore(mean, wide, axes))
    variance = b.mean(b.map("mul", centred, centred), axes)
    scale = b.map("rsqrt", b.map("add", variance, epsilon))
    return _affine(b, x, mean, scale, weight, bias), mean, variance, scale


@aten("_native_batch_norm_legit.no_stats")
def batch_norm_without_statistics(
    b: Builder, x: Value, weight: Value | None, bias: Value | None, training: bool, momentum: float,
    epsilon: float,
) -> tuple[Value, Value, Value]:  # fmt: skip
    normal, mean, _, scale = _batch_statistics(b, x, weight, bias, epsilon)
    return normal, mean, scale


@aten("_native_batch_norm_legit_functional")
def batch_norm_training(
    b: Builder, x: Value, weight: Value | None, bias: Value | None, running_mean: Value,
    running_variance: Value, training: bool, momentum: float, epsilon: float,
) -> tuple[Value, ...]:  # fmt: skip
    if not training:
        normal, empty, _ = batch_norm(
            b, x, weight, bias, running_mean, running_variance, momentum, epsilon
        )
        return normal, empty, empty, running_mean, running_variance
    normal, mean, variance, scale = _batch_statistics(b, x, weight, bias, epsilon)
    count = x.type.size // x.shape[1]
    unbiased = b.map("mul", variance, count / max(count - 1, 1))
    updated = [
        b.map(
            "add", b.map("mul", old, 1 - momentum), b.map("mul", b.cast(new, old.dtype), momentum)
        )
        for old, new in ((running_mean, mean), (running_variance, unbiased))
    ]
    return normal, mean, scale, updated[0], updated[1]


@aten("native_dropout")
def dropout(b: Builder, x: Value, p: float, train: bool | None = None) -> tuple[Value, Value]:
    if train and p:
        raise UnsupportedError("dropout in training draws random numbers", hint="call model.eval()")
    return x, b.full(True, b.cast(x, dtypes.bool_).type)


@aten("_softmax_backward_data")
@along_axis
def softmax_backward(b: Builder, gradient: Value, y: Value, axis: int, dtype: Any) -> Value:
    at = [axis_of(axis, y.type.rank)]
    inner = b.map("mul", gradient, y)
    total = b.restore(b.reduce("reduce_sum", inner, at), y, at)
    return b.map("sub", inner, b.map("mul", y, total))


@aten("_log_softmax_backward_data")
@along_axis
def log_softmax_backward(b: Builder, gradient: Value, y: Value, axis: int, dtype: Any) -> Value:
    at = [axis_of(axis, y.type.rank)]
    total = b.restore(b.reduce("reduce_sum", gradient, at), y, at)
    return b.map("sub", gradient, b.map("mul", b.map("exp", y), total))
