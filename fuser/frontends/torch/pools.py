"""Max pooling in training: no indices are kept for the backward pass.

    max_pool2d_with_indices_backward(grad, x, ..., indices)  =>  max_pool_backward(grad, x, ...)

The place of a maximum is found again from x, which the operator before keeps anyway as a rule; an
index would be 8 bytes for each element of the result.
"""

from __future__ import annotations

from typing import Any

import torch


@torch.library.custom_op("fuser::max_pool_backward", mutates_args=())
def _backward(
    grad: torch.Tensor, x: torch.Tensor, window: list[int], strides: list[int], padding: list[int],
    dilation: list[int], ceil_mode: bool,
) -> torch.Tensor:  # fmt: skip
    """The gradient of x. This runs where a graph is left to PyTorch; kernels of fuser have the
    handler of this name in the importer."""
    options = window, strides, padding, dilation, ceil_mode
    aten = torch.ops.aten
    if len(window) == 2:
        indices = aten.max_pool2d_with_indices(x, *options)[1]
        return aten.max_pool2d_with_indices_backward(grad, x, *options, indices)  # type: ignore[no-any-return]
    indices = aten.max_pool3d_with_indices(x, *options)[1]
    return aten.max_pool3d_with_indices_backward(grad, x, *options, indices)  # type: ignore[no-any-return]


@_backward.register_fake
def _(grad: Any, x: Any, *_: Any) -> Any:
    return x.new_empty(x.shape)


def max_pool_backward(
    grad: Any, x: Any, window: list[int], strides: list[int], padding: list[int],
    dilation: list[int], ceil_mode: bool, indices: Any,
) -> Any:  # fmt: skip
    """What PyTorch's operator of the longer name is taken apart into."""
    return torch.ops.fuser.max_pool_backward(grad, x, window, strides, padding, dilation, ceil_mode)
