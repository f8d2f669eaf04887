"""Plans: ordered launches, one memory arena, constants; run, profile, cache."""

from fuser.runtime.cache import KernelCache
from fuser.runtime.inputs import input_hints, random_feeds
from fuser.runtime.plan import Latency, Plan
from fuser.runtime.program import (
    BufferRef,
    Copy,
    Launch,
    Program,
    Step,
    TensorSpec,
    Zero,
    assemble,
)

__all__ = [
    "BufferRef",
    "Copy",
    "KernelCache",
    "Latency",
    "Launch",
    "Plan",
    "Program",
    "Step",
    "TensorSpec",
    "Zero",
    "assemble",
    "input_hints",
    "random_feeds",
]
