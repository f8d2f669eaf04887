"""Compute what does not depend on the inputs.

    %w = constant f32[4096, 1024]               %t = constant f32[1024, 4096]
    %t = transpose(%w) {perm = (1, 0)}    =>    %y = dot_general(%x, %t)
    %y = dot_general(%x, %t)

What is cheap to recompute stays computed, so that constants stay small: broadcasts, masks and
positions made of iotas and numbers only, and weights that keep_quantised kept. Indices of a gather
and other weights always fold. A result that is one number throughout becomes that number,
broadcast.
"""

from __future__ import annotations

import numpy as np

from fuser import dtypes
from fuser.base.limits import current
from fuser.errors import FuserError
from fuser.graph.builder import Builder
from fuser.graph.dims import DimExpr
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops.collective import COLLECTIVES
from fuser.graph.ops.families import KERNEL_CALL
from fuser.graph.ops.primitive import Array
from fuser.graph.ops.registry import primitive
from fuser.graph.passes.rewrite import rewrite, uniform

BUDGET = 1 << 20
"""Bytes that a folded constant may take if it is larger than the constants it is made of."""

WORK = 1 << 28
"""Bytes of a value that are worth computing here, if it is not made of constants as large."""

MASK_LIMIT = 1 << 22
"""Masks of more elements are not looked into for being true or false throughout."""


def fold_constants(graph: Graph) -> Graph:
    """The graph, changed in place: nodes on constants alone are constants, within the budget."""
    folder = _Folder(graph)

    def rule(b: Builder, node: Node, operands: tuple[Value, ...]) -> Value | None:
        if len(node.outputs) != 1:
            return None
        if node.output in folder.masks:
            return _fold_uniform_mask(b, folder, node.output)
        if node.output not in folder.wanted:
            return None
        array = folder.evaluate(node.output)
        if array is None:
            return None
        may_fill = array.ndim and folder.only_maps[node.output]
        if node.op == "constant" and not (may_fill and uniform(node.output) is not None):
            return None
        result = b.constant(np.ascontiguousarray(array).reshape(array.shape))
        fill = uniform(result) if may_fill else None
        if fill is not None:
            result = b.broadcast_to(b.constant(fill), node.output.type.shape)
        folder.arrays[result] = array
        return result

    return rewrite(graph, rule)


def _fold_uniform_mask(b: Builder, folder: _Folder, value: Value) -> Value | None:
    array = folder.evaluate(value)
    if array is None or array.size == 0 or array.all() != array.any():
        return None
    result = b.full(bool(array.all()), value.type)
    folder.arrays[result] = array
    return result


class _Folder:
    """Which values are static, which of them to fold, and their arrays."""

    def __init__(self, graph: Graph) -> None:
        self.arrays: dict[Value, Array | None] = {}
        # The bytes of the constants below a static value; 0 for scalars and iotas only.
        self.weight: dict[Value, int] = {}
        self.wanted: set[Value] = set()
        self.masks: set[Value] = set()
        # Indices and weights: plain constants tell later stages more than how they are made.
        self.always: set[Value] = set()
        self.only_maps: dict[Value, bool] = {}  # of static values, and broadcasts
        self.memory = current().memory
        self.computed = 0  # bytes of the arrays that were computed here
        for node in graph.nodes:
            if _is_static(node, self.weight):
                total = sum(self.weight[value] for value in set(node.inputs))
                if node.op == "constant" and node.attrs["value"].size > 1:
                    total = node.attrs["value"].nbytes
                for value in node.outputs:
                    self.weight[value] = total
        outputs = set(graph.outputs)
        uses: dict[Value, list[Node]] = {value: [] for value in self.weight}
        for node in graph.nodes:
            for value in node.inputs:
                if value in uses:
                    uses[value].append(node)
            if node.op == "broadcast":
                uses.setdefault(node.output, [])
        for node in reversed(graph.nodes):
            if node.op in ("gather", "conv", "dot_general"):
                self.always.add(node.inputs[1])
            for value in node.outputs:
                readers = uses.get(value)
                if readers is None:
                    continue
                self.only_maps[value] = value not in outputs and all(
                    primitive(reader.op).kind == "map"
                    or (reader.op == "broadcast" and self.only_maps[reader.output])
                    for reader in readers
                )
                if value in self.weight:
                    kept = [r for r in readers if not self._is_folded(r)]
                    if (kept or value in outputs) and self._is_foldable(value):
                        self.wanted.add(value)
                    elif kept and self._is_mask(value):
                        self.masks.add(value)

    def _is_folded(self, node: Node) -> bool:
        if len(node.outputs) != 1:
            return False
        return all(v in self.weight and self._is_foldable(v) for v in node.outputs)

    def _is_foldable(self, value: Value) -> bool:
        node = value.node
        if node is not None and node.op == "dequantize":
            return False  # it was kept for its bytes: see keep_quantised
        if value in self.always:
            return node is not None
        if node is None or node.op in ("broadcast", "iota"):
            return False
        if node.op == "constant":
            # Rewritten only to turn a uniform constant into a scalar.
            return True
        if node.op == "dims":
            return True
        if self.weight[value] == 0 and value.type.size != 1:
            return False
        return value.type.bytes <= max(BUDGET, self.weight[value])

    def _is_mask(self, value: Value) -> bool:
        is_map = value.node is not None and primitive(value.node.op).kind == "map"
        return is_map and value.dtype is dtypes.bool_ and value.type.size <= MASK_LIMIT

    def evaluate(self, value: Value) -> Array | None:
        """The array of a static value, None if it cannot be computed (an index out of range), or
        not without work that its constants do not ask for."""
        if value not in self.arrays:
            size = value.type.bytes
            if size > max(WORK, 4 * self.weight[value]) or self.computed + size > self.memory:
                self.arrays[value] = None
                return None
            assert value.node is not None
            operands = [self.evaluate(operand) for operand in value.node.inputs]
            known = [operand for operand in operands if operand is not None]
            try:
                results = (
                    primitive(value.node.op).evaluate(known, value.node.attrs)
                    if len(known) == len(operands)
                    else ()
                )
            except FuserError:
                results = ()
            for index, output in enumerate(value.node.outputs):
                self.arrays[output] = results[index] if results else None
            if value.node.op != "constant":
                self.computed += sum(array.nbytes for array in results if array.flags.owndata)
        return self.arrays[value]


def _is_static(node: Node, static: dict[Value, int]) -> bool:
    for value in node.inputs:
        if value not in static:
            return False
    if node.op in COLLECTIVES or node.op == KERNEL_CALL:
        return False  # the ranks may have different constants; a kernel is made to run compiled
    if any(isinstance(d, DimExpr) for value in node.outputs for d in value.type.shape):
        return False
    return node.op != "dims" or not any(isinstance(d, DimExpr) for d in node.attrs["values"])
