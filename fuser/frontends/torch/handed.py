"""Results of a graph that no kernel writes: its arguments, and other results in another shape.

    return %x, %y, view(%y)        =>        return None, %y, None

AOTAutograd returns from the forward graph all that the backward graph reads, parameters among it,
and once more what the program returns itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_SAME_ORDER = ("alias", "reshape", "squeeze", "unsqueeze", "view", "_unsafe_view")


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
class Handed:
    """A module without such results. arguments: (place, argument); shared: (place, the place of
    the result with the same elements, the shape; None: as it is)."""

    module: Any
    arguments: tuple[tuple[int, int], ...]
    shared: tuple[tuple[int, int, tuple[int, ...] | None], ...]

    @property
    def is_whole(self) -> bool:
        """Whether the module has all results itself."""
        return not (self.arguments or self.shared)

    def complete(self, results: Sequence[Any], given: Sequence[Any]) -> list[Any]:
        """All results, from those of the module and its arguments."""
        found = list(results)
        for place, argument in self.arguments:
            found[place] = given[argument]
        for place, source, shape in self.shared:
            found[place] = found[source] if shape is None else found[source].view(shape)
        return found


def hand_on(module: Any) -> Handed:
    """The module is left as it is; what is found has a copy of it where there is need."""
    import torch

    inputs = {node: place for place, node in enumerate(module.graph.find_nodes(op="placeholder"))}
    (output,) = module.graph.find_nodes(op="output")
    listed = output.args[0]
    if not isinstance(listed, list | tuple):
        return Handed(module, (), ())
    results = list(listed)
    arguments: list[tuple[int, int]] = []
    shared: list[tuple[int, int, tuple[int, ...] | None]] = []
    first: dict[Any, int] = {}
    whole = {node: place for place, node in reversed(list(enumerate(results)))}
    for place, node in enumerate(results):
        if not isinstance(node, torch.fx.Node):
            continue
        base, shape = _base(node), _shape(node)
        if node in inputs:
            arguments.append((place, inputs[node]))
        elif base in inputs:
            continue  # whose strides are the caller's choice
        elif (source := first.setdefault(base, whole.get(base, place))) != place and shape:
            same = shape == _shape(results[source])
            shared.append((place, source, None if same else shape))
        elif whole[node] != place:
            shared.append((place, whole[node], None))
    if not arguments and not shared:
        return Handed(module, (), ())
    left: list[Any] = list(results)
    for place in [*(item[0] for item in arguments), *(item[0] for item in shared)]:
        left[place] = None
    graph = torch.fx.Graph()
    copies: dict[Any, Any] = {}
    graph.graph_copy(module.graph, copies)
    graph.output([copies.get(node, node) if node is not None else None for node in left])
    graph.eliminate_dead_code()
    plain = isinstance(module, Functional)
    rest = Functional(graph) if plain else torch.fx.GraphModule(module, graph)
    return Handed(rest, tuple(arguments), tuple(shared))


def _base(node: Any) -> Any:
    """What a chain of views that keep the order of elements begins with."""
    while (
        node.op == "call_function"
        and str(node.target).removeprefix("aten.").partition(".")[0] in _SAME_ORDER
        and node.meta["val"].dtype == node.args[0].meta["val"].dtype
        and math.prod(_shape(node)) == math.prod(_shape(node.args[0]))
    ):
        node = node.args[0]
    return node


def _shape(node: Any) -> tuple[int, ...]:
    """Of a tensor of known sizes; () where there are others."""
    shape = tuple(getattr(node.meta.get("val"), "shape", ()))
    return shape if all(type(size) is int for size in shape) else ()
