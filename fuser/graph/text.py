"""Print a Graph and parse it back.

    graph @mlp(%x: f32[batch, 4]) {
      %w = constant sha256:6f1c0e5d2a9b4477 : f32[4, 8]
      %half = constant 0.5 : f32[]
      %v1 = dot_general(%x, %w) {lhs_contract = (1,), ...} : f32[batch, 8]  # /fc/MatMul
      return %v1 as y
    }

One node a line: results, primitive, operands, attributes, result types, and after `#` the ONNX
nodes it came from. Constants of at most 16 elements are spelt out; larger ones are a hash, and
their arrays travel in a side table. `graph.source` is not part of the text.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np

from fuser.dtypes import BY_NAME, DType
from fuser.errors import ParseError, ShapeError
from fuser.graph.dims import Dim, from_ast
from fuser.graph.ir import Graph, Node, TensorType, Value
from fuser.graph.numerics import MODES, Numerics
from fuser.graph.ops.kernel_call import CALLS
from fuser.graph.ops.primitive import Array
from fuser.graph.ops.registry import PRIMITIVES

INLINE = 16
"""Constants with more elements print as a hash."""

_PLAIN = re.compile(r"[A-Za-z_][\w.]*\Z")
_TEXT_ATTRS = ("fn", "reduction")


# printing ---------------------------------------------------------------------------------------


def print_graph(graph: Graph, constants: MutableMapping[str, Array] | None = None) -> str:
    """The text of graph; the arrays of large constants are put into `constants` by their hash."""
    names = _unique_names(graph)
    inputs = ", ".join(f"{names[value]}: {value.type}" for value in graph.inputs)
    lines = [f"graph @{_quoted(graph.name)}({inputs}) {_numerics_text(graph.numerics)}{{"]
    for node in graph.nodes:
        lines.append("  " + _print_node(node, names, constants))
    results = (
        f"{names[value]} as {_quoted(name)}"
        for value, name in zip(graph.outputs, graph.output_names, strict=True)
    )
    lines.append(f"  return {', '.join(results)}".rstrip())
    return "\n".join([*lines, "}"]) + "\n"


def _numerics_text(numerics: Numerics) -> str:
    """The numerics of a graph, before its body; nothing for the usual ones."""
    words: list[str] = [] if numerics.mode == "model" else [numerics.mode]
    words += ["batch_invariant"] * numerics.batch_invariant
    return "".join(f"{word} " for word in words)


def _parsed_numerics(text: str) -> Numerics:
    words = text.split()
    modes = [mode for mode in MODES if mode in words]
    return Numerics(modes[0] if modes else "model", "batch_invariant" in words)


def _quoted(name: str) -> str:
    return name if _PLAIN.match(name) else json.dumps(name)


def _unique_names(graph: Graph) -> dict[Value, str]:
    names: dict[Value, str] = {}
    taken: set[str] = set()
    for value in graph.values():
        name, count = value.name, 0
        while name in taken:
            count += 1
            name = f"{value.name}.{count}"
        taken.add(name)
        names[value] = f"%{_quoted(name)}"
    return names


def _print_node(
    node: Node, names: Mapping[Value, str], constants: MutableMapping[str, Array] | None
) -> str:
    results = ", ".join(names[value] for value in node.outputs)
    types = ", ".join(str(value.type) for value in node.outputs)
    if node.op == "constant":
        body = f"constant {_print_array(node.attrs['value'], constants)}"
    else:
        body = f"{node.op}({', '.join(names[value] for value in node.inputs)})"
        if node.attrs:
            attrs = (f"{key} = {_print_attr(value)}" for key, value in node.attrs.items())
            body += f" {{{', '.join(attrs)}}}"
    origin = f"  # {', '.join(map(_quoted_origin, node.origin))}" if node.origin else ""
    return f"{results} = {body} : {types}{origin}"


def _quoted_origin(name: str) -> str:
    return json.dumps(name) if not name or re.search(r'[\s,#"]', name) else name


def _print_attr(value: Any) -> str:
    if isinstance(value, tuple | list):
        parts = [_print_attr(part) for part in value]
        return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
    if isinstance(value, str):
        return repr(value)
    return str(value)


def _print_array(array: Array, constants: MutableMapping[str, Array] | None) -> str:
    if array.size <= INLINE:
        # tolist is exact: every element type but the 64-bit integers fits a Python float.
        return str(array.tolist())
    digest = hashlib.sha256(f"{array.dtype}{array.shape}".encode())
    digest.update(np.ascontiguousarray(array).tobytes())
    key = f"sha256:{digest.hexdigest()[:16]}"
    if constants is not None:
        constants[key] = array
    return key


# parsing ----------------------------------------------------------------------------------------

_NAME = r'%(?:[A-Za-z_][\w.]*|"(?:[^"\\]|\\.)*")'
_HEAD = re.compile(r'graph @([A-Za-z_][\w.]*|"(?:[^"\\]|\\.)*")\((.*)\) ((?:\w+ )*)\{\Z')
_NODE = re.compile(rf"({_NAME}(?:, {_NAME})*) = (\w+)(.*)\Z")
_RETURN = re.compile(rf'({_NAME}) as ([A-Za-z_][\w.]*|"(?:[^"\\]|\\.)*")')


def parse_graph(text: str, constants: Mapping[str, Array] | None = None) -> Graph:
    """The Graph that print_graph printed. Raises ParseError, VerifyError.

    constants: the arrays of constants that the text only names by hash.
    """
    parser = _Parser(constants or {})
    for number, line in enumerate(text.splitlines(), 1):
        try:
            parser.line(line.strip())
        except (SyntaxError, ValueError, KeyError, ShapeError, ParseError) as error:
            reason = error.what if isinstance(error, ParseError) else f"not understood: {error}"
            raise ParseError(reason, where=f"line {number}: {line.strip()[:80]}") from None
    if parser.graph is None:
        raise ParseError("the text holds no graph")
    parser.graph.verify()
    return parser.graph


class _Parser:
    def __init__(self, constants: Mapping[str, Array]) -> None:
        self.constants = constants
        self.graph: Graph | None = None
        self.values: dict[str, Value] = {}

    def line(self, line: str) -> None:
        if not line or line == "}":
            return
        if self.graph is None:
            self._head(line)
        elif line.startswith("return"):
            for name, label in _RETURN.findall(line):
                self.graph.outputs.append(self._value(name))
                self.graph.output_names.append(_unquoted(label))
        else:
            self._node(self.graph, line)

    def _head(self, line: str) -> None:
        match = _HEAD.match(line)
        if match is None:
            raise ParseError("expected: graph @name(%input: type, ...) {")
        self.graph = Graph(_unquoted(match[1]), numerics=_parsed_numerics(match[3]))
        for item in _split(match[2]):
            name, _, type = _partition(item, ": ")
            value = self.graph.add_input(_unquoted(name[1:]), parse_type(type))
            self.values[name] = value

    def _node(self, graph: Graph, line: str) -> None:
        line, _, comment = _partition(line, "  # ")
        match = _NODE.match(line)
        if match is None:
            raise ParseError("expected: %result = primitive(%operand, ...) {attributes} : type")
        names, op = _split(match[1]), match[2]
        body, _, types = _rpartition(match[3], " : ")
        out_types = [parse_type(type) for type in _split(types)]
        operands: list[Value] = []
        if op == "constant":
            attrs: dict[str, Any] = {"value": self._array(body.strip(), out_types[0])}
        else:
            if op not in PRIMITIVES:
                raise ParseError(f"there is no primitive {op!r}")
            inside, _, rest = _partition(body, ")")
            operands = [self._value(name) for name in _split(inside.removeprefix("("))]
            attrs = dict(map(_parse_attr, _split(rest.strip().strip("{}"))))
        origin = tuple(_unquoted(name) for name in _split(comment))
        node = graph.add(op, operands, out_types, origin, **attrs)
        for name, value in zip(names, node.outputs, strict=True):
            value.name = _unquoted(name[1:])
            self.values[name] = value

    def _value(self, name: str) -> Value:
        if name not in self.values:
            raise ParseError(f"{name} is not defined")
        return self.values[name]

    def _array(self, text: str, type: TensorType) -> Array:
        if text.startswith("sha256:"):
            if text not in self.constants:
                raise ParseError(f"the array of {text} is not in the side table")
            return self.constants[text]
        elements = _literal(ast.parse(text, mode="eval").body)
        return np.asarray(elements).astype(type.dtype.numpy).reshape(type.static_shape)


def _unquoted(name: str) -> str:
    return str(json.loads(name)) if name.startswith('"') else name


def _scan(text: str) -> Iterator[tuple[int, bool]]:
    """Each position of text, and whether it is outside of quotes and brackets."""
    depth, quote, escaped = 0, "", False
    for index, char in enumerate(text):
        yield index, depth == 0 and not quote
        if quote:
            quote = "" if char == quote and not escaped else quote
            escaped = char == "\\" and not escaped
        elif char in "\"'":
            quote = char
        else:
            depth += (char in "([{") - (char in ")]}")


def _split(text: str) -> list[str]:
    """The parts between top-level commas."""
    parts, start = [], 0
    for index, top in _scan(text):
        if top and text[index] == ",":
            parts.append(text[start:index].strip())
            start = index + 1
    parts.append(text[start:].strip())
    return [part for part in parts if part]


def _find(text: str, separator: str) -> Iterable[int]:
    closing = separator in ")]}"
    return [
        index
        for index, top in _scan(text)
        if text.startswith(separator, index) and (top or closing)
    ]


def _partition(text: str, separator: str) -> tuple[str, str, str]:
    """str.partition at the first separator outside of quotes and brackets."""
    for index in _find(text, separator):
        return text[:index], separator, text[index + len(separator) :]
    return text, "", ""


def _rpartition(text: str, separator: str) -> tuple[str, str, str]:
    found = list(_find(text, separator))
    if not found:
        raise ParseError(f"expected {separator.strip()!r} and the result types")
    return text[: found[-1]], separator, text[found[-1] + len(separator) :]


def parse_type(text: str) -> TensorType:
    """`f32[batch, 4]` as a TensorType. Raises ParseError."""
    name, bracket, dims = text.partition("[")
    if name not in BY_NAME or not bracket or not dims.endswith("]"):
        raise ParseError(f"{text!r} is not a tensor type")
    elements = ast.parse(f"[{dims}", mode="eval").body
    assert isinstance(elements, ast.List)
    return TensorType(BY_NAME[name], tuple(map(from_ast, elements.elts)))


def _parse_attr(text: str) -> tuple[str, Any]:
    key, _, value = text.partition(" = ")
    if key == "dtype":
        return key, _dtype(value)
    if key == "call":
        if value not in CALLS:
            raise ParseError(f"there is no call {value} of a kernel in this process")
        return key, CALLS[value]
    node = ast.parse(value, mode="eval").body
    if key in _TEXT_ATTRS or key == "value":
        return key, _literal(node)
    return key, _attr(node)


def _dtype(name: str) -> DType:
    if name not in BY_NAME:
        raise ParseError(f"{name!r} is not a dtype")
    return BY_NAME[name]


def _attr(node: ast.expr) -> bool | Dim | tuple[Any, ...]:
    if isinstance(node, ast.Tuple):
        return tuple(map(_attr, node.elts))
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return node.value
    return from_ast(node)


def _literal(node: ast.expr) -> Any:
    """A number, string or nested list; nan and inf are names to Python."""
    match node:
        case ast.List(elts=elements):
            return [_literal(element) for element in elements]
        case ast.Name(id=name) if name in ("nan", "inf"):
            return float(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_literal(operand)
    return ast.literal_eval(node)
