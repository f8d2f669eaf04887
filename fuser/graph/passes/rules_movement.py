"""Canonical forms of reshape, transpose, broadcast, slice, gather, cast, pad and reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fuser.dtypes import f64, i64
from fuser.graph.builder import Builder
from fuser.graph.dims import Dim, DimExpr
from fuser.graph.ir import Node, Value
from fuser.graph.passes.rewrite import join_origins, producer
from fuser.graph.passes.rule import Example, Operands, Rule, Sample, rule
from fuser.graph.passes.rules_arithmetic import is_nonnegative
from fuser.graph.sizes import same_shape


def _moves(make: Callable[[Sample], Value]) -> Example:
    return Example(make, ("float", "int", "bool"))


@rule(
    "exact",
    ("reshape",),
    _moves(
        lambda s: s.b.emit("reshape", s.b.emit("reshape", s.tensor(2, 3), shape=(6,)), shape=(3, 2))
    ),
)
def merge_reshape(b: Builder, node: Node, operands: Operands) -> Value | None:
    """reshape(reshape(x)) -> reshape(x); a reshape to the same shape -> x."""
    (x,) = operands
    shape = node.attrs["shape"]
    inner = producer(x, "reshape")
    if inner is None and x.type.shape != shape:
        return None
    b.origin = join_origins(inner, node)
    return b.reshape(x, shape)


@rule(
    "exact",
    ("transpose",),
    _moves(
        lambda s: s.b.emit(
            "transpose", s.b.emit("transpose", s.tensor(2, 3, 4), perm=(1, 2, 0)), perm=(2, 1, 0)
        )
    ),
)
def merge_transpose(b: Builder, node: Node, operands: Operands) -> Value | None:
    """transpose(transpose(x)) -> one; one that moves only dims of 1 -> reshape; identity -> x."""
    (x,) = operands
    perm = node.attrs["perm"]
    inner = producer(x, "transpose")
    if inner is not None:
        perm = tuple(inner.attrs["perm"][axis] for axis in perm)
        x = inner.inputs[0]
    moving = [axis for axis in perm if x.type.shape[axis] != 1]
    if moving == sorted(moving):
        return b.reshape(x, [x.type.shape[axis] for axis in perm])
    if inner is None:
        return None
    b.origin = join_origins(inner, node)
    return b.transpose(x, perm)


@rule(
    "exact",
    ("transpose",),
    _moves(
        lambda s: s.b.emit(
            "transpose", s.b.emit("reshape", s.tensor(2, 3, 4), shape=(6, 4)), perm=(1, 0)
        )
    ),
)
def transpose_of_merge(b: Builder, node: Node, operands: Operands) -> Value | None:
    """transpose(reshape(x)) where the reshape merges neighbouring axes -> reshape(transpose(x)).

    Exporters merge batch and heads around a transpose and split them again: the reshapes then meet.
    """
    inner = producer(operands[0], "reshape")
    if inner is None:
        return None
    source = inner.inputs[0]
    groups = merged_axes(source.type.shape, inner.attrs["shape"])
    if groups is None:
        return None
    b.origin = join_origins(inner, node)
    perm = [axis for merged in node.attrs["perm"] for axis in groups[merged]]
    return b.reshape(b.transpose(source, perm), node.output.type.shape)


def merged_axes(before: Sequence[Dim], after: Sequence[Dim]) -> list[list[int]] | None:
    """For each dim of after, the neighbouring axes of before that it is the product of."""
    groups: list[list[int]] = []
    position = 0
    for wanted in after:
        group: list[int] = []
        size: Dim = 1
        while position < len(before) and (size != wanted or (not group and before[position] == 1)):
            size = size * before[position]
            group.append(position)
            position += 1
        if size != wanted:
            return None
        groups.append(group)
    if any(before[axis] != 1 for axis in range(position, len(before))) or not groups:
        return None
    groups[-1].extend(range(position, len(before)))
    return groups if all(groups) else None


@rule(
    "exact",
    ("broadcast",),
    _moves(
        lambda s: s.b.emit(
            "broadcast",
            s.b.emit("broadcast", s.tensor(3), shape=(3, 2), axes=(0,)),
            shape=(4, 3, 2),
            axes=(1, 2),
        )
    ),
)
def merge_broadcast(b: Builder, node: Node, operands: Operands) -> Value | None:
    """broadcast(broadcast(x)) -> one; one that only adds dims of 1 -> reshape."""
    (x,) = operands
    shape, axes = node.attrs["shape"], node.attrs["axes"]
    added = [dim for axis, dim in enumerate(shape) if axis not in axes]
    if all(dim == 1 for dim in added) and x.type.shape == tuple(shape[a] for a in axes):
        return b.reshape(x, shape)
    inner = producer(x, "broadcast")
    if inner is not None:
        through = [axes[axis] for axis in inner.attrs["axes"]]
        b.origin = join_origins(inner, node)
        return b.broadcast(inner.inputs[0], shape, through)
    if any(a != shape[axis] and a == 1 for a, axis in zip(x.type.shape, axes, strict=True)):
        return b.broadcast(x, shape, axes)
    return None


@rule(
    "exact",
    ("broadcast",),
    _moves(
        lambda s: s.b.emit(
            "broadcast",
            s.b.emit("reshape", s.tensor(3), shape=(3, 1)),
            shape=(3, 1, 2),
            axes=(0, 1),
        )
    ),
)
def broadcast_unsqueezed(b: Builder, node: Node, operands: Operands) -> Value | None:
    """broadcast(reshape(x)) where the reshape only inserts dims of 1 -> broadcast(x)."""
    inner = producer(operands[0], "reshape")
    if inner is None:
        return None
    source, shape, axes = inner.inputs[0], inner.output.type.shape, node.attrs["axes"]
    kept = [(dim, axis) for dim, axis in zip(shape, axes, strict=True) if dim != 1]
    if tuple(dim for dim, _ in kept) != source.type.shape:
        return None
    b.origin = join_origins(inner, node)
    return b.broadcast(source, node.attrs["shape"], [axis for _, axis in kept])


@rule(
    "exact",
    ("reshape",),
    _moves(
        lambda s: s.b.emit(
            "reshape", s.b.emit("broadcast", s.tensor(3), shape=(3, 2), axes=(0,)), shape=(3, 1, 2)
        )
    ),
)
def reshape_of_broadcast(b: Builder, node: Node, operands: Operands) -> Value | None:
    """reshape(broadcast(x)) that only inserts or drops dims of 1 -> broadcast(x)."""
    inner = producer(operands[0], "broadcast")
    if inner is None:
        return None
    before, after = inner.attrs["shape"], node.attrs["shape"]
    old = [axis for axis, dim in enumerate(before) if dim != 1]
    new = [axis for axis, dim in enumerate(after) if dim != 1]
    if [before[axis] for axis in old] != [after[axis] for axis in new]:
        return None
    moved = dict(zip(old, new, strict=True))
    source = inner.inputs[0]
    kept = [
        (dim, moved[axis])
        for dim, axis in zip(source.type.shape, inner.attrs["axes"], strict=True)
        if axis in moved and dim != 1
    ]
    b.origin = join_origins(inner, node)
    return b.broadcast(b.reshape(source, [d for d, _ in kept]), after, [a for _, a in kept])


@rule(
    "exact",
    ("slice",),
    _moves(
        lambda s: s.b.emit(
            "slice",
            s.b.emit("slice", s.tensor(12), starts=(1,), limits=(11,), strides=(2,)),
            starts=(1,),
            limits=(5,),
            strides=(3,),
        )
    ),
)
def merge_slice(b: Builder, node: Node, operands: Operands) -> Value | None:
    """slice(slice(x)) with positive strides -> one; a whole slice -> x."""
    (x,) = operands
    starts, limits, strides = (node.attrs[key] for key in ("starts", "limits", "strides"))
    same = same_shape(node.output.type.shape, x.type.shape)
    whole = b.slice(x, starts, limits, strides) if same else None
    if whole is x:
        return x
    inner = producer(x, "slice")
    if 0 in node.output.type.shape:
        return None  # the place of nothing may lie outside of what is sliced first
    if inner is None or min(*strides, *inner.attrs["strides"]) < 0:
        return None
    first, step = inner.attrs["starts"], inner.attrs["strides"]
    b.origin = join_origins(inner, node)
    return b.slice(
        inner.inputs[0],
        [f + s * k for f, s, k in zip(first, starts, step, strict=True)],
        [
            # The last element read, plus one: limits of the outer slice may lie between steps.
            f + ((n - 1) * r + s) * k + 1 if n != 0 else f + s * k
            for f, s, r, k, n in zip(
                first, starts, strides, step, node.output.type.shape, strict=True
            )
        ],
        [r * k for r, k in zip(strides, step, strict=True)],
    )


@rule(
    "exact",
    ("slice",),
    _moves(
        lambda s: s.b.emit(
            "slice",
            s.b.emit("pad", s.tensor(6), low=(2,), high=(1,), value=1),
            starts=(3,),
            limits=(8,),
            strides=(2,),
        )
    ),
)
def slice_of_pad(b: Builder, node: Node, operands: Operands) -> Value | None:
    """slice(pad(x)) that reads none of the padding -> slice(x)."""
    inner = producer(operands[0], "pad")
    if inner is None:
        return None
    starts, limits, strides = (node.attrs[key] for key in ("starts", "limits", "strides"))
    low, source = inner.attrs["low"], inner.inputs[0]
    moved = []
    for start, limit, stride, before, size in zip(
        starts, limits, strides, low, source.type.shape, strict=True
    ):
        if not all(isinstance(item, int) for item in (start, limit, before, size)) or stride < 0:
            return None
        if not before <= start <= limit <= before + size:
            return None
        moved.append((start - before, limit - before))
    b.origin = join_origins(inner, node)
    return b.slice(source, [first for first, _ in moved], [last for _, last in moved], strides)


@rule(
    "exact",
    ("gather",),
    _moves(lambda s: s.b.emit("gather", s.tensor(6, 2), s.b.constant(np.array([2, 3, 4])), axis=0)),
)
def gather_to_slice(b: Builder, node: Node, operands: Operands) -> Value | None:
    """gather with one constant index, or with consecutive ones -> slice (and reshape)."""
    data, indices = operands
    axis = node.attrs["axis"]
    size = data.type.shape[axis]
    start = _consecutive(b, indices)
    if start is None or isinstance(size, DimExpr):
        return None
    count = 1
    for dim in indices.type.shape:
        if isinstance(dim, DimExpr):
            return None
        count *= dim
    start = start + size if start < 0 else start
    if not 0 <= start <= size - count or count == 0:
        return None
    part = b.slice_axis(data, axis, start, start + count)
    return b.reshape(part, node.output.type.shape)


def _consecutive(b: Builder, indices: Value) -> int | None:
    """The first of indices that grow by one, all of one sign; None for any others."""
    moved = producer(indices, "reshape")
    iota = producer(moved.inputs[0] if moved else indices, "iota")
    if iota is not None:
        shape = iota.attrs["shape"]
        others = [dim for axis, dim in enumerate(shape) if axis != iota.attrs["axis"]]
        return 0 if all(dim == 1 for dim in others) else None
    array = indices.constant
    if array is None or array.size == 0:
        return None
    flat = array.reshape(-1).astype(np.int64)
    first = int(flat[0])
    consecutive = np.array_equal(flat, first + np.arange(flat.size))
    one_sign = first >= 0 or first + flat.size <= 0
    return first if consecutive and one_sign else None


_casts = Example(
    lambda s: s.b.emit("cast", s.b.emit("cast", x := s.tensor(), dtype=f64), dtype=x.dtype)
)
_integer_casts = Example(
    lambda s: s.b.emit("cast", s.b.emit("cast", x := s.tensor(), dtype=i64), dtype=x.dtype),
    ("int",),
)


@rule("exact", ("cast",), _casts, _integer_casts)
def drop_cast(b: Builder, node: Node, operands: Operands) -> Value | None:
    """cast to the same type -> x; cast(cast(x, wider), type of x) -> x."""
    (x,) = operands
    dtype = node.attrs["dtype"]
    if node.attrs.get("rounds"):
        return None  # kernels keep more digits of x than its type has
    if x.dtype is dtype:
        return x
    inner = producer(x, "cast")
    if inner is None:
        return None
    source = inner.inputs[0]
    wider = source.dtype.kind == x.dtype.kind and source.dtype.bits < x.dtype.bits
    if not wider:
        return None
    b.origin = join_origins(inner, node)
    return b.cast(source, dtype)


def _of_padded(s: Sample) -> Value:
    x = s.b.emit("pad", s.tensor(1, 1, 3, 3), low=(0, 0, 1, 0), high=(0, 0, 0, 2), value=0.0)
    return s.b.emit(
        "conv", x, s.tensor(1, 1, 2, 2), strides=(1, 1), padding=((0, 1), (1, 0)), dilation=(1, 1),
        groups=1,
    )  # fmt: skip


_padded_conv = Example(_of_padded)


@rule("exact", ("conv",), _padded_conv)
def merge_pad(b: Builder, node: Node, operands: Operands) -> Value | None:
    """conv(pad(x, 0)) -> conv with the padding."""
    inner = producer(operands[0], "pad")
    if inner is None or inner.attrs["value"] != 0:
        return None
    low, high = inner.attrs["low"], inner.attrs["high"]
    amounts = (*low, *high)
    if any(isinstance(a, DimExpr) or a < 0 for a in amounts) or any((*low[:2], *high[:2])):
        return None
    padding = tuple(
        (before + extra_before, after + extra_after)
        for (before, after), extra_before, extra_after in zip(
            node.attrs["padding"], low[2:], high[2:], strict=True
        )
    )
    b.origin = join_origins(inner, node)
    attrs = {**node.attrs, "padding": padding}
    return b.emit("conv", inner.inputs[0], operands[1], **attrs)


def _reduced(name: str) -> Example:
    def make(s: Sample) -> Value:
        x = s.tensor()
        return s.b.emit(name, s.b.reshape(x, (*x.type.shape, 1)), axes=(1,))

    return Example(make, ("float", "int"))


@rule(
    "exact",
    ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod"),
    *(_reduced(name) for name in ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod")),
)
def reduce_of_one(b: Builder, node: Node, operands: Operands) -> Value | None:
    """A reduction over dims of 1 only -> reshape; over no axes -> x; of a float sum + 0."""
    (x,) = operands
    if any(x.type.shape[axis] != 1 for axis in node.attrs["axes"]):
        return None
    found = b.reshape(x, node.output.type.shape)
    if node.op != "reduce_sum" or not x.dtype.is_float or is_nonnegative(x):
        return found
    return b.emit("add", found, b.full(0.0, found.type))


RULES: tuple[Rule, ...] = (
    merge_reshape, reshape_of_broadcast, merge_transpose, transpose_of_merge, merge_broadcast,
    broadcast_unsqueezed, merge_slice, slice_of_pad, gather_to_slice, drop_cast, merge_pad,
    reduce_of_one,
)  # fmt: skip
