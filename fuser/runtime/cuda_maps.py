"""Tensor maps of a native launch: what its formulas compute of them, and what is known before."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import replace
from typing import Any

import numpy as np

from fuser.backend.module import TensorMap
from fuser.dtypes import BY_NAME
from fuser.errors import CompileError, UnsupportedError
from fuser.graph.dims import Dim
from fuser.runtime.cuda_launch import CudaKernel
from fuser.runtime.device_code import map_arguments
from fuser.runtime.door import Record
from fuser.runtime.formulas import Formulas
from fuser.runtime.memory import address
from fuser.runtime.native_words import MAP_NUMBERS, MAP_WORDS, MAPS_AT, MOST_MAPS, Door, Map

TYPES = {
    "UINT8": 0, "UINT16": 1, "UINT32": 2, "INT32": 3, "UINT64": 4, "INT64": 5, "FLOAT16": 6,
    "FLOAT32": 7, "FLOAT64": 8, "BFLOAT16": 9,
}  # fmt: skip
"""CUtensorMapDataType"""
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
"""CUtensorMapSwizzle, by bytes."""
_FUNCTIONS = {
    Door.ENCODE_TILED: "cuTensorMapEncodeTiled",
    Door.ENCODE_WALK: "cuTensorMapEncodeIm2col",
}


def map_formulas(code: Formulas, kernel: CudaKernel) -> None:
    """Have the numbers of the maps computed. Raises ValueError, UnsupportedError."""
    found: list[tuple[TensorMap, tuple[Dim, ...], tuple[Dim, ...], Dim]]
    found = kernel.geometry.maps or [
        (item, item.shape, item.strides, item.offset) for item in kernel.kernel.tensor_maps
    ]
    if len(found) > MOST_MAPS:
        raise UnsupportedError(f"more than {MOST_MAPS} tensor maps")
    for number, (item, shape, strides, offset) in enumerate(found):
        size = BY_NAME[item.dtype].bytes
        for stride in strides:
            code.check(stride - 1, ">=")
        computed = (*shape, *(stride * size for stride in strides), offset * size)
        if len(computed) > MAP_NUMBERS:
            raise UnsupportedError(f"a tensor map of rank {len(shape)}")
        for place, dim in enumerate(computed):
            code.out(dim, MAPS_AT + MAP_NUMBERS * number + place)


@functools.cache
def _encoders() -> dict[Door, int]:
    try:
        library = ctypes.CDLL("libcuda.so.1")
        return {
            word: ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
            for word, name in _FUNCTIONS.items()
        }
    except (OSError, AttributeError) as error:
        raise UnsupportedError(f"the driver encodes no tensor maps: {error}") from error


def fill_maps(record: Record, kernel: CudaKernel) -> None:
    """The words of the maps of this kernel. Raises UnsupportedError."""
    maps = kernel.kernel.tensor_maps
    if not maps:
        return
    for word, function in _encoders().items():
        record[word] = function
    table = np.zeros((len(maps), MAP_WORDS), np.int64)
    for row, item in zip(table, maps, strict=True):
        try:
            plain = map_arguments(replace(item, offset=0), 0)  # the driver looks at the start
        except CompileError as error:
            raise UnsupportedError(str(error)) from error
        row[Map.TYPE] = TYPES[plain["type"].rsplit("_", 1)[1]]
        row[Map.RANK], row[Map.BUFFER] = plain["rank"], item.argument
        row[Map.SWIZZLE] = SWIZZLES[item.swizzle]
        row[Map.WALKS] = bool(item.steps)
        row[Map.COLUMNS], row[Map.ROWS] = (*item.box, 1)[:2]
        lower, upper = plain["corners"]
        for place, numbers in (
            (Map.STEPS, plain["steps"]), (Map.BOX, item.box), (Map.LOWER, lower),
            (Map.UPPER, upper),
        ):  # fmt: skip
            row[place] = _listed(record, numbers)
    record[Door.MAPS], record[Door.MAP_TABLE] = len(maps), address(table)
    record.keep.append(table)


def _listed(record: Record, numbers: Any) -> int:
    """The address of 32-bit numbers."""
    made = np.array([*numbers, 0], np.int32)
    record.keep.append(made)
    return address(made)
