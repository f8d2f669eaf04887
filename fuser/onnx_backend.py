"""fuser as a backend of the onnx package: `fuser.onnx_backend.prepare(model).run(inputs)`."""

from fuser.frontends.onnx.backend import (
    FuserBackend,
    FuserRep,
    is_compatible,
    prepare,
    run_model,
    run_node,
    supports_device,
)

__all__ = [
    "FuserBackend",
    "FuserRep",
    "is_compatible",
    "prepare",
    "run_model",
    "run_node",
    "supports_device",
]
