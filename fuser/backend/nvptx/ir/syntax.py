"""What printing and parsing of GPU IR share: the kinds of op fields, and the ops by opcode."""

from __future__ import annotations

import dataclasses
import functools
import re
import typing
from dataclasses import MISSING, dataclass
from typing import Any, Literal

from fuser.backend.module import TensorMap
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Op

Kind = Literal["operand", "fn", "attribute", "scope", "carried", "block"]
_OPERANDS = {
    "Tile", "tuple", "str", "Slot", "SharedTile", "Operand", "Place", "Index", "Layout", "Buffer",
}  # fmt: skip
"""Words in the annotation of a field that says what an op works on."""


@dataclass(frozen=True)
class FieldInfo:
    """A field of an op class. default: MISSING where it must be given."""

    name: str
    kind: Kind
    annotation: str
    default: Any


_FIELDS: dict[str, tuple[FieldInfo, ...]] = {}


def fields_of(kind: type[Op]) -> tuple[FieldInfo, ...]:
    """The fields of an op class in order, but for those that every op has."""
    if kind.opcode not in _FIELDS:
        nests = any("Block" in str(f.type) for f in dataclasses.fields(kind))
        _FIELDS[kind.opcode] = tuple(
            FieldInfo(f.name, _kind_of(f, nests), str(f.type), f.default)
            for f in dataclasses.fields(kind)
            if f.name not in ("results", "names", "origin")
        )
    return _FIELDS[kind.opcode]


def _kind_of(field: dataclasses.Field[Any], nests: bool) -> Kind:
    annotation, default = str(field.type), field.default
    words = set(re.findall(r"\w+", annotation))
    if "Block" in words:
        return "block"
    if nests and field.name in ("scalars", "params"):
        return "carried"
    if field.name == "fn":
        return "fn"
    if annotation == "Scope":
        return "scope"
    return "operand" if default is MISSING and words <= _OPERANDS else "attribute"


@functools.cache
def ops_by_code() -> dict[str, type[Op]]:
    """Every op class of ops.py by its opcode."""
    return {
        kind.opcode: kind
        for kind in vars(ops).values()
        if isinstance(kind, type) and issubclass(kind, Op) and kind.opcode
    }


@functools.cache
def records() -> dict[str, type[Any]]:
    """Plain records that fields of ops hold, by name."""
    found: dict[str, type[Any]] = {"TensorMap": TensorMap}

    def note(hint: Any) -> None:
        for inner in typing.get_args(hint):
            note(inner)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint) and hint.__name__ not in found:
            found[hint.__name__] = hint
            for inner in typing.get_type_hints(hint).values():
                note(inner)

    for kind in ops_by_code().values():
        for name, hint in typing.get_type_hints(kind).items():
            if name in {info.name for info in fields_of(kind) if info.kind == "attribute"}:
                note(hint)
    return found
