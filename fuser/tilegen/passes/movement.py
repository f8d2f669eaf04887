"""Merge ops that only move elements, and turn folds of nothing into them.

    %b = broadcast %x {axes = (1,)} : tile<1x8xf32>
    %c = broadcast %b {axes = (0, 1)} : tile<4x8xf32>   =>   %c = broadcast %x {axes = (1,)}
    %r = reduce.sum %y {axis = 1}  (%y: tile<8x1xf32>)  =>   %r = reshape %y : tile<8xf32>
    %p = permute %q, %s = permute %p back to %q's order =>   uses of %s read %q

A reshape that only adds or drops dims of 1 merges into a broadcast after it, and a permute of a
broadcast is one broadcast. Needs nothing; makes work for cse and dce.
"""

from __future__ import annotations

from fuser.tilegen import ops
from fuser.tilegen.ir import Block, Kernel, Op
from fuser.tilegen.passes.rewrite import replace_operands, stands_for
from fuser.tilegen.value import Value


def merge_movement(kernel: Kernel) -> None:
    makers: dict[Value, Op] = {}
    aliases: dict[Value, Value] = {}

    def visit(block: Block) -> None:
        kept: list[Op] = []
        for op in block.ops:
            replace_operands(op, aliases)
            while (new := _merged(op, makers)) is not None:
                if isinstance(new, Value):
                    break
                op = stands_for(new, op)
            if isinstance(new, Value):
                aliases[op.result] = new
                continue
            for inner in op.blocks():
                visit(inner)
            makers.update(dict.fromkeys(op.results, op))
            kept.append(op)
        block.ops = kept

    visit(kernel.body)


def _merged(op: Op, makers: dict[Value, Op]) -> Op | Value | None:
    match op:
        case ops.Reduce() if op.x.shape[op.axis] == 1:
            return ops.Reshape(x=op.x, shape=op.result.shape)
        case ops.Scan() if op.x.shape[op.axis] == 1:
            return op.x
        case ops.Reshape():
            return _reshape(op, makers.get(op.x))
        case ops.Permute():
            return _permute(op, makers.get(op.x))
        case ops.Broadcast():
            return _broadcast(op, makers.get(op.x))
    return None


def _reshape(op: ops.Reshape, inner: Op | None) -> Op | Value | None:
    if op.x.shape == op.shape:
        return op.x
    if isinstance(inner, ops.Reshape):
        return ops.Reshape(x=inner.x, shape=op.shape)
    return None


def _permute(op: ops.Permute, inner: Op | None) -> Op | Value | None:
    if op.axes == tuple(range(len(op.axes))):
        return op.x
    if isinstance(inner, ops.Permute):
        return ops.Permute(x=inner.x, axes=tuple(inner.axes[axis] for axis in op.axes))
    if isinstance(inner, ops.Broadcast):
        axes = tuple(op.axes.index(axis) for axis in inner.axes)
        return ops.Broadcast(x=inner.x, shape=op.result.shape, axes=axes)
    return None


def _broadcast(op: ops.Broadcast, inner: Op | None) -> Op | Value | None:
    if op.x.shape == op.shape and op.axes == tuple(range(len(op.shape))):
        return op.x
    if isinstance(inner, ops.Broadcast):
        axes = tuple(op.axes[axis] for axis in inner.axes)
        return ops.Broadcast(x=inner.x, shape=op.shape, axes=axes)
    if isinstance(inner, ops.Reshape):
        places = _kept_dims(inner)
        if places is not None:
            axes = tuple(op.axes[place] for place in places)
            return ops.Broadcast(x=inner.x, shape=op.shape, axes=axes)
    return None


def _kept_dims(op: ops.Reshape) -> tuple[int, ...] | None:
    """Where each dim of x is in the result, if the reshape only adds dims of 1."""
    places: list[int] = []
    position = 0
    for dim in op.x.shape:
        while position < len(op.shape) and op.shape[position] != dim:
            if op.shape[position] != 1:
                return None
            position += 1
        if position == len(op.shape):
            return None
        places.append(position)
        position += 1
    return tuple(places) if all(dim == 1 for dim in op.shape[position:]) else None
