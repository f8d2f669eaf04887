"""ModelProto -> Graph."""

from __future__ import annotations

import logging
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

import onnx
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TypeProto,
    ValueInfoProto,
)

from fuser.base.limits import NODE_BYTES, check_bytes, check_structure_bytes
from fuser.dtypes import NARROW, DType, u8
from fuser.errors import (
    FuserError,
    InvalidModelError,
    LimitError,
    ParseError,
    UnsupportedError,
    UnsupportedOpError,
    UsageError,
)
from fuser.frontends.onnx.importer.constraints import check_constraints
from fuser.frontends.onnx.importer.functions import body_opsets, inline_functions, schema_body
from fuser.frontends.onnx.importer.loading import ModelSource, load_model
from fuser.frontends.onnx.importer.narrow import NARROW_MOVES, NARROW_OPS, narrow_of, to_codes
from fuser.frontends.onnx.importer.registry import OnnxNode, find_handler
from fuser.frontends.onnx.importer.types import narrow_dtype, onnx_dtype, tensor_array
from fuser.graph.builder import Builder
from fuser.graph.dims import Dim, parse, substitute, symbol, symbols_of
from fuser.graph.ir import Graph, Node, SourceKind, SourceNode, TensorType, Value
from fuser.graph.ops.primitive import Array
from fuser.graph.passes.dce import remove_dead_nodes

_log = logging.getLogger("fuser")

Seen = Callable[[NodeProto, str, Graph, int, MutableMapping[str, Value]], None]
"""Takes a node, its name, the graph, the number of the first node made of it, and the values of
tensors by name."""

_VIEWS = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Dropout"}
_SHAPE_READERS = {"Shape", "Size"}


def import_onnx(
    source: ModelSource,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, Array] | None = None,
    weights: Mapping[str, Array] | None = None,
    seen: Seen | None = None,
) -> Graph:
    """The Graph of a model, with `dims` bound to ints and the other symbolic dims kept.

    values: inputs that are constants from here on; the graph has no input of that name.
    weights: arrays of initializers that the model, already checked, has without data (load_mapped).
    seen: called after each node of the model was written out.
    Every ONNX node becomes primitives; shape arithmetic is followed and leaves no nodes.
    `graph.source` records the nodes as they stood in the model.
    Raises what load_model raises; UsageError for an unknown name in dims; one UnsupportedOpError
    that lists every unsupported node; ShapeError and InvalidModelError that name the node.
    """
    model = source if weights and isinstance(source, ModelProto) else load_model(source)
    return _Reader(model, dims or {}, values or {}, weights or {}, seen).read()


def signature(model: ModelProto) -> dict[str, TensorType]:
    """The inputs of a model that need a feed, with symbolic dims. Raises UnsupportedError."""
    held = {tensor.name for tensor in model.graph.initializer}
    return {info.name: _input_type(info) for info in model.graph.input if info.name not in held}


def narrow_types(model: ModelProto) -> dict[str, DType]:
    """The inputs and outputs of a model whose dtype is carried as codes of a byte."""
    found = {}
    for info in (*model.graph.input, *model.graph.output):
        if dtype := narrow_dtype(info.type.tensor_type.elem_type):
            found[info.name] = dtype
    return found


