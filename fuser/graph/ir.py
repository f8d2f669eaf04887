"""The Graph: a model as SSA over primitives. Tensors in, tensors out.

A `Value` is produced once, by a `Node` or as a graph input. A `Node` applies one primitive (see
graph/README.md for the list) and remembers the ONNX nodes it came from. A `Graph` keeps its nodes
in topological order. Weights are `constant` nodes. All operands of a map primitive have one shape:
broadcasting is always an explicit `broadcast` node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fuser.base.limits import LARGEST, MAX_AXES, check_nodes
from fuser.dtypes import DType, from_numpy
from fuser.errors import LimitError, OutOfMemoryError, ShapeError, VerifyError
from fuser.graph.dims import Dim, DimExpr, as_int, substitute
from fuser.graph.numerics import Numerics, Rewritten, RuleClass, current

if TYPE_CHECKING:
    import networkx as nx

    from fuser.base.target import Target

Attrs = Mapping[str, Any]


@dataclass(frozen=True)
class TensorType:
    """dtype and shape of a tensor; a dim is an int or a symbolic expression (graph/dims.py).

    Raises ShapeError for a negative size, LimitError for more than MAX_AXES axes and
    OutOfMemoryError for sizes whose product, zeros aside, is more than LARGEST: no array has such a
    shape, and neither does a tensor that is never stored.
    """

    dtype: DType
    shape: tuple[Dim, ...]

    def __post_init__(self) -> None:
        count = 1
        for dim in self.shape:
            if dim.__class__ is not int and isinstance(dim, DimExpr):
                continue
            if dim > 0:
                count *= dim
            elif dim < 0:
                raise ShapeError(f"a tensor of shape {_shown(self.shape)} has a negative size")
        if count > LARGEST:
            raise OutOfMemoryError(f"{self} has no end")
        if len(self.shape) > MAX_AXES:
            raise LimitError(f"a tensor has {len(self.shape)} axes, more than {MAX_AXES}")

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape as ints. Raises ShapeError where a dim is still symbolic."""
        for dim in self.shape:
            if dim.__class__ is not int:
                return tuple(map(as_int, self.shape))
        return self.shape  # type: ignore[return-value]

    @property
    def size(self) -> int:
        count = 1
        for dim in self.static_shape:
            count *= dim
        return count

    @property
    def bytes(self) -> int:
        return self.size * self.dtype.bytes

    def __str__(self) -> str:
        return f"{self.dtype}{_shown(self.shape)}"


def _shown(shape: tuple[Dim, ...]) -> str:
    """A shape as text; of many axes the first."""
    more = [] if len(shape) <= MAX_AXES else ["..."]
    return f"[{', '.join([*map(str, shape[:MAX_AXES]), *more])}]"


