"""Models with operators that no kernel can express: compiled segments, and the host between them.

Strings, sequences, optionals and maps, results whose shape depends on data, dtypes without
kernels and operators of callers (host_operators.py) run in NumPy, one at a time, most by the
reference implementation of the onnx package.
What lies between them is compiled as usual, and so are the bodies of loops (host_loops.py).
`fallbacks` names every operator that ran on the host.
The reference implementation is not made for models from people you do not trust.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto
from onnx.reference import ReferenceEvaluator

from fuser.base.limits import check_bytes, check_time
from fuser.errors import (
    InvalidModelError,
    OutOfMemoryError,
    UnsupportedError,
    UnsupportedOpError,
)
from fuser.frontends.onnx.host_checks import HostCheck, bytes_held
from fuser.frontends.onnx.host_feeds import HostFeeds
from fuser.frontends.onnx.host_loops import Body, HostLoop
from fuser.frontends.onnx.host_operators import evaluator
from fuser.frontends.onnx.importer.functions import has_body
from fuser.frontends.onnx.importer.inference import inferred
from fuser.frontends.onnx.importer.reader import captured_names
from fuser.frontends.onnx.importer.registry import find_handler
from fuser.frontends.onnx.importer.types import host_array, is_supported
from fuser.frontends.onnx.model import open_model
from fuser.graph.numerics import current, using
from fuser.pipeline.devices import check_device
from fuser.pipeline.options import CompileOptions
from fuser.pipeline.specialise import Specialised
from fuser.runtime.plan import Plan

Signature = tuple[tuple[str, str, int], ...]


@dataclass
class _Segment:
    """Consecutive nodes. host: they run in NumPy; otherwise as a compiled model of their own."""

    nodes: list[NodeProto]
    host: bool
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    compiled: dict[Signature, Specialised] = field(default_factory=dict)
    evaluator: ReferenceEvaluator | None = None
    loop: HostLoop | None = None
    check: HostCheck | None = None


class Segmented:
    """A model cut into segments. Runs are as many kernels as the compiled segments have."""

    def __init__(self, proto: ModelProto, options: CompileOptions) -> None:
        check_device(options.device, options.threads)
        self.proto, self.options = proto, options
        self.numerics = current()
        self.fallbacks: list[str] = []
        self._constants = {tensor.name: host_array(tensor) for tensor in proto.graph.initializer}
        self._opsets = {
            "" if entry.domain == "ai.onnx" else entry.domain: entry.version
            for entry in proto.opset_import
        }
        self._feeds = HostFeeds(proto)
        self._segments = self._cut()
        self._wire()

    @property
    def plans(self) -> list[Plan]:
        """Every plan of every compiled segment so far, and of the bodies of loops."""
        models: list[Specialised | Body] = []
        for segment in self._segments:
            models += segment.compiled.values()
            models += segment.loop.bodies if segment.loop is not None else []
        return [plan for model in models for plan in model.plans]

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by name: arrays, lists for sequences, None for an empty optional."""
        values: dict[str, Any] = {**self._constants, **self._feeds.check(feeds)}
        position = held = 0
        seen: set[int] = set()
        while position < len(self._segments):
            segment = self._segments[position]
            given = {name: values[name] for name in segment.inputs}
            found: dict[str, Any] | None
            if segment.host:
                found = self._run_loop(segment, given)
                found = self._run_host(segment, given) if found is None else found
            else:
                try:
                    found = self._run_compiled(segment, given)
                except UnsupportedError:
                    self._split(position)
                    continue
            values |= found
            # Data decides how large they are: each operator may give twice what it got.
            held += sum(bytes_held(value, seen) for value in found.values())
            check_bytes(held, "what lies between operators on the host")
            check_time()
            position += 1
        return {output.name: values[output.name] for output in self.proto.graph.output}

    def plan(self, feeds: Mapping[str, np.ndarray]) -> tuple[Plan, dict[str, np.ndarray]] | None:
        """The plan that all of the last run was, if it was one, with what it reads: the feeds and
        constants. None where a segment is the host's or kernels were compiled for values."""
        if len(self._segments) != 1 or self._segments[0].host:
            return None
        segment = self._segments[0]
        values = {**self._constants, **feeds}
        given = {name: np.asarray(values[name]) for name in segment.inputs}
        model = segment.compiled.get(_signature(given))
        outputs = {output.name for output in self.proto.graph.output}
        if model is None or model.value_inputs or not outputs <= set(segment.outputs):
            return None
        plan = model.plan(given)
        if {spec.name for spec in plan.inputs} - set(given):
            return None
        return plan, {spec.name: given[spec.name] for spec in plan.inputs}

    # cutting ------------------------------------------------------------------------------------

    def _cut(self) -> list[_Segment]:
        dense = _dense_names(self.proto)
        segments: list[_Segment] = []
        for node in self.proto.graph.node:
            host = not self._is_compilable(node, dense)
            if not segments or segments[-1].host or host:
                segments.append(_Segment([], host))
            segments[-1].nodes.append(node)
        return segments

    def _is_compilable(self, node: NodeProto, dense: Mapping[str, bool]) -> bool:
        domain = "" if node.domain == "ai.onnx" else node.domain
        opset = self._opsets.get(domain, 1)
        names = (*node.input, *node.output, *captured_names(node))
        if not all(dense.get(name, True) for name in names):
            return False
        return find_handler(domain, node.op_type, opset) is not None or has_body(
            node, domain, opset
        )

    def _wire(self) -> None:
        """What each segment reads from those before it and gives to those after it."""
        needed = {output.name for output in self.proto.graph.output}
        for segment in reversed(self._segments):
            made = {name for node in segment.nodes for name in node.output if name}
            segment.outputs = [
                name for node in segment.nodes for name in node.output if name in needed
            ]
            read: dict[str, None] = {}
            local: set[str] = set()
            known = self._known_before(segment)
            for node in segment.nodes:
                for name in (*node.input, *sorted(captured_names(node))):
                    if name and name not in local and (name not in made or name in known):
                        if name in known:
                            read[name] = None
                local.update(node.output)
            segment.inputs = list(read)
            needed |= set(read)

    def _known_before(self, segment: _Segment) -> set[str]:
        known = {*self._constants, *(info.name for info in self.proto.graph.input)}
        for other in self._segments:
            if other is segment:
                return known
            known.update(name for node in other.nodes for name in node.output)
        return known

    def _split(self, position: int) -> None:
        """A segment that does not compile is cut around its loops, or where it has none becomes
        one a node; a node alone goes to the host."""
        segment = self._segments[position]
        if len(segment.nodes) == 1:
            segment.host = True
            return
        has_loops = any(node.op_type == "Loop" for node in segment.nodes)
        parts: list[list[NodeProto]] = []
        for node in segment.nodes:
            before = parts[-1][-1].op_type if parts else "Loop"
            alone = not has_loops or "Loop" in (node.op_type, before)
            if alone:
                parts.append([])
            parts[-1].append(node)
        self._segments[position : position + 1] = [_Segment(nodes, False) for nodes in parts]
        self._wire()

    # running ------------------------------------------------------------------------------------

    def _run_loop(self, segment: _Segment, given: Mapping[str, Any]) -> dict[str, Any] | None:
        """The results of a Loop by compiled bodies; None if it is none, or not by them."""
        node = segment.nodes[0]
        if node.op_type != "Loop" or node.domain not in ("", "ai.onnx"):
            return None
        if segment.loop is None:
            segment.loop = HostLoop(node, self._of_body)
        results = segment.loop.run(given)
        if results is None:
            return None
        for body in segment.loop.bodies:
            self.fallbacks += [note for note in body.fallbacks if note not in self.fallbacks]
        found = dict(zip(node.output, results, strict=False))
        return {name: found[name] for name in segment.outputs}

    def _of_body(self, body: GraphProto, feeds: Mapping[str, np.ndarray]) -> Segmented:
        infos = [_info(name, array) for name, array in feeds.items()]
        model = self._model(body.node, infos, body.output)
        model.graph.initializer.extend(body.initializer)
        with using(self.numerics):
            return Segmented(model, self.options)

    def _run_host(self, segment: _Segment, given: Mapping[str, Any]) -> dict[str, Any]:
        node = segment.nodes[0]
        note = f"{node.op_type} ({node.name or next(iter(node.output), '')})"
        if note not in self.fallbacks:
            self.fallbacks.append(note)
        if segment.check is None:
            segment.check = HostCheck(node, self._opsets)
        segment.check.check(given)
        if segment.evaluator is None:
            infos = [ValueInfoProto(name=name) for name in (*segment.inputs, *_BOUNDS)]
            outputs = [ValueInfoProto(name=name) for name in segment.outputs]
            model = self._model([_bounded(node)], infos, outputs)
            try:
                segment.evaluator = evaluator(model)
            except Exception as error:  # it knows neither the operator nor its attributes, say
                raise UnsupportedOpError(
                    f"the operator {node.op_type} of {node.domain or 'ai.onnx'} has no kernel, and"
                    f" the host cannot run it: {type(error).__name__}: {_line(error)}",
                    where=note,
                    hint="write it in Python: fuser.register_host_op(domain, name, function)",
                ) from error
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                results: Any = segment.evaluator.run(None, {**given, **_BOUNDS})
        except MemoryError:
            raise OutOfMemoryError(
                "the operator needs more memory than there is", where=note
            ) from None
        except Exception as error:  # the reference raises what NumPy and its operators raise
            message = f"the operator failed on the host: {type(error).__name__}: {_line(error)}"
            raise InvalidModelError(message, where=note) from error
        return dict(zip(segment.outputs, results, strict=True))

    def _run_compiled(self, segment: _Segment, given: Mapping[str, Any]) -> dict[str, Any]:
        arrays: dict[str, np.ndarray] = {}
        for name, value in given.items():
            if not isinstance(value, np.ndarray | np.generic):
                raise UnsupportedError(f"{name} is not a tensor")
            arrays[name] = np.asarray(value)
        signature = _signature(arrays)
        if signature not in segment.compiled:
            infos = [_info(name, a) for name, a in arrays.items()]
            model = self._model(segment.nodes, infos, [])
            model = inferred(model)
            types = {info.name: info for info in model.graph.value_info}
            model.graph.output.extend(
                types.get(name, ValueInfoProto(name=name, type=_any_tensor()))
                for name in segment.outputs
            )
            del model.graph.value_info[:]
            with using(self.numerics):
                opened = open_model(model)
            segment.compiled[signature] = Specialised(opened, self.options, write_out_loops=False)
        return dict(segment.compiled[signature].run(arrays))

    def _model(
        self, nodes: Sequence[NodeProto], inputs: Sequence[ValueInfoProto],
        outputs: Sequence[ValueInfoProto],
    ) -> ModelProto:  # fmt: skip
        graph = GraphProto(name="segment", node=nodes, input=inputs, output=outputs)
        return ModelProto(
            ir_version=self.proto.ir_version,
            opset_import=self.proto.opset_import,
            functions=self.proto.functions,
            graph=graph,
        )


