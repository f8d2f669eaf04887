"""Launches like earlier ones: what a kernel was launched with once, it is launched with natively.

A call has a form: how many arguments by position, and which names in which order. For each form the
launchers of `fuser.runtime.fast_launch` are kept, one for each class of arguments that was seen;
each makes sure itself that it is right for a call. `fuser.runtime.front` finds them without Python
code; `Steady.launch` does the same in Python, for calls that are spelled in another way. What none
of them takes goes the way of `KernelFunction.run`, which then has it remembered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from fuser.backend.module import CompiledKernel
from fuser.errors import UnsupportedError
from fuser.graph.sizes import LEAST, Guard
from fuser.language.addresses import MEMORY
from fuser.language.arguments import ALIGNMENT, Arguments, integer_class
from fuser.language.compile import (
    SMALL_BYTES,
    ArrayClass,
    Fixed,
    FloatClass,
    IntegerClass,
    Program,
)
from fuser.language.layouts import DIVISOR, LARGE, Fact, What, numbers_of
from fuser.runtime import door, front
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
from fuser.runtime.front import Watch

Asked = tuple[tuple[int, What, int], ...]
"""Numbers of arrays that a kernel asks for: (argument, what, axis)."""
MOST_LAUNCHERS = 16
"""Of a form; the one that was used last is asked first."""
MOST_MADE = 64
"""Of a form, ever: where each call is of another class, launchers are no use."""

_log = logging.getLogger("fuser.launches")


class Compiled(Protocol):
    """What a launcher needs of a compiled kernel (`fuser.language.variants.Variant`)."""

    program: Program
    compiled: CompiledKernel
    guards: tuple[Guard, ...]
    loaded: CpuKernel | CudaKernel | None

    @property
    def writes(self) -> frozenset[int]: ...


Variant = TypeVar("Variant", bound=Compiled)


@dataclass(eq=False)
class Form(Generic[Variant]):
    """names: the parameter of each argument of a call, None for an option. table: all arguments by
    parameter, as of the first call. extra: the arguments behind those of a call: what was left to
    its default and is no constant. asking: launchers that take numbers of arrays behind those."""

    names: tuple[str | None, ...]
    table: dict[str, Any]
    extra: dict[str, Any]
    native: front.Form
    launchers: list[tuple[FastLaunch, Variant, Any]] = field(default_factory=list)
    asking: list[tuple[FastLaunch, Asked, Any]] = field(default_factory=list)
    made: int = 0

    def bound(self, given: Sequence[Any]) -> dict[str, Any]:
        """Arguments by parameter."""
        found = {name: value for name, value in zip(self.names, given, strict=True) if name}
        return {**self.table, **found}

    def add(self, fast: FastLaunch, variant: Variant, answer: Any) -> None:
        self.launchers = [(fast, variant, answer), *self.launchers[: MOST_LAUNCHERS - 1]]
        self.native.set_doors([(item[0], item[2]) for item in self.launchers])


class Steady(Generic[Variant]):
    """The native launchers of one kernel. bind: gives the launcher for a grid."""

    def __init__(
        self, slowly: Callable[..., Any], watches: Callable[[], Sequence[Watch] | None]
    ) -> None:
        """slowly: launches what no native launcher takes, (grid, *args, **named). watches: what
        must hold for native launches, asked for whenever there are new ones; None: all is for
        `slowly` to see."""
        self._forms: dict[tuple[Any, ...], Form[Variant]] = {}
        self._slowly, self._watches = slowly, watches
        self._front: front.Front | None = None
        self.bind: Callable[[Any], Callable[..., Any]] = front.bind_slowly(slowly)

    def clear(self) -> None:
        """Forget every launch: the kernel is another one now."""
        self._forms.clear()
        self._hide()

    def launch(
        self,
        grid: Any,
        args: tuple[Any, ...],
        named: dict[str, Any],
        extents: Callable[[Any, dict[str, Any]], tuple[int, ...]],
    ) -> Any:
        """Launch natively and give the answer that was remembered, or do nothing and return None.
        extents: the tuple that a grid stands for."""
        form = self._forms.get((len(args), *named))
        if form is None or not (form.launchers or form.asking):
            return None
        given = (*args, *named.values(), *form.extra.values())
        if callable(grid):
            grid = grid(form.bound(given[: len(form.names)]))
        if type(grid) is not tuple:
            grid = extents(grid, {})
        for fast, _, answer in form.launchers:
            if fast(given, grid):
                return answer
        for fast, asked, answer in form.asking:
            numbers = numbers_of(given, asked)
            if numbers is not None and fast((*given, *numbers), grid):
                return answer
        return None

    def remember(
        self,
        args: tuple[Any, ...],
        named: dict[str, Any],
        bound: dict[str, Any],
        found: Arguments,
        plain: frozenset[str],
        variant: Variant,
        answer: Any,
        sizes: Mapping[str, int],
    ) -> None:
        """Have calls like this one launched natively. It was launched. answer: what a launch
        gives; sizes: its values of the symbols."""
        if door.problem():
            return
        key = (len(args), *named)
        form = self._forms.get(key)
        if form is None:
            form = self._forms[key] = self._new_form(args, named, bound, found)
        if form.made >= MOST_MADE or variant.loaded is None:
            return
        form.made += 1
        given = (*args, *named.values(), *form.extra.values())
        try:
            signature, asked = _signature(form, given, found, plain, variant, sizes)
            numbers = numbers_of(given, asked)
            if numbers is None:
                raise UnsupportedError("the shape of an array is not at hand")
            given = (*given, *numbers)
            fast = make_fast_launcher(variant.loaded, signature, given)
            if fast is None:
                raise UnsupportedError(why_not(variant.loaded, signature, given))
        except UnsupportedError as error:
            _log.info("%s has no native launch: %s", variant.compiled.name, error)
            return
        if asked:
            form.asking = [(fast, asked, answer), *form.asking[: MOST_LAUNCHERS - 1]]
            return
        watches = self._watches()
        if watches is None:
            self._hide()
        form.add(fast, variant, answer)
        if watches is not None:
            self._show(watches)

    def _show(self, watches: Sequence[Watch]) -> None:
        if self._front is None:
            self._front = front.Front(self._slowly)
            self.bind = self._front.bind
        self._front.set_watches(watches)
        self._front.set_forms([item.native for item in self._forms.values()])

    def _hide(self) -> None:
        """Have Python code see all calls."""
        if self._front is not None:
            self._front.set_forms(())

    def _new_form(
        self, args: tuple[Any, ...], named: dict[str, Any], bound: dict[str, Any], found: Arguments
    ) -> Form[Variant]:
        by_position = tuple(bound)[: len(args)]
        names = (*by_position, *(name if name in bound else None for name in named))
        defaults = {name: value for name, value in bound.items() if name not in names}
        extra = {
            name: value
            for name, value in defaults.items()
            if not isinstance(found.classes[name], Fixed)
        }
        # arguments of this call are not kept
        table = {name: defaults.get(name) for name in bound}
        native = front.Form(len(args), tuple(named), names, table, tuple(extra.values()))
        return Form(names, table, extra, native)


def _signature(
    form: Form[Any],
    given: Sequence[Any],
    found: Arguments,
    plain: frozenset[str],
    variant: Compiled,
    sizes: Mapping[str, int],
) -> tuple[Signature, Asked]:
    """The signature of a call, and the numbers of arrays that come behind its arguments."""
    program = variant.program
    kinds = found.classes
    if MEMORY in program.buffers:
        raise UnsupportedError("it points to memory by addresses")
    if program.reports is not None:
        raise UnsupportedError("it prints or asserts")
    if any(isinstance(kind, tuple) for kind in kinds.values()):
        raise UnsupportedError("an argument is a tuple")
    leaves = {name: leaf for leaf, name in enumerate(kinds)}
    names = (*form.names, *form.extra)
    place = {leaves[name]: at for at, name in enumerate(names) if name is not None}
    written = variant.writes
    parameters = [
        Constant(value)
        if name is None
        else _parameter(kinds[name], name, value, found, leaves[name], leaves[name] in written,
                        name in plain)
        for name, value in zip(names, given, strict=True)
    ]  # fmt: skip
    rank = program.rank
    asked = tuple((place[fact.leaf], fact.what, fact.axis) for fact in program.facts)
    numbers = {fact: len(given) + n for n, fact in enumerate(program.facts)}
    measured = {name: (numbers[fact], by) for name, (fact, by) in program.measures.items()}
    signature = Signature(
        [*parameters, *map(_number, program.facts, numbers_of(given, asked) or ())],
        [place[leaf] for leaf in program.buffers],
        {
            name: (leaf if leaf < 0 else place[leaf], by)
            for name, (leaf, by) in program.symbols.items()
        }
        | measured,
        [(place[leaf], dtype.ir) for leaf, dtype in program.scalars],
        tuple(reversed(range(rank))),
        variant.guards,
        [
            (place[span.leaf], span.start, span.end)
            for span in program.spans
            if span.lies_in(found.records[span.leaf], sizes)  # else it is more than is touched
        ],
    )
    return signature, asked


def _number(fact: Fact, number: int) -> Integer:
    """The numbers for which a fact holds, or at least this one."""
    if fact.by == DIVISOR:
        return Integer(2 * DIVISOR, LARGE - DIVISOR, True)
    if fact.by and number % DIVISOR:
        return Integer(LEAST, LARGE - 1, False)
    return Integer(number, number)


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
