"""What an op of either IR is: a record, whose fields say what it reads and how text has it."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, Union

import numpy as np

from fuser.errors import VerifyError
from fuser.graph.dims import DimExpr

COMMON = ("results", "names", "origin")
"""Fields that ops have of their base."""
SILENT = ("block", "scope", "carried")
"""Kinds of fields that are not on the line of their op: text has them elsewhere, or nowhere."""
BlockT = TypeVar("BlockT")
OpT = TypeVar("OpT", bound="OpBase[Any]")
ValueT = TypeVar("ValueT")


@dataclass(frozen=True)
class Field:
    """A field of a class of ops. default: MISSING where it must be given. kind: how text has it, in
    the words of `OpBase.kind_of`; fn: after the opcode, attribute: in braces, optional: after its
    name, block; all others but SILENT are operands: index, an expression without brackets, indices,
    in square ones, values, in round ones even if it is one, buffers, by their names."""

    name: str
    kind: str
    annotation: str
    default: Any


@dataclass(eq=False)
class BlockBase(Generic[ValueT, OpT]):
    """Ops in order. params: what the block is given, such as what a loop carries."""

    params: list[ValueT] = field(default_factory=list)
    ops: list[OpT] = field(default_factory=list)

    def walk(self) -> Iterator[OpT]:
        """Every op, outer before inner."""
        for op in self.ops:
            yield op
            for block in op.blocks():
                yield from block.walk()


@dataclass(eq=False, kw_only=True)
class OpBase(Generic[BlockT]):
    """Base of all ops. A field annotated Block is a nested block."""

    opcode: ClassVar[str] = ""

    @classmethod
    def kind_of(cls, name: str, annotation: str, default: Any) -> str:
        """The kind of a field that is no block."""
        raise NotImplementedError

    def fields(self) -> Iterator[tuple[str, Any]]:
        """The op's own fields, in order: (name, content)."""
        for name in _about(type(self)).names:
            yield name, getattr(self, name)

    def contents(self) -> Iterator[Any]:
        """What its fields hold, tuples taken apart."""
        for name in _about(type(self)).names:
            content = getattr(self, name)
            if isinstance(content, tuple | list):
                yield from content
            else:
                yield content

    def blocks(self) -> tuple[BlockT, ...]:
        return tuple([getattr(self, name) for name in blocks_of(type(self))])


class _About(NamedTuple):
    """What a class of ops is like, asked once: asking a dataclass takes longer than all else that
    walks over programs do. hints: the types of the fields by name, once they are asked for."""

    fields: tuple[Field, ...]
    names: tuple[str, ...]
    blocks: tuple[str, ...]
    hints: dict[str, Any]


_ABOUT: dict[type, _About] = {}


def _about(kind: type[OpBase[Any]]) -> _About:
    found = _ABOUT.get(kind)
    if found is None:
        fields = []
        for item in dataclasses.fields(kind):
            name, text = item.name, str(item.type)
            if name not in COMMON:
                word = "block" if text == "Block" else kind.kind_of(name, text, item.default)
                fields.append(Field(name, word, text, item.default))
        names = tuple(info.name for info in fields)
        blocks = tuple(info.name for info in fields if info.kind == "block")
        found = _ABOUT[kind] = _About(tuple(fields), names, blocks, {})
    return found


def fields_of(kind: type[OpBase[Any]]) -> tuple[Field, ...]:
    """The fields of a class of ops in order, but for those that every op has."""
    return _about(kind).fields


def blocks_of(kind: type[OpBase[Any]]) -> tuple[str, ...]:
    """The names of the fields that are blocks."""
    return _about(kind).blocks


def misfit(kind: type[OpBase[Any]], info: Field, content: object) -> str:
    """Why a field cannot hold what it should; "" if its annotation lets it."""
    hints = _about(kind).hints
    if not hints:
        hints.update(typing.get_type_hints(kind))
    hint = hints[info.name]
    if _fits(content, hint):
        return ""
    known = typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
    wanted = f"one of {', '.join(known)}" if known else info.annotation
    shown = text if len(text := repr(content)) < 60 else f"a {type(content).__name__}"
    return f"{info.name} of {kind.opcode} is {shown}, and should be {wanted}"


def check_fields(op: OpBase[Any]) -> None:
    """Raises VerifyError where a field does not hold what its annotation says."""
    for info in fields_of(type(op)):
        if wrong := misfit(type(op), info, getattr(op, info.name)):
            raise VerifyError(wrong)


def _fits(content: object, hint: Any) -> bool:
    if isinstance(hint, type):
        if hint is int:  # an int may be symbolic
            return isinstance(content, int | np.integer | DimExpr) and not isinstance(content, bool)
        return isinstance(content, float | int | np.floating if hint is float else hint)
    kind, inner = typing.get_origin(hint), typing.get_args(hint)
    if kind is Literal:
        return content in inner
    if kind in (Union, types.UnionType):
        return any(_fits(content, item) for item in inner)
    if not isinstance(content, tuple) or kind is not tuple:
        return isinstance(content, kind)
    if inner[-1] is Ellipsis:
        return all(_fits(item, inner[0]) for item in content)
    return len(content) == len(inner) and all(map(_fits, content, inner))
