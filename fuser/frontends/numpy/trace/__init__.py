"""Plain NumPy-style Python, recorded as a Graph of primitives.

A traced function is called once on arrays without values (`TracedArray`). Whatever it does to them,
by operators, indexing or NumPy functions, is appended to the graph in the builder's spelling.
"""

from __future__ import annotations

from fuser.frontends.numpy.trace.array import TracedArray
from fuser.frontends.numpy.trace.context import outermost
from fuser.frontends.numpy.trace.loops import while_loop
from fuser.frontends.numpy.trace.stages import Loop, Stage, cut_at_loops
from fuser.frontends.numpy.trace.tracer import ArraySpec, Recording, Results, cond, record

__all__ = [
    "ArraySpec",
    "Loop",
    "Recording",
    "Results",
    "Stage",
    "TracedArray",
    "cond",
    "cut_at_loops",
    "outermost",
    "record",
    "while_loop",
]
