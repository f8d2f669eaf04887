"""`python -m fuser serve` of the distribution fuser-runtime: its tree, without a compiler."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fuser
from benchmarks.serve import Socket, message
from fuser.cli.main import run
from fuser.runtime.jit import links_itself
from models import TINY, build, save
from scripts import runtime_wheel
from tests.runtime.test_runtime_only import ABSENT

pytestmark = pytest.mark.skipif(not links_itself(), reason="LLVM links on this machine")

COMMAND = """
Absent.names -= {"click"}
import runpy, sys
sys.argv[0] = "fuser"
import fuser
assert fuser.__file__.startswith(sys.argv.pop(1)), fuser.__file__
runpy.run_module("fuser", run_name="__main__", alter_sys=False)
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """`python -m fuser ARGUMENTS` of the staged tree."""
    tree = runtime_wheel.stage(tmp_path_factory.mktemp("tree"))
    (tree / "model.onnx").write_bytes(b"\x08\x08")

    def begin(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", ABSENT + COMMAND, str(tree), *arguments], text=True, cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)}, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip

    return begin


@pytest.mark.parametrize("options", [["--dim", "batch=2"], ["--open", "batch=1..4"]])
def test_it_serves_plans(start: Start, options: list[str], tmp_path: Path) -> None:
    model, plan = tmp_path / "mlp.onnx", tmp_path / "mlp.plan"
    save(build("mlp", **TINY["mlp"]), model)
    assert run(["compile", str(model), *options, "--device", "cpu", "-o", str(plan)]) == 0
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 24), np.float32)}
    want = fuser.compile(model, device="cpu", dynamic="--open" in options, dims={"batch": 2}
                         if "--dim" in options else None)  # fmt: skip
    server = start("serve", str(plan), "--http-port", "0", "--grpc-port", "0")
    try:
        assert server.stdout is not None and server.stderr is not None
        line = server.stdout.readline()
        assert line.startswith("http"), server.stderr.read()[-2000:]
        client = Socket(int(line.rpartition(":")[2]))
        status, answer = client.ask(message("mlp", feeds))
        client.close()
        assert (status, answer) == (200, want.run(feeds)["y"].tobytes())
        server.send_signal(signal.SIGTERM)
        assert server.wait(300) == 0
    finally:
        server.kill()
        server.communicate()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--help"], 0, "serve"),
        (["run", "model.onnx"], 2, "fuser run is a command of the compiler, and this is fuser-run"),
        (["run", "model.onnx"], 2, "fuser.load(PLAN).run(feeds), run plans; for all of fuser: pip"),
        (["compile", "model.onnx"], 2, "pip uninstall fuser-runtime, then pip install fuser-comp"),
        (["serve", "model.onnx"], 2, "model.onnx is no plan file, and this is fuser-runtime"),
        (["explode"], 2, "No such command"),
    ],
)
def test_what_it_lacks(start: Start, arguments: list[str], code: int, said: str) -> None:
    child = start(*arguments)
    out, err = child.communicate(timeout=300)
    assert child.returncode == code, err
    assert said in out + err
