"""Results of a graph that no kernel writes: its arguments, other results, and views of both.

    return %x, %y, view(%y), slice(%x)        =>        return None, %y, None, None

A result that is a view is made by PyTorch, of the tensor that it is a view of: its strides and its
offset are those of the sizes at hand, and what is written to it later is written there. AOTAutograd
returns from the forward graph all that the backward graph reads, parameters among it, and once more
what the program returns itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from itertools import combinations, starmap
from typing import Any

from fuser.frontends.torch.layouts import (
    Layout,
    are_apart,
    count,
    dense_layout_of,
    layout_of,
    overlaps,
)
from fuser.frontends.torch.tensors import is_tensor
from fuser.frontends.torch.views import Lifted, is_size, is_view, view_maker

_SAME_ORDER = ("alias", "reshape", "squeeze", "unsqueeze", "view", "_unsafe_view")
"""Operators whose result has the elements of the operand in the same order."""


class Demand(Enum):
    """What is asked of a result. EXACT: the strides of the traced program, and a view where that
    has one. DENSE: the same order of axes in memory, without gaps. VALUE: any tensor of its
    values."""

    EXACT = "exact"
    DENSE = "dense"
    VALUE = "value"


class Functional:
    """What is asked of a GraphModule, where it has no attributes: Python code is made of the graph
    when PyTorch is to run it."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph

    def forward(self, *arguments: Any) -> Any:
        import torch

        module = torch.fx.GraphModule(torch.nn.Module(), self.graph)
        self.forward = module.forward  # type: ignore[method-assign]
        return module.forward(*arguments)


@dataclass(frozen=True)
class Views:
    """Results that are views. make: of what `sources` says, (whether it is an argument, its place)
    each, the results at `places`."""

    make: Callable[..., Sequence[Any]]
    sources: tuple[tuple[bool, int], ...]
    places: tuple[int, ...]


