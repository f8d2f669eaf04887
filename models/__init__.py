"""Models to compile, test and measure with: ONNX graphs with seeded weights.

model = build("bert", "float16", layers=2, hidden=64, heads=4)
model = build("bert", **TINY["bert"])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx

from models.bert import bert
from models.feeds import example_feeds
from models.gpt2 import gpt2
from models.llama import llama, tiny_llama
from models.minilm import minilm
from models.mlp import mlp
from models.mobilenet import mobilenet
from models.primitives import attention, conv_block, layernorm, softmax
from models.resnet import resnet
from models.vit import vit
from models.writer import save

__all__ = ["MODELS", "TINY", "build", "example_feeds", "save"]

MODELS: dict[str, Callable[..., onnx.ModelProto]] = {
    "mlp": mlp,
    "softmax": softmax,
    "layernorm": layernorm,
    "attention": attention,
    "conv_block": conv_block,
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "tiny_llama": tiny_llama,
    "vit": vit,
    "resnet50": resnet,
    "mobilenet": mobilenet,
    "minilm": minilm,
}

# Sizes for tests: two layers, 64 wide, a thousand words. minilm has trained weights of one size.
TINY: Mapping[str, Mapping[str, int]] = {
    "mlp": {"inputs": 24, "hidden": 32},
    "softmax": {"columns": 48},
    "layernorm": {"hidden": 64},
    "attention": {"heads": 2, "head_dim": 16},
    "conv_block": {"hidden": 8, "image": 12},
    "bert": {"layers": 2, "hidden": 64, "heads": 4, "vocabulary": 1000, "positions": 64},
    "gpt2": {"layers": 2, "hidden": 64, "heads": 4, "vocabulary": 1000, "positions": 64},
    "llama": {
        "layers": 2,
        "hidden": 64,
        "heads": 4,
        "kv_heads": 2,
        "intermediate": 176,
        "vocabulary": 1000,
    },
    "tiny_llama": {},
    "vit": {"layers": 2, "hidden": 64, "heads": 4, "image": 32, "patch": 8, "classes": 10},
    "resnet50": {"layers": 14, "hidden": 8, "image": 32, "classes": 10},
    "mobilenet": {"stages": 2, "hidden": 16, "image": 32, "classes": 10},
    "minilm": {},
}


def build(name: str, dtype: str = "float32", **dims: int | bool | None) -> onnx.ModelProto:
    """Build one of MODELS.

    dtype: float32, float16 or bfloat16. dims: keywords of the model's builder; `batch` and
    `sequence` stay symbolic unless they are given.
    """
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}; choose one of {', '.join(MODELS)}")
    return MODELS[name](dtype=dtype, **dims)
