"""What is worked out when somebody asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from fuser.base.forks import new_lock

T = TypeVar("T")


class Deferred(Generic[T]):
    """A result of `make`, which is called once, by who asks first, and forgotten then. Where it
    raises, it raises for whoever asks."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make: Callable[[], T] | None = make
        self._found: T
        self._lock = new_lock()

    @classmethod
    def of(cls, found: T) -> Deferred[T]:
        """What is known already."""
        return cls(lambda: found)

    def get(self) -> T:
        with self._lock:
            if self._make is not None:
                self._found = self._make()
                self._make = None
            return self._found