class _Reader:
    """The state of one import."""

    def __init__(
        self, model: ModelProto, dims: Mapping[str, int], values: Mapping[str, Array],
        weights: Mapping[str, Array], seen: Seen | None = None,
    ) -> None:  # fmt: skip
        self.model = model
        self.seen = seen
        self.proto = model.graph
        self.dims = dims
        self.bound = values
        self.weights = weights
        self.opsets = _opsets(model)
        self.graph = Graph(name=model.graph.name or "model")
        # Names of a subgraph hide those outside of it: each scope is a map before the others.
        self.values: ChainMap[str, Value] = ChainMap()
        self.held = {tensor.name: tensor for tensor in model.graph.initializer}
        self.initializers: ChainMap[str, onnx.TensorProto] = ChainMap(self.held)
        # What a name depends on: "constant" (weights only), "shape" (input shapes too), "data".
        self.depends: ChainMap[str, str] = ChainMap()
        self.codes: dict[Value, DType] = {}
        # The node that made a value under a name, and whatever name: a node that does nothing
        # passes its operand on, a function calls it otherwise.
        self.made_by: dict[tuple[str, Value], str] = {}
        self.failed: set[str] = set()
        # Bytes of the constants that operators made, as far as the graph's nodes were counted.
        self.tables, self.counted = 0, 0
        self.unsupported: list[str] = []
        self.operators: dict[tuple[str, str, int], None] = {}
        """Domain, name and opset of the unsupported ones."""

    def read(self) -> Graph:
        self._check_sparse()
        self._add_inputs()
        outputs = [output.name for output in self.proto.output]
        nodes = inline_functions(self.model)
        for index, node in enumerate(_live_nodes(nodes, outputs)):
            self._add_node(node, index)
        if self.unsupported:
            listed = "; ".join(self.unsupported)
            count = len(self.unsupported)
            error = UnsupportedOpError(
                f"{count} node{'s are' if count > 1 else ' is'} not supported: {listed}"
            )
            error.operators = tuple(self.operators)
            raise error
        for output in self.proto.output:
            value = self._value(output.name)
            if value is None:
                raise InvalidModelError(f"nothing computes the output {output.name}")
            self._check_output(output, value)
            self.graph.outputs.append(value)
            self.graph.output_names.append(output.name)
        return remove_dead_nodes(self.graph)

    def _check_output(self, info: ValueInfoProto, value: Value) -> None:
        """Hold an output against its declaration. Another dtype is an error. Another shape is noted
        only, as other runtimes do: exporters forget to declare what they changed, or declare the
        sizes that a model was traced with."""
        if info.type.WhichOneof("value") != "tensor_type":
            return
        declared, dtype = info.type.tensor_type, self.codes.get(value, value.dtype)
        wanted = narrow_dtype(declared.elem_type)
        if declared.elem_type and (wanted or onnx_dtype(declared.elem_type, info.name)) != dtype:
            what = f"the output {info.name} is {value.type}, but is declared as another dtype"
            raise InvalidModelError(what)
        if not declared.HasField("shape"):
            return
        sizes = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in declared.shape.dim]
        if len(sizes) == value.type.rank and all(
            size < 0 or not isinstance(dim, int) or size == dim
            for size, dim in zip(sizes, value.type.shape, strict=True)
        ):
            return
        shown = ", ".join(str(size) if size >= 0 else "?" for size in sizes)
        what = f"the output {info.name} is {value.type}, but is declared as [{shown}]"
        _log.warning("%s; what is computed decides", what)

    # inputs -------------------------------------------------------------------------------------

    def _check_sparse(self) -> None:
        if self.proto.sparse_initializer:
            raise UnsupportedError("sparse initializers are not supported")

    def _add_inputs(self) -> None:
        inputs = signature(self.model)
        known = sorted(
            {s for type in inputs.values() for dim in type.shape for s in symbols_of(dim)}
        )
        if unknown := sorted(set(self.dims) - set(known)):
            raise UsageError(
                f"the model has no symbolic dim {', '.join(unknown)}",
                hint=f"it has: {', '.join(known)}" if known else "all its dims are fixed",
            )
        for name, size in self.dims.items():
            if size < 0:
                raise UsageError(f"the dim {name} cannot be {size}")
        for name, type in inputs.items():
            if name in self.bound:
                self.values[name] = self._constant(self.bound[name], name)
                self.depends[name] = "constant"
                continue
            bound = tuple(substitute(dim, self.dims) for dim in type.shape)
            is_narrow = type.dtype in NARROW
            held = TensorType(u8 if is_narrow else type.dtype, bound)
            self.values[name] = self.graph.add_input(name, held)
            if is_narrow:
                self.codes[self.values[name]] = type.dtype
            self.depends[name] = "data"

    def _value(self, name: str) -> Value | None:
        """The value of a name; initializers become constants when first read."""
        if name not in self.values and name in self.initializers:
            # Bound in the scope that holds it, so that unrolled bodies share one constant.
            depth = next(i for i, held in enumerate(self.initializers.maps) if name in held)
            outermost = self.initializers.maps[depth] is self.held
            array = self.weights.get(name) if outermost else None
            if array is None:
                array = tensor_array(self.initializers[name])
            self.values.maps[depth][name] = self._constant(array, name)
            self.depends.maps[depth][name] = "constant"
        return self.values.get(name)

    def _constant(self, array: Array, name: str) -> Value:
        dtype = narrow_of(array)
        held = array if dtype is None else to_codes(array)
        value = self.graph.constant(held, (name,))
        self.tables -= held.nbytes  # a weight, which is counted with the plan
        if dtype is not None:
            self.codes[value] = dtype
        return value

    def inline(self, body: GraphProto, operands: Sequence[Value]) -> list[Value]:
        """The outputs of a subgraph whose inputs are `operands`, written out in place.

        Raises UnsupportedOpError where an operator in it is not supported.
        """
        scopes = self.values, self.initializers, self.depends
        self.values, self.depends = self.values.new_child(), self.depends.new_child()
        held = {tensor.name: tensor for tensor in body.initializer}
        self.initializers = self.initializers.new_child(held)
        try:
            for info, operand in zip(body.input, operands, strict=True):
                self.values[info.name], self.depends[info.name] = operand, "data"
            for index, node in enumerate(_live_nodes(body.node, [o.name for o in body.output])):
                self._add_node(node, index)
            outputs = [self._value(output.name) for output in body.output]
        finally:
            self.values, self.initializers, self.depends = scopes
        found = [value for value in outputs if value is not None]
        if len(found) != len(outputs):
            raise UnsupportedOpError(f"the subgraph {body.name} has operators without support")
        return found

    # nodes --------------------------------------------------------------------------------------

    def _add_node(self, proto: NodeProto, index: int) -> None:
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        opset = self.opsets.get(domain, 0)
        name = node_name(proto, index)
        node = OnnxNode(name, proto.op_type, domain, opset, [], list(proto.output))
        node.inline, node.codes = self.inline, self.codes
        first = len(self.graph.nodes)
        handler = find_handler(domain, proto.op_type, opset)
        if handler is None and self._expand(proto, domain, opset):
            if self.seen and not self.failed:
                self.seen(proto, name, self.graph, first, self.values)
            return
        if handler is None:
            self._fail(
                proto, f"{proto.op_type} (domain {domain or 'ai.onnx'}, opset {opset}) {name}"
            )
            return
        if any(operand in self.failed for operand in (*proto.input, *captured_names(proto))):
            self.failed.update(proto.output)
            return
        for operand in proto.input:
            value = self._value(operand) if operand else None
            if operand and value is None:
                raise InvalidModelError(f"nothing computes the tensor {operand}", where=node.where)
            node.inputs.append(value)
        if any(value in self.codes for value in node.inputs if value is not None):
            if proto.op_type not in (*NARROW_OPS, *NARROW_MOVES):
                self._fail(proto, f"{node.where} (opset {opset}): operands of a narrow dtype")
                return
        try:
            builder = Builder(self.graph, (name,))
            with _blaming(node):
                node.attrs = attributes_of(proto, node.where)
                check_constraints(builder, node)
                results = handler(builder, node)
        except UnsupportedOpError as error:
            self._fail(proto, error.what)
            return
        self._count_tables(node.where)
        outputs: list[Value | None] = [results] if isinstance(results, Value) else list(results)
        if proto.op_type in NARROW_MOVES and (dtype := node.narrow(0)):
            for value in outputs:
                if value is not None:
                    self.codes[value] = dtype
        self._bind_outputs(proto, node, outputs, self.graph.nodes[first:])
        if self.seen:
            self.seen(proto, name, self.graph, first, self.values)

    def _count_tables(self, where: str) -> None:
        """Raise OutOfMemoryError once the constants that operators made, the weights of the model
        aside, take more bytes than allowed."""
        for node in self.graph.nodes[self.counted :]:
            if node.op == "constant":
                self.tables += node.attrs["value"].nbytes
        self.counted = len(self.graph.nodes)
        try:
            check_bytes(self.tables, "what operators keep on the host")
            check_structure_bytes(NODE_BYTES * self.counted, "the graph")
        except LimitError as error:
            error.where = error.where or where
            raise

    def _expand(self, proto: NodeProto, domain: str, opset: int) -> bool:
        """Write out the function body that the schema of an operator has, if it has one."""
        if any(operand in self.failed for operand in proto.input):
            return False
        operands = [self._value(operand) if operand else None for operand in proto.input]
        types = [TypeProto() if value is None else _type_proto(value.type) for value in operands]
        body = schema_body(proto, domain, opset, types)
        if body is None:
            return False
        name = proto.name or proto.op_type
        node = OnnxNode(name, proto.op_type, domain, opset, operands, list(proto.output))
        with _blaming(node):
            node.attrs = attributes_of(proto, node.where)
            check_constraints(Builder(self.graph, (name,)), node)
        before, unsupported = self.opsets, len(self.unsupported)
        scopes = self.values, self.initializers, self.depends
        depends = {name: self.depends[operand] for name, operand in
                   zip(body.input, proto.input, strict=False) if operand}  # fmt: skip
        # A function sees its operands and nothing else.
        self.values, self.initializers = ChainMap(), ChainMap()
        self.depends = ChainMap(depends)
        self.opsets = {**before, **body_opsets(body)}
        try:
            for name, value in zip(body.input, operands, strict=False):
                if value is not None:
                    self.values[name] = value
            for index, inner in enumerate(_live_nodes(body.node, _wanted(body, proto))):
                named = NodeProto()
                named.CopyFrom(inner)
                named.name = f"{proto.name or proto.op_type}.{inner.name or inner.op_type}"
                self._add_node(named, index)
            found = [self.values.get(name) for name in body.output]
            kinds = [self.depends.get(name, "data") for name in body.output]
        finally:
            self.values, self.initializers, self.depends = scopes
            self.opsets = before
        for name, value, kind in zip(proto.output, found, kinds, strict=False):
            if name and value is not None:
                self.values[name], self.depends[name] = value, kind
            elif name:
                self.failed.add(name)
        return len(self.unsupported) > unsupported or not self.failed & set(proto.output)

    def _fail(self, proto: NodeProto, what: str) -> None:
        self.unsupported.append(what)
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        self.operators[domain, proto.op_type, self.opsets.get(domain, 1)] = None
        self.failed.update(proto.output)

    def _bind_outputs(
        self, proto: NodeProto, node: OnnxNode, outputs: list[Value | None], made: list[Node]
    ) -> None:
        sources = [self.depends[name] for name in proto.input if name]
        depends = _join(sources)
        if proto.op_type in _SHAPE_READERS and depends == "data":
            depends = "shape"
        produced = dict(zip((n for n in proto.output), outputs, strict=False))
        for name in proto.output:
            if name:
                value = produced.get(name)
                if value is None:
                    raise InvalidModelError(f"the output {name} is not computed", where=node.where)
                self.values[name] = value
                self.depends[name] = depends
        kind: SourceKind = "compute"
        if depends == "constant":
            kind = "constant"
        elif depends == "shape":
            kind = "shape"
        elif proto.op_type in _VIEWS or outputs[0] is node.optional(0):
            kind = "view"
        read, written = (
            [(name, self.values[name]) for name in dict.fromkeys(names) if name]
            for names in (proto.input, proto.output)
        )
        makers = [self._maker(name) for name, _ in read]
        for name, value in written:
            self.made_by[name, value] = node.name
            self.made_by.setdefault(("", value), node.name)
        self.graph.source.append(
            SourceNode(
                node.name, proto.op_type, kind,
                tuple(value.type for _, value in read), tuple(value.type for _, value in written),
                tuple(dict.fromkeys(filter(None, makers))),
                tuple(value.name for _, value in read), tuple(value.name for _, value in written),
            )
        )  # fmt: skip

    def _maker(self, name: str) -> str | None:
        value = self.values[name]
        return self.made_by.get((name, value)) or self.made_by.get(("", value))


