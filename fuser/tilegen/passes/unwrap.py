"""Let coordinates that wrap around run out of bounds, where nobody stores what lies behind.

    view &a: a[inf] strides(1)                        view &a: a[`M`] strides(`stride`)
    %x = load &a, [(e % `M`)*`stride`]          =>    %x = load &a, [e] {pad = 0.0}
    store &c, [e], %y                                 store &c, [e], %y       (c has `M` rows)

`e % M` is how kernels avoid a mask: rows beyond M repeat others, and what is computed of them is
dropped at the store. If every element made of such a row is stored at row e of M rows, or not at
all, a bound serves as well, and the load is affine: copy engines can fetch it.
"""

from __future__ import annotations

from dataclasses import dataclass

from fuser.graph.sizes import certain, same
from fuser.tilegen import ops
from fuser.tilegen.index import Atom, Axis, Index, Mod
from fuser.tilegen.ir import Block, Kernel, Op, View
from fuser.tilegen.value import UNBOUNDED, Value


@dataclass(frozen=True)
class Wrap:
    """A term of a load's index: `factor * (base % count)`, where base runs along one tile axis."""

    dim: int
    atom: Mod
    factor: int
    axis: int


def unwrap_coordinates(kernel: Kernel) -> None:
    uses: Uses | None = None
    for op in list(kernel.walk()):
        while isinstance(op, ops.Load):
            wraps = list(_wraps(op))
            if not wraps:
                break
            uses = uses or Uses(kernel)
            wrap = next((w for w in wraps if uses.dropped(op.result, w)), None)
            if wrap is None:
                break
            _bound(kernel, op, wrap)


def _wraps(op: ops.Load) -> list[Wrap]:
    found = []
    for dim, (at, extent) in enumerate(zip(op.indices, op.view.shape, strict=True)):
        for atom, factor in at.terms:
            if not isinstance(atom, Mod) or not certain(atom.base.range[0]):
                continue
            own = same(extent, atom.divisor) and same(at.constant, 0) and len(at.terms) == 1
            if not same(extent, UNBOUNDED) and not (own and same(factor, 1)):
                continue
            axes = atom.base.axes()
            plain = [a for a, _ in atom.base.terms if a_depends(a)]
            if len(axes) == 1 and all(isinstance(a, Axis) for a in plain):
                found.append(Wrap(dim, atom, factor, next(iter(axes))))
    return found


def a_depends(atom: Atom) -> bool:
    """Whether an atom differs within the tile."""
    return bool(Index(0, ((atom, 1),)).axes())


def _bound(kernel: Kernel, op: ops.Load, wrap: Wrap) -> None:
    """Give the load a dim of its own for the coordinate that wrapped."""
    view = op.view
    if not same(view.shape[wrap.dim], UNBOUNDED):
        op.indices = (*op.indices[: wrap.dim], wrap.atom.base, *op.indices[wrap.dim + 1 :])
        op.pad = 0 if op.pad is None else op.pad
        return
    rest = op.indices[wrap.dim] - Index(0, ((wrap.atom, wrap.factor),))
    shape, strides, indices = list(view.shape), list(view.strides), list(op.indices)
    stride, offset = strides[wrap.dim], view.offset
    if rest.is_constant and certain(rest.constant):
        offset = offset + rest.constant * stride
        del shape[wrap.dim], strides[wrap.dim], indices[wrap.dim]
    else:
        indices[wrap.dim] = rest
    shape.insert(0, wrap.atom.divisor)
    strides.insert(0, wrap.factor * stride)
    indices.insert(0, wrap.atom.base)
    made = View(
        f"{view.name}_{len(kernel.views)}", view.buffer, tuple(shape), tuple(strides), offset
    )
    kernel.views.append(made)
    op.view, op.indices = made, tuple(indices)
    op.pad = 0 if op.pad is None else op.pad


