"""Native code for CPUs: compile_kernel, the texts of its stages, and the host's Target."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fuser.backend.cpu.host import host_target

if TYPE_CHECKING:
    from fuser.backend.cpu.compile import (
        assembly,
        compile_kernel,
        decisions_text,
        lower_to_llvm,
    )

__all__ = ["assembly", "compile_kernel", "decisions_text", "host_target", "lower_to_llvm"]


def __getattr__(name: str) -> Any:
    """The compiler loads on first use: who runs a plan from the cache needs the target alone."""
    if name in __all__:
        return getattr(import_module("fuser.backend.cpu.compile"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
