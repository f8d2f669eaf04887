"""A random graph and its mutants, compiled and compared.

An output that is settled, whose elements every correct compiler computes to the same bits, must
have equal bits in both. Any other must stay in the bounds that hold for the original graph: a
mutation computes nothing else.
"""

from __future__ import annotations

import argparse
import random
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fuser.errors import FuserError, UnsupportedError
from fuser.graph.ir import Graph, Value
from fuser.graph.ops.registry import primitive
from fuser.graph.text import print_graph
from tests.equivalence.graphs.mutations import (
    BY_NAME,
    CHANGES,
    INEXACT,
    NODE_CHANGES,
    NODES_BY_NAME,
    Where,
    mutated,
)
from tests.fuzzing.jobs import REFUSED, RIGHT, SKIPPED, Finding
from tests.random_graphs.bounds import Array
from tests.random_graphs.check import Native, TakenApart, compare, interpreted
from tests.random_graphs.draw import Drawing, draw
from tests.random_graphs.reduce import evaluated, reduced

MUTANTS = 3
"""Mutants of a graph."""
MOST_NODES = 25
ROUNDED = ("exp", "exp2", "log", "log2", "rsqrt", "sin", "cos", "tan", "asin", "acos", "atan",
           "sinh", "cosh", "asinh", "acosh", "atanh", "tanh", "erf", "pow")  # fmt: skip
"""Maps whose last bits are the compiler's choice."""
SETTLED = ("gather", "scatter", "sort", "argmax", "argmin", "reduce_max", "reduce_min", "constant",
           "iota", "dims")  # fmt: skip


def settled(graph: Graph) -> set[Value]:
    """The values that have one right answer, to the bit."""
    found = {value for value in graph.inputs}
    for node in graph.nodes:
        record = primitive(node.op)
        if any(value not in found for value in node.inputs):
            continue
        floats = any(v.dtype.is_float for v in (*node.inputs, *node.outputs))
        if any(v.dtype.is_float and v.dtype.bits == 16 for v in node.outputs):
            if node.op not in (*SETTLED, "select", "neg", "abs") and record.kind != "movement":
                continue
        exact = record.kind in ("map", "movement", "create") and node.op not in ROUNDED
        if exact or node.op in SETTLED or not floats:
            found |= set(node.outputs)
    return found


@dataclass
class Runner:
    """Runs graphs by one route."""

    native: Native
    route: str

    def run(self, graph: Graph, feeds: dict[str, Array]) -> dict[str, Array]:
        d = Drawing(random.Random(0), graph, special=True, feeds=feeds)
        if self.route == "native":
            return self.native.run(d, True)
        return interpreted(d, self.route, True)


def differs(d: Drawing, runner: Runner, places: list[Where], seed: int) -> tuple[str, str]:
    """(kind, what) of a drawing and one mutant; ("", "") where nothing is wrong."""
    values = evaluated(d)
    graph, feeds, touched = mutated(d.graph, d.feeds, values, places, seed)
    if not touched:
        return SKIPPED, ""
    with np.errstate(all="ignore"):
        first = runner.run(d.graph, d.feeds)
        second = runner.run(graph, feeds)
    what = compare(d, first, flushed=runner.route.startswith("sm"))
    if what:
        return "wrong before", what
    what = compare(d, second, flushed=runner.route.startswith("sm"))
    if what:
        return "wrong", what
    sure = settled(d.graph)
    if any(where.change in INEXACT for where in places):
        sure &= settled_after(d.graph, touched)
    for name, value in zip(d.graph.output_names, d.graph.outputs, strict=True):
        if value in sure and not same_bits(first[name], second[name]):
            off = np.argwhere(~_equal(first[name], second[name]))[0]
            at = tuple(int(i) for i in off)
            return "bits", f"{name}{list(at)} is {second[name][at]!r}, not {first[name][at]!r}"
    return "", ""


def settled_after(graph: Graph, touched: set[Value]) -> set[Value]:
    """The values that no float of `touched` is part of."""
    found = set(graph.inputs)
    for node in graph.nodes:
        if all(v in found for v in node.inputs):
            found |= {v for v in node.outputs if v not in touched or not v.dtype.is_float}
    return found


