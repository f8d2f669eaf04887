"""Read and check an ONNX model. Every failure is one error of the tree, with one clear line."""

from __future__ import annotations

import math
import os
import re
import stat
from pathlib import Path
from typing import Any, TypeAlias

import onnx
from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto

from fuser.base.limits import check_structure_bytes
from fuser.errors import ArgumentTypeError, InvalidModelError, UsageError
from fuser.frontends.onnx.importer.checks import check_structure, check_text_depth, tensors
from fuser.frontends.onnx.importer.external import find_external, load_external
from fuser.frontends.onnx.importer.inference import FAILURES
from fuser.frontends.onnx.importer.mapped import MappedModel
from fuser.frontends.onnx.importer.text import check_text
from fuser.frontends.onnx.importer.types import ELEMENT_BITS

ModelSource: TypeAlias = "str | Path | bytes | ModelProto"
HOMELESS = frozenset(("SimplifiedLayerNormalization",))
"""Operators that ONNX Runtime puts into the standard domain, whose specification lacks them."""
STRUCTURE_TIMES = 20
"""Bytes of memory for a byte of nodes, names and attributes in a file."""
_TEXT_SUFFIXES = (".onnxtxt", ".onnxtext")


def load_model(source: ModelSource) -> ModelProto:
    """The checked model of a file (binary, or `.onnxtxt`), its bytes, or a ModelProto.

    External data is read from the folder of the file and what importer/external.py allows beside
    it; bytes and ModelProtos must hold their data. Raises UsageError (no such file;
    ArgumentTypeError for an object of another type), InvalidModelError (not ONNX, truncated,
    against the specification, external data missing), SecurityError (external data elsewhere).
    """
    if isinstance(source, ModelProto):
        model = source
        _require_graph(model, "the ModelProto")
        _refuse_external(model)
        _check(model, "the ModelProto")
        return model
    if isinstance(source, bytes):
        model = _parse(source, "the bytes")
        _refuse_external(model)
        _check(model, "the bytes")
        return model
    if not isinstance(source, str | os.PathLike):
        jitted = callable(source) and not isinstance(source, type)
        raise ArgumentTypeError(
            f"a {type(source).__name__} is no model: a model is the path of an ONNX file, its"
            " bytes, a ModelProto, or an nn.Module, GraphModule or ExportedProgram of PyTorch",
            hint="fuser.jit compiles a function of NumPy arrays" if jitted else "",
        )
    return _load_file(Path(source))


def load_mapped(path: Path | str) -> tuple[ModelProto, MappedModel | None]:
    """`load_model` of a file, with the data of large weights left in the file: the message has
    them without data, `weights` of the second has them. None: the message is whole.

    For who reads the weights once and soon, see MappedModel. Raises what load_model raises.
    """
    path = Path(path)
    if path.suffix not in _TEXT_SUFFIXES and path.is_file():
        try:
            mapped = MappedModel(path)
        except OSError:
            return _load_file(path), None
        if mapped.weights:
            model = _parse(mapped.message, str(path))
            if not _external_tensors(model):
                _check(model, str(path))
                return model, mapped
    return _load_file(path), None


def _load_file(path: Path) -> ModelProto:
    where = str(path)
    try:
        if not path.is_dir() and not stat.S_ISREG(path.stat().st_mode):
            raise UsageError("this is no regular file", where=where)
        data = path.read_bytes()
    except FileNotFoundError:
        raise UsageError("there is no such file", where=where) from None
    except IsADirectoryError:
        raise UsageError("this is a folder, not a model file", where=where) from None
    except OSError as error:
        raise UsageError(f"the file cannot be read: {error.strerror}", where=where) from None
    if path.suffix in _TEXT_SUFFIXES:
        try:
            text = data.decode()
            check_text_depth(text, where)
            check_structure_bytes(STRUCTURE_TIMES * len(text), "the structure of the model")
            model = onnx.parser.parse_model(text)
        except (onnx.parser.ParseError, UnicodeDecodeError) as error:
            raise InvalidModelError(f"not ONNX text: {_sentence(error)}", where=where) from None
        _check(model, where)
        return model
    model = _parse(data, where)
    del data
    external = _external_tensors(model)
    if not external:
        _check(model, where)
        return model
    find_external(external, path)  # before more is made of a model that points elsewhere
    _check(model, where)
    load_external(external, path)
    return model


def _parse(data: bytes, where: str) -> ModelProto:
    if not data:
        raise InvalidModelError("the file is empty, not an ONNX model", where=where)
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        if data.startswith((b"FUSERP", b"FUSERD")):  # runtime/container.py
            raise InvalidModelError(
                "this is a compiled plan, not an ONNX model", where=where,
                hint="fuser inspect shows it, fuser.Plan.load or DynamicPlan.load runs it",
            ) from None  # fmt: skip
        message = "this is not an ONNX model, or it is cut short"
        raise InvalidModelError(message, where=where) from None
    _check_structure_size(model, len(data))
    _require_graph(model, where)
    return model


