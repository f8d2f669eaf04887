"""What this processor can do, where that decides what is compared."""

from __future__ import annotations

from fuser.backend.cpu import host_target


def multiplies_bytes() -> bool:
    """Whether it has sums of products of bytes. On x86-64 without them ONNX Runtime adds pairs of
    such products in 16 bits, which saturate (its documentation of quantisation says so): what it
    gives is no reference then."""
    return host_target().dot_unit("i8") is not None
