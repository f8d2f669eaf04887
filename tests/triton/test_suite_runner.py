"""scripts/triton-tests, on a checkout that is made up: imports, rules, samples, counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
RUN = ROOT / "scripts" / "triton_tests" / "run.py"
CONFTEST = """
import pytest

def pytest_addoption(parser):
    parser.addoption("--device", default="cuda")

def pytest_configure(config):
    config.addinivalue_line("markers", "interpreter: what the interpreter runs")

@pytest.fixture
def device(request):
    return request.config.getoption("--device")
"""
TESTS = """
import subprocess, sys
import pytest, torch
import triton
import triton.language as tl
from triton._internal_testing import answer

@triton.jit
def fill(x, value, N: tl.constexpr):
    tl.store(x + tl.arange(0, N), value)

@pytest.mark.interpreter
@pytest.mark.parametrize("value", range(4))
def test_fills(value, device):
    x = torch.zeros(4, device=device)
    fill[(1,)](x, value, 4)
    assert x.tolist() == [value] * 4
    assert triton.__name__ == "fuser.triton" and answer == 42
    assert triton.runtime.driver.active.get_current_target().backend == "cpu"

def test_reads_a_stage(device):
    x = torch.zeros(4, device=device)
    assert "tt.store" in fill[(1,)](x, 1, 4).asm["ttir"]

def test_fails():
    assert 1 + 1 == 3

def test_pointer_arguments():
    pass

def test_a_process_of_its_own():
    done = subprocess.run([sys.executable, "-c", "import triton; print(triton.__name__)"],
                          capture_output=True, text=True)
    assert done.stdout.strip() == "fuser.triton", done.stderr
"""
PLAIN = """
import pytest

@pytest.mark.interpreter
@pytest.mark.parametrize("value", range(6))
def test_sixths(value):
    assert value % 3 == 0 and value < 3
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    unit = tmp_path / "python" / "test" / "unit" / "language"
    unit.mkdir(parents=True)
    (tmp_path / "python" / "triton").mkdir()
    (tmp_path / "python" / "triton" / "_internal_testing.py").write_text("answer = 42\n")
    (tmp_path / "python" / "test" / "conftest.py").write_text(CONFTEST)
    (unit / "test_core.py").write_text(
        TESTS.replace(
            "test_pointer_arguments():\n    pass",
            "test_pointer_arguments(device):\n    assert device == 'none'",
        ).replace(
            "def test_pointer_arguments",
            "@pytest.mark.parametrize('device', ['cpu'])\ndef test_pointer_arguments",
        )
    )
    return tmp_path


def run(checkout: Path, *arguments: str) -> dict[str, object]:
    counts = checkout / "counts.json"
    command = [sys.executable, str(RUN), str(checkout), "language/test_core.py"]
    subprocess.run(
        [*command, "--counts", str(counts), *arguments],
        capture_output=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    found: dict[str, object] = json.loads(counts.read_text())
    return found


def test_counts_by_file_and_reason(checkout: Path) -> None:
    found = run(checkout)
    assert found["files"] == {
        "language/test_core.py": {
            "passed": 5, "interpreter passed": 4, "failed": 1, "left out": 2,
        }
    }  # fmt: skip
    reasons = {
        "asks that tensors of the CPU are refused, where fuser runs": 1,
        "reads Triton's intermediate code": 1,
    }
    assert found["reasons"] == {"language/test_core.py": reasons}
    assert found["device"] == "cpu" and str(found["failed"]).count("test_fails") == 1


def test_a_sample_is_the_same_each_time(checkout: Path) -> None:
    cases = checkout / "python" / "test" / "unit" / "language" / "test_core.py"
    cases.write_text(PLAIN)
    found = run(checkout, "--every", "3")
    assert found["files"] == {
        "language/test_core.py": {
            "passed": 1, "interpreter passed": 1, "failed": 1, "interpreter failed": 1,
        }
    }  # fmt: skip
    found = run(checkout, "--every", "3", "--first", "1")
    assert found["files"] == {"language/test_core.py": {"failed": 2, "interpreter failed": 2}}


def test_a_folder_that_is_no_checkout(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(RUN), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "name a checkout of Triton" in done.stderr
