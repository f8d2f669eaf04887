"""Whether index expressions of a caller's kernel fit 32 bits: all parts of them, or what they come
to in the end.

Values of at most 32 bits are as good as their dtype says. What depends on sizes of the launch is
decided for the example sizes, and a guard of the kernel says so.
"""

from __future__ import annotations

from collections.abc import Callable

from fuser.graph.sizes import certain, is_symbolic, size_hint
from fuser.tilegen.index import Atom, Extreme, FloorDiv, Index, Lookup, Mod, Scalar, atom_range
from fuser.tilegen.value import Value

INT32 = (1 << 31) - 1
_FAR = 1 << 40
"""No size of a launch is that large by its example: a bound beyond it says nothing."""

Narrow = Callable[[Value], bool]
Range = tuple[int, int]


def range_of(at: Index, narrow: Narrow) -> Range:
    """Least and greatest value. narrow: whether a value is computed in 32 bits."""
    if is_symbolic(*at.range):
        return at.range
    low = high = at.constant
    for atom, coefficient in at.terms:
        ends = [end * coefficient for end in _atom_range(atom, narrow)]
        low, high = low + min(ends), high + max(ends)
    return max(low, at.range[0]), min(high, at.range[1])


def _atom_range(atom: Atom, narrow: Narrow) -> Range:
    match atom:
        case Scalar() | Lookup():
            low, high = atom.value.range
            if narrow(atom.value):
                unsigned = atom.value.dtype.kind == "uint"
                low = max(low, 0 if unsigned else -INT32 - 1)
                high = min(high, 2 * INT32 + 1 if unsigned else INT32)
            return low, high
        case FloorDiv() if not is_symbolic(atom.divisor):
            low, high = range_of(atom.base, narrow)
            return low // atom.divisor, high // atom.divisor
        case Mod() if not is_symbolic(atom.divisor):
            return 0, atom.divisor - 1
        case Extreme():
            lows, highs = zip(*(range_of(item, narrow) for item in atom.items), strict=True)
            pick = min if atom.fn == "min" else max
            return pick(lows), pick(highs)
        case _:
            return atom_range(atom)


def fits(ends: Range) -> bool:
    """Whether 32 bits hold all numbers of a range: at all sizes, or at those of a guard."""
    low, high = ends
    if certain(low + INT32 + 1) and certain(INT32 - high):
        return True
    if not is_symbolic(low, high):
        return False
    if abs(size_hint(low)) > _FAR or abs(size_hint(high)) > _FAR:
        return False
    return bool(low >= -INT32 - 1) and bool(high <= INT32)


def all_fit(at: Index, narrow: Narrow) -> bool:
    """Whether an expression and every part of it fit 32 bits."""
    parts: list[Index] = []
    for atom, _ in at.terms:
        match atom:
            case FloorDiv() | Mod():
                parts.append(atom.base)
            case Extreme():
                parts += atom.items
    return fits(range_of(at, narrow)) and all(all_fit(part, narrow) for part in parts)
