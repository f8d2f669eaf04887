"""A training step as two graphs: what the backward graph computes again is what the forward had.

    y = tanh(x).amax()                        kept: x, y             of amax:
    grad x = where(tanh(x) == y, ...)    =>   kept: tanh(x) == y     tanh is not computed again

PyTorch's partitioner computes again whatever is cheap. That is the same to within a rounding: a
kernel keeps 16-bit floats as float32 from one operator to the next, and another kernel may have
other operators. A comparison of two tensors tells such values apart: the maximum that was stored is
none of the values that are computed again. What is compared is therefore kept, or the comparison
is, whichever takes less memory. So is what a max pool finds its maxima in.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fuser.frontends.torch.draws import number_draws

_ORDER = ("lt", "le", "gt", "ge")
_EQUALITY = ("eq", "ne")


def partition(joint: Any, *arguments: Any, num_fwd_outputs: int, **named: Any) -> Any:
    """The forward and the backward graph of a joint one (see AOTAutograd)."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    number_draws(joint)
    _forget_detached(joint)
    keep_compared(joint, num_fwd_outputs)
    return min_cut_rematerialization_partition(
        joint, *arguments, num_fwd_outputs=num_fwd_outputs, **named
    )


def _forget_detached(joint: Any) -> None:
    """Read operands where detached ones are read: a joint graph has all gradients already. What is
    returned stays detached, so that no gradient is wanted of it."""
    import torch

    for node in joint.graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default):
        node.replace_all_uses_with(node.args[0], delete_user_cb=lambda user: user.op != "output")
        if not node.users:
            joint.graph.erase_node(node)


def keep_compared(joint: Any, count: int) -> None:
    """Mark what may not be computed again. count: how many results are those of the forward."""
    import torch
    from torch.utils.checkpoint import CheckpointPolicy

    output = list(joint.graph.nodes)[-1]
    results = torch.utils._pytree.arg_tree_leaves(*output.args)
    forward = _before(x for x in results[:count] if isinstance(x, torch.fx.Node))
    late: set[Any] = set()  # what follows from the gradients of results
    for node in joint.graph.nodes:
        is_given = node.op == "placeholder" and "tangents" in str(node.target)
        if node.op != "output" and (is_given or not late.isdisjoint(node.all_input_nodes)):
            late.add(node)
    wanted = _before(late)  # by the backward graph
    for node in joint.graph.nodes:
        if node not in wanted or not (operands := _compared(node)):
            continue
        for operand in _before((x for x in operands if x not in late), stop=forward):
            if operand in forward and operand.op == "call_function":
                if operand.meta.get("recompute") is None:
                    operand.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _compared(node: Any) -> list[Any]:
    """The operands that a node chooses by, where a rounding more or less is another choice."""
    library, _, name = str(node.target).partition(".")
    operator, _, overload = name.partition(".")
    operands = [x for x in node.all_input_nodes if _is_float(x)]
    if library == "fuser" and operator == "max_pool_backward":
        return [x for x in operands[1:] if _is_narrow(x)]
    if library != "aten" or overload != "Tensor" or len(operands) != 2:
        return []
    if operator in _EQUALITY or (operator in _ORDER and any(map(_is_narrow, operands))):
        return operands
    return []


def _before(nodes: Iterable[Any], stop: Iterable[Any] = ()) -> set[Any]:
    """The nodes and what they are computed from, back to those of `stop`: of a view that is one
    its operand as well."""
    found: set[Any] = set()
    open_ = list(nodes)
    ends = set(stop)
    while open_:
        node = open_.pop()
        if node not in found:
            found.add(node)
            if node not in ends or _is_view(node):
                open_ += node.all_input_nodes
    return found


def _is_view(node: Any) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(
        result.alias_info is not None and not result.alias_info.is_write
        for result in schema.returns
    )


def _is_float(node: Any) -> bool:
    value = node.meta.get("val")
    return bool(getattr(getattr(value, "dtype", None), "is_floating_point", False))


def _is_narrow(node: Any) -> bool:
    return int(node.meta["val"].dtype.itemsize) == 2
