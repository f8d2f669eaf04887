"""Message classes from a .proto file, when the program starts: no generated code, no build step.

It reads the part of proto3 that inference.proto uses: messages within messages, fields, `repeated`,
`map`, one level of `oneof`, and services.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PROTO = Path(__file__).with_name("inference.proto")
SERVICE = "GRPCInferenceService"

_TOKENS = re.compile(r'//[^\n]*|"[^"]*"|[\w.]+|[{}()<>=;,]')
_Message = descriptor_pb2.DescriptorProto
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    name: getattr(_Field, f"TYPE_{name.upper()}")
    for name in ("bool", "int32", "int64", "uint32", "uint64", "float", "double", "string", "bytes")
}  # fmt: skip


@functools.cache
def schema() -> tuple[dict[str, type[Any]], dict[str, tuple[str, str]]]:
    """The message classes of inference.proto by name, and its calls: (request, response) by name.
    They are in a pool of their own: another library's copy of the protocol does not meet them."""
    file, calls = read(PROTO.read_text())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    classes = {
        message.name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{file.package}.{message.name}")
        )
        for message in file.message_type
    }
    return classes, calls


def read(text: str) -> tuple[descriptor_pb2.FileDescriptorProto, dict[str, tuple[str, str]]]:
    """A .proto file as its descriptor, and the calls of its service."""
    tokens = (token for token in _TOKENS.findall(text) if not token.startswith("//"))
    file = descriptor_pb2.FileDescriptorProto(name=PROTO.name, syntax="proto3")
    calls: dict[str, tuple[str, str]] = {}
    for token in tokens:
        if token == "package":
            file.package = next(tokens)
        elif token == "message":
            _message(file.message_type.add(), tokens)
        elif token == "rpc":
            name, _, request, _, _, _, response, *_ = [next(tokens) for _ in range(10)]
            calls[name] = (request, response)
    return file, calls


def _message(message: Any, tokens: Iterator[str]) -> None:
    message.name = next(tokens)
    next(tokens)  # {
    choice = False
    for token in tokens:
        if token == "}":
            if not choice:
                return
            choice = False
        elif token == "message":
            _message(message.nested_type.add(), tokens)
        elif token == "oneof":
            message.oneof_decl.add(name=next(tokens))
            next(tokens)  # {
            choice = True
        else:
            _field(message, token, tokens)
            if choice:
                message.field[-1].oneof_index = len(message.oneof_decl) - 1


def _field(message: Any, kind: str, tokens: Iterator[str]) -> None:
    label = _Field.LABEL_REPEATED if kind in ("repeated", "map") else _Field.LABEL_OPTIONAL
    pair: tuple[str, str] | None = None
    if kind == "repeated":
        kind = next(tokens)
    elif kind == "map":
        _, key, _, value, _ = [next(tokens) for _ in range(5)]  # < key , value >
        pair = key, value
    name, _, number, _ = [next(tokens) for _ in range(4)]  # name = number ;
    if pair is not None:  # a map is a list of messages of two fields
        kind = "".join(part.capitalize() for part in name.split("_")) + "Entry"
        entry = message.nested_type.add(name=kind)
        entry.options.map_entry = True
        for place, (part, of) in enumerate(zip(("key", "value"), pair, strict=True), 1):
            _typed(entry.field.add(name=part, number=place, label=_Field.LABEL_OPTIONAL), of)
    _typed(message.field.add(name=name, number=int(number), label=label), kind)


def _typed(field: Any, kind: str) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type_name = kind  # the pool finds it, from the inside out
