"""Copies of images whose channels lie apart, for convolutions that read rows of channels.

    %y = conv %x [n, c, h, w], a model's input
 =>
    region: %p = pad %x, its channels last and rounded to what products multiply
    region: %y = conv %p without padding
Between kernels of ours layout.py stores channels last; what a caller gives is row-major. A product
by tiles or dot instructions would pick every channel of every pixel by itself, once a tap; a copy
picks them once, by squares of vectors.
"""

from __future__ import annotations

from math import prod

from fuser.graph.copying import begin_copy, clone_node
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops.registry import build
from fuser.graph.precision import operand_dtype
from fuser.target import Target


def copy_images(graph: Graph, target: Target) -> tuple[Graph, set[Value]]:
    """(a graph whose convolutions read copies of the inputs where that pays, the copies): they must
    stay kernels of their own."""
    kept: set[Value] = set()
    nodes = {node for node in graph.nodes if _pays(node, target)}
    if not nodes:
        return graph, kept
    result, values = begin_copy(graph)
    copies: dict[tuple[Value, tuple[tuple[int, int], ...]], Value] = {}
    for node in graph.nodes:
        if node not in nodes:
            clone_node(result, node, values)
            continue
        image, padding = node.inputs[0], tuple(node.attrs["padding"])
        key = (image, padding)
        if key not in copies:
            low, high = zip(*padding, strict=True)
            copies[key] = build(
                result, "pad", values[image], low=(0, 0, *low), high=(0, 0, *high),
                value=float(node.attrs.get("fill", 0)), origin=node.origin,
            )  # fmt: skip
            kept.add(copies[key])
        attrs = {**node.attrs, "padding": ((0, 0),) * len(padding)}
        operands = (copies[key], *(values[value] for value in node.inputs[1:]))
        values[node.output] = build(result, node.op, *operands, origin=node.origin, **attrs)
    result.outputs = [values[value] for value in graph.outputs]
    return result, kept


def _pays(node: Node, target: Target) -> bool:
    """Whether a node would pick channels of an input more than once."""
    if node.op != "conv" or node.attrs["groups"] != 1 or "operands" not in node.attrs:
        return False
    image, weights = node.inputs[:2]
    given = image.node is None and image.constant is None
    taps = prod(weights.shape[2:])
    return given and taps > 1 and target.dot_unit(operand_dtype(node).name) is not None
