"""The 8-bit floats: how their bits are divided, and the codes of known numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from fuser.language.types import ElementType


@dataclass(frozen=True)
class Format:
    """An 8-bit float: a sign, an exponent, `mantissa` bits.

    largest: the code of the largest finite number. nan, infinity: codes; infinity None where there
    is none. unsigned_zero: whether 0x80 is NaN instead of a zero.
    """

    mantissa: int
    bias: int
    largest: int
    nan: int
    infinity: int | None = None
    unsigned_zero: bool = False

    @property
    def least_normal(self) -> float:
        return 2.0 ** (1 - self.bias)

    @property
    def step(self) -> float:
        """The least number above zero."""
        return 2.0 ** (1 - self.bias - self.mantissa)

    @property
    def moved(self) -> int:
        """What the exponents of float32 have more, in a code's place."""
        return (127 - self.bias) << self.mantissa


FORMATS = {
    "fp8e5": Format(2, 15, 0x7B, 0x7F, 0x7C),
    "fp8e4nv": Format(3, 7, 0x7E, 0x7F),
    "fp8e4b8": Format(3, 8, 0x7F, 0x80, None, True),
    "fp8e5b16": Format(2, 16, 0x7F, 0x80, None, True),
    "fp8e4b15": Format(3, 15, 0x7E, 0x7E),
}
_NUMPY = {
    "fp8e5": ml_dtypes.float8_e5m2, "fp8e4nv": ml_dtypes.float8_e4m3fn,
    "fp8e4b8": ml_dtypes.float8_e4m3fnuz, "fp8e5b16": ml_dtypes.float8_e5m2fnuz,
}  # fmt: skip


def code_of(number: float, dtype: ElementType) -> int:
    """The code of a number that is known."""
    known = FORMATS[dtype.name]
    if dtype.name not in _NUMPY:
        size = float(np.float16(min(abs(number), 1.75))) if number == number else 1.75
        if np.float16(size) > min(abs(number), 1.75):
            size = float(np.nextafter(np.float16(size), np.float16(0)))
        found = (int(np.float16(size).view(np.uint16)) * 2 + 0x80) >> 8
        return found | (0x80 if math.copysign(1.0, number) < 0 else 0)
    kind = _NUMPY[dtype.name]
    most = float(np.uint8(known.largest).view(kind).astype(np.float32))
    bounded = number if number != number else max(-most, min(most, number))
    return int(np.float32(bounded).astype(kind).view(np.uint8))
