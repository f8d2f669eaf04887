"""The operators of PyTorch's OpInfo database, and the samples of one that are taken."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

DTYPES = ("float32", "float16", "bfloat16", "int64")
SEED = 20

UNINITIALISED = ("empty", "new_empty", "empty_like", "empty_strided", "empty_permuted",
                 "new_empty_strided", "resize_", "resize_as_")  # fmt: skip
"""Operators whose results hold whatever was in memory."""


@functools.cache
def database() -> dict[str, Any]:
    """The OpInfo of every operator, by name. Raises ImportError without `expecttest`.

    Operators that may draw random numbers come wrapped in code that sets the seed, which cannot be
    traced: the wrapper is left out, and the caller sets the seed.
    """
    from torch.testing._internal import common_methods_invocations

    def plain(operator: Any, *args: Any, **kwargs: Any) -> Any:
        return operator(*args, **kwargs)

    common_methods_invocations.wrapper_set_seed = plain
    return {op.full_name: op for op in common_methods_invocations.op_db}


def operators(dtype: str, direction: str) -> list[str]:
    """Names of the operators that take a dtype (and have a gradient of it) on the CPU."""
    wanted = getattr(torch, dtype)
    return [
        name
        for name, op in database().items()
        if op.supports_dtype(wanted, "cpu")
        and (direction == "forward" or op.supports_autograd)
        and (direction == "forward" or wanted in op.supported_backward_dtypes("cpu"))
    ]


def samples(name: str, dtype: str, direction: str) -> Iterator[tuple[int, Any]]:
    """An operator's samples with their places, always the same."""
    torch.manual_seed(SEED)
    given = database()[name].sample_inputs(
        "cpu", getattr(torch, dtype), requires_grad=direction == "backward"
    )
    return enumerate(given)


def spread(count: int, most: int) -> list[int]:
    """At most `most` of `count` places (0: all), spread evenly."""
    taken = min(most, count) if most else count
    return [round(i * (count - 1) / max(taken - 1, 1)) for i in range(taken)]


def call_of(name: str, kwargs: dict[str, Any]) -> Callable[..., Any]:
    """The operator as a function of its input and positional arguments."""
    op = database()[name]

    def call(*args: Any) -> Any:
        return op(*args, **kwargs)

    return call


def mapped(nest: Any, change: Callable[[Any], Any]) -> Any:
    """A nest of arguments with each tensor changed."""
    from torch.utils import _pytree

    return _pytree.tree_map(lambda x: change(x) if isinstance(x, torch.Tensor) else x, nest)


def leaves(nest: Any) -> Sequence[Any]:
    from torch.utils import _pytree

    found: Sequence[Any] = _pytree.tree_leaves(nest)
    return found
