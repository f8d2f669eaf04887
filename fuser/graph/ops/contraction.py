"""dot_general and conv. Both accumulate float16 and bfloat16 in float32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fuser.dtypes import BY_NAME, f32, from_numpy, u8
from fuser.errors import ShapeError
from fuser.graph.dims import as_int, is_decided
from fuser.graph.dims import product as dim_product
from fuser.graph.ir import Attrs, TensorType
from fuser.graph.ops.primitive import (
    Array,
    Primitive,
    check_axis,
    check_dim,
    check_same_dtype,
)
from fuser.graph.ops.reduction import window_extent


def free_axes(rank: int, batch: Sequence[int], contract: Sequence[int]) -> tuple[int, ...]:
    """The axes that are neither batch nor contracted, in order."""
    return tuple(axis for axis in range(rank) if axis not in batch and axis not in contract)


def _infer_dot(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    check_same_dtype("dot_general", types)
    lhs, rhs = types
    for side, name in ((lhs, "lhs"), (rhs, "rhs")):
        used = (*attrs[f"{name}_batch"], *attrs[f"{name}_contract"])
        for axis in used:
            check_axis("dot_general", axis, side.rank)
        if len(set(used)) != len(used):
            raise ShapeError(f"dot_general: the {name} axes {used} repeat")
    for kind in ("batch", "contract"):
        for i, j in zip(attrs[f"lhs_{kind}"], attrs[f"rhs_{kind}"], strict=True):
            check_dim("dot_general", lhs.shape[i], rhs.shape[j], f"{kind} dims of {lhs} and {rhs}")
    batch = [lhs.shape[axis] for axis in attrs["lhs_batch"]]
    lhs_free = free_axes(lhs.rank, attrs["lhs_batch"], attrs["lhs_contract"])
    rhs_free = free_axes(rhs.rank, attrs["rhs_batch"], attrs["rhs_contract"])
    shape = (*batch, *(lhs.shape[i] for i in lhs_free), *(rhs.shape[i] for i in rhs_free))
    if "codes" in attrs and lhs.dtype is not u8:
        raise ShapeError(f"dot_general: {lhs} holds no codes of {attrs['codes']}")
    dtype = BY_NAME[attrs["result"]] if "result" in attrs else lhs.dtype
    return (TensorType(f32 if "codes" in attrs else dtype, shape),)


def _rounded(arrays: Sequence[Array], attrs: Attrs) -> list[Array]:
    """Operands as they are multiplied: rounded to the dtype `operands`, if there is one, or the
    numbers that codes of the dtype `codes` stand for."""
    if "codes" in attrs:
        numbers = BY_NAME[attrs["codes"]].numpy
        return [np.ascontiguousarray(a).view(numbers).astype(np.float32) for a in arrays]
    asked = attrs.get("operands")
    if not asked:
        return list(arrays)
    with np.errstate(all="ignore"):
        return [a.astype(BY_NAME[asked].numpy).astype(a.dtype) for a in arrays]


def _evaluate_dot(arrays: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    lhs, rhs = _rounded(arrays, attrs)
    (out,) = _infer_dot([TensorType(from_numpy(a.dtype), a.shape) for a in arrays], attrs)
    wide = out.dtype.accumulate.numpy
    lhs_free = free_axes(lhs.ndim, attrs["lhs_batch"], attrs["lhs_contract"])
    rhs_free = free_axes(rhs.ndim, attrs["rhs_batch"], attrs["rhs_contract"])
    left = lhs.transpose(*attrs["lhs_batch"], *lhs_free, *attrs["lhs_contract"])
    right = rhs.transpose(*attrs["rhs_batch"], *attrs["rhs_contract"], *rhs_free)
    batch = left.shape[: len(attrs["lhs_batch"])]
    depth = as_int(dim_product([lhs.shape[axis] for axis in attrs["lhs_contract"]]))
    rows = as_int(dim_product([lhs.shape[axis] for axis in lhs_free]))
    columns = as_int(dim_product([rhs.shape[axis] for axis in rhs_free]))
    with np.errstate(all="ignore"):
        result = np.matmul(
            left.astype(wide, copy=False).reshape(*batch, rows, depth),
            right.astype(wide, copy=False).reshape(*batch, depth, columns),
        )
        return (result.reshape(out.static_shape).astype(out.dtype.numpy, copy=False),)


def _infer_conv(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    check_same_dtype("conv", types)
    x, w = types
    groups = attrs["groups"]
    if x.rank < 3 or w.rank != x.rank:
        raise ShapeError(f"conv: needs x [N, C, spatial...] and w of the same rank, got {x}, {w}")
    spatial = x.rank - 2
    if any(len(attrs[key]) != spatial for key in ("strides", "padding", "dilation")):
        raise ShapeError(f"conv: strides, padding and dilation need {spatial} entries")
    check_dim("conv", x.shape[1], w.shape[1] * groups, f"channels of {x} and {w}, {groups} groups,")
    out_channels = w.static_shape[0]
    if out_channels % groups:
        raise ShapeError(f"conv: {out_channels} output channels do not divide into {groups} groups")
    shape = [x.shape[0], w.shape[0]]
    for axis in range(spatial):
        low, high = attrs["padding"][axis]
        window = w.static_shape[axis + 2]
        stride, dilation = attrs["strides"][axis], attrs["dilation"][axis]
        extent = window_extent(x.shape[axis + 2], window, stride, low, high, dilation)
        if is_decided(extent) and extent < 0:
            raise ShapeError(f"conv: the kernel {w} does not fit into {x}")
        shape.append(extent)
    return (TensorType(x.dtype, tuple(shape)),)


def _evaluate_conv(arrays: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
    """Unfold the windows (im2col) and multiply, one batch entry at a time to bound memory."""
    x, w = _rounded(arrays, attrs)
    (out,) = _infer_conv([TensorType(from_numpy(a.dtype), a.shape) for a in arrays], attrs)
    wide = out.dtype.accumulate.numpy
    groups, padding = attrs["groups"], attrs["padding"]
    n, m, *spatial = out.static_shape
    kernel = w.shape[2:]
    weight = w.astype(wide, copy=False).reshape(groups, m // groups, -1)
    cropped = [max(0, -amount) for pair in padding for amount in pair]
    x = x[
        (slice(None), slice(None))
        + tuple(
            slice(cropped[2 * i], size - cropped[2 * i + 1]) for i, size in enumerate(x.shape[2:])
        )
    ]
    positive = [tuple(max(0, amount) for amount in pair) for pair in padding]
    result = np.empty((n, groups, m // groups, int(np.prod(spatial))), wide)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, attrs["dilation"], strict=True)]
    axes = tuple(range(1, len(kernel) + 1))
    steps = (
        slice(None),
        *(slice(None, None, s) for s in attrs["strides"]),
        *(slice(None, None, d) for d in attrs["dilation"]),
    )
    order = (0, *(len(kernel) + axis for axis in axes), *axes)
    for index in range(n if result.size else 0):
        image = np.pad(x[index], [(0, 0), *positive], constant_values=attrs.get("fill", 0))
        image = image.astype(wide, copy=False)
        windows = np.lib.stride_tricks.sliding_window_view(image, reach, axes)[steps]
        columns = windows.transpose(order).reshape(groups, weight.shape[2], -1)
        np.matmul(weight, columns, out=result[index])
    return (result.reshape(out.static_shape).astype(out.dtype.numpy, copy=False),)


PRIMITIVES: tuple[Primitive, ...] = (
    Primitive("dot_general", "contraction", 2, _infer_dot, _evaluate_dot),
    Primitive("conv", "contraction", 2, _infer_conv, _evaluate_conv),
)
