"""fuser: a graph-level fusion compiler that generates tile kernels.

    import fuser
    plan = fuser.compile("model.onnx", device="auto", dims={"batch": 8})
    outputs = plan.run({"input_ids": ids})
    print(plan.report().to_dict())
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fuser.errors import FuserError

if TYPE_CHECKING:
    from fuser.compiler import compile
    from fuser.runtime.plan import Plan

__version__ = "0.1.0"
__all__ = ["FuserError", "Plan", "__version__", "compile"]


def __getattr__(name: str) -> Any:
    # onnx, NumPy and LLVM load on first use: `import fuser` and `fuser --help` stay instant.
    if name == "compile":
        from fuser.compiler import compile

        return compile
    if name == "Plan":
        from fuser.runtime.plan import Plan

        return Plan
    raise AttributeError(f"module 'fuser' has no attribute {name!r}")
