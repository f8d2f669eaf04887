"""RNN, GRU and LSTM, unrolled: a step is a few maps around one matmul with the recurrence weights.

The matmuls with the input weights do not depend on the state and are one matmul over all steps.
x is [length, batch, size], weights [directions, gates * hidden, size]; layout=1 puts batch first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fuser import dtypes
from fuser.frontends.onnx.importer.registry import OnnxNode, onnx_op
from fuser.graph import compose
from fuser.graph.builder import Builder
from fuser.graph.dims import as_int
from fuser.graph.ir import TensorType, Value

Activation = Callable[[Value], Value]

MOST_STEPS = 1024


@dataclass
class _Direction:
    """One direction: its weights [gates, hidden, ...], activations, and where to begin."""

    inputs: Value
    recurrent: Value
    input_bias: Value
    recurrent_bias: Value
    functions: list[Activation]
    state: Value
    cell: Value | None = None
    peepholes: list[Value] | None = None


def _activation(
    b: Builder, node: OnnxNode, name: str, alpha: float | None, beta: float | None
) -> Activation:
    def scaled(x: Value, factor: float, shift: float) -> Value:
        return b.map("add", b.map("mul", x, factor), shift)

    a = alpha
    match name.lower():
        case "sigmoid":
            return lambda x: compose.sigmoid(b, x)
        case "tanh":
            return lambda x: b.map("tanh", x)
        case "relu":
            return lambda x: b.map("max", x, 0)
        case "affine":
            return lambda x: scaled(x, 1.0 if a is None else a, beta or 0.0)
        case "leakyrelu":
            slope = 0.01 if a is None else a
            return lambda x: b.map("select", b.map("lt", x, 0), b.map("mul", x, slope), x)
        case "thresholdedrelu":
            return lambda x: b.map("select", b.map("gt", x, 1.0 if a is None else a), x, 0)
        case "scaledtanh":
            outer, inner = (1.0 if a is None else a), (1.0 if beta is None else beta)
            return lambda x: b.map("mul", b.map("tanh", b.map("mul", x, inner)), outer)
        case "hardsigmoid":
            slope, shift = (0.2 if a is None else a), (0.5 if beta is None else beta)
            return lambda x: b.map("min", b.map("max", scaled(x, slope, shift), 0), 1)
        case "elu":
            factor = 1.0 if a is None else a
            return lambda x: b.map(
                "select", b.map("lt", x, 0), b.map("mul", compose.exp_minus_one(b, x), factor), x
            )
        case "softsign":
            return lambda x: b.map("div", x, b.map("add", b.map("abs", x), 1))
        case "softplus":
            return lambda x: compose.softplus(b, x)
    raise node.unsupported(f"the activation {name!r}")


def _functions(
    b: Builder, node: OnnxNode, defaults: Sequence[str], directions: int
) -> list[list[Activation]]:
    """The activations of each direction, clipped on their way in where the node says so."""
    names = list(node.attr("activations", None) or list(defaults) * directions)
    alphas = iter(node.attr("activation_alpha", None) or ())
    betas = iter(node.attr("activation_beta", None) or ())
    with_alpha = {"affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu"}
    with_beta = {"affine", "scaledtanh", "hardsigmoid"}
    clip = node.attr("clip", None)
    found = []
    for name in names:
        alpha = next(alphas, None) if name.lower() in with_alpha else None
        beta = next(betas, None) if name.lower() in with_beta else None
        function = _activation(b, node, name, alpha, beta)
        found.append(function if clip is None else _clipped(b, function, clip))
    count = len(defaults)
    return [found[i * count : (i + 1) * count] for i in range(directions)]


def _clipped(b: Builder, function: Activation, limit: float) -> Activation:
    return lambda x: function(b.map("min", b.map("max", x, -limit), limit))


def _pick(b: Builder, x: Value, index: int) -> Value:
    """x[index] along the first axis."""
    return b.reshape(b.slice_axis(x, 0, index, index + 1), x.type.shape[1:])


@onnx_op("RNN", "GRU", "LSTM", since=7)
def recurrent(b: Builder, node: OnnxNode) -> list[Value | None]:
    kind = node.op_type
    defaults = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[kind]
    batch_first = bool(node.attr("layout", 0))
    x, weights, recurrence = (node.operand(i) for i in range(3))
    if batch_first:
        x = b.swap(x, 0, 1)
    directions = as_int(weights.type.shape[0])
    hidden = as_int(recurrence.type.shape[2])
    length, batch = as_int(x.type.shape[0]), x.type.shape[1]
    if length > MOST_STEPS:
        raise node.unsupported(f"{length} steps, more than {MOST_STEPS}")
    functions = _functions(b, node, defaults[kind], directions)
    initial = [node.optional(5), node.optional(6)]
    if batch_first:
        initial = [None if value is None else b.swap(value, 0, 1) for value in initial]
    lengths = node.optional(4)
    zero = b.broadcast_to(b.scalar(0, x.dtype), (batch, hidden))
    results, states, cells = [], [], []
    way = node.attr("direction", "forward")
    for index in range(directions):
        bias = node.optional(3)
        both = (
            b.reshape(_pick(b, bias, index), (2, gates, hidden))
            if bias is not None
            else b.broadcast_to(b.scalar(0, x.dtype), (2, gates, hidden))
        )
        peepholes = node.optional(7) if kind == "LSTM" else None
        direction = _Direction(
            _pick(b, weights, index),
            _pick(b, recurrence, index),
            _pick(b, both, 0),
            _pick(b, both, 1),
            functions[index],
            zero if initial[0] is None else _pick(b, initial[0], index),
            (zero if initial[1] is None else _pick(b, initial[1], index))
            if kind == "LSTM"
            else None,
            None
            if peepholes is None
            else [
                _pick(b, b.reshape(_pick(b, peepholes, index), (3, hidden)), i) for i in range(3)
            ],
        )
        backward = way == "reverse" or index == 1
        steps = _run(b, node, direction, x, lengths, backward)
        if steps:
            results.append(b.concat([b.unsqueeze(step, [0, 1]) for step in steps], 0))
        else:
            results.append(b.full(0, TensorType(x.dtype, (0, 1, batch, hidden))))
        states.append(b.unsqueeze(direction.state, [0]))
        if direction.cell is not None:
            cells.append(b.unsqueeze(direction.cell, [0]))
    y, last = b.concat(results, 1), b.concat(states, 0)
    cell = b.concat(cells, 0) if cells else None
    if batch_first:
        y = b.transpose(y, (2, 0, 1, 3))
        last = b.swap(last, 0, 1)
        cell = None if cell is None else b.swap(cell, 0, 1)
    return [y, last, cell] if kind == "LSTM" else [y, last]


def _run(
    b: Builder, node: OnnxNode, d: _Direction, x: Value, lengths: Value | None, backward: bool
) -> list[Value]:
    """The state after each step, in the order of time; `d` keeps the last state and cell.

    Rows that are over keep their state and give 0; a backward pass begins where a row ends.
    """
    steps = as_int(x.type.shape[0])
    gates = as_int(d.input_bias.type.shape[0])
    hidden = d.state.type.shape[1]
    # [length, batch, gates * hidden]: all steps at once.
    projected = b.dot(x, d.inputs, ((2,), (1,)))
    outputs: list[Value] = []
    order = range(steps)[::-1] if backward else range(steps)
    step = {"RNN": _rnn_step, "GRU": _gru_step, "LSTM": _lstm_step}[node.op_type]
    for position in order:
        at = b.reshape(_pick(b, projected, position), (x.type.shape[1], gates, hidden))
        given = [
            b.map("add", b.reshape(b.slice_axis(at, 1, g, g + 1), d.state.type.shape),
                  _pick(b, d.input_bias, g))
            for g in range(gates)
        ]  # fmt: skip
        state, cell = step(b, node, d, given)
        output = state
        if lengths is not None:
            alive = b.map("gt", b.cast(lengths, dtypes.i64), position)
            mask = b.broadcast(alive, state.type.shape, (0,))
            output = b.map("select", mask, state, 0)
            state = b.map("select", mask, state, d.state)
            if cell is not None and d.cell is not None:
                cell = b.map("select", mask, cell, d.cell)
        d.state, d.cell = state, cell
        outputs.append(output)
    return outputs[::-1] if backward else outputs


def _recur(
    b: Builder, d: _Direction, state: Value, gates: range, given: Sequence[Value]
) -> list[Value]:
    """given[g] + state @ recurrence[g].T + bias[g] for each of the gates: one matmul for all."""
    batch, hidden = d.state.type.shape[0], as_int(d.state.type.shape[1])
    weights = b.slice_axis(d.recurrent, 0, gates.start * hidden, gates.stop * hidden)
    sums = b.reshape(b.dot(state, weights, ((1,), (1,))), (batch, len(gates), hidden))
    found = []
    for index, gate in enumerate(gates):
        part = b.reshape(b.slice_axis(sums, 1, index, index + 1), (batch, hidden))
        recurred = b.map("add", part, _pick(b, d.recurrent_bias, gate))
        found.append(b.map("add", given[gate], recurred))
    return found


def _rnn_step(
    b: Builder, node: OnnxNode, d: _Direction, given: list[Value]
) -> tuple[Value, Value | None]:
    return d.functions[0](*_recur(b, d, d.state, range(1), given)), None


def _gru_step(
    b: Builder, node: OnnxNode, d: _Direction, given: list[Value]
) -> tuple[Value, Value | None]:
    """Gates in the order update, reset, hidden."""
    linear = bool(node.attr("linear_before_reset", 0))
    gates = _recur(b, d, d.state, range(3 if linear else 2), [*given[:2], b.full(0, given[2].type)])
    update, reset = d.functions[0](gates[0]), d.functions[0](gates[1])
    if linear:
        inner = b.map("add", given[2], b.map("mul", reset, gates[2]))
    else:
        (inner,) = _recur(b, d, b.map("mul", reset, d.state), range(2, 3), given)
    fresh = d.functions[1](inner)
    kept = b.map("mul", update, d.state)
    new = b.map("mul", b.map("sub", b.full(1, update.type), update), fresh)
    return b.map("add", new, kept), None


def _lstm_step(
    b: Builder, node: OnnxNode, d: _Direction, given: list[Value]
) -> tuple[Value, Value | None]:
    """Gates in the order input, output, forget, cell; peepholes input, output, forget."""
    assert d.cell is not None
    sums = _recur(b, d, d.state, range(4), given)

    def peek(gate: int, cell: Value) -> Value:
        if d.peepholes is None:
            return sums[gate]
        return b.map("add", sums[gate], b.map("mul", cell, d.peepholes[gate]))

    enter = d.functions[0](peek(0, d.cell))
    if node.attr("input_forget", 0):
        keep = b.map("sub", b.full(1, enter.type), enter)
    else:
        keep = d.functions[0](peek(2, d.cell))
    fresh = d.functions[1](sums[3])
    cell = b.map("add", b.map("mul", keep, d.cell), b.map("mul", enter, fresh))
    leave = d.functions[0](peek(1, cell))
    return b.map("mul", leave, d.functions[2](cell)), cell