def same_bits(a: Array, b: Array) -> bool:
    return bool(_equal(a, b).all())


def _equal(a: Array, b: Array) -> Array:
    """Where the bits are equal; every NaN is the same."""
    if a.dtype.kind in "biu":
        return np.asarray(a == b)
    x, y = a.astype(np.float64), b.astype(np.float64)
    same = (x == y) & (np.signbit(x) == np.signbit(y))
    return np.asarray(same | (np.isnan(x) & np.isnan(y)) | ((x == 0) & (y == 0)))


def check(seed: int, options: argparse.Namespace) -> list[Finding]:
    """The findings of a graph, one for each mutant."""
    d = draw(seed, MOST_NODES)
    source = random.Random(seed)
    route = source.choices(("native", "cpu", "sm_80", "sm_90a"), (8, 0, 1, 1))[0]
    route = options.route or route
    runner = Runner(_native(), route)
    findings = []
    names = [change.__name__ for change in (*CHANGES, *NODE_CHANGES)]
    fits = [n for n, node in enumerate(d.graph.nodes) if node.op != "constant"]
    for mutant in range(options.mutants):
        count = min(len(fits), source.choice((1, 1, 2, 3)))
        places = [Where(source.choice(names), place) for place in source.sample(fits, count)]
        finding = _judged(d, runner, places, seed + mutant, options)
        findings.append(finding)
        if finding.kind == "wrong before":
            break
    return findings


def _judged(
    d: Drawing, runner: Runner, places: list[Where], seed: int, options: argparse.Namespace
) -> Finding:
    kind, what = _outcome(d, runner, places, seed)
    finding = Finding(kind, what)
    if not finding.failed or kind in options.left_out:
        return finding
    names = ", ".join(where.change for where in places)
    if options.whole:
        return Finding(kind, f"{names}: {what}", print_graph(d.graph), f"{runner.route}: {names}")
    alone = [[where] for where in places] if len(places) > 1 else []
    for one in alone:
        if _outcome(d, runner, one, seed)[0] == kind:
            places = one
            break
    names = ", ".join(where.change for where in places)

    def fails(trial: Drawing) -> bool:
        return _failing(trial, runner, places, seed, kind) is not None

    small = reduced(d, fails)
    at = _failing(small, runner, places, seed, kind) or places
    _, what = _outcome(small, runner, at, seed)
    text = [f"# {runner.route}, seed {seed}: {at}", print_graph(small.graph)]
    text += [
        f"#  {k}: {v.dtype}{list(v.shape)} {v.reshape(-1)[:8]}" for k, v in small.feeds.items()
    ]
    ops = "; ".join(node.op for node in small.graph.nodes if node.op != "constant")
    return Finding(kind, f"{names}: {what}", "\n".join(text), f"{runner.route}: {names}: {ops}")


def _failing(
    d: Drawing, runner: Runner, places: list[Where], seed: int, kind: str
) -> list[Where] | None:
    """Where the same change fails in a smaller graph."""
    if len(places) > 1:
        trials = [places]
    else:
        trials = [[Where(places[0].change, n)] for n, node in enumerate(d.graph.nodes)
                  if node.op != "constant"]  # fmt: skip
    for trial in trials[-8:]:
        if _outcome(d, runner, trial, seed)[0] == kind:
            return trial
    return None


def _outcome(d: Drawing, runner: Runner, places: Sequence[Where], seed: int) -> tuple[str, str]:
    try:
        kind, what = differs(d, runner, list(places), seed)
    except TakenApart as error:  # two kernels do what one was planned for
        return REFUSED, f"taken apart: {str(error).split(': ', 1)[1]}"[:160]
    except UnsupportedError as error:
        return REFUSED, f"{type(error).__name__}: {error}"[:120]
    except FuserError as error:
        return f"error {type(error).__name__}", str(error)[:500]
    except Exception as error:
        return f"raw {type(error).__name__}", f"{error}\n{traceback.format_exc()[-800:]}"
    return (kind or RIGHT), what


_NATIVES: list[Native] = []


def _native() -> Native:
    if not _NATIVES:
        _NATIVES.append(Native())
    return _NATIVES[0]


assert set(INEXACT) <= {*BY_NAME, *NODES_BY_NAME}
