"""Walks over graphs of values without a call for each level: a chain may be as long as it likes."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from typing import TypeVar

K = TypeVar("K")


def post_order(root: K, parts: Callable[[K], Iterable[K]], done: Container[K]) -> Iterator[K]:
    """`root` and all it is made of, parts before the whole, without what is in `done`.

    The caller puts each item into `done` before it takes the next, so that none comes twice:

        for value in post_order(root, operands, cost):
            cost[value] = 1 + sum(cost[operand] for operand in operands(value))
    """
    if root in done:
        return
    stack = [(root, iter(parts(root)))]
    while stack:
        item, rest = stack[-1]
        for part in rest:
            if part not in done:
                stack.append((part, iter(parts(part))))
                break
        else:
            stack.pop()
            yield item


def reachable(roots: Iterable[K], parts: Callable[[K], Iterable[K]]) -> Iterator[K]:
    """The roots and all they are made of, each once, the whole before its parts, in order."""
    seen: set[K] = set()
    stack = list(roots)[::-1]
    while stack:
        item = stack.pop()
        if item not in seen:
            seen.add(item)
            yield item
            stack.extend(reversed(list(parts(item))))
