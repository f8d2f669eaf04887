"""Small models of the transformers library with random weights, through both routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
T = pytest.importorskip("transformers")

import fuser  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.export,
    pytest.mark.filterwarnings("ignore"),
]

TOKENS = [[5, 9, 3, 30, 31, 7, 22, 41, 8], [4, 4, 17, 3, 28, 40, 6, 12, 10]]


def tokens() -> dict[str, Any]:
    return {"input_ids": torch.tensor(TOKENS)}


def pixels(size: int) -> Callable[[], dict[str, Any]]:
    return lambda: {"pixel_values": torch.randn(1, 3, size, size)}


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
STAGES = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}

MODELS: dict[str, tuple[Callable[[], Any], Callable[[], dict[str, Any]]]] = {
    "bert": (
        lambda: T.BertModel(T.BertConfig(vocab_size=60, intermediate_size=64, **SMALL)),
        lambda: {**tokens(), "attention_mask": torch.tensor([[1] * 9, [1] * 6 + [0] * 3])},
    ),
    "gpt2": (
        lambda: T.GPT2LMHeadModel(
            T.GPT2Config(vocab_size=60, n_embd=32, n_layer=2, n_head=4, use_cache=False)
        ),
        tokens,
    ),
    "llama": (
        lambda: T.LlamaForCausalLM(
            T.LlamaConfig(
                vocab_size=60, num_key_value_heads=2, intermediate_size=64, use_cache=False, **SMALL
            )
        ),
        tokens,
    ),
    "t5": (
        lambda: T.T5Model(
            T.T5Config(
                vocab_size=60, d_model=32, num_layers=2, num_heads=4, d_kv=8, d_ff=64,
                use_cache=False,
            )
        ),
        lambda: {**tokens(), "decoder_input_ids": torch.tensor(TOKENS)[:, :4]},
    ),
    "whisper encoder": (
        lambda: T.WhisperModel(
            T.WhisperConfig(
                vocab_size=60, d_model=32, encoder_layers=2, decoder_layers=1,
                encoder_attention_heads=4, encoder_ffn_dim=64, num_mel_bins=8,
                max_source_positions=10, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                decoder_start_token_id=1,
            )
        ).encoder,
        lambda: {"input_features": torch.randn(1, 8, 20)},
    ),
    "vit": (
        lambda: T.ViTModel(
            T.ViTConfig(intermediate_size=64, image_size=32, patch_size=8, **SMALL)
        ),
        pixels(32),
    ),
    "convnext": (lambda: T.ConvNextModel(T.ConvNextConfig(**STAGES)), pixels(64)),
    "swin": (
        lambda: T.SwinModel(
            T.SwinConfig(
                image_size=32, patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[2, 4],
                window_size=4,
            )
        ),
        pixels(32),
    ),
    "mobilenet": (
        lambda: T.MobileNetV2Model(T.MobileNetV2Config(depth_multiplier=0.35, image_size=32)),
        pixels(32),
    ),
    "efficientnet": (
        lambda: T.EfficientNetModel(
            T.EfficientNetConfig(
                image_size=64, width_coefficient=0.25, depth_coefficient=0.3, hidden_dim=320
            )
        ),
        pixels(64),
    ),
    "segformer": (
        lambda: T.SegformerModel(
            T.SegformerConfig(num_attention_heads=[1, 2, 2, 4], decoder_hidden_size=16, **STAGES)
        ),
        pixels(64),
    ),
}  # fmt: skip


class First(torch.nn.Module):  # type: ignore[misc]
    """The first output of a model."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Any) -> Any:
        return self.model(**inputs)[0]


@pytest.mark.parametrize("route", ["export", "torch.compile"])
@pytest.mark.parametrize("name", MODELS)
def test_matches_eager(name: str, route: str) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    make, draw = MODELS[name]
    module, inputs = First(make()).eval(), draw()
    with torch.no_grad():
        wanted = module(**inputs)
        if route == "export":
            compiled = fuser.compile(module)
            kernels = compiled.report(**inputs).kernels
            assert kernels.after < 0.6 * kernels.before
        else:
            compiled = torch.compile(module, backend="fuser")
        difference = (compiled(**inputs) - wanted).norm() / wanted.norm().clamp_min(1e-30)
    assert difference < 1e-5
