"""Hooks that run one after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class HookChain:
    """Functions to call at an event, in the order in which they were added, or in reverse."""

    def __init__(self, reversed: bool = False) -> None:
        self.calls: list[Callable[..., Any]] = []
        self.reversed = reversed

    def add(self, func: Callable[..., Any]) -> None:
        if func not in self.calls:
            self.calls.append(func)

    def remove(self, func: Callable[..., Any]) -> None:
        if func in self.calls:
            self.calls.remove(func)

    def __call__(self, *args: Any, **named: Any) -> None:
        for call in self.calls[::-1] if self.reversed else list(self.calls):
            call(*args, **named)
