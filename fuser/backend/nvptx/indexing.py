"""Index expressions as i32 arithmetic, at the coordinates of a layout's registers.

An expression is separable most of the time: what depends on the thread is computed once, what
depends on the register is a constant that ends up in an address's immediate field.
"""

from __future__ import annotations

from collections.abc import Callable

from fuser.backend.nvptx.emitter import INT32, Emitter, Linear, Operand
from fuser.backend.nvptx.layout import Coordinates, Layout
from fuser.errors import LoweringError
from fuser.graph.sizes import certain, is_symbolic
from fuser.tilegen.index import Atom, Axis, Extreme, FloorDiv, Index, Lookup, Mod, Scalar
from fuser.tilegen.value import Value

ScalarOf = Callable[[Value], Operand]
LookupOf = Callable[[Lookup, Layout, Coordinates], str]


class Indexer:
    """Evaluates expressions over one layout. Keep one for the registers of one op only: what it
    remembers is valid while the block it was made in dominates the uses."""

    def __init__(
        self, emitter: Emitter, layout: Layout, scalar: ScalarOf, lookup: LookupOf
    ) -> None:
        self.emitter = emitter
        self.layout = layout
        self._scalar = scalar
        self._lookup = lookup
        self._sums: dict[tuple[tuple[Operand, int], ...], str | None] = {}
        self._atoms: dict[tuple[Atom, Coordinates], Operand] = {}
        self._tests: dict[tuple[str | None, int, int], str] = {}

    def thread(self, axis: int) -> Operand:
        return self.emitter.thread_coordinate(self.layout.bits, axis)

    def evaluate(self, at: Index, offset: Coordinates) -> Linear:
        """The value of an expression at a register, in i32."""
        constant = at.constant
        parts: list[tuple[Operand, int]] = []
        for atom, coefficient in at.terms:
            if isinstance(atom, Axis):
                constant += coefficient * offset[atom.axis]
                value = self.thread(atom.axis)
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
                by = self.emitter.size(coefficient)
                total = self.emitter.plus(total, self.emitter.times(value, by))
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
                items = [emitter.total(self.evaluate(item, offset)) for item in atom.items]
                best = items[0]
                for item in items[1:]:
                    if isinstance(best, int) and isinstance(item, int):
                        best = min(best, item) if atom.fn == "min" else max(best, item)
                    else:
                        best = emitter.value(
                            f"call i32 @llvm.s{atom.fn}.i32(i32 {best}, i32 {item})"
                        )
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
            total = emitter.total(Linear(dynamic, constant))
            return self._divide_whole(base, total, emitter.size(divisor), quotient=quotient)
        if dynamic is None:
            return constant // divisor if quotient else constant % divisor
        whole, rest = divmod(constant, divisor)
        # lift what may be negative by whole divisors: the thread part is never below its range
        low = base.range[0] - base.constant + rest
        lift = -(low // divisor) if low < 0 else 0
        if lift * divisor > INT32:
            total = emitter.plus(dynamic, constant)
            return self._divide_signed(total, divisor, quotient=quotient)
        lifted = emitter.plus(dynamic, rest + lift * divisor)
        if not quotient:
            return emitter.value(f"urem i32 {lifted}, {divisor}")
        result = emitter.value(f"udiv i32 {lifted}, {divisor}")
        return emitter.plus(result, whole - lift)

    def _divide_whole(
        self, base: Index, total: Operand, divisor: Operand, *, quotient: bool
    ) -> Operand:
        """The same where numbers are sizes of the kernel."""
        if not certain(base.range[0]):
            return self._divide_signed(total, divisor, quotient=quotient)
        op = "udiv" if quotient else "urem"
        return self.emitter.value(f"{op} i32 {total}, {divisor}")

    def _divide_signed(self, total: Operand, divisor: Operand, *, quotient: bool) -> Operand:
        """The same where nothing is known about the range: a signed division, rounded down."""
        e = self.emitter
        rest = e.value(f"srem i32 {total}, {divisor}")
        negative = e.value(f"icmp slt i32 {rest}, 0")
        if not quotient:
            return e.value(f"select i1 {negative}, i32 {e.plus(rest, divisor)}, i32 {rest}")
        result = e.value(f"sdiv i32 {total}, {divisor}")
        return e.value(f"select i1 {negative}, i32 {e.plus(result, -1)}, i32 {result}")

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
            total, limit = self.emitter.total(at), self.emitter.size(size)
            self._tests[key] = self.emitter.value(f"icmp ult i32 {total}, {limit}")
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
