"""Ranks as threads over NumPy, and layouts drawn at random."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np

from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph
from fuser.graph.ops.collective import PERFORM
from fuser.graph.ops.primitive import Array
from fuser.graph.sharding.layout import Factor, Layout, Split, independent, join, normal, part
from fuser.graph.sharding.shard import Sharded, shard
from fuser.graph.sharding.wishes import Marks
from fuser.runtime.collectives import ThreadRank, Threads, perform


def evaluate_ranks(
    ranks: Sequence[Sharded], feeds: Mapping[str, Array], float64: bool = True
) -> dict[str, Array]:
    """The outputs of a model whose ranks are evaluated together."""

    def work(comm: ThreadRank) -> dict[str, Array]:
        def meet(op: str, attrs: Mapping[str, object], x: Array) -> Array:
            members = len(attrs["groups"][0])  # type: ignore[index]
            shapes = {"all_gather": (members, *x.shape), "reduce_scatter": x.shape[1:]}
            result = np.empty(shapes.get(op, x.shape), x.dtype)
            perform(comm, op, attrs, np.ascontiguousarray(x), result)
            return result

        PERFORM.set(meet)
        mine = ranks[comm.rank]
        own = {name: part(a, mine.inputs[name], comm.rank) for name, a in feeds.items()}
        return evaluate(mine.graph, own, float64=float64)

    outputs = Threads(len(ranks)).run(work)
    return {
        name: join([output[name] for output in outputs], layout)
        for name, layout in ranks[0].outputs.items()
    }


def all_ranks(graph: Graph, marks: Marks) -> list[Sharded]:
    return [shard(graph, marks, rank) for rank in range(marks.ranks)]


def random_layout(rng: random.Random, shape: Sequence[int], ranks: int) -> Layout:
    """A layout in which ranks share a tensor somehow: axes in parts, blocks or not at all."""
    order = rng.sample(range(ranks), ranks)
    axes: list[list[Factor]] = []
    splits: list[Split] = []
    for size in shape:
        count = rng.choice([n for n in range(1, ranks + 1) if ranks % n == 0])
        step = rng.choice([n for n in range(1, ranks + 1) if ranks % (n * count) == 0] or [1])
        split = Split(count, tuple(order[r] // step % count for r in range(ranks)))
        blocks = rng.choice([n for n in (1, 1, 2, 3) if size % (n * count) == 0] or [1])
        divides = count > 1 and size % (blocks * count) == 0 and size
        if divides and rng.random() < 0.6 and independent([*splits, split]):
            splits.append(split)
            axes.append([(blocks, None), (size // blocks, split)])
        else:
            axes.append([(size, None)])
    return Layout(tuple(map(normal, axes)))
