"""Broken and hostile models, through the command line: the right exit code, one line, in time."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import onnx
import pytest

from fuser.cli import run
from fuser.compiler import compile
from fuser.errors import LimitError, OutOfMemoryError
from fuser.limits import Limits
from tests.malformed import files, graphs, values
from tests.malformed.flips import flipped, outcome
from tests.malformed.kinds import KINDS, model, node
from tests.malformed.worker import Worker

FAMILIES = (files, graphs, values)
SECONDS = 5.0


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.close()


@pytest.mark.parametrize("name", KINDS)
def test_kind(name: str, worker: Worker, tmp_path: Path) -> None:
    path = KINDS[name].write(tmp_path)
    answer = worker.run("run", "--device", "cpu", "--iterations", "0", str(path), limit=4 * SECONDS)
    assert answer.code in KINDS[name].codes, answer
    assert "Traceback" not in answer.err and "internal error" not in answer.err
    if answer.code:
        lines = answer.err.strip().splitlines()
        assert lines[-1].startswith("error: ") and not any("error" in line for line in lines[:-1])
        assert "\x1b" not in lines[-1] and len(lines[-1]) < 5000
    assert answer.seconds < SECONDS
    assert "root:" not in answer.out + answer.err  # nothing of /etc/passwd


def test_there_are_enough_kinds() -> None:
    assert len(KINDS) >= 60


def test_flipped_bits() -> None:
    """2,000 models with one bit flipped: no crash, and what onnx refuses is refused here."""
    found: Counter[str] = Counter()
    for label, data in flipped(2000):
        result = outcome(data)
        found[result] += 1
        if result == "graph" and not is_valid(data):
            raise AssertionError(f"{label} is accepted, and is no valid model")
    assert found["graph"] and found["InvalidModelError"] > 100, found


def is_valid(data: bytes) -> bool:
    """What the checker of the onnx package says, but for outputs without a shape."""
    proto = onnx.ModelProto.FromString(data)
    for info in proto.graph.output:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.shape.SetInParent()
    try:
        onnx.checker.check_model(proto)
    except (onnx.checker.ValidationError, ValueError):
        return False
    return True


# limits -------------------------------------------------------------------------------------------


def chain(count: int) -> onnx.ModelProto:
    names = ["x", *(f"t{i}" for i in range(count - 1)), "y"]
    return model(*(node("Sin", [a], [b], label=b) for a, b in pairwise(names)))


def test_a_limit_on_nodes() -> None:
    assert compile(chain(20), device="cpu").launches
    with pytest.raises(LimitError, match=r"more than 10 nodes, .* --max-nodes"):
        compile(chain(20), device="cpu", limits=Limits(nodes=10))


def test_a_limit_on_bytes() -> None:
    with pytest.raises(OutOfMemoryError, match="more than 40; allow more with --max-bytes"):
        compile(chain(3), device="cpu", limits=Limits(bytes=40))


def test_a_limit_on_time() -> None:
    with pytest.raises(LimitError, match="longer than 1e-06 s"):
        compile(chain(3), device="cpu", limits=Limits(seconds=1e-6))


def test_limits_of_the_command_line_and_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(chain(20).SerializeToString())
    for command in ("run", "explain", "dump"):
        assert run([command, str(path), "--device", "cpu", "--max-nodes", "10"]) == 6
        assert "more than 10 nodes" in capsys.readouterr().err
    monkeypatch.setenv("FUSER_MAX_NODES", "11")
    assert run(["run", str(path), "--device", "cpu"]) == 6
    assert "more than 11 nodes" in capsys.readouterr().err
    assert run(["run", str(path), "--device", "cpu", "--max-nodes", "500", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kernels"]["before"] == 20
