"""Small models of the transformers library, and an LSTM tagger, with random weights.

    module = zoo_module("gpt2-cache")           # tensors by position in, a tuple of tensors out
    feeds = zoo_feeds("gpt2-cache", past=4)     # arrays by input name, in the order of the module's

A configuration gives the architecture; nothing is downloaded. Needs torch and transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import transformers as tf

from models.exports import Array, randomise_vectors

VOCABULARY = 96
BATCH, LENGTH, HEADS, SIZE = 2, 9, 4, 8
"""Of token models: rows, tokens a row, attention heads, features of a head."""

_SMALL: dict[str, Any] = {
    "initializer_range": 0.1,  # scores that spread enough for a wrong softmax to show
    "hidden_size": HEADS * SIZE,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "vocab_size": VOCABULARY,
}
_STAGES: dict[str, Any] = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}


class _Named(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """A model that takes its inputs by position. results: the outputs to keep, by name."""

    def __init__(self, model: Any, inputs: Sequence[str], results: Sequence[str]) -> None:
        super().__init__()
        self.model, self.inputs, self.results = model, tuple(inputs), tuple(results)

    def forward(self, *tensors: Any) -> tuple[Any, ...]:
        found = self.model(**dict(zip(self.inputs, tensors, strict=True)))
        return tuple(found[name] for name in self.results)


class _Cached(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """A decoder with its key-value cache as inputs and outputs: keys and values, layer by layer."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any, *past: Any) -> tuple[Any, ...]:
        cache = tf.DynamicCache(list(zip(past[::2], past[1::2], strict=True)))
        found = self.model(
            input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache,
            use_cache=True,
        )  # fmt: skip
        layers = found.past_key_values.layers
        return (found.logits, *(x for layer in layers for x in (layer.keys, layer.values)))


