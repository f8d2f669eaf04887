"""The errors of ONNX Runtime by name: what fuser raises in their place."""

from fuser.errors import (
    DeviceError,
    FuserError,
    InvalidModelError,
    UnsupportedError,
    UsageError,
)
from fuser.frontends.onnx.settings import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
)

EPFail = EngineError = DeviceError
Fail = RuntimeException = FuserError
InvalidArgument = NoSuchFile = NoModel = UsageError
InvalidGraph = InvalidProtobuf = InvalidModelError
NotImplemented = UnsupportedError

__all__ = [
    "EPFail",
    "EngineError",
    "ExecutionMode",
    "ExecutionOrder",
    "Fail",
    "GraphOptimizationLevel",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "NoModel",
    "NoSuchFile",
    "NotImplemented",
    "RunOptions",
    "RuntimeException",
    "SessionOptions",
]
