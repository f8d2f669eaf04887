"""triton.compile: a kernel compiled from types instead of from the arguments of a launch."""

from __future__ import annotations

from typing import Any

from fuser.errors import UsageError
from fuser.triton.compiled import CompiledKernel
from fuser.triton.driver import driver
from fuser.triton.sources import ASTSource
from fuser.triton.targets import GPUTarget

PROGRAMS = (1 << 10,)
"""A grid where none is known."""


def compile(src: Any, target: GPUTarget | None = None, options: Any = None) -> CompiledKernel:
    """Compile an ASTSource for a target, the current one by default; options: num_warps and so on.
    Raises LanguageError, and what compiling raises."""
    if not isinstance(src, ASTSource):
        raise UsageError(
            f"a {type(src).__name__} is no source to compile", hint="make an ASTSource of a kernel"
        )
    chosen = target or driver.active.get_current_target()
    fn = src.fn
    fn._check_parameters()
    given = dict(options or {})
    named = {name: None for name in fn.arg_names}
    _, settings = fn.bind((), {**named, **given})
    found = src.arguments()
    found.stand_in = "cuda" if chosen.backend == "cuda" else "cpu"
    variant = fn.variant(found, PROGRAMS, settings)
    return CompiledKernel(fn, variant, settings, chosen, src)