def _check_structure_size(model: ModelProto, size: int) -> None:
    """Raise OutOfMemoryError if what a message of `size` bytes has beside weights takes more memory
    than allowed: in messages, copies of them and graphs it takes many times its bytes."""
    bits = (ELEMENT_BITS.get(tensor.data_type, 32) for tensor in model.graph.initializer)
    weights = sum(
        max(math.prod(tensor.dims), 0) * each // 8
        for tensor, each in zip(model.graph.initializer, bits, strict=True)
        if not len(tensor.external_data)
    )
    check_structure_bytes(STRUCTURE_TIMES * (size - weights), "the structure of the model")


def _require_graph(model: ModelProto, where: str) -> None:
    if not model.HasField("graph") or not model.ir_version:
        raise InvalidModelError("this is not an ONNX model: it has no graph", where=where)
    check_text(model, where)


def without_weights(model: ModelProto) -> ModelProto:
    """A copy of the model whose weights are inputs: small, and enough to check and to inline."""
    light = ModelProto(ir_version=model.ir_version)
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    graph, full = light.graph, model.graph
    graph.name = full.name
    graph.node.extend(full.node)
    graph.input.extend(full.input)
    graph.output.extend(full.output)
    graph.sparse_initializer.extend(full.sparse_initializer)
    declared = {info.name for info in full.input}
    graph.input.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in full.initializer
        if tensor.name not in declared
    )
    return light


def _check(model: ModelProto, where: str) -> None:
    """Check all but the weights, whose data import reads anyway: gigabytes would take seconds."""
    light = without_weights(model)
    for info in light.graph.output:
        if not info.HasField("type"):
            info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for info in (*light.graph.input, *light.graph.output):
        # Runtimes accept outputs without a type or a shape; the checker does not.
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.shape.SetInParent()
    _give_homes(light)
    check_structure(model, where)
    try:
        onnx.checker.check_model(light)
    except FAILURES as error:
        message = f"the model breaks the ONNX specification: {_sentence(error)}"
        raise InvalidModelError(message, where=where) from None


def _give_homes(light: ModelProto) -> None:
    """Move operators that the standard domain lacks where the checker asks nothing about them."""
    for node in light.graph.node:
        if node.op_type in HOMELESS and not node.domain:
            node.domain = "com.microsoft"
            if all(entry.domain != node.domain for entry in light.opset_import):
                light.opset_import.add(domain=node.domain, version=1)


def check_types(model: ModelProto) -> None:
    """Raise InvalidModelError unless the types and shapes of every node are right by the rules of
    the onnx package. Import finds most of what is wrong first, and says it better."""
    light = without_weights(model)
    _give_homes(light)
    for info in light.graph.output:  # a declared shape is a note: import holds results against it
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    try:
        onnx.shape_inference.infer_shapes(light, check_type=True, strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        blamed = re.search(r"op_type:(\w+)", str(error))
        if blamed and _has_body(blamed.group(1)):  # bodies of operators are not all well-formed
            return
        message = f"the model breaks the ONNX specification: {_sentence(error)}"
        raise InvalidModelError(message) from None
    except FAILURES as error:
        message = f"the model breaks the ONNX specification: {_sentence(error)}"
        raise InvalidModelError(message) from None


def _has_body(op_type: str) -> bool:
    if not onnx.defs.has(op_type):
        return False
    schema: Any = onnx.defs.get_schema(op_type)
    return bool(schema.has_function or schema.has_context_dependent_function)


def _sentence(error: Exception) -> str:
    """What the onnx package says, as one line: its sentences go over several, and end in the node
    that they are about."""
    said = error.args[0] if error.args else ""
    whole = said.decode(errors="replace") if isinstance(said, bytes) else str(error)
    text, _, context = whole.partition("==> Context:")
    what = " ".join(text.split()).rstrip(".") or type(error).__name__
    what = re.sub(r"\bnode: name: ?(.*?) ?OpType: (\w+)", _node, what)
    blamed = re.search(r"Name: ?(.*?) ?OpType: (\w+)", " ".join(context.split()))
    return f"{what} ({_node(blamed)})" if blamed else what


def _node(found: re.Match[str]) -> str:
    name, kind = found.groups()
    return f"{kind} node {name}" if name else f"{kind} node"


def _external_tensors(model: ModelProto) -> list[TensorProto]:
    uses_external_data = onnx.external_data_helper.uses_external_data
    return [tensor for tensor in tensors(model) if uses_external_data(tensor)]


def _refuse_external(model: ModelProto) -> None:
    if external := _external_tensors(model):
        raise InvalidModelError(
            f"the tensor {external[0].name} keeps its data in another file",
            hint="pass the path of the model, or load its data first (onnx.load)",
        )
