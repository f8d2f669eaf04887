"""triton.tools.tensor_descriptor: descriptors that are made before a launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fuser.errors import UsageError


@dataclass
class TensorDescriptor:
    """A strided array and the block of it that a kernel loads or stores at once."""

    base: Any
    shape: list[int]
    strides: list[int]
    block_shape: list[int]
    padding: str = "zero"

    def __post_init__(self) -> None:
        self.shape, self.strides = list(self.shape), list(self.strides)
        self.block_shape = list(self.block_shape)
        rank = len(self.shape)
        if not 1 <= rank <= 5 or len(self.strides) != rank or len(self.block_shape) != rank:
            raise UsageError(
                f"a descriptor of shape {self.shape}, strides {self.strides} and blocks of "
                f"{self.block_shape}",
                hint="all three have the same 1 to 5 dims",
            )
        if self.strides[-1] != 1:
            raise UsageError("the last stride of a descriptor is not 1", hint="make a copy")
        if self.padding not in ("zero", "nan"):
            raise UsageError(f"padding {self.padding!r}", hint="it is zero or nan")

    @staticmethod
    def from_tensor(
        tensor: Any, block_shape: Sequence[int], padding: str = "zero"
    ) -> TensorDescriptor:
        """The descriptor of a whole tensor."""
        return TensorDescriptor(
            tensor, list(tensor.shape), list(tensor.stride()), list(block_shape), padding
        )
