"""The algebra of stores: which box of a view an access meets, each element exactly once.

An index that is `c0 + c1*v1 + c2*v2 + ...` with c1 = 1 and each c the product of those before and
their extents is a mixed radix number: it counts from c0 upwards, each number once. Quotients and
remainders of one such number are its digits, and digits are variables like others. Nothing here
asks for sizes, so what is found for symbolic dims holds for all of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fuser.graph.sizes import certain, divides, is_symbolic, same, size_hint
from fuser.tilegen.coverage.access import Access
from fuser.tilegen.index import Atom, Axis, FloorDiv, Index, Mod

Variable = Hashable
Layout = tuple[tuple[int, ...], tuple[int, ...], int]


class Range(NamedTuple):
    """The numbers low, low + step, ... below high."""

    low: int
    high: int
    step: int = 1

    def is_all(self, size: int) -> bool:
        """Whether these are all numbers from 0 to size."""
        return same(self.step, 1) and same(self.low, 0) and same(self.high, size)

    @property
    def length(self) -> int:
        return -(-(self.high - self.low) // self.step)

    def meets(self, other: Range) -> bool:
        """Whether they may share a number."""
        if self.step == other.step and (self.low - other.low) % self.step:
            return False
        return self.low < other.high and other.low < self.high


@dataclass(frozen=True)
class Box:
    """What an access meets, once each: a range in every dim of a view that is more than a bound.
    layout: sizes, strides and offset of these dims."""

    layout: Layout
    ranges: tuple[Range, ...]


@dataclass
class Linear:
    """constant + sum of coefficient * variable."""

    constant: int
    terms: dict[Variable, int] = field(default_factory=dict)

    def add(self, variable: Variable, coefficient: int) -> None:
        self.terms[variable] = self.terms.get(variable, 0) + coefficient

    def moves_with(self, other: Linear) -> bool:
        """Whether both differ by a constant, and are none."""
        if not self.terms or self.terms.keys() != other.terms.keys():
            return False
        return all(same(c, other.terms[variable]) for variable, c in self.terms.items())


def box_of(access: Access) -> Box | None:
    """The box of a view that the access meets, or None where the algebra does not tell."""
    if not access.is_static or not same(access.repeats, 1):
        return None
    extents: dict[Variable, int] = dict(access.extents.items())
    # Last digits of a number that is not whole: what is beyond must be out of bounds.
    partial: set[Variable] = set()
    places = [(place.at, place.size, place.stride) for place in access.places]
    lines = _separate([at for at, _, _ in places], extents, partial, _limits(access))
    if lines is None:
        return None
    real = [i for i, (_, size, stride) in enumerate(places) if not _is_bound(size, stride)]
    taken = {variable for i in real for variable in lines[i].terms}
    # A dim of 1 with variables of its own: one of their values is in bounds.
    real += [
        i
        for i, (_, size, _) in enumerate(places)
        if i not in real and same(size, 1) and not taken & lines[i].terms.keys()
    ]
    owner: dict[Variable, int] = {}
    for i in real:
        for variable in lines[i].terms:
            if variable in owner:
                return None
            owner[variable] = i
    ranges = {}
    for i in real:
        found = _radix_range(lines[i], places[i][1], extents, partial)
        if found is None:
            return None
        ranges[i] = found
    for i, (_, size, _) in enumerate(places):
        if i not in ranges and not _implied(lines[i], size, extents, partial):
            target = next((j for j in real if lines[i].moves_with(lines[j])), None)
            if target is None:
                return None
            shift = lines[i].constant - lines[target].constant
            found = ranges[target]
            low, high = _greater(found.low, -shift), _less(found.high, size - shift)
            if low is None or high is None or not same(found.step, 1):
                return None
            ranges[target] = Range(low, high)
    for variable, extent in extents.items():
        if variable in partial or not same(extent, 1):
            if not any(variable in line.terms for line in lines):
                return None
    whole = [i for i in real if same(places[i][1], 1)]
    if any(not ranges[i].is_all(1) for i in whole):
        return None
    kept = [i for i in real if i not in whole]
    layout = (
        tuple(places[i][1] for i in kept),
        tuple(places[i][2] for i in kept),
        access.view.offset,
    )
    return Box(layout, tuple(ranges[i] for i in kept))


def tile_exactly(boxes: Sequence[Box], size: int) -> bool:
    """Whether the boxes together are a buffer of `size` elements, none met twice, as far as the
    algebra tells."""
    if len(boxes) == 1:
        low_to_high = _interval(boxes[0])
        return low_to_high is not None and same(low_to_high[0], 0) and same(low_to_high[1], size)
    numbers = (n for box in boxes for n in (*box.layout[0], *box.layout[1], *sum(box.ranges, ())))
    if is_symbolic(size, *numbers):
        return False
    spans = [_interval(box) for box in boxes]
    known = [span for span in spans if span is not None]
    if len(known) == len(boxes):
        known.sort()
        ends = [0, *(high for _, high in known)]
        return [low for low, _ in known] == ends[:-1] and ends[-1] == size
    if len(boxes) > 64 or any(box.layout != boxes[0].layout for box in boxes):
        return False
    if not _is_whole(boxes[0].layout) or _product(boxes[0].layout[0]) != size:
        return False
    if sum(_product([found.length for found in box.ranges]) for box in boxes) != size:
        return False
    return not any(_meet(a, b) for i, a in enumerate(boxes) for b in boxes[:i])


def _meet(a: Box, b: Box) -> bool:
    return all(one.meets(other) for one, other in zip(a.ranges, b.ranges, strict=True))


def _product(items: Sequence[int]) -> int:
    total = 1
    for item in items:
        total = total * item
    return total


def _is_bound(size: int, stride: int) -> bool:
    return same(stride, 0) or same(size, 1)


def _by_stride(layout: Layout) -> list[tuple[int, int, int]]:
    """(stride, size, dim), innermost first."""
    sizes, strides, _ = layout
    found = [(stride, size, i) for i, (size, stride) in enumerate(zip(sizes, strides, strict=True))]
    return sorted(found, key=lambda item: size_hint(item[0]))


def _is_whole(layout: Layout) -> bool:
    """Whether a view has no gaps: its strides are the products of the dims inside."""
    step = 1
    for stride, size, _ in _by_stride(layout):
        if not same(stride, step):
            return False
        step = step * size
    return True


def _interval(box: Box) -> tuple[int, int] | None:
    """A box as an interval of the buffer: all of its dims whole but the outermost."""
    if not _is_whole(box.layout):
        return None
    offset = box.layout[2]
    dims = _by_stride(box.layout)
    if not dims:
        return offset, offset + 1
    if any(not box.ranges[i].is_all(size) for _, size, i in dims[:-1]):
        return None
    stride, _, i = dims[-1]
    low, high, step = box.ranges[i]
    return (offset + low * stride, offset + high * stride) if same(step, 1) else None


# indices as mixed radix numbers -------------------------------------------------------------------


def _radix_range(
    line: Linear, size: int, extents: Mapping[Variable, int], partial: set[Variable]
) -> Range | None:
    """The part of [0, size) that the numbers of a line are, each once."""
    start = line.constant
    terms = []
    for variable, coefficient in line.terms.items():
        if not is_symbolic(coefficient) and coefficient < 0:  # it counts down
            if variable in partial:
                return None
            start = start + coefficient * (extents[variable] - 1)
            coefficient = -coefficient
        terms.append((coefficient, variable))
    if not terms:
        inside = certain(start) and certain(size - 1 - start)
        return Range(start, start + 1) if inside else None
    terms.sort(key=lambda item: size_hint(item[0]))
    lowest = terms[0][0]
    if not same(lowest, 1):
        return _strided(start, lowest, size, terms, extents, partial)
    step = block = 1
    rest = False
    for coefficient, variable in terms:
        if rest or not same(coefficient, step):
            return None
        rest = variable in partial
        block = step
        step = step * extents[variable]
    low = _greater(start, 0)
    last = extents[terms[-1][1]]
    covers = same(start, 0) and same(last, -(-size // block))  # a grid over blocks of a dim
    high: int | None = size if covers else _less(start + step, size)
    if low is None or high is None or (rest and not (same(low, start) and same(high, size))):
        return None
    return Range(low, high)


def _strided(
    start: int, step: int, size: int, terms: list[tuple[int, Variable]],
    extents: Mapping[Variable, int], partial: set[Variable],
) -> Range | None:  # fmt: skip
    """Every `step`-th number from `start` on, in [0, size)."""
    if is_symbolic(start, step, size, *(extents[variable] for _, variable in terms)):
        return None
    if start < 0 or any(coefficient % step or v in partial for coefficient, v in terms):
        return None
    line = Linear(0, {variable: coefficient // step for coefficient, variable in terms})
    found = _radix_range(line, -(-(size - start) // step), extents, partial)
    if found is None or start >= size:
        return None
    return Range(start + step * found.low, min(size, start + step * found.high), step)


def _greater(a: int, b: int) -> int | None:
    if certain(a - b):
        return a
    return b if certain(b - a) else None


def _less(a: int, b: int) -> int | None:
    if certain(b - a):
        return a
    return b if certain(a - b) else None


def _implied(
    line: Linear, size: int, extents: Mapping[Variable, int], partial: set[Variable]
) -> bool:
    """Whether a bound holds over the whole box."""
    low = high = line.constant
    for variable, coefficient in line.terms.items():
        if variable in partial:
            return False
        span = coefficient * (extents[variable] - 1)
        if certain(coefficient):
            high = high + span
        else:
            low = low + span
    return certain(low) and certain(size - 1 - high)


def lines_of(indices: Sequence[Index], extents: dict[Variable, int]) -> list[Linear] | None:
    """The indices as sums of variables that are independent, digits of numbers among them, of which
    `extents` learns; a last digit counts as whole. None where they do not separate."""
    partial: set[Variable] = set()
    found = _separate(indices, extents, partial, {})
    for variable in partial:
        extents[variable] = extents[variable] + 1
    return found


# digits -------------------------------------------------------------------------------------------


@dataclass
class _Number:
    """A number whose quotients and remainders are asked for: its variables with coefficients, and
    the divisors."""

    base: Index
    divisors: set[int] = field(default_factory=set)


def _limits(access: Access) -> dict[Index, int]:
    """Bounds that are nothing but bounds."""
    return {place.at: place.size for place in access.places if same(place.stride, 0)}


def _separate(
    indices: Sequence[Index],
    extents: dict[Variable, int],
    partial: set[Variable],
    limits: Mapping[Index, int],
) -> list[Linear] | None:
    """The indices as lines, with digits in the place of quotients and remainders. `extents` and
    `partial` learn of the digits."""
    numbers: dict[Index, _Number] = {}
    for expression in indices:
        for atom, _ in expression.terms:
            if isinstance(atom, Axis):
                continue
            parts = _quotient(atom)
            if parts is None:
                return None
            base, divisor, modulus = parts
            number = numbers.setdefault(base, _Number(base))
            number.divisors.add(divisor)
            if modulus is not None:
                number.divisors.add(divisor * modulus)
    digits: dict[Index, list[tuple[int, Variable]]] = {}
    split: dict[int, tuple[Index, int]] = {}  # variable -> the number it belongs to, coefficient
    for base, number in numbers.items():
        found = _digits(number, extents, partial, limits)
        if found is None:
            return None
        digits[base] = found
        for atom, coefficient in base.terms:
            assert isinstance(atom, Axis)
            if atom.axis in split:
                return None
            split[atom.axis] = base, coefficient
    lines = []
    for expression in indices:
        line = _line(expression, digits, split)
        if line is None:
            return None
        lines.append(line)
    for variable in split:
        del extents[variable]
    return lines


def _quotient(atom: Atom) -> tuple[Index, int, int | None] | None:
    """(base, d, m) of (base // d) % m; m None without a remainder."""
    if isinstance(atom, FloorDiv):
        found: tuple[Index, int, int | None] = atom.base, atom.divisor, None
    elif isinstance(atom, Mod):
        inner = atom.base.terms[0][0] if len(atom.base.terms) == 1 else None
        plain = isinstance(inner, FloorDiv) and same(atom.base.terms[0][1], 1)
        if isinstance(inner, FloorDiv) and plain and same(atom.base.constant, 0):
            found = inner.base, inner.divisor, atom.divisor
        else:
            found = atom.base, 1, atom.divisor
    else:
        return None
    if any(not isinstance(term, Axis) for term, _ in found[0].terms):
        return None
    return found


def _digits(
    number: _Number,
    extents: dict[Variable, int],
    partial: set[Variable],
    limits: Mapping[Index, int],
) -> list[tuple[int, Variable]] | None:
    """(unit, digit) of a number that counts from 0, lowest first."""
    base = number.base
    if not same(base.constant, 0):
        return None
    step = 1
    for atom, coefficient in sorted(base.terms, key=lambda term: size_hint(term[1])):
        assert isinstance(atom, Axis)
        if not same(coefficient, step) or atom.axis not in extents:
            return None
        step = step * extents[atom.axis]
    total = step
    limit = limits.get(base)
    if limit is not None and certain(total - limit):
        total = limit
    units = sorted(number.divisors | {1}, key=size_hint)
    found: list[tuple[int, Variable]] = []
    for unit, above in zip(units, [*units[1:], None], strict=True):
        digit: Variable = ("digit", base, unit)
        if above is not None:
            if not divides(unit, above):
                return None
            extents[digit] = above // unit
        elif divides(unit, total):
            extents[digit] = total // unit
        else:
            extents[digit] = total // unit
            if not certain(extents[digit] - 1):
                return None
            partial.add(digit)
        found.append((unit, digit))
    return found


def _line(
    expression: Index,
    digits: Mapping[Index, list[tuple[int, Variable]]],
    split: Mapping[int, tuple[Index, int]],
) -> Linear | None:
    line = Linear(expression.constant)
    whole: dict[Index, int] = {}  # numbers that occur as they are, and how often
    for atom, coefficient in expression.terms:
        if isinstance(atom, Axis):
            if atom.axis not in split:
                line.add(atom.axis, coefficient)
                continue
            base, own = split[atom.axis]
            if not divides(own, coefficient):
                return None
            factor = coefficient // own
            if not same(whole.setdefault(base, factor), factor):
                return None
            continue
        parts = _quotient(atom)
        assert parts is not None
        base, divisor, modulus = parts
        for unit, digit in digits[base]:
            if not divides(divisor, unit):
                continue
            if modulus is not None and divides(divisor * modulus, unit):
                continue
            line.add(digit, coefficient * (unit // divisor))
    for base, factor in whole.items():
        axes = expression.axes()
        if any(atom.axis not in axes for atom, _ in base.terms if isinstance(atom, Axis)):
            return None
        for unit, digit in digits[base]:
            line.add(digit, factor * unit)
    return line