def _line(error: Exception) -> str:
    """The first line of what the reference implementation says: some list all operators."""
    return (str(error).strip().splitlines() or [""])[0]


_BOUNDS = {"fuser.trip_count": np.int64(2**62), "fuser.always": np.asarray(True)}
"""What operands of a Loop mean that are left out, by names that no model has."""


def _bounded(node: NodeProto) -> NodeProto:
    """The node with all operands that the reference implementation needs: of a Loop both limits,
    though the specification does not."""
    if node.op_type != "Loop" or node.domain not in ("", "ai.onnx"):
        return node
    full = NodeProto()
    full.CopyFrom(node)
    for index, name in enumerate(_BOUNDS):
        full.input[index] = node.input[index] or name
    return full


def _signature(arrays: Mapping[str, np.ndarray]) -> Signature:
    return tuple((name, a.dtype.name, a.ndim) for name, a in arrays.items())


def _info(name: str, array: np.ndarray) -> ValueInfoProto:
    elem_type = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    shape = [f"{name}_{axis}" for axis in range(array.ndim)]
    return onnx.helper.make_tensor_value_info(name, elem_type, shape)


def _any_tensor() -> TypeProto:
    return TypeProto(tensor_type=TypeProto.Tensor(elem_type=onnx.TensorProto.FLOAT))


def _dense_names(proto: ModelProto) -> dict[str, bool]:
    """For every name with a known type, whether it is a tensor that kernels can hold."""
    graph = inferred(proto).graph
    table = {
        info.name: info.type.WhichOneof("value") == "tensor_type"
        and is_supported(info.type.tensor_type.elem_type)
        for info in _infos(graph)
        if info.type.WhichOneof("value")
    }
    for tensor in proto.graph.initializer:
        table[tensor.name] = is_supported(tensor.data_type)
    return table


def _infos(graph: GraphProto) -> Iterator[ValueInfoProto]:
    yield from graph.input
    yield from graph.output
    yield from graph.value_info
