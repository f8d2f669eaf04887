"""Operators on tensors: + - * / // %, shifts, bits, comparisons, selection, casts.

Integers stay index expressions as long as an operation allows it. 16-bit floats are computed in
float32 and rounded after every operation, as the language asks for.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from fuser.dtypes import i64
from fuser.language import narrow, shapes
from fuser.language.emitter import Emitter, is_nonnegative
from fuser.language.promotion import of_number, of_operands
from fuser.language.tensors import Bound, Choice, Pointer, Tensor
from fuser.language.types import (
    BY_NAME,
    ElementType,
    float32,
    int1,
    int32,
    int64,
)
from fuser.language.wholes import (
    decided,
    divide_whole,
    fits,
    is_whole,
    operate_whole,
    stay_whole,
)
from fuser.tilegen.index import Index

Operand = Any
"""A tensor, a pointer or a Python number."""

COMPARE = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
MAPS = {
    "+": "add", "-": "sub", "*": "mul", "/": "div", "&": "bitwise_and", "|": "bitwise_or",
    "^": "bitwise_xor", "<<": "shift_left", ">>": "shift_right", "min": "min", "max": "max",
    "fmin": "fmin", "fmax": "fmax",
}  # fmt: skip
PYTHON: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "//": operator.floordiv, "%": operator.mod, "**": operator.pow, "<<": operator.lshift,
    ">>": operator.rshift, "&": operator.and_, "|": operator.or_, "^": operator.xor,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq,
    "!=": operator.ne,
}  # fmt: skip
UNARY: dict[str, Callable[[Any], Any]] = {
    "-": operator.neg, "+": operator.pos, "~": operator.invert, "not": operator.not_,
}  # fmt: skip


def is_number(value: object) -> bool:
    return isinstance(value, bool | int | float)


def as_tensor(e: Emitter, value: Operand, dtype: ElementType | None = None) -> Tensor:
    """A tensor of an operand: of a Python number by its value."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Pointer | Choice):
        e.fail(f"a {value.type} is not a number", "load what it points to")
    if not is_number(value):
        e.fail(f"{describe(value)} is not a number or a tile")
    kind = dtype or of_number(value)
    if kind is None:
        e.fail(f"{value} needs more than 64 bits")
    return e.constant(value, kind)


def describe(value: object) -> str:
    """A value in an error message."""
    if isinstance(value, Tensor | Pointer | Choice):
        return str(value.type)
    if value is None or is_number(value) or isinstance(value, str):
        return repr(value)
    return f"a {type(value).__name__}"


# binary -------------------------------------------------------------------------------------------


def binary(e: Emitter, op: str, a: Operand, b: Operand) -> Any:
    """`a op b` for the operators of Python; of Python values, Python's result."""
    runtime = (Tensor, Pointer, Choice)
    if not isinstance(a, runtime) and not isinstance(b, runtime):
        return _python(e, op, a, b)
    if isinstance(a, Pointer | Choice) or isinstance(b, Pointer | Choice):
        return _pointer(e, op, a, b)
    if op == "**":
        e.fail("tensors have no **", "multiply, or use exp2(log2(x) * y)")
    if op in COMPARE:
        return compare(e, op, a, b)
    x, y = operands(e, a, b, op)
    match op:
        case "/":
            return _true_divide(e, x, y)
        case "//" | "%":
            return _divide(e, op, x, y)
        case "&" | "|" | "^" | "<<" | ">>":
            if x.dtype.is_floating():
                what = f"{op} has invalid operands of type {a_of(a)} and {a_of(b)}"
                e.fail(what, "bits are those of integers")
            if op == ">>" and isinstance(a, Tensor) and a.dtype.is_int_signed():
                return _signed_shift(e, x, y)
            return _bits(e, op, x, y)
    return arithmetic(e, op, x, y)


def a_of(value: Operand) -> str:
    return describe(value)


def _python(e: Emitter, op: str, a: Any, b: Any) -> Any:
    try:
        return PYTHON[op](a, b)
    except (TypeError, ArithmeticError, ValueError) as error:
        e.fail(f"{describe(a)} {op} {describe(b)}: {error}")


