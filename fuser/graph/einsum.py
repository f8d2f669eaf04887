"""Einstein sums as dot_generals, shared by the front ends."""

from __future__ import annotations

from collections.abc import Sequence

from fuser.errors import ShapeError
from fuser.graph.builder import Builder
from fuser.graph.ir import Value


def einsum(b: Builder, equation: str, values: Sequence[Value]) -> Value:
    """numpy.einsum of operands of one dtype, contracted from the left. Raises ShapeError."""
    equation = equation.replace(" ", "")
    if "..." in equation:
        equation = _spell_ellipsis(equation, values)
    terms, arrow, result = equation.partition("->")
    labels = terms.split(",")
    if not arrow:
        letters = sorted(set(terms) - {","})
        result = "".join(letter for letter in letters if terms.count(letter) == 1)
    if (
        len(labels) != len(values)
        or any(len(label) != v.type.rank for label, v in zip(labels, values, strict=False))
        or len(set(result)) != len(result)
        or set(result) - set(terms)
    ):
        shapes = ", ".join(str(value.type) for value in values)
        raise ShapeError(f"the equation {equation!r} does not fit {shapes}")
    pairs = [_diagonals(b, *pair) for pair in zip(labels, values, strict=True)]
    label, value = pairs[0]
    for index, (other, operand) in enumerate(pairs[1:], 1):
        later = "".join(later_label for later_label, _ in pairs[index + 1 :]) + result
        label, value = _contract(b, label, value, other, operand, later)
    label, value = _sum_missing(b, label, value, result)
    return b.transpose(value, [label.index(letter) for letter in result])


def _diagonals(b: Builder, label: str, value: Value) -> tuple[str, Value]:
    """A letter that repeats in one operand is its diagonal: every (n + 1)-th of n * n elements."""
    for letter in dict.fromkeys(label):
        while label.count(letter) > 1:
            first, second = label.index(letter), label.rindex(letter)
            rest = [axis for axis in range(len(label)) if axis not in (first, second)]
            value = b.transpose(value, [*rest, first, second])
            *outer, n, m = value.shape
            if n != m:
                raise ShapeError(f"the axes {letter!r} of {value.type} differ")
            flat = b.reshape(value, (*outer, n * n))
            value = b.slice_axis(flat, len(outer), 0, (n - 1) * (n + 1) + 1 if n else 0, n + 1)
            label = "".join(label[axis] for axis in rest) + letter
    return label, value


def _spell_ellipsis(equation: str, values: Sequence[Value]) -> str:
    """The equation with each ellipsis spelt as unused letters, aligned at the end."""
    terms, arrow, result = equation.partition("->")
    labels = terms.split(",")
    ranks = [
        value.type.rank - len(label) + 3 if "..." in label else 0
        for label, value in zip(labels, values, strict=False)
    ]
    unused = [c for c in map(chr, range(ord("A"), ord("Z") + 1)) if c not in equation]
    letters = "".join(unused[: max(ranks, default=0)])
    labels = [
        label.replace("...", letters[len(letters) - rank :] if rank else "")
        for label, rank in zip(labels, ranks, strict=False)
    ]
    if not arrow:
        single = sorted(c for c in set(terms) - set(".,") if terms.count(c) == 1)
        return ",".join(labels) + "->" + letters + "".join(single)
    return ",".join(labels) + "->" + result.replace("...", letters)


def _sum_missing(b: Builder, label: str, value: Value, keep: str) -> tuple[str, Value]:
    axes = [axis for axis, letter in enumerate(label) if letter not in keep]
    kept = "".join(letter for letter in label if letter in keep)
    return kept, b.reduce("reduce_sum", value, axes)


def _contract(
    b: Builder, left: str, lhs: Value, right: str, rhs: Value, later: str
) -> tuple[str, Value]:
    """One dot_general of two operands; letters that `later` does not need are summed."""
    left, lhs = _sum_missing(b, left, lhs, right + later)
    right, rhs = _sum_missing(b, right, rhs, left + later)
    shared = [letter for letter in left if letter in right]
    batch = [letter for letter in shared if letter in later]
    contract = [letter for letter in shared if letter not in later]
    free = [c for c in left if c not in shared] + [c for c in right if c not in shared]
    label = "".join(batch + free)
    value = b.dot(
        lhs,
        rhs,
        ([left.index(c) for c in contract], [right.index(c) for c in contract]),
        ([left.index(c) for c in batch], [right.index(c) for c in batch]),
    )
    return label, value
