"""Symbolic dims: `Dim = int | DimExpr`.

A `DimExpr` is a polynomial with integer coefficients over atoms, where an atom is a named symbol or
one of floordiv, mod, min, max of two dims. It is immutable and hash-consed: equal expressions are
the same object, so `==`, `is` and `hash` agree and are cheap. An expression that turns out to be
constant is an int, never a DimExpr.

Symbols stand for tensor sizes, so they are taken to be >= 0 wherever a simplification needs a sign.
The text form is Python: `4*batch*seq + 1`, `(seq + 1)//2`, `min(a, b)`; a name that is no
identifier is quoted.
"""

from __future__ import annotations

import ast
import keyword
import math
import numbers
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Protocol, TypeAlias, TypeGuard, cast
from weakref import WeakValueDictionary

from fuser.errors import ParseError, ShapeError

LONGEST = 2000
"""Characters of a dim expression that is read."""

HIGHEST_POWER = 8
"""Of a dim that is read as `dim**power`."""

HUGE = 1 << 61
"""No size is that large; a bound beyond it says that nothing is known."""

Dim: TypeAlias = "int | DimExpr"


class Decider(Protocol):
    """What answers questions about symbols: `fuser.graph.sizes.Sizes`."""

    examples: dict[str, int]

    def at_least(self, difference: Dim) -> bool: ...
    def is_zero(self, difference: Dim) -> bool: ...
    def value(self, dim: DimExpr) -> int: ...


ACTIVE: ContextVar[Decider | None] = ContextVar("sizes", default=None)
"""The Sizes in force. Without one a symbolic dim is equal to itself only, and is no number."""


def active() -> Decider | None:
    return ACTIVE.get()


_Terms: TypeAlias = "tuple[tuple[tuple[Atom, ...], int], ...]"


class Atom:
    """A symbol (`op == "symbol"`, `name`) or an opaque call `op(args)`; hash-consed."""

    __slots__ = ("__weakref__", "args", "name", "op", "order")
    op: str
    name: str
    args: tuple[Dim, ...]
    order: str

    def __repr__(self) -> str:
        return self.order


