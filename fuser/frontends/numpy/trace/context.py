"""The trace under way, what every traced array has, and how Python values enter the trace."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fuser.dtypes import bool_, from_numpy, u8
from fuser.errors import FeedError, FuserError, TraceError, UsageError
from fuser.frontends.numpy.trace.lines import user_line
from fuser.frontends.numpy.trace.stages import Loop
from fuser.graph.builder import Builder
from fuser.graph.dims import DimExpr
from fuser.graph.ir import Graph, Value
from fuser.graph.ops.kernel_call import row_major
from fuser.graph.sources import Recorder

Scalar = bool | int | float
"""Python numbers: weak in type promotion, as NumPy has it."""


class Traced:
    """An array of a traced function: a dtype and a shape, but no values. weak: the Python type
    whose promotion rules it follows, for arguments that were Python numbers."""

    def __init__(self, trace: Trace, value: Value, weak: type | None = None) -> None:
        self.trace, self.weak = trace, weak
        self._value = value
        self.writes = 0  # how often it was changed in place
        self.source: View | None = None
        self.argument = ""  # its name, if it is the caller's
        self.branches = tuple(trace.assumed)

    @property
    def value(self) -> Value:
        """What it holds now. Raises TraceError for a view of what was changed since."""
        source = self.source
        if source is not None and not source.is_fresh():
            if source.look is None:
                raise TraceError(
                    f"a view of an array ({self._value.type}) is read after the array was changed "
                    "in place",
                    hint="take the view afterwards, or copy it before: .copy()",
                )
            self._value = source.look()
            self.source = replace(source, seen=source.base.writes)
        return self._value

    def rewrite(self, value: Value) -> None:
        """Hold another value of the same type from here on."""
        self._value = value
        self.writes += 1

    @property
    def dtype(self) -> np.dtype:
        return self.value.dtype.numpy

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def ndim(self) -> int:
        return self.value.type.rank

    @property
    def size(self) -> int:
        return self.value.type.size

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.value.type.bytes

    @property
    def strides(self) -> tuple[int, ...]:
        """In bytes: kernels find traced arrays in row-major order, whatever they are views of."""
        return tuple(step * self.itemsize for step in row_major(self.shape))

    @property
    def device(self) -> str:
        return "cpu"


@dataclass(frozen=True, eq=False)
class Check:
    """What must hold of the data. holds: one bool; where: the line that asks for it."""

    holds: Value
    message: str
    where: str
    error: type[FuserError] = FeedError


@dataclass(frozen=True, eq=False)
class View:
    """What a view looks at. seen: how often the base had been changed. index: base[index], or None
    for one that cannot be written through. look: what it shows now, where that is known."""

    base: Traced
    index: Any
    seen: int
    look: Callable[[], Value] | None = None

    def is_fresh(self) -> bool:
        source = self.base.source
        return self.base.writes == self.seen and (source is None or source.is_fresh())


class Trace:
    """One function being recorded into a Graph. array: makes what the function computes with; its
    class lies above the functions, which make arrays by it."""

    def __init__(
        self,
        name: str,
        array: Callable[[Trace, Value, type | None], Traced],
        parent: Trace | None = None,
    ) -> None:
        self.graph = Graph(name)
        self.array = array
        self.parent = parent
        self.loops: list[Loop] = []
        self.checks: list[Check] = []
        self.assumed: list[Value] = []  # predicates of the branches that are being recorded
        # Values of the parent that this trace reads, and the inputs that they are here.
        self.captured: dict[Value, Value] = {}
        self.builder = Builder(self.graph)
        self.recorder = Recorder(self.builder)
        # Arrays that the function closes over become one constant each; the array is kept, so that
        # its id stays its own.
        self._constants: dict[int, tuple[np.ndarray, Value]] = {}

    def capture(self, value: Value) -> Value:
        """A value of the parent as an input."""
        found = self.captured.get(value)
        if found is None:
            name = f"outer{len(self.captured)}"
            found = self.captured[value] = self.graph.add_input(name, value.type)
        return found

    def require(self, holds: Value, message: str, error: type[FuserError] = FeedError) -> None:
        """Every run is an error unless `holds` is true throughout, as far as the branches that are
        being recorded are taken. Raises TraceError in a loop, whose iterations are not looked at.
        """
        if self.parent is not None:
            raise TraceError(
                f"what must hold of the data cannot be checked in a while_loop: {message}",
                hint="compute it before the loop",
            )
        b = self.builder
        for taken in self.assumed:
            holds = b.map("logical_or", b.map("logical_not", taken), holds)
        every = b.reduce("reduce_min", b.cast(holds, u8), range(holds.type.rank))
        where = user_line(sys._getframe())
        self.checks.append(Check(b.cast(every, bool_), message, where, error))

    def constant(self, array: np.ndarray) -> Value:
        found = self._constants.get(id(array))
        if found is None:
            native = array.astype(from_numpy(array.dtype).numpy, copy=False)
            found = (array, self.builder.constant(native))
            self._constants[id(array)] = found
        return found[1]


_current: ContextVar[Trace | None] = ContextVar("fuser_trace", default=None)


@contextmanager
def tracing(trace: Trace) -> Iterator[None]:
    token = _current.set(trace)
    try:
        yield
    finally:
        _current.reset(token)


def maybe_current() -> Trace | None:
    return _current.get()


def current() -> Trace:
    """The trace under way. Raises UsageError if there is none."""
    trace = _current.get()
    if trace is None:
        raise UsageError(
            "this function records a trace, and none is under way",
            hint="call it inside a function given to fuser.jit or fuser.trace",
        )
    return trace


def outermost() -> Trace:
    """The trace of the function itself, also in a loop of it. Raises UsageError without one."""
    trace = current()
    return trace if trace.parent is None else trace.parent


def is_traced(x: object) -> bool:
    return isinstance(x, Traced)


def wrap(value: Value, weak: type | None = None) -> Traced:
    trace = current()
    return trace.array(trace, value, weak)


def lift(x: Any, dtype: np.dtype | None = None) -> Value:
    """x as a Value of the trace, cast to dtype: a traced array, an array, a number, or a nested
    list of those. Raises TraceError."""
    trace = current()
    if isinstance(x, Traced):
        value = x.value
        if x.trace is trace.parent is not None:
            value = trace.capture(value)
        elif x.trace is not trace:
            raise TraceError(
                f"{x!r} belongs to another trace",
                hint="return arrays from a traced function; do not keep them elsewhere",
            )
        return value if dtype is None else trace.builder.cast(value, from_numpy(dtype))
    if isinstance(x, list | tuple) and holds_traced(x):
        parts = [wrap(lift(part)) for part in x]
        common = result_type(*parts) if dtype is None else dtype
        b = trace.builder
        return b.concat([b.unsqueeze(lift(part, common), [0]) for part in parts], 0)
    if isinstance(x, DimExpr):  # an open size, as a number
        return trace.builder.dim(x, from_numpy(np.dtype(dtype or np.int64)))
    if isinstance(x, np.ndarray) and (dtype is None or x.dtype == dtype):
        return trace.constant(x)
    try:
        array = np.asarray(x) if dtype is None else np.asarray(x).astype(dtype)
        return trace.builder.constant(array)
    except (TypeError, ValueError) as error:
        raise TraceError(f"{type(x).__name__} is no array: {error}") from error


def traced(x: Any, dtype: np.dtype | None = None) -> Any:
    """x as a traced array, as `lift` reads it."""
    return wrap(lift(x, dtype))


def holds_traced(x: Any) -> bool:
    """Whether x is a traced array, or a nested list with one."""
    return any(map(is_traced, _leaves(x)))


def _leaves(x: Any) -> Iterator[Any]:
    if isinstance(x, list | tuple):
        for part in x:
            yield from _leaves(part)
    else:
        yield x


def promotion_kind(x: Any) -> Any:
    """What x counts as in type promotion: a NumPy dtype, or `bool`, `int`, `float` when weak."""
    if is_traced(x):
        return x.weak or x.dtype
    if type(x) in (bool, int, float):
        return type(x)
    if isinstance(x, DimExpr):
        return int
    if isinstance(x, list | tuple) and holds_traced(x):
        return result_type(*_leaves(x))
    return np.asarray(x).dtype if not isinstance(x, np.ndarray) else x.dtype


def promotion_kinds(operands: Sequence[Any]) -> list[Any]:
    """The kinds of operands that meet. Beside a dtype of ml_dtypes a Python number takes that
    dtype, as it does beside NumPy's own; NumPy by itself would go to float32."""
    kinds = [promotion_kind(x) for x in operands]
    foreign = next((k for k in kinds if isinstance(k, np.dtype) and k.kind == "V"), None)
    if foreign is None:
        return kinds
    return [foreign if isinstance(kind, type) else kind for kind in kinds]


_DEFAULTS = {bool: np.dtype(np.bool_), int: np.dtype(np.int64), float: np.dtype(np.float64)}


def result_type(*operands: Any) -> np.dtype:
    """The dtype that operands promote to: numpy.result_type, with the rules of NumPy 2 for
    Python numbers."""
    kinds = promotion_kinds(operands)
    strong = [kind for kind in kinds if isinstance(kind, np.dtype)]
    if not strong:
        return np.result_type(*(_DEFAULTS[kind] for kind in kinds))
    # The ufunc machinery knows how Python numbers meet ml_dtypes; result_type does not.
    common = strong[0]
    for kind in [k for k in strong_bools(kinds) if k is not common]:
        common = np.add.resolve_dtypes((common, kind, None))[2]
    return common


def default_kinds(kinds: Sequence[Any]) -> list[Any]:
    """Weak kinds as the dtypes that they have alone."""
    return [_DEFAULTS.get(kind, kind) if isinstance(kind, type) else kind for kind in kinds]


def strong_bools(kinds: Sequence[Any]) -> list[Any]:
    """True and False as arrays of bools: NumPy resolves no Python type for them."""
    return [np.dtype(np.bool_) if kind is bool else kind for kind in kinds]
