"""Tensor descriptors and block pointers: blocks that are checked against the array's shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fuser
import fuser.language as fl
from fuser.errors import LanguageError, UsageError
from tests.language.launching import DEVICES, launch

RNG = np.random.default_rng(2)


@fuser.kernel
def copied(x, out, rows, columns, M: fl.constexpr, N: fl.constexpr, PAD: fl.constexpr):
    source = fl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [M, N], PAD)
    target = fl.make_tensor_descriptor(
        out, shape=[rows + 3, columns + 3], strides=[columns + 3, 1], block_shape=[M, N]
    )
    row = fl.program_id(1) * M
    column = fl.program_id(0) * N
    fl.store_tensor_descriptor(target, [row, column], source.load([row, column]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_what_is_beyond_an_array_is_padding_and_is_not_written(padding: str, device: str) -> None:
    x = RNG.standard_normal((37, 53)).astype(np.float32)
    out = np.full((40, 56), 7, np.float32)
    launch(copied, device, x, out, 37, 53, grid=(4, 3), M=16, N=16, PAD=padding)
    want = np.full((40, 56), 0 if padding == "zero" else np.nan, np.float32)
    want[:37, :53] = x
    np.testing.assert_array_equal(out, want)


@fuser.kernel
def moved(x, out, DOWN: fl.constexpr, RIGHT: fl.constexpr):
    rows, columns = x.shape
    at = [fl.program_id(1) * x.block_shape[0], fl.program_id(0) * x.block_shape[1]]
    tile = fl.load_tensor_descriptor(x, [at[0] + DOWN, at[1] + RIGHT])
    out.store(at, tile.to(out.dtype) + rows - columns)


@pytest.mark.parametrize(("down", "right"), [(0, 0), (-5, 3), (9, -1)])
def test_descriptors_are_arguments(down: int, right: int) -> None:
    x = RNG.integers(-99, 99, (24, 40)).astype(np.int32)
    out = np.zeros((24, 40), np.float32)
    arguments = [fl.TensorDescriptor.from_tensor(item, [16, 16]) for item in (x, out)]
    moved[(3, 2)](*arguments, DOWN=down, RIGHT=right)
    padded = np.pad(x, 50)
    want = padded[50 + down : 74 + down, 50 + right : 90 + right] + 24 - 40
    np.testing.assert_array_equal(out, want)


def test_one_compile_serves_other_sizes() -> None:
    for rows, columns in ((24, 40), (33, 52), (17, 99)):
        x = RNG.standard_normal((rows, columns)).astype(np.float32)
        out = np.zeros_like(x)
        arguments = [fl.TensorDescriptor.from_tensor(item, [16, 32]) for item in (x, out)]
        moved[(4, 3)](*arguments, DOWN=0, RIGHT=0)
        np.testing.assert_allclose(out, x + rows - columns, rtol=1e-6)


@fuser.kernel
def rows_of(x, at, out, columns, M: fl.constexpr, N: fl.constexpr):
    source = fl.make_tensor_descriptor(x, [M, columns], [columns, 1], [1, N])
    target = fl.make_tensor_descriptor(out, [M, columns], [columns, 1], [1, N])
    rows = fl.load(at + fl.arange(0, M))
    found = source.gather(rows, 8)
    target.scatter(found, fl.arange(0, M), 8)


@pytest.mark.parametrize("device", DEVICES)
def test_gather_and_scatter_rows(device: str) -> None:
    x = RNG.standard_normal((8, 20)).astype(np.float32)
    at = np.array([3, 1, 7, 7, -1, 8, 0, 2], np.int32)
    out = np.full_like(x, 5)
    launch(rows_of, device, x, at, out, 20, M=8, N=16)
    want = np.full_like(x, 5)
    for row, source in enumerate(at):
        want[row, 8:] = x[source, 8:] if 0 <= source < 8 else 0
    np.testing.assert_array_equal(out, want)


@fuser.kernel
def added(out, rows, M: fl.constexpr, N: fl.constexpr):
    target = fl.make_tensor_descriptor(out, [rows, N], [N, 1], [M, N])
    target.atomic_add([fl.program_id(0) * 2, 0], fl.full((M, N), 1, fl.int32))
    target.atomic_max([rows - 1, 0], fl.full((M, N), 50, fl.int32))


@pytest.mark.parametrize("device", DEVICES)
def test_atomics_stop_at_the_end(device: str) -> None:
    out = np.zeros((7, 8), np.int32)
    launch(added, device, out[:5], 5, M=4, N=8)
    want = np.repeat(np.array([1, 1, 1, 1, 50, 0, 0]), 8).reshape(7, 8)
    np.testing.assert_array_equal(out, want)


@fuser.kernel
def walked(x, out, rows, columns, M: fl.constexpr, N: fl.constexpr, PAD: fl.constexpr):
    source = fl.make_block_ptr(x, (rows, columns), (columns, 1), (0, 0), (M, N), (1, 0))
    total = fl.zeros((M, N), fl.float32)
    for _ in range(fl.cdiv(columns, N)):
        total += fl.load(source, boundary_check=(0, 1), padding_option=PAD)
        source = fl.advance(source, (0, N))
    target = fl.make_block_ptr(out, (rows, N), (N, 1), (0, 0), (M, N), order=(1, 0))
    fl.store(target, total, boundary_check=(0,))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_block_pointers_advance(padding: str, device: str) -> None:
    x = RNG.standard_normal((13, 41)).astype(np.float32)
    out = np.full((16, 16), 3, np.float32)
    launch(walked, device, x, out, 13, 41, M=16, N=16, PAD=padding)
    wide = np.full((13, 48), 0 if padding == "zero" else np.nan, np.float32)
    wide[:, :41] = x
    np.testing.assert_allclose(out[:13], wide.reshape(13, 3, 16).sum(1), rtol=1e-5)
    assert (out[13:] == 3).all()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"shape": [0, 4]}, "shape"), ({"strides": [4]}, "strides"),
        ({"padding": "one"}, "padding"), ({"shape": [1] * 6}, "6 dims"),
    ],
)  # fmt: skip
def test_descriptors_are_checked(changes: dict[str, Any], why: str) -> None:
    good = {"shape": [4, 4], "strides": [4, 1], "block_shape": [4, 4]}
    with pytest.raises(UsageError, match=why):
        fl.TensorDescriptor(np.zeros((4, 4), np.float32), **{**good, **changes})


@fuser.kernel
def wrong_offsets(x, out):
    out.store([0, 0], x.load([0]))


@fuser.kernel
def nan_of_integers(x, out):
    fl.store(out, fl.sum(fl.load(fl.make_block_ptr(x, (4,), (1,), (0,), (8,), (0,)),
                                 boundary_check=(0,), padding_option="nan")))  # fmt: skip


def test_errors_say_what_is_wrong() -> None:
    x = np.zeros((16, 16), np.float32)
    block = fl.TensorDescriptor.from_tensor(x, [8, 8])
    with pytest.raises(LanguageError, match="expected 2 offsets"):
        wrong_offsets[(1,)](block, block)
    with pytest.raises(LanguageError, match="only floats have NaN"):
        nan_of_integers[(1,)](np.zeros(8, np.int32), np.zeros(1, np.int32))
