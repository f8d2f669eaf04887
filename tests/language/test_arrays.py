"""Arrays as arguments: shape, strides, dtype, and blocks `x[rows, cols]`."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pytest

import fuser
import fuser.language as fl
from fuser.errors import LanguageError
from tests.language.launching import DEVICES, launch

EVERY = pytest.mark.parametrize("device", DEVICES)


@fuser.kernel
def transpose(x: Any, out: Any, B: fl.constexpr) -> Any:
    rows = fl.program_id(0) * B + fl.arange(0, B)
    cols = fl.program_id(1) * B + fl.arange(0, B)
    out[cols, rows] = x[rows, cols].T


def strided(x: np.ndarray, how: str) -> np.ndarray:
    m, n = x.shape
    match how:
        case "rows":
            return x
        case "columns":
            return np.asfortranarray(x)
        case "part":
            return np.pad(x, 3)[3 : 3 + m, 3 : 3 + n]
        case "steps":
            return np.repeat(np.repeat(x, 2, 0), 3, 1)[::2, ::3]
        case "backwards":
            return np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1]
    raise AssertionError(how)


LAYOUTS = ["rows", "columns", "part", "steps", "backwards"]


@pytest.mark.parametrize("how", LAYOUTS)
@pytest.mark.parametrize(("m", "n"), [(37, 50), (16, 16), (1, 33), (5, 1), (64, 48)])
def test_blocks_of_any_layout(how: str, m: int, n: int) -> None:
    x = np.arange(m * n, dtype=np.float32).reshape(m, n)
    for check in (False, True):
        out = np.full((n, m), -1, np.float32)
        transpose[(fl.cdiv(m, 16), fl.cdiv(n, 16))](strided(x, how), out, B=16, check=check)
        np.testing.assert_array_equal(out, x.T)


@EVERY
def test_blocks_on_a_device(device: str) -> None:
    x = np.arange(37 * 50, dtype=np.float32).reshape(37, 50)
    out = np.full((50, 37), -1, np.float32)
    launch(transpose, device, x, out, grid=(3, 4), B=16)
    np.testing.assert_array_equal(out, x.T)


def test_one_compile_serves_many_shapes() -> None:
    for m, n in ((37, 51), (40, 57), (100, 33), (18, 19)):
        x = np.random.default_rng(m).normal(size=(m, n)).astype(np.float32)
        out = np.zeros((n, m), np.float32)
        transpose[(fl.cdiv(m, 16), fl.cdiv(n, 16))](x, out, B=16)
        np.testing.assert_array_equal(out, x.T)
    fresh = fuser.kernel(transpose.fn)
    shapes = ((37, 51), (39, 57), (101, 33), (18, 19))
    for m, n in shapes:
        x = np.zeros((m, n), np.float32)
        fresh[(fl.cdiv(m, 16), fl.cdiv(n, 16))](x, x.T.copy(), B=16)
    assert sum(map(len, fresh.variants.values())) == 1
    fresh[(4, 4)](np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float32), B=16)
    assert sum(map(len, fresh.variants.values())) == 2  # multiples of 16 have code of their own


def test_native_launches_read_shapes_and_strides() -> None:
    kernel = fuser.kernel(transpose.fn)
    rng = np.random.default_rng(3)
    sizes = [1, 2, 15, 16, 17, 32, 33, 48, 50]
    cases = [(int(m), int(n), how) for m, n in rng.choice(sizes, (12, 2)) for how in LAYOUTS]
    for m, n, how in [*cases, *(cases[i] for i in rng.permutation(len(cases)))]:
        x = rng.integers(0, 99, (m, n)).astype(np.float32)
        out = np.full((n, m), -1, np.float32)
        kernel[(fl.cdiv(m, 16), fl.cdiv(n, 16))](strided(x, how), out, B=16)
        np.testing.assert_array_equal(out, x.T)
    taken = 0
    x, out = np.ones((37, 50), np.float32), np.zeros((50, 37), np.float32)
    for _ in range(3):
        taken += kernel._steady.launch((3, 4), (x, out), {"B": 16}, lambda *_: ()) is not None
        kernel[(3, 4)](x, out, B=16)
    assert taken >= 2
    np.testing.assert_array_equal(out, x.T)


def test_native_launches_of_tensors() -> None:
    torch = pytest.importorskip("torch")
    kernel = fuser.kernel(transpose.fn)
    for m, n in ((37, 50), (50, 37), (37, 50), (48, 32), (37, 50)):
        x = torch.arange(m * n, dtype=torch.float32).reshape(m, n)
        for y in (x, x.T.contiguous().T):
            out = torch.zeros(n, m)
            kernel[(fl.cdiv(m, 16), fl.cdiv(n, 16))](y, out, B=16)
            assert out.equal(x.T)


def test_the_views_have_the_extents_of_the_array() -> None:
    x = np.zeros((37, 50), np.float32)
    found = fuser.kernel(transpose.fn)[(3, 4)](x, x.T.copy(), B=16)
    assert "x[`'x.shape0'`, `'x.shape1'`] strides(`'x.stride0'`, 1)" in found.tile
    assert "mask" not in found.tile


@fuser.kernel
def members(x: Any, out: Any) -> Any:
    fl.store(out, x.shape[0])
    fl.store(out + 1, x.shape[1])
    fl.store(out + 2, x.stride(0))
    fl.store(out + 3, x.strides[1])
    fl.store(out + 4, x.ndim)
    fl.store(out + 5, x.numel)
    fl.store(out + 6, len(x))
    fl.store(out + 7, x.stride(-1))
    if x.dtype == fl.float16:
        fl.store(out + 8, 16)
    fl.store(out + 9, fl.load(x + 3).to(fl.int64))  # still a pointer
    fl.store(out + 10, fl.zeros((4,), x.dtype).dtype.itemsize)


@EVERY
def test_members(device: str) -> None:
    x = np.arange(80, dtype=np.float16).reshape(8, 10)[:, :7]
    out = np.zeros(11, np.int64)
    if device == "cpu":
        launch(members, device, x, out)
        assert out.tolist() == [8, 7, 10, 1, 2, 56, 8, 1, 16, 3, 2]
    launch(members, device, np.ascontiguousarray(x), out)
    assert out.tolist() == [8, 7, 7, 1, 2, 56, 8, 1, 16, 3, 2]


@fuser.kernel
def indices(x: Any, ids: Any, out: Any) -> Any:
    rows = fl.load(ids + fl.arange(0, 4))
    out[0:4, :6] = x[rows, 2:8]  # a gather of rows
    out[4, :] = x[-1, :]
    out[5, 0:3] = x[1:4, 5]
    out[6, :] = x[2, ::2][0:5].reshape(5).to(out.dtype).sum(0)
    out[7, ...] = x[rows[:, None] * 0 + 1, fl.arange(0, 3)[None, :]].sum(0).sum(0)
    out[8, 0] = x[3, 4]
    out[9, 5] += x[0, 1]
    out[10:12, None, 1] = x[0:2, None, 9]


@EVERY
def test_kinds_of_indices(device: str) -> None:
    x = np.arange(6 * 10, dtype=np.float32).reshape(6, 10)
    ids = np.array([5, 0, 9, -1], np.int32)  # two are outside
    out = np.full((12, 10), 1, np.float32)
    want = out.copy()
    launch(indices, device, x, ids, out)
    want[0:4, :6] = [x[5, 2:8], x[0, 2:8], np.zeros(6), np.zeros(6)]
    want[4] = x[-1]
    want[5, :3] = x[1:4, 5]
    want[6] = x[2, ::2].sum()
    want[7] = 4 * x[1, :3].sum()
    want[8, 0] = x[3, 4]
    want[9, 5] += x[0, 1]
    want[10:12, 1] = x[0:2, 9]
    np.testing.assert_array_equal(out, want)


def test_nothing_outside_of_a_view_is_touched() -> None:
    base = np.arange(400, dtype=np.float32).reshape(20, 20)
    for check in (False, True):
        copy = base.copy()
        transpose[(1, 1)](np.zeros((16, 16), np.float32), copy[3:10, 4:9], B=16, check=check)
        want = base.copy()
        want[3:10, 4:9] = 0
        np.testing.assert_array_equal(copy, want)


@fuser.kernel
def softmax(x: Any, out: Any) -> Any:
    row = x[fl.program_id(0), :].to(fl.float32)
    e = fl.exp(row - fl.max(row, 0))
    out[fl.program_id(0), :] = e / fl.sum(e, 0)


@EVERY
@pytest.mark.parametrize("n", [1, 7, 96, 1000])
def test_rows_of_the_length_of_the_array(device: str, n: int) -> None:
    x = np.random.default_rng(n).normal(size=(5, n)).astype(np.float32)
    out = np.zeros_like(x)
    launch(softmax, device, x, out, grid=(5,))
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), rtol=2e-6, atol=1e-7)


@fuser.kernel
def matmul(a: Any, b: Any, c: Any, B: fl.constexpr) -> Any:
    rows = fl.program_id(0) * B + fl.arange(0, B)
    cols = fl.program_id(1) * B + fl.arange(0, B)
    total = fl.zeros((B, B), fl.float32)
    for k in range(0, a.shape[1], B):
        total = fl.dot(a[rows, k : k + B], b[k : k + B, cols], total, input_precision="ieee")
    c[rows, cols] = total


@EVERY
@pytest.mark.parametrize(("m", "n", "k"), [(50, 70, 33), (48, 48, 48), (1, 5, 100)])
def test_a_product_without_pointers(device: str, m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(k)
    a = rng.integers(-4, 4, (m, k)).astype(np.float32)
    b = rng.integers(-4, 4, (n, k)).astype(np.float32).T
    c = np.zeros((m, n), np.float32)
    if device != "cpu":
        b = np.ascontiguousarray(b)
    launch(matmul, device, a, b, c, grid=(fl.cdiv(m, 16), fl.cdiv(n, 16)), B=16)
    np.testing.assert_array_equal(c, a @ b)


@fuser.kernel
def far(x: Any, out: Any, B: fl.constexpr) -> Any:
    rows, cols = fl.arange(0, B), fl.arange(0, B)
    out[rows, cols] = x[rows, cols]


@fuser.kernel
def far_by_pointers(x: Any, out: Any, stride: Any, B: fl.constexpr) -> Any:
    rows, cols = fl.arange(0, B), fl.arange(0, B)
    fl.store(out + rows[:, None] * B + cols, fl.load(x + rows[:, None] * stride + cols))


@fuser.kernel
def far_by_constants(x: Any, out: Any, STRIDE: fl.constexpr, B: fl.constexpr) -> Any:
    rows, cols = fl.arange(0, B), fl.arange(0, B)
    place = rows[:, None] * STRIDE + cols
    fl.static_assert(place.dtype == fl.int64)
    fl.store(out + rows[:, None] * B + cols, fl.load(x + place))


def test_addresses_do_not_wrap() -> None:
    stride = (1 << 30) + 3  # row 3 begins behind 2**31
    memory = mmap.mmap(-1, 3 * stride + 4096)  # of which a few pages are used
    x = np.lib.stride_tricks.as_strided(
        np.frombuffer(memory, np.int8), (4, 4), (stride, 1), writeable=True
    )
    x[...] = np.arange(16).reshape(4, 4)
    for check in (False, True):
        out = np.zeros((4, 4), np.int8)
        far[(1,)](x, out, B=4, check=check)
        np.testing.assert_array_equal(out, x)
        out[...] = 0
        far_by_pointers[(1,)](x, out, stride, B=4, check=check)
        np.testing.assert_array_equal(out, x)
        out[...] = 0
        far_by_constants[(1,)](x, out, STRIDE=stride, B=4, check=check)
        np.testing.assert_array_equal(out, x)
    del x


@fuser.kernel
def behind(at: Any, x: Any, out: Any, B: fl.constexpr) -> Any:
    place = fl.load(at) + 1
    fl.store(out + fl.arange(0, B), fl.load(x + place * 4 + fl.arange(0, B)))


@EVERY
def test_loaded_numbers_in_addresses_stay_affine(device: str) -> None:
    at, x = np.array([2], np.int32), np.arange(40, dtype=np.float32)
    out = np.zeros(8, np.float32)
    launch(behind, device, at, x, out, B=8)
    assert out.tolist() == [*range(12, 20)]
    if device == "cpu":
        assert not behind.warmup(at, x, out, B=8, grid=(1,)).program.notes


@fuser.kernel
def helper(x: Any, at: Any) -> Any:
    return x[at, 0:2]


@fuser.kernel
def calls(x: Any, out: Any) -> Any:
    total = fl.zeros((2,), fl.float32)
    for i in range(x.shape[0]):
        total += helper(x, i)
    out[:] = total


@EVERY
def test_arrays_go_to_functions_and_into_loops(device: str) -> None:
    x, out = np.arange(10, dtype=np.float32).reshape(5, 2), np.zeros(2, np.float32)
    launch(calls, device, x, out)
    assert out.tolist() == [20, 25]


@fuser.kernel
def misused(x: Any, out: Any, how: fl.constexpr) -> Any:
    at = fl.arange(0, 4)
    if how == "rank":
        out[0] = x[at, at, at]
    elif how == "float":
        out[0] = x[at * 0.5, 0]
    elif how == "value":
        out[at] = x[at, at]
    elif how == "length":
        out[0] = x[0, : fl.load(x).to(fl.int32)]
    elif how == "stride":
        out[0] = x.stride(2)
    elif how == "moved":
        out[0] = (x + 1)[0, 0]
    elif how == "empty":
        out[0] = x[0, 3:3]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("rank", "3 indices for x, which has 2 dims"),
        ("float", r"an index that is a <\[4\], fp32>"),
        ("value", r"a <\[4, 4\], fp32> for a block of \[4\]"),
        ("length", "length is known at run time only"),
        ("stride", r"stride\(2\) of an array of 2 dims"),
        ("moved", "2 indices for a pointer<fp32>"),
        ("empty", "a slice of 0 elements"),
    ],
)
def test_misuse(how: str, message: str) -> None:
    x = np.zeros((4, 4), np.float32)
    with pytest.raises(LanguageError, match=message):
        misused[(1,)](x, np.zeros(4, np.float32), how=how)
