"""What expressions of a kernel stand for while it is compiled: numbers, pointers, tuples.

A `Tensor` is a number or a tile of numbers at run time. Integers that are whole-number expressions
of program ids, loop variables, arguments and tile coordinates are kept as such (`index`): addresses
made of them become views, and they never wrap. A mask that is a conjunction of `a < b` of such
integers keeps its `bounds`, which become extents of views. Everything becomes an op of the Tile IR
only where that is needed (`Emitter.value_of`).

What is known while compiling (constexpr) is a plain Python object: an int, a dtype, a function.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fuser.language.types import BY_NAME, BlockType, ElementType, PointerType

if TYPE_CHECKING:  # what decorators need of this module loads without the compiler
    from fuser.tilegen.index import Index
    from fuser.tilegen.ir import Block, Buffer
    from fuser.tilegen.value import Value


@dataclass(frozen=True)
class Bound:
    """The fact, or the question, whether below < limit, over the axes of a tile."""

    below: Index
    limit: Index


class RuntimeValue:
    """What a kernel knows at run time only: tensors, pointers and block pointers."""


@dataclass(eq=False)
class Tensor(RuntimeValue):
    """A number (shape ()) or a tile of numbers.

    Of `literal`, `index`, `bounds` (with `rest`) and `made`, at least one says what it is. literal:
    a constant everywhere. index: a whole number over the tile's axes. bounds: of a bool, facts that
    all hold where it is true, together with `rest`. made: ops that compute it, by the block of the
    Tile IR that holds them.
    """

    dtype: ElementType
    shape: tuple[int, ...] = ()
    literal: float | int | bool | None = None
    index: Index | None = None
    bounds: tuple[Bound, ...] | None = None
    rest: Tensor | None = None
    made: dict[Block, Value] = field(default_factory=dict)
    hints: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def type(self) -> ElementType | BlockType:
        return BlockType(self.dtype, self.shape) if self.shape else self.dtype

    def __repr__(self) -> str:
        return str(self.type)


@dataclass(eq=False)
class Pointer(RuntimeValue):
    """A pointer, or a tile of them: places `offset` elements behind the start of a buffer.

    element: what is read there. layout: of an array argument, its shape and strides
    (fuser/language/layouts.py), as long as the offset is 0.
    """

    buffer: Buffer
    element: ElementType
    offset: Tensor
    const: bool = False
    layout: object = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.offset.shape

    @property
    def dtype(self) -> PointerType:
        return PointerType(self.element, const=self.const)

    @property
    def type(self) -> PointerType | BlockType:
        return BlockType(self.dtype, self.shape) if self.shape else self.dtype

    def __repr__(self) -> str:
        return str(self.type)


@dataclass(eq=False)
class Choice(RuntimeValue):
    """A pointer that branches, or `where`, set to one argument or another: of `pointers`, which are
    of one type and shape, the one with the number `which`: one number, or a tile of that shape."""

    pointers: tuple[Pointer, ...]
    which: Tensor

    @property
    def element(self) -> ElementType:
        return self.pointers[0].element

    @property
    def shape(self) -> tuple[int, ...]:
        return self.pointers[0].shape

    @property
    def dtype(self) -> PointerType:
        return self.pointers[0].dtype

    @property
    def type(self) -> PointerType | BlockType:
        return self.pointers[0].type

    def __repr__(self) -> str:
        return str(self.type)


@dataclass(eq=False)
class Undefined:
    """A name that has no value on every way to here. why: for the error where it is used."""

    why: str


@dataclass(frozen=True)
class Range:
    """range(start, stop, step) of a `for`; unrolled: static_range."""

    start: Any
    stop: Any
    step: Any
    unrolled: bool = False
    hints: tuple[tuple[str, Any], ...] = ()


class Falls:
    """What running statements gives that do not return: they fall through."""


FALLS = Falls()


@dataclass(frozen=True)
class Builtin:
    """A function of the language: `call(emitter, *arguments, **keywords)` while a kernel is
    compiled. host: what it is outside of kernels, of plain numbers, if it is anything."""

    name: str
    call: Any
    doc: str = ""
    host: Any = None

    def __call__(self, *args: object, **named: Any) -> Any:
        e = named.pop("_semantic", None)
        if e is not None:  # called by Python that runs while a kernel is compiled
            return self.call(e, *map(unwrap, args), **{n: unwrap(a) for n, a in named.items()})
        if self.host is not None:
            return self.host(*args, **named)
        from fuser.errors import LanguageError

        raise LanguageError(
            f"{self.name} is called outside of a kernel",
            hint="it works inside functions with @fuser.kernel or @triton.jit only",
        )

    def __repr__(self) -> str:
        return f"<function {self.name} of the block language>"


class Constexpr:
    """A value that is known while a kernel is compiled, and the annotation of such an argument."""

    value: Any

    def __init__(self, value: Any = None) -> None:
        self.value = unwrap(value)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Call a function that is a constant: kernels do so while they are compiled."""
        return self.value(*(unwrap(a) for a in args), **{n: unwrap(a) for n, a in named.items()})

    def __repr__(self) -> str:
        return f"constexpr[{self.value}]"

    def __bool__(self) -> bool:
        return bool(self.value)

    def __index__(self) -> int:
        return operator.index(self.value)

    def __hash__(self) -> int:
        return hash(self.value)

    def __getitem__(self, at: Any) -> Constexpr:
        return Constexpr(self.value[unwrap(at)])

    def logical_and(self, other: Any) -> Constexpr:
        """`self and other`."""
        return Constexpr(self.value and unwrap(other))

    def logical_or(self, other: Any) -> Constexpr:
        """`self or other`."""
        return Constexpr(self.value or unwrap(other))


