"""Plans: ordered launches, one memory arena, constants; run, profile, cache."""

from fuser.runtime.cache import KernelCache
from fuser.runtime.plan import Plan
from fuser.runtime.program import Program, TensorSpec

__all__ = ["KernelCache", "Plan", "Program", "TensorSpec"]
