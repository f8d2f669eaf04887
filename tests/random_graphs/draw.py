"""Draw a random valid graph with its feeds: the values so far, their bounds, and what may be kept.

A step appends a primitive or a pattern to the graph and asks for the bounds of what it made. Steps
whose result would tell nothing (an interval as wide as the values, an unknown index) are taken
back, so every output of a finished graph is worth comparing.

A seed and the `edition` of the drawing are a graph. Edition 1 has the moves of `moves.py` alone;
2 adds those of `patterns.py`, `edges.py` and `blocks.py`, longer rows, and more extents of zero and
one; 3 begins some of the drawings that 2 begins with nothing special with one of `knots.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from fuser import dtypes
from fuser.dtypes import DType
from fuser.errors import ShapeError
from fuser.graph.builder import Builder
from fuser.graph.ir import Graph, Node, TensorType, Value
from fuser.graph.ops.registry import build_node
from tests.random_graphs.bounds import Array, Bound, exact, propagate

EDITION = 3
MOST_ELEMENTS = 4096
MOST_WEIGHTS = 1 << 19
MOST_RANK = 5
LONG_ROWS = (300, 512, 1000, 1025, 2049, 4100)
"""Sizes of a few drawings, past what a tile or a register holds."""
SIZES = (1, 1, 2, 2, 3, 3, 4, 5, 5, 6, 7, 8, 8, 9, 13, 16, 17, 31, 32, 33, 64, 65, 100, 129, 257)
FLOATS = (dtypes.f32, dtypes.f32, dtypes.f32, dtypes.f16, dtypes.bf16, dtypes.f64)
WHOLES = (
    dtypes.i64, dtypes.i32, dtypes.i32, dtypes.i16, dtypes.i8,
    dtypes.u8, dtypes.u16, dtypes.u32, dtypes.u64,
)  # fmt: skip


Move = Callable[["Drawing"], "Sequence[Value]"]


class Refused(Exception):
    """A step found nothing to do."""


@dataclass
class Drawing:
    """A graph in the making."""

    random: random.Random
    graph: Graph
    special: bool = False  # NaN and infinities are among the data
    edition: int = EDITION
    most_elements: int = MOST_ELEMENTS
    long_rows: bool = False
    bounds: dict[Value, Bound] = field(default_factory=dict)
    feeds: dict[str, Array] = field(default_factory=dict)
    pool: list[Value] = field(default_factory=list)
    claims: dict[Value, Bound] = field(default_factory=dict)
    """Bounds of values that say more than their primitives do, as signs of zero."""
    wrong: list[str] = field(default_factory=list)
    """Compositions of the front ends that do not mean what they should."""

    # data -----------------------------------------------------------------------------------------

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        rank = self.random.choice((0, 1, 1, 2, 2, 2, 3, 3, 4)) if rank is None else rank
        dims: list[int] = []
        for _ in range(rank):
            room = self.most_elements // max(1, prod(dims))
            fits = [size for size in SIZES if size <= max(1, room // 4)]
            if self.long_rows and not dims:
                fits = [size for size in LONG_ROWS if size <= max(1, room // 4)]
            dims.append(self.random.choice(fits))
        self.random.shuffle(dims)
        if dims and self.random.random() < 0.02:
            dims[self.random.randrange(len(dims))] = 0
        if self.edition > 1 and dims and self.random.random() < 0.08:
            dims[self.random.randrange(len(dims))] = self.random.choice((0, 1, 1, 1))
        return tuple(dims)

    def dtype(self) -> DType:
        kind = self.random.random()
        if kind < 0.65:
            return self.random.choice(FLOATS)
        return self.random.choice(WHOLES) if kind < 0.93 else dtypes.bool_

    def array(self, dtype: DType, shape: Sequence[int]) -> Array:
        """Seeded data: floats of moderate size, small integers and now and then extreme ones.
        Raises Refused beyond what weights may have."""
        if prod(shape) > MOST_WEIGHTS:
            raise Refused
        rng = np.random.default_rng(self.random.getrandbits(32))
        if dtype is dtypes.bool_:
            return rng.random(shape) < 0.5
        # of one sign, so that folds show what they begin with
        sign = self.random.choice((0, 0, 0, 0, 0, 0, 0, -1, -1, 1)) if self.edition > 1 else 0
        if dtype.is_float:
            scale = self.random.choice((0.1, 1.0, 1.0, 1.0, 3.0))
            array = rng.standard_normal(shape) * scale
            if self.random.random() < 0.2:  # ties, halves and zeros
                array = np.round(array * 2) / 2
            if sign:
                array = sign * np.abs(array)
            if self.special and self.random.random() < 0.5:
                odd = rng.random(shape) < 0.05
                array = np.where(odd, rng.choice([np.nan, np.inf, -np.inf, 0.0], shape), array)
            return np.asarray(array).astype(dtype.numpy)
        low = 0 if dtype.kind == "uint" else -8
        array = rng.integers(low, 9, shape)
        if sign:
            array = (np.abs(array) + 1) * (sign if low else 1)
        if self.random.random() < 0.15:
            least, most = int(dtype.lowest), int(dtype.highest)
            extremes = np.array([least, most, least + 1, most - 1, 0, 1], dtype.numpy)
            array = array.astype(dtype.numpy)
            return np.where(rng.random(shape) < 0.3, rng.choice(extremes, shape), array)
        return np.asarray(array).astype(dtype.numpy)

    def input(self, dtype: DType, shape: Sequence[int]) -> Value:
        return self.feed(self.array(dtype, shape))

    def feed(self, array: Array) -> Value:
        name = f"x{len(self.graph.inputs)}"
        dtype = dtypes.from_numpy(array.dtype)
        value = self.graph.add_input(name, TensorType(dtype, tuple(array.shape)))
        self.feeds[name] = array
        self.bounds[value] = exact(array)
        return value

    def constant(self, array: Array) -> Value:
        value = self.graph.constant(array)
        self.bounds[value] = exact(np.asarray(array))
        return value

    def leaf(self, dtype: DType, shape: Sequence[int]) -> Value:
        """An operand from outside: an input or a constant, sometimes one number everywhere."""
        pick = self.random.random()
        if pick < 0.2:
            number = self.constant(self.array(dtype, ()))
            return self.stretch(number, shape, ())
        if pick < 0.6 or len(self.graph.inputs) >= 6:
            return self.constant(self.array(dtype, shape))
        return self.input(dtype, shape)

    def indices(self, size: int, shape: Sequence[int], distinct: bool = False) -> Value:
        """Integers in [-size, size), as an input or a constant."""
        rng = np.random.default_rng(self.random.getrandbits(32))
        count = prod(shape)
        if distinct:
            found = rng.permutation(size)[:count].reshape(shape)
        else:
            found = rng.integers(0, size, shape)
        if self.random.random() < 0.4:
            found = np.where(rng.random(shape) < 0.5, found - size, found)
        kinds = [d for d in (dtypes.i64, dtypes.i32) if d]
        array = np.asarray(found).astype(self.random.choice(kinds).numpy)
        return self.feed(array) if self.random.random() < 0.5 else self.constant(array)

    # steps ----------------------------------------------------------------------------------------

    def emit(self, op: str, *operands: Value, **attrs: Any) -> Value:
        """Append a primitive, with the bounds of its results; its first result."""
        node = build_node(self.graph, op, *operands, **attrs)
        if any(value.type.size > self.most_elements for value in node.outputs):
            raise Refused
        self._bind(node)
        return node.output

    def _bind(self, node: Node) -> None:
        operands = [self.bounds[value] for value in node.inputs]
        for value, bound in zip(
            node.outputs, propagate(node.op, operands, node.attrs), strict=True
        ):
            assert bound.shape == value.shape, (node.op, bound.shape, value.shape)
            assert bound.dtype is value.dtype, (node.op, bound.dtype, value.dtype)
            self.bounds[value] = bound

    def composed(
        self, make: Callable[[Builder], Value], meaning: Array | None = None, sure: bool = False
    ) -> Value:
        """What the front ends' builder makes of an operator. meaning: its value in float64, of
        operands anywhere in their bounds; a composition that excludes it is noted as wrong, and,
        if it must be sure, one that says nothing."""
        mark = len(self.graph.nodes)
        result = make(Builder(self.graph))
        for node in self.graph.nodes[mark:]:
            if any(value.type.size > self.most_elements for value in node.outputs):
                raise Refused
            if node.op == "constant":
                self.bounds[node.output] = exact(np.asarray(node.attrs["value"]))
            else:
                self._bind(node)
        if meaning is not None:
            bound = self.bounds[result]
            with np.errstate(all="ignore"):
                slack = 1e-9 * np.abs(meaning)
                off = (meaning + slack < bound.low) | (meaning - slack > bound.high)
                off = off & (bound.nan == 0) | (bound.nan == 2)
                if sure:
                    off = off | ~np.isfinite(bound.low) | ~np.isfinite(bound.high)
                off = off & np.isfinite(meaning)
            if off.any():
                at = tuple(int(i) for i in np.argwhere(off)[0])
                self.wrong.append(
                    f"{result!r} is composed to be in [{bound.low[at]}, {bound.high[at]}] at {at} "
                    f"and means {meaning[at]}"
                )
        return result

    def claim(self, value: Value, array: Array) -> None:
        """Say exactly what a value is, where its bounds are wider than they need be."""
        self.bounds[value] = self.claims[value] = exact(array)

    def stretch(self, x: Value, shape: Sequence[int], axes: Sequence[int]) -> Value:
        if x.shape == tuple(shape):
            return x
        return self.emit("broadcast", x, shape=tuple(shape), axes=tuple(axes))

    def number(self, number: float, like: Value) -> Value:
        scalar = self.constant(np.asarray(number).astype(like.dtype.numpy))
        return self.stretch(scalar, like.shape, ())

    def pick(self, test: Callable[[Value], bool] = lambda value: True) -> Value:
        """A value that passes the test, mostly one of the latest. Raises Refused."""
        fits = [value for value in self.pool if test(value)]
        if not fits:
            raise Refused
        if self.random.random() < 0.6:
            fits = fits[-4:]
        return self.random.choice(fits)

    def like(self, x: Value) -> Value:
        """Another value of the same type: an old one, the same one, or a new operand."""
        fits = [v for v in self.pool if v.type == x.type and v is not x]
        chance = self.random.random()
        if fits and chance < 0.6:
            return self.random.choice(fits)
        if chance < 0.7:
            return x
        if chance < 0.85 and x.type.rank:  # a vector along some of the axes
            count = self.random.randint(0, x.type.rank)
            axes = sorted(self.random.sample(range(x.type.rank), count))
            part = self.leaf(x.dtype, [x.shape[axis] for axis in axes])
            return self.stretch(part, x.shape, axes)
        return self.leaf(x.dtype, x.shape)

    def axes(self, x: Value, most: int | None = None) -> tuple[int, ...]:
        if not x.type.rank:
            raise Refused
        count = self.random.randint(1, min(x.type.rank, most or x.type.rank))
        return tuple(sorted(self.random.sample(range(x.type.rank), count)))

    def axis(self, x: Value) -> int:
        return self.axes(x, 1)[0]

    def step(self, move: Callable[[Drawing], Sequence[Value]]) -> bool:
        """Make a step, or take it back if what it made is of no use."""
        mark = len(self.graph.nodes), len(self.graph.inputs)
        try:
            made = list(move(self))
            if all(self.is_telling(value) for value in made):
                self.pool.extend(made)
                return True
        except (Refused, ShapeError):
            pass
        for node in self.graph.nodes[mark[0] :]:
            for value in node.outputs:
                self.bounds.pop(value, None)
                self.claims.pop(value, None)
        for value in self.graph.inputs[mark[1] :]:
            self.feeds.pop(value.name)
            self.bounds.pop(value)
        del self.graph.nodes[mark[0] :]
        del self.graph.inputs[mark[1] :]
        return False

    def is_telling(self, value: Value) -> bool:
        """Whether a value's bound says what it is: mostly known, not too large, not too wide."""
        bound = self.bounds[value]
        if value.type.rank > MOST_RANK:
            return False
        if not bound.low.size:
            return self.random.random() < 0.3
        if not bound.dtype.is_float:
            return bool(np.mean(bound.loose) <= 0.1)
        with np.errstate(all="ignore"):
            known = np.isfinite(bound.low) & np.isfinite(bound.high) & (bound.nan == 0)
            if np.mean(known | (bound.nan == 2)) < (0.7 if self.special else 0.98):
                return False
            if not known.any():
                return self.special
            low, high = bound.low[known], bound.high[known]
            scale = np.sqrt(np.mean(np.square((low + high) / 2)))
            width = np.mean(high - low)
        return bool(scale < 1e4 and width <= 0.05 * scale + 1e-6)