@dataclass(eq=False, slots=True)
class Value:
    """One tensor. `node` is its producer, None for a graph input. Identity is equality."""

    type: TensorType
    name: str
    node: Node | None = None
    index: int = 0

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The static shape; use `type.shape` where dims may be symbolic."""
        return self.type.static_shape

    @property
    def constant(self) -> np.ndarray | None:
        """The array, if this value is a constant."""
        return self.node.attrs["value"] if self.node and self.node.op == "constant" else None

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"


@dataclass(eq=False, slots=True)
class Node:
    """One primitive applied to values. `origin` holds the names of the ONNX nodes it came from."""

    op: str
    inputs: tuple[Value, ...]
    attrs: dict[str, Any]
    outputs: tuple[Value, ...] = ()
    origin: tuple[str, ...] = ()

    @property
    def output(self) -> Value:
        return self.outputs[0]

    def __repr__(self) -> str:
        operands = ", ".join(f"%{value.name}" for value in self.inputs)
        return f"{', '.join(map(repr, self.outputs))} = {self.op}({operands})"


SourceKind = Literal["compute", "view", "constant", "shape"]


@dataclass(frozen=True)
class SourceNode:
    """An imported ONNX node as it stood in the model.

    inputs and outputs are the types of its distinct tensors, operands and results name them.
    reads: the names of the nodes whose results it reads.
    """

    name: str
    op_type: str
    kind: SourceKind
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    reads: tuple[str, ...] = ()
    operands: tuple[str, ...] = ()
    results: tuple[str, ...] = ()


@dataclass(eq=False)
class Graph:
    """A model. `outputs` may repeat a value; `output_names` gives the name of each output.

    numerics: which rewrites may change its numbers. rewritten: those that did, in order."""

    name: str
    inputs: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    output_names: list[str] = field(default_factory=list)
    source: list[SourceNode] = field(default_factory=list)
    numerics: Numerics = field(default_factory=current)
    rewritten: list[Rewritten] = field(default_factory=list)
    _names: int = 0
    _taken: frozenset[str] = frozenset()
    """The names of the inputs, when `fresh` last looked at them."""

    # building -----------------------------------------------------------------------------------

    def fresh(self, hint: str = "v") -> str:
        """A value name that is not yet used."""
        if len(self._taken) != len(self.inputs):
            self._taken = frozenset(value.name for value in self.inputs)
        while True:
            self._names += 1
            if (name := f"{hint}{self._names}") not in self._taken:
                return name

    def add_input(self, name: str, type: TensorType) -> Value:
        value = Value(type, name)
        self.inputs.append(value)
        return value

    def add(
        self,
        op: str,
        inputs: Iterable[Value],
        types: TensorType | Iterable[TensorType],
        origin: tuple[str, ...] = (),
        **attrs: Any,
    ) -> Node:
        """Append a node with the given output types. graph/ops/registry.py infers them for you.

        Raises LimitError for more nodes than fuser/base/limits.py allows.
        """
        check_nodes(len(self.nodes))
        node = Node(op, tuple(inputs), attrs, (), origin)
        out_types = (types,) if isinstance(types, TensorType) else types
        node.outputs = tuple([Value(t, self.fresh(), node, i) for i, t in enumerate(out_types)])
        self.nodes.append(node)
        return node

    def like(self, name: str | None = None) -> Graph:
        """An empty graph under the same numerics, to copy or rewrite this one into."""
        return Graph(
            self.name if name is None else name,
            numerics=self.numerics, rewritten=list(self.rewritten),
        )  # fmt: skip

    def note(self, rule: str, kind: RuleClass, nodes: tuple[str, ...]) -> None:
        """Remember a rewrite that is not exact, for the report."""
        self.rewritten.append(Rewritten(rule, kind, nodes))

    def constant(self, array: np.ndarray, origin: tuple[str, ...] = ()) -> Value:
        array = np.asarray(array)
        type = TensorType(from_numpy(array.dtype), tuple(array.shape))
        return self.add("constant", (), type, origin, value=array).output

    # reading ------------------------------------------------------------------------------------

    def uses(self) -> dict[Value, list[Node]]:
        """The nodes that read each value, in graph order; graph outputs are not listed."""
        table: dict[Value, list[Node]] = {}
        for node in self.nodes:
            read = node.inputs
            for value in read if len(read) < 2 else dict.fromkeys(read):
                if value in table:
                    table[value].append(node)
                else:
                    table[value] = [node]
        return table

    def values(self) -> Iterator[Value]:
        yield from self.inputs
        for node in self.nodes:
            yield from node.outputs

    def symbols(self) -> set[str]:
        """The names of the symbolic dims of the inputs."""
        from fuser.graph.dims import symbols_of

        return {
            name for value in self.inputs for dim in value.type.shape for name in symbols_of(dim)
        }

    def to_networkx(self, target: Target | None = None) -> nx.DiGraph[str]:
        """The operators as a networkx DiGraph, to compute with.

        A node is named as the first value that it gives, and carries kind (its primitive), bytes
        (of its distinct operands and results), flops, sources (the model's nodes that it came
        from), and for a target time_us (the roofline of the operator alone, 0 for constants and
        views). An edge is a value that one computes and the other reads: values (their names) and
        bytes. Raises ShapeError where sizes are open, UsageError without networkx.
        """
        from fuser.graph.network import new_network
        from fuser.graph.ops.families import CREATE, VIEW
        from fuser.graph.work import alone_bytes, flops, roofline_us

        made = new_network(self.name)
        for node in self.nodes:
            moved, count = alone_bytes(node), flops(node)
            told = {"kind": node.op, "bytes": moved, "flops": count, "sources": node.origin}
            if target is not None:
                free = node.op in CREATE or node.op in VIEW
                told["time_us"] = 0.0 if free else roofline_us(target, [node], count, moved)
            made.add_node(node.output.name, **told)
            read: dict[Node, list[Value]] = {}
            for value in dict.fromkeys(node.inputs):
                if value.node is not None:
                    read.setdefault(value.node, []).append(value)
            for source, values in read.items():
                made.add_edge(
                    source.output.name, node.output.name,
                    values=tuple(value.name for value in values),
                    bytes=sum(value.type.bytes for value in values),
                )  # fmt: skip
        return made

    def verify(self) -> None:
        """Raise VerifyError unless every value is defined once, before its uses."""
        defined: set[Value] = set(self.inputs)
        for node in self.nodes:
            for value in node.inputs:
                if value not in defined:
                    raise VerifyError(f"{value!r} is used before it is defined", where=repr(node))
            for index, value in enumerate(node.outputs):
                if value.node is not node or value.index != index or value in defined:
                    raise VerifyError(f"{value!r} has a wrong producer", where=repr(node))
                defined.add(value)
        for value in self.outputs:
            if value not in defined:
                raise VerifyError(f"output {value!r} is not defined")
        if len(self.outputs) != len(self.output_names):
            raise VerifyError("outputs and output_names differ in length")


__all__ = ["Attrs", "Graph", "Node", "SourceNode", "TensorType", "Value", "substitute"]
