"""What may be fed, what is copied, and what the errors say."""

from __future__ import annotations

import array as arrays
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fuser import dtypes
from fuser.errors import FeedError
from fuser.runtime.feeds import check_feeds
from fuser.runtime.program import TensorSpec

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)
X = TensorSpec("x", dtypes.f32, (2, 3))
B = TensorSpec("b", dtypes.bf16, (2, 3))


def feed(spec: TensorSpec, value: Any) -> np.ndarray:
    (found,) = check_feeds([spec], {spec.name: value})
    assert found.dtype == spec.dtype.numpy
    assert found.shape == spec.shape
    assert found.flags.c_contiguous and found.flags.aligned
    return found


def unaligned() -> np.ndarray:
    raw = np.zeros(VALUES.nbytes + 1, np.uint8)[1:]
    view = raw.view(np.float32).reshape(2, 3)
    view[:] = VALUES
    return view


class OnlyDlpack:
    """What a library has that knows NumPy by DLPack alone."""

    def __dlpack__(self, **kwargs: Any) -> Any:
        return VALUES.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return VALUES.__dlpack_device__()


@pytest.mark.parametrize(
    "value",
    [
        VALUES,
        VALUES.astype(">f4"),
        np.asfortranarray(VALUES),
        VALUES[::-1][::-1],
        np.repeat(VALUES, 2, axis=1)[:, ::2],
        unaligned(),
        np.ma.masked_array(VALUES),
        OnlyDlpack(),
        memoryview(VALUES),
        VALUES.tolist(),
        [[0, 1, 2], [3, 4, 5]],
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_spelling_of_an_array(value: Any) -> None:
    np.testing.assert_array_equal(feed(X, value), VALUES)


def test_nothing_is_copied_that_is_right() -> None:
    for value in (VALUES, OnlyDlpack(), memoryview(VALUES)):
        assert np.shares_memory(feed(X, value), VALUES)
    narrow = VALUES.astype(ml_dtypes.bfloat16)
    assert np.shares_memory(feed(B, narrow), narrow)


def test_narrow_floats_as_raw_bytes() -> None:
    narrow = VALUES.astype(ml_dtypes.bfloat16)
    raw = narrow.view(np.dtype((np.void, 2)))  # np.load of a saved bfloat16 array
    np.testing.assert_array_equal(feed(B, raw), narrow)
    np.testing.assert_array_equal(feed(B, VALUES.tolist()), narrow)


def test_scalars() -> None:
    scalar = TensorSpec("n", dtypes.i32, ())
    for value in (3, np.int32(3), np.array(3, ">i4"), arrays.array("i", [3])[0]):
        assert feed(scalar, value) == 3
    assert feed(TensorSpec("t", dtypes.bool_, ()), True)
    assert feed(TensorSpec("f", dtypes.f32, ()), 2) == 2.0


def test_torch_tensors_without_copies() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(6.0).reshape(2, 3).requires_grad_()
    assert feed(X, tensor).ctypes.data == tensor.data_ptr()
    narrow = tensor.detach().bfloat16()
    found = feed(B, narrow)
    assert found.ctypes.data == narrow.data_ptr()
    np.testing.assert_array_equal(found.astype(np.float32), VALUES)
    np.testing.assert_array_equal(feed(X, tensor.detach().T.contiguous().T), VALUES)
    np.testing.assert_array_equal(feed(X, -torch._neg_view(tensor.detach())), VALUES)
    with pytest.raises(FeedError, match="a tensor on meta"):
        feed(X, tensor.to("meta"))


class InGpuMemory:
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (2, 3)}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (VALUES.astype(np.float64), "dtype float64; convert it: array.astype('float32')"),
        (VALUES.astype(">f8"), "the feed has dtype >f8; convert it"),
        (VALUES.T, "[3, 2]; the axes are in another order: array.transpose(1, 0)?"),
        (VALUES.reshape(1, 6), "[1, 6]; the sizes agree: array.reshape([2, 3])?"),
        (VALUES[:1], "the feed has shape [1, 3]; axis 0 differs; pass [2, 3]"),
        (VALUES[0], "it needs 2 axes, not 1"),
        (InGpuMemory(), "the feed is a InGpuMemory in GPU memory; copy it to the host"),
        ("text", "is no array of numbers"),
        (None, "is no array of numbers"),
        ([[1, 2], [3]], "is no array"),
        (VALUES.astype(complex), "the feed has dtype complex128"),
        (object(), "is no array of numbers"),
    ],
)  # fmt: skip
def test_errors_name_the_input_what_was_expected_what_came_and_the_mend(
    value: Any, expected: str
) -> None:
    with pytest.raises(FeedError) as caught:
        feed(X, value)
    assert "input 'x' is f32[2, 3]" in str(caught.value)
    assert expected in str(caught.value)
    assert caught.value.hint
