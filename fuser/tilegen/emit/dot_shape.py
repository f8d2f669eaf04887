"""The axes of a dot_general by role: batch, rows m, columns n, and the sum over k."""

from __future__ import annotations

from dataclasses import dataclass

from fuser.graph.ir import Node, Value
from fuser.tilegen.emit.maps import Coords, delinearise, product
from fuser.tilegen.index import Index


@dataclass(frozen=True)
class DotShape:
    """The axes of a dot_general by role, as pairs of axes of (left, right).

    left gives the rows m and right the columns n; they are the lhs and the rhs of the node, or the
    other way round if it is `flipped`.
    """

    node: Node
    flipped: bool
    batch: tuple[tuple[int, ...], tuple[int, ...]]
    contract: tuple[tuple[int, ...], tuple[int, ...]]
    free: tuple[tuple[int, ...], tuple[int, ...]]

    @property
    def left(self) -> Value:
        return self.node.inputs[1 if self.flipped else 0]

    @property
    def right(self) -> Value:
        return self.node.inputs[0 if self.flipped else 1]

    def dims(self, side: int, axes: tuple[int, ...]) -> list[int]:
        value = self.right if side else self.left
        return [value.shape[a] for a in axes]

    @property
    def b(self) -> int:
        return product(self.dims(0, self.batch[0]))

    @property
    def m(self) -> int:
        return product(self.dims(0, self.free[0]))

    @property
    def n(self) -> int:
        return product(self.dims(1, self.free[1]))

    @property
    def k(self) -> int:
        return product(self.dims(0, self.contract[0]))

    def coords(self, side: int, batch: Index, free: Index, k: Index) -> Coords:
        """Coordinates of an operand (0 left, 1 right)."""
        result = [Index(0)] * (self.right if side else self.left).type.rank
        roles = ((self.batch[side], batch), (self.free[side], free), (self.contract[side], k))
        for axes, at in roles:
            for axis, item in zip(axes, delinearise(at, self.dims(side, axes)), strict=True):
                result[axis] = item
        return tuple(result)

    def result_coords(self, batch: Index, m: Index, n: Index) -> Coords:
        rows = delinearise(m, self.dims(0, self.free[0]))
        columns = delinearise(n, self.dims(1, self.free[1]))
        free = (*columns, *rows) if self.flipped else (*rows, *columns)
        return (*delinearise(batch, self.dims(0, self.batch[0])), *free)


def dot_shape(node: Node, flipped: bool = False) -> DotShape:
    attrs = node.attrs
    batch = (tuple(attrs["lhs_batch"]), tuple(attrs["rhs_batch"]))
    contract = (tuple(attrs["lhs_contract"]), tuple(attrs["rhs_contract"]))
    lhs, rhs = (
        tuple(a for a in range(value.type.rank) if a not in batch[i] and a not in contract[i])
        for i, value in enumerate(node.inputs)
    )
    if flipped:
        return DotShape(node, True, batch[::-1], contract[::-1], (rhs, lhs))
    return DotShape(node, False, batch, contract, (lhs, rhs))