def node_name(proto: NodeProto, index: int) -> str:
    """What a node is called here: by its name, else its first output."""
    return proto.name or next((o for o in proto.output if o), f"{proto.op_type}_{index}")


def _wanted(body: FunctionProto, proto: NodeProto) -> list[str]:
    """The results of a body that the call uses."""
    pairs = zip(body.output, proto.output, strict=False)
    return [name for name, output in pairs if output]


def _type_proto(type: TensorType) -> TypeProto:
    dims = [dim if isinstance(dim, int) else None for dim in type.shape]
    elem_type = onnx.helper.np_dtype_to_tensor_dtype(type.dtype.numpy)
    return onnx.helper.make_tensor_type_proto(elem_type, dims)


def _input_type(info: ValueInfoProto) -> TensorType:
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        raise UnsupportedError(f"the input {info.name} is a {kind}, not a tensor")
    tensor = info.type.tensor_type
    dtype = narrow_dtype(tensor.elem_type)
    dtype = dtype or onnx_dtype(tensor.elem_type, f"input {info.name}")
    if not tensor.HasField("shape"):
        raise UnsupportedError(f"the input {info.name} has no known rank")
    shape = tuple(
        _read_dim(dim, f"{info.name}_dim{axis}") for axis, dim in enumerate(tensor.shape.dim)
    )
    try:
        return TensorType(dtype, shape)
    except LimitError as error:
        error.where = f"input {info.name}"
        raise


