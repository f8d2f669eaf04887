"""`precision=`: what a plan may round, chosen by the caller and recorded in the report.

"model"   the dtypes of the model: float32 matmuls stay float32. The default.
"bf16"    float32 matmuls, convolutions and those of attention round their operands to
          bfloat16 (to nearest, ties to even; denormals may be lost) and add up in float32. Images
          between kernels of convolutions and pools are stored as bfloat16, whoever reads them
          (partition/storage.py); everything else stays as it is. Weights are rounded once, when
          the plan is built. For CPUs that multiply bfloat16 (AMX, AVX-512 BF16); on others it
          changes nothing, and the report says so.
"int8w"   constant matrices of float32 matmuls become whole numbers of 8 bits with one scale a
          column (symmetric, to nearest); everything else stays as it is, in float32. For matmuls
          of few rows, whose time is that of reading the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from fuser.base.target import Target
from fuser.dtypes import DType, bf16
from fuser.errors import UsageError

Precision = Literal["model", "bf16", "int8w"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


@dataclass(frozen=True)
class Rounding:
    """What a precision comes to on a target.

    operands: the dtype that matmuls round float32 operands to (None: not at all). narrow_weights:
    whether constant matrices become 8-bit numbers. text: one line for the report.
    """

    operands: DType | None = None
    narrow_weights: bool = False
    text: str = "model"


def rounding(precision: Precision, target: Target) -> Rounding:
    """What to round. Raises UsageError for a precision that there is not, or not on this device."""
    if precision not in PRECISIONS:
        raise UsageError(
            f"there is no precision {precision!r}", hint=f"one of {', '.join(PRECISIONS)}"
        )
    if precision == "model":
        return Rounding()
    if target.is_cuda:
        raise UsageError(
            f"precision {precision!r} is for the CPU", hint="give the GPU a float16 model"
        )
    if precision == "int8w":
        return Rounding(narrow_weights=True, text="int8w (weights of 8 bits, a scale a column)")
    unit = target.dot_unit("bf16")
    if unit is None:
        return Rounding(text="model (bf16 was asked for; this CPU does not multiply bfloat16)")
    return Rounding(bf16, text=f"bf16 ({unit.name})")
