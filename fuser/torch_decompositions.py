"""What PyTorch takes apart before fuser imports a graph: core ATen, with a few changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's table of core ATen, less what the partitioner knows whole: attention. The LSTM
    layer that PyTorch keeps for a library of its own is taken apart as well."""
    import torch

    table: dict[Any, Callable[..., Any]] = dict(torch.export.default_decompositions())
    for name in ("scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu"):
        table.pop(getattr(torch.ops.aten, name).default, None)
    table[torch.ops.aten.mkldnn_rnn_layer.default] = _lstm_layer
    return table


def _lstm_layer(
    x: Any, w_input: Any, w_state: Any, b_input: Any, b_state: Any, state: Any, cell: Any,
    reverse: bool, batch_sizes: Sequence[int], mode: int, hidden: int, layers: int, biases: bool,
    bidirectional: bool, batch_first: bool, train: bool,
) -> Any:  # fmt: skip
    """One direction of one LSTM layer (mode 2) over x [length, batch, features]: the states, the
    last state and cell, each with a leading 1, and a workspace that only training reads."""
    import torch

    if mode != 2 or layers != 1 or bidirectional or batch_first or batch_sizes:
        return NotImplemented
    given = torch.nn.functional.linear(x, w_input, b_input + b_state if biases else None)
    h, c = state.reshape(state.shape[-2:]), cell.reshape(cell.shape[-2:])
    steps = list(given.unbind(0))
    outputs = []
    for step in reversed(steps) if reverse else steps:
        enter, keep, fresh, leave = (step + h @ w_state.t()).chunk(4, 1)
        c = keep.sigmoid() * c + enter.sigmoid() * fresh.tanh()
        h = leave.sigmoid() * c.tanh()
        outputs.append(h)
    y = torch.stack(outputs[::-1] if reverse else outputs)
    return y, h.unsqueeze(0), c.unsqueeze(0), x.new_empty(0)