def operands(e: Emitter, a: Operand, b: Operand, op: str = "+") -> tuple[Tensor, Tensor]:
    """Both as tensors of one type and shape."""
    x, y = as_tensor(e, a), as_tensor(e, b)
    dtype = of_operands(x.dtype, is_number(a), y.dtype, is_number(b), op in ("/", "//", "%"))
    if dtype is None:
        e.fail(
            f"Cannot use {op} on {x.dtype} and {y.dtype} because they have different signedness",
            "cast one: truncation would depend on which is meant",
        )
    for given in (a, b):
        if is_number(given) and not isinstance(given, bool) and dtype.is_int():
            _check_range(e, given, dtype)
    return shapes.broadcast_together(e, cast(e, x, dtype), cast(e, y, dtype))


def _check_range(e: Emitter, number: float | int, dtype: ElementType) -> None:
    if isinstance(number, int) and not dtype.ir.lowest <= number <= dtype.ir.highest:
        e.fail(f"{number} is out of range for {dtype}, the tensor's type", "cast the tensor first")


def arithmetic(e: Emitter, op: str, x: Tensor, y: Tensor) -> Tensor:
    """+, -, *, min, max of two tensors of one type and shape."""
    if stay_whole(x, y):
        found = operate_whole(op, e.index_of(x), e.index_of(y))
        if found is not None:
            if fits(e, found, x.dtype):
                return e.whole(found, x.dtype, x.shape)
            if not e.options.get("wraps"):  # whole numbers grow instead
                return e.whole(found, int64, x.shape)
    if x.dtype.is_bool() and op in "+-*":
        x, y = cast(e, x, int32), cast(e, y, int32)
        return arithmetic(e, op, x, y)
    fn = MAPS[op]
    if fn in ("fmin", "fmax") and not x.dtype.is_floating():
        fn = fn[1:]
    return mapped(e, fn, x.dtype, x, y)


def mapped(
    e: Emitter,
    fn: str,
    dtype: ElementType,
    *args: Tensor,
    ends: tuple[int, int] | None = None,
) -> Tensor:
    """A map of tensors of one type and shape; 16-bit floats are widened for it and rounded. ends:
    the least and the greatest value that an integer result can have."""
    if dtype.is_fp8() and fn in ("abs", "neg"):
        return narrow.with_sign(e, fn, args[0])
    made = e.builder.map(fn, *(narrow.widened(e, arg) for arg in args))
    if ends is not None:
        made.low, made.high = ends
    return narrow.narrowed(e, made, dtype)


def _true_divide(e: Emitter, x: Tensor, y: Tensor) -> Tensor:
    if not x.dtype.is_floating():
        x, y = cast(e, x, float32), cast(e, y, float32)
    return mapped(e, "div", x.dtype, x, y)


def _divide(e: Emitter, op: str, x: Tensor, y: Tensor) -> Tensor:
    """// and % of tensors truncate."""
    if x.dtype.is_floating():
        if op == "//":
            e.fail("// of floats", "use floor(a / b)")
        return mapped(e, "fmod", x.dtype, x, y)
    if is_whole(x) and is_whole(y):
        found = divide_whole(op, x.index, y.index)
        if found is not None:
            return e.whole(found, x.dtype, x.shape)
    ends: tuple[int, int] | None = None
    if x.index is not None and is_nonnegative(x.index):  # neither is farther from 0 than x
        high = x.index.range[1]
        ends = (0 if op == "%" else -high, high)
    return mapped(e, "div" if op == "//" else "fmod", x.dtype, x, y, ends=ends)


def _bits(e: Emitter, op: str, x: Tensor, y: Tensor) -> Tensor:
    if x.dtype is int1 and op in "&|^":
        return logical(e, op, x, y)
    if op == "<<" and is_whole(x) and is_whole(y) and isinstance(y.literal, int):
        return arithmetic(e, "*", x, e.whole(1 << y.literal, x.dtype, x.shape))
    if op == ">>" and is_whole(x) and is_whole(y) and isinstance(y.literal, int):
        found = divide_whole("//", x.index, Index(1 << y.literal))
        if found is not None:
            return e.whole(found, x.dtype, x.shape)
    return mapped(e, MAPS[op], x.dtype, x, y)


