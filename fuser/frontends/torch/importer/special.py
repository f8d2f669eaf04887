"""ATen's special functions."""

from __future__ import annotations

from fuser.errors import UnsupportedError
from fuser.frontends.torch.importer.registry import aten, to_float
from fuser.graph import special
from fuser.graph.builder import Builder
from fuser.graph.ir import Value


@aten("erfc")
def erfc(b: Builder, x: Value) -> Value:
    return special.erfc(b, b.cast(x, to_float(x.dtype)))


@aten("special_erfcx")
def erfcx(b: Builder, x: Value) -> Value:
    return special.erfcx(b, b.cast(x, to_float(x.dtype)))


@aten("lgamma")
def lgamma(b: Builder, x: Value) -> Value:
    return special.lgamma(b, b.cast(x, to_float(x.dtype)))


@aten("digamma")
def digamma(b: Builder, x: Value) -> Value:
    return special.digamma(b, b.cast(x, to_float(x.dtype)))


@aten("polygamma")
def polygamma(b: Builder, order: int, x: Value) -> Value:
    if order > 1:
        raise UnsupportedError(f"polygamma of order {order}")
    wide = b.cast(x, to_float(x.dtype))
    return special.trigamma(b, wide) if order else special.digamma(b, wide)
