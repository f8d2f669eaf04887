"""What the names of a kernel hold, as far as a mutation has to know: a kind of number and a rank.

An unknown name or call has no kind, and nothing is done with it.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["float", "int", "bool", "pointer", "static"]
LANGUAGE = "fl"
REAL = {"exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sigmoid", "sin", "cos", "erf", "softmax"}
"""Functions whose results are floats."""
FUNCTIONS = REAL | {"floor", "ceil", "abs", "cumsum", "max", "min", "sum"}
FOLDS = {"max", "min", "sum", "argmax", "argmin"}


@dataclass(frozen=True)
class Info:
    """kind: static is what the compiler knows as a number. rank: axes of a tile, 0 of a scalar.
    real: of static, whether the number is a float."""

    kind: Kind
    rank: int = 0
    real: bool = False

    @property
    def is_data(self) -> bool:
        return self.kind in ("float", "int", "bool")


Names = dict[str, Info]


def call_name(node: ast.expr) -> str:
    """The function of the language that is called, such as "load"; empty for any other node."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return ""
    of_language = isinstance(node.func.value, ast.Name) and node.func.value.id == LANGUAGE
    return node.func.attr if of_language else ""


def kind_of(node: ast.expr, names: Names, dtypes: dict[str, Kind]) -> Info | None:
    """The kind of an expression; None where it is not known. dtypes: of the arrays by name."""

    def of(item: ast.expr) -> Info | None:
        return kind_of(item, names, dtypes)

    match node:
        case ast.Name(id=name):
            return names.get(name)
        case ast.Constant(value=value):
            if not isinstance(value, bool | int | float):
                return None
            return Info("static", real=isinstance(value, float))
        case ast.UnaryOp(operand=operand):
            return of(operand)
        case ast.Compare(left=left, comparators=[right]):
            a, b = of(left), of(right)
            return None if a is None or b is None else Info("bool", max(a.rank, b.rank))
        case ast.BinOp(left=left, right=right, op=op):
            return _joined(of(left), of(right), isinstance(op, ast.Div))
        case ast.Subscript(value=value, slice=ast.Tuple(elts=items)):
            found = of(value)
            return replace(found, rank=len(items)) if found and found.kind != "static" else None
        case ast.Call(func=ast.Attribute(value=value, attr="to"), args=[dtype, *_]):
            found, kind = of(value), kind_of_dtype(dtype, names, dtypes)
            return Info(kind, found.rank) if found and kind else None
        case ast.Call():
            return _called(node, names, dtypes)
    return None


def kind_of_dtype(node: ast.expr, names: Names, dtypes: dict[str, Kind]) -> Kind | None:
    """The kind of numbers of a dtype: `fl.float32`, `x.dtype`, `pointer.dtype.element_ty`."""
    match node:
        case ast.Attribute(value=ast.Name(id="fl"), attr=name):
            if name.startswith(("float", "bfloat")):
                return "float"
            return "bool" if name == "int1" else "int" if name.startswith(("int", "uint")) else None
        case ast.Attribute(value=ast.Name(id=name), attr="dtype"):
            found = names.get(name)
            return found.kind if found is not None and found.is_data else None
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id=name)), attr="element_ty"):
            return dtypes.get(name)
    return None


def _joined(a: Info | None, b: Info | None, divides: bool) -> Info | None:
    if a is None or b is None:
        return None
    rank = max(a.rank, b.rank)
    kinds = {a.kind, b.kind}
    for kind in ("pointer", "float"):
        if kind in kinds:
            return Info(kind, rank)
    if kinds == {"static"}:
        return Info("static", real=divides or a.real or b.real)
    if divides or a.real or b.real:
        return Info("float", rank)
    return Info("bool" if kinds == {"bool"} else "int", rank)


def array_of(node: ast.expr, dtypes: dict[str, Kind]) -> str:
    """The array that a pointer points into; empty if it is not known."""
    found = {item.id for item in ast.walk(node) if isinstance(item, ast.Name) and item.id in dtypes}
    return found.pop() if len(found) == 1 else ""


def argument(node: ast.Call, position: int, name: str) -> ast.expr | None:
    """An argument of a call, given by position or by name."""
    if len(node.args) > position:
        return node.args[position]
    return next((item.value for item in node.keywords if item.arg == name), None)


def _extents(node: ast.expr | None) -> int | None:
    """How many extents a shape has."""
    return len(node.elts) if isinstance(node, ast.Tuple | ast.List) else None


def _called(node: ast.Call, names: Names, dtypes: dict[str, Kind]) -> Info | None:
    name = call_name(node)
    args = [kind_of(arg, names, dtypes) for arg in node.args]
    if name in ("program_id", "num_programs"):
        return Info("int")
    if name == "arange":
        return Info("int", 1)
    if name == "load" and args and args[0] is not None:
        array = array_of(node.args[0], dtypes)
        return Info(dtypes[array], args[0].rank) if array else None
    if name == "make_block_ptr":
        rank = _extents(argument(node, 4, "block_shape"))
        return None if rank is None else Info("pointer", rank)
    if name in ("zeros", "full"):
        rank, dtype = _extents(node.args[0]), argument(node, 1 + (name == "full"), "dtype")
        kind = None if dtype is None else kind_of_dtype(dtype, names, dtypes)
        return None if rank is None or kind is None else Info(kind, rank)
    if name in ("maximum", "minimum") and len(args) == 2:
        return _joined(args[0], args[1], False)
    if name == "where" and len(args) == 3 and args[0] is not None:
        sides = _joined(args[1], args[2], False)
        if sides is None:
            return None
        if sides.kind == "static":
            return Info("float" if sides.real else "int", args[0].rank)
        return replace(sides, rank=max(sides.rank, args[0].rank))
    if name == "dot":
        return Info("float", args[0].rank) if args and args[0] and args[0].kind == "float" else None
    if name in ("trans", "sort", "gather") and args:
        return args[0]
    if name.startswith("atomic_") and args and args[0] is not None:
        array = array_of(node.args[0], dtypes)
        return Info(dtypes[array], args[0].rank) if array else None
    if name in FUNCTIONS | FOLDS and args and args[0] is not None and args[0].is_data:
        return _computed(node, name, args[0])
    return None


def _computed(node: ast.Call, name: str, value: Info) -> Info | None:
    """What a function of one tile gives."""
    kept = {item.arg for item in node.keywords}
    if name in REAL:
        value = replace(value, kind="float")
    if name not in FOLDS:
        return value
    if kept & {"return_indices", "keep_dims"}:
        return None
    kind: Kind = "int" if name.startswith("arg") or value.kind == "bool" else value.kind
    return Info(kind, 0 if argument(node, 1, "axis") is None else value.rank - 1)