@dataclass(frozen=True)
class Handed:
    """A module without such results. count: how many results there are; what the module returns
    beyond is there for views only. arguments: (place, argument); shared: (place, the place of the
    result that it is). layouts: of what the module returns, by place."""

    module: Any
    count: int
    arguments: tuple[tuple[int, int], ...] = ()
    shared: tuple[tuple[int, int], ...] = ()
    views: Views | None = None
    layouts: tuple[Layout | None, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether the module has all results itself."""
        return not (self.arguments or self.shared or self.views)

    def complete(self, results: Sequence[Any], given: Sequence[Any]) -> list[Any]:
        """All results, from those of the module and its arguments."""
        found = list(results)
        for place, argument in self.arguments:
            found[place] = given[argument]
        if (views := self.views) is not None:
            made = views.make(
                *(given[i] if is_given else found[i] for is_given, i in views.sources)
            )
            for place, result in zip(views.places, made, strict=True):
                found[place] = result
        for place, source in self.shared:
            found[place] = found[source]
        del found[self.count :]
        return found


@dataclass(frozen=True)
class Asked:
    """What is asked of the results of a graph.

    demand: of each by place. replaced: of results that are to be copied to arguments, by place, the
    place of the argument; views of such a result are made of the argument. written: the places of
    all arguments whose elements will change; what the graph has of these as an argument are the
    elements from before, so no result is a view of that.
    """

    demand: Callable[[int], Demand] = lambda place: Demand.EXACT
    replaced: Mapping[int, int] = field(default_factory=dict)
    written: Collection[int] = ()

    def with_views(self, lifted: Lifted) -> Asked:
        """The same of a module of which views of arguments are arguments, after the others."""
        more = [lifted.count + i for i, root in enumerate(lifted.roots) if root in self.written]
        return replace(self, written=(*self.written, *more)) if more else self


def hand_on(module: Any, asked: Asked | None = None) -> Handed:
    """The module is left as it is; what is found has a copy of it where there is need. Raises
    UnsupportedError for a result whose strides cannot be told."""
    asked = Asked() if asked is None else asked
    (output,) = module.graph.find_nodes(op="output")
    listed = output.args[0]
    if not isinstance(listed, list | tuple):
        return Handed(module, 1)
    return _Search(module, list(listed), asked).run()


@dataclass
class _Search:
    module: Any
    results: list[Any]
    asked: Asked
    first: dict[Any, int] = field(default_factory=dict)  # of each node that is a result, its place
    added: list[Any] = field(default_factory=list)  # nodes that views need as results

    @cached_property
    def inputs(self) -> dict[Any, int]:
        found = self.module.graph.find_nodes(op="placeholder")
        return {node: place for place, node in enumerate(found)}

    def run(self) -> Handed:
        arguments: list[tuple[int, int]] = []
        shared: list[tuple[int, int]] = []
        tensors: list[int] = []
        for place, node in enumerate(self.results):
            if not hasattr(node, "op") or self.inputs.get(node) in self.asked.written:
                continue
            if node in self.inputs:
                arguments.append((place, self.inputs[node]))
            elif self.first.setdefault(node, place) != place:
                shared.append((place, self.first[node]))
            elif is_tensor(node.meta.get("val")):
                tensors.append(place)
        chains = {place: self._chain(place) for place in tensors}
        self._add(chains)
        sources = {place: self._source(chain) for place, chain in chains.items()}
        places = [place for place, source in sources.items() if source is not None]
        exact = {
            sources[place] or self.results[place]
            for place in tensors if self.asked.demand(place) is Demand.EXACT
        }.difference(self.results[place] for place in self.asked.replaced)  # fmt: skip
        left = [*self.results, *self.added]
        for place in [*(item[0] for item in (*arguments, *shared)), *places]:
            left[place] = None
        layouts = tuple(self._layout(place, node, node in exact) for place, node in enumerate(left))
        return Handed(
            self._rest(left) if left != self.results else self.module, len(self.results),
            tuple(arguments), tuple(shared), self._views(places, left) if places else None, layouts,
        )  # fmt: skip

    def _chain(self, place: int) -> list[Any]:
        """A result, what it is a view of, what that is a view of and so on."""
        is_exact = self.asked.demand(place) is Demand.EXACT
        chain = [self.results[place]]
        while (node := chain[-1]) not in self.inputs and self._is_view(node, is_exact):
            chain.append(node.args[0])
        return chain

    def _is_view(self, node: Any, of_any_order: bool) -> bool:
        """Whether a node is a view of its first operand."""
        if node.op != "call_function" or not node.args or not hasattr(node.args[0], "op"):
            return False
        name = str(node.target).removeprefix("aten.").partition(".")[0]
        if of_any_order and name != "_unsafe_view":
            known = is_view(node)
        else:
            known = name in _SAME_ORDER and _dtype(node) == _dtype(node.args[0])
        others = [other for other in node.all_input_nodes if other is not node.args[0]]
        return known and all(map(is_size, others))

    def _add(self, chains: dict[int, list[Any]]) -> None:
        """Let the module return what results are views of, where they may share elements, or where
        that is no more work than to write them alone."""
        groups: dict[Any, list[int]] = {}
        for place, chain in chains.items():
            if len(chain) > 1 and chain[-1] not in self.inputs and self._source(chain) is None:
                groups.setdefault(chain[-1], []).append(place)
        for root, places in groups.items():
            if not is_tensor(root.meta.get("val")):
                continue
            values = [self.results[place].meta["val"] for place in places]
            exact = [place for place in places if self.asked.demand(place) is Demand.EXACT]
            if len(exact) < len(places):
                is_wanted = len(places) > 1
            else:
                has_gaps = any((one := layout_of(x)) and one.order is None for x in values)
                is_wanted = not all(starmap(are_apart, combinations(values, 2))) or (
                    has_gaps
                    and (
                        any(map(overlaps, values))
                        or 2 * sum(map(count, values)) >= count(root.meta["val"])
                    )
                )
            if is_wanted:
                self.added.append(root)

    def _source(self, chain: Sequence[Any]) -> Any:
        """What a result is made of as a view: an argument, or what is computed; None: itself."""
        is_exact = self.asked.demand(self.first[chain[0]]) is Demand.EXACT
        for node in reversed(chain[1:]):
            if node in self.inputs:
                if is_exact and self.inputs[node] not in self.asked.written:
                    return node
            elif node in self.first or node in self.added:
                return node
        return None

    def _layout(self, place: int, node: Any, is_exact: bool) -> Layout | None:
        value = getattr(node, "meta", {}).get("val")
        if not is_tensor(value):
            return None
        if is_exact:
            return layout_of(value)
        if place >= len(self.results) or self.asked.demand(place) is not Demand.DENSE:
            return None
        return dense_layout_of(value)

    def _views(self, places: Sequence[int], left: Sequence[Any]) -> Views:
        ends: dict[Any, Any] = {node: (True, place) for node, place in self.inputs.items()}
        for place, node in enumerate(left):
            if hasattr(node, "op") and node not in ends:
                argument = self.asked.replaced.get(place)
                ends[node] = (False, place) if argument is None else (True, argument)
        wanted = [self.results[place] for place in places]
        make, used = view_maker(self.module, wanted, ends)
        sources = [ends[node] for node in used]
        return Views(make, tuple(sources), tuple(places))

    def _rest(self, left: Sequence[Any]) -> Any:
        """The module with these results."""
        import torch

        graph = torch.fx.Graph()
        copies: dict[Any, Any] = {}
        graph.graph_copy(self.module.graph, copies)
        graph.output([copies.get(node, node) if node is not None else None for node in left])
        graph.eliminate_dead_code()
        is_plain = isinstance(self.module, Functional)
        return Functional(graph) if is_plain else torch.fx.GraphModule(self.module, graph)


def _dtype(node: Any) -> Any:
    return getattr(node.meta.get("val"), "dtype", None)
