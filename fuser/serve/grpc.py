"""The protocol's six calls over gRPC."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError

from fuser.serve.access_log import address_of, write
from fuser.serve.models import VERSION, Model
from fuser.serve.protocol import check_complete, find_input, find_output, read_parameters
from fuser.serve.schema import SERVICE, schema
from fuser.serve.service import Service, internal
from fuser.serve.tensors import RequestError, Tensor, from_bytes, to_bytes

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT, 404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED, 503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}  # fmt: skip
_CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents",
    "INT32": "int_contents", "INT64": "int64_contents", "UINT8": "uint_contents",
    "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents",
}  # fmt: skip
ANSWER_ROOM = 1 << 16
"""Bytes of a message beside its tensors."""


def server(service: Service) -> grpc.aio.Server:
    """A server that answers for a service; the caller adds ports and starts it."""
    size = service.limits.request_bytes + ANSWER_ROOM
    made = grpc.aio.server(options=[
        ("grpc.max_receive_message_length", size), ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),
    ])  # fmt: skip
    classes, calls = schema()
    answers = Calls(service)
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            answers.guarded(name, classes[request].FromString),
            response_serializer=classes[response].SerializeToString,
        )
        for name, (request, response) in calls.items()
    }  # fmt: skip
    package = classes["ModelInferRequest"].DESCRIPTOR.file.package
    made.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(f"{package}.{SERVICE}", handlers)]
    )
    return made


class Calls:
    """What each call does, under its name."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._classes = schema()[0]

    def guarded(
        self, name: str, read: Callable[[bytes], Any]
    ) -> Callable[[bytes, Any], Awaitable[Any]]:
        """A call on a message's bytes whose errors are statuses of gRPC."""
        call = getattr(self, name)

        async def answer(message: bytes, context: Any) -> Any:
            began, code = time.monotonic(), grpc.StatusCode.INTERNAL
            refusal = ""
            try:
                try:
                    request = read(message)
                except DecodeError as error:
                    raise RequestError("the message cannot be read") from error
                found = await call(request)
                code = grpc.StatusCode.OK
                return found
            except RequestError as error:
                code, refusal = _CODES.get(error.status, code), str(error)
            except asyncio.CancelledError:
                code = grpc.StatusCode.CANCELLED
                raise
            finally:
                client = address_of(context.peer())
                write(self._service.access_log, client, "grpc", name, code.name, began)
            await context.abort(code, refusal)  # raises

        return answer

    async def ServerLive(self, request: Any) -> Any:
        return self._classes["ServerLiveResponse"](live=True)

    async def ServerReady(self, request: Any) -> Any:
        return self._classes["ServerReadyResponse"](ready=not self._service.draining)

    async def ModelReady(self, request: Any) -> Any:
        self._service.model(request.name, request.version)
        return self._classes["ModelReadyResponse"](ready=not self._service.draining)

    async def ServerMetadata(self, request: Any) -> Any:
        return self._classes["ServerMetadataResponse"](**self._service.metadata())

    async def ModelMetadata(self, request: Any) -> Any:
        model = self._service.model(request.name, request.version)
        return self._classes["ModelMetadataResponse"](**model.metadata())

    async def ModelInfer(self, request: Any) -> Any:
        began, status = time.monotonic(), 500
        try:
            with self._service.accepted():
                response = await self._infer(request)
            status = 200
            return response
        except RequestError as error:
            status = error.status
            raise
        except asyncio.CancelledError:
            status = 499  # the client is gone
            raise
        except Exception as error:
            raise internal(error) from error
        finally:
            self._service.answered(request.model_name, "grpc", status, began)

    async def _infer(self, request: Any) -> Any:
        model = self._service.model(request.model_name, request.model_version)
        feeds = read_feeds(model, request)
        wanted: dict[str, bool] = {}
        for item in request.outputs:
            name = find_output(model, item.name, wanted)
            _parameters(item.parameters, f"output {name!r}")
            wanted[name] = True
        outputs = await self._service.infer(model, feeds)
        given = [tensor for tensor in model.outputs if not wanted or tensor.name in wanted]
        return self._classes["ModelInferResponse"](
            model_name=model.name, model_version=VERSION, id=request.id,
            outputs=[
                {"name": t.name, "datatype": t.datatype, "shape": outputs[t.name].shape}
                for t in given
            ],
            raw_output_contents=[bytes(to_bytes(outputs[t.name])) for t in given],
        )  # fmt: skip


def read_feeds(model: Model, request: Any) -> dict[str, np.ndarray]:
    """The inputs of a ModelInferRequest, raw or as lists. Raises RequestError."""
    _parameters(request.parameters, "the request")
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise RequestError(f"there are {len(raw)} raw_input_contents, and {len(request.inputs)} "
                           "inputs")  # fmt: skip
    feeds: dict[str, np.ndarray] = {}
    for number, item in enumerate(request.inputs):
        tensor = find_input(model, item.name, feeds)
        shape = tensor.check(item.datatype, tuple(item.shape))
        _parameters(item.parameters, f"input {tensor.name!r}")
        if not raw:
            feeds[tensor.name] = _from_contents(tensor, shape, item.contents)
        elif item.HasField("contents"):
            raise RequestError(f"input {tensor.name!r} has contents and raw_input_contents")
        else:
            feeds[tensor.name] = from_bytes(tensor, shape, raw[number])
    check_complete(model, feeds)
    return feeds


def _from_contents(tensor: Tensor, shape: tuple[int, ...], contents: Any) -> np.ndarray:
    wanted = _CONTENTS.get(tensor.datatype)
    if wanted is None:
        raise RequestError(f"input {tensor.name!r} is {tensor.datatype}: send raw_input_contents")
    if any(field.name != wanted for field, _ in contents.ListFields()):
        raise RequestError(f"the values of {tensor.datatype} are {wanted}")
    values = getattr(contents, wanted)
    if len(values) != math.prod(shape):
        raise RequestError(
            f"input {tensor.name!r} has {len(values)} values, its shape {math.prod(shape)}"
        )
    try:
        return np.array(values, tensor.dtype).reshape(shape)
    except OverflowError as error:
        raise RequestError(f"a value of input {tensor.name!r} is out of range") from error


def _parameters(items: Any, where: str) -> None:
    given = {name: getattr(item, item.WhichOneof("parameter_choice") or "string_param")
             for name, item in items.items()}  # fmt: skip
    read_parameters(given, where)
