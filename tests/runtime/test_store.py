"""Programs as files: whole, or refused."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from fuser.dtypes import f32
from fuser.errors import InvalidModelError, UsageError
from fuser.runtime.plan import Plan
from fuser.runtime.program import Program, Step, TensorSpec, assemble
from fuser.runtime.store import array_from_record, load_program, save_program
from fuser.target import cpu_target

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
    outputs = [(key, TensorSpec(key, f32, ())) for key in arrays]
    made = assemble(cpu_target("x86-64-v3", ""), [], [], outputs, arrays, {})
    save_program(made, tmp_path / "plan")
    for array, want in zip(load_program(tmp_path / "plan").constants, arrays.values(), strict=True):
        assert array.dtype == want.dtype
        np.testing.assert_array_equal(array, want)


def test_any_damage_is_found(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "plan"
    save_program(program, path)
    good = path.read_bytes()
    for position in np.random.default_rng(0).permutation(len(good))[:150].tolist():
        bad = bytearray(good)
        bad[position] ^= 1 << (position % 8)
        path.write_bytes(bad)
        with pytest.raises(InvalidModelError, match="damaged"):
            load_program(path)
    for length in (0, 7, 40, 48, len(good) - 1):
        path.write_bytes(good[:length])
        with pytest.raises(InvalidModelError):
            load_program(path)


def test_references_are_checked(program: Program, tmp_path: Path) -> None:
    import dataclasses

    broken = dataclasses.replace(program, constants=())
    save_program(broken, tmp_path / "plan")
    with pytest.raises(InvalidModelError, match="out of range"):
        load_program(tmp_path / "plan")


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        load_program(tmp_path / "none")


def test_no_memory_is_taken_for_what_is_not_there() -> None:
    record = {"dtype": "f32", "shape": [1 << 40, 1 << 10], "blob": [0, 16]}
    with pytest.raises(ValueError, match="in 16 bytes"):
        array_from_record(record, lambda span: memoryview(bytes(16)))
