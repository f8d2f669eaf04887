"""Buffers, and the view through which a graph value is reached at given coordinates.

Coordinates are simplified by merging neighbouring dims of the view where that cancels divisions:
the rows m // S, m % S of a [B, S, K] array are row m of a [B * S, K] view. A merge is done only
where bounds keep their meaning, so an element out of bounds stays out of bounds.
"""

from __future__ import annotations

from fuser.dtypes import DType
from fuser.graph.ir import Value
from fuser.graph.sizes import certain, same
from fuser.partition.region import Partition
from fuser.tilegen.builder import Builder
from fuser.tilegen.emit.maps import Coords, Guard, complexity, product
from fuser.tilegen.index import Axis, FloorDiv, Index, in_range
from fuser.tilegen.ir import Buffer, View
from fuser.tilegen.program import Argument, Packing, Part


class Memory:
    """The buffers of one kernel; a value has one buffer per packing and dtype."""

    def __init__(self, builder: Builder, partition: Partition, outputs: tuple[Value, ...]) -> None:
        self.builder = builder
        self.partition = partition
        self.outputs = outputs
        self.arguments: list[Argument] = []
        self._buffers: dict[tuple[Value, Packing | None, DType | None], Buffer] = {}
        self._panels: dict[int, Buffer] = {}

    def buffer(
        self, value: Value, packing: Packing | None = None, size: int | None = None,
        copy: DType | None = None,
    ) -> Buffer:  # fmt: skip
        """The buffer of a value; a packed constant has `size` elements. copy: of its copy in that
        dtype (Partition.copies)."""
        key = (value, packing, copy)
        if key not in self._buffers:
            if value in self.outputs:
                role, prefix = "output", "out"
            elif value.constant is not None:
                role, prefix = "constant", "const"
            else:
                role, prefix = "input", "in"
            dtype = copy or (packing.stored if packing else None) or value.dtype
            name = f"{prefix}{sum(b.name.startswith(prefix) for b in self.builder.kernel.buffers)}"
            count = product(self.partition.extents(value)) if size is None else size
            buffer = self.builder.buffer(name, dtype, count, role)  # type: ignore[arg-type]
            self._buffers[key] = buffer
            part = None
            if role == "output" and (room := self.partition.rooms.get(value)) is not None:
                part = Part(room.capacity, value.shape[room.axis], value.type.size)
            self.arguments.append(Argument(buffer, value, packing, part=part))
        return self._buffers[key]

    def workspace(self, dtype: DType, size: int, number: int, zeroed: bool = False) -> Buffer:
        """A buffer that lives between the programs of one region."""
        buffer = self.builder.buffer(f"work{number}", dtype, size, "workspace")
        self.arguments.append(Argument(buffer, None, workspace=number, zeroed=zeroed))
        return buffer

    def panels(self, dtype: DType, size: int, number: int) -> Buffer:
        """The workspace of a right operand that a program of its own packs."""
        if number not in self._panels:
            self._panels[number] = self.workspace(dtype, size, number)
        return self._panels[number]

    def access(
        self, value: Value, coords: Coords, guards: tuple[Guard, ...] = (),
        dtype: DType | None = None,
    ) -> tuple[View, tuple[Index, ...]]:  # fmt: skip
        """The view of a value and the indices into it for `coords`, checked by `guards` too.

        dtype: what it is wanted in; its copy is taken if that has this dtype, or if there is
        nothing else.
        """
        shape, strides, indices = simplify(value.shape, self.partition.strides(value), coords)
        copy = self.partition.copies.get(value)
        if copy is not dtype and value not in self.partition.narrow:
            copy = None
        offset = self.partition.offset(value)
        settled = self._settled(value, shape, strides)
        return self.guarded(
            self.buffer(value, copy=copy), shape, strides, indices, guards, offset, settled
        )

    def _settled(
        self, value: Value, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> tuple[int, int] | None:
        """What is settled of a value, in a view of other dims, if one of them is the axis."""
        settled = self.partition.settled(value)
        if settled is None:
            return None
        axis, count = settled
        extent, stride = value.shape[axis], self.partition.strides(value)[axis]
        for dim, (size, step) in enumerate(zip(shape, strides, strict=True)):
            if same(step, stride) and same(size, extent):
                return dim, count
        return None

    def guarded(
        self,
        buffer: Buffer,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        indices: tuple[Index, ...],
        guards: tuple[Guard, ...],
        offset: int = 0,
        settled: tuple[int, int] | None = None,
    ) -> tuple[View, tuple[Index, ...]]:
        """A view with one more dim, of stride 0, for each guard that its bounds do not imply."""
        for expression, limit in guards:
            if not implied(expression, limit, shape, indices):
                shape, strides, indices = (*shape, limit), (*strides, 0), (*indices, expression)
        return self.builder.view(buffer, shape, strides, offset, settled), indices


def implied(
    expression: Index, limit: int, shape: tuple[int, ...], indices: tuple[Index, ...]
) -> bool:
    """Whether indices within `shape` (or known ranges) imply 0 <= expression < limit."""
    if in_range(expression, limit):
        return True
    for at, dim in zip(indices, shape, strict=True):
        if at == expression and certain(limit - dim):
            return True
        if len(at.terms) == 1 and at.constant == 0 and at.terms[0][1] == 1:
            atom = at.terms[0][0]
            if isinstance(atom, FloorDiv) and atom.base == expression:
                if certain(limit - dim * atom.divisor):
                    return True
    return False


def simplify(
    shape: tuple[int, ...], strides: tuple[int, ...], coords: Coords
) -> tuple[tuple[int, ...], tuple[int, ...], Coords]:
    """Drop dims of 1, and merge neighbours (in memory order) where that removes divisions or where
    the outer one is the same for the whole tile."""
    dims = [
        (dim, stride, at)
        for dim, stride, at in zip(shape, strides, coords, strict=True)
        if dim != 1 or at != Index(0)
    ]
    dims.sort(key=lambda item: -item[1])
    changed = True
    while changed:
        changed = False
        for i in range(len(dims) - 1):
            (outer, outer_stride, a), (inner, inner_stride, b) = dims[i], dims[i + 1]
            if not same(outer_stride, inner_stride * inner) or not in_range(b, inner):
                continue
            merged = a * inner + b
            before, after = complexity(a) + complexity(b), complexity(merged)
            if after < before or (after == before and not a.axes()):
                dims[i : i + 2] = [(outer * inner, inner_stride, merged)]
                changed = True
                break
    if not dims:
        return (1,), (1,), (Index(0),)
    return tuple(d[0] for d in dims), tuple(d[1] for d in dims), tuple(d[2] for d in dims)


def address(view: View, indices: tuple[Index, ...]) -> Index:
    """The linear address of an access, in elements."""
    total = Index(view.offset)
    for at, stride in zip(indices, view.strides, strict=True):
        total = total + at * stride
    return total


def linear_in(expression: Index, axis: int) -> int | None:
    """The coefficient of a tile axis, or None if the expression is not linear in it."""
    found = 0
    for atom, coefficient in expression.terms:
        if isinstance(atom, Axis) and atom.axis == axis:
            found = coefficient
        elif axis in Index(0, ((atom, 1),)).axes():
            return None
    return found


__all__ = ["Memory", "address", "implied", "linear_in", "product", "simplify"]