class DimExpr:
    """A non-constant symbolic dim. Build it with `symbol`, arithmetic, `minimum`, `maximum`."""

    __slots__ = ("__weakref__", "terms")
    terms: _Terms

    # Arithmetic with a float makes a float of the dim, which is a question (see `__float__`).

    def __add__(self, other: Dim) -> Dim:
        if _inexact(other):
            return cast(Dim, self.__float__() + other)
        return _add(self, other)

    __radd__ = __add__

    def __sub__(self, other: Dim) -> Dim:
        if _inexact(other):
            return cast(Dim, self.__float__() - other)
        return _add(self, _scale(other, -1))

    def __rsub__(self, other: Dim) -> Dim:
        if _inexact(other):
            return cast(Dim, other - self.__float__())
        return _add(other, _scale(self, -1))

    def __mul__(self, other: Dim) -> Dim:
        if _inexact(other):
            return cast(Dim, self.__float__() * other)
        return _multiply(self, other)

    __rmul__ = __mul__

    def __neg__(self) -> Dim:
        return _scale(self, -1)

    def __floordiv__(self, other: Dim) -> Dim:
        if _inexact(other):
            return cast(Dim, self.__float__() // other)
        return floordiv(self, other)

    def __rfloordiv__(self, other: Dim) -> Dim:
        if _inexact(other):
            return cast(Dim, other // self.__float__())
        return floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        if _inexact(other):
            return cast(Dim, self.__float__() % other)
        return modulo(self, other)

    def __rmod__(self, other: Dim) -> Dim:
        if _inexact(other):
            return cast(Dim, other % self.__float__())
        return modulo(other, self)

    # questions, which only an active Sizes answers ----------------------------------------------

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        decider = ACTIVE.get()
        if decider is None or not isinstance(other, DimExpr | numbers.Integral):
            return NotImplemented
        return decider.is_zero(_add(self, _scale(cast(Dim, other), -1)))

    def __lt__(self, other: Dim | float) -> bool:
        return not self.__ge__(other)

    def __le__(self, other: Dim | float) -> bool:
        if isinstance(other, float):
            return other > 0 if math.isinf(other) else self <= math.floor(other)
        return _decider(self).at_least(_add(other, _scale(self, -1)))

    def __gt__(self, other: Dim | float) -> bool:
        return not self.__le__(other)

    def __ge__(self, other: Dim | float) -> bool:
        if isinstance(other, float):
            return other < 0 if math.isinf(other) else self >= math.ceil(other)
        return _decider(self).at_least(_add(self, _scale(other, -1)))

    def __bool__(self) -> bool:
        decider = ACTIVE.get()
        return decider is None or not decider.is_zero(self)

    def __index__(self) -> int:
        return _decider(self).value(self)

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.__index__())

    def __truediv__(self, other: Dim | float) -> float:
        return self.__index__() / other

    def __rtruediv__(self, other: float) -> float:
        return other / self.__index__()

    def __abs__(self) -> Dim:
        return self if self >= 0 else -self

    def bit_length(self) -> int:
        return self.__index__().bit_length()

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return parse, (str(self),)

    def __str__(self) -> str:
        text = ""
        for monomial, coefficient in self.terms:
            factors = [str(atom) for atom in monomial]
            if abs(coefficient) != 1 or not factors:
                factors.insert(0, str(abs(coefficient)))
            sign = "-" if coefficient < 0 else "+"
            text += (f" {sign} " if text else sign.strip("+")) + "*".join(factors)
        return text

    __repr__ = __str__


def is_decided(*dims: Dim) -> bool:
    """Whether comparisons of the dims have an answer: they are ints, or a Sizes is in force."""
    return ACTIVE.get() is not None or not any(isinstance(dim, DimExpr) for dim in dims)


def _inexact(other: object) -> TypeGuard[Any]:
    """Whether a number is no integer, so that the result is none either."""
    return not isinstance(other, DimExpr | int | numbers.Integral)


def _decider(dim: DimExpr) -> Decider:
    decider = ACTIVE.get()
    if decider is None:
        raise _symbolic(dim)
    return decider


def _symbolic(dim: Dim) -> ShapeError:
    names = ", ".join(sorted(symbols_of(dim)))
    return ShapeError(
        f"the dim {dim} is symbolic", hint=f"bind {names} to an int (dims={{...}} or --dim)"
    )


def of_atom(atom: Atom) -> DimExpr:
    """The dim that is this atom alone."""
    made = _make({(atom,): 1})
    assert isinstance(made, DimExpr)
    return made


_atoms: WeakValueDictionary[tuple[object, ...], Atom] = WeakValueDictionary()
_exprs: WeakValueDictionary[_Terms, DimExpr] = WeakValueDictionary()


def _atom(op: str, name: str, args: tuple[Dim, ...]) -> Atom:
    key = (op, name, args)
    found = _atoms.get(key)
    if found is None:
        found = Atom()
        found.op, found.name, found.args = op, name, args
        found.order = _atom_text(op, name, args)
        _atoms[key] = found
    return found


def _atom_text(op: str, name: str, args: tuple[Dim, ...]) -> str:
    if op == "symbol":
        plain = name.isidentifier() and not keyword.iskeyword(name) and name not in ("min", "max")
        return name if plain else repr(name)
    if op in ("min", "max"):
        return f"{op}({args[0]}, {args[1]})"
    lhs, rhs = (_operand_text(arg) for arg in args)
    return f"({lhs}{'//' if op == 'floordiv' else '%'}{rhs})"


def _operand_text(dim: Dim) -> str:
    text = str(dim)
    return text if text.lstrip("-").isalnum() and not text.startswith("-") else f"({text})"


def _make(terms: Mapping[tuple[Atom, ...], int]) -> Dim:
    kept = {monomial: value for monomial, value in terms.items() if value}
    if all(not monomial for monomial in kept):
        return kept.get((), 0)
    # Longest monomials first, the constant last; text order within, for stable printing.
    ordered = tuple(
        sorted(kept.items(), key=lambda item: (-len(item[0]), [a.order for a in item[0]]))
    )
    found = _exprs.get(ordered)
    if found is None:
        found = DimExpr()
        found.terms = ordered
        _exprs[ordered] = found
    return found


def _terms(dim: Dim) -> dict[tuple[Atom, ...], int]:
    return dict(dim.terms) if isinstance(dim, DimExpr) else {(): int(dim)}


def _add(a: Dim, b: Dim) -> Dim:
    total = _terms(a)
    for monomial, value in _terms(b).items():
        total[monomial] = total.get(monomial, 0) + value
    return _make(total)


def _scale(dim: Dim, factor: int) -> Dim:
    return _make({monomial: value * factor for monomial, value in _terms(dim).items()})


def _multiply(a: Dim, b: Dim) -> Dim:
    total: dict[tuple[Atom, ...], int] = {}
    for left, x in _terms(a).items():
        for right, y in _terms(b).items():
            monomial = tuple(sorted(left + right, key=lambda atom: atom.order))
            total[monomial] = total.get(monomial, 0) + x * y
    return _make(total)


def _call(op: str, a: Dim, b: Dim) -> Dim:
    return _make({(_atom(op, "", (a, b)),): 1})


def symbol(name: str) -> DimExpr:
    """The dim named `name`; the same object every time."""
    made = _make({(_atom("symbol", name, ()),): 1})
    assert isinstance(made, DimExpr)
    return made


def _is(dim: Dim, number: int) -> bool:
    """Whether a dim is that constant, without asking for sizes."""
    return not isinstance(dim, DimExpr) and dim == number


def _divide_term(
    monomial: tuple[Atom, ...], value: int, by: tuple[Atom, ...], by_value: int
) -> tuple[tuple[Atom, ...], int] | None:
    """(value * monomial) / (by_value * by) if that is exact, else None."""
    if value % by_value:
        return None
    rest = list(monomial)
    for atom in by:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest), value // by_value


