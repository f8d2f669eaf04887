"""Sizes and strides of traced tensors: ints, or PyTorch's symbolic ones (SymInt)."""

from __future__ import annotations

from typing import Any

from fuser.graph.dims import Dim, parse


def is_symbolic(size: Any) -> bool:
    return type(size).__name__ == "SymInt"


def dim_of(size: Any) -> Dim:
    """A size as a dim. Raises ParseError for an expression that is none of fuser's."""
    return parse(str(size.node.expr)) if is_symbolic(size) else int(size)


def hint(size: Any) -> int:
    """A size as it was when the program was traced, which asks nothing of the tracer."""
    return int(size.node.hint) if is_symbolic(size) else int(size)
