"""What a loop carries from one iteration to the next.

It is found by compiling the body once on trial. A whole number that grows by the same step in every
iteration is not carried: it is its first value plus a multiple of the loop variable, so that
pointers that are advanced in a loop stay affine.

In a trial the loops inside are compiled once, on trial as well: what they carry says of which types
their results are, and that is all that the trial needs of them. So a body in loops nested d deep is
compiled at most 2 d + 1 times.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fuser.graph.sizes import same
from fuser.language.arithmetic import cast
from fuser.language.emitter import Emitter
from fuser.language.exits import Flags
from fuser.language.leaves import alike, leaves_of, rebuilt, show
from fuser.language.source import Source
from fuser.language.tensors import Tensor, Undefined
from fuser.language.types import int1
from fuser.language.wholes import is_whole
from fuser.tilegen.index import Index, scalar
from fuser.tilegen.ir import Block
from fuser.tilegen.value import INDEX, TileType, Value


class Walker(Protocol):
    """What compiles the statements of a function: statements.py."""

    e: Emitter
    source: Source
    names: dict[str, Any]

    def run(self, body: Sequence[ast.stmt]) -> Any: ...
    def value(self, node: ast.expr) -> Any: ...
    def condition(self, node: ast.expr) -> bool | Tensor: ...
    def runtime(self, value: Any) -> Any: ...
    def assign(self, target: ast.expr, value: Any) -> None: ...
    def fork(self, condition: Tensor, then: Callable[[], Any], other: Callable[[], Any]) -> Any: ...


@dataclass(eq=False)
class Carried:
    """A leaf that changes in a loop. step: what an iteration adds to it, if that is always the
    same; else it is carried, as a value of the Tile IR, or as the distance from its first value."""

    first: Tensor
    inside: Tensor
    distance: Value | None = None
    step: Index | None = None

    @property
    def is_kept(self) -> bool:
        """Whether no iteration changes it."""
        return self.step is not None and self.step.is_constant and same(self.step.constant, 0)

    @property
    def is_counted(self) -> bool:
        """Whether it follows from the number of the iteration."""
        return self.step is not None and self.step.is_constant


def assigned(body: list[ast.stmt]) -> list[str]:
    """The names that statements assign, in order."""
    found: dict[str, None] = {}
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found[node.id] = None
    return list(found)


class Trial:
    """Compiles a body and throws away what it emits: to see what it changes."""

    def __init__(self, w: Walker) -> None:
        self.w = w

    def __enter__(self) -> Trial:
        w = self.w
        self.names = dict(w.names)
        self.block = Block()
        self.views = len(w.e.builder.kernel.views)
        w.e.trials += 1
        self.inside = w.e.inside(self.block)
        self.inside.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self.inside.__exit__(*exc)
        self.w.e.builder.forget_views(self.views)
        self.w.e.trials -= 1
        self.w.names = self.names


class Carry:
    """What a loop carries, by name: leaves that change, with stand-ins for its body."""

    def __init__(
        self,
        w: Walker,
        body: list[ast.stmt],
        flags: Flags | None = None,
        variable: str = "",
    ) -> None:
        """flags: of a loop that may be left in its middle. variable: of a `for`, which sets it in
        each iteration; there whole numbers may stay expressions of it."""
        self.w, self.body, self.flags, self.steps = w, body, flags, bool(variable)
        self.mark = w.e.builder.value(TileType(INDEX)).serial
        """Values made later are made in the loop."""
        own = (variable, flags.go if flags is not None else "")
        self.before = {
            name: w.runtime(w.names[name])
            for name in assigned(body)
            if name in w.names and not isinstance(w.names[name], Undefined) and name not in own
        }
        self.leaves: dict[str, list[Carried]] = {}
        for name, value in self.before.items():
            self.leaves[name] = [self._stand_in(leaf) for leaf in leaves_of(value)]

    def _stand_in(self, leaf: Tensor) -> Carried:
        e = self.w.e
        if self.steps and is_whole(leaf):
            distance = e.builder.value(TileType(INDEX), "d")
            assert leaf.index is not None
            inside = Tensor(leaf.dtype, leaf.shape, index=leaf.index + scalar(distance))
            return Carried(leaf, inside, distance)
        return Carried(leaf, self._parameter(leaf))

    def _parameter(self, leaf: Tensor) -> Tensor:
        value = self.w.e.builder.value(TileType(leaf.dtype.ir, leaf.shape), "a")
        inside = Tensor(leaf.dtype, leaf.shape)
        for block in self.w.e.blocks:  # seen wherever the loop is seen
            inside.made[block] = value
        return self.w.e.counted(inside, value)

    def enter(self) -> None:
        """Give the names their stand-ins."""
        for name, value in self.before.items():
            insides = [carried.inside for carried in self.leaves[name]]
            self.w.names[name] = rebuilt(value, insides)

    def learn(self, iteration: Callable[[], object]) -> bool:
        """Compile the body on trial: find what it leaves alone, and steps. Whether an iteration may
        end the loop; the name of what it then returns gets something of that type to hold."""
        w, flags = self.w, self.flags
        if flags is not None and flags.value:
            w.e.flagged.pop(flags.value, None)
            w.names.pop(flags.value, None)
        with Trial(w):
            self.enter()
            if flags is not None:
                w.names[flags.go] = w.e.constant(True, int1)
            iteration()
            ends = flags is not None and w.names[flags.go].literal is not True
            self._learn()
        if flags is not None and flags.value:
            hold_value(w, flags)
        return ends

    def _learn(self) -> None:
        w = self.w
        for name in list(self.before):
            value, after = self.before[name], w.names.get(name)
            if isinstance(after, Undefined) or name not in w.names:
                after = value
            if not alike(value, after):
                after = self._retyped(name, value, after)
            for number, (carried, new) in enumerate(
                zip(self.leaves[name], leaves_of(after), strict=True)
            ):
                self._learn_leaf(name, number, carried, new)

    def _retyped(self, name: str, value: Any, after: Any) -> Any:
        """The value before a loop in the type that an iteration gives it, if that loses nothing."""
        w = self.w
        first = value if isinstance(value, Tensor) else None
        if isinstance(first, Tensor) and isinstance(after, Tensor) and first.literal is not None:
            same_shape = first.shape == after.shape
            wider = after.dtype.is_floating() or after.dtype.is_int()
            if same_shape and wider:
                self.before[name] = cast(w.e, first, after.dtype)
                self.leaves[name] = [Carried(self.before[name], self._parameter(self.before[name]))]
                return after
        w.e.fail(
            f"{name} is {show(value)} before the loop and {show(after)} after an iteration",
            "give it its type and shape before the loop, e.g. with zeros()",
        )

    def _learn_leaf(self, name: str, number: int, carried: Carried, new: Tensor) -> None:
        if new is carried.inside:
            carried.step = Index(0)
            return
        if carried.distance is None:
            return
        if is_whole(new):
            assert new.index is not None and carried.inside.index is not None
            step = new.index - carried.inside.index
            outer = all(value.serial < self.mark for value in step.values())
            if outer and not step.axes():
                carried.step = step
                return
        first = carried.first
        self.leaves[name][number] = Carried(first, self._parameter(first))

    @property
    def all(self) -> list[Carried]:
        return [carried for leaves in self.leaves.values() for carried in leaves]

    def check(self, name: str) -> list[Tensor]:
        """The leaves of a name after an iteration."""
        value, after = self.before[name], self.w.names[name]
        if isinstance(after, Undefined):
            self.w.e.fail(f"{name} may have no value after an iteration: {after.why}")
        if not alike(value, after):
            self.w.e.fail(
                f"{name} is {show(value)} before the loop and {show(after)} after an iteration",
                "give it its type and shape before the loop, e.g. with zeros()",
            )
        return leaves_of(after)

    def leave_unknown(self) -> None:
        """The names behind a loop in a trial: what the loop may change is known by its type."""
        w, flags = self.w, self.flags
        for name, leaves in self.leaves.items():
            new = [item.first if item.is_kept else self._parameter(item.first) for item in leaves]
            w.names[name] = rebuilt(self.before[name], new)
        forget(w, self.body, self.before)
        if flags is not None and flags.value:
            hold_value(w, flags, self._parameter)


def hold_value(w: Walker, flags: Flags, leaf: Callable[[Tensor], Tensor] | None = None) -> None:
    """Let the name of a loop's result hold something of the type that a trial returned, zeros
    unless `leaf` makes something else of each leaf."""
    found = w.e.flagged.get(flags.value)
    make = leaf or (lambda item: w.e.constant(0, item.dtype, item.shape))
    w.names[flags.value] = rebuilt(found, [make(item) for item in leaves_of(found)])


def forget(w: Walker, body: list[ast.stmt], known: Container[str]) -> None:
    """Names that only a loop sets have no value behind it."""
    for name in assigned(body):
        if name not in known:
            w.names[name] = Undefined("it is set inside of a loop, which may not run")
