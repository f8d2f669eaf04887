"""What launches learn of arrays: addresses, strides, devices, the memory of storages; refusals."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from fuser.dtypes import BY_NAME, f32, f64, i32
from fuser.errors import FeedError, FuserError, UnsupportedDTypeError
from fuser.runtime.arrays import describe, is_array, overlaps

torch = pytest.importorskip("torch")


def test_numpy_views_point_at_their_first_element() -> None:
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    view = whole[::-1, 1::2]
    record = describe(view)
    assert (record.dtype, record.shape, record.strides) == (f32, (4, 3), (-6, 2))
    assert ctypes.c_float.from_address(record.address).value == view[0, 0]
    start = whole.ctypes.data
    assert record.storage == (start, start + whole.nbytes)
    assert (record.device, record.place, record.writeable) == ("cpu", "the CPU", True)


def test_torch_views_point_at_their_first_element() -> None:
    whole = torch.arange(24, dtype=torch.float64).reshape(4, 6)
    view = whole[1:, 2:].t()
    record = describe(view)
    assert (record.dtype, record.shape, record.strides) == (f64, (4, 3), (1, 6))
    assert ctypes.c_double.from_address(record.address).value == float(view[0, 0])
    assert record.storage == (whole.data_ptr(), whole.data_ptr() + 24 * 8)
    assert record.writeable and record.device == "cpu"


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_every_dtype_of_numpy(name: str) -> None:
    dtype = BY_NAME[name]
    assert describe(np.zeros(3, dtype.numpy)).dtype is dtype


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("float16", "f16"), ("bfloat16", "bf16"), ("float8_e4m3fn", "f8e4m3fn"),
        ("float8_e5m2", "f8e5m2"), ("bool", "bool"), ("uint16", "u16"), ("int64", "i64"),
    ],
)  # fmt: skip
def test_dtypes_of_torch(given: str, name: str) -> None:
    record = describe(torch.zeros(5, dtype=getattr(torch, given))[2:])
    assert record.dtype is BY_NAME[name]
    assert record.storage[1] - record.storage[0] == 5 * record.dtype.bytes


def test_scalars_and_empty_arrays() -> None:
    assert describe(np.zeros((), np.int32)).strides == ()
    record = describe(np.zeros((0, 3), np.int32))
    assert record.storage[0] == record.storage[1] and record.dtype is i32
    assert describe(torch.zeros(0, 3)).shape == (0, 3)


class Interface:
    def __init__(self, array: np.ndarray) -> None:
        self.__array_interface__ = array.__array_interface__
        self._array = array


class Exchanged:
    """Has DLPack alone."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


@pytest.mark.parametrize("wrap", [Interface, Exchanged])
def test_protocols_of_the_host(wrap: type) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)[:, 1:]
    plain, record = describe(array), describe(wrap(array))
    for name in ("address", "dtype", "shape", "strides", "device", "writeable"):
        assert getattr(plain, name) == getattr(record, name)


def test_a_record_keeps_memory_alive() -> None:
    class Dying(np.ndarray):
        dead = False

        def __del__(self) -> None:
            Dying.dead = True

    record = describe(np.zeros(3, np.float32).view(Dying))
    assert not Dying.dead
    del record
    assert Dying.dead


def big_endian() -> Any:
    return np.zeros(3, ">f4")


def masked() -> Any:
    return np.ma.masked_array([1.0, 2.0], [True, False])


