"""triton.tools.mxfp: numbers of the OCP microscaling formats in PyTorch tensors.

MXFP4Tensor holds e2m1 codes, one a byte; MXScaleTensor e8m0 codes: 2 ** (code - 127), 255 is NaN.
"""

from __future__ import annotations

import itertools
from typing import Any

from fuser.errors import UsageError

VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Of e2m1 by the code without its sign."""
BIAS = 127
NAN = 255


def _given(data: Any, size: Any, device: Any) -> tuple[Any, tuple[int, ...], Any]:
    """(tensor or None, shape, device). Raises UsageError."""
    import torch

    if data is None and size is None:
        raise UsageError("neither data nor a size is given")
    if data is not None and not isinstance(data, torch.Tensor):
        raise UsageError(f"the data is a {type(data).__name__}", hint="it is a torch tensor")
    if data is not None:
        return data, tuple(data.shape), data.device
    return None, size if isinstance(size, tuple) else (size,), device


def _only_float32(dtype: Any) -> None:
    import torch

    if dtype is not torch.float32:
        raise UsageError(f"codes become float32, not {dtype}", hint="cast the result")


class MXFP4Tensor:
    """Numbers of 4 bits: e2m1. data: float32 numbers to round to them, to nearest and ties to even;
    what is too large, inf and NaN become 6 with their sign. size, device: of an empty one, for
    `random`. Raises UsageError."""

    def __init__(self, data: Any = None, size: Any = None, device: Any = None) -> None:
        given, self.size, self.device = _given(data, size, device)
        self.data: Any = None if given is None else _codes(given)

    def random(self) -> MXFP4Tensor:
        """All 16 codes alike often."""
        import torch

        self.data = torch.randint(0, 16, self.size, dtype=torch.uint8, device=self.device)
        return self

    def to(self, dtype: Any) -> Any:
        """The numbers as float32."""
        import torch

        _only_float32(dtype)
        values = torch.tensor(VALUES, dtype=dtype, device=self.data.device)
        size = values[(self.data & 7).long()]
        return torch.where(self.data & 8 != 0, -size, size)

    def to_packed_tensor(self, dim: int) -> Any:
        """Two numbers a byte along a dim, the first in the low bits; an odd one is beside a 0."""
        import torch

        data = self.data
        if not 0 <= dim < data.ndim:
            raise UsageError(f"dim {dim} of a tensor of {data.ndim} dims")
        if data.shape[dim] % 2:
            shape = list(data.shape)
            shape[dim] = 1
            data = torch.cat([data, data.new_zeros(shape)], dim)
        first, second = (
            data.index_select(dim, torch.arange(n, data.shape[dim], 2, device=data.device))
            for n in (0, 1)
        )
        return first | (second << 4)

    def unpack_packed_tensor(self, packed_tensor: Any, dim: int, original_shape: Any) -> Any:
        """The codes of a packed tensor, one a byte, in the shape that they had."""
        import torch

        both = torch.stack([packed_tensor & 15, packed_tensor >> 4], dim + 1)
        shape = list(packed_tensor.shape)
        shape[dim] *= 2
        return both.reshape(shape).narrow(dim, 0, original_shape[dim]).contiguous()


def _codes(values: Any) -> Any:
    """The nearest e2m1 codes of float32 numbers."""
    import torch

    size = values.abs().nan_to_num(nan=VALUES[-1])
    code = torch.zeros(values.shape, dtype=torch.uint8, device=values.device)
    for n, (low, high) in enumerate(itertools.pairwise(VALUES)):
        middle = (low + high) / 2
        above = size > middle if n % 2 == 0 else size >= middle  # a tie goes to the even code
        code += above.to(torch.uint8)
    return code | (torch.signbit(values).to(torch.uint8) << 3)


def fp8e8m0_to_float32(scale: Any) -> Any:
    """The numbers of e8m0 codes; 0 is 2 ** -127, which is subnormal."""
    import torch

    code = scale.view(torch.uint8).to(torch.int32)
    bits = torch.where(code == 0, 1 << 22, code << 23)
    return torch.where(code == NAN, 0x7FC00000, bits).to(torch.int32).view(torch.float32)


class MXScaleTensor:
    """Scales of 8 bits: e8m0. data: float32 numbers, of which the greatest power of 2 that is not
    greater is kept; 0, negative numbers, inf and NaN become NaN. size, device: of an empty one, for
    `random`. Raises UsageError."""

    def __init__(self, data: Any = None, size: Any = None, device: Any = None) -> None:
        given, self.size, self.device = _given(data, size, device)
        self.data: Any = None if given is None else self._from_float(given)

    @staticmethod
    def _from_float(values: Any) -> Any:
        import torch

        fits = torch.isfinite(values) & (values > 0)
        _, exponent = torch.frexp(torch.where(fits, values, torch.ones_like(values)))
        code = (exponent.to(torch.int32) - 1 + BIAS).clamp(0, NAN - 1)
        return torch.where(fits, code, NAN).to(torch.uint8)

    def random(self, low: float | None = None, high: float | None = None) -> MXScaleTensor:
        """Powers of 2 from low to high, all alike often."""
        import math

        import torch

        ends = [0 if low is None else int(math.log2(low)) + BIAS,
                NAN - 1 if high is None else int(math.log2(high)) + BIAS]  # fmt: skip
        first, last = (min(max(end, 0), NAN - 1) for end in ends)
        if first > last:
            raise UsageError(f"scales from {low} to {high}")
        self.data = torch.randint(first, last + 1, self.size, dtype=torch.uint8, device=self.device)
        return self

    def to(self, dtype: Any) -> Any:
        """The numbers as float32."""
        _only_float32(dtype)
        return fp8e8m0_to_float32(self.data)
