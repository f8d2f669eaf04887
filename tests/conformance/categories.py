"""What kind of feature each test of the onnx suite needs."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import ModelProto, TensorProto, TypeProto

DENSE_TYPES = frozenset(
    getattr(TensorProto, name)
    for name in (
        "DOUBLE", "FLOAT", "FLOAT16", "BFLOAT16", "INT8", "INT16", "INT32", "INT64",
        "UINT8", "UINT16", "UINT32", "UINT64", "BOOL",
    )
)  # fmt: skip

# The first category with a fitting operator wins.
_OPERATORS = {
    "control flow": {"If", "Loop", "Scan"},
    "random": {"Bernoulli", "RandomNormal", "RandomNormalLike", "RandomUniform",
               "RandomUniformLike", "Multinomial"},
    "Fourier": {"DFT", "STFT"},
    "data-dependent shape": {"NonZero", "Unique", "Compress", "NonMaxSuppression"},
}  # fmt: skip

ORDER = (
    "dense core", "narrow numbers", "strings", "sequences, optionals, maps", "control flow",
    "data-dependent shape", "training", "Fourier", "image decoding", "ai.onnx.ml", "random",
    "simple", "pytorch-converted", "pytorch-operator",
)  # fmt: skip
"""Every category, in the order of the table."""


def categorize(kind: str, name: str, model: ModelProto | None) -> str:
    """The category of a test. kind: the class it belongs to ("Node", "Simple", ...)."""
    if kind != "Node":
        return {"PyTorchConverted": "pytorch-converted", "PyTorchOperator": "pytorch-operator"}.get(
            kind, "simple"
        )
    assert model is not None
    operators = {node.op_type for node in model.graph.node}
    domains = {node.domain for node in model.graph.node}
    types = [info.type for info in (*model.graph.input, *model.graph.output)]
    elements = {element for type in types for element in _elements(type)}
    if any(domain.startswith("ai.onnx.preview") for domain in domains):
        return "training"
    if "ai.onnx.ml" in domains:
        return "ai.onnx.ml"
    if "ImageDecoder" in operators:
        return "image decoding"
    if any(type.WhichOneof("value") != "tensor_type" for type in types):
        return "sequences, optionals, maps"
    if operators & _OPERATORS["control flow"]:
        return "control flow"
    if TensorProto.STRING in elements or "TfIdfVectorizer" in operators:
        return "strings"
    if elements - DENSE_TYPES:
        return "narrow numbers"
    for category in ("random", "Fourier", "data-dependent shape"):
        if operators & _OPERATORS[category]:
            return category
    return "dense core"


def _elements(type: TypeProto) -> Iterator[int]:
    match type.WhichOneof("value"):
        case "tensor_type":
            yield type.tensor_type.elem_type
        case "sequence_type":
            yield from _elements(type.sequence_type.elem_type)
        case "optional_type":
            yield from _elements(type.optional_type.elem_type)
