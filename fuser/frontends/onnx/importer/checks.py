"""What a model must be before other code, the onnx package's included, may follow it: of bounded
depth and size, with names that are told apart and weights that say one thing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from fuser.base.limits import check_nodes
from fuser.errors import InvalidModelError, LimitError

MOST_NESTED = 200
"""Calls of functions, and blocks of text, within one another. Protobuf itself stops at 100."""

_Key = tuple[str, str, str]
_FIELDS = ("float_data", "int32_data", "int64_data", "uint64_data", "double_data", "string_data")


def check_text_depth(text: str, where: str) -> None:
    """Raise InvalidModelError for text so nested that onnx's parser would end the process."""
    depth = 0
    for letter in text:
        if letter in "{}<>()[]":
            depth += 1 if letter in "{<([" else -1
            if depth > 4 * MOST_NESTED:
                raise InvalidModelError("the text is nested too deeply", where=where)


def check_structure(model: ModelProto, where: str) -> None:
    """Raise InvalidModelError; LimitError for functions and loops that grow beyond bounds."""
    _check_opsets(model, where)
    names = [output.name for output in model.graph.output]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidModelError(f"two outputs are called {twice!r}", where=where)
    for tensor in tensors(model):
        _check_tensor(tensor, where)
    if model.functions:
        _check_functions(model, where)
    check_nodes(_written_out(model.graph, {}), "the model")


def tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor of a model: weights, sparse ones, and those in attributes, at any depth."""
    pending: list[GraphProto] = [model.graph]
    nodes: list[NodeProto] = [node for function in model.functions for node in function.node]
    while pending or nodes:
        if pending:
            graph = pending.pop()
            yield from graph.initializer
            for sparse in graph.sparse_initializer:
                yield from (sparse.values, sparse.indices)
            nodes.extend(graph.node)
        for node in nodes:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors
                for item in (attribute.sparse_tensor, *attribute.sparse_tensors):
                    if item.dims:
                        yield from (item.values, item.indices)
                if attribute.HasField("g"):
                    pending.append(attribute.g)
                pending.extend(attribute.graphs)
        nodes = []


def _check_opsets(model: ModelProto, where: str) -> None:
    seen: dict[str, int] = {}
    for entry in model.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if seen.setdefault(domain, entry.version) != entry.version:
            what = f"the model imports two opsets of {domain or 'ai.onnx'}"
            raise InvalidModelError(what, where=where)


def _check_tensor(tensor: TensorProto, where: str) -> None:
    """Data in one place, as much as a message tells without reading it."""
    held = [name for name in _FIELDS if len(getattr(tensor, name))]
    if tensor.HasField("raw_data"):
        held.append("raw_data")
    outside = onnx.external_data_helper.uses_external_data(tensor)
    if len(held) > 1 or (held and outside):
        what = f"the tensor {tensor.name} has data twice: {', '.join(held)}"
        raise InvalidModelError(what + (" and a file" if outside else ""), where=where)
    if any(dim < 0 for dim in tensor.dims):
        raise InvalidModelError(f"the tensor {tensor.name} has a negative size", where=where)
    if tensor.data_type not in TensorProto.DataType.values()[1:]:
        what = f"the tensor {tensor.name} has no element type ({tensor.data_type})"
        raise InvalidModelError(what, where=where)


# loops --------------------------------------------------------------------------------------------

MOST_ITERATIONS = 1024
"""Iterations that are written out; a loop of more is refused when it is met."""


def _written_out(graph: GraphProto, counts: dict[str, int]) -> int:
    """The nodes of a graph, with loops whose trip count a weight tells written out."""
    counts = dict(counts)
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.INT64 and tensor.name not in counts:
            if len(tensor.raw_data) == 8:
                counts[tensor.name] = int.from_bytes(tensor.raw_data, "little", signed=True)
            elif len(tensor.int64_data) == 1:
                counts[tensor.name] = tensor.int64_data[0]
    total = len(graph.node)
    for node in graph.node:
        count = 1
        if node.op_type == "Loop" and node.input:
            count = min(max(counts.get(node.input[0], 1), 1), MOST_ITERATIONS)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node:
                    total += count * _written_out(inner, counts)
    return total


# functions ----------------------------------------------------------------------------------------


def _key(node: NodeProto) -> _Key:
    return (node.domain, node.op_type, getattr(node, "overload", ""))


def _calls(nodes: Iterable[NodeProto]) -> Iterator[_Key]:
    """The operator of every node, those of subgraphs included."""
    pending = list(nodes)
    while pending:
        node = pending.pop()
        yield _key(node)
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                pending.extend(graph.node)


def _check_functions(model: ModelProto, where: str) -> None:
    """Count what calls write out, without writing it out."""
    table: dict[_Key, FunctionProto] = {}
    for function in model.functions:
        key = (function.domain, function.name, getattr(function, "overload", ""))
        if key in table:
            raise InvalidModelError(f"two functions are called {function.name}", where=where)
        table[key] = function
    sizes: dict[_Key, tuple[int, int]] = {}  # nodes, depth
    active: set[_Key] = set()
    for start in table:
        stack = [start]
        while stack:
            key = stack[-1]
            if key in sizes:
                stack.pop()
                continue
            inner = list(_calls(table[key].node))
            waiting = [call for call in dict.fromkeys(inner) if call in table and call not in sizes]
            if key in active and waiting:
                raise InvalidModelError(f"the function {key[1]} calls itself", where=where)
            active.add(key)
            if waiting:
                stack.extend(waiting)
                continue
            known = [sizes.get(call, (1, 0)) for call in inner]
            sizes[key] = sum(size for size, _ in known), 1 + max((d for _, d in known), default=0)
            active.discard(key)
            stack.pop()
    total = sum(sizes.get(call, (1, 0))[0] for call in _calls(model.graph.node))
    check_nodes(total, "the model")
    if deepest := [key for key, (_, depth) in sizes.items() if depth > MOST_NESTED]:
        what = f"calls of functions are nested more than {MOST_NESTED} deep in {deepest[0][1]}"
        raise LimitError(what, where=where)
