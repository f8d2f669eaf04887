"""Broken and hostile models, through the command line: the right exit code, one line, in time."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from fuser.base.limits import Limits
from fuser.cli.main import run
from fuser.errors import LimitError, OutOfMemoryError
from fuser.frontends.onnx.model import compile
from fuser.frontends.onnx.session import InferenceSession
from tests.malformed import files, graphs, values
from tests.malformed.flips import flipped, outcome
from tests.malformed.graphs import loop
from tests.malformed.kinds import KINDS, info, model, node
from tests.malformed.worker import Worker

FAMILIES = (files, graphs, values)
MOST_CALLS = 5_000_000
"""Of Python functions: what a hostile model may cost."""


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.close()


@pytest.mark.parametrize("name", KINDS)
def test_kind(name: str, worker: Worker, tmp_path: Path) -> None:
    path = KINDS[name].write(tmp_path)
    answer = worker.run("run", "--device", "cpu", "--iterations", "0", str(path))
    assert answer.code in KINDS[name].codes, answer
    assert "Traceback" not in answer.err and "internal error" not in answer.err
    if answer.code:
        lines = answer.err.strip().splitlines()
        assert lines[-1].startswith("error: ") and not any("error" in line for line in lines[:-1])
        assert "\x1b" not in lines[-1] and len(lines[-1]) < 5000
    assert answer.calls < MOST_CALLS
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
    for output in proto.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.shape.SetInParent()
    try:
        onnx.checker.check_model(proto)
    except (onnx.checker.ValidationError, ValueError):
        return False
    return True


def test_long_loops_compile_their_body() -> None:
    """1,500 trips are too many to write out; a session compiles the body and repeats it."""
    session = InferenceSession(loop(1500), device="cpu")
    x = np.array([[-1, 2, 3], [4, -5, 6]], np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x.clip(0))
    assert session.fallbacks == () and len(session.plans) == 1
    for trips in (None, 2**62):
        with pytest.raises(LimitError, match="no end"):
            InferenceSession(loop(trips), device="cpu").run(None, {"x": x})


def random_node(op: str, **attrs: Any) -> np.ndarray:
    """The result of a random operator of 100,000 elements, on the host."""
    x = np.full((100, 1000), 0.3, np.float32)
    made = model(node(op, ["x"], ["y"], **attrs), inputs=[info("x", x.shape)])
    return InferenceSession(made, device="cpu").run(None, {"x": x})[0]


def test_random_operators_have_their_distribution() -> None:
    """Means and spreads within six standard errors; a seed gives the same numbers again."""
    error = 6 / np.sqrt(100_000)
    drawn = random_node("Bernoulli", seed=1.0)
    assert set(np.unique(drawn)) == {0, 1} and abs(drawn.mean() - 0.3) < error * np.sqrt(0.21)
    normal = random_node("RandomNormalLike", mean=2.0, scale=3.0, seed=1.0)
    assert abs(normal.mean() - 2) < 3 * error and abs(normal.std() - 3) < 3 * error
    uniform = random_node("RandomUniformLike", low=-1.0, high=3.0, seed=1.0)
    assert uniform.min() >= -1 and uniform.max() < 3 and abs(uniform.mean() - 1) < 1.2 * error
    for op in ("Bernoulli", "RandomNormalLike", "RandomUniformLike"):
        first, again, other = (random_node(op, seed=seed) for seed in (5.0, 5.0, 6.0))
        assert (first == again).all() and (first != other).any()


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
