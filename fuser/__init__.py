"""fuser: a graph-level fusion compiler that generates tile kernels.

    import fuser
    plan = fuser.compile("model.onnx", device="auto", dims={"batch": 8})
    outputs = plan.run({"input_ids": ids})
    print(plan.report().to_dict())
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import fuser.forks  # noqa: F401  before anything is loaded that a fork could cut in two
from fuser.errors import FuserError

if TYPE_CHECKING:
    from fuser.dynamic import DynamicPlan
    from fuser.frontends import compile
    from fuser.runtime.plan import Plan
    from fuser.session import InferenceSession
    from fuser.traced import cond, jit, spec, trace, while_loop

__version__ = "0.1.0"
__all__ = [
    "DynamicPlan",
    "FuserError",
    "InferenceSession",
    "Plan",
    "__version__",
    "compile",
    "cond",
    "jit",
    "spec",
    "trace",
    "while_loop",
]

# onnx, NumPy and LLVM load on first use: `import fuser` and `fuser --help` stay instant.
_HOMES = {
    "compile": "fuser.frontends",
    "Plan": "fuser.runtime.plan",
    "DynamicPlan": "fuser.dynamic",
    "InferenceSession": "fuser.session",
    **dict.fromkeys(("cond", "jit", "spec", "trace", "while_loop"), "fuser.traced"),
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'fuser' has no attribute {name!r}")
