"""The page at `/`, and the access log."""

from __future__ import annotations

import html
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import grpc
import numpy as np
import pytest

from fuser.serve.access_log import address_of, line
from fuser.serve.index_page import MOST_MODELS, index_page
from fuser.serve.models import Model
from fuser.serve.schema import schema
from fuser.serve.tensors import DATATYPES, Tensor
from tests.serve.conftest import WIDTH, Running, numbers, running

# The page -----------------------------------------------------------------------------------------

VOID = {"meta"}


class Checked(HTMLParser):
    """The tags and attributes of a page; every tag that is opened is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def examples(page: str) -> list[str]:
    return [html.unescape(text) for text in re.findall(r"<pre>(.*?)</pre>", page, re.DOTALL)]


def test_the_page_lists_models_and_how_to_ask_them(service: Running, mlp: Model) -> None:
    status, headers, body = service.ask("/")
    page = body.decode()
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    checked = Checked(page)
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in checked.tags}
    links = [attributes["href"] for tag, attributes in checked.tags if tag == "a"]
    assert links == ["/v2", "/v2/health/ready", "/metrics", "/v2/models/mlp"]
    for link in links:
        assert link is not None and service.ask(link)[0] == 200
    assert "<td>x</td><td>FP32</td><td>any, 24</td>" in page
    assert "<td>y</td><td>FP32</td><td>any, 10</td>" in page
    shell, python = examples(page)
    expected = mlp.plan.run({"x": np.zeros((1, WIDTH), np.float32)})["y"]
    command, url, option, fields = shlex.split(shell)
    assert (command, option) == ("curl", "-d")
    assert url == f"http://127.0.0.1:{service.http_port}/v2/models/mlp/infer"
    status, answer = service.infer("mlp", json.loads(fields))
    assert (status, answer["outputs"][0]["data"]) == (200, expected.reshape(-1).tolist())
    done = subprocess.run([sys.executable, "-c", python], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert eval(done.stdout)[0]["data"] == expected.reshape(-1).tolist()


def model(name: str, *inputs: Tensor) -> Model:
    return Model(name, None, "test", inputs, inputs)  # type: ignore[arg-type]


def test_names_are_text_and_large_inputs_have_no_shell_example() -> None:
    hostile = "a'b</pre><script>alert(1)</script>%/\x07"
    small = model(
        hostile, Tensor(hostile, np.dtype(bool), (-1, 2)), Tensor("s", np.dtype("i8"), ())
    )
    large = model("images", Tensor("x", np.dtype("f4"), (-1, 3, 224, 224)))
    page = index_page([small, large], "evil'host\"><script>")
    checked = Checked(page)
    assert "script" not in {tag for tag, _ in checked.tags} and "evil" not in page
    assert "\x07" not in page and "a scalar" in page
    shell, python, of_images = examples(page)
    _, url, _, fields = shlex.split(shell)
    assert "'" not in url and url.startswith("http://localhost:8000/v2/models/a%27b%3C%2Fpre%3E")
    first, second = json.loads(fields)["inputs"]
    assert (first["name"], first["data"]) == (hostile, [True, True])
    assert (second["shape"], second["data"]) == ([], [0])
    compile(python, "example", "exec")
    assert "(1, 3, 224, 224), 'float32'" in of_images and "curl" not in of_images
    for host in ("localhost:80", "127.0.0.1:1", "[::1]:8000", "my-host.example"):
        assert f"http://{host}/v2/models/images/infer" in html.unescape(index_page([large], host))


def test_every_datatype_and_number_of_models_has_a_page() -> None:
    inputs = [Tensor(name.lower(), dtype, (2,)) for name, dtype in DATATYPES.items()]
    shell, python = examples(index_page([model("all", *inputs)], "h"))
    fields = {item["name"]: item for item in json.loads(shlex.split(shell)[3])["inputs"]}
    assert [fields[tensor.name]["datatype"] for tensor in inputs] == list(DATATYPES)
    assert "ml_dtypes" not in python and "bfloat16" not in python
    assert "0 models" in index_page([], "h")
    many = index_page([model(f"m{i}", inputs[0]) for i in range(MOST_MODELS + 3)], "h")
    assert many.count("<section>") == MOST_MODELS and "3 more are not shown" in many


# The access log -----------------------------------------------------------------------------------


@pytest.fixture
def logged(mlp: Model) -> Iterator[tuple[Running, list[str]]]:
    lines: list[str] = []
    with running([mlp], access_log=lines.append) as service:
        yield service, lines


TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def test_each_request_is_a_line(logged: tuple[Running, list[str]]) -> None:
    service, lines = logged
    item = {"name": "x", "datatype": "FP32", "shape": [1, WIDTH],
            "data": numbers(1).reshape(-1).tolist()}  # fmt: skip
    assert service.infer("mlp", {"inputs": [item]})[0] == 200
    assert service.infer("mlp", {"inputs": []})[0] == 400
    assert service.ask("/v2/models/none?secret=1")[0] == 404
    assert service.ask("/v2/models/mlp/infer")[0] == 405
    classes, calls = schema()

    def call(name: str, /, **fields: Any) -> Any:
        request, response = calls[name]
        with grpc.insecure_channel(f"127.0.0.1:{service.grpc_port}") as channel:
            return channel.unary_unary(
                f"/inference.GRPCInferenceService/{name}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=classes[response].FromString,
            )(classes[request](**fields), timeout=300)

    call("ServerLive")
    with pytest.raises(grpc.RpcError):
        call("ModelReady", name="none")
    assert [re.sub(rf"^{TIME}|[\d.]+ ms$", "", text) for text in lines] == [
        ' 127.0.0.1 http "POST /v2/models/mlp/infer" 200 ',
        ' 127.0.0.1 http "POST /v2/models/mlp/infer" 400 ',
        ' 127.0.0.1 http "GET /v2/models/none" 404 ',
        ' 127.0.0.1 http "GET /v2/models/mlp/infer" 405 ',
        ' 127.0.0.1 grpc "ServerLive" OK ',
        ' 127.0.0.1 grpc "ModelReady" NOT_FOUND ',
    ]


def test_there_is_none_unless_it_is_asked_for(service: Running) -> None:
    assert service.service.access_log is None


def test_what_a_client_chooses_ends_no_line() -> None:
    text = line("::1", "http", 'GET /a"\n\x1b[31mb\u2028' + "x" * 500, 200, 0.0012345)
    assert len(text.splitlines()) == 1 and text.isascii() and text.isprintable()
    assert re.fullmatch(rf'{TIME} ::1 http "GET /a\\"\\n.*x\.\.\." 200 1\.234 ms', text)
    assert len(text) < 320


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:127.0.0.1:5000", "127.0.0.1"), ("ipv6:%5B::1%5D:5000", "::1"),
        ("ipv6:[fe80::2]:5000", "fe80::2"), ("unix:/run/x", "unix"), ("", "-"),
    ],
)  # fmt: skip
def test_addresses_of_grpc(peer: str, address: str) -> None:
    assert address_of(peer) == address
