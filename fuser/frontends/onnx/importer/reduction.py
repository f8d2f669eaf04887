"""ONNX reductions, arg extremes, scans and top-k."""

from __future__ import annotations

from fuser import dtypes
from fuser.frontends.onnx.importer.registry import OnnxNode, onnx_op
from fuser.graph import compose
from fuser.graph.builder import Builder
from fuser.graph.dims import product
from fuser.graph.ir import Value


def read_axes(b: Builder, node: OnnxNode, operand: int) -> list[int] | None:
    """Axes from the attribute of old opsets or the operand of new ones; None if not given."""
    value = node.optional(operand)
    if value is not None:
        axes = b.read_ints(value, "axes")
    else:
        axes = node.attr("axes", None)
    return None if axes is None else node.axes(axes, node.x.type.rank)


@onnx_op(
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd",
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare",
)  # fmt: skip
def reduce(b: Builder, node: OnnxNode) -> Value:
    x = node.x
    axes = read_axes(b, node, 1)
    if not axes:
        noop = node.attr("noop_with_empty_axes", 0)
        axes = [] if noop else list(range(x.type.rank))
    keep = bool(node.attr("keepdims", 1))
    result = _reduce(b, node.op_type, x, axes)
    return b.unsqueeze(result, axes) if keep else result


def _reduce(b: Builder, op_type: str, x: Value, axes: list[int]) -> Value:
    match op_type:
        case "ReduceMean":
            return b.mean(x, axes)
        case "ReduceL1":
            return b.reduce("reduce_sum", b.map("abs", x), axes)
        case "ReduceSumSquare":
            return b.reduce("reduce_sum", b.map("mul", x, x), axes)
        case "ReduceL2":
            wide = compose.stash(b, x) if x.dtype.is_float else b.cast(x, dtypes.f64)
            squares = b.reduce("reduce_sum", b.map("mul", wide, wide), axes)
            return b.cast(b.map("sqrt", squares), x.dtype)
        case "ReduceLogSum":
            total = b.reduce("reduce_sum", compose.stash(b, x), axes)
            return b.cast(b.map("log", total), x.dtype)
        case "ReduceLogSumExp":
            return b.cast(compose.log_sum_exp(b, compose.stash(b, x), axes), x.dtype)
        case "ReduceMax" | "ReduceMin" if x.dtype is dtypes.bool_:
            wide = b.cast(x, dtypes.u8)
            return b.cast(_reduce(b, op_type, wide, axes), dtypes.bool_)
    return b.reduce(f"reduce_{op_type[len('Reduce') :].lower()}", x, axes)


@onnx_op("ArgMax", "ArgMin")
def arg_extreme(b: Builder, node: OnnxNode) -> Value:
    axis = node.axis(node.attr("axis", 0), node.x.type.rank)
    last = bool(node.attr("select_last_index", 0))
    result = b.emit(node.op_type.lower(), node.x, axis=axis, select_last=last)
    return b.unsqueeze(result, [axis]) if node.attr("keepdims", 1) else result


@onnx_op("CumSum", since=11)
@onnx_op("CumProd", since=26)
def cumulate(b: Builder, node: OnnxNode) -> Value:
    axis = node.axis(b.read_ints(node.operand(1), "axis")[0], node.x.type.rank)
    return b.emit(
        "cumsum",
        node.x,
        axis=axis,
        **({"fn": "prod"} if node.op_type == "CumProd" else {}),
        exclusive=bool(node.attr("exclusive", 0)),
        reverse=bool(node.attr("reverse", 0)),
    )


@onnx_op("TopK")
def top_k(b: Builder, node: OnnxNode) -> list[Value | None]:
    x = node.x
    axis = node.axis(node.attr("axis", -1), x.type.rank)
    operand = node.optional(1)
    count = node.required("k") if operand is None else b.read_dims(operand, "k")[0]
    both = b.emit_node("sort", x, axis=axis, descending=bool(node.attr("largest", 1)))
    return [b.slice_axis(value, axis, 0, count) for value in both.outputs]


@onnx_op("Hardmax", since=1)
def hardmax_flattened(b: Builder, node: OnnxNode) -> Value:
    """Before opset 13: that of the matrix that flattening at axis gives."""
    shape = node.x.type.shape
    axis = node.axis(node.attr("axis", 1), max(len(shape), 2))
    matrix = b.reshape(node.x, (product(shape[:axis]), product(shape[axis:])))
    return b.reshape(_hardmax(b, matrix, 1), shape)


@onnx_op("Hardmax", since=13)
def hardmax(b: Builder, node: OnnxNode) -> Value:
    return _hardmax(b, node.x, node.axis(node.attr("axis", -1), node.x.type.rank))


def _hardmax(b: Builder, x: Value, axis: int) -> Value:
    best = b.emit("argmax", x, axis=axis, select_last=False)
    index = b.iota(x.type.shape, axis)
    return b.cast(b.map("eq", index, b.restore(best, x, [axis])), x.dtype)
