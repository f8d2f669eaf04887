"""Malformed requests: a status of 4xx each, an error in words, and a server that goes on."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.conftest import WIDTH, Running

ROW = [0.5] * WIDTH
Case = tuple[str, bytes, dict[str, str]]
PATH = "/v2/models/mlp/infer"
HEADER = "Inference-Header-Content-Length"


TOP = ("id", "parameters", "inputs", "outputs")


def fields(**changes: Any) -> dict[str, Any]:
    """A request that is right, but for changes of its fields, or of those of its input; `...`
    leaves one out."""
    item = {"name": "x", "datatype": "FP32", "shape": [1, WIDTH], "data": ROW}
    top = {k: changes.pop(k) for k in TOP if k in changes}
    item = {k: v for k, v in {**item, **changes}.items() if v is not ...}
    return {"inputs": [item], **top}


def bodies() -> Iterator[tuple[str, Any]]:
    """Bodies of JSON: texts, or what json.dumps makes one of."""
    yield "empty", ""
    yield "no JSON", "hello"
    yield "cut off", json.dumps(fields())[:-5]
    yield "two objects", json.dumps(fields()) * 2
    yield "no UTF-8", b"\xff\xfe" + json.dumps(fields()).encode()
    yield "zero bytes", b"\0" * 20
    yield "list", []
    yield "number", 3
    yield "null", None
    yield "deep", "[" * 50_000 + "]" * 50_000
    yield "deep objects", '{"inputs":' * 3000
    yield "NaN", json.dumps(fields()).replace("0.5", "NaN")
    yield "Infinity", json.dumps(fields()).replace("0.5", "-Infinity")
    yield "long number", json.dumps(fields()).replace("0.5", "1" * 5000)
    yield "key twice", '{"inputs": [], "inputs": []}'
    yield "no inputs", {}
    yield "inputs null", fields(inputs=None)
    yield "inputs object", fields(inputs={"x": ROW})
    yield "inputs of numbers", fields(inputs=[1])
    yield "inputs empty", fields(inputs=[])
    yield "input twice", fields(inputs=fields()["inputs"] * 2)
    yield "unknown input", fields(name="z")
    yield "name a number", fields(name=5)
    yield "no name", fields(name=...)
    yield "long name", fields(name="x" * 20_000)
    yield "no datatype", fields(datatype=...)
    yield "other datatype", fields(datatype="FP64")
    yield "unknown datatype", fields(datatype="FP33")
    yield "strings", fields(datatype="BYTES", data=["a"])
    yield "datatype a list", fields(datatype=["FP32"])
    yield "no shape", fields(shape=...)
    yield "shape a number", fields(shape=WIDTH)
    yield "shape a string", fields(shape="24")
    yield "shape of floats", fields(shape=[1.0, WIDTH])
    yield "shape of flags", fields(shape=[True, WIDTH])
    yield "negative size", fields(shape=[-1, WIDTH])
    yield "huge size", fields(shape=[1 << 70, WIDTH])
    yield "many rows", fields(shape=[1 << 40, WIDTH])
    yield "too few axes", fields(shape=[WIDTH])
    yield "too many axes", fields(shape=[1] * 40)
    yield "other columns", fields(shape=[1, WIDTH + 1], data=ROW + [0])
    yield "no data", fields(data=...)
    yield "data a number", fields(data=1)
    yield "data a string", fields(data="0.5" * 8)
    yield "too few values", fields(data=ROW[1:])
    yield "too many values", fields(data=ROW + ROW)
    yield "strings among numbers", fields(data=ROW[1:] + ["1"])
    yield "null among numbers", fields(data=ROW[1:] + [None])
    yield "flags among numbers", fields(data=ROW[1:] + [True])
    yield "out of range", fields(data=ROW[1:] + [1e39])
    yield "integers out of range", fields(data=ROW[1:] + [10**400])
    yield "beyond doubles", json.dumps(fields()).replace("0.5", "1e999", 1)
    yield "nested too deeply", fields(data=[[ROW]])
    yield "nested unevenly", fields(data=[ROW[1:], [1.0]])
    yield "id a number", fields(id=7)
    yield "parameters a list", fields(parameters=[])
    yield "parameter an object", fields(parameters={"a": {}})
    yield "parameter no flag", fields(parameters={"binary_data_output": "yes"})
    yield "sequences", fields(parameters={"sequence_id": 4})
    yield "outputs an object", fields(outputs={})
    yield "unknown output", fields(outputs=[{"name": "z"}])
    yield "output twice", fields(outputs=[{"name": "y"}] * 2)
    yield "classification", fields(outputs=[{"name": "y", "parameters": {"classification": 3}}])
    yield "shared memory", fields(inputs=[
        {**fields()["inputs"][0], "parameters": {"shared_memory_region": "r"}}
    ])  # fmt: skip


def binary(size: Any = 4 * WIDTH, sent: int = 4 * WIDTH, header: str = "", **more: Any) -> Case:
    item = fields(data=more.get("data", ...))["inputs"][0]
    item["parameters"] = {"binary_data_size": size}
    text = json.dumps({"inputs": [item]}).encode()
    return PATH, text + bytes(sent), {HEADER: header or str(len(text))}


def cases() -> Iterator[tuple[str, Case]]:
    for name, body in bodies():
        if not isinstance(body, str | bytes):
            body = json.dumps(body)
        yield name, (PATH, body.encode() if isinstance(body, str) else body, {})
    right = json.dumps(fields()).encode()
    yield "header no number", binary(header="x")
    yield "header negative", binary(header="-1")
    yield "header behind the end", binary(header="100000")
    yield "header huge", binary(header="9" * 40)
    yield "header within the JSON", binary(header="10")
    yield "no header", (*binary()[:2], {})
    yield "bytes too few", binary(sent=4 * WIDTH - 1)
    yield "bytes too many", binary(sent=4 * WIDTH + 1)
    yield "size not the shape's", binary(size=8, sent=8)
    yield "size negative", binary(size=-1)
    yield "size a float", binary(size=96.0)
    yield "size a string", binary(size="96")
    yield "data and bytes", binary(data=ROW)
    yield "unknown model", ("/v2/models/other/infer", right, {})
    yield "unknown version", ("/v2/models/mlp/versions/7/infer", right, {})
    yield "unknown path", ("/v2/models/mlp/explain", right, {})
    yield "path upwards", ("/v2/models/../../etc/passwd", right, {})
    yield "too large", (PATH, b" " * 200_000, {})
    yield "too large unpacked", (PATH, gzip.compress(b" " * 200_000), {"Content-Encoding": "gzip"})
    yield "not packed", (PATH, right, {"Content-Encoding": "gzip"})


CASES = dict(cases())


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 60


def test_the_request_that_is_changed_is_right(service: Running) -> None:
    assert service.infer("mlp", fields())[0] == 200
    assert service.infer("mlp", fields(data=[ROW]))[0] == 200
    path, body, headers = binary()
    assert service.ask(path, body, headers)[0] == 200


@pytest.mark.parametrize("name", CASES)
def test_malformed_requests_are_told_what_is_wrong(name: str, service: Running) -> None:
    path, body, headers = CASES[name]
    status, _, answer = service.ask(path, body, headers)
    assert 400 <= status < 500
    if headers.get("Content-Encoding") is None:
        error = json.loads(answer)["error"]
        assert isinstance(error, str) and 0 < len(error) < 500


@pytest.mark.parametrize(
    "text",
    [
        b"hello\r\n\r\n", b"POST /v2 HTTP/9.9\r\n\r\n", b"POST\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost x\r\n\r\n",
        b"POST /v2/models/mlp/infer HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST /v2/models/mlp/infer HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nA: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /v2/models/mlp/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)  # fmt: skip
def test_what_is_no_http_is_refused(text: bytes, service: Running) -> None:
    with socket.create_connection(("127.0.0.1", service.http_port), timeout=300) as connection:
        connection.sendall(text)
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(4096)
    assert not answer or answer.split()[1].startswith(b"4"), answer


def test_nothing_of_it_was_an_internal_error(service: Running) -> None:
    text = service.ask("/metrics")[2].decode()
    assert 'status="5' not in text
    assert service.infer("mlp", fields())[0] == 200
