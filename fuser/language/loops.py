"""Loops of a kernel: `for` over range and static_range, `while`.

What a loop carries is found by compiling its body once on trial. A whole number that grows by the
same step in every iteration is not carried: it is its first value plus a multiple of the loop
variable, so that pointers that are advanced in a loop stay affine.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fuser.graph.sizes import certain, divides, is_symbolic, same, size_hint
from fuser.language.arithmetic import (
    as_tensor,
    binary,
    cast,
    compare,
    describe,
    divide_whole,
    is_whole,
    to_bool,
)
from fuser.language.emitter import Emitter
from fuser.language.exits import Flags, as_while, flags_of, until
from fuser.language.leaves import alike, leaves_of, rebuilt, show
from fuser.language.source import Source
from fuser.language.tensors import FALLS, Range, Tensor, Undefined, unwrap
from fuser.language.types import ElementType, int1, int32, int64
from fuser.tilegen import facts, ops
from fuser.tilegen.index import Index, maximum, scalar
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


def assigned(body: list[ast.stmt]) -> list[str]:
    """The names that statements assign, in order."""
    found: dict[str, None] = {}
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found[node.id] = None
    return list(found)


def compile_for(w: Walker, node: ast.For) -> Any:
    """for name in range(...): ..."""
    e = w.e
    if node.orelse:
        e.fail("`else` of a loop", "a kernel's loops have none")
    over = unwrap(w.value(node.iter))
    if isinstance(over, tuple | list):
        items = list(over)
    elif isinstance(over, range):
        over = Range(over.start, over.stop, over.step)
        items = None
    elif isinstance(over, Range):
        items = _unrolled(w, over) if over.unrolled else None
    else:
        e.fail(f"a loop over {describe(over)}", "loop over range, static_range or a tuple")
    flags = flags_of(node)
    if flags is None:
        _refuse_exits(w, node.body)
    if items is not None:
        if flags is not None and flags.value and items:
            _give_value(w, node, flags, items[0])
        _unroll(w, node, items, flags)
        return None
    if not isinstance(node.target, ast.Name):
        e.fail("a loop variable that is no name")
    assert isinstance(over, Range)
    loop = ForLoop(w, node, node.target.id, over)
    if flags is not None and _ends_early(w, node, flags, loop.dtype):
        loop.compile_until(flags)
    else:
        loop.compile()
    return None


def _unroll(w: Walker, node: ast.For, items: Sequence[Any], flags: Flags | None) -> None:
    """The body for each of the items, as long as none ends the loop."""
    for number, item in enumerate(items):
        w.assign(node.target, item)
        w.run(node.body)
        if flags is None:
            continue
        go = w.names[flags.go]
        if go.literal is None:
            rest = items[number + 1 :]
            w.fork(go, lambda rest=rest: _unrolled_rest(w, node, rest, flags), lambda: FALLS)  # type: ignore[misc]
            return
        if not go.literal:
            return


def _unrolled_rest(w: Walker, node: ast.For, rest: Sequence[Any], flags: Flags) -> Any:
    _unroll(w, node, rest, flags)
    return FALLS


def _give_value(w: Walker, node: ast.For | ast.While, flags: Flags, first: Any) -> None:
    """Something for the name of a loop's result to hold, of the type that a trial returns."""
    w.e.flagged.pop(flags.value, None)
    with Trial(w):
        if isinstance(node, ast.For):
            w.assign(node.target, first)
        w.run(node.body)
    _hold_value(w, flags)


def _hold_value(w: Walker, flags: Flags) -> None:
    found = w.e.flagged.get(flags.value)
    zeros = [w.e.constant(0, leaf.dtype, leaf.shape) for leaf in leaves_of(found)]
    w.names[flags.value] = rebuilt(found, zeros)


def _ends_early(
    w: Walker, node: ast.For | ast.While, flags: Flags, dtype: ElementType | None = None
) -> bool:
    """Whether an iteration may end the loop, by a trial; the result's name gets its type."""
    e = w.e
    e.flagged.pop(flags.value, None)
    carry = Carry(w, node.body, False, flags.go)
    with Trial(w):
        if dtype is not None:
            assert isinstance(node, ast.For)
            variable = e.builder.value(TileType(INDEX), "i")
            w.assign(node.target, Tensor(dtype, (), index=scalar(variable)))
        carry.enter()
        w.names[flags.go] = e.constant(True, int1)
        w.run(node.body)
        ends = w.names[flags.go].literal is not True
    if flags.value:
        _hold_value(w, flags)
    return ends


