"""Run a stored model through fuser and hold the results against proven bounds.

The bounds are those of `tests/random_graphs`: intervals over the graph as it was imported, before
any pass, which every correct evaluation stays in. An element whose interval is all numbers (behind
a comparison that could go either way, say) is not told and counts as such. Another runtime
runs the model as well (`peer.py`).

`python -m tests.nnsmith.check` is a child of `tests.nnsmith`.
"""

from __future__ import annotations

import argparse
import random
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import fuser
from fuser.errors import InvalidModelError, LimitError, UnsupportedError, UsageError
from fuser.frontends.onnx.importer import import_onnx
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph, TensorType
from tests.nnsmith.peer import peer_says
from tests.nnsmith.storage import load
from tests.random_graphs.bounds import ALWAYS, NEVER, Array, Bound, exact, propagate
from tests.random_graphs.check import compare
from tests.random_graphs.draw import Drawing
from tests.worker_pool import serve

Feeds = dict[str, Array]
REFUSALS = (UnsupportedError, InvalidModelError, LimitError, UsageError)
RANGES = {"positive": (3.0, 7.0), "signed": (-2.0, 2.0), "small": (0.0, 1.0), "edges": (-2.0, 2.0)}
"""Feeds by name: uniform numbers. NNSmith's own are the first."""
MOST_PADDED = 10_000_000
"""Elements of a padded image up to which there is time for all kinds of feeds."""
EDGES = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, 65504.0, 1e30, -1e30)


@dataclass(frozen=True)
class Outcome:
    """What came of a model.

    verdict: "right" (every element that is told is within its bounds, and most are told), "untold"
    (nothing is wrong, but less than half of the elements are told by any feeds), "wrong", "refused"
    (a documented error), "failed" (an internal error), "crashed", "hung".
    told: the share of told elements for the feeds that tell most. peer: where another runtime
    leaves the bounds, or why none runs it.
    """

    name: str
    verdict: str
    what: str = ""
    told: float = 0.0
    kernels: int = 0
    seconds: float = 0.0
    peer: str = ""
    trace: str = ""


@dataclass(frozen=True)
class Options:
    """device: "cpu" or "cuda". unfused_every: of so many models one runs without fusion as well."""

    device: str = "cpu"
    unfused_every: int = 4
    peer: bool = True


def check_file(path: Path, options: Options) -> Outcome:
    """The outcome of a stored model. Raises nothing that the model could cause."""
    started = time.perf_counter()
    number = zlib.crc32(path.stem.encode())
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            model = load(path)
            unfused = options.unfused_every > 0 and number % options.unfused_every == 0
            found = _check(path.stem, model, number, unfused, options)
        except REFUSALS as error:
            slow = isinstance(error, LimitError) and "second" in str(error)
            found = Outcome(path.stem, "hung" if slow else "refused", reason(error))
        except Exception as error:
            found = Outcome(path.stem, "failed", reason(error), trace=traceback.format_exc())
    return Outcome(**{**asdict(found), "seconds": round(time.perf_counter() - started, 3)})


def reason(error: Exception) -> str:
    """The error on one line."""
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:400]


def _check(
    name: str, model: onnx.ModelProto, number: int, unfused: bool, options: Options
) -> Outcome:
    drawings = drawings_of(model, number)
    told = max(told_share(d) for d in drawings.values())
    plan = fuser.compile(model, device=options.device)
    routes: dict[str, Callable[[Feeds], Mapping[str, Array]]] = {
        "numpy": lambda feeds: evaluate(drawings["positive"].graph, feeds),
        "fused": plan.run,
    }
    if unfused:
        routes["unfused"] = fuser.compile(model, device=options.device, fusion=False).run
    wrong = [
        f"{route}, {kind} feeds: {what}"
        for route, run in routes.items()
        for kind, d in drawings.items()
        if (what := compare(d, dict(run(d.feeds)), flushed=options.device == "cuda"))
    ]
    peer = ""
    if options.peer:
        peer = peer_says(model, drawings, lambda other: drawings_of(other, number))
    verdict = "wrong" if wrong else "right" if told >= 0.5 else "untold"
    return Outcome(name, verdict, "; ".join(wrong), told, plan.launches, peer=peer)


def drawings_of(model: onnx.ModelProto, number: int) -> dict[str, Drawing]:
    """The imported graph with feeds and bounds, by the kind of feeds."""
    graph = import_onnx(model, {})
    rng = np.random.default_rng(number)
    kinds = ("positive",) if _padded_elements(graph) > MOST_PADDED else tuple(RANGES)
    return {
        kind: drawing(graph, {v.name: _feed(rng, kind, v.type) for v in graph.inputs})
        for kind in kinds
    }


def _padded_elements(graph: Graph) -> int:
    """Of the largest image that a convolution's bounds write out."""
    largest = 0
    for node in graph.nodes:
        if node.op == "conv":
            n, channels, *spatial = node.inputs[0].shape
            padded = [
                int(size) + sum(pair)
                for size, pair in zip(spatial, node.attrs["padding"], strict=True)
            ]
            largest = max(largest, prod((int(n), int(channels), *padded)))
    return largest


def drawing(graph: Graph, feeds: Feeds) -> Drawing:
    """The bounds of every value for these feeds."""
    d = Drawing(random.Random(0), graph, special=True, feeds=feeds)
    d.bounds = {value: exact(feeds[value.name], value.dtype) for value in graph.inputs}
    for node in graph.nodes:
        found = propagate(node.op, [d.bounds[value] for value in node.inputs], node.attrs)
        d.bounds |= dict(zip(node.outputs, found, strict=True))
    return d


def _feed(rng: np.random.Generator, kind: str, type: TensorType) -> Array:
    low, high = RANGES[kind]
    shape = type.static_shape
    numbers = rng.uniform(low, high, shape)
    if type.dtype.is_float:
        if kind == "edges":
            numbers = np.where(rng.random(shape) < 0.1, rng.choice(EDGES, shape), numbers)
        return numbers.astype(type.dtype.numpy)
    if type.dtype.numpy == np.bool_:
        return np.asarray(rng.random(shape) < 0.5)
    info = np.iinfo(type.dtype.numpy)
    whole = np.clip(np.rint(numbers), max(info.min, -(2**31)), 2**31).astype(type.dtype.numpy)
    if kind == "edges":
        ends = np.array([info.min, info.max, 0, 1], type.dtype.numpy)
        whole = np.where(rng.random(shape) < 0.1, rng.choice(ends, shape), whole)
    return np.asarray(whole, type.dtype.numpy)


def told_share(d: Drawing) -> float:
    """The share of the outputs' elements whose bounds say what they are."""
    sizes = [value.type.size for value in d.graph.outputs]
    known = [int(_known(d.bounds[value]).sum()) for value in d.graph.outputs]
    return sum(known) / sum(sizes) if sum(sizes) else 1.0


def _known(bound: Bound) -> Array:
    if not bound.dtype.is_float:
        return np.asarray(~bound.loose)
    closed = np.isfinite(bound.high - bound.low) | (bound.low == bound.high)
    return np.asarray((closed & (bound.nan == NEVER)) | (bound.nan == ALWAYS))


def main() -> None:
    """Items: paths of models."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--unfused-every", type=int, default=4)
    parser.add_argument("--no-peer", action="store_true")
    given = parser.parse_args()
    options = Options(given.device, given.unfused_every, not given.no_peer)

    def handle(item: str) -> dict[str, Any]:
        return asdict(check_file(Path(item), options))

    serve(handle)


if __name__ == "__main__":
    main()
