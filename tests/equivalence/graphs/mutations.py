"""Changes of a graph that keep its meaning, in the primitives of the graph.

A mutation replaces what a value's readers see: it is given the value in the new graph and returns
another one that is equal to it. What it compares with or chooses by comes from inputs, so that the
compiler cannot know that nothing changes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import prod

import numpy as np

from fuser import dtypes
from fuser.graph.ir import Graph, Node, TensorType, Value
from fuser.graph.ops.registry import build
from tests.random_graphs.bounds import Array


class Unfit(Exception):
    """A mutation has nothing to do with a value."""


@dataclass
class Mutant:
    """A copy of a graph in the making. table: what stands for each value of the original."""

    graph: Graph
    feeds: dict[str, Array]
    random: random.Random
    table: dict[Value, Value] = field(default_factory=dict)
    values: dict[Value, Array] = field(default_factory=dict)
    """By value of the original, what it holds."""

    def feed(self, array: Array, name: str) -> Value:
        """An input, the same one for equal names."""
        for value in self.graph.inputs:
            if value.name == name:
                return value
        dtype = dtypes.from_numpy(array.dtype)
        self.feeds[name] = array
        return self.graph.add_input(name, TensorType(dtype, tuple(array.shape)))

    def number(self, number: float, like: Value, name: str) -> Value:
        """An opaque number in the shape of a value."""
        array = np.asarray(number).astype(like.dtype.numpy)
        scalar = self.feed(array, f"{name}_{like.dtype.name}")
        return self.spread(scalar, like)

    def spread(self, scalar: Value, like: Value) -> Value:
        if scalar.shape == like.shape:
            return scalar
        return build(self.graph, "broadcast", scalar, shape=like.shape, axes=())

    def axis(self, x: Value, least: int) -> tuple[int, int]:
        """An axis of at least so many elements, and its size. Raises Unfit."""
        fits = [axis for axis in range(x.type.rank) if int(x.shape[axis]) >= least]
        if not fits:
            raise Unfit
        axis = self.random.choice(fits)
        return axis, int(x.shape[axis])

    def is_finite(self, x: Value) -> bool:
        """Whether a value is known to be made of numbers."""
        for old, new in self.table.items():
            if new is x and old in self.values:
                return bool(np.isfinite(self.values[old].astype(np.float64)).all())
        return False

    def garbage(self, like: Value) -> Value:
        """What must not be chosen."""
        if like.dtype.is_float:
            return self.number(float("nan"), like, "garbage")
        return self.number(1 if like.dtype.kind == "bool" else 77, like, "garbage")


Change = Callable[[Mutant, Value], Value]


def _need(condition: object) -> None:
    if not condition:
        raise Unfit


def branch_on_data(m: Mutant, x: Value) -> Value:
    """A branch that an input decides."""
    taken = m.spread(m.feed(np.asarray(True), "taken"), x)
    return build(m.graph, "select", taken, x, m.garbage(x))


def branch_never_taken(m: Mutant, x: Value) -> Value:
    taken = m.spread(m.feed(np.asarray(False), "never"), x)
    return build(m.graph, "select", taken, m.garbage(x), x)


def branch_on_reduction(m: Mutant, x: Value) -> Value:
    """A branch on reduced data: the least number is not above the greatest. Of the value itself,
    where it is a number throughout."""
    _need(x.type.rank and prod(x.shape) and x.dtype.kind != "bool")
    _need(not x.dtype.is_float or m.is_finite(x))
    axes = tuple(range(x.type.rank)) if m.random.random() < 0.5 else (x.type.rank - 1,)
    least = build(m.graph, "reduce_min", x, axes=axes)
    most = build(m.graph, "reduce_max", x, axes=axes)
    fine = build(m.graph, "le", least, most)
    kept = tuple(axis for axis in range(x.type.rank) if axis not in axes)
    fine = build(m.graph, "broadcast", fine, shape=x.shape, axes=kept)
    return build(m.graph, "select", fine, x, m.garbage(x))


def doubled_mask(m: Mutant, x: Value) -> Value:
    """Two masks of positions, one within the other."""
    mask = m.feed(np.ones(x.shape, bool), "mask" + "_".join(map(str, x.shape)))
    once = build(m.graph, "select", mask, x, m.garbage(x))
    return build(m.graph, "select", mask, once, m.garbage(x))


def one_of_two(m: Mutant, x: Value) -> Value:
    """A value or itself."""
    mask = np.random.default_rng(m.random.getrandbits(32)).random(x.shape) < 0.5
    either = m.feed(mask, f"either{len(m.graph.inputs)}")
    return build(m.graph, "select", either, x, x)


def turned_twice(m: Mutant, x: Value) -> Value:
    _need(x.type.rank > 1)
    perm = m.random.sample(range(x.type.rank), x.type.rank)
    back = [perm.index(axis) for axis in range(x.type.rank)]
    turned = build(m.graph, "transpose", x, perm=tuple(perm))
    return build(m.graph, "transpose", turned, perm=tuple(back))


def flattened(m: Mutant, x: Value) -> Value:
    flat = build(m.graph, "reshape", x, shape=(prod(x.shape),))
    return build(m.graph, "reshape", flat, shape=x.shape)


def cut_and_joined(m: Mutant, x: Value) -> Value:
    axis, size = m.axis(x, 2)
    at = m.random.randint(1, size - 1)
    ends = [0] * x.type.rank
    limits, ones = list(x.shape), (1,) * x.type.rank
    first = build(m.graph, "slice", x, starts=tuple(ends),
                  limits=(*limits[:axis], at, *limits[axis + 1 :]), strides=ones)  # fmt: skip
    second = build(m.graph, "slice", x, starts=(*ends[:axis], at, *ends[axis + 1 :]),
                   limits=tuple(limits), strides=ones)  # fmt: skip
    return build(m.graph, "concat", first, second, axis=axis)


def reversed_twice(m: Mutant, x: Value) -> Value:
    axis, size = m.axis(x, 1)
    for _ in range(2):
        starts, limits, strides = [0] * x.type.rank, list(x.shape), [1] * x.type.rank
        starts[axis], limits[axis], strides[axis] = size - 1, -1, -1
        x = build(m.graph, "slice", x, starts=tuple(starts), limits=tuple(limits),
                  strides=tuple(strides))  # fmt: skip
    return x


def padded_and_cut(m: Mutant, x: Value) -> Value:
    axis, _ = m.axis(x, 1)
    low, high = [0] * x.type.rank, [0] * x.type.rank
    low[axis], high[axis] = m.random.randint(0, 2), m.random.randint(1, 2)
    wide = build(m.graph, "pad", x, low=tuple(low), high=tuple(high), value=1)
    return build(m.graph, "pad", wide, low=tuple(-n for n in low), high=tuple(-n for n in high),
                 value=0)  # fmt: skip


def gathered(m: Mutant, x: Value) -> Value:
    """By indices from an input, which are those that are there."""
    axis, size = m.axis(x, 1)
    indices = np.arange(size)
    if m.random.random() < 0.5:
        indices = indices - size * (indices % 2)
    name = f"places{len(m.graph.inputs)}"
    return build(m.graph, "gather", x, m.feed(indices, name), axis=axis)


def stacked(m: Mutant, x: Value) -> Value:
    """One of two equal slices."""
    wide = build(
        m.graph, "broadcast", x, shape=(2, *x.shape), axes=tuple(range(1, x.type.rank + 1))
    )
    ones = (1,) * (x.type.rank + 1)
    part = build(m.graph, "slice", wide, starts=(1, *[0] * x.type.rank), limits=(2, *x.shape),
                 strides=ones)  # fmt: skip
    return build(m.graph, "reshape", part, shape=x.shape)


def times_one(m: Mutant, x: Value) -> Value:
    _need(x.dtype.kind != "bool")
    return build(m.graph, "mul", x, m.number(1, x, "one"))


def over_one(m: Mutant, x: Value) -> Value:
    _need(x.dtype.is_float)
    return build(m.graph, "div", x, m.number(1, x, "one"))


def minus_zero(m: Mutant, x: Value) -> Value:
    """x - 0 is x, for every x."""
    _need(x.dtype.kind != "bool")
    return build(m.graph, "sub", x, m.number(0, x, "zero"))


def negated_twice(m: Mutant, x: Value) -> Value:
    _need(x.dtype.kind not in ("bool", "uint"))
    return build(m.graph, "neg", build(m.graph, "neg", x))


def at_least_the_least(m: Mutant, x: Value) -> Value:
    _need(x.dtype.kind != "bool")
    least = -np.inf if x.dtype.is_float else int(x.dtype.lowest)
    return build(m.graph, "max", x, m.number(least, x, "least"))


def widened(m: Mutant, x: Value) -> Value:
    """To a wider type and back."""
    wide = {"f32": dtypes.f64, "i32": dtypes.i64, "i8": dtypes.i32, "u8": dtypes.i32,
            "i16": dtypes.i32, "bool": dtypes.i32}.get(x.dtype.name)  # fmt: skip
    _need(wide)
    return build(m.graph, "cast", build(m.graph, "cast", x, dtype=wide), dtype=x.dtype)


def with_false(m: Mutant, x: Value) -> Value:
    _need(x.dtype.kind == "bool")
    return build(m.graph, "logical_xor", x, m.number(0, x, "false"))


def by_its_bits(m: Mutant, x: Value) -> Value:
    _need(x.dtype in (dtypes.f32, dtypes.f64))
    return build(m.graph, "bits_float", build(m.graph, "float_bits", x))


CHANGES: tuple[Change, ...] = (
    branch_on_data, branch_never_taken, branch_on_reduction, doubled_mask, one_of_two, turned_twice,
    flattened, cut_and_joined, reversed_twice, padded_and_cut, gathered, stacked, times_one,
    over_one, minus_zero, negated_twice, at_least_the_least, widened, with_false, by_its_bits,
)  # fmt: skip


# of nodes -----------------------------------------------------------------------------------------

COMMUTATIVE = ("add", "mul", "eq", "ne", "logical_and", "logical_or", "logical_xor", "bitwise_and",
               "bitwise_or", "bitwise_xor")  # fmt: skip
MAPS = (
    "add", "sub", "mul", "div", "min", "max", "neg", "abs", "select", "tanh", "exp", "lt", "le",
    "eq", "logical_and", "logical_or", "cast", "sqrt", "erf", "floor", "round",
)  # fmt: skip


def swapped(m: Mutant, node: Node) -> list[Value]:
    """The operands of a commutative operation the other way round."""
    _need(node.op in COMMUTATIVE)
    a, b = (m.table[value] for value in node.inputs)
    return [build(m.graph, node.op, b, a, **node.attrs)]


def compared_from_the_other_side(m: Mutant, node: Node) -> list[Value]:
    other = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}.get(node.op)
    _need(other)
    a, b = (m.table[value] for value in node.inputs)
    return [build(m.graph, str(other), b, a)]


def peeled(m: Mutant, node: Node) -> list[Value]:
    """A map of the first rows and of the others."""
    _need(node.op in MAPS)
    x = node.output
    axis, size = m.axis(x, 2)
    at = m.random.randint(1, size - 1)
    parts = []
    for low, high in ((0, at), (at, size)):
        starts, limits = [0] * x.type.rank, list(x.shape)
        starts[axis], limits[axis] = low, high
        operands = [
            build(m.graph, "slice", m.table[value], starts=tuple(starts), limits=tuple(limits),
                  strides=(1,) * x.type.rank)
            for value in node.inputs
        ]  # fmt: skip
        parts.append(build(m.graph, node.op, *operands, **node.attrs))
    return [build(m.graph, "concat", *parts, axis=axis)]


def computed_twice(m: Mutant, node: Node) -> list[Value]:
    """A node and its twin, of which an input chooses."""
    _need(node.op not in ("constant", "dims", "iota") and len(node.outputs) == 1)
    operands = [m.table[value] for value in node.inputs]
    first, second = (build(m.graph, node.op, *operands, **node.attrs) for _ in range(2))
    taken = m.spread(m.feed(np.asarray(True), "taken"), first)
    return [build(m.graph, "select", taken, first, second)]


def folded_in_steps(m: Mutant, node: Node) -> list[Value]:
    """A reduction over several axes one by one, or over one axis in two."""
    _need(node.op in ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod"))
    (x,) = (m.table[value] for value in node.inputs)
    _need(not (node.op in ("reduce_sum", "reduce_prod") and x.dtype.bits == 16))
    axes = tuple(node.attrs["axes"])
    if len(axes) > 1:
        for axis in sorted(axes, reverse=True):
            x = build(m.graph, node.op, x, axes=(axis,))
        return [x]
    _need(len(axes) == 1)
    (axis,) = axes
    size = x.shape[axis]
    factors = [n for n in range(2, int(size)) if size % n == 0]
    _need(factors)
    part = m.random.choice(factors)
    shape = (*x.shape[:axis], part, size // part, *x.shape[axis + 1 :])
    x = build(m.graph, "reshape", x, shape=shape)
    for _ in range(2):
        x = build(m.graph, node.op, x, axes=(axis,))
    return [x]


NODE_CHANGES = (swapped, compared_from_the_other_side, peeled, computed_twice, folded_in_steps)
INEXACT = ("folded_in_steps",)
"""Changes after which sums may be added in another order."""


@dataclass(frozen=True)
class Where:
    """One change: its name, and the number of the value or node among those of the graph."""

    change: str
    place: int


BY_NAME = {change.__name__: change for change in CHANGES}
NODES_BY_NAME = {change.__name__: change for change in NODE_CHANGES}


def mutated(
    graph: Graph, feeds: dict[str, Array], values: dict[Value, Array], places: list[Where],
    seed: int,
) -> tuple[Graph, dict[str, Array], set[Value]]:  # fmt: skip
    """A changed copy, its feeds, and the values of the original that were changed. A change that
    does not fit its place is left out."""
    m = Mutant(Graph(graph.name), dict(feeds), random.Random(seed), {}, values)
    touched: set[Value] = set()
    for value in graph.inputs:
        m.table[value] = m.graph.add_input(value.name, value.type)
    changes = {where.place: where.change for where in places}
    for place, node in enumerate(graph.nodes):
        name = changes.get(place, "")
        change, of_node = BY_NAME.get(name), NODES_BY_NAME.get(name)
        made: list[Value] | None = None
        if of_node is not None:
            made = attempt(m, partial(of_node, m, node))
        if made is None:
            made = [*m.graph.add(
                node.op, [m.table[v] for v in node.inputs], [v.type for v in node.outputs],
                **node.attrs,
            ).outputs]  # fmt: skip
        else:
            touched |= set(node.outputs)
        m.table |= dict(zip(node.outputs, made, strict=True))
        if change is not None:
            found = attempt(m, partial(alone, change, m, made[0]))
            if found is not None:
                m.table[node.output] = found[0]
                touched.add(node.output)
    m.graph.outputs = [m.table[value] for value in graph.outputs]
    m.graph.output_names = list(graph.output_names)
    return m.graph, m.feeds, touched


def alone(change: Change, m: Mutant, x: Value) -> list[Value]:
    return [change(m, x)]


def attempt(m: Mutant, make: Callable[[], list[Value]]) -> list[Value] | None:
    """What a change makes, or None, with nothing left of it."""
    nodes, inputs = len(m.graph.nodes), len(m.graph.inputs)
    try:
        return make()
    except Unfit:
        for value in m.graph.inputs[inputs:]:
            del m.feeds[value.name]
        del m.graph.nodes[nodes:]
        del m.graph.inputs[inputs:]
        return None
