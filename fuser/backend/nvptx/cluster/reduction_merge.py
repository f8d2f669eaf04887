"""Loops whose iterations can be shared out: what each carried value becomes of several parts of
them.

A running fold takes the parts' folds together. A sum that is kept relative to a running maximum,
as those of an online softmax, is not a fold by itself:

    top' = max(top, f(i))
    sum' = sum * exp(top - top') + linear(exp(g(i) - top'))

Of parts with (top_p, sum_p), the whole is sum_p sum_p * exp(top_p - max_q top_q).
`find_reduction_merges` reads this off the body, whatever f, g and the linear function (a row sum, a
dot) are made of.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fuser.tilegen import ops
from fuser.tilegen.ir import Kernel, Op
from fuser.tilegen.value import Value

_IDENTITY = {"max": -math.inf, "min": math.inf, "sum": 0.0}
_FOLDS: dict[str, Literal["max", "min", "sum"]] = {"max": "max", "min": "min", "add": "sum"}


@dataclass(frozen=True)
class ReductionMerge:
    """How one carried value is made of those of the parts. top: of a relative sum, the position of
    the running maximum; axes: of the sum, those that the maximum has."""

    fn: Literal["max", "min", "sum"]
    top: int | None = None
    axes: tuple[int, ...] = ()


def mergeable_loop(kernel: Kernel) -> tuple[ops.For, tuple[ReductionMerge, ...]] | None:
    """The loop of a kernel with its merges, where it has but one and that has them."""
    loops = [op for op in kernel.walk() if isinstance(op, ops.For)]
    if len(loops) != 1 or loops[0] not in kernel.body.ops:
        return None
    makers = {result: op for op in kernel.walk() for result in op.results}
    found = find_reduction_merges(loops[0], makers)
    return (loops[0], found) if found else None


def find_reduction_merges(
    loop: ops.For, makers: dict[Value, Op]
) -> tuple[ReductionMerge, ...] | None:
    """A merge for every carried value, None where one has none. Parts start from the loop's initial
    values, which must change nothing."""
    if any(op.blocks() or isinstance(op, ops.Store | ops.AtomicAdd) for op in loop.body.ops):
        return None
    return _Body(loop, makers).merges()


class _Body:
    def __init__(self, loop: ops.For, makers: dict[Value, Op]) -> None:
        self.loop, self.makers = loop, makers
        self.params = loop.body.params[1:]
        last = loop.body.ops[-1]
        assert isinstance(last, ops.Yield)
        self.ends = last.args
        self.carried = set(self.params)  # and all that is made of them
        for op in loop.body.ops:
            if self.carried.intersection(op.operands()):
                self.carried.update(op.results)

    def merges(self) -> tuple[ReductionMerge, ...] | None:
        found: list[ReductionMerge] = []
        for position, init in enumerate(self.loop.inits):
            merge = self._fold(position) or self._relative(position)
            if merge is None or not init.shape or not init.dtype.is_float:
                return None
            if not self._is(init, _IDENTITY[merge.fn]):
                return None
            found.append(merge)
        return tuple(found)

    def _fold(self, position: int) -> ReductionMerge | None:
        """The end is fn(parameter, something of the iteration alone)."""
        param, end = self.params[position], self.makers.get(self.ends[position])
        if isinstance(end, ops.Dot) and end.acc is param:
            return None if self.carried & {end.a, end.b} else ReductionMerge("sum")
        if not isinstance(end, ops.Map) or end.fn not in _FOLDS:
            return None
        if not any(a is param and b not in self.carried for a, b in _either(end)):
            return None
        return ReductionMerge(_FOLDS[end.fn])

    def _relative(self, position: int) -> ReductionMerge | None:
        """The end is parameter * exp(top - top') + linear(exp(... - top'))."""
        param, end = self.params[position], self.makers.get(self.ends[position])
        sides: list[tuple[Value, Value]] = []
        if isinstance(end, ops.Dot) and end.b not in self.carried:
            sides = [(end.acc, end.a)]
        elif isinstance(end, ops.Map) and end.fn == "add":
            sides = _either(end)
        for kept, added in sides:
            product = self.makers.get(kept)
            if not isinstance(product, ops.Map) or product.fn != "mul":
                continue
            for value, scale in _either(product):
                found = self._scale(scale) if value is param else None
                if found is None:
                    continue
                axes = self._linear(added, found[0])
                if isinstance(end, ops.Dot) and axes not in ((0,), ()):
                    continue
                if axes == found[1]:
                    return ReductionMerge("sum", *found)
        return None

    def _scale(self, value: Value) -> tuple[int, tuple[int, ...]] | None:
        """(top, axes) where a value is exp(top - top'), spread along further axes."""
        value, axes = _spread(value, self.makers)
        maker = self.makers.get(value)
        if not isinstance(maker, ops.Map) or maker.fn != "exp":
            return None
        shift = self.makers.get(maker.args[0])
        if not isinstance(shift, ops.Map) or shift.fn != "sub" or shift.args[0] not in self.params:
            return None
        top = self.params.index(shift.args[0])
        fold = self._fold(top)
        same = fold is not None and fold.fn == "max" and self._is_new_top(shift.args[1], top)
        return (top, axes) if same else None

    def _is_new_top(self, value: Value, top: int) -> bool:
        """Whether a value is what the maximum becomes, or that with 0 for -inf."""
        end, maker = self.ends[top], self.makers.get(value)
        if value is end:
            return True
        if not isinstance(maker, ops.Map) or maker.fn != "select" or maker.args[2] is not end:
            return False
        test = self.makers.get(maker.args[0])
        if not isinstance(test, ops.Map) or test.fn != "eq" or not self._is(maker.args[1], 0.0):
            return False
        return any(a is end and self._is(b, -math.inf) for a, b in _either(test))

    def _is(self, value: Value, number: float) -> bool:
        maker = self.makers.get(value)
        return isinstance(maker, ops.Full) and float(maker.value) == number

    def _linear(self, value: Value, top: int) -> tuple[int, ...] | None:
        """The axes of the maximum in a value that is a linear function of exp(something of the
        iteration alone - top'), in which no two rows of the maximum meet; None where it is
        another."""
        maker = self.makers.get(value)
        match maker:
            case ops.Reduce(fn="sum"):
                axes = self._linear(maker.x, top)
                if axes is None or maker.axis in axes:
                    return None
                return tuple(axis - (axis > maker.axis) for axis in axes)
            case ops.Permute():
                axes = self._linear(maker.x, top)
                return None if axes is None else tuple(maker.axes.index(axis) for axis in axes)
            case ops.Cast() if maker.dtype.is_float:
                return self._linear(maker.x, top)
            case ops.Map(fn="mul"):
                found = (self._linear(a, top) for a, b in _either(maker) if b not in self.carried)
                return next((axes for axes in found if axes is not None), None)
            case ops.Map(fn="exp"):
                shift = self.makers.get(maker.args[0])
                if not isinstance(shift, ops.Map) or shift.fn != "sub":
                    return None
                below, axes = _spread(shift.args[1], self.makers)
                alone = shift.args[0] not in self.carried
                return axes if alone and self._is_new_top(below, top) else None
        return None


def _spread(value: Value, makers: dict[Value, Op]) -> tuple[Value, tuple[int, ...]]:
    """(what a value repeats along further axes, the axes that it had before)."""
    maker = makers.get(value)
    if isinstance(maker, ops.Broadcast):
        return maker.x, maker.axes
    return value, tuple(range(len(value.shape)))


def _either(op: ops.Map) -> list[tuple[Value, Value]]:
    a, b = op.args
    return [(a, b), (b, a)]
