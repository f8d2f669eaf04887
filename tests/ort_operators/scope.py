"""Names, types and values of the interpreter."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.ort_operators.cases import DTYPES, NotPlain

WHOLE = frozenset(
    {"int", "int8_t", "int16_t", "int32_t", "int64_t", "uint8_t", "uint16_t", "uint32_t",
     "uint64_t", "size_t", "long", "unsigned", "char", "ptrdiff_t", "uint", "unsigned char"}
)  # fmt: skip
REAL = frozenset({"float", "double", "MLFloat16", "BFloat16"})
LISTS = re.compile(
    r"^(?:vector|initializer_list|array|InlinedVector|span|TensorShapeVector|set|"
    r"unordered_set|VectorInt64)\b(?:<(.*)>)?$"
)


class Vector(list[Any]):
    """A list that knows its C++ element type."""

    element = ""


@dataclass
class Function:
    """A function of the file or a lambda. parameters: (type, name, where its default begins)."""

    parameters: list[tuple[str, str, int | None]]
    body: int
    templates: list[str] = field(default_factory=list)
    scope: Scope | None = None


@dataclass
class Struct:
    """A record type: (type, name, where its default begins)."""

    fields: list[tuple[str, str, int | None]]


class Scope:
    """Variables and type names, with an outer scope."""

    def __init__(self, outer: Scope | None = None) -> None:
        self.outer = outer
        self.values: dict[str, Any] = {}
        self.types: dict[str, str] = {}

    def holder(self, name: str) -> dict[str, Any] | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values
            scope = scope.outer
        return None

    def resolve(self, type_name: str) -> str:
        """A type without std::, const, references, and with aliases and parameters put in."""
        text = re.sub(r"\b(?:std|onnxruntime|test|gsl|onnxruntime::test) ?:: ?", "", type_name)
        text = re.sub(r"\b(?:const|typename|constexpr|static|inline)\b|[&*]", " ", text)
        text = re.sub(r"\s+", " ", text).strip()
        known: dict[str, str] = {}
        scope: Scope | None = self
        while scope is not None:
            known = {**scope.types, **known}
            scope = scope.outer
        for _ in range(4):
            text = re.sub(r"[A-Za-z_]\w*", lambda m: known.get(m.group(), m.group()), text)
        return re.sub(r" ?([<>,]) ?", r"\1", text)


def element_of(type_name: str) -> str | None:
    """The element type of a resolved list type; None of another type."""
    match = LISTS.match(type_name)
    if match is None:
        return None
    if match.group(1) is None:
        return "int64_t"
    depth = 0
    for at, letter in enumerate(match.group(1)):
        depth += (letter == "<") - (letter == ">")
        if letter == "," and not depth:
            return match.group(1)[:at]
    return match.group(1)


def convert(value: Any, type_name: str, structs: Mapping[str, Struct]) -> Any:
    """A value as one of a resolved type."""
    element = element_of(type_name)
    if element is not None and isinstance(value, list):
        made = Vector(convert(item, element, structs) for item in value)
        made.element = element
        return made
    optional = re.match(r"^optional<(.*)>$", type_name)
    if optional and value is not None:
        return convert(value, optional.group(1), structs)
    if isinstance(value, list) and type_name in structs:
        names = [name for _, name, _ in structs[type_name].fields]
        kinds = [kind for kind, _, _ in structs[type_name].fields]
        made_struct = {
            name: convert(item, kind, structs)
            for name, kind, item in zip(names, kinds, value, strict=False)
        }
        if len(made_struct) < len(names):
            raise NotPlain("a record with defaults")
        return made_struct
    if isinstance(value, list) and len(value) == 1 and type_name in WHOLE | REAL | {"string"}:
        value = value[0]
    if isinstance(value, list) and not value and type_name in WHOLE | REAL:
        return 0
    if type_name in WHOLE and isinstance(value, bool | int | float):
        return int(value)
    if type_name in REAL and isinstance(value, bool | int | float):
        number = float(value)
        if type_name == "float" and math.isfinite(number):
            with np.errstate(all="ignore"):
                return float(np.float32(number))
        return number
    if type_name == "bool" and isinstance(value, bool | int | float):
        return bool(value)
    return value


def limits(type_name: str, member: str) -> Any:
    """std::numeric_limits<type>::member()."""
    if type_name not in DTYPES or DTYPES[type_name] is object:
        raise NotPlain(f"limits of {type_name}")
    dtype = np.dtype(DTYPES[type_name])
    if member in ("infinity", "quiet_NaN"):
        return {"infinity": math.inf, "quiet_NaN": math.nan}[member]
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        return {"max": int(info.max), "min": int(info.min), "lowest": int(info.min)}[member]
    floats = np.finfo(dtype) if dtype.kind == "f" else None
    if floats is None:
        raise NotPlain(f"limits of {type_name}")
    names = {"max": "max", "lowest": "min", "min": "tiny", "epsilon": "eps",
             "denorm_min": "smallest_subnormal"}  # fmt: skip
    if member not in names:
        raise NotPlain(f"numeric_limits::{member}")
    return float(getattr(floats, names[member]))


def _numbers(values: Any) -> Vector:
    if not isinstance(values, list):
        raise NotPlain("elements that are not a list")
    return Vector(float(value) for value in values)


def _typed(element: str) -> Callable[..., Vector]:
    def make(values: Any, *_: Any) -> Vector:
        made = _numbers(values)
        made.element = element
        return made

    return make


def _range(count: int, start: Any = 0, step: Any = 1) -> Vector:
    return Vector(start + index * step for index in range(int(count)))


def _product(dims: Sequence[int]) -> int:
    return math.prod(int(dim) for dim in dims)


def _power(a: float, b: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.power(float(a), float(b)))


def _round(x: float) -> float:
    return math.copysign(math.floor(abs(x) + 0.5), x)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("ToFloat16", "FloatsToMLFloat16s", "MakeMLFloat16", "ToMLFloat16"),
                    _typed("MLFloat16")),
    **dict.fromkeys(("ToBFloat16", "FloatsToBFloat16s", "MakeBFloat16"), _typed("BFloat16")),
    "ValueRange": _range, "move": lambda value: value, "string": lambda value="": value,
    "pow": _power, "sqrt": lambda x: math.sqrt(x) if x >= 0 else math.nan, "exp": math.exp,
    "log": math.log, "tanh": math.tanh, "sin": math.sin, "cos": math.cos, "tan": math.tan,
    "sinh": math.sinh, "cosh": math.cosh, "asin": math.asin, "acos": math.acos,
    "atan": math.atan, "erf": math.erf, "floor": math.floor, "ceil": math.ceil, "abs": abs,
    "fabs": abs, "max": max, "min": min, "round": _round,
    "make_pair": lambda a, b: [a, b], "SizeFromDims": _product,
    "HasCudaEnvironment": lambda *_: True, "log1pf": math.log1p, "log1p": math.log1p,
    "CudaHasBF16Support": lambda *_: True, "NeedSkipIfCudaArchLowerThan": lambda *_: False,
    "to_string": str, "size": len, "isnan": math.isnan, "isinf": math.isinf,
    "expf": math.exp, "powf": _power, "sqrtf": math.sqrt, "tanhf": math.tanh, "erff": math.erf,
    "nanf": lambda *_: math.nan,
}  # fmt: skip
CONSTANTS: dict[str, Any] = {
    "true": True, "false": False, "nullptr": None, "NULL": None, "nullopt": None,
    "INFINITY": math.inf, "NAN": math.nan, "M_PI": math.pi, "FLT_MAX": limits("float", "max"),
    "FLT_MIN": limits("float", "min"), "DBL_MAX": limits("double", "max"),
    "INT64_MAX": 2**63 - 1, "INT64_MIN": -(2**63), "INT_MAX": 2**31 - 1, "INT32_MAX": 2**31 - 1,
    "INT_MIN": -(2**31), "INT32_MIN": -(2**31), "UINT8_MAX": 255, "INT8_MAX": 127,
    "INT8_MIN": -128,
}  # fmt: skip
