"""Flipped bits in real models: read, checked and compiled as far as they go."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fuser.errors import FuserError
from fuser.frontends.onnx.model import open_model
from models import TINY, build

NAMES = ("softmax", "layernorm", "mlp", "conv_block", "attention")


def base_models() -> list[bytes]:
    """Small models of a few kinds, their weights cut down so that flips meet structure."""
    return [build(name, **TINY[name]).SerializeToString() for name in NAMES]


def flipped(count: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """(label, bytes) of models with one bit flipped; half the flips avoid the weights."""
    rng = np.random.default_rng(seed)
    models = base_models()
    for number in range(count):
        data = bytearray(models[number % len(models)])
        reach = len(data) if number % 4 == 0 else min(len(data), 3000)
        place, bit = int(rng.integers(reach)), int(rng.integers(8))
        if number % 4 == 1:
            place = len(data) - 1 - place
        data[place] ^= 1 << bit
        yield f"{NAMES[number % len(models)]} bit {bit} of byte {place}", bytes(data)


def outcome(data: bytes) -> str:
    """ "graph" if the model is read, or the class of the error. Raises what is no FuserError."""
    try:
        model = open_model(data)
        model.graph({name: 2 for name in _symbols(model.inputs)})
    except FuserError as error:
        assert "\n" not in str(error).strip() or len(str(error)) < 2000
        return type(error).__name__
    return "graph"


def _symbols(inputs: dict[str, object]) -> list[str]:
    from fuser.graph.dims import symbols_of

    return sorted({s for type in inputs.values() for dim in type.shape for s in symbols_of(dim)})  # type: ignore[attr-defined]
