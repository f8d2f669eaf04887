"""A graph that fuser computes but for some of its nodes, which PyTorch runs.

    %a = exp(%x)                          part 0:  %a = exp(%x)
    %b = histc(%a)              =>        PyTorch: %b = histc(%a)
    return relu(%b) + %a                  part 1:  return relu(%b) + %a

A node is in the first part that may have it; there are as many parts after the first as nodes of
PyTorch follow from each other. What depends on arguments alone (weights that are cast) waits for
the part that reads it. Views and constants are made where they are read: in each part anew, and by
PyTorch for the operands of its nodes, so that no view becomes a copy. Nodes of PyTorch run in the
order of the graph: random numbers are then those of the program.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuser.frontends.torch.handed import Functional
from fuser.frontends.torch.importer import is_ignored
from fuser.frontends.torch.tensors import is_tensor

_VIEWS = (
    "alias", "detach", "expand", "permute", "reshape", "squeeze", "t", "transpose", "unsqueeze",
    "view", "_unsafe_view",
)  # fmt: skip
"""Operators whose results have all elements of their operand."""
_CHOICES = ("narrow", "select", "slice")
"""Views of some of the elements: made anew of arguments alone, so that no part returns more."""

Run = Callable[[list[Any]], Sequence[Any]]
"""From a list of arguments to the results, in order."""


@dataclass(frozen=True)
class Part:
    """What fuser computes at once. inputs, outputs: the names of the values that it takes and
    makes."""

    module: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Left:
    """A node that PyTorch runs. result: the name of what it makes; names: of what it reads."""

    node: Any
    result: str
    names: Mapping[Any, str]


@dataclass(frozen=True)
class Split:
    """Steps in order. arguments: the names of what is given; results: what is returned, nodes and
    others; names: of the values that these nodes are; fixed: values of the graph's own, by name."""

    arguments: tuple[str, ...]
    steps: tuple[Part | Left, ...]
    results: Sequence[Any]
    names: Mapping[Any, str]
    fixed: Mapping[str, Any]

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(step for step in self.steps if isinstance(step, Part))


def split(module: Any, left: Collection[str]) -> Split | None:
    """A GraphModule in parts around the nodes of these names. None if nothing is to be computed
    beside them, or if a node changes what it reads."""
    nodes = list(module.graph.nodes)
    if any(_is_changing(node) for node in nodes) or not isinstance(nodes[-1].args[0], list | tuple):
        return None
    found = _Splitter(module, nodes, left).split()
    return found if found.parts else None


