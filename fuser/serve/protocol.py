"""Inference requests and answers of the Open Inference Protocol as bodies of HTTP: JSON, with or
without Triton's extension for binary tensors, which follow the JSON."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fuser.errors import nearest
from fuser.serve.models import VERSION, Model
from fuser.serve.tensors import RequestError, Tensor, from_bytes, from_values, to_bytes, to_values

BINARY_HEADER = "Inference-Header-Content-Length"
"""The bytes of JSON in a body that binary tensors follow."""
UNSUPPORTED = ("classification", "shared_memory_region", "sequence_id")
"""Parameters that would change the answer, of Triton's extensions."""

MOST_KEPT, MOST_FORMS = 4096, 256
"""Bytes of JSON that is remembered with what it says, and how many of them."""


@dataclass(frozen=True)
class Request:
    """feeds: by input name. outputs: by name, those that are asked for, and whether as bytes."""

    id: str
    feeds: dict[str, np.ndarray]
    outputs: Mapping[str, bool]


def read_request(model: Model, body: bytes, json_bytes: int | None) -> Request:
    """The request in a body. json_bytes: how much of it is JSON; None: all. Raises RequestError."""
    if json_bytes is None:
        json_bytes = len(body)
    if not 0 <= json_bytes <= len(body):
        raise RequestError(f"{BINARY_HEADER} is {json_bytes}, the body has {len(body)} bytes")
    # A client says the same of each of its binary tensors, request after request.
    again = json_bytes < min(len(body), MOST_KEPT)
    form = (_kept_form if again else _read_form)(model, body[:json_bytes])
    raw = memoryview(body)[json_bytes:]
    feeds: dict[str, np.ndarray] = {}
    at = 0
    for tensor, shape, size, data in form.inputs:
        if size is None:
            feeds[tensor.name] = from_values(tensor, shape, data)
            continue
        if at + size > len(raw):
            raise RequestError(f"binary_data_size of input {tensor.name!r} does not fit the body")
        feeds[tensor.name] = from_bytes(tensor, shape, raw[at : at + size])
        at += size
    if at != len(raw):
        raise RequestError(f"{len(raw) - at} bytes follow the last tensor")
    return Request(form.id, feeds, form.outputs)


class _Form(NamedTuple):
    """What the JSON of a request says. inputs: with the bytes of theirs that follow it, or (size
    None) with the values themselves."""

    id: str
    inputs: tuple[tuple[Tensor, tuple[int, ...], int | None, Any], ...]
    outputs: Mapping[str, bool]


def _read_form(model: Model, text: bytes) -> _Form:
    """Raises RequestError."""
    fields = _object(_parse(text), "the request")
    id = fields.get("id", "")
    if not isinstance(id, str):
        raise RequestError("the id is no string")
    parameters = read_parameters(fields.get("parameters", {}), "the request")
    inputs: dict[str, tuple[Tensor, tuple[int, ...], int | None, Any]] = {}
    for item in _list(fields.get("inputs"), "inputs"):
        tensor = find_input(model, item.get("name"), inputs)
        shape = tensor.check(item.get("datatype"), item.get("shape"))
        given = read_parameters(item.get("parameters", {}), f"input {tensor.name!r}")
        size = given.get("binary_data_size")
        if size is not None:
            if type(size) is not int or size < 0:
                raise RequestError(
                    f"binary_data_size of input {tensor.name!r} does not fit the body"
                )
            if "data" in item:
                raise RequestError(f"input {tensor.name!r} has data and binary_data_size")
        inputs[tensor.name] = tensor, shape, size, item.get("data")
    check_complete(model, inputs)
    default = _flag(parameters, "binary_data_output", False)
    wanted: dict[str, bool] = {}
    for item in _list(fields.get("outputs", []), "outputs"):
        name = find_output(model, item.get("name"), wanted)
        given = read_parameters(item.get("parameters", {}), f"output {name!r}")
        wanted[name] = _flag(given, "binary_data", default)
    outputs = wanted or {tensor.name: default for tensor in model.outputs}
    return _Form(id, tuple(inputs.values()), outputs)


