"""Tensor-core instructions by operand type: what plans and rules read of them."""

from __future__ import annotations

from dataclasses import dataclass

from fuser.tilegen import ops


@dataclass(frozen=True)
class Unit:
    """How tensor cores multiply operands of a dtype (or what u8 codes are of).

    name: PTX's name of the dtype. accumulate: of the sums. depth: elements of k an instruction
    takes, 32 bytes. least_sm: of mma.sync; whole_sm: of that of 16 rows and all of `depth`, before
    which some smaller ones are one. either_way: whether operands may lie in shared memory
    with k inner or outer; otherwise k must be inner. truncates: whether sums keep fewer bits than
    float32 has (about 14, of 8-bit floats): then every dot of a tile program starts them afresh,
    and adds what comes out to its accumulator in float32.
    """

    name: str
    accumulate: str
    depth: int
    least_sm: int
    either_way: bool
    truncates: bool = False
    whole_sm: int = 80

    @property
    def is_integer(self) -> bool:
        return self.accumulate == "i32"

    @property
    def ptx_sum(self) -> str:
        return "s32" if self.is_integer else "f32"

    @property
    def llvm_sum(self) -> str:
        return "i32" if self.is_integer else "float"


UNITS = {
    "f16": Unit("f16", "f32", 16, 75, True),
    "bf16": Unit("bf16", "f32", 16, 80, True),
    "i8": Unit("s8", "i32", 32, 75, False),
    "u8": Unit("u8", "i32", 32, 75, False),
    "f8e4m3fn": Unit("e4m3", "f32", 32, 89, False, truncates=True),
    "f8e5m2": Unit("e5m2", "f32", 32, 89, False, truncates=True),
}


TF32 = 80
"""The first compute capability that multiplies float32 on tensor cores, as tf32."""


def unit_name(op: ops.Dot) -> str:
    """Which row of `UNITS` multiplies a dot's operands."""
    return op.codes or op.a.dtype.name


def unit_of(op: ops.Dot) -> Unit | None:
    """The unit that multiplies a dot's operands, of 8 or 16 bits, into such sums."""
    unit = UNITS.get(unit_name(op))
    return unit if unit is not None and unit.accumulate == op.acc.dtype.name else None


def known_unit(op: ops.Dot) -> Unit:
    """The unit of a dot that is known to have one."""
    unit = unit_of(op)
    assert unit is not None
    return unit


def needs_inner_k(op: ops.Dot) -> bool:
    """Whether tensor cores read the operands of a dot only with k innermost."""
    unit = unit_of(op)
    return unit is not None and not unit.either_way
