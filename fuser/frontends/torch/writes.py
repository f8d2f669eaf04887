"""Writes to views that have no functional form.

    v = x.expand(3, 5)
    v[0] += 1                       # all rows of v are x

PyTorch makes a traced graph functional before a back end has it: a write becomes a new value of the
view, and that is put together to a new value of `x`. Where several elements of the view are one of
`x`, that is their sum, or one of them, and other views do not see the write; elements of `x` that
are in no window of an `unfold` become 0. What eager PyTorch does follows from the order in which it
writes. So the graph is looked at before it is functional, and one that writes so is PyTorch's.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterable, Iterator
from typing import Any

from fuser.errors import UnsupportedError
from fuser.frontends.torch.layouts import count, overlaps
from fuser.frontends.torch.leaving import place_of
from fuser.frontends.torch.symbols import is_symbolic
from fuser.frontends.torch.tensors import is_tensor, storage_of

_OPERATORS = {
    operator.setitem, operator.iadd, operator.isub, operator.imul, operator.imatmul,
    operator.itruediv, operator.ifloordiv, operator.imod, operator.ipow, operator.iand,
    operator.ior, operator.ixor, operator.ilshift, operator.irshift,
}  # fmt: skip

_STRIDED = ("as_strided_scatter", "diagonal_scatter", "select_scatter", "slice_scatter")
"""Operators that write to a copy of their operand, which has the strides of it."""


def check_writes(module: Any) -> None:
    """Raise UnsupportedError for a write to a tensor whose elements share memory, to windows that
    leave elements out, or to a view of such a tensor. module: a GraphModule that is not functional
    yet, of Dynamo or of torch.export, with the tensors of its nodes as "example_value" or "val"."""
    for part in module.modules():
        if hasattr(part, "graph"):
            _check_graph(part.graph)


def _check_graph(graph: Any) -> None:
    known: dict[Any, str] = {}
    for node in graph.nodes:
        for source in _written(node):
            if why := _obstacle(source, known):
                raise UnsupportedError(
                    f"{_name(node)} writes to a tensor {why}", where=place_of(node),
                    hint="write to a clone of it, or to the tensor that it is a view of",
                )  # fmt: skip


def _obstacle(node: Any, known: dict[Any, str]) -> str:
    """Why a tensor, or one that it is a view of, cannot be written to; empty where it can."""
    chain: list[Any] = []
    why = ""
    while node is not None and not why:
        if node in known:
            why = known[node]
            break
        chain.append(node)
        value = _value(node)
        if value is None:
            break
        memory = storage_of(value)
        base = next((n for n in node.all_input_nodes if _is_in(n, memory)), None)
        if _overlaps(value):
            why = "of which several elements are one in memory"
        elif base is not None and _name(node) == "unfold" and _leaves_out(value, _value(base)):
            why = "that is the windows of another one, which leave some elements out"
        node = base
    known.update(dict.fromkeys(chain, why))
    return why


def _overlaps(value: Any) -> bool:
    if _is_told(value):
        return overlaps(value)
    return any(type(stride) is int and not stride for stride in value.stride())


def _leaves_out(windows: Any, base: Any) -> bool:
    return not (_is_told(windows) and _is_told(base)) or count(windows) < count(base)


def _is_told(value: Any) -> bool:
    """Whether the graph says how large a tensor is, which data may decide."""
    sizes = (*value.shape, *value.stride())
    return not any(is_symbolic(size) and size.node.hint is None for size in sizes)


def _name(node: Any) -> str:
    """The name of a function, a method or an operator."""
    return str(getattr(node.target, "__name__", node.target)).partition(".")[0]


def _is_in(node: Any, memory: int) -> bool:
    value = _value(node)
    return value is not None and storage_of(value) == memory


def _value(node: Any) -> Any:
    """The tensor with strides that a node is, without its elements; None if it is something
    else."""
    value = node.meta.get("example_value", node.meta.get("val"))
    return value if is_tensor(value) and str(value.layout) == "torch.strided" else None


def _written(node: Any) -> Iterator[Any]:
    """The operands that a node changes, or a copy of which with the same strides."""
    if node.op not in ("call_function", "call_method"):
        return
    if _name(node) in _STRIDED:
        yield from _nodes(node.args[:1])
    schema = getattr(node.target, "_schema", None)
    if schema is not None:
        names = [argument.name for argument in schema.arguments]
        given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        for argument in schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                yield from _nodes(given.get(argument.name))
        return
    yield from _nodes(node.kwargs.get("out"))
    name = _name(node)
    if node.args and (
        node.target in _OPERATORS
        or (name.endswith("_") and not name.endswith("__"))
        or _is_in_place(node)
    ):
        yield from _nodes(node.args[0])


def _is_in_place(node: Any) -> bool:
    """Whether a function is told to put its result in the place of its operand."""
    if "inplace" in node.kwargs:
        return bool(node.kwargs["inplace"])
    if not inspect.isfunction(node.target) or not any(value is True for value in node.args):
        return False
    named = list(inspect.signature(node.target).parameters)
    return dict(zip(named, node.args, strict=False)).get("inplace") is True


def _nodes(nest: Any) -> Iterable[Any]:
    if isinstance(nest, list | tuple):
        for part in nest:
            yield from _nodes(part)
    elif hasattr(nest, "all_input_nodes"):
        yield nest