class _Tagger(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """Embedding, a bidirectional LSTM of two layers, a score for each tag."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(VOCABULARY, 16)
        self.lstm = torch.nn.LSTM(16, 12, num_layers=2, bidirectional=True, batch_first=True)
        self.tags = torch.nn.Linear(24, 7)

    def forward(self, input_ids: Any) -> tuple[Any, ...]:
        return (self.tags(self.lstm(self.table(input_ids))[0]).log_softmax(-1),)


def _tokens(rng: np.random.Generator, *names: str, past: int = 0) -> dict[str, Array]:
    mask = np.ones((BATCH, past + LENGTH), np.int64)
    mask[-1, -LENGTH // 3 :] = 0
    all_feeds = {
        "input_ids": rng.integers(1, VOCABULARY, (BATCH, LENGTH)),
        "attention_mask": mask,
        "token_type_ids": rng.integers(0, 2, (BATCH, LENGTH)),
        "encoder_hidden_states": _normal(rng, BATCH, LENGTH + 2, HEADS * SIZE),
    }
    return {name: all_feeds[name] for name in names}


def _normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape, np.float32)


def _images(side: int) -> Callable[[np.random.Generator], dict[str, Array]]:
    return lambda rng: {"pixel_values": _normal(rng, BATCH, 3, side, side)}


def _texts(*names: str) -> Callable[[np.random.Generator], dict[str, Array]]:
    return lambda rng: _tokens(rng, *names)


def _gpt2() -> Any:
    config = tf.GPT2Config(
        vocab_size=VOCABULARY, n_embd=HEADS * SIZE, n_layer=2, n_head=HEADS, n_positions=64,
        initializer_range=0.1, use_cache=False, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return tf.GPT2LMHeadModel(config)


def _llama() -> Any:
    config = tf.LlamaConfig(
        **_SMALL, num_key_value_heads=2, intermediate_size=64, max_position_embeddings=64,
        use_cache=False,
    )  # fmt: skip
    return tf.LlamaForCausalLM(config)


def _t5() -> Any:
    config = tf.T5Config(
        vocab_size=VOCABULARY, d_model=HEADS * SIZE, num_layers=2, num_heads=HEADS, d_kv=SIZE,
        d_ff=64, use_cache=False,
    )  # fmt: skip
    return tf.T5Model(config)


def _whisper() -> Any:
    config = tf.WhisperConfig(
        vocab_size=VOCABULARY, d_model=HEADS * SIZE, encoder_layers=2,
        encoder_attention_heads=HEADS, encoder_ffn_dim=64, decoder_layers=1,
        decoder_attention_heads=HEADS, decoder_ffn_dim=64,
        num_mel_bins=8, max_source_positions=10, init_std=0.1, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    return tf.WhisperModel(config).encoder


_Make = tuple[Callable[[], Any], Callable[[np.random.Generator], dict[str, Array]], str]
_MODELS: dict[str, _Make] = {
    "bert": (
        lambda: tf.BertModel(tf.BertConfig(**_SMALL, intermediate_size=64)),
        _texts("input_ids", "attention_mask", "token_type_ids"),
        "last_hidden_state pooler_output",
    ),
    "distilbert": (
        lambda: tf.DistilBertModel(
            tf.DistilBertConfig(
                vocab_size=VOCABULARY, dim=HEADS * SIZE, n_layers=2, n_heads=HEADS, hidden_dim=64,
                initializer_range=0.1,
            )
        ),
        _texts("input_ids", "attention_mask"),
        "last_hidden_state",
    ),
    "gpt2": (_gpt2, _texts("input_ids", "attention_mask"), "logits"),
    "gpt2-cache": (_gpt2, _texts("input_ids", "attention_mask"), ""),
    "llama": (_llama, _texts("input_ids", "attention_mask"), "logits"),
    "llama-cache": (_llama, _texts("input_ids", "attention_mask"), ""),
    "t5-encoder": (
        lambda: _t5().encoder,
        _texts("input_ids", "attention_mask"),
        "last_hidden_state",
    ),
    "t5-decoder": (
        lambda: _t5().decoder,
        _texts("input_ids", "attention_mask", "encoder_hidden_states"),
        "last_hidden_state",
    ),
    "whisper-encoder": (
        _whisper,
        lambda rng: {"input_features": _normal(rng, BATCH, 8, 20)},
        "last_hidden_state",
    ),
    "vit": (
        lambda: tf.ViTForImageClassification(
            tf.ViTConfig(
                **{k: v for k, v in _SMALL.items() if k != "vocab_size"},
                intermediate_size=64, image_size=32, patch_size=8,
            )
        ),
        _images(32),
        "logits",
    ),
    "swin": (
        lambda: tf.SwinForImageClassification(
            tf.SwinConfig(
                image_size=32, patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[2, 4],
                window_size=4, initializer_range=0.1,
            )
        ),
        _images(32),
        "logits",
    ),
    "convnext": (
        lambda: tf.ConvNextForImageClassification(
            tf.ConvNextConfig(**_STAGES, initializer_range=0.1)
        ),
        _images(64),
        "logits",
    ),
    "mobilenet": (
        lambda: tf.MobileNetV2ForImageClassification(
            tf.MobileNetV2Config(depth_multiplier=0.35, image_size=32, initializer_range=0.2)
        ),
        _images(32),
        "logits",
    ),
    "efficientnet": (
        lambda: tf.EfficientNetForImageClassification(
            tf.EfficientNetConfig(
                image_size=64, width_coefficient=0.25, depth_coefficient=0.3, hidden_dim=320,
                initializer_range=0.2,
            )
        ),
        _images(64),
        "logits",
    ),
    "segformer": (
        lambda: tf.SegformerForSemanticSegmentation(
            tf.SegformerConfig(
                **_STAGES, num_attention_heads=[1, 2, 2, 4], decoder_hidden_size=16,
                initializer_range=0.1,
            )
        ),
        _images(64),
        "logits",
    ),
    "resnet": (
        lambda: tf.ResNetForImageClassification(
            tf.ResNetConfig(embedding_size=16, hidden_sizes=[32, 64], depths=[1, 2])
        ),
        _images(32),
        "logits",
    ),
    "lstm-tagger": (_Tagger, _texts("input_ids"), ""),
}  # fmt: skip

ZOO = tuple(_MODELS)
CACHED = ("gpt2-cache", "llama-cache")
"""Models with a key-value cache; `past` is its length."""


def zoo_module(name: str, dtype: str = "float32", seed: int = 0, attention: str = "sdpa") -> Any:
    """The torch module of a model, in inference mode. attention: the spelling in transformers,
    "sdpa" or "eager"."""
    torch.manual_seed(seed)
    make, feeds, results = _MODELS[name]
    model = make().eval()
    if attention != "sdpa" and hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation(attention)
    randomise_vectors(model)
    module = model
    if name in CACHED:
        module = _Cached(model)
    elif results:
        module = _Named(model, list(feeds(np.random.default_rng(0))), results.split())
    return module.eval().to(getattr(torch, dtype))


def zoo_feeds(
    name: str, dtype: str = "float32", *, past: int = 4, seed: int = 0
) -> dict[str, Array]:
    """Example inputs by name, in the order in which the module takes them; floats in `dtype`.
    past: the length of the key-value cache of the models that have one."""
    rng = np.random.default_rng(seed)
    if name in CACHED:
        feeds = _tokens(rng, "input_ids", "attention_mask", past=past)
        groups = HEADS if name == "gpt2-cache" else 2
        for layer in range(2):
            for kind in ("key", "value"):
                feeds[f"past.{layer}.{kind}"] = _normal(rng, BATCH, groups, past, SIZE)
    else:
        feeds = _MODELS[name][1](rng)
    return {
        key: array.astype(dtype) if array.dtype.kind == "f" else array
        for key, array in feeds.items()
    }
