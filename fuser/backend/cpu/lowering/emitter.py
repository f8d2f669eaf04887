"""What every part of the CPU lowering shares: scopes, index arithmetic, bounds, memory access.

A *point* is where a tile value is wanted: one coordinate (an Index over loop counters and the
lane) per tile axis. A point without lane gives a scalar, one with a lane of width w a vector of w.
Scopes follow the blocks of the function being written: what was computed in a scope is reused in
it and below. *Facts* are bounds of expressions that loops and branches have established.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from fuser.backend import text
from fuser.backend.cpu.analysis import affine
from fuser.backend.function import Function, Module
from fuser.backend.text import Reg, integer
from fuser.base.target import Target
from fuser.errors import VerifyError
from fuser.graph.sizes import certain, is_symbolic, same
from fuser.tilegen.index import Atom, Axis, Extreme, FloorDiv, Index, Lookup, Mod, Scalar
from fuser.tilegen.value import INDEX, UNBOUNDED, TileType, Value

Condition = tuple[Index, int]
"""(expression, extent): 0 <= expression < extent must hold."""


@dataclass(frozen=True)
class Fact:
    """low <= expression <= high at every point of the current scope."""

    expression: Index
    low: int
    high: int


class Emitter:
    """Writes index arithmetic and bounds into the current function."""

    def __init__(self, module: Module, function: Function, target: Target) -> None:
        self.module, self.f, self.target = module, function, target
        self.is_x86 = not target.arch.startswith(("aarch64", "arm"))
        self.has_masks = "+avx512f" in target.features or target.vector_bits >= 512
        self.scalars: dict[Value, Reg] = {}
        self.depths: dict[Value, int] = {}
        self.depth = 0
        self._memo: list[dict[object, Reg]] = [{}]
        self.facts: list[Fact] = []
        self.zero_bytes = 0
        self.alignments: dict[Reg, int] = {}
        """Bytes that a buffer is aligned to where that is not 64, as that of others and of tiles.
        """

    @contextmanager
    def scope(self) -> Iterator[None]:
        """A loop body or branch: what is computed inside is forgotten at its end."""
        facts = len(self.facts)
        self._memo.append({})
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1
            self._memo.pop()
            del self.facts[facts:]

    def recall(self, key: object) -> Reg | None:
        for scope in reversed(self._memo):
            if key in scope:
                return scope[key]
        return None

    def remember(self, key: object, reg: Reg) -> Reg:
        self._memo[-1][key] = reg
        return reg

    def counter(self, reg: Reg, low: int, high: int, multiple: int = 1, hint: str = "i") -> Index:
        """An index scalar held in an i64 register, as an Index."""
        if same(high, low) or (not is_symbolic(low, high) and high < low):
            return Index(low)
        value = Value(TileType(INDEX), f"{hint}{len(self.scalars)}", low, high, multiple)
        self.bind(value, reg)
        return Index(0, ((Scalar(value), 1),))

    def bind(self, value: Value, reg: Reg) -> None:
        """Name a register, of an integer, in index expressions."""
        self.scalars[value], self.depths[value] = reg, self.depth

    @contextmanager
    def assuming(self, facts: Iterable[Fact]) -> Iterator[None]:
        """Facts that hold for what is written inside."""
        count = len(self.facts)
        self.facts += facts
        yield
        del self.facts[count:]

    def cover(self, extent: int, size: int, hint: str, body: Callable[[Index, int], None]) -> None:
        """Call body(start, size) for whole blocks of an extent, in a loop, and for what is left."""
        whole = extent // size
        if whole == 1:
            body(Index(0), size)
        elif whole:

            def iteration(i: Reg, carried: list[Reg]) -> list[Reg]:
                with self.scope():
                    body(self.counter(i, 0, (whole - 1) * size, size), size)
                return []

            self.f.loop(0, whole * size, size, [], iteration, hint=hint)
        if extent % size:
            with self.scope():
                body(Index(whole * size), extent % size)

    def placeholder(self, extent: int, multiple: int = 1) -> Index:
        """A coordinate that stands for a loop counter not made yet; no code may name it."""
        value = Value(TileType(INDEX), f"p{id(object())}", 0, max(0, extent - 1), multiple)
        return Index(0, ((Scalar(value), 1),))

    def names(self, index: Index) -> bool:
        """Whether code may name an expression here: all that it is of is in registers."""
        return all(value in self.scalars for value in index.values())

    def depth_of(self, index: Index) -> int:
        return max((self.depths.get(value, 0) for value in index.values()), default=0)

    def index(self, index: Index) -> Reg:
        """An Index without lane as an i64 register. Outer terms are added first, to be hoisted."""
        found = self.recall(index)
        if found is not None:
            return found
        f = self.f
        ordered = sorted(index.terms, key=lambda term: self.depth_of(Index(0, (term,))))
        total = integer(0)
        for position, (atom, coefficient) in enumerate(ordered):
            total = f.add(total, f.mul(self._atom(atom), coefficient))
            if position + 1 < len(ordered):
                part = Index(0, tuple(sorted(ordered[: position + 1], key=str)))
                self.remember(part, total)
        return self.remember(index, f.add(total, index.constant))

    def _scalar_register(self, value: Value) -> Reg:
        """Where what an expression names is. Raises VerifyError if code names what no code before
        it has computed."""
        found = self.scalars.get(value)
        if found is None:
            raise VerifyError(f"an index names {value!r}, which was not computed before it")
        return found

    def _atom(self, atom: Atom) -> Reg:
        f = self.f
        match atom:
            case Scalar():
                return self._scalar_register(atom.value)
            case FloorDiv():
                base = self.index(atom.base)
                divisor = integer(atom.divisor)
                if certain(atom.base.range[0]):
                    return f.op("i64", f"udiv {base.typed}, {divisor}")
                quotient = f.op("i64", f"sdiv {base.typed}, {divisor}")
                rest = f.op("i64", f"srem {base.typed}, {divisor}")
                below = f.convert("sext", f.icmp("slt", rest, 0), "i64")
                return f.add(quotient, below)
            case Mod():
                base = self.index(atom.base)
                divisor = integer(atom.divisor)
                if certain(atom.base.range[0]):
                    return f.op("i64", f"urem {base.typed}, {divisor}")
                rest = f.op("i64", f"srem {base.typed}, {divisor}")
                fixed = f.add(rest, atom.divisor)
                return f.select(f.icmp("slt", rest, 0), fixed, rest)
            case Extreme():
                regs = [self.index(item) for item in atom.items]
                result = regs[0]
                for reg in regs[1:]:
                    result = f.intrinsic("s" + atom.fn, result, reg)
                return result
            case _:
                raise AssertionError(f"{atom} is no scalar")

    def index_vector(self, index: Index, width: int) -> Reg:
        """An Index across the lanes: <width x i32> where its range allows, else <width x i64>."""
        low, high = index.range
        scalar = "i32" if low >= -(1 << 31) and high < (1 << 31) else "i64"
        return self._vector(index, width, scalar)

    def _vector(self, index: Index, width: int, scalar: str) -> Reg:
        key = (index, width, scalar)
        found = self.recall(key)
        if found is not None:
            return found
        f = self.f
        inside, rest = index.split((0,))
        base = self.index(rest)
        if scalar == "i32":
            literal = base.literal
            base = f.convert("trunc", base, "i32") if literal is None else integer(literal, "i32")
        total = f.splat(base, width)
        for atom, coefficient in inside.terms:
            part = self._vector_atom(atom, width, scalar)
            if not same(coefficient, 1):
                part = f.binary("mul", part, integer(coefficient, part.type))
            total = (
                part
                if rest == Index(0) and atom == inside.terms[0][0]
                else f.binary("add", total, part)
            )
        return self.remember(key, total)

    def _vector_atom(self, atom: Atom, width: int, scalar: str) -> Reg:
        f = self.f
        type = text.vector(scalar, width)
        match atom:
            case Axis():
                return text.constants(type, range(width))
            case Lookup():
                reg = self._scalar_register(atom.value)
                if text.bits(reg.type) == text.bits(type):
                    return reg
                name = "trunc" if text.bits(reg.type) > text.bits(type) else "sext"
                return f.convert(name, reg, type)
            case FloorDiv() | Mod():
                # The operand may be wider than the result.
                low, high = atom.base.range
                small = low >= -(1 << 31) and high < (1 << 31)
                inner = "i32" if small else "i64"
                base = self._vector(atom.base, width, inner)
                divisor = integer(atom.divisor, base.type)
                if isinstance(atom, FloorDiv):
                    if certain(low):
                        result = f.binary("udiv", base, divisor)
                    else:
                        quotient = f.binary("sdiv", base, divisor)
                        rest = f.binary("srem", base, divisor)
                        below = f.convert("sext", f.icmp("slt", rest, 0), base.type)
                        result = f.binary("add", quotient, below)
                elif certain(low):
                    result = f.binary("urem", base, divisor)
                else:
                    rest = f.binary("srem", base, divisor)
                    fixed = f.binary("add", rest, divisor)
                    result = f.select(f.icmp("slt", rest, 0), fixed, rest)
                if result.type == type:
                    return result
                name = "trunc" if text.bits(result.type) > text.bits(type) else "sext"
                return f.convert(name, result, type)
            case Extreme():
                regs = [self._vector(item, width, scalar) for item in atom.items]
                total = regs[0]
                for reg in regs[1:]:
                    total = f.intrinsic("s" + atom.fn, total, reg)
                return total
            case _:
                return f.splat(self._atom(atom), width)

    def _opaque(self, mask: Reg) -> Reg:
        """The mask, without what LLVM knows of it."""
        f, width = self.f, text.lanes(mask.type)
        if width > 64:
            return mask
        type = "i32" if width <= 32 else "i64"
        bits = f.convert("zext", f.convert("bitcast", mask, f"i{width}"), type)
        bits = f.op(type, f'call {type} asm "", "=r,0"({bits.typed})')
        return f.convert("bitcast", f.convert("trunc", bits, f"i{width}"), mask.type)

    def proved(self, expression: Index, extent: int) -> bool:
        """Whether 0 <= expression < extent is known at the current point."""
        if not is_symbolic(extent) and extent >= UNBOUNDED:
            return True
        low, high = expression.range
        low_ok, high_ok = certain(low), certain(extent - 1 - high)
        for fact in reversed(self.facts):
            if low_ok and high_ok:
                break
            rest_low, rest_high = (expression - fact.expression).range
            low_ok = low_ok or certain(fact.low + rest_low)
            high_ok = high_ok or certain(extent - 1 - fact.high - rest_high)
        return low_ok and high_ok

    def open_conditions(
        self, expressions: Sequence[Index], extents: Sequence[int]
    ) -> list[Condition]:
        """The bounds that are not known to hold, without a lane where all lanes agree on them."""
        pairs = zip(expressions, extents, strict=True)
        return [
            (affine.first_lane(e, extent), extent) for e, extent in pairs
            if not self.proved(e, extent)
        ]  # fmt: skip

    def holds(self, conditions: Sequence[Condition], given: Reg | None = None) -> Reg | None:
        """An i1 that all conditions (without lane) hold, and `given`; None if there are none."""
        f = self.f
        total: Reg | None = given
        for expression, extent in conditions:
            key = ("holds", expression, extent)
            test = self.recall(key)
            if test is None:
                test = self.remember(key, f.icmp("ult", self.index(expression), extent))
            total = test if total is None else f.binary("and", total, test)
        return total

    def mask(
        self,
        conditions: Sequence[Condition],
        width: int,
        given: Reg | None = None,
        *,
        variable: bool = False,
    ) -> Reg:
        """A <width x i1> of the lanes where all conditions hold, and `given`, an i1 or a vector.
        variable: LLVM is not to know which lanes these are."""
        f = self.f
        some = given if given is not None and text.lanes(given.type) > 1 else None
        uniform = self.holds(
            [c for c in conditions if not affine.has_lane(c[0])], given if some is None else None
        )
        total = None if uniform is None else f.splat(uniform, width)
        if some is not None:
            some = self._opaque(some) if variable else some
            total = some if total is None else f.binary("and", total, some)
        for expression, extent in conditions:
            if affine.has_lane(expression):
                places = self.index_vector(expression, width)
                if variable:
                    scalar = text.element(places.type)
                    bound = f.op(
                        scalar, f'call {scalar} asm "", "=r,0"({integer(extent, scalar).typed})'
                    )
                    test = f.icmp("ult", places, f.splat(bound, width))
                    variable = False
                else:
                    test = f.icmp("ult", places, extent)
                total = test if total is None else f.binary("and", total, test)
        return total or Reg(f"<{width} x i1>", "splat (i1 true)")
