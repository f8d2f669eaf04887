"""If, Loop and Scan, written out: the branch that is taken, and a body for each iteration.

A condition or a trip count that an input gives is asked for by value (ValueNeededError).
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx import GraphProto

from fuser import dtypes
from fuser.base.limits import check_nodes
from fuser.errors import InvalidModelError, LimitError, ValueNeededError
from fuser.frontends.onnx.importer.checks import MOST_ITERATIONS
from fuser.frontends.onnx.importer.registry import OnnxNode, onnx_op
from fuser.graph.builder import Builder
from fuser.graph.dims import as_int
from fuser.graph.ir import TensorType, Value
from fuser.graph.sizes import same

MOST_HOST_ITERATIONS = 1_000_000
"""Iterations that the host would run of a loop that only its count ends."""


@onnx_op("If")
def branch(b: Builder, node: OnnxNode) -> list[Value | None]:
    """The branch taken; where data decides, both, if they compute tensors of one type."""
    condition = _condition(b, node, node.operand(0))
    for name in ("then_branch", "else_branch"):
        if len(node.required(name).output) != len(node.outputs):
            what = f"the {name} has {len(node.required(name).output)} outputs"
            raise InvalidModelError(f"{what}, the node {len(node.outputs)}", where=node.where)
    known = b.known(condition)
    if known is not None and known.dtype != object:
        name = "then_branch" if known.item() else "else_branch"
        return list(node.expand(node.required(name), []))
    taken = node.expand(node.required("then_branch"), [])
    other = node.expand(node.required("else_branch"), [])
    if all(a.type == c.type for a, c in zip(taken, other, strict=True)):
        return [b.map("select", condition, a, c) for a, c in zip(taken, other, strict=True)]
    b.read_scalar(condition, "a condition")  # asks for the value
    raise node.unsupported("the branches differ in type")


def _condition(b: Builder, node: OnnxNode, value: Value) -> Value:
    """A scalar bool. Raises InvalidModelError for another dtype."""
    if value.dtype is not dtypes.bool_:
        raise InvalidModelError(f"the condition is {value.type}, not bool", where=node.where)
    return b.reshape(value, ())


def _check_size(node: OnnxNode, body: GraphProto, count: int) -> None:
    """Raise LimitError for a loop that will not fit, before it is written out."""
    check_nodes(count * len(body.node), f"{node.where}, written out {count} times,")


def _stack(b: Builder, items: Sequence[Value], axis: int = 0) -> Value:
    return b.concat([b.unsqueeze(item, [axis]) for item in items], axis)


@onnx_op("Loop")
def loop(b: Builder, node: OnnxNode) -> list[Value | None]:
    """The body once for each iteration, while the condition is known to hold. A loop of more is
    not supported: a session runs it on the host, unless it can have no end. Raises LimitError."""
    body = node.required("body")
    limit, condition = node.optional(0), node.optional(1)
    trip_count = MOST_HOST_ITERATIONS + 1
    if limit is not None:
        trip_count = int(b.read_scalar(limit, "the trip count"))
    carried = [node.operand(i) for i in range(2, len(node.inputs))]
    going = True
    if condition is not None:
        going = bool(b.read_scalar(_condition(b, node, condition), "a condition"))
    if limit is not None:
        _check_size(node, body, min(trip_count, MOST_ITERATIONS))
    if going and trip_count > MOST_ITERATIONS and hands_on(body):
        _refuse_long(node, trip_count)
    scanned: list[list[Value]] = []
    iteration, endless = 0, False
    while going and iteration < trip_count:
        if iteration >= MOST_ITERATIONS:
            _refuse_long(node, trip_count if endless else 0)
        first = b.scalar(iteration, dtypes.i64)
        alive = b.scalar(True, dtypes.bool_)
        results = node.expand(body, [first, alive, *carried])
        carried = results[1 : 1 + len(carried)]
        scanned.append(results[1 + len(carried) :])
        try:
            going = bool(b.read_scalar(results[0], "the condition of a loop"))
        except ValueNeededError as error:
            error.ends_loop = True
            raise
        endless = results[0] is alive or results[0].constant is not None
        iteration += 1
    count = len(body.output) - 1 - len(carried)
    if count and not scanned:
        first, alive = b.scalar(0, dtypes.i64), b.scalar(True, dtypes.bool_)
        rows = node.expand(body, [first, alive, *carried])[1 + len(carried) :]
        return [*carried, *(_no_rows(b, row) for row in rows)]
    return [*carried, *(_stack(b, [items[i] for items in scanned]) for i in range(count))]


def hands_on(body: GraphProto) -> bool:
    """Whether the condition that a body gives is the one that it is given, so that only the count
    ends the loop."""
    made_of = {node.output[0]: node.input[0] for node in body.node if node.op_type == "Identity"}
    name, wanted = str(body.output[0].name), str(body.input[1].name)
    for _ in range(len(made_of)):
        name = made_of.get(name, name)
    return name == wanted


def check_end(where: str, count: int | None) -> None:
    """Raise LimitError for a loop that only its count ends, None for never, and that not soon."""
    if count is None or count > MOST_HOST_ITERATIONS:
        raise LimitError("the loop has no end that anybody would see", where=where)


def _refuse_long(node: OnnxNode, count: int) -> None:
    """Raise for a loop that is not written out; count: of iterations, if only that ends it."""
    check_end(node.where, count)
    raise node.unsupported(f"more than {MOST_ITERATIONS} iterations")


def _no_rows(b: Builder, row: Value, axis: int = 0) -> Value:
    """What is stacked where there is no iteration, from the row that one would give."""
    shape = row.type.shape
    return b.full(0, TensorType(row.dtype, (*shape[:axis], 0, *shape[axis:])))


@onnx_op("Scan", since=8)
def scan_8(b: Builder, node: OnnxNode) -> list[Value | None]:
    """Opset 8: operands have a batch axis in front, and a first operand with lengths."""
    if node.optional(0) is not None:
        raise node.unsupported("sequence_lens")
    count = node.required("num_scan_inputs")
    operands = [node.operand(i) for i in range(1, len(node.inputs))]
    states, inputs = operands[: len(operands) - count], operands[len(operands) - count :]
    batch = as_int(operands[0].type.shape[0])
    found = [
        _scan(b, node, [_pick(b, s, 0, i) for s in states], [_pick(b, x, 0, i) for x in inputs],
              [0] * count, node.attr("directions", None) or [0] * count, None, None)
        for i in range(max(batch, 1))
    ]  # fmt: skip
    if not batch:
        return [_no_rows(b, row) for row in found[0]]
    return [_stack(b, [row[i] for row in found]) for i in range(len(found[0]))]


@onnx_op("Scan", since=9)
def scan(b: Builder, node: OnnxNode) -> list[Value | None]:
    count = node.required("num_scan_inputs")
    operands = node.present()
    states, inputs = operands[: len(operands) - count], operands[len(operands) - count :]
    axes = node.attr("scan_input_axes", None) or [0] * count
    axes = [node.axis(axis, x.type.rank) for axis, x in zip(axes, inputs, strict=True)]
    directions = node.attr("scan_input_directions", None) or [0] * count
    return list(
        _scan(b, node, states, inputs, axes, directions,
              node.attr("scan_output_axes", None), node.attr("scan_output_directions", None))
    )  # fmt: skip


def _pick(b: Builder, x: Value, axis: int, index: int) -> Value:
    """x[..., index, ...] without the axis; zeros where there is nothing along it."""
    if same(x.type.shape[axis], 0):
        shape = x.type.shape
        return b.full(0, TensorType(x.dtype, (*shape[:axis], *shape[axis + 1 :])))
    return b.squeeze(b.slice_axis(x, axis, index, index + 1), [axis])


def _scan(
    b: Builder, node: OnnxNode, states: list[Value], inputs: list[Value], axes: list[int],
    directions: list[int], output_axes: list[int] | None, output_directions: list[int] | None,
) -> list[Value]:  # fmt: skip
    body = node.required("body")
    length = as_int(inputs[0].type.shape[axes[0]])
    if length > MOST_ITERATIONS:
        raise node.unsupported(f"more than {MOST_ITERATIONS} iterations")
    if any(as_int(x.type.shape[axis]) != length for x, axis in zip(inputs, axes, strict=True)):
        raise InvalidModelError("the sequences differ in length", where=node.where)
    _check_size(node, body, length)
    scanned: list[list[Value]] = []
    first = states
    for iteration in range(max(length, 1)):  # of no row one, for the types of the results
        items = [
            _pick(b, x, axis, length - 1 - iteration if backward else iteration)
            for x, axis, backward in zip(inputs, axes, directions, strict=True)
        ]
        results = node.expand(body, [*states, *items])
        scanned.append(results[len(states) :])
        states = results[: len(states)]
    outputs = []
    count = len(body.output) - len(states)
    for i in range(count):
        rows = [items[i] for items in scanned]
        if output_directions and output_directions[i]:
            rows.reverse()
        axis = node.axis(output_axes[i] if output_axes else 0, rows[0].type.rank + 1)
        outputs.append(_stack(b, rows, axis) if length else _no_rows(b, rows[0], axis))
    return [*(states if length else first), *outputs]


@onnx_op("OptionalHasElement", since=15)
def optional_has_element(b: Builder, node: OnnxNode) -> Value:
    """A tensor is an optional that holds it; an omitted operand is one that holds nothing."""
    return b.scalar(node.optional(0) is not None, dtypes.bool_)


@onnx_op("OptionalGetElement", since=15)
def optional_get_element(b: Builder, node: OnnxNode) -> Value:
    return node.operand(0)


@onnx_op("Optional", since=15)
def optional(b: Builder, node: OnnxNode) -> Value:
    value = node.optional(0)
    if value is None:
        raise node.unsupported("an empty optional as a result")
    return value
