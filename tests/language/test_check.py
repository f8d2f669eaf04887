"""Checked launches: bounds and races with the user's line; atomics in a fixed order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fuser
import fuser.language as fl
from fuser.errors import CheckError, FeedError, UsageError
from fuser.language.order import depends_on_order

HERE = Path(__file__)


def line_of(text: str) -> int:
    """The number of the one line of this file that holds the text."""
    found = [n for n, line in enumerate(HERE.read_text().splitlines(), 1) if f"  # {text}" in line]
    assert len(found) == 1
    return found[0]


def assert_at(error: CheckError, mark: str) -> None:
    assert error.where == f"{HERE}:{line_of(mark)}"
    assert f"# {mark}" in error.excerpt
    assert error.excerpt.splitlines()[1].strip("^ ") == ""


@fuser.kernel
def scale(x: Any, out: Any, n: Any, factor: Any, BLOCK: fl.constexpr) -> Any:
    at = fl.program_id(0) * BLOCK + fl.arange(0, BLOCK)
    value = fl.load(x + at, at < n)  # the load
    fl.store(out + at, value * factor, at < n)  # the store


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_results_are_the_kernels(dtype: Any) -> None:
    x = np.arange(100, dtype=np.float32).astype(dtype)
    checked, plain = np.full(100, -1, dtype), np.full(100, -1, dtype)
    scale[(4,)](x, checked, 97, 0.5, BLOCK=32, check=True)
    scale[(4,)](x, plain, 97, 0.5, BLOCK=32)
    np.testing.assert_array_equal(checked, plain)
    assert (checked[97:] == -1).all()
    assert checked[3] == 1.5


def test_a_read_outside_names_element_line_and_program() -> None:
    x, out = np.zeros(60, np.float32), np.zeros(64, np.float32)
    with pytest.raises(CheckError) as caught:
        scale[(2,)](x, out, 64, 1.0, BLOCK=32, check=True)
    error = caught.value
    assert (
        error.what
        == "program (1, 0, 0) reads element 60 of x, whose memory has the elements 0 to 59"
    )
    assert (error.program, error.array, error.element) == ((1, 0, 0), "x", 60)
    assert_at(error, "the load")


def test_a_write_outside() -> None:
    x, out = np.zeros(64, np.float32), np.zeros(33, np.float32)
    with pytest.raises(CheckError, match="stores to element 33 of out") as caught:
        scale[(2,)](x, out, 64, 1.0, BLOCK=32, check=True)
    assert_at(caught.value, "the store")


def test_bounds_are_those_of_the_storage() -> None:
    base = np.arange(96, dtype=np.float32)
    out = np.zeros(64, np.float32)
    scale[(2,)](base[16:40], out, 64, 2.0, BLOCK=32, check=True)  # a view: its storage goes on
    np.testing.assert_array_equal(out, 2 * base[16:80])
    with pytest.raises(CheckError, match="memory has the elements -40 to 55"):
        scale[(2,)](base[40:], out, 64, 2.0, BLOCK=32, check=True)


@fuser.kernel
def backwards(x: Any, out: Any, stride: Any, BLOCK: fl.constexpr) -> Any:
    at = fl.arange(0, BLOCK)
    fl.store(out + at, fl.load(x + at * stride))


def test_negative_strides_stay_inside() -> None:
    base = np.arange(16, dtype=np.int32)
    out = np.zeros(16, np.int32)
    backwards[(1,)](base[::-1], out, -1, BLOCK=16, check=True)
    np.testing.assert_array_equal(out, base[::-1])


@fuser.kernel
def overlapping(out: Any, BLOCK: fl.constexpr) -> Any:
    me = fl.program_id(0)
    at = me * (BLOCK - 1) + fl.arange(0, BLOCK)
    fl.store(out + at, at * 0 + me)  # both of them


def test_two_programs_that_store_to_one_element() -> None:
    out = np.full(32, -1, np.int32)
    with pytest.raises(CheckError) as caught:
        overlapping[(2,)](out, BLOCK=16, check=True)
    assert caught.value.what == (
        "a race: program (1, 0, 0) stores to element 15 of out, "
        "which program (0, 0, 0) stores to, too"
    )
    assert_at(caught.value, "both of them")
    with pytest.raises(CheckError):  # the values differ
        overlapping[(2,)](out, BLOCK=16, check="benign")


@fuser.kernel
def all_alike(out: Any) -> Any:
    fl.store(out, 7)


def test_stores_of_equal_values_can_be_allowed() -> None:
    out = np.zeros(1, np.int32)
    with pytest.raises(CheckError, match='check="benign"'):
        all_alike[(3,)](out, check=True)
    all_alike[(3,)](out, check="benign")
    assert out[0] == 7


def test_one_program_reads_what_another_stores() -> None:
    x = np.arange(64, dtype=np.float32)
    with pytest.raises(
        CheckError, match=r"reads element 32 of x, which program \(0, 0, 0\) stores to"
    ):
        scale[(2,)](x, x[1:], 63, 1.0, BLOCK=32, check=True)
    y = np.arange(64, dtype=np.float32)
    scale[(2,)](y, y, 64, 2.0, BLOCK=32, check=True)  # in place: each program its own elements
    np.testing.assert_array_equal(y, 2 * np.arange(64))


@fuser.kernel
def bytes_and_words(a: Any, b: Any) -> Any:
    me = fl.program_id(0)
    if me == 0:
        fl.store(a + 5, 1)
    else:
        fl.store(b + 1, 1)  # bytes 4 to 7


def test_races_are_seen_through_another_type() -> None:
    memory = np.zeros(16, np.uint8)
    with pytest.raises(CheckError, match="element 1 of b, which program") as caught:
        bytes_and_words[(2,)](memory, memory.view(np.int32), check=True)
    assert_at(caught.value, "bytes 4 to 7")


@fuser.kernel
def same_place(out: Any, BLOCK: fl.constexpr) -> Any:
    at = fl.arange(0, BLOCK)
    fl.store(out + at // 2, at)


def test_two_elements_of_a_tile_at_one_place() -> None:
    with pytest.raises(CheckError, match="two elements of one tile to element 0 of out"):
        same_place[(1,)](np.zeros(8, np.int32), BLOCK=16, check=True)


@fuser.kernel
def grid_of_three(out: Any, nx: Any, ny: Any) -> Any:
    x, y, z = fl.program_id(0), fl.program_id(1), fl.program_id(2)
    fl.store(out + (z * ny + y) * nx + x, x)


def test_the_program_is_told_in_the_order_of_the_grid() -> None:
    out = np.zeros((4, 3, 2), np.int32)[:, :, :]
    grid_of_three[(2, 3, 4)](out, 2, 3, check=True)
    np.testing.assert_array_equal(out, np.broadcast_to(np.arange(2), (4, 3, 2)))
    with pytest.raises(CheckError) as caught:
        grid_of_three[(2, 3, 5)](out, 2, 3, check=True)
    assert caught.value.program == (0, 0, 4)
    assert caught.value.element == 24


def test_elements_of_contiguous_arrays_have_coordinates() -> None:
    out = np.zeros((4, 3, 2), np.int32)
    with pytest.raises(CheckError, match=r"element 4 \[0, 2, 0\] of out"):
        grid_of_three[(2, 3, 2)](out, 2, 2, check=True)


@fuser.kernel
def locked(lock: Any, total: Any, x: Any, BLOCK: fl.constexpr) -> Any:
    part = fl.sum(fl.load(x + fl.program_id(0) * BLOCK + fl.arange(0, BLOCK)))
    while fl.atomic_cas(lock, 0, 1) == 1:
        pass
    fl.store(total, fl.load(total) + part)
    fl.atomic_xchg(lock, 0)


def test_a_lock_orders_programs() -> None:
    total = np.zeros(1, np.float32)
    locked[(4,)](np.zeros(1, np.int32), total, np.ones(64, np.float32), BLOCK=16, check=True)
    assert total[0] == 64


@fuser.kernel
def noisy_race(out: Any) -> Any:
    fl.device_print("program", fl.program_id(0))
    fl.store(out, fl.program_id(0))


def test_what_is_printed_orders_no_programs(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CheckError, match="a race"):
        noisy_race[(3,)](np.zeros(1, np.int32), check=True)
    noisy_race[(1,)](np.zeros(1, np.int32), check=True)
    assert "program" in capfd.readouterr().out


@fuser.kernel
def add_up(x: Any, total: Any, BLOCK: fl.constexpr) -> Any:
    value = fl.load(x + fl.program_id(0) * BLOCK + fl.arange(0, BLOCK))
    fl.atomic_add(total, fl.sum(value))


def test_atomics_do_not_race_with_each_other() -> None:
    total = np.zeros(1, np.float32)
    add_up[(4,)](np.ones(64, np.float32), total, BLOCK=16, check=True)
    assert total[0] == 64


def test_deterministic_repeats_its_bits() -> None:
    x = np.random.default_rng(0).normal(size=1 << 16).astype(np.float32)
    want = np.float32(0)
    for part in x.reshape(-1, 16):
        one = np.zeros(1, np.float32)
        add_up[(1,)](part, one, BLOCK=16)
        want += one[0]
    for _ in range(3):
        total = np.zeros(1, np.float32)
        add_up[(1 << 12,)](x, total, BLOCK=16, deterministic=True)
        assert total[0] == want  # programs one after another, in their order


@fuser.kernel
def count(x: Any, total: Any, BLOCK: fl.constexpr) -> Any:
    value = fl.load(x + fl.program_id(0) * BLOCK + fl.arange(0, BLOCK))
    fl.atomic_add(total, fl.sum(value))


def test_which_atomics_depend_on_the_order() -> None:
    floats, ints = np.ones(32, np.float32), np.ones(32, np.int32)
    zero = np.zeros(1, np.int32)
    assert depends_on_order(
        add_up.warmup(floats, floats[:1].copy(), BLOCK=16, grid=(2,)).program.kernel
    )
    assert not depends_on_order(count.warmup(ints, zero, BLOCK=16, grid=(2,)).program.kernel)
    assert depends_on_order(
        locked.warmup(zero, floats[:1].copy(), floats, BLOCK=16, grid=(2,)).program.kernel
    )


def test_read_only_arrays_are_refused() -> None:
    frozen = np.zeros(64, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(FeedError, match="read-only"):
        scale[(2,)](np.zeros(64, np.float32), frozen, 64, 1.0, BLOCK=32, check=True)


def test_an_unknown_way_to_check() -> None:
    with pytest.raises(UsageError, match="benign"):
        all_alike[(1,)](np.zeros(1, np.int32), check="some")


def test_fuser_check_checks_every_launch(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import numpy as np, fuser, fuser.language as fl\n"
        "@fuser.kernel\n"
        "def put(out):\n"
        "    fl.store(out + fl.program_id(0), 1)\n"
        "put[(3,)](np.zeros(2, np.int32))\n"
    )
    found = subprocess.run(
        [sys.executable, program], env=os.environ | {"FUSER_CHECK": "1"}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 1
    assert "CheckError: program (2, 0, 0) stores to element 2 of out" in found.stderr
    assert f"{program}:4" in found.stderr


@pytest.mark.cuda
def test_arrays_of_a_gpu_are_checked_on_the_host() -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(100, dtype=torch.float32, device="cuda")
    out = torch.zeros(100, device="cuda")
    scale[(4,)](x, out, 97, 2.0, BLOCK=32, check=True)
    assert out[:97].equal(2 * x[:97])
    assert not out[97:].any()
    with pytest.raises(CheckError, match="element 100 of out"):
        scale[(4,)](torch.zeros(128, device="cuda"), out, 128, 2.0, BLOCK=32, check=True)


@pytest.mark.cuda
def test_a_gpu_has_no_fixed_order() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(UsageError, match="no fixed order"):
        add_up[(2,)](torch.ones(32, device="cuda"), torch.zeros(1, device="cuda"), BLOCK=16,
                     deterministic=True)  # fmt: skip