_kept_form = functools.lru_cache(MOST_FORMS)(_read_form)


def write_answer(
    model: Model, request: Request, outputs: Mapping[str, np.ndarray]
) -> tuple[bytes, int | None]:
    """The body, and how much of it is JSON if bytes follow. Raises RequestError (406)."""
    parts: list[memoryview] = []
    items: list[dict[str, Any]] = []
    for tensor in model.outputs:
        if tensor.name not in request.outputs:
            continue
        array = outputs[tensor.name]
        item: dict[str, Any] = {
            "name": tensor.name, "datatype": tensor.datatype, "shape": list(array.shape),
        }  # fmt: skip
        if request.outputs[tensor.name]:
            parts.append(to_bytes(array))
            item["parameters"] = {"binary_data_size": array.nbytes}
        else:
            item["data"] = to_values(tensor.name, array)
        items.append(item)
    fields = {"model_name": model.name, "model_version": VERSION, "outputs": items}
    if request.id:
        fields["id"] = request.id
    text = _ENCODER.encode(fields).encode()
    return (b"".join([text, *parts]), len(text)) if parts else (text, None)


def find_input(model: Model, name: object, feeds: Mapping[str, Any]) -> Tensor:
    """The input of this name, which is given once. Raises RequestError."""
    found = next((tensor for tensor in model.inputs if tensor.name == name), None)
    if found is None:
        raise _unknown("input", name, model.inputs)
    if found.name in feeds:
        raise RequestError(f"input {found.name!r} is given twice")
    return found


def find_output(model: Model, name: object, wanted: Mapping[str, Any]) -> str:
    """The output of this name, which is asked for once. Raises RequestError."""
    found = next((tensor for tensor in model.outputs if tensor.name == name), None)
    if found is None:
        raise _unknown("output", name, model.outputs)
    if found.name in wanted:
        raise RequestError(f"output {found.name!r} is asked for twice")
    return found.name


def check_complete(model: Model, feeds: Mapping[str, Any]) -> None:
    """Raise RequestError unless all inputs are given."""
    missing = [tensor.name for tensor in model.inputs if tensor.name not in feeds]
    if missing:
        raise RequestError(f"missing inputs: {', '.join(missing)}")


def read_parameters(item: object, where: str) -> dict[str, Any]:
    """Parameters as they came: numbers, strings and flags. Raises RequestError for others, and for
    those that ask for what is not done."""
    fields = _object(item, f"the parameters of {where}")
    for name, value in fields.items():
        if not isinstance(value, str | int | float):
            raise RequestError(f"the parameter {name!r} of {where} is no number, string or flag")
        if name in UNSUPPORTED:
            raise RequestError(f"the parameter {name!r} of {where} is not supported")
    return fields


def _flag(parameters: Mapping[str, Any], name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise RequestError(f"the parameter {name!r} is neither true nor false")
    return value


def _unknown(kind: str, name: object, known: Sequence[Tensor]) -> RequestError:
    if not isinstance(name, str):
        return RequestError(f"the name of an {kind} is no string")
    hint = nearest(name, [tensor.name for tensor in known], f"the {kind}s are")
    return RequestError(f"there is no {kind} {name[:100]!r}", hint=hint)


def _parse(text: bytes) -> object:
    try:
        return _DECODER.decode(text.decode())
    except UnicodeDecodeError as error:
        raise RequestError("the JSON is not UTF-8") from error
    except RecursionError as error:
        raise RequestError("the JSON is nested too deeply") from error
    except ValueError as error:
        raise RequestError(f"the body is no JSON: {error}") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise RequestError("an object of the JSON has a key twice")
    return found


def _constant(name: str) -> object:
    raise RequestError(f"JSON has no {name}", hint="send such values as binary tensors")


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_constant)
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def _object(item: object, what: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise RequestError(f"{what} is no object of JSON")
    return item


def _list(item: object, what: str) -> list[dict[str, Any]]:
    if not isinstance(item, list) or not all(isinstance(part, dict) for part in item):
        raise RequestError(f"{what} is no list of objects")
    return item