def odd_strides() -> Any:
    return np.zeros(4, [("a", "u1"), ("b", "<f4")])["b"]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (big_endian, UnsupportedDTypeError, "byte order"),
        (lambda: np.zeros(3, np.complex64), UnsupportedDTypeError, "complex64.*view_as_real"),
        (lambda: torch.zeros(3, dtype=torch.complex64), UnsupportedDTypeError, "view_as_real"),
        (lambda: np.zeros(3, "M8[s]"), UnsupportedDTypeError, "datetime64"),
        (lambda: np.array(["a"]), UnsupportedDTypeError, "<U1"),
        (lambda: np.array([object()]), UnsupportedDTypeError, "object"),
        (masked, FeedError, "masked.*filled"),
        (odd_strides, FeedError, "strides of .5,.*contiguous"),
        (lambda: torch.eye(3).to_sparse(), FeedError, "sparse"),
        (lambda: torch.zeros(3, device="meta"), FeedError, "device meta"),
        (lambda: torch._neg_view(torch.zeros(3)), FeedError, "resolve_neg"),
        (lambda: 3.5, FeedError, "float, no array"),
        (lambda: np.float32(3), FeedError, "numpy.float32, no array"),
        (lambda: [1, 2], FeedError, "list, no array"),
    ],
)
def test_refusals(make: Any, error: type[FuserError], words: str) -> None:
    with pytest.raises(error, match=f"x .*{words}") as caught:
        describe(make(), "x")
    assert caught.value.hint


def test_what_a_kernel_requires() -> None:
    array = np.zeros(3, np.float32)
    array.flags.writeable = False
    record = describe(array)
    record.require("x", writes=False, device="cpu")
    with pytest.raises(FeedError, match="x is read-only"):
        record.require("x", writes=True, device="cpu")
    with pytest.raises(FeedError, match="x is on the CPU, the kernel runs on GPU 1"):
        record.require("x", writes=False, device="cuda", ordinal=1)


def test_is_array() -> None:
    arrays = [np.zeros(2), torch.zeros(2), Exchanged(np.zeros(2))]
    assert all(map(is_array, arrays))
    others = [3, 2.5, np.int64(3), np.float32(2), "text", None, np.ndarray, [1]]
    assert not any(map(is_array, others))


def test_overlap_is_of_storages() -> None:
    whole, other = np.zeros((4, 6), np.float32), torch.zeros(8)
    shared = torch.from_numpy(whole)
    arrays = [whole[0], other, np.zeros(3), whole[3], shared[1:2], other[4:], np.zeros(0)]
    groups = overlaps([describe(array) for array in arrays])
    assert groups[2] == groups[6] == 0
    assert groups[0] == groups[3] == groups[4] != 0
    assert groups[1] == groups[5] not in (0, groups[0])


def test_overlap_goes_by_the_farthest_end() -> None:
    """The second array lies inside of the first, and the third behind the second."""
    whole = np.zeros(100, np.uint8)

    def part(start: int, stop: int) -> Any:
        return Interface(whole[start:stop])

    arrays = [part(0, 50), part(10, 20), part(30, 60), part(60, 70)]
    assert overlaps([describe(array) for array in arrays]) == (1, 1, 1, 0)


def test_torch_is_not_imported() -> None:
    code = (
        "import sys, numpy; from fuser.runtime.arrays import describe, is_array;"
        "describe(numpy.zeros(3)); is_array(3); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.cuda
def test_arrays_of_the_gpu() -> None:
    from fuser.runtime.device_tensors import DeviceArray

    made = DeviceArray((3, 4), f32)
    record = describe(made)
    assert (record.address, record.shape, record.strides) == (made.pointer, (3, 4), (4, 1))
    assert (record.device, record.ordinal, record.writeable) == ("cuda", 0, True)

    class Foreign:
        __cuda_array_interface__ = made.__cuda_array_interface__

    assert describe(Foreign()) == ArrayRecordLike(record)
    if torch.cuda.is_available():
        tensor = torch.zeros(8, device="cuda")[2:]
        found = describe(tensor)
        assert found.address == tensor.data_ptr() and found.device == "cuda"
        assert overlaps([found, record]) == (0, 0)


class ArrayRecordLike:
    """Equal to records of the same memory."""

    def __init__(self, record: Any) -> None:
        self.record = record

    def __eq__(self, other: object) -> bool:
        names = ("address", "dtype", "shape", "strides", "device", "ordinal", "storage")
        return all(getattr(self.record, name) == getattr(other, name) for name in names)
