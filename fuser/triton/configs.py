"""triton.Config: one way to compile and launch a kernel, for autotune to try."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

OPTIONS = ("num_warps", "num_ctas", "num_stages", "maxnreg", "ir_override")


class Config:
    """kwargs: values of constexpr parameters. pre_hook: called with all arguments before a run."""

    def __init__(
        self,
        kwargs: dict[str, Any],
        num_warps: int = 4,
        num_stages: int = 3,
        num_ctas: int = 1,
        maxnreg: int | None = None,
        pre_hook: Callable[[dict[str, Any]], Any] | None = None,
        ir_override: str | None = None,
    ) -> None:
        self.kwargs = kwargs
        self.num_warps, self.num_stages, self.num_ctas = num_warps, num_stages, num_ctas
        self.maxnreg, self.pre_hook, self.ir_override = maxnreg, pre_hook, ir_override

    def all_kwargs(self) -> dict[str, Any]:
        """Parameters and options of a launch with this config."""
        given = {name: getattr(self, name) for name in OPTIONS}
        return self.kwargs | {name: item for name, item in given.items() if item is not None}

    def _key(self) -> tuple[Any, ...]:
        return (*self.all_kwargs().items(), self.pre_hook)

    def __hash__(self) -> int:
        return hash(self._key())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self._key() == other._key()

    def __str__(self) -> str:
        shown = {**self.kwargs, **{name: getattr(self, name) for name in OPTIONS[:4]}}
        return ", ".join(f"{name}: {item}" for name, item in shown.items())

    __repr__ = __str__