class Uses:
    """Where values go, to follow one coordinate of a tile to the stores."""

    def __init__(self, kernel: Kernel) -> None:
        self.users: dict[Value, list[Op]] = {}
        self.owners: dict[Op, Op] = {}
        self._survey(kernel.body, None)

    def _survey(self, block: Block, owner: Op | None) -> None:
        for op in block.ops:
            if owner is not None:
                self.owners[op] = owner
            for value in op.operands():
                self.users.setdefault(value, []).append(op)
            for inner in op.blocks():
                self._survey(inner, op)

    def dropped(self, value: Value, wrap: Wrap) -> bool:
        """Whether no element at base >= count is stored, of any value made of this one."""
        seen = {(value, wrap.axis)}
        waiting = [(value, wrap.axis)]
        while waiting:
            current, axis = waiting.pop()
            for op in self.users.get(current, ()):
                found = self._next(op, current, axis, wrap)
                if found is None:
                    return False
                for item in found:
                    if item not in seen:
                        seen.add(item)
                        waiting.append(item)
        return True

    def _next(self, op: Op, value: Value, axis: int, wrap: Wrap) -> list[tuple[Value, int]] | None:
        """Where an op carries the coordinate; None where it mixes it with others."""
        match op:
            case ops.Map() | ops.Cast() | ops.Bitcast():
                return [(op.result, axis)]
            case ops.Broadcast() if op.x.shape[axis] == op.shape[op.axes[axis]]:
                return [(op.result, op.axes[axis])]
            case ops.Permute():
                return [(op.result, op.axes.index(axis))]
            case ops.Reshape():
                place = _same_axis(op.x.shape, op.shape, axis)
                return None if place is None else [(op.result, place)]
            case ops.Reduce() if op.axis != axis:
                return [(op.result, axis - (op.axis < axis))]
            case ops.Scan() if op.axis != axis:
                return [(op.result, axis)]
            case ops.Dot():
                return self._through_dot(op, value, axis)
            case ops.Store():
                return [] if self._stored_inside(op, value, axis, wrap) else None
            case ops.For():
                if value in op.start.values() + op.stop.values():
                    return None
                return [
                    pair
                    for slot, init in enumerate(op.inits)
                    if init is value
                    for pair in ((op.body.params[1 + slot], axis), (op.results[slot], axis))
                ]
            case ops.Yield():
                owner = self.owners.get(op)
                if not isinstance(owner, ops.For | ops.If):
                    return None
                found = []
                for slot, arg in enumerate(op.args):
                    if arg is value:
                        found.append((owner.results[slot], axis))
                        if isinstance(owner, ops.For):
                            found.append((owner.body.params[1 + slot], axis))
                return found
        return None

    def _through_dot(self, op: ops.Dot, value: Value, axis: int) -> list[tuple[Value, int]] | None:
        found = []
        for operand, kept in ((op.a, (0,)), (op.b, (1,)), (op.acc, (0, 1))):
            if operand is value:
                if axis not in kept:
                    return None
                found.append((op.result, axis))
        return found

    def _stored_inside(self, op: ops.Store, value: Value, axis: int, wrap: Wrap) -> bool:
        read = [v for index in op.indices for v in index.values()]
        if value in read or value is op.mask:
            return False
        extent = value.shape[axis]
        at = _on_axis(wrap.atom.base, axis, extent)
        return any(
            index == at and same(size, wrap.atom.divisor)
            for index, size in zip(op.indices, op.view.shape, strict=True)
        )


def _on_axis(base: Index, axis: int, extent: int) -> Index:
    def leaf(atom: Atom) -> Index | None:
        return Index(0, ((Axis(axis, extent), 1),)) if isinstance(atom, Axis) else None

    return base.replace(leaf)


def _same_axis(old: tuple[int, ...], new: tuple[int, ...], axis: int) -> int | None:
    """Where an axis is after a reshape that only adds or drops axes of 1."""
    if [n for n in old if n != 1] != [n for n in new if n != 1]:
        return None
    number = sum(n != 1 for n in old[:axis])
    return [place for place, n in enumerate(new) if n != 1][number]
