"""Models as the two PyTorch exporters write them: random weights, real spellings.

A transformers configuration gives the architecture and the weights are random, so nothing is
downloaded. torch and transformers are imported only inside the functions that need them.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx

Exporter = Literal["torchscript", "dynamo"]
Size = Literal["tiny", "base"]
Array = np.ndarray[Any, np.dtype[Any]]

NAMES = ("bert", "gpt2", "llama", "vit", "resnet")
OPSET: Mapping[str, int] = {"torchscript": 17, "dynamo": 20}

# transformers 5 builds causal masks with aten::diff, which the TorchScript exporter cannot write.
_DYNAMO_ONLY = frozenset({"gpt2", "llama"})
_IMAGE_MODELS = frozenset({"vit", "resnet"})
_HEADS: Mapping[str, str] = {
    "bert": "BertModel",
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "vit": "ViTForImageClassification",
    "resnet": "ResNetForImageClassification",
}
# 64 wide with weights of 0.1: scores spread enough for a wrong softmax to show.
_TINY: Mapping[str, Mapping[str, Any]] = {
    "bert": {
        "initializer_range": 0.1,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 1000,
        "max_position_embeddings": 64,
    },
    "gpt2": {
        "initializer_range": 0.1,
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "vocab_size": 1000,
        "n_positions": 64,
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
    "llama": {
        "initializer_range": 0.1,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 1000,
        "max_position_embeddings": 64,
    },
    "vit": {
        "initializer_range": 0.1,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "image_size": 32,
        "patch_size": 8,
    },
    "resnet": {
        "embedding_size": 16,
        "hidden_sizes": [32, 64],
        "depths": [1, 2],
        "layer_type": "basic",
    },
}
# What the library's own defaults give is the base size, but for Llama: 16 layers, 1,024 wide, so
# that the float32 file stays below protobuf's 2 GiB.
_BASE: Mapping[str, Mapping[str, Any]] = {
    "bert": {},
    "gpt2": {},
    "llama": {
        "hidden_size": 1024,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "intermediate_size": 2816,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
    },
    "vit": {},
    "resnet": {},
}


def input_names(name: str) -> tuple[str, ...]:
    """The inputs of a model, in the order in which the exported graph lists them."""
    if name in _IMAGE_MODELS:
        return ("pixel_values",)
    mask = ("input_ids", "attention_mask")
    return (*mask, "token_type_ids") if name == "bert" else mask


def export_feeds(
    name: str,
    size: Size = "tiny",
    dtype: str = "float32",
    *,
    batch: int | None = None,
    length: int | None = None,
    seed: int = 0,
) -> dict[str, Array]:
    """Example inputs by name, of the shapes that `export` fixes when it is given the same ones.

    Token models: int64 [batch, length]; tiny [2, 16], base [1, 128]. The mask of the last row of
    a batch ends early. Image models: dtype [batch, 3, side, side], standard normal, side 32 or 224.
    """
    if name not in NAMES:
        raise ValueError(f"unknown model {name!r}; choose one of {', '.join(NAMES)}")
    generator = np.random.default_rng(seed)
    rows = batch or (2 if size == "tiny" else 1)
    columns = length or (16 if size == "tiny" else 128)
    if name in _IMAGE_MODELS:
        side = 32 if size == "tiny" else 224
        return {"pixel_values": generator.standard_normal((rows, 3, side, side)).astype(dtype)}
    mask = np.ones((rows, columns), np.int64)
    if rows > 1:
        mask[-1, columns - columns // 4 :] = 0
    feeds = {
        "input_ids": generator.integers(1, 1000, (rows, columns)),
        "attention_mask": mask,
        "token_type_ids": generator.integers(0, 2, (rows, columns)),
    }
    return {key: feeds[key] for key in input_names(name)}


def export(
    name: str,
    exporter: Exporter = "torchscript",
    size: Size = "tiny",
    dtype: str = "float32",
    dynamic: bool = False,
    *,
    attention: str | None = None,
    batch: int | None = None,
    length: int | None = None,
    seed: int = 0,
) -> onnx.ModelProto:
    """Export one of NAMES with random weights.

    dtype: "float32" or "float16" (the torch module is cast before the export).
    dynamic: batch and sequence length stay symbolic (image models: batch only). Otherwise `batch`
    and `length` fix them, by default to the shapes of `export_feeds`.
    attention: "sdpa" or "eager", the two spellings in transformers. The default is sdpa, except
    for float16 through TorchScript, which writes an ill-typed float32 mask for it.
    Raises ValueError where the exporter cannot write the model.
    """
    if exporter not in OPSET:
        raise ValueError(f"unknown exporter {exporter!r}; choose torchscript or dynamo")
    if dtype not in ("float32", "float16"):
        raise ValueError(f"dtype {dtype!r}: exports are float32 or float16")
    if exporter == "torchscript" and name in _DYNAMO_ONLY:
        raise ValueError(
            f"{name}: the TorchScript exporter cannot write the causal mask of transformers 5 "
            'and later (aten::diff); use exporter="dynamo"'
        )
    if attention is None:
        attention = "eager" if (exporter, dtype) == ("torchscript", "float16") else "sdpa"
    # torch.export takes a dimension of 1 for a constant.
    feeds = export_feeds(name, size, dtype, batch=2 if dynamic else batch, length=length, seed=seed)
    module = torch_module(name, size, dtype, attention, seed)
    return export_module(name, module, feeds, exporter, dynamic)


def export_module(
    name: str,
    module: Any,
    feeds: Mapping[str, Array],
    exporter: Exporter = "dynamo",
    dynamic: bool = False,
) -> onnx.ModelProto:
    """Export what `torch_module` made, for inputs of the shapes of `feeds`."""
    write = _export_torchscript if exporter == "torchscript" else _export_dynamo
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return write(name, module, feeds, dynamic)


def torch_module(
    name: str,
    size: Size = "tiny",
    dtype: str = "float32",
    attention: str = "sdpa",
    seed: int = 0,
    *,
    inputs: Sequence[str] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Any:
    """A torch module in inference mode: inputs by position, a plain tuple as its result.

    inputs: the names of its inputs, by default `input_names`; a mask that is left out is all ones.
    config: options of the transformers configuration that replace those of the size.
    """
    import torch
    import transformers

    model_class = getattr(transformers, _HEADS[name])
    options = {**(_TINY if size == "tiny" else _BASE)[name], **(config or {})}
    if name != "resnet":
        options["attn_implementation"] = attention
    if name in ("gpt2", "llama"):
        options["use_cache"] = False
    torch.manual_seed(seed)
    model = model_class(model_class.config_class(**options)).eval()
    randomise_vectors(model)
    names = inputs or input_names(name)

    class Positional(torch.nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: Any) -> Any:
            return self.model(**dict(zip(names, inputs, strict=True))).to_tuple()

    module = Positional().eval()
    return module.half() if dtype == "float16" else module


def randomise_vectors(model: Any) -> None:
    """Move biases, norm scales and running statistics off the zeros and ones they start at.

    Equal parameters hide mistakes, and the TorchScript exporter merges them.
    """
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.05)
        for key, buffer in model.named_buffers():
            if key.endswith("running_mean"):
                buffer.normal_(0.0, 0.1)
            elif key.endswith("running_var"):
                buffer.uniform_(0.5, 1.5)


def _output_names(name: str) -> list[str]:
    return ["last_hidden_state", "pooler_output"] if name == "bert" else ["logits"]


def _export_torchscript(
    name: str, module: Any, feeds: Mapping[str, Array], dynamic: bool
) -> onnx.ModelProto:
    import torch

    outputs = _output_names(name)
    axes = {0: "batch"} if name in _IMAGE_MODELS else {0: "batch", 1: "sequence"}
    dynamic_axes = {key: axes for key in [*feeds, outputs[0]]}
    dynamic_axes |= {key: {0: "batch"} for key in outputs[1:]}
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        torch.onnx.export(
            module,
            tuple(torch.from_numpy(feed) for feed in feeds.values()),
            path,
            input_names=list(feeds),
            output_names=outputs,
            opset_version=OPSET["torchscript"],
            dynamic_axes=dynamic_axes if dynamic else None,
            dynamo=False,
        )
        return onnx.load(path)


def _export_dynamo(
    name: str, module: Any, feeds: Mapping[str, Array], dynamic: bool
) -> onnx.ModelProto:
    import torch

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    axes: dict[int, Any] = {0: torch.export.Dim("batch", min=1, max=4096)}
    if name not in _IMAGE_MODELS:
        axes[1] = torch.export.Dim("sequence", min=2, max=_positions(module))
    program = torch.onnx.export(
        module,
        tuple(torch.from_numpy(feed) for feed in feeds.values()),
        input_names=list(feeds),
        output_names=_output_names(name),
        opset_version=OPSET["dynamo"],
        dynamic_shapes=(tuple(axes for _ in feeds),) if dynamic else None,
        dynamo=True,
        verbose=False,
    )
    if program is None:
        raise ValueError(f"{name}: the dynamo exporter returned no program")
    proto: onnx.ModelProto = program.model_proto
    return proto


def _positions(module: Any) -> int:
    """The longest sequence that the model's position table holds."""
    return int(module.model.config.max_position_embeddings)
