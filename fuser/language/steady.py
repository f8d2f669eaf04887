"""Launches like earlier ones: what a kernel was launched with once, it is launched with natively.

A call has a form: how many arguments by position, and which names in which order. For each form the
launchers of `fuser.runtime.fast_launch` are kept, one for each class of arguments that was seen;
each makes sure itself that it is right for a call. What none of them takes goes the way of
`KernelFunction.run`, which then has it remembered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from fuser.backend.module import CompiledKernel
from fuser.errors import UnsupportedError
from fuser.graph.sizes import LEAST, Guard
from fuser.language.arguments import ALIGNMENT, Arguments, integer_class
from fuser.language.compile import (
    SMALL_BYTES,
    ArrayClass,
    Fixed,
    FloatClass,
    IntegerClass,
    Program,
)
from fuser.runtime.cpu_launch import CpuKernel
from fuser.runtime.cuda_launch import CudaKernel
from fuser.runtime.fast_launch import (
    LARGEST,
    Constant,
    FastLaunch,
    Integer,
    Parameter,
    Pointer,
    Real,
    Signature,
    make_fast_launcher,
    why_not,
)

MOST_LAUNCHERS = 16
"""Of a form; the one that was used last is asked first."""
MOST_MADE = 64
"""Of a form, ever: where each call is of another class, launchers are no use."""

_log = logging.getLogger("fuser.launches")


class Compiled(Protocol):
    """What a launcher needs of a compiled kernel (`fuser.language.jit.Variant`)."""

    program: Program
    compiled: CompiledKernel
    guards: tuple[Guard, ...]
    loaded: CpuKernel | CudaKernel | None

    @property
    def writes(self) -> frozenset[int]: ...


Variant = TypeVar("Variant", bound=Compiled)


@dataclass(eq=False)
class Form(Generic[Variant]):
    """names: the parameter of each argument of a call, None for an option. defaults: of the other
    parameters."""

    names: tuple[str | None, ...]
    defaults: dict[str, Any]
    launchers: list[tuple[FastLaunch, Variant]] = field(default_factory=list)
    made: int = 0

    def bound(self, given: Sequence[Any]) -> dict[str, Any]:
        """Arguments by parameter."""
        if not self.defaults and None not in self.names:
            return dict(zip(self.names, given, strict=True))  # type: ignore[arg-type]
        found = {name: value for name, value in zip(self.names, given, strict=True) if name}
        return {**found, **self.defaults}


class Steady(Generic[Variant]):
    """The native launchers of one kernel."""

    def __init__(self) -> None:
        self._forms: dict[tuple[Any, ...], Form[Variant]] = {}

    def clear(self) -> None:
        """Forget every launch: the kernel is another one now."""
        self._forms.clear()

    def launch(
        self,
        grid: Any,
        args: tuple[Any, ...],
        named: dict[str, Any],
        extents: Callable[[Any, dict[str, Any]], tuple[int, ...]],
    ) -> Variant | None:
        """Launch natively, or do nothing and return None. extents: the tuple that a grid stands
        for."""
        form = self._forms.get((len(args), *named))
        if form is None:
            return None
        given = (*args, *named.values()) if named else args
        if callable(grid):
            grid = grid(form.bound(given))
        if type(grid) is not tuple:
            grid = extents(grid, {})
        launchers = form.launchers
        for item in launchers:
            if item[0](given, grid):
                if item is not launchers[0]:
                    form.launchers = [item, *(other for other in launchers if other is not item)]
                return item[1]
        return None

    def remember(
        self,
        args: tuple[Any, ...],
        named: dict[str, Any],
        bound: dict[str, Any],
        found: Arguments,
        plain: frozenset[str],
        variant: Variant,
    ) -> None:
        """Have calls like this one launched natively. It was launched."""
        key = (len(args), *named)
        form = self._forms.get(key)
        if form is None:
            by_position = tuple(bound)[: len(args)]
            names = (*by_position, *(name if name in bound else None for name in named))
            rest = {name: value for name, value in bound.items() if name not in names}
            form = self._forms[key] = Form(names, rest)
        if form.made >= MOST_MADE or variant.loaded is None:
            return
        form.made += 1
        given = (*args, *named.values())
        try:
            signature = _signature(form, given, found, plain, variant)
            fast = make_fast_launcher(variant.loaded, signature, given)
            if fast is None:
                raise UnsupportedError(why_not(variant.loaded, signature, given))
        except UnsupportedError as error:
            _log.info("%s has no native launch: %s", variant.compiled.name, error)
            return
        form.launchers = [(fast, variant), *form.launchers[: MOST_LAUNCHERS - 1]]


def _signature(
    form: Form[Any],
    given: Sequence[Any],
    found: Arguments,
    plain: frozenset[str],
    variant: Compiled,
) -> Signature:
    program = variant.program
    kinds = found.classes
    if program.reports is not None:
        raise UnsupportedError("it prints or asserts")
    if program.facts:
        raise UnsupportedError("it asks for the shapes of arrays")
    if any(isinstance(kind, tuple) for kind in kinds.values()):
        raise UnsupportedError("an argument is a tuple")
    if any(not isinstance(kinds[name], Fixed) for name in form.defaults):
        raise UnsupportedError("a number is left to its default")
    leaves = {name: leaf for leaf, name in enumerate(kinds)}
    place = {leaves[name]: at for at, name in enumerate(form.names) if name is not None}
    written = variant.writes
    parameters = [
        Constant(value)
        if name is None
        else _parameter(kinds[name], name, value, found, leaves[name], leaves[name] in written,
                        name in plain)
        for name, value in zip(form.names, given, strict=True)
    ]  # fmt: skip
    rank = len(program.kernel.grid)
    return Signature(
        parameters,
        [place[leaf] for leaf in program.buffers],
        {
            name: (leaf if leaf < 0 else place[leaf], by)
            for name, (leaf, by) in program.symbols.items()
        },
        [(place[leaf], dtype.ir) for leaf, dtype in program.scalars],
        tuple(reversed(range(rank))),
        variant.guards,
    )


def _parameter(
    kind: Any, name: str, value: Any, found: Arguments, leaf: int, writes: bool, plain: bool
) -> Parameter:
    match kind:
        case Fixed():
            return Constant(value)
        case ArrayClass():
            aligned = found.records[leaf].address % ALIGNMENT == 0
            most = LARGEST if kind.large else SMALL_BYTES
            return Pointer(writes, ALIGNMENT, aligned, most)
        case FloatClass():
            return Real()
        case IntegerClass() if type(value) is int:
            return _integer(kind, name, value, plain)
    raise UnsupportedError(f"{name} is a {type(value).__name__}")


def _integer(kind: IntegerClass, name: str, value: int, plain: bool) -> Integer:
    """The integers of the same class as this one, or at least it alone."""
    small, large = 1 << 31, LARGEST
    ranges = [
        Integer(2 * ALIGNMENT, small - ALIGNMENT, True), Integer(LEAST, small - 1, False),
        Integer(LEAST, small - 1, None), Integer(-small, -1), Integer(small, large),
        Integer(-large - 1, -small - 1),
    ]  # fmt: skip
    for item in ranges:
        ends = [item.low, item.high]
        inside = item.low <= value <= item.high
        if item.multiple is None:
            ends += [2 * ALIGNMENT, ALIGNMENT + 1] if item.low == LEAST else []
        elif (value % ALIGNMENT == 0) != item.multiple:
            inside = False
        if inside and all(integer_class(name, end, plain) == kind for end in ends):
            return item
    return Integer(value, value)
