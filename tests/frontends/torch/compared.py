"""Functions compared with eager PyTorch, whose graphs must all be compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any


def compiled(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function gives by torch.compile with fuser; a graph that is left to PyTorch is an
    error."""
    import torch

    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "fuser leaves")
        return torch.compile(function, backend="fuser", dynamic=False)(*arguments)


def assert_as_eager(function: Callable[..., Any], *arguments: Any, **tolerances: Any) -> None:
    """The results are those of eager PyTorch: NaN where it has NaN, and zeros of the same sign."""
    import torch

    with torch.no_grad():
        wanted, found = function(*arguments), compiled(function, *arguments)
    torch.testing.assert_close(found, wanted, equal_nan=True, **tolerances)
    from torch.utils._pytree import tree_leaves

    for have, want in zip(tree_leaves(found), tree_leaves(wanted), strict=True):
        if want.dtype.is_floating_point:
            zero = (have == 0) & (want == 0)
            assert torch.equal(have.signbit() & zero, want.signbit() & zero), "a zero's sign"


def gradients(function: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
    """The gradients of a weighted sum of a function's results."""
    import torch

    given = [x.detach().clone().requires_grad_(x.requires_grad) for x in arguments]
    results = function(*given)
    from torch.utils._pytree import tree_leaves

    ends = [y for y in tree_leaves(results) if y.requires_grad]
    weights = [((torch.arange(y.numel()) % 7 + 1) / 4).to(y.dtype).reshape(y.shape) for y in ends]
    return torch.autograd.grad(ends, [x for x in given if x.requires_grad], weights)


def assert_gradients_as_eager(function: Callable[..., Any], *arguments: Any) -> None:
    import torch

    wanted = gradients(function, *arguments)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "fuser leaves")
        fused = torch.compile(function, backend="fuser", dynamic=False)
        torch.testing.assert_close(gradients(fused, *arguments), wanted, equal_nan=True)
