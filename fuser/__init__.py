"""fuser: a graph-level fusion compiler that generates tile kernels.

import fuser
plan = fuser.compile("model.onnx", device="auto", dims={"batch": 8})
outputs = plan.run({"input_ids": ids})
print(plan.report().to_dict())
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import fuser.base.forks  # noqa: F401  before anything is loaded that a fork could cut in two
from fuser.errors import CompilerAbsentError, FuserError

if TYPE_CHECKING:
    from fuser.base.limits import Limits
    from fuser.frontends.compile import compile
    from fuser.frontends.load import load
    from fuser.frontends.numpy.jit import cond, jit, spec, trace, while_loop
    from fuser.frontends.onnx.host_operators import register_host_op
    from fuser.frontends.onnx.hosted import HostedPlan
    from fuser.frontends.onnx.kernels import register_kernel
    from fuser.frontends.onnx.session import InferenceSession
    from fuser.language.decorators import kernel
    from fuser.pipeline.dynamic import DynamicPlan
    from fuser.pipeline.fusion import Fusion
    from fuser.pipeline.stateful import StatefulPlan
    from fuser.runtime.plan import Plan
    from fuser.runtime.sharded import ShardedPlan
    from fuser.runtime.state import State

__version__ = "0.1.0"
__all__ = [
    "DynamicPlan",
    "FuserError",
    "Fusion",
    "HostedPlan",
    "InferenceSession",
    "Limits",
    "Plan",
    "ShardedPlan",
    "State",
    "StatefulPlan",
    "__version__",
    "compile",
    "cond",
    "jit",
    "kernel",
    "load",
    "register_host_op",
    "register_kernel",
    "spec",
    "trace",
    "while_loop",
]

# onnx, NumPy and LLVM load on first use: `import fuser` and `fuser --help` stay instant.
_HOMES = {
    "compile": "fuser.frontends.compile",
    "load": "fuser.frontends.load",
    "Limits": "fuser.base.limits",
    "kernel": "fuser.language.decorators",
    "Fusion": "fuser.pipeline.fusion",
    "Plan": "fuser.runtime.plan",
    "ShardedPlan": "fuser.runtime.sharded",
    "DynamicPlan": "fuser.pipeline.dynamic",
    "State": "fuser.runtime.state",
    "StatefulPlan": "fuser.pipeline.stateful",
    "HostedPlan": "fuser.frontends.onnx.hosted",
    "InferenceSession": "fuser.frontends.onnx.session",
    "register_host_op": "fuser.frontends.onnx.host_operators",
    "register_kernel": "fuser.frontends.onnx.kernels",
    **dict.fromkeys(("cond", "jit", "spec", "trace", "while_loop"), "fuser.frontends.numpy.jit"),
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        try:
            home = import_module(_HOMES[name])
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "fuser":
                raise
            raise CompilerAbsentError(f"fuser.{name} needs the compiler") from error
        return getattr(home, name)
    raise AttributeError(f"module 'fuser' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
