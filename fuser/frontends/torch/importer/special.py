"""ATen's special functions."""

from __future__ import annotations

from fuser.frontends.torch.importer.registry import aten, to_float
from fuser.graph import special
from fuser.graph.builder import Builder
from fuser.graph.ir import Value


@aten("erfc")
def erfc(b: Builder, x: Value) -> Value:
    return special.erfc(b, b.cast(x, to_float(x.dtype)))


@aten("lgamma")
def lgamma(b: Builder, x: Value) -> Value:
    return special.lgamma(b, b.cast(x, to_float(x.dtype)))


@aten("digamma")
def digamma(b: Builder, x: Value) -> Value:
    return special.digamma(b, b.cast(x, to_float(x.dtype)))
