"""Arrays that end before what a launch surely touches: an error with the line, no dead process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fuser
import fuser.language as fl
import fuser.triton as triton
import fuser.triton.language as tl
from fuser.errors import CheckError
from fuser.language.reach import spans
from tests.language.launching import DEVICES, launch


@triton.jit
def copy(x, out, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + at, tl.load(x + at) + 1)


@triton.jit
def masked(x, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + at, tl.load(x + at, at < n) + 1, at < n)


@triton.jit
def sums(x, out, rows, stride, B: tl.constexpr):
    at = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    for row in range(rows):
        total += tl.load(x + row * stride + at)
    tl.store(out + at, total)


@triton.jit
def blocks(x, out, width, M: tl.constexpr, N: tl.constexpr):
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    at = row[:, None] * width + column[None, :]
    tl.store(out + at, tl.load(x + at) + 1)


@triton.jit
def backwards(x, out, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(out + at, tl.load(x - at) + 1)


@triton.jit
def swept(x, out, programs, B: tl.constexpr):
    """Programs in another order: quotients and rests of program ids."""
    pid = tl.program_id(0)
    at = (pid % 4 * programs + pid // 4) * B + tl.arange(0, B)
    tl.store(out + at, tl.load(x + at) + 1)


@triton.jit
def descriptors(x, out, rows, width, M: tl.constexpr, N: tl.constexpr):
    given = tl.make_tensor_descriptor(x, [rows, width], [width, 1], [M, N])
    made = tl.make_tensor_descriptor(out, [rows, width], [width, 1], [M, N])
    place = [tl.program_id(0) * M, tl.program_id(1) * N]
    made.store(place, given.load(place) + 1)


def floats(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.float32)


CASES: dict[str, tuple[Any, tuple[int, ...], int, tuple[Any, ...], dict[str, int]]] = {
    # kernel, grid, elements that it needs, arguments, constants
    "blocks of a row": (copy, (4,), 256, (), {"B": 64}),
    "one program": (copy, (1,), 64, (), {"B": 64}),
    "a mask": (masked, (4,), 250, (250,), {"B": 64}),
    "a mask beyond the grid": (masked, (4,), 256, (1000,), {"B": 64}),
    "a loop": (sums, (1,), 4 * 80 + 64, (5, 80), {"B": 64}),
    "two dims": (blocks, (3, 2), 23 * 48 + 32, (48,), {"M": 8, "N": 16}),
    "quotients": (swept, (8,), 4 * 2 * 16, (2,), {"B": 16}),
    "descriptors": (descriptors, (3, 2), 20 * 30, (20, 30), {"M": 8, "N": 16}),
}  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("short", ["x", "out"])
def test_a_short_array_is_told(name: str, short: str, device: str) -> None:
    kernel, grid, need, args, constants = CASES[name]
    out_need = constants["B"] if kernel is sums else need
    for _ in range(2):  # the second time natively
        x, out = floats(need), floats(out_need)
        launch(kernel, device, x, out, *args, grid=grid, **constants)
        for size in (0, (need if short == "x" else out_need) - 1):
            x, out = floats(need), floats(out_need)
            x, out = (floats(size), out) if short == "x" else (x, floats(size))
            before = out.copy()
            has = "is empty" if not size else f"has the elements 0 to {size - 1}"
            with pytest.raises(CheckError, match=f"of {short}, whose memory {has}") as error:
                launch(kernel, device, x, out, *args, grid=grid, **constants)
            assert error.value.where.startswith(__file__) and "^" in str(error.value)
            assert (out == before).all()


def test_native_launches_look_at_the_ends_alone() -> None:
    x, out = floats(4 * 80 + 64), floats(64)
    sums[(1,)](x, out, 5, 80, B=64)
    assert any(form.launchers for form in sums._steady._forms.values())
    variant = sums.warmup(x, out, 5, 80, B=64, grid=(1,)).variant
    found = [(leaf, str(start), str(end)) for leaf, start, end in spans(variant.program.witnesses)]
    assert found == [(0, "0", "64*rows*stride - 64*stride + 256"), (1, "0", "256")]


def test_the_element_and_its_program_are_named() -> None:
    with pytest.raises(CheckError) as error:
        blocks[(3, 2)](floats(1000), floats(4000), 48, M=8, N=16)
    assert error.value.program == (2, 1, 0) and error.value.element == 23 * 48 + 31


def test_memory_of_a_view_is_that_of_its_storage() -> None:
    x, out = floats(256), floats(256)
    copy[(4,)](x[:10], out[:0], B=64)
    assert (out == x + 1).all()
    with pytest.raises(CheckError, match="has the elements -10 to 245"):
        copy[(4,)](x[10:], out, B=64)
    backwards[(1,)](x[63:], out, B=64)
    assert (out[:64] == x[63::-1] + 1).all()
    with pytest.raises(CheckError, match=r"reads element -63 of x, .* elements -62 to 193"):
        backwards[(1,)](x[62:], out, B=64)
    backwards[(1,)](x[::-1], out, B=64)


def test_memory_of_unknown_ends_is_not_judged() -> None:
    raw = bytearray(4 * 256)
    part = np.frombuffer(raw, np.float32, 64)
    out = floats(256)
    for _ in range(3):
        copy[(4,)](part, out, B=64)
        assert (out == 1).all()


def test_tensors_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    x, out = torch.zeros(256), torch.zeros(256)
    copy[(4,)](x[:1], out, B=64)
    assert (out == 1).all()
    for short in (torch.zeros(0), torch.zeros(255)):
        with pytest.raises(CheckError):
            copy[(4,)](short, out, B=64)


@triton.jit
def branches(x, out, n, B: tl.constexpr):
    at = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    if n > 100:
        total += tl.load(x + 1000 + at)
    for row in range(n - 100):
        total += tl.load(x + row * B + at)
    tl.store(out + at, total)


@triton.jit
def gathered(x, out, B: tl.constexpr):
    at = tl.arange(0, B)
    which = tl.load(out + at).to(tl.int32)
    value = tl.load(x + which)
    tl.store(out + at, value + tl.load(x + at * 1000, value < 0, other=0))


@fuser.kernel
def leaves_early(x, out, n, B: fl.constexpr):
    at = fl.arange(0, B)
    fl.store(out + at, fl.zeros((B,), fl.float32))
    for row in range(n):
        if row == 2:
            break
        fl.store(out + at, fl.load(x + row * B + at))
    if n > 3:
        return
    fl.store(out + at, fl.load(x + 5000 + at))


@fuser.kernel
def waits(x, out, n, B: fl.constexpr):
    at = fl.arange(0, B)
    left = n
    while left > 100:
        fl.store(out + at, fl.load(x + left * B + at))
        left -= 1


@pytest.mark.parametrize(
    ("kernel", "args"), [(branches, (100,)), (branches, (50,)), (gathered, ()),
                         (leaves_early, (10,)), (waits, (40,))]
)  # fmt: skip
def test_what_may_not_run_is_not_judged(kernel: Any, args: tuple[int, ...]) -> None:
    for _ in range(2):
        kernel[(1,)](floats(32), np.zeros(16, np.float32), *args, B=16)


def test_loops_that_run_are_judged() -> None:
    x, out = floats(32), floats(16)
    branches[(1,)](x, out, 101 - 1, B=16)
    with pytest.raises(CheckError, match="whose memory is empty"):
        sums[(1,)](floats(0), out, 3, 16, B=16)
    sums[(1,)](floats(0), out, 0, 16, B=16)
    assert (out == 0).all()


def test_empty_grids_touch_nothing() -> None:
    copy[(0,)](floats(0), floats(0), B=64)
    masked[(1,)](floats(0), floats(0), 0, B=64)
