"""Read ONNX models: `load_model` checks one, `import_onnx` makes a Graph of it."""

from fuser.frontends.onnx.importer import (  # importing a family registers its operators
    activation,
    attention,
    collective,
    contraction,
    contrib,
    contrib_attention,
    contrib_quantized,
    control,
    elementwise,
    indexing,
    movement,
    normalization,
    pooling,
    quantization,
    recurrent,
    reduction,
    resize,
    sampling,
    shape,
    signal,
    training,
)
from fuser.frontends.onnx.importer.loading import (
    ModelSource,
    check_types,
    load_mapped,
    load_model,
)
from fuser.frontends.onnx.importer.mapped import MappedModel
from fuser.frontends.onnx.importer.reader import import_onnx, narrow_types, signature
from fuser.frontends.onnx.importer.registry import supported_ops

FAMILIES = (
    activation,
    attention,
    collective,
    contraction,
    contrib,
    contrib_attention,
    contrib_quantized,
    control,
    elementwise,
    indexing,
    movement,
    normalization,
    pooling,
    quantization,
    recurrent,
    reduction,
    resize,
    sampling,
    shape,
    signal,
    training,
)

__all__ = [
    "FAMILIES",
    "MappedModel",
    "ModelSource",
    "check_types",
    "import_onnx",
    "load_mapped",
    "load_model",
    "narrow_types",
    "signature",
    "supported_ops",
]
