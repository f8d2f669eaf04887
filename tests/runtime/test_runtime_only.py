"""Plans run where there is neither compiler nor LLVM: in a process that cannot import them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fuser
from fuser.runtime.jit import links_itself
from models import TINY, build

pytestmark = pytest.mark.skipif(not links_itself(), reason="LLVM links on this machine")

CHILD = """
import sys

class Absent:
    names = {"llvmlite", "onnx", "networkx", "click", "platformdirs", "torch", "cuda"}
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Absent())
import numpy as np
import fuser

file, feeds, results = sys.argv[1:4]
with fuser.load(file, threads=2) as plan:
    outputs = plan.run(dict(np.load(feeds)))
    plan.random_feeds()
    np.savez(results, **outputs)
    plan.save(results + ".plan")
    plan.report().to_dict()
    print(len(plan.report().to_dict()), plan)
"""


@pytest.mark.parametrize("name", ["mlp", "gpt2", "resnet50"])
def test_equal_bits_without_a_compiler(name: str, tmp_path: Path) -> None:
    """What this process compiled, runs and saves, another one runs and saves again."""
    model = build(name, **TINY[name])
    plan = fuser.compile(model, device="cpu", threads=2)
    feeds = plan.random_feeds()
    np.savez(tmp_path / "feeds.npz", **feeds)  # type: ignore[arg-type]
    plan.save(tmp_path / "plan")
    want = plan.run(feeds)
    results = tmp_path / "results.npz"
    files = (tmp_path / "plan", tmp_path / "feeds.npz", results)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *map(str, files)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    with np.load(results) as found:
        assert set(found) == set(want)
        for key, array in want.items():
            assert found[key].tobytes() == array.tobytes()
    again = fuser.Plan.load(f"{results}.plan").run(feeds)
    assert all(again[key].tobytes() == array.tobytes() for key, array in want.items())
