"""Programs as files: whole, or refused. Damage: test_damaged_plans.py."""

from __future__ import annotations

import dataclasses
import mmap
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fuser.base.target import cpu_target
from fuser.dtypes import f32, from_numpy
from fuser.errors import InvalidModelError, UsageError
from fuser.runtime.container import Opened
from fuser.runtime.memory import address
from fuser.runtime.plan import Plan
from fuser.runtime.program import Program, Step, TensorSpec, assemble
from fuser.runtime.store import load_program, save_program

from .handmade import binary


@pytest.fixture(scope="module")
def program() -> Program:
    size = 100
    spec = TensorSpec("x", f32, (size,))
    steps = [
        Step(binary("add", "fadd", size), ("x", "c", "t"), zeroed=("t",), label="a", cost=1e-3),
        Step(binary("add", "fadd", size), ("t", "x", "y")),
    ]
    constants = {
        "c": np.linspace(0, 1, size, dtype=np.float32),
        "b": np.arange(4, dtype=ml_dtypes.bfloat16).reshape(2, 2),
        "scalar": np.array(True),
    }
    outputs = [("y", TensorSpec("y", f32, (size,))), ("x", spec)]
    return assemble(
        cpu_target("x86-64-v3", ""), steps, [("x", spec)], outputs, constants, {"t": 400}
    )


def test_round_trip(program: Program, tmp_path: Path) -> None:
    save_program(program, tmp_path / "plan")
    loaded = load_program(tmp_path / "plan")
    assert loaded.launches == program.launches and loaded.target == program.target
    assert loaded.inputs == program.inputs and loaded.outputs == program.outputs
    assert loaded.copies == program.copies and loaded.arena_bytes == program.arena_bytes
    x = np.arange(100, dtype=np.float32)
    with Plan(program, threads=1) as a, Plan(loaded, threads=1) as b:
        for left, right in zip(a(x), b(x), strict=True):
            np.testing.assert_array_equal(left, right)


def test_constants_of_every_shape(tmp_path: Path) -> None:
    arrays = {
        "b": np.arange(4, dtype=ml_dtypes.bfloat16).reshape(2, 2),
        "s": np.array(True),
        "t": np.arange(6, dtype=np.int64).reshape(2, 3).T,
        "e": np.zeros((0, 3), np.float16),
    }
    outputs = [(k, TensorSpec(k, from_numpy(a.dtype), a.shape)) for k, a in arrays.items()]
    made = assemble(cpu_target("x86-64-v3", ""), [], [], outputs, arrays, {})
    save_program(made, tmp_path / "plan")
    for array, want in zip(load_program(tmp_path / "plan").constants, arrays.values(), strict=True):
        assert array.dtype == want.dtype
        np.testing.assert_array_equal(array, want)


def test_references_are_checked(program: Program, tmp_path: Path) -> None:
    broken = dataclasses.replace(program, constants=())
    save_program(broken, tmp_path / "plan")
    with pytest.raises(InvalidModelError, match="out of range"):
        load_program(tmp_path / "plan")


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        load_program(tmp_path / "none")


def test_no_memory_is_taken_for_what_is_not_there() -> None:
    record = {"dtype": "f32", "shape": [1 << 40, 1 << 10], "start": 0, "check": ""}
    opened = Opened({"arrays": [record]}, memoryview(b""), np.zeros(4096, np.uint8), "here")
    with pytest.raises(ValueError, match="outside the file"):
        _ = opened.arrays


def test_weights_are_mapped(program: Program, tmp_path: Path) -> None:
    """They are the file's own pages, and no run can write to them."""
    save_program(program, tmp_path / "plan")
    loaded = load_program(tmp_path / "plan")
    for array in loaded.constants:
        base: Any = array
        while isinstance(base, np.ndarray):
            base = base.base
        assert isinstance(getattr(base, "obj", base), mmap.mmap)
        assert address(array) % 64 == 0 and not array.flags.writeable


def test_a_file_is_replaced_not_written_into(program: Program, tmp_path: Path) -> None:
    """A process that has the old file mapped keeps it."""
    path = tmp_path / "plan"
    save_program(program, path)
    loaded, before = load_program(path), path.read_bytes()
    other = dataclasses.replace(program, constants=tuple(a * 0 for a in program.constants))
    save_program(other, path)
    assert path.read_bytes() != before and os.listdir(tmp_path) == ["plan"]
    for array, want in zip(loaded.constants, program.constants, strict=True):
        np.testing.assert_array_equal(array, want)


@pytest.mark.parametrize(
    ("at", "new", "message"),
    [(6, b"1", "format 1, and this fuser reads 2.1; .*compile the model again"),
     (6, b"3", "format 3, and this fuser reads 2.1.*update fuser"),
     (8, b"\x07", "format 2.7, and this fuser reads 2.1.*update fuser"),
     (5, b"X", "not a plan, or was damaged")],
)  # fmt: skip
def test_versions(program: Program, tmp_path: Path, at: int, new: bytes, message: str) -> None:
    path = tmp_path / "plan"
    save_program(program, path)
    data = bytearray(path.read_bytes())
    data[at : at + 1] = new
    path.write_bytes(data)
    with pytest.raises(InvalidModelError, match=message.replace("; ", " .*; ")):
        load_program(path)


def test_an_older_minor_version_is_read(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_program(program, tmp_path / "plan")
    monkeypatch.setattr("fuser.runtime.container.MINOR", 1)
    assert load_program(tmp_path / "plan").launches == program.launches


def test_code_of_another_runtime_is_refused(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_program(program, tmp_path / "plan")
    monkeypatch.setattr("fuser.runtime.native.VERSION", 99)
    with pytest.raises(InvalidModelError, match="called as version 1 has it"):
        load_program(tmp_path / "plan")
