"""The interpreter computes what NumPy says, and finds every broken promise."""

from __future__ import annotations

import numpy as np
import pytest

from fuser.dtypes import f32, i32
from fuser.errors import VerifyError
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import axis, index, lookup
from fuser.tilegen.interpret import run
from tests.numerics import assert_close
from tests.tilegen import programs
from tests.tilegen.programs import Array, random_arrays


def outcome(name: str, rng: np.random.Generator) -> dict[str, Array]:
    kernel = programs.CORPUS[name]()
    arrays = random_arrays(kernel, rng)
    run(kernel, arrays)
    return arrays


def test_matmul(rng: np.random.Generator) -> None:
    kernel = programs.matmul(33, 20, 50)
    arrays = random_arrays(kernel, rng)
    run(kernel, arrays)
    a, w = arrays["a"].astype(np.float64), arrays["w"].astype(np.float64)
    expected = np.maximum(a.reshape(33, 50) @ w.reshape(50, 20) + arrays["bias"].astype(float), 0)
    assert_close(arrays["y"].reshape(33, 20), expected, kernel.buffers[0].dtype, 50)


def test_softmax(rng: np.random.Generator) -> None:
    arrays = outcome("softmax", rng)
    x = arrays["x"].astype(np.float64).reshape(5, 77)
    e = np.exp(x - x.max(1, keepdims=True))
    assert_close(arrays["y"].reshape(5, 77), e / e.sum(1, keepdims=True), f32, 77)


def test_gather(rng: np.random.Generator) -> None:
    kernel = programs.gather()
    arrays = random_arrays(kernel, rng)
    arrays["ids"] = rng.integers(-9, 9, 13)
    run(kernel, arrays)
    np.testing.assert_array_equal(
        arrays["y"].reshape(13, 6), arrays["x"].reshape(9, 6)[arrays["ids"]]
    )


def test_gather_reports_an_index_outside_of_its_claim(rng: np.random.Generator) -> None:
    kernel = programs.gather()
    arrays = random_arrays(kernel, rng)
    arrays["ids"][5] = 9
    with pytest.raises(VerifyError, match=r"claimed to be in \[0, 8\]"):
        run(kernel, arrays)


def test_convolve(rng: np.random.Generator) -> None:
    arrays = outcome("convolve", rng)
    expected = np.correlate(arrays["x"].astype(float), arrays["w"].astype(float), "same")
    assert_close(arrays["y"], expected, f32, 3)


