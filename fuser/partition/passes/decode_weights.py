"""Weights decoded when the plan is built: where matmuls wait for arithmetic, not for bytes.

    %w = dequantize(%codes, %scale)               %w = constant
    %y = conv(%x, %w)                      =>     %y = conv(%x, %w)

On a CPU a convolution of many pixels decodes its weights again for every few of them, and only
constants can be transformed for Winograd's algorithm. matmuls decode once for many rows.
"""

from __future__ import annotations

from math import prod

import numpy as np

from fuser.graph.copying import begin_copy, clone_node
from fuser.graph.ir import Graph, Node
from fuser.graph.ops.registry import primitive
from fuser.graph.sizes import size_hint
from fuser.partition.passes.live import without_dead

MOST_PIXELS = 64
"""Of a convolution whose weights stay packed on a CPU: up to here it waits for them."""


def decode_weights(graph: Graph) -> Graph:
    """A copy in which the weights of convolutions of many pixels are float constants."""
    found = {
        node
        for node in graph.nodes
        if node.op == "conv" and _decoder(node) is not None and _pixels(node) > MOST_PIXELS
    }
    if not found:
        return graph
    copy, values = begin_copy(graph)
    for node in graph.nodes:
        decoder = _decoder(node) if node in found else None
        if decoder is not None:
            weights = copy.constant(_decoded(decoder))
            clone_node(copy, node, values | {decoder.output: weights})
            values[node.output] = copy.nodes[-1].output
        else:
            clone_node(copy, node, values)
    copy.outputs = [values[value] for value in graph.outputs]
    return without_dead(copy)


def _decoder(conv: Node) -> Node | None:
    made = conv.inputs[1].node
    return made if made is not None and made.op == "dequantize" else None


def _pixels(conv: Node) -> int:
    batch, _, *spatial = conv.output.shape
    return prod(size_hint(dim) for dim in (batch, *spatial))


def _decoded(decoder: Node) -> np.ndarray:
    arrays = [value.constant for value in decoder.inputs]
    (weights,) = primitive("dequantize").evaluate(
        [array for array in arrays if array is not None], decoder.attrs
    )
    return np.ascontiguousarray(weights)
