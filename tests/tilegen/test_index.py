"""Index expressions: simplifying changes no value, and the facts claimed of them hold."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping

import pytest

from fuser.graph.dims import symbol
from fuser.graph.sizes import Sizes
from fuser.tilegen.index import (
    Axis,
    Extreme,
    FloorDiv,
    Index,
    Lookup,
    Mod,
    Scalar,
    axis,
    index,
    maximum,
    minimum,
    show,
)
from fuser.tilegen.value import INDEX, TileType, Value

Leaves = Mapping[object, int]


def value_of(expression: Index, leaves: Leaves) -> int:
    """The expression as written: the definition that simplified ones are compared with."""
    total = expression.constant
    for atom, coefficient in expression.terms:
        match atom:
            case Axis():
                part = leaves[atom.axis]
            case Scalar() | Lookup():
                part = leaves[atom.value]
            case FloorDiv():
                part = value_of(atom.base, leaves) // atom.divisor
            case Mod():
                part = value_of(atom.base, leaves) % atom.divisor
            case Extreme():
                pick = min if atom.fn == "min" else max
                part = pick(value_of(item, leaves) for item in atom.items)
        total += part * coefficient
    return total


class Grower:
    """Grows a random expression and, beside it, a function that computes the same without it."""

    def __init__(self, random: random.Random) -> None:
        self.random = random
        self.extents = [random.choice((1, 2, 3, 8, 16)) for _ in range(2)]
        self.scalars = []
        for number in range(2):
            by = random.choice((1, 1, 4, 16))
            low = by * random.choice((0, 0, -2))
            scalar = Value(TileType(INDEX), f"s{number}", low, low + by * random.choice((1, 5)), by)
            self.scalars.append(scalar)

    def places(self) -> list[dict[object, int]]:
        ranges: list[range] = [range(extent) for extent in self.extents]
        ranges += [range(v.low, v.high + 1, v.multiple) for v in self.scalars]
        keys: list[object] = [0, 1, *self.scalars]
        every = [dict(zip(keys, point, strict=True)) for point in itertools.product(*ranges)]
        return self.random.sample(every, min(len(every), 60))

    def grow(self, depth: int) -> tuple[Index, Callable[[Leaves], int]]:
        pick = self.random.randrange(7 if depth else 3)
        if pick == 0:
            number = self.random.randrange(2)
            return axis(number, self.extents[number]), lambda at: at[number]
        if pick == 1:
            scalar = self.random.choice(self.scalars)
            return index(scalar), lambda at: at[scalar]
        if pick == 2:
            constant = self.random.randint(-20, 200)
            return index(constant), lambda at: constant
        a, f = self.grow(depth - 1)
        if pick == 3:
            factor = self.random.choice((-3, -1, 2, 4, 6, 16))
            return a * factor, lambda at: f(at) * factor
        divisor = self.random.choice((1, 2, 3, 4, 6, 8, 16, 24))
        if pick == 4:
            return a // divisor, lambda at: f(at) // divisor
        if pick == 5:
            return a % divisor, lambda at: f(at) % divisor
        b, g = self.grow(depth - 1)
        kind = self.random.randrange(5)
        if kind == 0:
            return minimum(a, b), lambda at: min(f(at), g(at))
        if kind == 1:
            return maximum(a, b), lambda at: max(f(at), g(at))
        if kind == 2:
            return a - b, lambda at: f(at) - g(at)
        return a + b, lambda at: f(at) + g(at)


@pytest.mark.parametrize("seed", range(400))
def test_simplifying_keeps_the_value_and_facts_hold(seed: int) -> None:
    grower = Grower(random.Random(seed))
    expression, meaning = grower.grow(5)
    low, high = expression.range
    rebuilt = expression.replace(lambda atom: None)
    for place in grower.places():
        expected = meaning(place)
        text = f"{show(expression)} at {place}"
        assert value_of(expression, place) == expected, text
        assert value_of(rebuilt, place) == expected, text
        assert low <= expected <= high, text
        assert expected % expression.multiple == 0 if expression.multiple else expected == 0, text


def flat(extent: int = 1 << 20) -> Index:
    return index(Value(TileType(INDEX), "f", 0, extent - 1))


def test_split_and_merged_dims_cancel() -> None:
    f = flat()
    assert (f // 6) * 6 + f % 6 == f
    assert (f // 24) * 24 + f // 6 % 4 * 6 + f % 6 == f
    assert (f % 24) // 6 == f // 6 % 4


def test_a_block_inside_a_dim_leaves_the_division() -> None:
    block = index(Value(TileType(INDEX), "pid", 0, 99))
    linear = block * 128 + axis(0, 128)
    assert linear // 768 == block // 6
    assert linear % 768 == (block % 6) * 128 + axis(0, 128)
    assert (linear // 768) * 768 + linear % 768 == linear


def test_a_loop_variable_that_steps_by_the_block_divides_alone() -> None:
    k = index(Value(TileType(INDEX), "k", 0, 992, 32))
    assert (k + axis(0, 32)) // 64 == k // 64
    assert (k + axis(0, 32)) % 64 == k % 64 + axis(0, 32)


def test_ranges_decide_division_and_extremes() -> None:
    a = axis(0, 8)
    assert a // 8 == Index(0)
    assert (a + 8) % 8 == a
    assert minimum(a, 8) == a
    assert maximum(a, -1) == a
    assert minimum(a, 100, 7 + a) != Index(7)


@pytest.mark.parametrize("extreme", [maximum, minimum])
def test_one_of_equal_constants_is_kept(extreme: Callable[..., Index]) -> None:
    """A number of the launch is as large as a constant for all sizes that its guards allow."""
    rows = symbol("rows")
    with Sizes({"rows": 999}):
        assert rows <= 1023
        for items in ((rows // 1024, 0), (0, rows // 1024)):
            got = extreme(*items)
            assert got.is_constant and int(got.constant) == 0


def test_split_separates_axes() -> None:
    row, column = flat() * 64 + axis(0, 4) * 8, axis(1, 8)
    inside, outside = (row + column + 5).split((1,))
    assert inside == column
    assert outside == row + 5


def test_text() -> None:
    f = flat()
    assert show(f * 32 + axis(0, 8) * -1 - 3) == "%f*32 - #0 - 3"
    assert show((f // 6) * -2 + f % 7) == "-(%f // 6)*2 + %f % 7"
    assert show(index(0)) == "0"
    assert show(((f + axis(0, 3)) // 7) % 5) == "((%f + #0) // 7) % 5"
