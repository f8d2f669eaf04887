"""Views of tensors, made by PyTorch as a traced graph says.

A graph that reads the memory of an argument by strides of its own, whatever the argument's are, has
that view as one more argument:

    as_strided(%x, [2, 3], [1, 2], 4)        =>        %x_view, which is PyTorch's as_strided(x, ..)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuser.errors import FuserError, UnsupportedError
from fuser.frontends.torch.symbols import dim_of
from fuser.frontends.torch.tensors import is_tensor
from fuser.graph.dims import parse, symbols_of
from fuser.graph.sizes import evaluate

_MAY_COPY = ("reshape", "contiguous", "to", "lift_fresh")
"""Operators whose result may be no view, whatever their schemas say."""


def view_maker(
    module: Any, wanted: Sequence[Any], ends: Collection[Any]
) -> tuple[Callable[..., Sequence[Any]], list[Any]]:
    """A function that makes these nodes of the module, and the nodes that it takes the values of.

    wanted: nodes that are views of some of `ends`, by sizes that arguments have. ends: nodes whose
    values are there, all arguments among them. Raises UnsupportedError for other sizes.
    """
    import torch

    placeholders = module.graph.find_nodes(op="placeholder")
    sizes = _Sizes(placeholders, set(ends))
    needed = set(sizes.needed(wanted))
    used = [node for node in ends if node in needed]
    graph = torch.fx.Graph()
    copies: dict[Any, Any] = {node: graph.placeholder(node.name) for node in used}
    for node in module.graph.nodes:
        if node in needed and node not in copies:
            is_made = sizes.is_made(node)
            copies[node] = (
                graph.node_copy(node, copies.__getitem__)
                if is_made
                else sizes.evaluated(graph, node, copies)
            )
    graph.output([copies[node] for node in wanted])
    return torch.fx.GraphModule(torch.nn.Module(), graph).forward, used


@dataclass(frozen=True)
class Lifted:
    """A module with views of its arguments as more arguments, after the `count` others. make: of
    the arguments at `places` these views. roots: of each view the place of its argument."""

    module: Any
    make: Callable[..., Sequence[Any]] | None = None
    places: tuple[int, ...] = ()
    roots: tuple[int, ...] = ()
    count: int = 0

    def given(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """All arguments of the module."""
        if self.make is None:
            return arguments
        return [*arguments, *self.make(*(arguments[place] for place in self.places))]


def lift_views(module: Any) -> Lifted:
    """The module is left as it is. Raises UnsupportedError for views by sizes that no argument
    tells."""
    import torch

    inputs = {node: i for i, node in enumerate(module.graph.find_nodes(op="placeholder"))}
    found = {
        node: root
        for node in module.graph.find_nodes(
            op="call_function", target=torch.ops.aten.as_strided.default
        )
        if (root := root_of(node)) in inputs
    }
    if not found:
        return Lifted(module)
    make, used = view_maker(module, list(found), inputs)
    graph = torch.fx.Graph()
    copies: dict[Any, Any] = {}
    for node in (*inputs, *found):
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in module.graph.nodes:
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.eliminate_dead_code()
    return Lifted(
        torch.fx.GraphModule(module, graph), make, tuple(inputs[node] for node in used),
        tuple(inputs[root] for root in found.values()), len(inputs),
    )  # fmt: skip


def root_of(node: Any) -> Any:
    """What a node is a view of, and is no view itself."""
    while node.op == "call_function" and node.args and is_view(node):
        node = node.args[0]
    return node


def is_view(node: Any) -> bool:
    """Whether a node is a view of its first argument, or one of several."""
    if node.target is operator.getitem:
        return is_view_operator(node.args[0].target)
    return is_view_operator(node.target)


@dataclass
class _Sizes:
    """The sizes that views need: nodes of the graph where these follow from `ends` by way of views
    and arithmetic, else evaluated from the sizes of arguments."""

    inputs: Collection[Any]
    ends: Collection[Any]
    known: dict[Any, bool] = field(default_factory=dict)

    def is_made(self, node: Any) -> bool:
        """Whether a size, or a view, follows from the ends."""
        if node in self.ends:
            return True
        if node not in self.known:
            self.known[node] = (
                node.op == "call_function"
                and (is_size(node) or is_view(node))
                and all(map(self.is_made, node.all_input_nodes))
            )
        return self.known[node]

    def needed(self, nodes: Sequence[Any]) -> Iterator[Any]:
        """The nodes that views are made of."""
        stack, met = list(nodes), set()
        while stack:
            node = stack.pop()
            if node in met:
                continue
            met.add(node)
            yield node
            if node in self.ends:
                continue
            if is_size(node) and not self.is_made(node):
                stack.extend(self._of_symbols(node).values())
            else:
                stack.extend(node.all_input_nodes)

    def _of_symbols(self, node: Any) -> dict[str, Any]:
        """The arguments that tell the symbols of a size: a size, or a tensor that has it. Raises
        UnsupportedError."""
        try:
            names = symbols_of(dim_of(node.meta["val"]))
        except FuserError as error:
            raise UnsupportedError(f"a view by a size of {node.meta['val']}") from error
        found: dict[str, Any] = {}
        for argument in self.inputs:
            value = argument.meta.get("val")
            for size in value.shape if is_tensor(value) else (value,):
                if (name := str(size)) in names:
                    found.setdefault(name, argument)
        if missing := names - set(found):
            raise UnsupportedError(f"a view by {', '.join(missing)}, which no argument tells")
        return found

    def evaluated(self, graph: Any, node: Any, copies: Mapping[Any, Any]) -> Any:
        """A node for a size, of arguments."""
        import torch

        sources = []
        told = self._of_symbols(node)
        for name, argument in told.items():
            value = argument.meta["val"]
            source = copies[argument]
            if is_tensor(value):
                axis = [str(size) for size in value.shape].index(name)
                source = graph.call_function(torch.ops.aten.sym_size.int, (source, axis))
            sources.append(source)
        dim = str(dim_of(node.meta["val"]))
        return graph.call_function(_evaluate, (dim, tuple(told), *sources))


def _evaluate(dim: str, names: Sequence[str], *sizes: int) -> int:
    return evaluate(parse(dim), dict(zip(names, sizes, strict=True)))


def is_size(node: Any) -> bool:
    """Whether a node is a number, of which sizes may be made."""
    kinds = ("int", "SymInt", "float", "SymFloat", "bool", "SymBool")
    return type(node.meta.get("val")).__name__ in kinds


def is_view_operator(target: Any) -> bool:
    """Whether the result of an operator is always a view of its first argument."""
    schema = getattr(target, "_schema", None)
    name = str(target).removeprefix("aten.").partition(".")[0]
    return schema is not None and schema._is_view_op() and name not in _MAY_COPY
