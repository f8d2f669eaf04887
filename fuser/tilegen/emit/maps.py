"""Index maps of the movement primitives: coordinates of an operand from those of the result, and
the other way. Pure functions of shapes and attributes.

Coordinates are a tuple of Index, one a dim. They may run past a dim, where a block hangs over the
end of a tensor: the outermost coordinate of a split keeps the excess, so that bounds still show
it. Merging dims hides it, hence whoever stores says besides what bounds the frame. Where a map
leaves elements out (a slice forward), it returns a `Guard` for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fuser.graph.ir import Node
from fuser.graph.sizes import same
from fuser.tilegen.index import FloorDiv, Index, Mod, in_range, index

Coords = tuple[Index, ...]
Guard = tuple[Index, int]
"""(expression, limit): the element exists only where 0 <= expression < limit."""


def product(dims: Sequence[int]) -> int:
    count = 1
    for dim in dims:
        count *= dim
    return count


def linearise(coords: Sequence[Index], shape: Sequence[int]) -> Index:
    """The row-major position of `coords` in `shape`."""
    flat = Index(0)
    for coordinate, dim in zip(coords, shape, strict=True):
        flat = flat * dim + coordinate
    return flat


def delinearise(flat: Index, shape: Sequence[int]) -> Coords:
    """Coordinates of row-major position `flat`; the outermost dim but 1s keeps the excess, or the
    last dim where all are 1."""
    coords = [Index(0)] * len(shape)
    wide = [axis for axis, dim in enumerate(shape) if not same(dim, 1)]
    if not wide and shape:
        coords[-1] = flat
    for axis in reversed(wide):
        if axis == wide[0]:
            coords[axis] = flat
        else:
            coords[axis] = flat % shape[axis]
            flat = flat // shape[axis]
    return tuple(coords)


def regroup(coords: Coords, source: Sequence[int], target: Sequence[int]) -> Coords:
    """Coordinates in `target` of the element at `coords` of `source`, a reshape of it.

    Dims are matched in groups of equal product, so that a split never mixes with its neighbours.
    """
    result = [Index(0)] * len(target)
    for left, right in _groups(source, target):
        if len(left) == 1 and len(right) == 1:
            result[right[0]] = coords[left[0]]
            continue
        flat = linearise([coords[a] for a in left], [source[a] for a in left])
        for axis, item in zip(right, delinearise(flat, [target[a] for a in right]), strict=True):
            result[axis] = item
    return tuple(result)


def _groups(source: Sequence[int], target: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Runs of axes (dims of 1 left out) of both shapes with equal products."""
    lefts = [axis for axis, dim in enumerate(source) if dim != 1]
    rights = [axis for axis, dim in enumerate(target) if dim != 1]
    while lefts and rights:
        left, right = [lefts.pop(0)], [rights.pop(0)]
        a, b = source[left[0]], target[right[0]]
        while a != b:
            if a < b:
                left.append(lefts.pop(0))
                a *= source[left[-1]]
            else:
                right.append(rights.pop(0))
                b *= target[right[-1]]
        yield left, right


def backward(node: Node, coords: Coords) -> Coords | None:
    """Coordinates of the one operand of a movement node; None where it has several or padding."""
    (x, *_), attrs = node.inputs, node.attrs
    match node.op:
        case "reshape":
            return regroup(coords, node.output.shape, x.shape)
        case "transpose":
            result = [Index(0)] * len(coords)
            for axis, source in enumerate(attrs["perm"]):
                result[source] = coords[axis]
            return tuple(result)
        case "broadcast":
            pairs = zip(attrs["axes"], x.shape, strict=True)
            return tuple(Index(0) if dim == 1 else coords[axis] for axis, dim in pairs)
        case "slice":
            return tuple(
                coordinate * stride + start
                for coordinate, start, stride in zip(
                    coords, attrs["starts"], attrs["strides"], strict=True
                )
            )
        case "pad" if max((*attrs["low"], *attrs["high"], 0)) <= 0:
            return tuple(c - low for c, low in zip(coords, attrs["low"], strict=True))
        case _:
            return None


def forward(node: Node, coords: Coords) -> tuple[Coords, list[Guard]] | None:
    """Coordinates in the result of a movement node of the operand's element at `coords`.

    None where the element has no single place there (a real broadcast, a padded border).
    """
    x, attrs = node.inputs[0], node.attrs
    shape = node.output.shape
    match node.op:
        case "reshape":
            return regroup(coords, x.shape, shape), []
        case "transpose":
            return tuple(coords[axis] for axis in attrs["perm"]), []
        case "broadcast" if product(shape) == product(x.shape):
            result = [Index(0)] * len(shape)
            for axis, coordinate in zip(attrs["axes"], coords, strict=True):
                result[axis] = coordinate
            return tuple(result), []
        case "slice" if all(
            abs(s) == 1 or d == 1 for s, d in zip(attrs["strides"], shape, strict=True)
        ):
            result = []
            guards: list[Guard] = []
            for at, start, stride, dim in zip(
                coords, attrs["starts"], attrs["strides"], shape, strict=True
            ):
                moved = at - start if stride > 0 else index(start) - at
                result.append(moved)
                if not in_range(moved, dim):
                    guards.append((moved, dim))
            return tuple(result), guards
        case "pad" if max((*attrs["low"], *attrs["high"], 0)) <= 0:
            result = [c + low for c, low in zip(coords, attrs["low"], strict=True)]
            pairs = zip(result, shape, strict=True)
            return tuple(result), [(c, dim) for c, dim in pairs if not in_range(c, dim)]
        case _:
            return None


def complexity(expression: Index) -> int:
    """How many divisions, remainders and extremes an expression computes."""
    count = 0
    for atom, _ in expression.terms:
        if isinstance(atom, FloorDiv | Mod):
            count += 1 + complexity(atom.base)
        elif hasattr(atom, "items"):
            count += 1 + sum(complexity(item) for item in atom.items)
    return count


MOVEMENT = frozenset(("reshape", "transpose", "broadcast", "slice", "pad", "concat"))
