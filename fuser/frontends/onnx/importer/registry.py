"""The table of ONNX operators: (domain, op type, since version) -> handler.

To add an operator, write a handler in the file of its family and decorate it:

    @onnx_op("Gelu", since=20)
    def gelu(b: Builder, node: OnnxNode) -> Value: ...

A handler covers its operator from opset `since` up to the next handler of the same operator. It
emits primitives through the builder and returns one value per output (None for one that the model
does not read).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from fuser.dtypes import DType
from fuser.errors import InvalidModelError, UnsupportedOpError
from fuser.graph.builder import Builder
from fuser.graph.ir import Value

Handler: TypeAlias = "Callable[[Builder, OnnxNode], Value | Sequence[Value | None]]"


@dataclass
class OnnxNode:
    """One ONNX node: its operands as Values (None for an omitted one) and decoded attributes."""

    name: str
    op_type: str
    domain: str
    opset: int
    inputs: list[Value | None]
    outputs: list[str]
    attrs: dict[str, Any] = field(default_factory=dict)
    inline: Callable[[Any, Sequence[Value]], list[Value]] | None = None
    """Writes out a subgraph (a GraphProto) with the given operands; set by the reader."""
    codes: dict[Value, DType] = field(default_factory=dict)
    """The values that are codes of a narrow dtype; shared by all nodes of an import."""

    def narrow(self, index: int) -> DType | None:
        """The narrow dtype whose codes an operand holds, else None."""
        value = self.optional(index)
        return None if value is None else self.codes.get(value)

    def mark(self, value: Value, dtype: DType) -> Value:
        """Note that `value` holds codes of a narrow dtype."""
        self.codes[value] = dtype
        return value

    def expand(self, body: Any, operands: Sequence[Value]) -> list[Value]:
        """The outputs of a subgraph of this node. Raises UnsupportedOpError."""
        if self.inline is None:
            raise self.unsupported("it has a subgraph")
        return self.inline(body, operands)

    @property
    def where(self) -> str:
        domain = f"{self.domain}." if self.domain else ""
        return f"{domain}{self.op_type} node {self.name}"

    @property
    def x(self) -> Value:
        """The first operand."""
        return self.operand(0)

    def operand(self, index: int) -> Value:
        """A required operand. Raises InvalidModelError."""
        value = self.optional(index)
        if value is None:
            raise InvalidModelError(f"operand {index} is missing", where=self.where)
        return value

    def optional(self, index: int) -> Value | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def present(self) -> list[Value]:
        """All operands of a variadic operator. Raises InvalidModelError if there are none."""
        values = [value for value in self.inputs if value is not None]
        if not values:
            raise InvalidModelError("operand 0 is missing", where=self.where)
        return values

    def uses_output(self, index: int) -> bool:
        return index < len(self.outputs) and bool(self.outputs[index])

    def attr(self, name: str, default: Any) -> Any:
        return self.attrs.get(name, default)

    def required(self, name: str) -> Any:
        """A required attribute. Raises InvalidModelError."""
        if name not in self.attrs:
            raise InvalidModelError(f"the attribute {name} is missing", where=self.where)
        return self.attrs[name]

    def axis(self, axis: int, rank: int) -> int:
        """axis counted from the front. Raises InvalidModelError."""
        if not -rank <= axis < rank:
            raise InvalidModelError(f"axis {axis} is outside of rank {rank}", where=self.where)
        return axis % rank if rank else 0

    def axes(self, axes: Sequence[int], rank: int) -> list[int]:
        return sorted({self.axis(axis, rank) for axis in axes})

    def unsupported(self, what: str) -> UnsupportedOpError:
        """The error for a form of the operator that has no lowering."""
        return UnsupportedOpError(f"{self.where} (opset {self.opset}): {what}")


_HANDLERS: dict[tuple[str, str], list[tuple[int, Handler]]] = {}


def onnx_op(*op_types: str, since: int = 1, domain: str = "") -> Callable[[Handler], Handler]:
    """Register a handler for operators from opset `since` on."""

    def register(handler: Handler) -> Handler:
        for op_type in op_types:
            versions = _HANDLERS.setdefault((domain, op_type), [])
            versions.append((since, handler))
            versions.sort(key=lambda entry: entry[0])
        return handler

    return register


def set_handler(domain: str, op_type: str, handler: Handler) -> None:
    """Register a handler for all versions of an operator, in the place of others."""
    _HANDLERS[domain, op_type] = [(0, handler)]


def find_handler(domain: str, op_type: str, opset: int) -> Handler | None:
    """The handler of the newest version that opset reaches."""
    found = None
    for since, handler in _HANDLERS.get((domain, op_type), ()):
        if since <= opset:
            found = handler
    return found


def domains_with_handlers() -> Collection[tuple[str, str]]:
    """(domain, op type) of every operator that has a handler."""
    return _HANDLERS.keys()


def supported_ops() -> list[str]:
    """The operators that have a handler, as `domain.op_type` or `op_type`, sorted."""
    return sorted(f"{domain}.{op}" if domain else op for domain, op in _HANDLERS)
