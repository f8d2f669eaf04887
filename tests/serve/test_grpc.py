"""The protocol over gRPC, and what a client that nobody here wrote makes of the server."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest

from fuser.serve.models import Model
from fuser.serve.schema import schema
from tests.serve.conftest import WIDTH, Running, numbers

CLASSES, CALLS = schema()


def call(service: Running, name: str, request: Any) -> Any:
    with grpc.insecure_channel(f"127.0.0.1:{service.grpc_port}") as channel:
        asked = channel.unary_unary(
            f"/inference.GRPCInferenceService/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=CLASSES[CALLS[name][1]].FromString,
        )
        return asked(request, timeout=300)


def infer(service: Running, **changes: Any) -> Any:
    x = numbers(2)
    item = {"name": "x", "datatype": "FP32", "shape": [2, WIDTH], **changes.pop("item", {})}
    fields = {"model_name": "mlp", "inputs": [item], "raw_input_contents": [x.tobytes()], **changes}
    return call(service, "ModelInfer", CLASSES["ModelInferRequest"](**fields))


def test_the_six_calls(service: Running, mlp: Model) -> None:
    assert len(CALLS) == 6
    assert call(service, "ServerLive", CLASSES["ServerLiveRequest"]()).live
    assert call(service, "ServerReady", CLASSES["ServerReadyRequest"]()).ready
    assert call(service, "ModelReady", CLASSES["ModelReadyRequest"](name="mlp")).ready
    about = call(service, "ServerMetadata", CLASSES["ServerMetadataRequest"]())
    assert about.name == "fuser"
    about = call(service, "ModelMetadata", CLASSES["ModelMetadataRequest"](name="mlp"))
    assert [(t.name, t.datatype, list(t.shape)) for t in (*about.inputs, *about.outputs)] == [
        ("x", "FP32", [-1, WIDTH]), ("y", "FP32", [-1, 10])
    ]  # fmt: skip
    expected = mlp.plan.run({"x": numbers(2)})["y"].tobytes()
    answer = infer(service, id="7")
    assert (answer.model_name, answer.model_version, answer.id) == ("mlp", "1", "7")
    assert list(answer.raw_output_contents) == [expected]
    contents = {"contents": {"fp32_contents": numbers(2).reshape(-1).tolist()}}
    answer = infer(service, item=contents, raw_input_contents=[], outputs=[{"name": "y"}])
    assert list(answer.raw_output_contents) == [expected]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"model_name": "none"}, "NOT_FOUND"),
        ({"model_version": "3"}, "NOT_FOUND"),
        ({"inputs": []}, "INVALID_ARGUMENT"),
        ({"inputs": [], "raw_input_contents": []}, "INVALID_ARGUMENT"),
        ({"raw_input_contents": [b"", b""]}, "INVALID_ARGUMENT"),
        ({"raw_input_contents": [b"123"]}, "INVALID_ARGUMENT"),
        ({"raw_input_contents": []}, "INVALID_ARGUMENT"),
        ({"item": {"name": "z"}}, "INVALID_ARGUMENT"),
        ({"item": {"datatype": "INT64"}}, "INVALID_ARGUMENT"),
        ({"item": {"shape": [2]}}, "INVALID_ARGUMENT"),
        ({"item": {"shape": [-2, WIDTH]}}, "INVALID_ARGUMENT"),
        ({"item": {"shape": [3, WIDTH]}}, "INVALID_ARGUMENT"),
        ({"item": {"contents": {"fp32_contents": [1.0]}}}, "INVALID_ARGUMENT"),
        ({"item": {"contents": {"int_contents": [1] * 48}}, "raw_input_contents": []},
         "INVALID_ARGUMENT"),
        ({"outputs": [{"name": "z"}]}, "INVALID_ARGUMENT"),
        ({"outputs": [{"name": "y"}] * 2}, "INVALID_ARGUMENT"),
        ({"parameters": {"sequence_id": {"int64_param": 3}}}, "INVALID_ARGUMENT"),
        ({"raw_input_contents": [bytes(400_000)]}, "RESOURCE_EXHAUSTED"),
    ],
)  # fmt: skip
def test_malformed_messages(changes: dict[str, Any], code: str, service: Running) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        infer(service, **changes)
    assert caught.value.code().name == code
    assert caught.value.details()


def test_bytes_that_are_no_message(service: Running) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{service.grpc_port}") as channel:
        asked = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for body in (b"\xff" * 9, b"\x0a\x7f", b"hello"):
            with pytest.raises(grpc.RpcError) as caught:
                asked(body, timeout=300)
            assert caught.value.code().name == "INVALID_ARGUMENT"
    assert infer(service).model_name == "mlp"


def test_fields_have_the_numbers_of_a_foreign_copy() -> None:
    """Each of our fields has name, number and type in what tritonclient was built from."""
    foreign = pytest.importorskip("tritonclient.grpc.service_pb2", reason="needs tritonclient")

    def fields(message: Any, prefix: str = "") -> set[tuple[Any, ...]]:
        found = {(prefix, f.name, f.number, f.type, f.is_repeated) for f in message.fields}
        for inner in message.nested_types:
            found |= fields(inner, f"{prefix}.{inner.name}")
        return found

    for name, kind in CLASSES.items():
        theirs = fields(getattr(foreign, name).DESCRIPTOR)
        assert fields(kind.DESCRIPTOR) <= theirs, name


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_a_foreign_client(kind: str, service: Running, mlp: Model) -> None:
    client_module: Any = pytest.importorskip(f"tritonclient.{kind}", reason="needs tritonclient")
    port = service.http_port if kind == "http" else service.grpc_port
    client = client_module.InferenceServerClient(f"127.0.0.1:{port}")
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("mlp")
    x = numbers(3)
    expected = mlp.plan.run({"x": x})["y"]
    item = client_module.InferInput("x", list(x.shape), "FP32")
    item.set_data_from_numpy(x)
    found = client.infer("mlp", [item], request_id="3")
    assert found.as_numpy("y").tobytes() == expected.tobytes()
    assert "mlp" in str(client.get_model_metadata("mlp"))
    if kind == "http":
        item.set_data_from_numpy(x, binary_data=False)
        wanted = [client_module.InferRequestedOutput("y", binary_data=False)]
        found = client.infer("mlp", [item], outputs=wanted, request_compression_algorithm="gzip")
        assert np.array_equal(found.as_numpy("y"), expected)
    wrong = client_module.InferInput("x", [1, 2], "FP32")
    wrong.set_data_from_numpy(np.zeros((1, 2), np.float32))
    with pytest.raises(Exception, match="shape"):
        client.infer("mlp", [wrong])
    client.close()