def _join(sources: Iterable[str]) -> str:
    found = set(sources)
    for kind in ("data", "shape"):
        if kind in found:
            return kind
    return "constant"


def _opsets(model: ModelProto) -> dict[str, int]:
    opsets = {
        "" if entry.domain == "ai.onnx" else entry.domain: entry.version
        for entry in model.opset_import
    }
    # IR version 1 and 2 had no opset imports: they meant opset 1.
    opsets.setdefault("", 1)
    newest = onnx.defs.onnx_opset_version()
    if opsets[""] > newest:
        raise UnsupportedError(
            f"the model uses opset {opsets['']}", hint=f"the newest known here is {newest}"
        )
    return opsets


def _read_dim(dim: Any, default: str) -> Dim:
    """An int, or a symbol: named dims by their name, unnamed ones after the input."""
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    if dim.HasField("dim_value") and dim.dim_value < -1:  # -1 is how some exporters say "any"
        raise InvalidModelError(f"{default} is {dim.dim_value}")
    if not dim.dim_param:
        return symbol(default)
    try:
        return parse(dim.dim_param)
    except ParseError:
        return symbol(dim.dim_param)


def _live_nodes(nodes: Sequence[NodeProto], outputs: Sequence[str]) -> list[NodeProto]:
    """The nodes that an output depends on, in order."""
    needed = set(outputs)
    live = []
    for node in reversed(nodes):
        if any(name in needed for name in node.output if name):
            needed.update(name for name in node.input if name)
            needed.update(captured_names(node))
            live.append(node)
    return live[::-1]


