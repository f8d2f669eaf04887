"""erf of floats by a table that lies in registers: AVX-512 looks 16 numbers up at once.

The range is cut into 16 intervals around multiples of 1/4, each with a polynomial of its own. A
sum with a large number rounds to the middle of an interval; its low bits are the number of that:

    sum    = |x| + 1.5 * 2**21        middle = sum - 1.5 * 2**21        d = |x| - middle
    result = c0 + d (c1 + d (...)),   c_i = table i [low 4 bits of sum]

That is half of the instructions of an exponential, which is what counts behind a matmul, whose sums
fill the registers. Vectors of other lengths go through those of 16, so that all have the same bits.
"""

from __future__ import annotations

from fuser.backend import math_tables as tables
from fuser.backend import text
from fuser.backend.function import Function
from fuser.backend.math_steps import add, at_most, bits_of, copysign, magnitude
from fuser.backend.text import Reg, real

LANES = 16
MAGIC = 1.5 * 2.0**21
LARGEST = 3.87
"""Of the last interval. From 3.8325 on erf is nearer to 1 than to the float below it."""
TABLE = "@erf.polynomials"


def erf_by_lookup(f: Function, x: Reg) -> Reg:
    """erf of a float or a vector of floats, in a function with a module."""
    count = text.lanes(x.type)
    if count == LANES:
        return _erf(f, x)
    if count > LANES:
        half = count // 2
        low, high = (
            erf_by_lookup(f, f.shuffle(x, None, range(start, start + half))) for start in (0, half)
        )
        return f.shuffle(low, high, range(count))
    wide = text.vector("float", LANES)
    if count == 1:
        return f.extract(_erf(f, f.insert(text.zero(wide), x, 0)), 0)
    filled = f.shuffle(x, None, [i % count for i in range(LANES)])
    return f.shuffle(_erf(f, filled), None, range(count))


def _erf(f: Function, x: Reg) -> Reg:
    assert f.module is not None
    rows = ", ".join(
        f"[{LANES} x float] [" + ", ".join(real(value).typed for value in row) + "]"
        for row in tables.ERF_LOOKUP_F32
    )
    shape = f"[{len(tables.ERF_LOOKUP_F32)} x [{LANES} x float]]"
    f.module.add_global(f"{TABLE} = private unnamed_addr constant {shape} [{rows}], align 64")
    # Opaque, so that no vector of the table is kept in a register in front of a loop.
    table = f.op("ptr", f'call ptr asm sideeffect "", "=r,0"(ptr {TABLE})')
    size = at_most(f, magnitude(f, x), LARGEST)
    total = add(f, size, MAGIC)
    d = f.binary("fsub", size, add(f, total, -MAGIC))
    number = bits_of(f, total)
    result: Reg | None = None
    for row in reversed(range(len(tables.ERF_LOOKUP_F32))):
        line = f.load(x.type, f.gep(table, row * LANES, "float"), 64)
        found = f.call(x.type, "llvm.x86.avx512.permvar.sf.512", line, number)
        result = found if result is None else f.fma(result, d, found)
    assert result is not None
    return copysign(f, result, x)
