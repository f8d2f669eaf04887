"""scripts/package-tests, on a checkout that is made up: imports, devices, samples, counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
RUN = ROOT / "scripts" / "package_tests" / "run.py"
CODE = """
import torch, triton
import triton.language as tl

@triton.jit
def _fill(x, value, N: tl.constexpr):
    tl.store(x + tl.arange(0, N), value)

def filled(value, device):
    x = torch.zeros(4, device=device)
    assert triton.__name__ == "fuser.triton"
    _fill[(1,)](x, value, 4)
    return x
"""
TESTS = """
import subprocess, sys
import pytest, torch, triton
from cut_cross_entropy import filled
from tests.shared import NAME

@pytest.mark.parametrize("value", range(6))
def test_fills(value):
    assert NAME == triton.__name__ == "fuser.triton"
    assert filled(value, "cpu").tolist() == [value] * 4

@pytest.mark.skipif(not torch.cuda.is_available(), reason="Test requires CUDA")
def test_asks_and_is_skipped():
    x = filled(1, torch.device("cuda"))
    assert x.is_cuda and x.cuda().tolist() == [1] * 4

def test_asks_and_fails():
    assert torch.ones(2, device="cuda:0").to("cuda").sum().item() == 2

@pytest.mark.skip(reason="not today")
def test_skipped():
    pass

def test_fails():
    assert 1 + 1 == 3

def test_a_process_of_its_own():
    asked = "from tests.shared import NAME; print(NAME)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True)
    assert done.stdout.strip() == "fuser.triton", done.stderr
"""
SLOW = """
def test_never_ends():
    while True:
        pass

def test_ends():
    pass
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("cut_cross_entropy", "tests"):
        (tmp_path / name).mkdir()
    (tmp_path / "cut_cross_entropy" / "__init__.py").write_text(CODE)
    (tmp_path / "tests" / "shared.py").write_text("import triton\nNAME = triton.__name__\n")
    (tmp_path / "tests" / "test_all.py").write_text(TESTS)
    (tmp_path / "tests" / "slow.py").write_text(SLOW)
    return tmp_path


def run(checkout: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """Counts and output of a run on the CPU."""
    command = [
        sys.executable, str(RUN), "cut-cross-entropy", str(checkout), "--device", "cpu",
        "--counts", "counts.json", *arguments,
    ]  # fmt: skip
    path: Mapping[str, str] = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=path, cwd=checkout
    )
    return json.loads((checkout / "counts.json").read_text()), done.stdout


def test_counts_by_file_reason_and_function(checkout: Path) -> None:
    found, _ = run(checkout)
    assert found["files"] == {
        "tests/test_all.py": {"passed": 7, "failed": 1, "left out": 2, "skipped": 1}
    }
    assert found["reasons"] == {"tests/test_all.py": {"asks for CUDA": 2, "not today": 1}}
    passed = ["tests/test_all.py::test_a_process_of_its_own", "tests/test_all.py::test_fills"]
    assert found["passed functions"] == passed and found["device"] == "cpu"
    assert found["failed"] == ["tests/test_all.py::test_fails"]


def test_a_case_that_takes_too_long(checkout: Path) -> None:
    found, _ = run(checkout, "--case-seconds", "0.5", "tests/slow.py")
    assert found["files"] == {"tests/slow.py": {"passed": 1, "failed": 1}}
    assert list(found["failures"]) == ["TimeoutError: took longer than N s"]


def test_cuda_is_the_cpu_samples_and_comparisons(checkout: Path) -> None:
    before = ["test_skipped", "test_asks_and_fails"]
    record = {"passed functions": [f"tests/test_all.py::{name}" for name in before]}
    (checkout / "before.json").write_text(json.dumps(record))
    found, text = run(
        checkout, "--cuda-is-cpu", "--most", "2", "-k", "fills or asks or skipped",
        "--compare", "before.json", "tests/test_all.py",
    )  # fmt: skip
    assert found["files"] == {"tests/test_all.py": {"passed": 4, "skipped": 1}}
    assert "of 2 functions that passed there, 1 pass here" in text
    assert "test_skipped: {'skipped': 1}" in text


def test_a_folder_that_is_no_checkout(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(RUN), "fla-core", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "name a checkout of fla-core" in done.stderr
