"""Calls of a graph without what AOTAutograd puts around it.

For inference AOTAutograd hands over a functional graph and wraps what the back end makes of it: to
write back arguments that the program changes, to make results that are views of arguments, to take
subclasses of tensors apart. Where none of it is there, the wrappers only hand on, and take time in
every call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def hands_on(metadata: Any, module: Any, arguments: Sequence[Any]) -> bool:
    """Whether the wrappers around a graph for inference do nothing but call it with the arguments
    as they are and return its results.

    metadata: what AOTAutograd found out about the program (ViewAndMutationMeta). module: the
    functional graph. arguments: those of the program.
    """
    try:
        nodes = module.graph.nodes
        (output,) = (node for node in nodes if node.op == "output")
        inputs = [node for node in nodes if node.op == "placeholder"]
        return (
            len(inputs) == len(arguments) == len(metadata.input_info)
            and len(output.args[0]) == len(metadata.output_info)
            and all(item.mutation_type.name == "NOT_MUTATED" for item in metadata.input_info)
            and all(_is_new(item) for item in metadata.output_info)
            and all(map(_is_plain, metadata.subclass_inp_meta))
            and all(map(_is_plain, metadata.subclass_fw_graph_out_meta))
            and metadata.num_intermediate_bases == 0
            and metadata.grad_enabled_mutation is None
            and not metadata.tokens
            and not getattr(metadata, "act_input_indices", ())
            and not metadata.is_rng_op_functionalized
        )
    except AttributeError:  # a PyTorch that keeps it otherwise
        return False


def _is_new(result: Any) -> bool:
    """Whether a result shares memory with nothing, and has no sizes that PyTorch is told of."""
    return result.output_type.name == "non_alias" and not result.dynamic_dims


def _is_plain(kind: Any) -> bool:
    """Whether a tensor is of no subclass; older versions have its number there."""
    return isinstance(kind, int) or type(kind).__name__ == "PlainTensorMeta"