def captured_names(node: NodeProto) -> set[str]:
    """The names that the subgraphs of a node may read from around it."""
    found: set[str] = set()
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            for inner in body.node:
                found.update(name for name in inner.input if name)
                found |= captured_names(inner)
            found.update(output.name for output in body.output)
    return found


@contextmanager
def _blaming(node: OnnxNode) -> Iterator[None]:
    """Errors in the block name the node. What is not a FuserError becomes an InvalidModelError:
    importers met attributes or operands that no valid model has."""
    try:
        yield
    except (AttributeError, ArithmeticError, AssertionError, LookupError, TypeError,
            ValueError) as error:  # fmt: skip
        message = f"the node is malformed: {type(error).__name__}: {error}"
        raise InvalidModelError(message, where=node.where) from error
    except FuserError as error:
        error.where = error.where if error.where not in ("", node.name) else node.where
        raise


def attributes_of(proto: NodeProto, where: str) -> dict[str, Any]:
    """The Python values of the attributes of a node."""
    return {attribute.name: _attribute(attribute, where) for attribute in proto.attribute}


def _attribute(attribute: AttributeProto, where: str) -> Any:
    """The Python value of an attribute: strings decoded, tensors as arrays, graphs as they are."""
    if attribute.ref_attr_name:
        what = f"{attribute.name} refers to {attribute.ref_attr_name!r}, outside of a function"
        raise InvalidModelError(what, where=where)
    if attribute.type == AttributeProto.TENSOR:
        return tensor_array(attribute.t, where)
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if attribute.type == AttributeProto.STRINGS:
        return [item.decode(errors="replace") for item in value]
    return list(value) if attribute.type in (AttributeProto.INTS, AttributeProto.FLOATS) else value
