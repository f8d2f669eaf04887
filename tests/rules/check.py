"""Check the class of a rewrite rule from its examples.

An example is a graph over inputs and numbers. Each number is tried with values of the format, each
elementwise input holds all values (each against each of the others where there are two), and the
graph is evaluated before and after the rule. What counts is the bits; any NaN is any other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from fuser import dtypes
from fuser.dtypes import DType
from fuser.graph.builder import Builder
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph, TensorType, Value
from fuser.graph.numerics import RuleClass
from fuser.graph.ops.registry import check_types
from fuser.graph.passes.dce import remove_dead_nodes
from fuser.graph.passes.rewrite import rewrite
from fuser.graph.passes.rule import Example, Rule

Array = np.ndarray[Any, Any]

f8 = DType("f8e4m3", "float", 8, np.dtype(ml_dtypes.float8_e4m3), "i8")
"""Three digits, subnormals, infinities, NaN, signed zeros; rounded to nearest even."""
ROUNDS = 4
"""Times that a rule is applied to what it has made."""
SPECIAL = (
    0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, 0.5, -0.5, 0.25, 41.0, 49.0, 0.1, 1e-3, 1e3, 1e30, 1e-30,
    3e38, 1e-38, 1e-44, float("inf"), float("-inf"), float("nan"), 2.0**-126, 2.0**127, 65504.0,
    6e-8, 1.5, -1.5, 7.0, 1 / 3,
)  # fmt: skip


class Wrong(AssertionError):
    """A rule that is not of its class."""


@dataclass
class _Sample:
    """What an example is built from, for one choice of numbers."""

    dtype: DType
    numbers: Iterator[float]
    size: int
    graph: Graph = field(default_factory=lambda: Graph("example"))

    def __post_init__(self) -> None:
        self.b = Builder(self.graph)

    def tensor(self, *shape: int) -> Value:
        name = f"x{len(self.graph.inputs)}"
        return self.graph.add_input(name, TensorType(self.dtype, shape or (self.size,)))

    def number(self) -> Value:
        return self.fixed(next(self.numbers))

    def fixed(self, value: float) -> Value:
        return self.b.full(value, TensorType(self.dtype, (self.size,)))


@dataclass(frozen=True)
class Found:
    """fired: graphs that the rule changed. changed: elements that came out otherwise."""

    fired: int
    changed: int


def values_of(dtype: DType, rng: np.random.Generator) -> Array:
    """All values of types of 8 bits, the special ones and a sample of others."""
    if dtype.bits == 8 and dtype.kind != "bool":
        return np.arange(256, dtype=np.uint8).view(dtype.numpy)
    if dtype.kind == "bool":
        return np.array([False, True])
    if dtype.bits == 16 and dtype.is_float:
        return np.arange(65536, dtype=np.uint16).view(dtype.numpy)
    words = rng.integers(0, 1 << dtype.bits, 4000, dtype=np.uint64)
    sampled = words.astype(f"u{dtype.bytes}").view(dtype.numpy)
    if not dtype.is_float:
        ends = np.array([0, 1, 2, 3, -1, dtype.lowest, dtype.highest]).astype(dtype.numpy)
        return np.concatenate([ends, sampled])
    with np.errstate(over="ignore"):
        near = rng.integers(1, 5000, 2000).astype(dtype.numpy)
        return np.concatenate([np.array(SPECIAL).astype(dtype.numpy), near, sampled])


def numbers_of(dtype: DType, rng: np.random.Generator, all_pairs: bool) -> list[float]:
    """What a number of an example is tried with."""
    values = values_of(dtype, rng)
    if dtype.bits == 8 and all_pairs:
        return [float(v) for v in values]
    with np.errstate(over="ignore", invalid="ignore"):
        special = np.array(SPECIAL).astype(dtype.numpy) if dtype.is_float else values[:7]
    return [float(v) for v in special] + [float(v) for v in rng.choice(values, 12)]


def _choices(example: Example, dtype: DType, rng: np.random.Generator) -> list[tuple[float, ...]]:
    """Numbers for the graphs to try: one number is tried with all, several with a sample."""
    counted = _Counter()
    example.make(_Sample(dtype, counted, 2))
    if counted.asked == 0:
        return [()]
    if counted.asked == 1:
        return [(n,) for n in numbers_of(dtype, rng, True)]
    pool = numbers_of(dtype, rng, False)
    pairs = list(itertools.product(pool, repeat=counted.asked))
    picked = rng.permutation(len(pairs))[:300]
    return [pairs[i] for i in picked]


class _Counter(Iterator[float]):
    def __init__(self) -> None:
        self.asked = 0

    def __next__(self) -> float:
        self.asked += 1
        return 1.0


def _feeds(graph: Graph, dtype: DType, values: Array, rng: np.random.Generator) -> list[Array]:
    plain = [value for value in graph.inputs if value.type.shape == (graph_size(graph),)]
    grids = _grid(values, max(1, len(plain)), graph_size(graph), rng)
    found, elementwise = [], iter(grids)
    for value in graph.inputs:
        if value in plain:
            found.append(next(elementwise))
        else:
            found.append(rng.choice(values, value.shape).astype(dtype.numpy))
    return found


def graph_size(graph: Graph) -> int:
    return max((v.shape[0] for v in graph.inputs if v.type.rank == 1), default=1)


def _grid(values: Array, count: int, size: int, rng: np.random.Generator) -> list[Array]:
    if count == 1:
        return [np.resize(values, size)]
    if len(values) ** 2 <= size:
        first, second = np.repeat(values, len(values)), np.tile(values, len(values))
        return [np.resize(first, size), np.resize(second, size)] + [
            rng.choice(values, size) for _ in range(count - 2)
        ]
    return [rng.choice(values, size) for _ in range(count)]


def check_rule(rule: Rule, seed: int = 0) -> dict[str, Found]:
    """Raise Wrong if the rule is not of its class; what was found by dtype."""
    rng = np.random.default_rng(seed)
    found: dict[str, Found] = {}
    for example in rule.examples:
        for dtype in _dtypes(example):
            for name, one in _check(rule, example, dtype, rng).items():
                before = found.get(name, Found(0, 0))
                found[name] = Found(before.fired + one.fired, before.changed + one.changed)
    if not any(one.fired for one in found.values()):
        raise Wrong(f"{rule.name}: its examples never meet it")
    if rule.kind == "fast" and not any(one.changed for one in found.values()):
        raise Wrong(f"{rule.name} is said to be fast, and changes nothing")
    return found


def _dtypes(example: Example) -> Iterator[DType]:
    for kind in example.kinds:
        match kind:
            case "float":
                yield from (f8, dtypes.f16, dtypes.f32)
            case "int":
                yield from (dtypes.i8, dtypes.u8, dtypes.i32)
            case "bool":
                yield dtypes.bool_


def _check(
    rule: Rule, example: Example, dtype: DType, rng: np.random.Generator
) -> dict[str, Found]:
    values = values_of(dtype, rng)
    counted = _Counter()
    probe = _Sample(dtype, counted, 2)
    example.make(probe)
    inputs = sum(value.type.shape == (2,) for value in probe.graph.inputs)
    small = dtype.bits == 8 or dtype.kind == "bool"
    size = len(values) ** 2 if inputs > 1 and small else len(values)
    fired = changed = 0
    for numbers in _choices(example, dtype, rng):
        before, after = (_build(example, dtype, numbers, size) for _ in range(2))
        after, applied = _applied(rule, after)
        if not applied:
            continue
        fired += 1
        feeds = _feeds(before, dtype, values, rng)
        changed += _compare(rule, before, after, feeds, numbers)
    return {dtype.name: Found(fired, changed)}


def _build(example: Example, dtype: DType, numbers: tuple[float, ...], size: int) -> Graph:
    sample = _Sample(dtype, iter(numbers), size)
    value = example.make(sample)
    sample.graph.outputs, sample.graph.output_names = [value], ["y"]
    return sample.graph


def _applied(rule: Rule, graph: Graph) -> tuple[Graph, bool]:
    fired = False

    def ask(b: Builder, node: Any, operands: tuple[Value, ...]) -> Value | None:
        nonlocal fired
        made = rule.apply(b, node, operands)
        fired |= made is not None
        return made

    for _ in range(ROUNDS):
        graph = remove_dead_nodes(rewrite(graph, ask, rule.ops))
    graph.verify()
    check_types(graph)
    return graph, fired


def _compare(
    rule: Rule, before: Graph, after: Graph, feeds: list[Array], numbers: tuple[float, ...]
) -> int:
    given = {v.name: a for v, a in zip(before.inputs, feeds, strict=True)}
    live = {v.name for v in after.inputs}
    with np.errstate(all="ignore"):
        one = evaluate(before, given)["y"]
        left = {k: a for k, a in given.items() if k in live}
        two = evaluate(after, left)["y"]
        if rule.kind == "function" and one.dtype.itemsize < 4:  # kernels round the result alone
            two = evaluate(after, left, float64=True)["y"].astype(one.dtype)
    differ = ~same(one, two)
    if not differ.any() or rule.kind == "fast":
        return int(differ.sum())
    allowed = _allowed(rule.kind, before, given, one, two)
    bad = differ & ~allowed
    if bad.any():
        at = tuple(np.argwhere(bad)[0])
        raise Wrong(
            f"{rule.name} is said to be {rule.kind}: {one.dtype} numbers {numbers},"
            f" {int(bad.sum())} of {bad.size} differ, the first {one[at]!r} and {two[at]!r}"
        )
    return int(differ.sum())


def same(one: Array, two: Array) -> Array:
    """Whether elements have the same bits, any NaN being any other."""
    if one.dtype.kind in "iub":
        return np.asarray(one == two)
    if one.dtype != two.dtype or one.shape != two.shape:
        raise Wrong(f"{one.dtype}{one.shape} became {two.dtype}{two.shape}")
    nans = np.isnan(one) & np.isnan(two)
    word = f"u{one.dtype.itemsize}"
    return np.asarray(nans | (one.view(word) == two.view(word)))


def _allowed(
    kind: RuleClass, before: Graph, feeds: Mapping[str, Array], one: Array, two: Array
) -> Array:
    """Where a difference is one that the class allows."""
    if kind == "exact":
        return np.zeros(one.shape, bool)
    with np.errstate(all="ignore"):
        true = np.asarray(evaluate(before, feeds, float64=True)["y"])
        wide = two.astype(np.float64)
        narrow = one.dtype.itemsize < 4
        if kind == "wider" and not narrow:
            return np.zeros(one.shape, bool)
        unit = ulp(true, one.dtype)
        close = np.abs(wide - true) <= (0.5001 if narrow else 2.0) * unit
        if narrow:  # at least as near as what rounded between the operators
            close |= np.abs(wide - true) <= np.abs(one.astype(np.float64) - true)
        overflown = np.isinf(wide) & (np.abs(true) >= float(ml_dtypes.finfo(one.dtype).max))
    allowed = close | (overflown & (np.signbit(wide) == np.signbit(true)))
    if not narrow:  # the same special values
        allowed &= (np.isinf(one) == np.isinf(two)) & (np.isnan(one) == np.isnan(two))
    return allowed


def ulp(true: Array, dtype: np.dtype[Any]) -> Array:
    """The unit in the last place of a dtype at values."""
    info = ml_dtypes.finfo(dtype)
    with np.errstate(all="ignore"):
        exponent = np.floor(np.log2(np.abs(true)))
    least = float(np.log2(float(info.tiny)))
    exponent = np.where(np.isfinite(exponent), np.maximum(exponent, least), least)
    return np.asarray(np.exp2(exponent - info.nmant))
