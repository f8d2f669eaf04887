"""`for` over numbers that are known at run time."""

from __future__ import annotations

import ast
from collections.abc import Container, Sequence
from typing import Any

from fuser.graph.sizes import certain, divides, is_symbolic, same, size_hint
from fuser.language.arithmetic import as_tensor, binary, compare
from fuser.language.carried import Carried, Carry, Walker, forget
from fuser.language.exits import Flags, as_while
from fuser.language.leaves import rebuilt
from fuser.language.tensors import FALLS, Range, Tensor, Undefined, unwrap
from fuser.language.types import int32, int64
from fuser.language.while_loops import WhileLoop
from fuser.language.wholes import divide_whole
from fuser.tilegen import facts, ops
from fuser.tilegen.index import Index, maximum, scalar
from fuser.tilegen.ir import Block
from fuser.tilegen.value import INDEX, TileType, Value


class ForLoop:
    """One `for` over a range."""

    def __init__(
        self, w: Walker, node: ast.For, name: str, over: Range, flags: Flags | None = None
    ) -> None:
        """flags: of a loop that may be left in its middle."""
        self.w, self.node, self.name, self.flags = w, node, name, flags
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
        w, flags = self.w, self.flags
        if flags is None and self._runs_once():
            self._once()
            return
        carry = Carry(w, self.node.body, flags, self.name)
        ends = carry.learn(self._iteration)
        if ends and w.e.trials:
            carry.leave_unknown()
            self._counter(self.name)
        elif ends:
            self._compile_until()
        elif w.e.trials:
            self._leave_trial(carry)
        elif flags is not None and self._runs_once():
            self._once()
        else:
            self._emit(carry)

    def _counter(self, name: str) -> Index:
        """Let a name hold a number of which nothing is known."""
        at = scalar(self.w.e.builder.value(TileType(INDEX), "i"))
        self.w.names[name] = Tensor(self.dtype, (), index=at)
        return at

    def _iteration(self) -> None:
        self._counter(self.name)
        self._body()

    def _once(self) -> None:
        w = self.w
        w.names[self.name] = Tensor(self.dtype, (), index=self.start)
        known = {name for name in w.names if name != self.name}
        self._body()
        self._forget(known)

    def _compile_until(self) -> None:
        """A loop that may end in its middle, as one with a condition."""
        w, e, flags = self.w, self.w.e, self.flags
        assert flags is not None
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
        WhileLoop(w, as_while(self.node, flags, names, up)).compile()

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
        changing: list[Carried] = []
        inits: list[Value] = []
        block.params = [variable]
        for carried in carry.all:
            if carried.is_counted:
                self._stepped(carried, number, step if plain else 1)
            elif carried.distance is not None:
                param = carried.distance
                block.params.append(param)
                changing.append(carried)
                inits.append(e.builder.full(0, (), INDEX))
            elif carried.step is None:
                param = next(iter(carried.inside.made.values()))
                block.params.append(param)
                changing.append(carried)
                inits.append(e.value_of(carried.first))
        before = dict(w.names)
        with e.inside(block):
            w.names[self.name] = Tensor(self.dtype, (), index=place)
            carry.enter()
            self._body()
            ends = {name: carry.check(name) for name in carry.before}
            args: list[Value] = []
            for name, leaves in carry.leaves.items():
                for carried, new in zip(leaves, ends[name], strict=True):
                    if carried.is_counted:
                        continue
                    if carried.distance is not None:
                        assert carried.step is not None
                        args.append(e.builder.index(scalar(carried.distance) + carried.step))
                    elif carried.step is None:
                        args.append(e.value_of(new))
            e.builder.append(ops.Yield(args=tuple(args)))
        op = ops.For(start=first, stop=stop, step=step, inits=tuple(inits), body=block)
        results = e.builder.append(op, *(value.type for value in inits))
        self._leave(carry, before, changing, results)

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
        changing: Sequence[Carried],
        results: Sequence[Value],
    ) -> None:
        """The names behind the loop."""
        w, e = self.w, self.w.e
        after: dict[int, Tensor] = {}
        for carried, result in zip(changing, results, strict=True):
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
                elif carried.step is None or carried.is_kept:
                    new.append(carried.first)
                else:
                    assert carried.first.index is not None
                    grown = carried.first.index + self._count() * carried.step.constant
                    new.append(Tensor(carried.first.dtype, carried.first.shape, index=grown))
            names[name] = rebuilt(carry.before[name], new)
        w.names = names
        self._forget(set(carry.before))

    def _leave_trial(self, carry: Carry) -> None:
        """The names behind the loop in a trial, which needs no code of it."""
        e = self.w.e
        changing = [carried for carried in carry.all if not carried.is_counted]
        kinds = (
            TileType(c.first.dtype.ir, c.first.shape) if c.distance is None else TileType(INDEX)
            for c in changing
        )
        results = tuple(e.builder.value(kind, "a") for kind in kinds)
        self._leave(carry, dict(self.w.names), changing, results)

    def _forget(self, known: Container[str]) -> None:
        forget(self.w, self.node.body, known)
        if self.name not in known:
            self.w.names[self.name] = Undefined("it is set inside of a loop, which may not run")


def _product(e: Any, at: Index, step: Index) -> Index:
    if step.is_constant:
        return at * step.constant
    made = binary(e, "*", Tensor(int64, (), index=at), Tensor(int64, (), index=step))
    return e.index_of(made)  # type: ignore[no-any-return]
