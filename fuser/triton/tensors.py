"""What stands for tensors in launches: reinterpret, TensorWrapper, MockTensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuser.language.stand_ins import Mock, Retyped


class TensorWrapper(Retyped):
    """A tensor whose elements a kernel takes for another type of as many bits."""

    def __init__(self, base: Any, dtype: Any) -> None:
        super().__init__(base, dtype)
        self.data, self.device, self.shape = base.data, base.device, base.shape

    def data_ptr(self) -> int:
        """The address of the first element."""
        return int(self.base.data_ptr())

    def stride(self, *args: Any) -> Any:
        """The strides of the tensor below, in elements."""
        return self.base.stride(*args)

    def element_size(self) -> int:
        """Bytes of an element of the tensor below."""
        return int(self.base.element_size())

    def cpu(self) -> TensorWrapper:
        """The same in host memory."""
        return TensorWrapper(self.base.cpu(), self.dtype)

    def copy_(self, other: TensorWrapper) -> None:
        """Copy the elements of another tensor."""
        self.base.copy_(other.base)

    def clone(self) -> TensorWrapper:
        """A copy with memory of its own."""
        return TensorWrapper(self.base.clone(), self.dtype)

    def to(self, device: Any) -> TensorWrapper:
        """The same on a device."""
        return TensorWrapper(self.base.to(device), self.dtype)

    def new_empty(self, sizes: Any) -> TensorWrapper:
        """A tensor of other sizes on the same device, not filled."""
        return TensorWrapper(self.base.new_empty(sizes), self.dtype)

    def __str__(self) -> str:
        return f"TensorWrapper[{self.dtype}]({self.base})"


def reinterpret(tensor: Any, dtype: Any) -> Any:
    """The tensor, its elements taken for a dtype of the language. Raises TypeError for what is no
    tensor."""
    base = tensor.base if isinstance(tensor, TensorWrapper) else tensor
    if not hasattr(base, "data_ptr"):
        raise TypeError(f"Cannot reinterpret a {type(tensor)}.")
    if isinstance(tensor, TensorWrapper) and dtype == base.dtype:
        return base
    return TensorWrapper(base, dtype)


class MockTensor(Mock):
    """In place of a tensor in `kernel.warmup(...)`: its dtype is all that compiling needs."""

    def __init__(self, dtype: Any, shape: Sequence[int] | None = None) -> None:
        super().__init__(dtype, shape or [1])

    @staticmethod
    def wrap_dtype(arg: Any) -> Any:
        """A mock of a PyTorch dtype; anything else as it is."""
        kind = type(arg)
        return MockTensor(arg) if (kind.__module__, kind.__name__) == ("torch", "dtype") else arg

    def stride(self) -> tuple[int, ...]:
        """Strides of a contiguous tensor."""
        found, step = [], 1
        for size in reversed(self.shape):
            found.append(step)
            step *= size
        return tuple(reversed(found))

    @staticmethod
    def data_ptr() -> int:
        """0: there is no memory."""
        return 0

    @staticmethod
    def ptr_range() -> int:
        """0: there is no memory."""
        return 0