def _unrolled(w: Walker, over: Range) -> list[int]:
    ends = []
    for item in (over.start, over.stop, over.step):
        value = item.literal if isinstance(item, Tensor) else item
        if not isinstance(value, int):
            w.e.fail("an end of static_range must be known while compiling", "use range")
        ends.append(value)
    return list(range(*ends))


def _refuse_exits(w: Walker, body: list[ast.stmt]) -> None:
    for statement in body:
        for item in ast.walk(statement):
            if isinstance(item, ast.Return):
                with w.e.at(w.source, item):
                    w.e.fail("a return inside of a loop", "set a flag, and loop with `while`")


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

    def __init__(self, w: Walker, body: list[ast.stmt], steps: bool, but: str = "") -> None:
        """steps: whether whole numbers may stay expressions of the loop variable. but: a name that
        is left as it is."""
        self.w, self.steps = w, steps
        self.before = {
            name: w.runtime(w.names[name])
            for name in assigned(body)
            if name in w.names and not isinstance(w.names[name], Undefined) and name != but
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

    def learn(self, mark: int) -> None:
        """After a trial of the body: drop what it leaves alone, find steps. mark: values made
        from then on are made in the loop."""
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
                self._learn_leaf(name, number, carried, new, mark)

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

    def _learn_leaf(self, name: str, number: int, carried: Carried, new: Tensor, mark: int) -> None:
        if new is carried.inside:
            carried.step = Index(0)
            return
        if carried.distance is None:
            return
        if is_whole(new):
            assert new.index is not None and carried.inside.index is not None
            step = new.index - carried.inside.index
            outer = all(value.serial < mark for value in step.values())
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


class ForLoop:
    """One `for` over a range."""

    def __init__(self, w: Walker, node: ast.For, name: str, over: Range) -> None:
        self.w, self.node, self.name = w, node, name
        e = w.e
        parts = [as_tensor(e, unwrap(item)) for item in (over.start, over.stop, over.step)]
        for part in parts:
            if part.shape or not part.dtype.is_int():
                e.fail(f"range of a {part.type}", "its ends and its step are whole numbers")
        wide = any(part.dtype.bits == 64 for part in parts)
        self.dtype = int64 if wide else int32
        self.start, self.stop, self.step = (e.index_of(part) for part in parts)
        if self.step.is_constant and same(self.step.constant, 0):
            e.fail("range with a step of 0")

    def _runs_once(self) -> bool:
        """Whether there is one iteration. Where that is so at the sizes of this launch, it becomes
        a guard: without the loop, what its neighbours load is loaded once."""
        ends = (self.start, self.stop, self.step)
        if not all(end.is_constant for end in ends) or is_symbolic(self.step.constant):
            return False
        start, stop, step = (end.constant for end in ends)
        count = -(-(size_hint(stop) - size_hint(start)) // step)
        return count == 1 and bool(stop - start <= step) and bool(stop - start >= 1)

    def compile(self) -> None:
        w, e = self.w, self.w.e
        if self._runs_once():
            w.names[self.name] = Tensor(self.dtype, (), index=self.start)
            known = {name for name in w.names if name != self.name}
            self._body()
            self._forget(known)
            return
        mark = e.builder.value(TileType(INDEX)).serial  # values made later are made in the loop
        carry = Carry(w, self.node.body, True)
        with Trial(w):
            variable = e.builder.value(TileType(INDEX), "i")
            w.names[self.name] = Tensor(self.dtype, (), index=scalar(variable))
            carry.enter()
            self._body()
            carry.learn(mark)
        self._emit(carry)

    def compile_until(self, flags: Flags) -> None:
        """A loop that may end in its middle, as one with a condition."""
        w, e = self.w, self.w.e
        if not self.step.is_constant or is_symbolic(self.step.constant):
            e.fail("a break in a range with a step that is known at run time only", "use `while`")
        up = self.step.constant > 0
        names = [f"{part} {flags.go}" for part in ("at", "stop", "step")]
        for name, part in zip(names, (self.start, self.stop, self.step), strict=True):
            w.names[name] = e.whole(part, self.dtype, ())
        if isinstance(w.names.get(self.name), Undefined | None):
            w.names[self.name] = w.names[names[0]]
        at, stop = w.names[names[0]], w.names[names[1]]
        w.names[flags.go] = compare(e, "<" if up else ">", at, stop)
        _compile_while(w, as_while(self.node, flags, names, up))

    def _body(self) -> None:
        if self.w.run(self.node.body) is not FALLS:
            self.w.e.fail("a return inside of a loop")

    def _emit(self, carry: Carry) -> None:
        w, e = self.w, self.w.e
        plain = self._is_plain(carry)
        variable = e.builder.value(TileType(INDEX), "i")
        if plain:
            first, stop, step = self.start, self.stop, int(self.step.constant)
        else:
            first, stop, step = Index(0), self._count(), 1
        facts.set_fact(variable, facts.infer_variable(first, stop, step))
        at = scalar(variable)
        number = (at - first) if plain else at  # of the iteration, times its step
        place = at if plain else self.start + _product(e, at, self.step)
        block = Block()
        values: list[tuple[Carried, Value]] = []
        block.params = [variable]
        for carried in carry.all:
            if carried.step is not None and carried.step.is_constant:
                self._stepped(carried, number, step if plain else 1)
            elif carried.distance is not None:
                param = carried.distance
                block.params.append(param)
                values.append((carried, e.builder.full(0, (), INDEX)))
            elif carried.step is None:
                param = next(iter(carried.inside.made.values()))
                block.params.append(param)
                values.append((carried, e.value_of(carried.first)))
        before = dict(w.names)
        with e.inside(block):
            w.names[self.name] = Tensor(self.dtype, (), index=place)
            carry.enter()
            self._body()
            ends = {name: carry.check(name) for name in carry.before}
            args: list[Value] = []
            for name, leaves in carry.leaves.items():
                for carried, new in zip(leaves, ends[name], strict=True):
                    if carried.step is not None and carried.step.is_constant:
                        continue
                    if carried.distance is not None:
                        assert carried.step is not None
                        args.append(e.builder.index(scalar(carried.distance) + carried.step))
                    elif carried.step is None:
                        args.append(e.value_of(new))
            e.builder.append(ops.Yield(args=tuple(args)))
        op = ops.For(
            start=first, stop=stop, step=step, inits=tuple(v for _, v in values), body=block
        )
        results = e.builder.append(op, *(value.type for _, value in values))
        self._leave(carry, before, values, results)

    def _is_plain(self, carry: Carry) -> bool:
        """Whether the loop can count as it is written: by a known step above 0 that divides what
        carried numbers grow by."""
        if not self.step.is_constant or is_symbolic(self.step.constant):
            return False
        step = self.step.constant
        if step <= 0:
            return False
        for carried in carry.all:
            grows = carried.step
            if grows is not None and grows.is_constant and not divides(step, grows.constant):
                return False
        return True

    def _stepped(self, carried: Carried, number: Index, unit: int) -> None:
        """A leaf inside of the loop as its first value and so many steps."""
        assert carried.step is not None and carried.step.is_constant
        if carried.distance is None or same(carried.step.constant, 0):
            carried.inside = carried.first
            return
        each = carried.step.constant // unit if unit != 1 else carried.step.constant
        assert carried.first.index is not None
        carried.inside = Tensor(
            carried.first.dtype, carried.first.shape, index=carried.first.index + number * each
        )

    def _count(self) -> Index:
        """The number of iterations, at least 0."""
        e = self.w.e
        step = self.step
        if step.is_constant and certain(-1 - step.constant):
            span, size = self.start - self.stop, Index(-step.constant)
        else:
            span, size = self.stop - self.start, step
        span = maximum(span, 0)
        found = divide_whole("//", span + size - 1, size)
        if found is not None:
            return found
        kind = int64
        parts = [Tensor(kind, (), index=part) for part in (span + size - 1, size)]
        values = [e.value_of(part) for part in parts]
        return scalar(e.builder.map("div", *values))

    def _leave(
        self,
        carry: Carry,
        before: dict[str, Any],
        values: list[tuple[Carried, Value]],
        results: tuple[Value, ...],
    ) -> None:
        """The names behind the loop."""
        w, e = self.w, self.w.e
        after: dict[int, Tensor] = {}
        for (carried, _), result in zip(values, results, strict=True):
            if carried.distance is not None:
                assert carried.first.index is not None
                grown = carried.first.index + scalar(result)
                after[id(carried)] = Tensor(carried.first.dtype, carried.first.shape, index=grown)
            else:
                after[id(carried)] = e.tensor(result, carried.first.dtype)
        names = dict(before)
        for name, leaves in carry.leaves.items():
            new = []
            for carried in leaves:
                if id(carried) in after:
                    new.append(after[id(carried)])
                elif carried.step is None or same(carried.step.constant, 0):
                    new.append(carried.first)
                else:
                    assert carried.first.index is not None
                    grown = carried.first.index + self._count() * carried.step.constant
                    new.append(Tensor(carried.first.dtype, carried.first.shape, index=grown))
            names[name] = rebuilt(carry.before[name], new)
        w.names = names
        self._forget(set(carry.before))

    def _forget(self, known: set[str]) -> None:
        """Names that only the loop sets have no value behind it."""
        for name in (self.name, *assigned(self.node.body)):
            if name not in known:
                self.w.names[name] = Undefined("it is set inside of a loop, which may not run")


def _product(e: Any, at: Index, step: Index) -> Index:
    if step.is_constant:
        return at * step.constant
    made = binary(e, "*", Tensor(int64, (), index=at), Tensor(int64, (), index=step))
    return e.index_of(made)  # type: ignore[no-any-return]


def compile_while(w: Walker, node: ast.While) -> None:
    """while condition: ..."""
    if node.orelse:
        w.e.fail("`else` of a loop", "a kernel's loops have none")
    flags = flags_of(node)
    if flags is None:
        _refuse_exits(w, node.body)
    elif _ends_early(w, node, flags):
        found = w.condition(node.test)
        w.names[flags.go] = w.runtime(found)
        node = until(node, node.body, flags, node.test)
    _compile_while(w, node)


def _compile_while(w: Walker, node: ast.While) -> None:
    e = w.e
    mark = e.builder.value(TileType(INDEX)).serial
    carry = Carry(w, node.body, False)
    known = _known_condition(w, node, carry)
    if known is False:
        return
    with Trial(w):
        carry.enter()
        w.condition(node.test)
        w.run(node.body)
        carry.learn(mark)
    kept = [c for c in carry.all if c.step is None]
    inits = tuple(e.value_of(c.first) for c in kept)
    blocks = []
    before = dict(w.names)
    for part in ("condition", "body"):
        block = Block()
        for carried in carry.all:
            if carried.step is None:
                value = e.builder.value(TileType(carried.first.dtype.ir, carried.first.shape), "a")
                carried.inside = Tensor(carried.first.dtype, carried.first.shape)
                carried.inside.made[block] = value
                e.counted(carried.inside, value)
                block.params.append(value)
            else:
                carried.inside = carried.first
        with e.inside(block):
            w.names = dict(before)
            carry.enter()
            if part == "condition":
                found = w.condition(node.test)
                test = as_tensor(e, found) if isinstance(found, bool) else found
                args = [e.value_of(to_bool(e, test))]
            else:
                w.run(node.body)
                args = []
                for name, leaves in carry.leaves.items():
                    for carried, new in zip(leaves, carry.check(name), strict=True):
                        if carried.step is None:
                            args.append(e.value_of(new))
            e.builder.append(ops.Yield(args=tuple(args)))
        blocks.append(block)
    op = ops.While(inits=inits, condition=blocks[0], body=blocks[1])
    results = e.builder.append(op, *(value.type for value in inits))
    made = {id(c): e.tensor(result, c.first.dtype) for c, result in zip(kept, results, strict=True)}
    names = dict(before)
    for name, leaves in carry.leaves.items():
        names[name] = rebuilt(carry.before[name], [made.get(id(c), c.first) for c in leaves])
    for name in assigned(node.body):
        if name not in carry.before:
            names[name] = Undefined("it is set inside of a loop, which may not run")
    w.names = names


def _known_condition(w: Walker, node: ast.While, carry: Carry) -> bool | None:
    """Whether the condition is known never to hold."""
    if any(isinstance(n, ast.Name) and n.id in carry.before for n in ast.walk(node.test)):
        return None
    with Trial(w):
        found = w.condition(node.test)
    return found if isinstance(found, bool) else None
