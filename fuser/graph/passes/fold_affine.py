"""Fold per-channel scales and shifts into the weights of the contraction before them.

    %y = conv(%x, %w)                                %w2 = constant  # w * scale, per channel
    %c = sub(%y, broadcast(%mean))                   %y = conv(%x, %w2)
    %s = mul(%c, broadcast(%scale))           =>     %z = add(%y, broadcast(%shift))
    %z = add(%s, broadcast(%bias))                   # shift = bias - mean * scale

A chain of add, sub, mul and div by constants, one a channel of the contraction's right operand
(BatchNormalization, a scaled query), is one scale and one shift. Without a contraction before it a
chain of three or more per-channel steps becomes mul and add.
Needs: constants on the right. Values inside the chain must have no other reader.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fuser.graph.builder import Builder
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.mapping import release_pages
from fuser.graph.ops.contraction import free_axes
from fuser.graph.ops.primitive import Array, widen
from fuser.graph.passes.rewrite import join_origins, rewrite, stretched_constant

_STEPS = ("add", "sub", "mul", "div")


@dataclass(frozen=True)
class _Chain:
    """base * scale + shift; both arrays have the rank of the value, with 1 where they stretch."""

    base: Value
    scale: Array
    shift: Array
    nodes: tuple[Node, ...]


def fold_affine(graph: Graph) -> Graph:
    """The graph with affine chains folded (changed in place), under fast numerics."""
    if not graph.numerics.allows("fast"):
        return graph
    uses = graph.uses()
    outputs = set(graph.outputs)
    chains: dict[Value, _Chain] = {}

    def is_inner(value: Value) -> bool:
        return value not in outputs and len(uses.get(value, ())) == 1

    def continues(value: Value) -> bool:
        return is_inner(value) and _constant_operand(uses[value][0]) is not None

    def rule(b: Builder, node: Node, operands: tuple[Value, ...]) -> Value | None:
        constant = _constant_operand(node)
        if constant is None:
            return None
        source = node.inputs[0]
        before = chains.get(source) if is_inner(source) else None
        if before is None:
            ones = np.ones((1,) * constant.ndim)
            # A contraction that others read too must stay as it is.
            before = _Chain(operands[0], ones, ones * 0, ())
            if _weight_axes(operands[0]) is not None and not is_inner(source):
                return None
        chain = _extend(before, node, constant)
        chains[node.output] = chain
        # Only the end of the chain is rewritten; what is inside becomes dead.
        return None if continues(node.output) else _emit(b, chain, node)

    return rewrite(graph, rule, _STEPS)


def _constant_operand(node: Node) -> Array | None:
    """The constant of a step, in float64 with the rank of the result, if node is one."""
    if node.op not in _STEPS or not node.output.dtype.is_float:
        return None
    found = stretched_constant(node.inputs[1])
    if found is None or stretched_constant(node.inputs[0]) is not None:
        return None
    array, axes = found
    shape = [1] * node.output.type.rank
    for axis, size in zip(axes, array.shape, strict=True):
        shape[axis] = size
    if array.size > 1 and sum(size > 1 for size in shape) > 1:
        return None  # more than one channel axis: not per channel
    with np.errstate(invalid="ignore"):  # NumPy warns of nan in a bfloat16 array
        return array.astype(np.float64).reshape(shape)


def _extend(chain: _Chain, node: Node, constant: Array) -> _Chain:
    scale, shift = chain.scale, chain.shift
    with np.errstate(all="ignore"):
        match node.op:
            case "add":
                shift = shift + constant
            case "sub":
                shift = shift - constant
            case "mul":
                scale, shift = scale * constant, shift * constant
            case "div":
                scale, shift = scale / constant, shift / constant
    return _Chain(chain.base, scale, shift, (*chain.nodes, node))


def _emit(b: Builder, chain: _Chain, node: Node) -> Value | None:
    """base * scale + shift, with the scale in the weight where there is one."""
    dtype = node.output.dtype
    scale, shift = chain.scale.astype(dtype.numpy), chain.shift.astype(dtype.numpy)
    if not (np.isfinite(scale).all() and np.isfinite(shift).all()):
        return None
    b.origin = names = join_origins(*chain.nodes)
    scales = any(step.op in ("mul", "div") for step in chain.nodes)
    result = _scale_weight(b, chain) if scales else None
    if result is None:
        if len(chain.nodes) < 3 or scale.size == 1:
            return None
        result = b.map("mul", chain.base, _stretch(b, scale, node))
    elif len(chain.nodes) == 1 and not np.any(shift):
        b.graph.note("fold_affine", "fast", names)
        return result
    b.graph.note("fold_affine", "fast", names)
    return b.map("add", result, _stretch(b, shift, node)) if np.any(shift) else result


def _stretch(b: Builder, array: Array, node: Node) -> Value:
    kept = [axis for axis, size in enumerate(array.shape) if size != 1]
    vector = array.reshape([array.shape[axis] for axis in kept]).copy()
    return b.broadcast(b.constant(vector), node.output.type.shape, kept)


def _weight_axes(value: Value) -> dict[int, int] | None:
    """For a contraction with a constant weight: the weight axis behind each output axis."""
    node = value.node
    if node is None or node.op not in ("conv", "dot_general") or node.inputs[1].constant is None:
        return None
    if node.op == "conv":
        return {1: 0}
    rhs = node.inputs[1]
    free = free_axes(rhs.type.rank, node.attrs["rhs_batch"], node.attrs["rhs_contract"])
    first = value.type.rank - len(free)
    return {first + i: axis for i, axis in enumerate(free)}


def _scale_weight(b: Builder, chain: _Chain) -> Value | None:
    """The contraction of the chain with its weight scaled, None if the scale is not by channel."""
    axes = _weight_axes(chain.base)
    node = chain.base.node
    if axes is None or node is None:
        return None
    weight = node.inputs[1].constant
    assert weight is not None
    if any(size != 1 and axis not in axes for axis, size in enumerate(chain.scale.shape)):
        return None
    shape = [1] * weight.ndim
    for axis, size in enumerate(chain.scale.shape):
        if size != 1:
            shape[axes[axis]] = size
    with np.errstate(over="ignore"):
        wide = widen(weight)
        exact = wide * chain.scale.reshape(shape).astype(wide.dtype)
        scaled = exact.astype(weight.dtype)
    release_pages(weight)
    if not np.isfinite(scaled).all():
        return None
    # A narrow weight is rounded anew: as dear as a rounding of each product. That is the price of
    # a normalisation in one step, but a scale alone costs nothing behind the sum.
    narrow, alone = weight.dtype.itemsize < 4, len(chain.nodes) < 3
    if narrow and alone and not np.array_equal(widen(scaled), exact):
        return None
    b.origin = join_origins(node, *chain.nodes)
    return b.emit(node.op, node.inputs[0], b.constant(scaled), **node.attrs)
