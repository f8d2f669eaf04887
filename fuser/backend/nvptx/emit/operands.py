"""Words of 16-bit and 8-bit elements, as matrix units take them."""

from __future__ import annotations

from fuser.backend.nvptx.emit.code import Writes


def packed_words(code: Writes, regs: list[str], type: str) -> list[str]:
    """Neighbouring registers of 8 or 16 bits as i32 words."""
    e, count = code.emitter, 4 if type == "i8" else 2
    words = []
    for start in range(0, len(regs), count):
        group = "poison"
        for place, reg in enumerate(regs[start : start + count]):
            group = e.value(f"insertelement <{count} x {type}> {group}, {type} {reg}, i32 {place}")
        words.append(e.value(f"bitcast <{count} x {type}> {group} to i32"))
    return words


def load_matrices(code: Writes, pointer: str, count: int, turn: str) -> list[str]:
    """ldmatrix of 2 or 4 matrices of 8 rows of 16 bytes; lanes 8i..8i+7 address the rows of
    matrix i."""
    e = code.emitter
    type = "{" + ", ".join(["i32"] * count) + "}"
    name = f"@llvm.nvvm.ldmatrix.sync.aligned.m8n8.x{count}{turn}.b16.p3"
    result = e.value(f"call {type} {name}(ptr addrspace(3) {pointer})")
    return [e.value(f"extractvalue {type} {result}, {i}") for i in range(count)]
