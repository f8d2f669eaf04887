"""Index expressions as i32 arithmetic, at the coordinates of a layout's registers.

An expression is separable most of the time: what depends on the thread is computed once, what
depends on the register is a constant that ends up in an address's immediate field.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from fuser.backend.nvptx.ir.integers import Arithmetic
from fuser.backend.nvptx.ir.values import Operand
from fuser.backend.nvptx.layouts.layout import Coordinates, Layout
from fuser.backend.nvptx.lowering.integers import INT32, Integers, Linear
from fuser.errors import LoweringError
from fuser.graph.sizes import certain, is_symbolic
from fuser.tilegen.index import Atom, Axis, Extreme, FloorDiv, Index, Lookup, Mod, Scalar
from fuser.tilegen.value import Value


def is_sum(at: Index) -> bool:
    """Whether an expression has sums and products only, whose low bits need no others."""
    return not any(isinstance(atom, FloorDiv | Mod | Extreme) for atom, _ in at.terms)


ScalarOf = Callable[[Value], Operand]
LookupOf = Callable[[Lookup, Layout, Coordinates], str]


class Indexer:
    """Evaluates expressions over one layout. Keep one for the registers of one op only: what it
    remembers is valid while the block it was made in dominates the uses."""

    def __init__(
        self, emitter: Integers, layout: Layout, scalar: ScalarOf, lookup: LookupOf,
        type: str = "i32",
    ) -> None:  # fmt: skip
        """type: in which it computes; what `scalar` and `lookup` give is of it."""
        self.emitter = emitter
        self.type = type
        self._threads: dict[int, Operand] = {}
        self.layout = layout
        self._scalar = scalar
        self._lookup = lookup
        self._sums: dict[tuple[tuple[Operand, int], ...], str | None] = {}
        self._atoms: dict[tuple[Atom, Coordinates], Operand] = {}
        self._quotients: dict[tuple[str, int], Operand] = {}
        self._multiples: dict[Index, int] = {}
        self._tests: dict[tuple[str | None, int, int], str] = {}

    def thread(self, axis: int) -> Operand:
        found = self.emitter.thread_coordinate(self.layout.bits, axis)
        if self.type == "i32" or isinstance(found, int):
            return found
        if axis not in self._threads:
            self._threads[axis] = self.emitter.head.resize("zext", found, "i32", self.type)
        return self._threads[axis]

    def evaluate(self, at: Index, offset: Coordinates) -> Linear:
        """The value of an expression at a register, in i32."""
        constant = at.constant
        parts: list[tuple[Operand, int]] = []
        for atom, coefficient in at.terms:
            if isinstance(atom, Axis):
                constant += coefficient * offset[atom.axis]
                value = self.thread(atom.axis)
            elif isinstance(atom, FloorDiv) and self._divides(atom.base, atom.divisor):
                value, whole = self._exact_quotient(atom, offset)
                constant += coefficient * whole
            else:
                value = self._atom(atom, offset)
            if isinstance(value, int):
                constant += coefficient * value
            else:
                parts.append((value, coefficient))
        return Linear(self._sum(tuple(parts)), constant)

    def _sum(self, parts: tuple[tuple[Operand, int], ...]) -> str | None:
        if not parts:
            return None
        if parts not in self._sums:
            total: Operand = 0
            for value, coefficient in parts:
                by = self.emitter.size(coefficient, self.type)
                part = self.emitter.times(value, by, self.type)
                total = self.emitter.plus(total, part, self.type)
            assert isinstance(total, str)
            self._sums[parts] = total
        return self._sums[parts]

    def _atom(self, atom: Atom, offset: Coordinates) -> Operand:
        if isinstance(atom, Scalar):
            return self._scalar(atom.value)
        axes = sorted(Index(0, ((atom, 1),)).axes())
        key = (atom, tuple(offset[axis] for axis in axes))
        if key not in self._atoms:
            self._atoms[key] = self._compute(atom, offset)
        return self._atoms[key]

    def _compute(self, atom: Atom, offset: Coordinates) -> Operand:
        emitter = self.emitter
        match atom:
            case FloorDiv():
                return self._divide(atom.base, atom.divisor, offset, quotient=True)
            case Mod():
                return self._divide(atom.base, atom.divisor, offset, quotient=False)
            case Extreme():
                type = self.type
                items = [emitter.total(self.evaluate(item, offset), type) for item in atom.items]
                best = items[0]
                for item in items[1:]:
                    fn: Arithmetic = "smin" if atom.fn == "min" else "smax"
                    best = emitter.folded(fn, best, item, type)
                return best
            case Lookup():
                return self._lookup(atom, self.layout, offset)
            case _:
                raise LoweringError(f"index atom {atom} cannot be evaluated")

    def _divide(self, base: Index, divisor: int, offset: Coordinates, *, quotient: bool) -> Operand:
        """base // divisor or base % divisor, rounded down, by an unsigned division."""
        emitter = self.emitter
        dynamic, constant = self.evaluate(base, offset)
        if is_symbolic(constant, divisor, base.range[0], base.constant):
            total = emitter.total(Linear(dynamic, constant), self.type)
            by = emitter.size(divisor, self.type)
            return self._divide_whole(base, total, by, quotient=quotient)
        if dynamic is None:
            return constant // divisor if quotient else constant % divisor
        whole, rest = divmod(constant, divisor)
        if not quotient and self._divides(base, divisor):
            return rest
        # lift what may be negative by whole divisors: the thread part is never below its range
        low = base.range[0] - base.constant + rest
        lift = -(low // divisor) if low < 0 else 0
        if lift * divisor > INT32:
            total = emitter.plus(dynamic, constant, self.type)
            return self._divide_signed(total, divisor, quotient=quotient)
        lifted = emitter.plus(dynamic, rest + lift * divisor, self.type)
        if not quotient:
            return emitter.compute("urem", lifted, divisor, self.type)
        result = emitter.compute("udiv", lifted, divisor, self.type)
        return emitter.plus(result, whole - lift, self.type)

    def _exact_quotient(self, atom: FloorDiv, offset: Coordinates) -> tuple[Operand, int]:
        """A quotient whose dividend is a multiple of the divisor but for a constant of the
        register: what does not depend on that, and the rest."""
        dynamic, constant = self.evaluate(atom.base, offset)
        whole = constant // atom.divisor
        if dynamic is None:
            return 0, whole
        key = (dynamic, atom.divisor)
        if key not in self._quotients:
            self._quotients[key] = self.emitter.compute("udiv", dynamic, atom.divisor, self.type)
        return self._quotients[key], whole

    def _divides(self, base: Index, divisor: int) -> bool:
        """Whether what of an expression is no constant of a register is a multiple of a divisor,
        and surely none below 0."""
        low = base.range[0] - base.constant
        if is_symbolic(divisor, low, base.constant):
            return False
        return bool(low >= 0 and self._multiple(base) % divisor == 0)

    def _multiple(self, base: Index) -> int:
        """What the part of an expression that is no constant of a register is a multiple of; 0
        where there is none."""
        if base not in self._multiples:
            self._multiples[base] = self._find_multiple(base)
        return self._multiples[base]

    def _find_multiple(self, base: Index) -> int:
        found = 0
        for atom, coefficient in base.terms:
            match atom:
                case Axis():
                    multiple = gcd(*(basis[atom.axis] for basis in self.layout.bits))
                case Scalar():
                    multiple = atom.value.multiple
                case FloorDiv() if self._divides(atom.base, atom.divisor):
                    multiple = self._multiple(atom.base) // atom.divisor
                case _:
                    multiple = 1
            if is_symbolic(coefficient, multiple):
                return 1
            found = gcd(found, coefficient * multiple)
        return found

    def _divide_whole(
        self, base: Index, total: Operand, divisor: Operand, *, quotient: bool
    ) -> Operand:
        """The same where numbers are sizes of the kernel."""
        if not certain(base.range[0]):
            return self._divide_signed(total, divisor, quotient=quotient)
        return self.emitter.compute("udiv" if quotient else "urem", total, divisor, self.type)

    def _divide_signed(self, total: Operand, divisor: Operand, *, quotient: bool) -> Operand:
        """The same where nothing is known about the range: a signed division, rounded down."""
        e, type = self.emitter, self.type
        rest = e.compute("srem", total, divisor, type)
        negative = e.compare("slt", rest, 0, type)
        if not quotient:
            up = e.plus(rest, divisor, type)
            return e.pick(negative, up, rest, type)
        result = e.compute("sdiv", total, divisor, type)
        down = e.plus(result, -1, type)
        return e.pick(negative, down, result, type)

    # conditions ---------------------------------------------------------------------------------

    def below(self, at: Linear, size: int) -> Operand | None:
        """0 <= at < size; None where it surely holds, 0 where it surely does not."""
        if at.dynamic is None:
            if certain(at.constant) and certain(size - 1 - at.constant):
                return None
            if certain(-1 - at.constant) or certain(at.constant - size):
                return 0
        key = (at.dynamic, at.constant, size)
        if key not in self._tests:
            total = self.emitter.total(at, self.type)
            limit = self.emitter.size(size, self.type)
            self._tests[key] = self.emitter.compare("ult", total, limit, self.type)
        return self._tests[key]

    def inside(self, shape: tuple[int, ...], offset: Coordinates) -> Operand | None:
        """Whether the register's element lies inside a tile that the layout covers with room to
        spare; None where all of it does."""
        result: Operand | None = None
        for axis, extent in enumerate(shape):
            reach = self.layout.thread_span(axis) - 1 + offset[axis]
            if reach < extent:
                continue
            at = Linear(None, offset[axis])
            thread = self.thread(axis)
            if isinstance(thread, str):
                at = Linear(thread, offset[axis])
            result = self.emitter.both(result, self.below(at, extent))
        return result

    def conditions(
        self, bounds: tuple[tuple[Index, int], ...], shape: tuple[int, ...], offset: Coordinates
    ) -> Operand | None:
        """The predicate of a load or store at a register."""
        result = self.inside(shape, offset)
        for at, size in bounds:
            result = self.emitter.both(result, self.below(self.evaluate(at, offset), size))
        return result