def floordiv(a: Dim, b: Dim) -> Dim:
    """a // b, rounded down as Python does. Raises ShapeError for a literal zero divisor."""
    if isinstance(b, int) and b == 0:
        raise ShapeError(f"the dim {a} // 0 divides by zero")
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if a is b or _is(a, 0):
        return 1 if a is b else 0
    if _is(b, 1):
        return a
    divisor = _terms(b)
    if len(divisor) == 1:
        # (d*q + r) // d == q + r // d for integer q: split off the terms that divide exactly.
        ((by, by_value),) = divisor.items()
        quotient: dict[tuple[Atom, ...], int] = {}
        remainder: dict[tuple[Atom, ...], int] = {}
        for monomial, value in _terms(a).items():
            exact = _divide_term(monomial, value, by, by_value)
            if exact is None:
                remainder[monomial] = value
            else:
                quotient[exact[0]] = exact[1]
        rest = _make(remainder)
        if isinstance(rest, int) and isinstance(b, int):
            return _add(_make(quotient), rest // b)
        if _is(rest, 0):
            return _make(quotient)
        if quotient:
            return _add(_make(quotient), _call("floordiv", rest, b))
    else:
        factor = _ratio(a, b)
        if factor is not None:
            return factor
    return _call("floordiv", a, b)


def _ratio(a: Dim, b: Dim) -> int | None:
    """The integer k with a == k*b, or None."""
    numerator, denominator = _terms(a), _terms(b)
    monomial, value = next(iter(denominator.items()))
    factor, rest = divmod(numerator.get(monomial, 0), value)
    return factor if factor and not rest and _scale(b, factor) is a else None


def modulo(a: Dim, b: Dim) -> Dim:
    """a % b with the sign of b, as Python does. Raises ShapeError for a literal zero divisor."""
    quotient = floordiv(a, b)
    opaque = isinstance(quotient, DimExpr) and any(
        atom.op == "floordiv" for monomial, _ in quotient.terms for atom in monomial
    )
    if not opaque:
        return _add(a, _scale(_multiply(b, quotient), -1))
    if isinstance(b, int):
        # Terms that b divides do not matter.
        a = _make({m: v for m, v in _terms(a).items() if v % b})
    return a % b if isinstance(a, int) and isinstance(b, int) else _call("mod", a, b)


def _is_nonnegative(dim: Dim) -> bool:
    """Whether dim >= 0 for all symbol values >= 0; False means unknown."""
    if isinstance(dim, int):
        return dim >= 0
    return all(
        value >= 0 and all(_atom_nonnegative(atom) for atom in monomial)
        for monomial, value in dim.terms
    )


def _atom_nonnegative(atom: Atom) -> bool:
    if atom.op == "symbol":
        return True
    if atom.op == "max":
        return any(map(_is_nonnegative, atom.args))
    if atom.op == "mod":
        return _is_nonnegative(atom.args[1])
    return all(map(_is_nonnegative, atom.args))


def minimum(a: Dim, b: Dim) -> Dim:
    """min(a, b), resolved where the sign of the difference is known, or asked for."""
    if _is_larger(b, a):
        return a
    if _is_larger(a, b):
        return b
    if (decider := ACTIVE.get()) is not None:
        return a if decider.at_least(_add(b, _scale(a, -1))) else b
    return _call("min", *_ordered(a, b))


def maximum(a: Dim, b: Dim) -> Dim:
    """max(a, b), resolved where the sign of the difference is known, or asked for."""
    if _is_larger(a, b):
        return a
    if _is_larger(b, a):
        return b
    if (decider := ACTIVE.get()) is not None:
        return a if decider.at_least(_add(a, _scale(b, -1))) else b
    return _call("max", *_ordered(a, b))


def _is_larger(a: Dim, b: Dim) -> bool:
    """Whether a is at least b whatever the symbols are, or by a number that stands for infinity."""
    difference = _add(a, _scale(b, -1))
    if isinstance(difference, DimExpr):
        huge = [value for _, value in difference.terms if abs(value) >= HUGE]
        if len(huge) == 1:
            return huge[0] > 0
    return _is_nonnegative(difference)


def _ordered(a: Dim, b: Dim) -> tuple[Dim, Dim]:
    return (a, b) if str(a) <= str(b) else (b, a)


def ceildiv(a: Dim, b: Dim) -> Dim:
    """a / b rounded up."""
    return _scale(floordiv(_scale(a, -1), b), -1)


def product(dims: tuple[Dim, ...] | list[Dim]) -> Dim:
    """The product of dims; 1 for none."""
    total: Dim = 1
    for dim in dims:
        total = _multiply(total, dim) if isinstance(total, DimExpr) else dim * total
    return total


def as_int(dim: Dim) -> int:
    """The value of a dim that is known; a symbolic one while a Sizes answers for it. Raises
    ShapeError that names the free symbols."""
    if isinstance(dim, DimExpr):
        if ACTIVE.get() is None:
            raise _symbolic(dim)
        return cast(int, dim)
    return int(dim)


def symbols_of(dim: Dim) -> set[str]:
    """The names of the symbols in dim."""
    if not isinstance(dim, DimExpr):
        return set()
    names: set[str] = set()
    for monomial, _ in dim.terms:
        for atom in monomial:
            if atom.op == "symbol":
                names.add(atom.name)
            for arg in atom.args:
                names |= symbols_of(arg)
    return names


def substitute(dim: Dim, values: Mapping[str, Dim]) -> Dim:
    """dim with symbols replaced; symbols that values does not name stay."""
    if not isinstance(dim, DimExpr):
        return dim
    total: Dim = 0
    for monomial, coefficient in dim.terms:
        part: Dim = coefficient
        for atom in monomial:
            part = _multiply(part, _substitute_atom(atom, values))
        total = _add(total, part)
    return total


_OPS = {"floordiv": floordiv, "mod": modulo, "min": minimum, "max": maximum}


def _substitute_atom(atom: Atom, values: Mapping[str, Dim]) -> Dim:
    if atom.op == "symbol":
        return values[atom.name] if atom.name in values else symbol(atom.name)
    a, b = (substitute(arg, values) for arg in atom.args)
    return _OPS[atom.op](a, b)


def may_equal(a: Dim, b: Dim) -> bool:
    """False only if a and b differ whatever the symbols are, or at the sizes in force."""
    if a.__class__ is int and b.__class__ is int:
        return a == b
    if ACTIVE.get() is not None:
        return bool(a == b)
    difference = _add(a, _scale(b, -1))
    return not isinstance(difference, int) or difference == 0


def parse(text: str) -> Dim:
    """The dim that `str` printed, whatever sizes are in force. Raises ParseError."""
    if len(text) > LONGEST:
        raise ParseError(f"{text[:40]!r}... is too long for a dim expression")
    token = ACTIVE.set(None)
    try:
        return from_ast(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, KeyError, TypeError, RecursionError, MemoryError) as error:
        raise ParseError(f"{text!r} is not a dim expression") from error
    finally:
        ACTIVE.reset(token)


def from_ast(node: ast.expr) -> Dim:
    """The dim that a Python expression spells. Raises ValueError, KeyError, ShapeError."""
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.Constant(value=str(name)) | ast.Name(id=name):
            return symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _scale(from_ast(operand), -1)
        case ast.Call(func=ast.Name(id=name), args=[first, second], keywords=[]):
            return _OPS[name.lower()](from_ast(first), from_ast(second))
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(power))):
            if isinstance(power, bool) or not 0 <= power <= HIGHEST_POWER:
                raise ValueError(f"the power {power}")
            return product([from_ast(left)] * power)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = from_ast(left), from_ast(right)
            match op:
                case ast.Add():
                    return _add(a, b)
                case ast.Sub():
                    return _add(a, _scale(b, -1))
                case ast.Mult():
                    return _multiply(a, b)
                case ast.FloorDiv():
                    return floordiv(a, b)
                case ast.Mod():
                    return modulo(a, b)
    raise ValueError(ast.dump(node))
