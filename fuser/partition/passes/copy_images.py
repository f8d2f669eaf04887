"""Copies of images whose channels lie apart, for convolutions that read rows of channels.

    %y = conv %x [n, c, h, w], a model's input
 =>
    region: %p = pad %x, its channels last and rounded to what matmuls multiply
    region: %y = conv %p without padding
Between kernels of ours layout.py stores channels last; what a caller gives is row-major. A matmul
by tiles or dot instructions would pick every channel of every pixel by itself, once a tap; a copy
picks them once, by squares of vectors. A matmul of float32 by plain vectors has a short loop for
every tap of an image of few channels; in the copy a row of the window is one run.
"""

from __future__ import annotations

from math import prod

from fuser.base.target import Target
from fuser.dtypes import f32
from fuser.graph.copying import begin_copy, clone_node
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops.registry import build
from fuser.graph.sizes import by_example
from fuser.graph.work import operand_dtype

FEW_CHANNELS = 16
"""Of the images that float32 matmuls read from a copy."""
TILE_ELEMENTS = 14 * 32
"""Of a usual register tile of a matmul."""
TAP_CYCLES, COPY_CYCLES = 12, 2
"""What the loop of a tap costs beside its matmuls, and what copying an element costs."""


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


@by_example
def _pays(node: Node, target: Target) -> bool:
    """Whether a node would pick channels of an input more than once, at a higher cost than a
    copy's."""
    if node.op != "conv" or node.attrs["groups"] != 1:
        return False
    image, weights = node.inputs[:2]
    taps = prod(weights.shape[2:])
    if image.node is not None or image.constant is not None or taps == 1:
        return False
    if target.dot_unit(operand_dtype(node).name) is not None:
        return "operands" in node.attrs
    if image.dtype != f32 or operand_dtype(node) != f32 or weights.constant is None:
        return False
    if image.shape[1] >= FEW_CHANNELS or node.attrs["dilation"][-1] != 1:
        return False
    # every tap is a short loop, begun once a register tile; in the copy a row of the window is one
    outputs, *spatial = node.output.shape[1:]
    tiles = image.shape[0] * prod(spatial) * outputs / TILE_ELEMENTS
    saved = TAP_CYCLES * tiles * (taps - taps // weights.shape[-1])
    low, high = zip(*node.attrs["padding"], strict=True)
    copied = image.shape[0] * image.shape[1]
    for size, before, after in zip(image.shape[2:], low, high, strict=True):
        copied *= size + before + after
    return bool(saved > COPY_CYCLES * copied)
