"""Large weights mapped from the model's file instead of read: their bytes are in memory only while
somebody looks at them, and nothing is copied before it is packed.

A binary ONNX file is nested fields, `key | length | bytes`. The weights are
`ModelProto.graph (7) / GraphProto.initializer (5) / TensorProto.raw_data (9)`; what remains without
those bytes is small, and protobuf parses that. Whatever is unusual here (a weight of another dtype
or length, a name twice, a field this walk does not know) stays in the message or sends the whole
file the ordinary way, so that errors are said in one place.
Source: the encoding of protocol buffers, and onnx.proto for the field numbers.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from fuser.errors import InvalidModelError
from fuser.frontends.onnx.importer.types import plain_dtype
from fuser.graph.ops.primitive import Array

LARGE = 1 << 16
"""Bytes of a weight that is mapped; smaller ones are read with the message."""

MOST_FIELDS, MOST_DIMS = 1 << 20, 64
"""Limits of one message: beyond them a walk in Python takes longer than reading the file."""

_GRAPH, _INITIALIZER = 7, 5
_DIMS, _DATA_TYPE, _NAME, _RAW_DATA, _DOC_STRING = 1, 2, 8, 9, 12
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class _UnusualError(Exception):
    """The file is left to the ordinary way."""


@dataclass(frozen=True)
class _Field:
    """A field of a message: its offset with its key, and where its bytes (or its number) are."""

    number: int
    wire: int
    at: int
    start: int
    end: int
    value: int


class MappedModel:
    """A model file with its large weights apart.

    message: the bytes of the ModelProto without their data. weights: read-only arrays by name, that
    look into the file, so do not keep them: whoever writes to the file changes them."""

    def __init__(self, path: Path) -> None:
        """Raises OSError; `weights` is empty where nothing is to be gained."""
        self.path = path
        self.message = b""
        self.weights: dict[str, Array] = {}
        with open(path, "rb") as file:
            self._stamp = _stamp(os.fstat(file.fileno()))
            if self._stamp[0] < LARGE or sys.byteorder != "little":
                return
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            self.message = self._split(data)
        except (_UnusualError, IndexError, ValueError, UnicodeDecodeError):
            self.weights = {}

    def check_unchanged(self) -> None:
        """Raise InvalidModelError if the file was written to since it was opened."""
        try:
            same = _stamp(os.stat(self.path)) == self._stamp
        except OSError:
            same = False
        if not same:
            raise InvalidModelError(
                "the file changed while it was compiled", where=str(self.path), hint="compile again"
            )

    def _split(self, data: mmap.mmap) -> bytes:
        fields = list(_fields(data, 0, len(data)))
        graphs = [field for field in fields if field.number == _GRAPH]
        if len(graphs) != 1 or graphs[0].wire != _BYTES:
            raise _UnusualError
        parts = []
        for field in fields:
            if field is graphs[0]:
                parts.append(_delimited(_GRAPH, self._graph(data, field)))
            else:
                parts.append(data[field.at : field.end])
        return b"".join(parts)

    def _graph(self, data: mmap.mmap, graph: _Field) -> bytes:
        parts, names = [], set()
        for field in _fields(data, graph.start, graph.end):
            if field.number != _INITIALIZER or field.wire != _BYTES:
                parts.append(data[field.at : field.end])
                continue
            inner = list(_fields(data, field.start, field.end))
            name = b"".join(data[f.start : f.end] for f in inner if f.number == _NAME).decode()
            if name in names:
                raise _UnusualError
            names.add(name)
            held = _weight(data, inner) if field.end - field.start >= LARGE else None
            if held is None:
                parts.append(data[field.at : field.end])
                continue
            self.weights[name] = held
            kept = (data[f.at : f.end] for f in inner if f.number != _RAW_DATA)
            parts.append(_delimited(_INITIALIZER, b"".join(kept)))
        return b"".join(parts)


def _weight(data: mmap.mmap, fields: list[_Field]) -> Array | None:
    """The array of a TensorProto that has dims, a plain dtype, raw_data of the right length and
    no other data; else None."""
    dims: list[int] = []
    held: dict[int, _Field] = {}
    for field in fields:
        if field.number == _DIMS and field.wire == _VARINT:
            dims.append(field.value)
        elif field.number == _DIMS and field.wire == _BYTES:
            at = field.start
            while at < field.end and len(dims) <= MOST_DIMS:
                size, at = _varint(data, at)
                dims.append(size)
        elif field.number in (_DATA_TYPE, _NAME, _RAW_DATA) and field.number not in held:
            held[field.number] = field
        elif field.number != _DOC_STRING:  # any other field may say where the data are
            return None
    raw = held.get(_RAW_DATA)
    if len(dims) > MOST_DIMS or raw is None or _DATA_TYPE not in held or _NAME not in held:
        return None
    dtype = plain_dtype(held[_DATA_TYPE].value)
    length = raw.end - raw.start
    if dtype is None or length < LARGE or prod(dims) * dtype.bytes != length:
        return None
    flat = np.frombuffer(data, np.uint8, length, raw.start)
    return flat.view(dtype.numpy).reshape(dims)


def _fields(data: mmap.mmap, at: int, end: int) -> Iterator[_Field]:
    for count in range(MOST_FIELDS + 1):
        if at >= end:
            return
        if count == MOST_FIELDS:
            raise _UnusualError
        start = at
        key, at = _varint(data, at)
        wire, value = key & 7, 0
        if wire == _VARINT:
            value, after = _varint(data, at)
        elif wire == _BYTES:
            length, at = _varint(data, at)
            after = at + length
        elif wire in (_FIXED64, _FIXED32):
            after = at + (8 if wire == _FIXED64 else 4)
        else:
            raise _UnusualError
        if after > end:
            raise _UnusualError
        yield _Field(key >> 3, wire, start, at, after, value)
        at = after


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    """(number, where it ends): seven bits a byte, the lowest first."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise _UnusualError


def _delimited(number: int, body: bytes) -> bytes:
    length, head = len(body), [number << 3 | _BYTES]
    while length > 127:
        head.append(length & 127 | 128)
        length >>= 7
    return bytes([*head, length]) + body


def _stamp(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev
