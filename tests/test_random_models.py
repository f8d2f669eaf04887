"""Builders at random widths, shapes, dtypes, thread counts: against the float64 oracle."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fuser.pipeline.devices import Device
from models import TINY, build, example_feeds
from tests.test_models import DEVICES, check

LENGTHS = (1, 3, 7, 17, 33, 100, 129, 257)
HEAD_WIDTHS = (2, 6, 8, 10, 16, 24, 34, 64, 80)
OPTIONS: dict[str, list[dict[str, bool]]] = {
    "attention": [{}, {"causal": True}, {"mask": True}, {"causal": True, "modern": True}],
    "llama": [{}, {"modern": True}],
    "softmax": [{}, {"decomposed": True}],
    "layernorm": [{}, {"decomposed": True}],
}
NAMES = [name for name in TINY if name not in ("minilm", "tiny_llama")]


def draw(rng: random.Random, name: str) -> dict[str, Any]:
    """Sizes of a builder: half of them as in TINY, the others odd, small or wide."""
    sizes = dict(TINY[name])
    for key in sizes:
        if rng.random() < 0.5:
            continue
        if key == "hidden" and "heads" in sizes:
            sizes[key] = sizes["heads"] * rng.choice(HEAD_WIDTHS)
        elif key in ("inputs", "columns", "hidden", "intermediate"):
            sizes[key] = rng.choice(LENGTHS)
        elif key == "head_dim":
            sizes[key] = rng.choice(HEAD_WIDTHS)
        elif key == "image" and name == "conv_block":
            sizes[key] = rng.choice((1, 5, 7, 13, 20))
        elif key == "vocabulary":
            sizes[key] = rng.choice((2, 17, 129, 1000))
    return sizes | rng.choice(OPTIONS.get(name, [{}]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "seed", [*range(20), *(pytest.param(s, marks=pytest.mark.slow) for s in range(20, 300))]
)
def test_random_model(seed: int, device: Device) -> None:
    rng = random.Random(seed)
    name = NAMES[seed % len(NAMES)]
    dtype = rng.choice(("float32", "float32", "float16"))
    sizes = draw(rng, name)
    shape = {"batch": rng.choice((1, 2, 3, 7)), "sequence": rng.choice((1, 2, 7, 17, 31, 64))}
    fusion, threads = rng.random() < 0.85, rng.choice((1, 2, 3))
    model = build(name, dtype, **sizes)
    feeds = example_feeds(model, shape, vocabulary=sizes.get("vocabulary", 1000))
    check(model, feeds, dtype, device, fusion=fusion, threads=threads)
