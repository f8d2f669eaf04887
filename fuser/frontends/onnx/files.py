"""Model files: plans from the cache, or compiled and stored there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fuser.pipeline import plan_cache
from fuser.runtime.plan import Plan


def compile_file(path: Path, **options: Any) -> Plan:
    """`fuser.frontends.onnx.model.compile` of a file. A plan in the cache needs neither onnx nor
    the compiler."""
    return plan_cache.compile_file(path, _compile, **options)


def _compile(path: Path, **options: Any) -> Plan:
    from fuser.frontends.onnx.model import compile_new  # takes longer than loading a plan

    return compile_new(path, **options)
