"""ONNX Runtime's names: `import fuser.onnxruntime as ort`.

Programs written for ONNX Runtime run on fuser with that import. Packages that import onnxruntime
themselves are given this one by

    with fuser.onnxruntime.imports("optimum"):
        from optimum.onnxruntime import ORTModelForFeatureExtraction

docs/onnxruntime.md says what is there, what is accepted without a meaning, and what is an error.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from fuser.base.imports import answered
from fuser.frontends.onnx.io_binding import IOBinding
from fuser.frontends.onnx.node_args import ModelMetadata
from fuser.frontends.onnx.node_args import TensorInfo as NodeArg
from fuser.frontends.onnx.session import InferenceSession
from fuser.frontends.onnx.settings import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
    get_all_providers,
    get_available_providers,
    get_device,
)
from fuser.frontends.onnx.values import OrtDevice, OrtValue

__version__ = "1.23.0"
"""The version of ONNX Runtime whose members these are."""

SessionIOBinding = IOBinding

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtDevice",
    "OrtValue",
    "RunOptions",
    "SessionIOBinding",
    "SessionOptions",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "imports",
    "preload_dlls",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
]


def imports(*packages: str) -> AbstractContextManager[None]:
    """Answer `import onnxruntime` with this module in modules of these packages that are loaded
    inside of the block (`fuser/base/imports.py`).

    Raises UsageError for a package that is loaded already.
    """
    return answered({"onnxruntime": "fuser.onnxruntime"}, *packages)


def get_version_string() -> str:
    """The version of ONNX Runtime whose names these are."""
    return __version__


def get_build_info() -> str:
    """The version of fuser."""
    import fuser

    return f"fuser {fuser.__version__}"


def set_default_logger_severity(severity: int) -> None:
    """No meaning here: fuser logs by Python's logging, under "fuser"."""


def set_default_logger_verbosity(verbosity: int) -> None:
    """No meaning here."""


def set_seed(seed: int) -> None:
    """No meaning here: a random operator has its seed in the model, or draws anew."""


def preload_dlls(
    cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str = ""
) -> None:
    """No meaning here: no libraries are needed."""


def enable_telemetry_events() -> None:
    """No meaning here: nothing is sent."""


def disable_telemetry_events() -> None:
    """No meaning here: nothing is sent."""