def test_causal(rng: np.random.Generator) -> None:
    arrays = outcome("causal", rng)
    x = arrays["x"].reshape(24, 24)
    place = np.arange(24)
    expected = np.where(place <= place[:, None], x, -1)
    # blocks above the diagonal are not visited
    expected[place[:, None] // 8 < place // 8] = 0
    np.testing.assert_array_equal(arrays["y"].reshape(24, 24), expected)


def test_histogram(rng: np.random.Generator) -> None:
    arrays = outcome("histogram", rng)
    np.testing.assert_array_equal(arrays["y"], np.bincount(arrays["x"], minlength=7))


def test_scan(rng: np.random.Generator) -> None:
    arrays = outcome("scan", rng)
    x = arrays["x"].reshape(3, 19)
    sums, peaks = arrays["y"].reshape(2, 19, 3)
    assert_close(sums.T, np.cumsum(x, 1, dtype=float), f32, 19)
    np.testing.assert_array_equal(peaks.T, np.maximum.accumulate(x[:, ::-1], 1)[:, ::-1])


def test_branch(rng: np.random.Generator) -> None:
    arrays = outcome("branch", rng)
    x, y = (arrays[name].reshape(20, 4) for name in "xy")
    np.testing.assert_array_equal(y[::2], -x[::2])
    np.testing.assert_array_equal(y[1::2], np.repeat(x[1::2].reshape(10, 2, 2).prod(2), 2, 1))


def test_integers(rng: np.random.Generator) -> None:
    arrays = outcome("integers", rng)
    x = arrays["x"].astype(np.int32)
    a = x[3 + np.arange(4)[:, None] * 16 + np.arange(8) * 2]
    low = np.array([x[0], x[20], x[60], 0])
    np.testing.assert_array_equal(arrays["y"].reshape(4, 4), a @ a.T + low[:, None])


def test_only_some_programs(rng: np.random.Generator) -> None:
    kernel = programs.scale()
    arrays = random_arrays(kernel, rng)
    run(kernel, arrays, programs=[1, 7])
    expected = arrays["x"] * 2
    expected[:128] = expected[256:896] = 0
    np.testing.assert_array_equal(arrays["y"], expected)


def broken(what: str) -> Builder:
    """A program over x and y, of 64 elements each, that breaks one promise."""
    b = Builder(what)
    x = b.view(b.buffer("x", f32, 64), (64,))
    y = b.view(b.buffer("y", f32, 64, "output"), (64,))
    at = index(b.program_id(0, 8)) * 8 + axis(0, 8)
    b.origin = ("/broken",)
    match what:
        case "no pad":
            b.store(y, (at,), b.load(x, (at + 1,), (8,), pad=None))
        case "stored twice":
            b.store(y, (at // 2,), b.load(x, (at,), (8,)))
        case "overlap":
            b.store(y, (at - index(b.program_id(0, 8)) * 4,), b.full(1.0, (8,), f32))
        case "shared":
            b.store(y, (axis(0, 8),), b.load(x, (at,), (8,)))
        case "read after":
            b.store(y, (at,), b.load(y, (at - 8,), (8,)))
        case "read before":
            b.store(y, (at,), b.load(y, (at + 8,), (8,)))
        case "add and store":
            b.atomic_add(y, (axis(0, 8),), b.full(1.0, (8,), f32))
            b.store(y, (at,), b.full(1.0, (8,), f32))
        case "claim":
            place = b.index(at, (8,))
            place.high = 50
            b.store(y, (lookup(place, (0,)),), b.full(1.0, (8,), f32))
        case "divisor":
            place = b.index(at, (8,))
            place.multiple = 2
            b.store(y, (lookup(place, (0,)),), b.full(1.0, (8,), f32))
    return b


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("no pad", r"element \(7,\) of a load without a pad"),
        ("stored twice", r"two elements of the tile go to element 0 of y"),
        ("overlap", r"element 4 of y was stored by program 0"),
        ("shared", r"element 0 of y was stored by program 0"),
        ("read after", r"element 0 of y was stored by program 0"),
        ("read before", r"element 8 of y was read by program 0"),
        ("add and store", r"element 0 of y was (added to|stored) by"),
        ("claim", r"claimed to be in \[0, 50\] and is in \[48, 55\]"),
        ("divisor", r"claimed to be a multiple of 2"),
    ],
)
def test_broken_promises_are_found(what: str, message: str) -> None:
    arrays = {"x": np.zeros(64, np.float32), "y": np.zeros(64, np.float32)}
    with pytest.raises(VerifyError, match=message) as caught:
        run(broken(what).build(), arrays)
    assert "/broken" in caught.value.where


def test_view_beyond_its_buffer() -> None:
    b = Builder("beyond")
    view = b.view(b.buffer("x", f32, 10), (4, 4), (3, 1))
    y = b.view(b.buffer("y", f32, 16, "output"), (4, 4))
    tile = b.load(view, (axis(0, 4), axis(1, 4)), (4, 4))
    b.store(y, (axis(0, 4), axis(1, 4)), tile)
    arrays = {"x": np.zeros(10, np.float32), "y": np.zeros(16, np.float32)}
    with pytest.raises(VerifyError, match="reaches element 12 of a buffer of 10"):
        run(b.build(), arrays)


def test_stores_are_clipped_and_loads_padded() -> None:
    b = Builder("edges")
    x = b.view(b.buffer("x", i32, 6), (6,))
    y = b.view(b.buffer("y", i32, 9, "output"), (9,))
    b.store(y, (axis(0, 16) - 3,), b.load(x, (axis(0, 16) - 4,), (16,), pad=-5))
    arrays = {"x": np.arange(6, dtype=np.int32), "y": np.zeros(9, np.int32)}
    run(b.build(), arrays)
    assert arrays["y"].tolist() == [-5, 0, 1, 2, 3, 4, 5, -5, -5]


def test_arrays_must_fit() -> None:
    kernel = programs.scale()
    with pytest.raises(VerifyError, match="no array for buffer x"):
        run(kernel, {})
    arrays = {"x": np.zeros(1000, np.float64), "y": np.zeros(1000, np.float32)}
    with pytest.raises(VerifyError, match=r"x is f32\[1000\], its array float64"):
        run(kernel, arrays)