class _Splitter:
    """Who reads what is known from the last reader to the first; steps are then put in order."""

    def __init__(self, module: Any, nodes: Sequence[Any], left: Collection[str]) -> None:
        self.module, self.nodes = module, nodes
        self.left = _closed(nodes, left)
        self.made = {
            node for node in nodes
            if node.op == "call_function" and node not in self.left and not is_ignored(node)
        }  # fmt: skip
        self.anywhere = self._anywhere()
        self.light = self.anywhere | {
            node for node in self.made
            if not is_tensor(_value(node)) and not _is_nest(_value(node))
        }  # fmt: skip
        self.level = self._levels()
        self.wanted: dict[int, set[Any]] = {}
        """For each part, its nodes that others read."""
        self.plain: dict[int, set[Any]] = {}
        """The same for parts that compute nothing: PyTorch makes these nodes."""

    def split(self) -> Split:
        output = self.nodes[-1]
        self._want(node for node in output.all_input_nodes if node in self.made)
        parts: dict[int, Part] = {}
        last = max(self.level.values())
        for level in range(last, -2, -1):  # the last reader first
            for node in self.left:
                if self.level[node] == level:
                    self._want(self._bases(node.all_input_nodes))
            roots = self.wanted.get(level, set())
            members, inputs = self._closure(roots, level)
            if any(node in self.made and node not in self.light for node in members):
                self._want(node for node in inputs if node in self.made)
                parts[level] = self._part(members, inputs, roots)
            elif roots:
                self.plain[level] = roots
                sources = [source for node in roots for source in node.all_input_nodes]
                self._want(self._bases(sources))
        steps: list[Part | Left] = []
        done: set[str] = set()
        for level in range(-1, last + 1):
            if level in parts:
                steps.append(parts[level])
            here = [n for n in self.nodes if n in self.left and self.level[n] == level]
            for node in (*sorted(self.plain.get(level, ()), key=self.nodes.index), *here):
                steps += self._in_pytorch(node, node.name, done)
        return Split(
            tuple(node.name for node in self.nodes if node.op == "placeholder"),
            tuple(steps), output.args[0], {n: n.name for n in output.all_input_nodes},
            {
                node.name: operator.attrgetter(str(node.target))(self.module)
                for node in self.nodes if node.op == "get_attr"
            },
        )  # fmt: skip

    def _anywhere(self) -> set[Any]:
        """Nodes that are made where they are read: views, and constants."""
        found: set[Any] = set()
        constant: set[Any] = set()
        given: set[Any] = set()  # arguments and views of them
        for node in self.nodes:
            if node.op == "get_attr":
                found.add(node)
                constant.add(node)
            elif node.op == "placeholder":
                given.add(node)
            if node not in self.made or not is_tensor(_value(node)):
                continue
            sources = node.all_input_nodes
            of_given = bool(sources) and sources[0] in given
            if constant.issuperset(sources) and node.target is not operator.getitem:
                found.add(node)
                constant.add(node)
            elif _is_one_of(node, _VIEWS) or (_is_one_of(node, _CHOICES) and of_given):
                found.add(node)
                if of_given:
                    given.add(node)
        return found

    def _levels(self) -> dict[Any, int]:
        """The number of the part that has a node; of one that PyTorch runs, that of the last part
        before it, -1 where there is none."""
        level: dict[Any, int] = {}
        before = -1
        of_arguments: set[Any] = set()
        for node in self.nodes:
            sources = node.all_input_nodes
            level[node] = -1
            if node in self.left:
                before = level[node] = max([before, *(level[source] for source in sources)])
            elif node in self.made:
                level[node] = max([0, *(level[each] + (each in self.left) for each in sources)])
                if of_arguments.issuperset(sources):
                    of_arguments.add(node)
            else:
                of_arguments.add(node)
        for node in reversed(self.nodes):
            users = [user for user in node.users if not is_ignored(user)]
            alone = node.target is not operator.getitem and not _is_nest(_value(node))
            if node in self.made and node in of_arguments and alone and users:
                if all(user.op != "output" for user in users):
                    level[node] = min(level[user] for user in users)
        return level

    def _want(self, nodes: Iterable[Any]) -> None:
        for node in nodes:
            self.wanted.setdefault(self.level[node], set()).add(node)

    def _bases(self, nodes: Iterable[Any]) -> set[Any]:
        """What parts return, so that PyTorch has these nodes: views and sizes it makes itself."""
        found: set[Any] = set()
        seen: set[Any] = set()
        open_ = list(nodes)
        while open_:
            node = open_.pop()
            if node in seen:
                continue
            seen.add(node)
            if node in self.made and node in self.light:
                open_ += node.all_input_nodes
            elif node in self.made:
                found.add(node)
        return found

    def _closure(self, roots: Iterable[Any], level: int) -> tuple[set[Any], set[Any]]:
        """What a part consists of, and what it is given."""
        members: set[Any] = set()
        inputs: set[Any] = set()
        open_ = list(roots)
        while open_:
            node = open_.pop()
            if node in members:
                continue
            members.add(node)
            for source in node.all_input_nodes:
                own = source in self.made and self.level[source] == level
                if own or source in self.anywhere:
                    open_.append(source)
                else:
                    inputs.add(source)
        return members, inputs

    def _part(self, members: set[Any], inputs: set[Any], roots: set[Any]) -> Part:
        import torch

        graph = torch.fx.Graph()
        copies: dict[Any, Any] = {}
        sizes = {node for node in self.nodes if node.op == "placeholder" and _is_size(_value(node))}
        given = [node for node in self.nodes if node in inputs or node in sizes]
        for node in given:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
        for node in self.nodes:
            if node in members:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        returned = [node for node in self.nodes if node in roots]
        graph.output(tuple(copies[node] for node in returned))
        fixed = any(node.op == "get_attr" for node in members)
        return Part(
            torch.fx.GraphModule(self.module, graph) if fixed else Functional(graph),
            tuple(node.name for node in given), tuple(node.name for node in returned),
        )  # fmt: skip

    def _in_pytorch(self, node: Any, result: str, done: set[str]) -> list[Left]:
        """Steps that make a node, those that make views and sizes for it first."""
        steps: list[Left] = []
        names: dict[Any, str] = {}
        for source in node.all_input_nodes:
            names[source] = source.name
            if source in self.made and source in self.light:
                names[source] = f"{source.name}:made"
                if names[source] not in done:
                    steps += self._in_pytorch(source, names[source], done)
        done.add(result)
        return [*steps, Left(node, result, names)]


def _closed(nodes: Sequence[Any], left: Collection[str]) -> set[Any]:
    """The nodes of these names, and what only PyTorch can do with their results: take one of
    several, and compute with a fraction, which would be a constant of the code."""
    found: set[Any] = set()
    for node in nodes:
        if node.op not in ("placeholder", "get_attr", "output") and (
            node.name in left
            or (node.target is operator.getitem and node.args[0] in found)
            or any(source in found and _is_fraction(_value(source))
                   for source in node.all_input_nodes)
        ):  # fmt: skip
            found.add(node)
    return found


def _value(node: Any) -> Any:
    return node.meta.get("val")


def _is_nest(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _is_size(value: Any) -> bool:
    return type(value).__name__ == "SymInt"


def _is_fraction(value: Any) -> bool:
    return isinstance(value, float) or type(value).__name__ in ("SymFloat", "SymBool")


def _is_one_of(node: Any, names: Collection[str]) -> bool:
    """Whether a node is one of these operators of ATen, and keeps the dtype."""
    library, _, name = str(node.target).partition(".")
    return (
        library == "aten"
        and name.partition(".")[0] in names
        and is_tensor(_value(node.args[0]))
        and _value(node.args[0]).dtype == _value(node).dtype
    )


def _is_changing(node: Any) -> bool:
    """Whether an operator writes to what it reads."""
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))