def draw(seed: int, most_nodes: int = 60, edition: int = EDITION) -> Drawing:
    """The graph of a seed."""
    return draw_from(random.Random(seed), f"random_{seed}", most_nodes, edition)


def draw_from(
    source: random.Random, name: str, most_nodes: int = 60, edition: int = EDITION
) -> Drawing:
    """A graph of 5 to `most_nodes` primitives, constants not counted; small ones are likelier."""
    from tests.random_graphs.blocks import BLOCKS
    from tests.random_graphs.edges import EDGES, OCCASIONS
    from tests.random_graphs.knots import KNOTS
    from tests.random_graphs.moves import MOVES
    from tests.random_graphs.patterns import PATTERNS

    d = Drawing(source, Graph(name), special=source.random() < 0.08, edition=edition)
    moves: Mapping[Move, float] = MOVES if edition == 1 else {**MOVES, **PATTERNS, **EDGES}
    if edition > 1 and source.random() < 0.03:
        d.long_rows, d.most_elements = True, 4 * MOST_ELEMENTS
        most_nodes = min(most_nodes, 20)
    occasion = None
    if edition > 1:
        chance = source.random()
        occasions = {**OCCASIONS, **BLOCKS, **(KNOTS if edition > 2 else {})}  # the latest last
        for move, share in occasions.items():
            if 0 <= chance < share:
                occasion = move
            chance -= share
    if occasion is not None:
        most_nodes = min(most_nodes, 8)
    wanted = int(5 * (most_nodes / 5) ** source.random() ** 2)
    names = list(moves)
    weights = [moves[item] for item in names]
    dtype = d.dtype()
    shape = d.shape()
    for _ in range(source.randint(1, 3)):
        same = source.random() < 0.6
        d.pool.append(d.input(dtype if same else d.dtype(), shape if same else d.shape()))
    if occasion is not None:
        d.step(occasion)
        wanted += sum(node.op != "constant" for node in d.graph.nodes)
    for _ in range(6 * wanted):
        if sum(node.op != "constant" for node in d.graph.nodes) >= wanted:
            break
        d.step(source.choices(names, weights)[0])
    read = {value for node in d.graph.nodes for value in node.inputs}
    made = [value for value in d.pool if value not in read] or [d.pool[-1]]
    extra = source.sample(d.pool, min(len(d.pool), source.choice((0, 0, 1, 2))))
    most = 6
    if edition > 1 and source.random() < 0.05:  # all that is there is asked for
        extra, most = d.pool, len(d.pool)
    d.graph.outputs = list(dict.fromkeys([*made[-most:], *extra]))
    if source.random() < 0.05:
        d.graph.outputs.append(d.graph.outputs[0])
    d.graph.output_names = [f"y{i}" for i in range(len(d.graph.outputs))]
    d.graph.verify()
    return d
