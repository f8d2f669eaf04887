"""What printing and parsing share: the kinds of op fields, and names and literals as text."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Literal

import numpy as np

from fuser.dtypes import BY_NAME, DType
from fuser.errors import VerifyError
from fuser.tilegen.ir import Op
from fuser.tilegen.value import INDEX

FieldKind = Literal["value", "optional", "values", "index", "indices", "view", "block", "attribute"]

_KINDS: dict[str, FieldKind] = {
    "Value": "value",
    "Value | None": "optional",
    "tuple[Value, ...]": "values",
    "Index": "index",
    "tuple[Index, ...]": "indices",
    "View": "view",
    "Block": "block",
}
DTYPES: dict[str, DType] = {**BY_NAME, INDEX.name: INDEX}
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
RESERVED = frozenset(("none", "true", "false", "inf", "nan"))
FROM_TYPE = ("shape", "dtype")
"""Attributes that repeat the type of the result."""


@dataclass(frozen=True)
class FieldInfo:
    """A field of an op class. default: MISSING where it must be given."""

    name: str
    kind: FieldKind
    annotation: str
    default: Any


_FIELDS: dict[str, tuple[FieldInfo, ...]] = {}


def fields_of(kind: type[Op]) -> tuple[FieldInfo, ...]:
    """The fields of an op class in order, but for `results` and `origin`."""
    if kind.opcode not in _FIELDS:
        _FIELDS[kind.opcode] = tuple(
            FieldInfo(f.name, _KINDS.get(str(f.type), "attribute"), str(f.type), f.default)
            for f in dataclasses.fields(kind)
            if f.name not in ("results", "origin")
        )
    return _FIELDS[kind.opcode]


def is_default(info: FieldInfo, content: Any) -> bool:
    """Whether the content is the default, which text leaves out; 0 and 0.0 differ."""
    return info.default is not MISSING and literal(content) == literal(info.default)


def name_text(name: str) -> str:
    """A name as it is, or quoted if it is not a plain word."""
    return name if WORD.fullmatch(name) else json.dumps(name)


def literal(content: Any) -> str:
    """An attribute as text. Raises VerifyError for what text cannot hold."""
    if isinstance(content, np.generic):
        content = content.item()
    match content:
        case None:
            return "none"
        case bool():
            return "true" if content else "false"
        case int():
            return str(content)
        case float():
            return repr(content) if math.isfinite(content) else str(content)
        case DType():
            return content.name
        case str():
            plain = WORD.fullmatch(content) and content not in RESERVED
            return content if plain else json.dumps(content)
        case tuple():
            inner = ", ".join(map(literal, content))
            return f"({inner},)" if len(content) == 1 else f"({inner})"
        case list():
            return f"[{', '.join(map(literal, content))}]"
        case Mapping():
            pairs = sorted((name_text(str(key)), literal(item)) for key, item in content.items())
            return "{" + ", ".join(f"{key} = {item}" for key, item in pairs) + "}"
    raise VerifyError(f"{content!r} cannot be an attribute of a tile program")
