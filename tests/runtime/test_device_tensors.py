"""Reading tensors of other libraries: DLPack capsules and array interfaces as plain data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fuser.dtypes import bf16, f32
from fuser.errors import FeedError
from fuser.runtime.device_tensors import check_tensors, from_interface
from fuser.runtime.dlpack import from_dlpack
from fuser.runtime.program import TensorSpec


class OnGpu:
    """A host array that says it is on a GPU."""

    def __init__(self, array: np.ndarray, ordinal: int = 0) -> None:
        self.array, self.ordinal = array, ordinal

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.ordinal

    def __dlpack__(self, stream: int | None = None) -> Any:
        return self.array.__dlpack__()


def aligned(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """Zeros that begin at a multiple of 64 bytes."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [(np.float32, "f32"), (np.float16, "f16"), (np.int64, "i64"), (np.uint8, "u8"), (bool, "bool")],
)
def test_dlpack_fields(dtype: Any, name: str) -> None:
    array = aligned((3, 4, 5), dtype)[1:, ::2]
    tensor = from_dlpack(array.__dlpack__())
    assert (tensor.address, tensor.dtype, tensor.shape) == (array.ctypes.data, name, (2, 2, 5))
    assert tensor.strides == (20, 10, 1)
    assert not tensor.row_major


def test_array_interface() -> None:
    table = {"data": (256, False), "typestr": "<f2", "shape": (2, 8), "strides": None}
    tensor = from_interface(table, None)
    assert (tensor.address, tensor.dtype, tensor.shape) == (256, "f16", (2, 8))
    assert tensor.row_major
    assert not from_interface(table | {"strides": (2, 4)}, None).row_major
    assert from_interface(table | {"typestr": "<V2"}, None).dtype == "raw16"


def test_tensors_come_in_the_order_of_specs() -> None:
    specs = [TensorSpec("a", f32, (4,)), TensorSpec("b", f32, (1, 2))]
    a, b = aligned((4,)), aligned((1, 2))
    found = check_tensors(specs, {"b": OnGpu(b), "a": OnGpu(a)}, 0, "input")
    assert [item.address for item in found] == [a.ctypes.data, b.ctypes.data]


def test_misfits_are_named() -> None:
    spec = TensorSpec("x", f32, (4, 4))
    good = aligned((4, 4))

    def refusal(given: Any, specs: list[TensorSpec] | None = None) -> str:
        with pytest.raises(FeedError) as caught:
            check_tensors(specs or [spec], given, 0, "input")
        return str(caught.value)

    check_tensors([spec], {"x": OnGpu(good)}, 0, "input")
    assert "missing inputs: x" in refusal({})
    assert "unknown input 'y'" in refusal({"x": OnGpu(good), "y": OnGpu(good)})
    assert "not on the GPU" in refusal({"x": good})
    assert "GPU 1" in refusal({"x": OnGpu(good, 1)})
    assert "f32[2, 4]" in refusal({"x": OnGpu(good[:2])})
    assert "bf16[4, 4]" in refusal({"x": OnGpu(good)}, [TensorSpec("x", bf16, (4, 4))])
    assert "row-major" in refusal({"x": OnGpu(good.T)})
    assert "16 bytes" in refusal({"x": OnGpu(aligned((20,))[1:17].reshape(4, 4))})
    assert "list" in refusal({"x": [1.0]})
