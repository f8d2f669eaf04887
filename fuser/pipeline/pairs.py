"""What a model keeps from run to run, and which of its open dims are one.

Exporters name an open dim of every input anew: past.0.key is s69 long, past.0.value s89. Where a
model cannot be read with sizes of their own for all of these, the lengths of what is kept are one
dim, all batches are one, and dims of other inputs may be that length and the new rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fuser.errors import ShapeError, UsageError
from fuser.graph.dims import Dim, substitute, symbol, symbols_of
from fuser.graph.ir import Graph, TensorType
from fuser.graph.sizes import Sizes, same
from fuser.partition.passes.keep_state import growing_axis
from fuser.pipeline.source import GraphSource, symbols
from fuser.pipeline.variants import INNER_BUCKETS, OUTER_BUCKETS, Source

MOST_TRIED = 8
"""Ways to take dims for one."""


@dataclass(frozen=True)
class Unified:
    """A model some of whose open dims are others, or sums of others."""

    model: GraphSource
    equal: Mapping[str, Dim]

    @property
    def inputs(self) -> dict[str, TensorType]:
        return {
            name: TensorType(type.dtype, tuple(substitute(d, self.equal) for d in type.shape))
            for name, type in self.model.inputs.items()
        }

    @property
    def symbols(self) -> dict[str, bool]:
        """The open dims that are left, and whether each is an outermost axis."""
        return {n: outer for n, outer in symbols(self.model).items() if n not in self.equal}

    def graph(self, fixed: Mapping[str, int]) -> Graph:
        """`GraphSource.open_graph`."""
        equal = {name: substitute(dim, fixed) for name, dim in self.equal.items()}
        return self.model.open_graph({**equal, **fixed})  # type: ignore[dict-item]

    def source(self) -> Source:
        return Source(
            self.model.name, self.symbols, lambda fixed: (self.graph(fixed), None),
            self.model.types,
        )  # fmt: skip


def read_pairs(
    model: GraphSource, pairs: Mapping[str, str], fixed: Mapping[str, int]
) -> tuple[Unified, dict[str, tuple[int, Dim]]]:
    """The model, and the inputs whose outputs are longer along one axis, with that axis and how
    much longer. Raises UsageError for pairs that are none, and what reading the model raises."""
    for name in pairs:
        if name not in model.inputs:
            raise UsageError(f"there is no input {name!r}", hint=f"{sorted(model.inputs)}")
    first: ShapeError | None = None
    loose: tuple[Unified, dict[str, tuple[int, Dim]]] | None = None
    for equal in itertools.islice(_ways(model, pairs, fixed), MOST_TRIED):
        unified = Unified(model, equal)
        try:
            with Sizes(_examples(unified, fixed)):
                growing = _growing(unified.graph(fixed), pairs)
        except ShapeError as error:
            first = first or error
            continue
        # What a run adds does not depend on what is there: a length of its own is the sum of both.
        own = unified.inputs
        if not any(symbols_of(own[n].shape[axis]) & symbols_of(rows)
                   for n, (axis, rows) in growing.items()):  # fmt: skip
            return unified, growing
        loose = loose or (unified, growing)
    if loose is not None:
        return loose
    assert first is not None
    raise first


def _ways(
    model: GraphSource, pairs: Mapping[str, str], fixed: Mapping[str, int]
) -> Iterator[dict[str, Dim]]:
    """Which dims may be others: none; those of what is kept, by axis, and what follows."""
    yield {}
    kept = [model.inputs[name] for name in pairs]
    equal: dict[str, Dim] = {}
    lengths: list[str] = []
    batch = ""
    for axis, dim in (item for type in kept for item in enumerate(type.shape)):
        if not symbols_of(dim) or not all(dim is symbol(name) for name in symbols_of(dim)):
            continue
        (name,) = symbols_of(dim)
        if name in fixed:
            continue
        like = next(iter(symbols_of(kept[0].shape[axis])), name)
        if like != name:
            equal[name] = symbol(like)
        elif axis == 0:
            batch = name
        elif name not in lengths:
            lengths.append(name)
    yield dict(equal)
    inner: list[str] = []
    for name, type in sorted(model.inputs.items(), key=lambda item: "mask" in item[0]):
        for axis, dim in enumerate(type.shape if name not in pairs else ()):
            for own in sorted(symbols_of(dim) - set(fixed) - set(equal) - {batch, *lengths}):
                if axis == 0 and batch:
                    equal[own] = symbol(batch)
                elif own not in inner:
                    inner.append(own)
    yield dict(equal)
    for length in lengths:
        for count in range(1, len(inner)):
            for totals in itertools.combinations(reversed(inner), count):
                new = next(name for name in inner if name not in totals)
                sums = dict.fromkeys(totals, symbol(length) + symbol(new))
                yield {**equal, **sums}


def _examples(model: Unified, fixed: Mapping[str, int]) -> dict[str, int]:
    """A size of its own for every open dim."""
    taken: set[int] = set()
    examples: dict[str, int] = {}
    for name, outer in model.symbols.items():
        if name not in fixed:
            size = (OUTER_BUCKETS if outer else INNER_BUCKETS)[0][2]
            while size in taken:
                size += 1
            taken.add(size)
            examples[name] = size
    return examples


def _growing(graph: Graph, pairs: Mapping[str, str]) -> dict[str, tuple[int, Dim]]:
    inputs = {value.name: value for value in graph.inputs}
    found: dict[str, tuple[int, Dim]] = {}
    for name, output in pairs.items():
        if output not in graph.output_names:
            raise UsageError(f"there is no output {output!r}", hint=f"{graph.output_names}")
        past = inputs[name].type
        present = graph.outputs[graph.output_names.index(output)]
        wrong = UsageError(f"{output!r} is {present.type}, {name!r} is {past}")
        if past.dtype is not present.type.dtype or past.rank != present.type.rank:
            raise wrong
        axis = growing_axis(inputs[name], present)
        sizes = zip(past.shape, present.type.shape, strict=True)
        longer = [place for place, (one, other) in enumerate(sizes) if not same(one, other)]
        if len(longer) > 1:
            raise wrong
        if axis is None and longer:
            (axis,) = longer
        if axis is not None:
            found[name] = axis, present.type.shape[axis] - past.shape[axis]
    return found