def _signed_shift(e: Emitter, x: Tensor, y: Tensor) -> Tensor:
    """x >> y where what x was before promotion has a sign: it is shifted in."""
    if x.dtype.is_int_signed():
        return _bits(e, ">>", x, y)
    signed = BY_NAME[f"int{x.dtype.bits}"]
    word = e.tensor(e.builder.bitcast(e.value_of(x), signed.ir), signed)
    found = mapped(e, MAPS[">>"], signed, word, cast(e, y, signed))
    return e.tensor(e.builder.bitcast(e.value_of(found), x.dtype.ir), x.dtype)


def logical(e: Emitter, op: str, x: Tensor, y: Tensor) -> Tensor:
    """and, or, xor of bools of one shape: conjunctions keep their bounds."""
    if op == "&":
        for this, other in ((x, y), (y, x)):
            if isinstance(this.literal, bool):
                return other if this.literal else this
        if x.bounds is not None or y.bounds is not None:
            rests = [r for r in map(_rest, (x, y)) if r is not None]
            rest = rests[0] if rests else None
            if len(rests) == 2:
                both = e.builder.map("logical_and", *map(e.value_of, rests))
                rest = e.tensor(both, int1)
            return Tensor(int1, x.shape, bounds=(x.bounds or ()) + (y.bounds or ()), rest=rest)
    fn = {"&": "logical_and", "|": "logical_or", "^": "logical_xor"}[op]
    return mapped(e, fn, int1, x, y)


def _rest(x: Tensor) -> Tensor | None:
    return x.rest if x.bounds is not None else x


def compare(e: Emitter, op: str, a: Operand, b: Operand) -> Tensor:
    """A comparison; of whole numbers a bound."""
    x, y = operands(e, a, b, op)
    if is_whole(x) and is_whole(y):
        assert x.index is not None and y.index is not None
        sides = {
            "<": (x.index, y.index),
            "<=": (x.index, y.index + 1),
            ">": (y.index, x.index),
            ">=": (y.index, x.index + 1),
        }.get(op)
        if sides is not None:
            known = decided(sides[1] - sides[0] - 1)
            if known is not None:
                return Tensor(int1, x.shape, literal=known)
            return Tensor(int1, x.shape, bounds=(Bound(*sides),))
        if x.index == y.index:
            return Tensor(int1, x.shape, literal=op == "==")
    made = e.builder.map(COMPARE[op], *(narrow.widened(e, side) for side in (x, y)))
    return e.tensor(made, int1)


# unary --------------------------------------------------------------------------------------------


def unary(e: Emitter, op: str, value: Operand) -> Any:
    """`-x`, `+x`, `~x`, `not x`."""
    if not isinstance(value, Tensor | Pointer | Choice):
        try:
            return UNARY[op](value)
        except TypeError as error:
            e.fail(str(error))
    if isinstance(value, Pointer | Choice):
        e.fail(f"{op} of a {value.type}")
    if op == "+":
        return value
    if op == "-":
        if value.literal is not None and value.index is None:
            return Tensor(value.dtype, value.shape, literal=-value.literal)
        if is_whole(value):
            assert value.index is not None
            return e.whole(value.index * -1, value.dtype, value.shape)
        if value.dtype.is_floating():
            return mapped(e, "neg", value.dtype, value)
        zero = e.constant(0, value.dtype, value.shape)
        return arithmetic(e, "-", zero, value)
    if op == "not":
        truth = to_bool(e, value)
        return mapped(e, "logical_not", int1, truth)
    if value.dtype.is_floating():
        e.fail(f"~ of {value.type}")
    if value.dtype is int1:
        if isinstance(value.literal, bool):
            return Tensor(int1, value.shape, literal=not value.literal)
        return mapped(e, "logical_not", int1, value)
    return mapped(e, "bitwise_not", value.dtype, value)


def to_bool(e: Emitter, value: Tensor) -> Tensor:
    return value if value.dtype is int1 else cast(e, value, int1)


