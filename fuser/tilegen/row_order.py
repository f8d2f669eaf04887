"""What batch invariant numerics fix of kernels, in words: the order of the terms of a row's sums.

k from the first step to the last, as for any number of rows: contraction_1, contraction_3
keys in blocks of 128, one after the other, as for any number of rows: attention_2
"""

from __future__ import annotations

from collections.abc import Sequence

from fuser.tilegen.program import TileProgram

SAME = "as for any number of rows"


def order_lines(programs: Sequence[TileProgram]) -> list[str]:
    """A line for each order, with the regions whose kernels have it."""
    found: dict[str, dict[str, None]] = {}
    for program in programs:
        order = _order_of(program)
        if order is not None:
            found.setdefault(order, {})[program.region.name] = None
    return [f"{order}, {SAME}: {', '.join(regions)}" for order, regions in found.items()]


def _order_of(program: TileProgram) -> str | None:
    """The order of a kernel's sums; None of one that adds nothing up."""
    schedule, kind = program.kernel.schedule, program.region.kind
    if kind == "attention":
        return f"keys in blocks of {schedule.block('n')}, one after the other"
    if kind in ("contraction", "conv"):
        if schedule.late_scales:
            return f"k in blocks of {schedule.block('k')}, each scaled, one after the other"
        return "k from the first step to the last"
    if kind == "reduce":
        return f"rows in tiles of {schedule.block('total')}"
    return None
