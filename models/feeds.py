"""Example inputs for a model, made from its declared inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper

from models.writer import Array

SIZES: Mapping[str, int] = {"batch": 2, "sequence": 16}


def example_feeds(
    model: onnx.ModelProto,
    sizes: Mapping[str, int] | None = None,
    *,
    vocabulary: int = 1000,
    seed: int = 0,
) -> dict[str, Array]:
    """Seeded inputs by name.

    sizes: the length of each symbolic dim; by default SIZES. Float inputs are standard normal.
    Integer inputs go by name: a mask of ones that ends early in the last row of a batch, segment
    ids 0 and 1, and otherwise token ids below `vocabulary`.
    """
    generator = np.random.default_rng(seed)
    constants = {tensor.name for tensor in model.graph.initializer}
    feeds: dict[str, Array] = {}
    for value in model.graph.input:
        if value.name in constants:
            continue
        tensor = value.type.tensor_type
        shape = [_length(value.name, dim, {**SIZES, **(sizes or {})}) for dim in tensor.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if np.issubdtype(dtype, np.integer):
            feeds[value.name] = integers(value.name, shape, vocabulary, generator).astype(dtype)
        else:
            feeds[value.name] = generator.standard_normal(shape, np.float32).astype(dtype)
    return feeds


def integers(
    name: str, shape: Sequence[int], vocabulary: int, generator: np.random.Generator
) -> Array:
    """int64 of `shape`, of the kind that the name of the input asks for."""
    if name == "attention_mask":
        mask = np.ones(shape, np.int64)
        if shape[0] > 1:
            mask[-1, shape[1] - shape[1] // 4 :] = 0
        return mask
    low, high = (0, 2) if name == "token_type_ids" else (1, vocabulary)
    return generator.integers(low, high, tuple(shape))


def _length(name: str, dim: onnx.TensorShapeProto.Dimension, sizes: Mapping[str, int]) -> int:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    if dim.dim_param not in sizes:
        raise ValueError(f"input {name}: give a size for the dim {dim.dim_param!r}")
    return sizes[dim.dim_param]