# selection and casts ------------------------------------------------------------------------------


def where(e: Emitter, condition: Operand, a: Operand, b: Operand) -> Any:
    """a where the condition holds, else b."""
    choice = to_bool(e, as_tensor(e, condition))
    if isinstance(a, Pointer) and isinstance(b, Pointer):
        if a.buffer is not b.buffer:  # `fl.where` makes a Choice of them
            e.fail("a choice between pointers of two arguments", "load from both, and choose then")
        offset = where(e, choice, a.offset, b.offset)
        return Pointer(a.buffer, a.element, offset, a.const)
    x, y = operands(e, a, b, "+")
    shape = shapes.common_shape(e, choice.shape, x.shape)
    choice, x, y = (shapes.broadcast_to(e, item, shape) for item in (choice, x, y))
    if isinstance(choice.literal, bool):
        return x if choice.literal else y
    made = e.builder.map("select", *map(e.value_of, (choice, x, y)))
    return e.tensor(made, x.dtype)


def cast(e: Emitter, value: Tensor, dtype: ElementType, toward_zero: bool = False) -> Tensor:
    """The tensor as another type, by value."""
    if value.dtype == dtype:
        return value
    if value.literal is not None and not dtype.is_fp8() and not value.dtype.is_fp8():
        if dtype.is_int() and not dtype.is_bool() and isinstance(value.literal, float):
            if value.literal == value.literal and abs(value.literal) < 2**63:
                return e.constant(int(value.literal), dtype, value.shape)
        else:
            return e.constant(value.literal, dtype, value.shape)
    if is_whole(value) and dtype in (int32, int64):
        assert value.index is not None
        if fits(e, value.index, dtype):
            return Tensor(dtype, value.shape, index=value.index)
    if value.dtype.is_fp8() or dtype.is_fp8():
        return narrow.convert(e, value, dtype, toward_zero)
    made = e.value_of(value)
    if value.index is not None and dtype.is_floating():
        made = (
            e.builder.index(value.index, value.shape, i64 if value.dtype is int64 else None)
            if value.shape
            else made
        )
    if toward_zero and dtype.is_floating() and dtype.bits < value.dtype.bits:
        return narrow.toward_zero(e, value, dtype)
    return e.tensor(e.builder.cast(made, dtype.ir), dtype)


# pointers -----------------------------------------------------------------------------------------


def _pointer(e: Emitter, op: str, a: Operand, b: Operand) -> Any:
    if isinstance(b, Choice) and op == "+":
        a, b = b, a
    if isinstance(a, Choice) and op in ("+", "-"):
        moved = tuple(_pointer(e, op, pointer, b) for pointer in a.pointers)
        which = a.which
        if which.shape:
            which = shapes.broadcast_to(e, which, moved[0].shape)
        return Choice(moved, which)
    if isinstance(a, Pointer) and isinstance(b, Pointer):
        if op == "-" and a.buffer is b.buffer:
            return binary(e, "-", a.offset, b.offset)
        if op in COMPARE and a.buffer is b.buffer:
            return compare(e, op, a.offset, b.offset)
        e.fail(f"{op} of two pointers")
    if op == "+" and isinstance(b, Pointer):
        a, b = b, a
    if op in ("+", "-") and isinstance(a, Pointer):
        step = as_tensor(e, b)
        if not step.dtype.is_int():
            e.fail(f"{a.type} {op} {step.type}", "add whole numbers to a pointer")
        return Pointer(a.buffer, a.element, moved_by(e, op, a.offset, step), a.const)
    if op in ("==", "!="):
        return op == "!="  # a pointer of an argument is never null
    e.fail(f"{op} of {describe(a)} and {describe(b)}", "pointers have + and - with integers")


def moved_by(e: Emitter, op: str, offset: Tensor, step: Tensor) -> Tensor:
    """An offset plus or minus a step, in 64 bits: addresses never wrap."""
    wide = Tensor(int64, step.shape, index=e.index_of(step))
    x, y = shapes.broadcast_together(e, offset, wide)
    return arithmetic(e, op, x, y)
