"""Pointers that branches, or `where`, set to one argument or another.

p = x if flag else y        which = 0 or 1, or a tile of them
load(p + i, mask)     =>    where(which == 1, load(y + i, mask & (which == 1)),
                                  load(x + i, mask & (which == 0)))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fuser.language import shapes
from fuser.language.arithmetic import as_tensor, binary, compare, logical, to_bool, where
from fuser.language.emitter import Emitter
from fuser.language.tensors import Choice, Pointer, Tensor
from fuser.language.types import int32

Merge = Callable[[Tensor, Tensor], Tensor]
"""One tensor for what is the first after one branch, and the second after the other."""


def merged(e: Emitter, a: Any, b: Any, merge: Merge) -> Choice | None:
    """One value for what points to `a` after one branch and to `b` after the other; None where they
    are no such pointers."""
    first, second = _pointers(a), _pointers(b)
    if not first or not second:
        return None
    if (first[0].element, first[0].shape) != (second[0].element, second[0].shape):
        return None
    alone = len(first) == len(second) == 1
    if alone and first[0].buffer is second[0].buffer:
        return None
    numbers = _number(e, a, 0), _number(e, b, len(first))
    if any(number.shape for number in numbers):
        left, right = (shapes.broadcast_to(e, number, first[0].shape) for number in numbers)
        numbers = left, right
    which = merge(*numbers)
    if alone:  # offsets that agree stay as they are
        offset = merge(first[0].offset, second[0].offset)
        return Choice(tuple(_at(p, offset) for p in (*first, *second)), which)
    nowhere = e.constant(0, first[0].offset.dtype, first[0].shape)
    kept = [_at(p, merge(p.offset, nowhere)) for p in first]
    kept += [_at(p, merge(nowhere, p.offset)) for p in second]
    return Choice(tuple(kept), which)


def selected(e: Emitter, condition: Tensor, a: Any, b: Any) -> Choice | None:
    """`a if condition else b`, of such pointers."""

    def merge(x: Tensor, y: Tensor) -> Tensor:
        same = x is y or (x.index is not None and x.index == y.index)
        return x if same else where(e, condition, x, y)

    return merged(e, a, b, merge)


def chosen(e: Emitter, condition: Any, a: Pointer | Choice, b: Pointer | Choice) -> Any:
    """`where(condition, a, b)` of pointers."""
    if a.element != b.element:
        e.fail(f"where between {a.type} and {b.type}", "cast one of them to the type of the other")
    choice = to_bool(e, as_tensor(e, condition))
    shape = shapes.common_shape(e, choice.shape, shapes.common_shape(e, a.shape, b.shape))
    choice = shapes.broadcast_to(e, choice, shape)
    a, b = shapes.broadcast_to(e, a, shape), shapes.broadcast_to(e, b, shape)
    found = selected(e, choice, a, b)
    return where(e, choice, a, b) if found is None else found


def each(e: Emitter, choice: Choice, mask: Any) -> Iterator[tuple[Pointer, Tensor, Tensor]]:
    """The pointers, whether each is the one, and the mask of an access through it."""
    for number, pointer in enumerate(choice.pointers):
        this = compare(e, "==", choice.which, number)
        if mask is None:
            yield pointer, this, this
            continue
        both = shapes.broadcast_together(e, to_bool(e, as_tensor(e, mask)), this)
        yield pointer, this, logical(e, "&", *both)


def _pointers(value: Any) -> tuple[Pointer, ...]:
    if isinstance(value, Choice):
        return value.pointers
    return (value,) if isinstance(value, Pointer) else ()


def _number(e: Emitter, value: Any, before: int) -> Tensor:
    """The number of a pointer among those of both branches."""
    if not isinstance(value, Choice):
        return e.constant(before, int32)
    found: Tensor = binary(e, "+", value.which, before)
    return found


def _at(pointer: Pointer, offset: Tensor) -> Pointer:
    return Pointer(pointer.buffer, pointer.element, offset, pointer.const)
