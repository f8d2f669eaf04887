"""triton.tools.tensor_descriptor: descriptors of arrays, made on the host."""

from __future__ import annotations

from fuser.language.descriptors import TensorDescriptor

__all__ = ["TensorDescriptor"]