def _operators() -> None:
    """Operators of constexprs give constexprs: in Python that runs while a kernel is compiled, and
    outside of kernels."""

    def forward(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, *others: Constexpr(function(self.value, *map(unwrap, others)))

    def backward(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, other: Constexpr(function(unwrap(other), self.value))

    both = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift",
            "and_", "or_", "xor")  # fmt: skip
    for name in both:
        word = name.rstrip("_")
        setattr(Constexpr, f"__{word}__", forward(getattr(operator, name)))
        setattr(Constexpr, f"__r{word}__", backward(getattr(operator, name)))
    for name in ("neg", "pos", "invert", "abs", "eq", "ne", "lt", "le", "gt", "ge"):
        setattr(Constexpr, f"__{name}__", forward(getattr(operator, name)))


_operators()


class ConstantFunction:
    """A Python function that a module holds as a constexpr: called while a kernel is compiled."""

    __constexpr_function__ = True

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.__name__ = function, function.__name__

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.function(*args, **named)


def plain(value: Any) -> Any:
    """A NumPy scalar as the Python number that it is, a type or constexpr of an installed Triton as
    ours; anything else as it is."""
    kind = type(value)
    if kind.__module__ == "triton.language.core":
        if kind.__name__ == "constexpr":
            return unwrap(value.value)
        return BY_NAME.get(str(value), value) if kind.__name__ == "dtype" else value
    return value.item() if isinstance(value, np.bool_ | np.integer | np.floating) else value


def unwrap(value: Any) -> Any:
    """What a Constexpr holds, and of a NumPy scalar the number; anything else as it is."""
    return plain(value.value if isinstance(value, Constexpr) else value)


def is_constexpr(annotation: Any) -> bool:
    """Whether an annotation says that a value is known while compiling."""
    if isinstance(annotation, type) and annotation.__module__ == "triton.language.core":
        annotation = annotation.__name__  # of an installed Triton
    return annotation is Constexpr or (
        isinstance(annotation, str) and annotation.rsplit(".", 1)[-1] == "constexpr"
    )


class Namespace(dict[str, Any]):
    """The names of a function while it is compiled."""
