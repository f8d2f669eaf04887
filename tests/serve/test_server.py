"""The server: answers, batches, limits, the end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fuser
from benchmarks.serve import Server, Tally, clients, message, questions
from fuser.cli.main import run
from fuser.serve.models import Model
from fuser.serve.opening import open_model
from fuser.serve.tensors import DATATYPES, Tensor
from tests.serve.conftest import WIDTH, Running, numbers, running
from tests.serve.test_rows import model_file


class Held:
    """Stands for a plan: `y = x`, when it is let go."""

    def __init__(self) -> None:
        self.go, self.runs, self.entered = threading.Event(), 0, threading.Semaphore(0)

    def run(self, feeds: Any) -> dict[str, np.ndarray]:
        self.runs += 1
        self.entered.release()
        assert self.go.wait(300)
        return {"y": feeds["x"]}


def held_model(**more: Any) -> tuple[Model, Held]:
    plan = Held()
    x = Tensor("x", np.dtype(np.float32), (-1,))
    return Model("held", plan, "test", (x,), (Tensor("y", x.dtype, (-1,)),), **more), plan  # type: ignore[arg-type]


def held_request(value: float = 1.0) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [value]}]}


def test_metadata_and_health(service: Running) -> None:
    assert json.loads(service.ask("/v2")[2]) == {
        "name": "fuser", "version": fuser.__version__, "extensions": ["binary_tensor_data"]
    }  # fmt: skip
    expected = {
        "name": "mlp", "versions": ["1"], "platform": "fuser_onnx",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, WIDTH]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 10]}],
    }  # fmt: skip
    for path in ("/v2/models/mlp", "/v2/models/mlp/versions/1"):
        assert json.loads(service.ask(path)[2]) == expected
        assert service.ask(f"{path}/ready")[0] == 200
    assert service.ask("/v2/health/live")[0] == service.ask("/v2/health/ready")[0] == 200
    for path in ("/v2/models/none", "/v2/models/none/ready", "/v2/models/mlp/versions/2", "/v3"):
        status, _, body = service.ask(path)
        assert status == 404 and json.loads(body)["error"]
    status, headers, _ = service.ask("/v2/models/mlp/infer")
    assert status == 405 and headers["Allow"] == "POST"


@pytest.mark.parametrize("binary_in", [False, True])
@pytest.mark.parametrize("binary_out", [False, True])
def test_answers_are_those_of_the_plan(
    binary_in: bool, binary_out: bool, service: Running, mlp: Model
) -> None:
    x = numbers(3)
    item: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [3, WIDTH]}
    if binary_in:
        item["parameters"] = {"binary_data_size": x.nbytes}
    else:
        item["data"] = x.tolist()
    asked = {
        "id": "a", "inputs": [item],
        "outputs": [{"name": "y", "parameters": {"binary_data": binary_out}}],
    }  # fmt: skip
    text = json.dumps(asked).encode()
    header = {"Inference-Header-Content-Length": str(len(text))} if binary_in else {}
    body = text + (x.tobytes() if binary_in else b"")
    status, headers, answer = service.ask("/v2/models/mlp/infer", body, header)
    assert status == 200
    size = int(headers.get("Inference-Header-Content-Length", len(answer)))
    fields = json.loads(answer[:size])
    assert (fields["model_name"], fields["model_version"], fields["id"]) == ("mlp", "1", "a")
    (output,) = fields["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("y", "FP32", [3, 10])
    found = answer[size:] if binary_out else np.array(output["data"], np.float32).tobytes()
    assert found == mlp.plan.run({"x": x})["y"].tobytes()


def test_all_datatypes_go_both_ways(tmp_path: Path) -> None:
    """A model that gives back what it is given, in each datatype of the protocol."""
    names = {
        "BOOL": "bool", "FP16": "float16", "FP32": "float", "FP64": "double", "BF16": "bfloat16",
        **{f"{u}INT{b}": f"{u.lower()}int{b}" for u in ("", "U") for b in (8, 16, 32, 64)},
    }  # fmt: skip
    assert set(names) == set(DATATYPES)
    inputs = ", ".join(f"{kind}[2] i{name}" for name, kind in names.items())
    outputs = ", ".join(f"{kind}[2] o{name}" for name, kind in names.items())
    body = " ".join(f"o{name} = Identity(i{name})" for name in names)
    path = model_file(tmp_path, f"g ({inputs}) => ({outputs}) {{ {body} }}")
    values = {"BOOL": [True, False], **{f"UINT{b}": [2**b - 1, 0] for b in (8, 16, 32, 64)},
              **{f"INT{b}": [-(2 ** (b - 1)), 3] for b in (8, 16, 32, 64)}}  # fmt: skip
    with running([open_model(path, device="cpu", threads=1)]) as service:
        status, answer = service.infer("model", {"inputs": [
            {"name": f"i{name}", "datatype": name, "shape": [2],
             "data": values.get(name, [-1.5, 0.25])}
            for name in names
        ]})  # fmt: skip
    assert status == 200
    for item in answer["outputs"]:
        assert item["data"] == values.get(item["datatype"], [-1.5, 0.25])


def test_infinities_are_no_json(tmp_path: Path) -> None:
    path = model_file(tmp_path, "g (float[n] x) => (float[n] y) { y = Log(x) }")
    item = {"name": "x", "datatype": "FP32", "shape": [1], "data": [0.0]}
    with running([open_model(path, device="cpu", threads=1)]) as service:
        status, answer = service.infer("model", {"inputs": [item]})
        assert status == 406 and "binary_data" in answer["error"]
        asked = {"inputs": [item], "parameters": {"binary_data_output": True}}
        body = json.dumps(asked).encode()
        status, _, raw = service.ask("/v2/models/model/infer", body)
        assert status == 200 and raw.endswith(np.float32(-np.inf).tobytes())


def test_many_clients_of_mixed_sizes(mlp_file: Path) -> None:
    """Answers have the bits of single ones, none is lost, and the device runs less often."""
    plan = fuser.compile(mlp_file, device="cpu", dynamic=True, threads=1)
    asked = questions("mlp", plan, 16, (1,))
    tally = Tally()
    model = open_model(mlp_file, device="cpu", threads=1)
    right, gate = model.plan.run, threading.Event()

    def gated(feeds: Any) -> Any:
        """The device is busy until many requests wait, and shares its runs from then on."""
        assert gate.wait(300)
        return right(feeds)

    model.plan.run = gated  # type: ignore[method-assign]
    with running([model]) as service:

        async def ask() -> None:
            until = asyncio.Event()
            asking = asyncio.create_task(clients(service.http_port, asked, 40, until, tally))
            while service.service.inflight < 20:
                await asyncio.sleep(0.005)
            gate.set()
            while sum(tally.statuses.values()) < 400 and not asking.done():
                await asyncio.sleep(0.005)
            until.set()
            await asking

        asyncio.run(ask())
        runs = service.metric('fuser_run_seconds_count{model="mlp"}')
        served = service.metric('fuser_run_requests_total{model="mlp"}')
    total = sum(tally.statuses.values())
    assert total >= 400 and tally.statuses[200] == total == served
    assert tally.lost == tally.wrong == 0
    assert runs < total


def test_a_full_queue_refuses_and_goes_on() -> None:
    model, plan = held_model()
    with running([model], waiting=2) as service, ThreadPoolExecutor(2) as pool:
        first = [pool.submit(service.infer, "held", held_request(i)) for i in range(2)]
        while service.metric('fuser_waiting_requests{model="held"}') < 2:
            time.sleep(0.005)
        status, answer = service.infer("held", held_request())
        assert status == 503 and "2 requests wait" in answer["error"]
        plan.go.set()
        answers = [item.result() for item in first]
        assert [status for status, _ in answers] == [200, 200]
        assert sorted(a["outputs"][0]["data"][0] for _, a in answers) == [0, 1]
        assert service.infer("held", held_request())[0] == 200


def test_requests_that_wait_share_the_next_run() -> None:
    model, plan = held_model(batch="n", ladder=(1, 2, 3, 4))
    model._sizes[((),)] = (1, 2, 3, 4)
    with running([model]) as service, ThreadPoolExecutor(8) as pool:
        first = pool.submit(service.infer, "held", held_request(-1))
        assert plan.entered.acquire(timeout=300)
        others = [pool.submit(service.infer, "held", held_request(i)) for i in range(6)]
        while service.metric('fuser_waiting_requests{model="held"}') < 7:
            time.sleep(0.005)
        plan.go.set()
        found = [item.result()[1]["outputs"][0]["data"] for item in (first, *others)]
    assert found == [[-1], [0], [1], [2], [3], [4], [5]]
    assert plan.runs == 3  # one, four, two


def test_an_idle_device_waits_for_others_if_told() -> None:
    model, plan = held_model(batch="n", ladder=(1, 2, 3))
    model._sizes[((),)] = (1, 2, 3)
    plan.go.set()
    with running([model], wait=1e6) as service, ThreadPoolExecutor(3) as pool:
        found = [pool.submit(service.infer, "held", held_request(i)) for i in range(3)]
        assert all(item.result()[0] == 200 for item in found)  # a full run does not wait
    assert plan.runs == 1


def test_an_answer_that_takes_too_long_is_given_up() -> None:
    model, plan = held_model()
    with running([model], seconds=300) as service, ThreadPoolExecutor(1) as pool:
        first = pool.submit(service.infer, "held", held_request())
        assert plan.entered.acquire(timeout=300)
        service.service.limits = replace(service.service.limits, seconds=0.2)
        for _ in range(2):  # each waits, and never runs
            status, answer = service.infer("held", held_request())
            assert status == 504 and "0.2 s" in answer["error"]
        plan.go.set()
        assert first.result()[0] == 200
        while service.metric('fuser_waiting_requests{model="held"}'):
            time.sleep(0.005)
        assert plan.runs == 1


def test_a_body_that_does_not_arrive_is_given_up(mlp: Model) -> None:
    with running([mlp], seconds=0.2) as service:
        address = ("127.0.0.1", service.http_port)
        with socket.create_connection(address, timeout=300) as connection:
            head = b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{"
            connection.sendall(head)
            assert b" 408 " in connection.recv(4096).split(b"\r\n")[0]


def test_a_failed_run_is_told_and_the_next_one_runs(mlp_file: Path) -> None:
    model = open_model(mlp_file, device="cpu", threads=1)
    right, calls = model.plan.run, iter([ValueError("a defect"), MemoryError()])

    def broken(feeds: Any) -> Any:
        error = next(calls, None)
        if error is not None:
            raise error
        return right(feeds)

    item = {"name": "x", "datatype": "FP32", "shape": [1, WIDTH], "data": [0.5] * WIDTH}
    with running([model]) as service:
        model.plan.run = broken  # type: ignore[method-assign]
        status, answer = service.infer("mlp", {"inputs": [item]})
        assert status == 500 and answer == {"error": "internal error: ValueError"}
        assert service.infer("mlp", {"inputs": [item]})[0] == 413
        assert service.infer("mlp", {"inputs": [item]})[0] == 200


def test_the_end_answers_what_was_accepted_and_refuses_the_rest() -> None:
    model, plan = held_model()
    with running([model]) as service, ThreadPoolExecutor(4) as pool:
        idle = socket.create_connection(("127.0.0.1", service.http_port), timeout=300)
        accepted = [pool.submit(service.infer, "held", held_request(i)) for i in range(4)]
        while service.service.inflight < 4:
            time.sleep(0.005)
        service.stop()
        while not service.service.draining:
            time.sleep(0.005)
        assert service.ask("/v2/health/ready")[0] == 503
        assert service.ask("/v2/health/live")[0] == 200
        assert service.infer("held", held_request())[0] == 503
        plan.go.set()
        assert [item.result()[0] for item in accepted] == [200] * 4
        idle.sendall(message("held", {"x": np.ones(1, np.float32)}))
        assert b" 503 " in idle.recv(4096).split(b"\r\n")[0]
        idle.close()


@pytest.fixture(scope="module")
def process(mlp_file: Path) -> Iterator[Server]:
    with Server(mlp_file, "--device", "cpu", "--threads", "1", "--max-batch", "4") as found:
        yield found


def test_sigterm_in_load_answers_what_was_accepted(process: Server, mlp_file: Path) -> None:
    plan = fuser.compile(mlp_file, device="cpu", dynamic=True, threads=1)
    asked, tally = questions("mlp", plan, 16, (1,)), Tally()

    async def work() -> int:
        asking = asyncio.create_task(clients(process.port, asked, 40, asyncio.Event(), tally))
        while tally.statuses[200] <= 40:
            await asyncio.sleep(0.005)
        process.process.send_signal(signal.SIGTERM)
        await asking
        return await asyncio.to_thread(process.process.wait, 300)

    assert asyncio.run(work()) == 0
    assert tally.statuses[200] > 40 and set(tally.statuses) <= {200, 503}
    assert tally.lost == tally.wrong == 0


def test_the_command_says_what_is_wrong(
    mlp_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def error(*arguments: str) -> str:
        assert run(["serve", *arguments]) == 2
        return capsys.readouterr().err

    assert "cannot read" in error(str(tmp_path / "none.plan"))
    assert "neither" in error(str(mlp_file), "--http-port", "-1", "--grpc-port", "-1")
    assert "expected NAME=FILE" in error(f"a/b={mlp_file}")
    assert "two models" in error(str(mlp_file), str(mlp_file), "--http-port", "0",
                                 "--grpc-port", "0")  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert "cannot listen" in error(str(mlp_file), "--http-port", port, "--grpc-port", "-1")


def test_serving_is_imported_by_serving_alone() -> None:
    text = (
        "import sys, fuser, fuser.cli.main, fuser.frontends.compile\n"
        "print([m for m in ('aiohttp', 'grpc', 'prometheus_client', 'ray') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True,
                           env={**os.environ})  # fmt: skip
    assert found.stdout.strip() == "[]"


@pytest.mark.slow
def test_two_hundred_clients_for_a_minute(tmp_path: Path) -> None:
    from benchmarks.serve import load
    from models import TINY, build, save

    path = tmp_path / "bert.onnx"
    save(build("bert", **TINY["bert"]), path)
    found = load(path, 200, 60.0, (5, 16, 32))
    assert found["ok"] == found["requests"] > 200
    assert found["lost"] == found["wrong"] == found["exit_code"] == 0
    assert found["runs"] < found["requests"]
