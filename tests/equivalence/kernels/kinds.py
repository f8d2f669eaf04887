"""What the names of a kernel hold, as far as a mutation has to know: a kind of number and a rank.

An unknown name or call has no kind, and nothing is done with it.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["float", "int", "bool", "pointer", "static"]
LANGUAGE = "fl"
FUNCTIONS = {"exp", "floor", "abs", "sqrt", "rsqrt", "cumsum", "max", "min", "sum"}
FOLDS = {"max", "min", "sum", "argmax", "argmin"}


@dataclass(frozen=True)
class Info:
    """kind: static is what the compiler knows as a number. rank: axes of a tile, 0 of a scalar."""

    kind: Kind
    rank: int = 0

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
            return Info("static") if isinstance(value, bool | int | float) else None
        case ast.UnaryOp(operand=operand):
            return of(operand)
        case ast.Compare(left=left, comparators=[right]):
            a, b = of(left), of(right)
            return None if a is None or b is None else Info("bool", max(a.rank, b.rank))
        case ast.BinOp(left=left, right=right, op=op):
            return _joined(of(left), of(right), isinstance(op, ast.Div))
        case ast.Subscript(value=value, slice=ast.Tuple(elts=items)):
            found = of(value)
            return replace(found, rank=len(items)) if found else None
        case ast.Call(func=ast.Attribute(value=value, attr="to"), args=[ast.Attribute(attr=dtype)]):
            found = of(value)
            kind: Kind = "float" if dtype.startswith("float") else "int"
            return Info(kind, found.rank) if found else None
        case ast.Call():
            return _called(node, names, dtypes)
    return None


def _joined(a: Info | None, b: Info | None, divides: bool) -> Info | None:
    if a is None or b is None:
        return None
    rank = max(a.rank, b.rank)
    kinds = {a.kind, b.kind}
    for kind in ("pointer", "float"):
        if kind in kinds:
            return Info(kind, rank)
    if divides and kinds != {"static"}:
        return Info("float", rank)
    if kinds == {"static"}:
        return Info("static")
    return Info("bool" if kinds == {"bool"} else "int", rank)


def array_of(node: ast.expr, dtypes: dict[str, Kind]) -> str:
    """The array that a pointer points into; empty if it is not known."""
    found = {item.id for item in ast.walk(node) if isinstance(item, ast.Name) and item.id in dtypes}
    return found.pop() if len(found) == 1 else ""


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
    if name == "zeros" and isinstance(node.args[0], ast.Tuple):
        dtype = ast.unparse(node.args[1])
        return Info("float" if "float" in dtype else "int", len(node.args[0].elts))
    if name in ("maximum", "minimum"):
        return _joined(args[0], args[1], False)
    if name == "where" and len(args) == 3 and args[0] is not None:
        sides = _joined(args[1], args[2], False)
        if sides is None:
            return None
        if sides.kind == "static":
            return Info("float" if "." in ast.unparse(node.args[1]) else "int", args[0].rank)
        return replace(sides, rank=max(sides.rank, args[0].rank))
    if name == "dot":
        return Info("float", 2)
    if name in ("trans", "sort", "gather"):
        return args[0]
    if name.startswith("atomic_") and args and args[0] is not None:
        array = array_of(node.args[0], dtypes)
        return Info(dtypes[array], args[0].rank) if array else None
    if name in FUNCTIONS | FOLDS and args and args[0] is not None:
        found = Info("int", args[0].rank) if name.startswith("arg") else args[0]
        return replace(found, rank=found.rank - 1) if name in FOLDS else found
    return None
