"""What PyTorch takes apart before fuser imports a graph: core ATen, with a few changes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any


def decompositions() -> dict[Any, Callable[..., Any]]:
    """For a program that is traced: PyTorch's table of core ATen, less what the partitioner knows
    whole: attention. The LSTM layer that PyTorch keeps for a library of its own is taken apart as
    well. Operators of users' libraries that are made of others need no entry: tracing goes through
    them."""
    return dict(_traced(False))


def training_decompositions() -> dict[Any, Callable[..., Any]]:
    """The same, and norms, softmax and activations as their parts: of those PyTorch keeps a few
    numbers a row for the backward graph, which computes the rest again."""
    return dict(_traced(True))


def exported_decompositions() -> dict[Any, Callable[..., Any]]:
    """For a program that was exported, in which operators of users' libraries are still whole."""
    import torch

    return _changed(dict(torch.export.default_decompositions()))


def triton_ops(nodes: Iterable[Any]) -> dict[Any, Callable[..., Any]]:
    """What operators of `torch.library.triton_op` among these nodes are made of: an exported
    program has them whole."""
    from torch._library.custom_ops import OPDEFS
    from torch._library.triton import triton_ops_to_kernels
    from torch._subclasses.functional_tensor import dispatch_functionalize

    found = {}
    for node in nodes:
        name = getattr(node.target, "_name", "")
        if name in triton_ops_to_kernels and name in OPDEFS:
            found[node.target] = dispatch_functionalize(OPDEFS[name]._abstract_fn)
    return found


@functools.cache
def _traced(training: bool) -> Mapping[Any, Callable[..., Any]]:
    """PyTorch asks every library for its operators: a table takes a tenth of a second."""
    import torch

    if not training:
        return exported_decompositions()
    aten = torch.ops.aten
    whole = ("_softmax", "_log_softmax", "gelu", "native_layer_norm", "native_group_norm")
    names = [getattr(aten, name).default for name in whole]
    batch_norms = ("_native_batch_norm_legit_functional", "_batch_norm_with_update_functional")
    names += [getattr(aten, name).default for name in (*batch_norms, "batch_norm_backward")]
    table = {**_traced(False), **torch._decomp.get_decompositions(names)}
    from fuser.frontends.torch.pools import max_pool_backward

    for name in ("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward"):
        table[getattr(aten, name).default] = max_pool_backward
    from fuser.frontends.torch.attention import BACKWARD

    for name, function in BACKWARD.items():
        if hasattr(aten, name):
            table[getattr(aten, name).default] = function
    return table


def _changed(table: dict[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    import torch

    # As `alias` a detached result is a view for autograd: a gradient is wanted of it once one is
    # wanted of what it shares its memory with.
    for name in (
        "scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu", "detach",
    ):  # fmt: skip
        table.pop(getattr(torch.ops.aten, name).default, None)
    taken_apart = [getattr(torch.ops.aten, name) for name in ("dist", "grid_sampler_2d", "ldexp")]
    table.update(torch._decomp.get_decompositions(taken_apart))
    # As gathers and sums, which join the kernels around them; torch.compile has them so anyway.
    smooth = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")
    names = [getattr(torch.ops.aten, name).vec for name in smooth]
    table.update(torch._decomp.get_decompositions(names))
    table[torch.ops.aten.select_scatter.default] = _select_scatter
    table[torch.ops.aten.frac.default] = _frac
    table[torch.ops.aten.linalg_vector_norm.default] = _vector_norm
    table[torch.ops.aten.special_ndtr.default] = normal_distribution
    table[torch.ops.aten.mkldnn_rnn_layer.default] = _lstm_layer
    table[torch.ops.aten._thnn_fused_lstm_cell.default] = lstm_cell
    table[torch.ops.aten._thnn_fused_gru_cell.default] = gru_cell
    return table


def _frac(x: Any) -> Any:
    """As eager computes it; PyTorch's own parts before 2.13 have another zero for -0."""
    return x - x.trunc()


def _select_scatter(x: Any, source: Any, axis: int, index: Any) -> Any:
    """In the dtype of x; PyTorch's own parts promote both."""
    import torch

    return torch._refs.select_scatter(x, source.to(x.dtype), axis, index)


def _vector_norm(
    x: Any, order: Any = 2, axes: Any = None, keep: bool = False, *, dtype: Any = None
) -> Any:
    """The operator itself with axes from the front: before PyTorch 2.12 its shape for others is
    wrong if their sizes are 1."""
    import torch

    if not axes or min(axes) >= 0:
        return NotImplemented
    places = [axis % max(x.ndim, 1) for axis in axes]
    norm = torch.ops.aten.linalg_vector_norm.default
    return norm(x, order, places, keep, dtype=dtype)


def replace_calls(module: Any) -> None:
    """Let a graph that Dynamo captured call functions of fuser, in place: what AOTAutograd would
    take apart before it looks at a table."""
    import torch
    from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_mutation

    from fuser.frontends.torch.attention import attention
    from fuser.frontends.torch.kernels import launch_or_leave

    found = {
        torch.nn.functional.scaled_dot_product_attention: attention,
        torch.special.ndtr: normal_distribution,
        triton_kernel_wrapper_mutation: launch_or_leave,
    }
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            calls = [n for n in part.graph.nodes if n.op == "call_function" and n.target in found]
            for node in calls:
                node.target = found[node.target]
            if calls:
                part.recompile()


def normal_distribution(x: Any) -> Any:
    """The distribution function of a standard normal variable. PyTorch adds 1 and an error function
    near -1, of which few digits are left."""
    return (x * -math.sqrt(0.5)).erfc() * 0.5


def lstm_cell(
    given: Any, recurred: Any, cell: Any, b_input: Any = None, b_state: Any = None
) -> tuple[Any, Any, Any]:
    """The state, the cell and a workspace, from the matmuls with the inputs and the state; gates
    in the order input, forget, cell, output. What PyTorch has as one kernel on a GPU."""
    total = _biased(given, b_input) + _biased(recurred, b_state)
    enter, keep, fresh, leave = total.chunk(4, 1)
    c = keep.sigmoid() * cell + enter.sigmoid() * fresh.tanh()
    return leave.sigmoid() * c.tanh(), c, given.new_empty(0)


def gru_cell(
    given: Any, recurred: Any, state: Any, b_input: Any = None, b_state: Any = None
) -> tuple[Any, Any]:
    """The state and a workspace; gates in the order reset, update, new."""
    reset, update, new = _biased(given, b_input).chunk(3, 1)
    reset_too, update_too, new_too = _biased(recurred, b_state).chunk(3, 1)
    fresh = (new + (reset + reset_too).sigmoid() * new_too).tanh()
    return fresh + (update + update_too).sigmoid() * (state - fresh), given.new_empty(0)


def _biased(x: Any, bias: Any) -> Any:
    return x if bias is None else x + bias


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
        h, c, _ = lstm_cell(step, h @ w_state.t(), c)
        outputs.append(h)
    y = torch.stack(outputs[::-1] if reverse else outputs)
    return y, h.unsqueeze(0), c.unsqueeze(0), x.new_empty(0)
