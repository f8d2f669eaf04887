"""Tensors of the Open Inference Protocol: datatypes, and values as JSON or as bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from fuser.errors import FuserError

DATATYPES: dict[str, np.dtype] = {
    "BOOL": np.dtype(bool),
    **{f"UINT{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
"""The protocol's names. Its BYTES, which is for strings, no plan has."""
NAMES = {dtype: name for name, dtype in DATATYPES.items()}
MOST_AXES = 32
LARGEST = 1 << 48
"""A size that no array has: products of shapes stay numbers that are quick to compare."""


class RequestError(FuserError):
    """A request that is not answered. status: as of HTTP; 4xx is the client's part."""

    def __init__(self, what: str, status: int = 400, *, where: str = "", hint: str = "") -> None:
        super().__init__(what, where=where, hint=hint)
        self.status = status


@dataclass(frozen=True)
class Tensor:
    """An input or output of a served model; -1 in its shape is an open size."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def datatype(self) -> str:
        return NAMES[self.dtype]

    def metadata(self) -> dict[str, Any]:
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}

    def check(self, datatype: object, shape: object) -> tuple[int, ...]:
        """The shape of a tensor that a request gives for this input. Raises RequestError."""
        if datatype != self.datatype:
            raise RequestError(f"input {self.name!r} is {self.datatype}, not {_short(datatype)}")
        if not isinstance(shape, Sequence) or isinstance(shape, str | bytes):
            raise RequestError(f"the shape of input {self.name!r} is no list of sizes")
        sizes = tuple(shape)
        if len(sizes) > MOST_AXES or not all(type(d) is int and 0 <= d < LARGEST for d in sizes):
            raise RequestError(f"the shape of input {self.name!r} is no list of sizes")
        fits = len(sizes) == len(self.shape) and all(
            wanted in (-1, size) for wanted, size in zip(self.shape, sizes, strict=True)
        )
        if not fits:
            raise RequestError(
                f"input {self.name!r} has shape {list(self.shape)}, not {_short(list(sizes))}",
                hint="-1 is an open size",
            )
        return sizes


def from_bytes(tensor: Tensor, shape: tuple[int, ...], raw: bytes | memoryview) -> np.ndarray:
    """Row-major, little-endian values as an array over the same memory. Raises RequestError."""
    size = math.prod(shape) * tensor.dtype.itemsize
    if len(raw) != size:
        raise RequestError(f"input {tensor.name!r} has {len(raw)} bytes, its shape {size}")
    if tensor.dtype == np.bool_ and raw and max(raw) > 1:
        raise RequestError(f"input {tensor.name!r} is BOOL: its bytes are 0 and 1")
    return np.frombuffer(raw, tensor.dtype).reshape(shape)


def from_values(tensor: Tensor, shape: tuple[int, ...], data: object) -> np.ndarray:
    """Values of JSON, in one list or nested as the shape is, as an array. Raises RequestError."""
    if not isinstance(data, list):
        raise RequestError(f"the data of input {tensor.name!r} is no list")
    flat = data
    if len(shape) != 1 and any(isinstance(item, list) for item in data):
        flat = _flatten(tensor, shape, data)
    if len(flat) != math.prod(shape):
        raise RequestError(
            f"input {tensor.name!r} has {len(flat)} values, its shape {math.prod(shape)}"
        )
    kind = tensor.dtype.kind
    allowed: set[type] = {bool} if kind == "b" else {int} if kind in "iu" else {int, float}
    if not set(map(type, flat)) <= allowed:
        what = "true and false" if kind == "b" else "whole numbers" if kind in "iu" else "numbers"
        raise RequestError(f"the data of input {tensor.name!r}, which is {tensor.datatype}, "
                           f"must be {what}")  # fmt: skip
    try:
        wide = np.array(flat, np.float64 if allowed == {int, float} else tensor.dtype)
    except OverflowError as error:
        raise RequestError(f"a value of input {tensor.name!r} is out of range") from error
    with np.errstate(over="ignore"):
        array = wide.astype(tensor.dtype, copy=False)
    if allowed == {int, float} and not np.isfinite(array.astype(np.float64)).all():
        raise RequestError(f"a value of input {tensor.name!r} is out of range")
    return array.reshape(shape)


def _flatten(tensor: Tensor, shape: tuple[int, ...], data: list[Any]) -> list[Any]:
    """The leaves of nested lists, each as long as its axis. Raises RequestError."""
    level = [data]
    for axis, size in enumerate(shape):
        if not all(isinstance(item, list) and len(item) == size for item in level):
            raise RequestError(f"the data of input {tensor.name!r} is not nested as its shape is")
        if axis < len(shape) - 1:
            level = [part for item in level for part in item]
    return [leaf for item in level for leaf in item]


def to_values(name: str, array: np.ndarray) -> list[Any]:
    """An output as one list of JSON's numbers. Raises RequestError for infinities and NaN."""
    if array.dtype not in (np.float32, np.float64) and array.dtype.kind not in "biu":
        array = array.astype(np.float32)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise RequestError(
            f"output {name!r} holds infinities or NaN, which JSON cannot write", 406,
            hint="ask for it with the parameter binary_data",
        )  # fmt: skip
    found: list[Any] = array.reshape(-1).tolist()
    return found


def to_bytes(array: np.ndarray) -> memoryview:
    """The values, row-major and little-endian, without a copy where they lie so."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _short(item: object) -> str:
    text = repr(item)
    return text if len(text) < 80 else f"{text[:80]}..."
