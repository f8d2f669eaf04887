"""What the user is told where PyTorch runs what `torch.compile` gave to fuser."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from fuser.errors import FuserError, LimitError, UnsupportedError

_PLACE = re.compile(r'File "([^"]*)", line (\d+), in (.*)\n *(.*)')

MOST_NAMED = 5
"""Operators that one warning names with their lines."""


@dataclass(frozen=True)
class Leaving:
    """A node that is left to PyTorch. error: what came of compiling it; None: no handler for it."""

    node: Any
    error: Exception | None = None

    @property
    def why(self) -> str:
        if self.error is None:
            return "is not supported"
        if isinstance(self.error, UnsupportedError | LimitError):
            return f"is not supported here: {self.error.what}"
        return _why(self.error)


def around_nodes(left: Mapping[str, Leaving]) -> str:
    """The note on a graph that is compiled but for these nodes."""
    return (
        f"fuser leaves operators to PyTorch: {_operators(left.values())}. What is around them is "
        "compiled in parts; between these, tensors go through memory"
    )


def whole_graph(left: Mapping[str, Leaving], error: Exception | None = None) -> str:
    """The note on a graph of which nothing is compiled: for an error, or for these nodes."""
    if error is not None:
        return f"fuser leaves a graph to PyTorch: {_why(error)}"
    return f"fuser leaves a graph to PyTorch: {_operators(left.values())}. It has little else"


def is_told(left: Mapping[str, Leaving]) -> bool:
    """Whether there is something to say: not that PyTorch draws the seed of random numbers."""
    return any(not str(each.node.target).startswith("fuser.seed") for each in left.values())


def tell(text: str, told: set[str]) -> None:
    """Warn, once for each text."""
    if text not in told:
        told.add(text)
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def alike(nodes: Collection[Any], one: Any) -> list[Any]:
    """The nodes that cannot be compiled if `one` cannot, as far as operator, numbers, dtypes and
    ranks say: `one` among them."""
    return [node for node in nodes if node is one or _form(node) == _form(one)]


def _form(node: Any) -> Any:
    values = [source.meta.get("val") for source in node.all_input_nodes]
    types = [(getattr(x, "dtype", type(x)), getattr(x, "ndim", None)) for x in values]
    return node.op, node.target, re.sub(r"\b[a-z]\w*\b", "", str((node.args, node.kwargs))), types


def _operators(left: Collection[Leaving]) -> str:
    """The operators, each once, with the reason and the first line of the program that has it."""
    found: dict[tuple[str, str], tuple[Leaving, int]] = {}
    for each in left:
        if str(each.node.target).startswith("fuser.seed"):
            continue
        key = str(each.node.target), each.why
        first, count = found.get(key, (each, 0))
        found[key] = first, count + 1
    texts = []
    for (name, why), (first, count) in found.items():
        often = f" ({count} times)" if count > 1 else ""
        place = place_of(first.node)
        where = f" ({place})" if place else ""
        texts.append(f"{name}{often} {why}{where}{_advice(first)}")
    more = len(texts) - MOST_NAMED
    return "; ".join([*texts[:MOST_NAMED], *([f"and {more} more"] if more > 0 else [])])


def _why(error: Exception) -> str:
    if isinstance(error, UnsupportedError | LimitError):
        return str(error)
    kind = type(error).__name__
    return f"compiling it failed, a defect of fuser; please report {kind}: {error}"


def _advice(left: Leaving) -> str:
    hint = left.error.hint if isinstance(left.error, FuserError) else ""
    return f", {hint}" if hint else ""


def place_of(node: Any) -> str:
    """The line of the program that a node comes from, or its module, where PyTorch knows it."""
    found = _PLACE.findall(node.meta.get("stack_trace") or "")
    if found:
        file, line, function, code = found[-1]
        return f"{file}:{line}, in {function}: {code.strip()}"
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    return f"in {modules[-1][0]}" if modules else ""
