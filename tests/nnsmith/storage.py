"""Models on disk without their large weights: random numbers are kept as their seed.

A stored model is an ONNX file in which the data of every initializer of more than `KEPT` elements
is left out; its `doc_string` says which uniform numbers stand for it. `load` puts them in.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, numpy_helper

KEPT = 32
"""Elements up to which data is stored as it is."""
MARK = "uniform "


def store(model: ModelProto, path: Path) -> None:
    """Write a model; its weights become the numbers that `load` will make."""
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.size <= KEPT or array.dtype == bool or not _is_finite(array):
            continue
        seed = zlib.crc32(f"{path.stem} {tensor.name}".encode())
        low, high = float(array.min()), float(array.max())
        kept = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        kept.doc_string = f"{MARK}{seed} {low!r} {high!r}"
        tensor.CopyFrom(kept)
    path.write_bytes(model.SerializeToString(deterministic=True))


def load(path: Path) -> ModelProto:
    """A stored model with all of its weights."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.doc_string.startswith(MARK):
            tensor.CopyFrom(numpy_helper.from_array(_drawn(tensor), tensor.name))
    return model


def _drawn(tensor: TensorProto) -> np.ndarray[Any, Any]:
    seed, low, high = tensor.doc_string.removeprefix(MARK).split()
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    numbers = np.random.default_rng(int(seed)).uniform(float(low), float(high), tuple(tensor.dims))
    return np.asarray(numbers if np.issubdtype(dtype, np.floating) else np.rint(numbers), dtype)


def _is_finite(array: np.ndarray[Any, Any]) -> bool:
    return bool(np.isfinite(array.astype(np.float64)).all())
