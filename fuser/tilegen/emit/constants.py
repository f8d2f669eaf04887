"""What emitters ask of the values of constants: a number that all elements are, a causal table, a
range. Anything else about a constant is its type.

Questions and answers can be kept (`asked`): another region that is equal but for the values of its
constants has the same kernel where these answer alike (twins.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from fuser.graph.ir import Value

R = TypeVar("R")
Question = Callable[[Value], object]
Answers = dict[tuple[Question, Value], object]
"""What was found out of constants."""

_asked: ContextVar[Answers | None] = ContextVar("asked", default=None)


@contextmanager
def asked() -> Iterator[Answers]:
    """Keep what is asked of constants within the block."""
    answers: Answers = {}
    token = _asked.set(answers)
    try:
        yield answers
    finally:
        _asked.reset(token)


def _noted(question: Callable[[Value], R]) -> Callable[[Value], R]:
    """A question of a value whose answer is kept where the value is a constant."""

    @functools.wraps(question)
    def inner(value: Value) -> R:
        answers = _asked.get()
        if answers is None or value.constant is None:
            return question(value)
        found: R
        if (question, value) not in answers:
            answers[question, value] = found = question(value)
            return found
        return answers[question, value]  # type: ignore[return-value]

    return inner


@dataclass(frozen=True)
class Triangle:
    """A constant that is `seen` where coords[row] + shift >= coords[column], else `unseen`."""

    row: int
    column: int
    shift: int
    seen: float | bool
    unseen: float | bool


@_noted
def triangle(value: Value) -> Triangle | None:
    """A constant table of two numbers with a causal boundary, as checkpoints carry them."""
    array = value.constant
    if array is None or array.dtype.kind in "iu" or not 0 < array.size <= 1 << 24:
        return None
    wide = [axis for axis, dim in enumerate(array.shape) if dim != 1]
    if len(wide) != 2:
        return None
    shape = (array.shape[wide[0]], array.shape[wide[1]])
    table = array.reshape(shape)
    seen, unseen = table[-1, 0], table[0, -1]
    if seen == unseen:
        return None
    shift = int((table[0] == seen).sum()) - 1
    if not np.array_equal(table, np.where(np.tri(*shape, shift, dtype=bool), seen, unseen)):
        return None
    kind = bool if array.dtype.kind == "b" else float
    return Triangle(wide[0], wide[1], shift, kind(seen), kind(unseen))


@_noted
def uniform(value: Value) -> float | int | bool | None:
    """The one number that every element of a constant is, if there is one."""
    array = value.constant
    if array is None or array.size == 0 or (array.size > 1 and array.size > 4096):
        return None
    flat = array.reshape(-1)
    first = flat[0]
    if array.size > 1 and (first != flat[-1] or not (flat == first).all()):
        return None
    item = first.item() if hasattr(first, "item") else first
    return item if isinstance(item, bool | int) else float(item)


@_noted
def progression(value: Value) -> tuple[int, int, int] | None:
    """(axis, start, step) of a constant whose elements are start + step * coordinate along an axis,
    the only one that is not 1."""
    array = value.constant
    if array is None:
        return None
    wide = [axis for axis, dim in enumerate(array.shape) if dim != 1]
    if len(wide) != 1 or not 0 < array.size <= 1 << 20:
        return None
    items: list[int] = array.reshape(-1).tolist()
    start, step = items[0], items[1] - items[0]
    if any(item != start + step * place for place, item in enumerate(items)):
        return None
    return wide[0], start, step
