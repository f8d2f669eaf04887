"""What functions of a package launch: kernels, and copies of their arguments."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from fuser.language.jit import grid_of
from fuser.language.tensors import Constexpr
from fuser.language.types import ElementType
from fuser.triton.jit import JITFunction
from tests.equivalence.kernels.kinds import LANGUAGE
from tests.equivalence.kernels.mutate import EXTRA

LARGEST = 1000
"""Programs along the first axis of a grid, at most: the conditions of `mutate.py` ask for more."""


@dataclass(frozen=True, eq=False)
class Launch:
    """kernel: the function. bound: its arguments by name, tensors as they were before. options:
    of the launch, such as num_warps."""

    kernel: JITFunction
    grid: tuple[int, ...]
    bound: dict[str, Any]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.kernel.fn.__module__}.{self.kernel.fn.__qualname__}"

    @property
    def key(self) -> str:
        """Equal for launches of one kernel on arguments of the same classes."""
        kinds = [(n, _class_of(item)) for n, item in self.bound.items()]
        return f"{self.name} {kinds}"

    def copied(self) -> dict[str, Any]:
        """The arguments, in memory of their own; what shares memory still does."""
        return copied(self.bound)


def _class_of(item: Any) -> Any:
    return (item.dtype, item.ndim) if isinstance(item, torch.Tensor) else item


def copied(bound: dict[str, Any]) -> dict[str, Any]:
    """Arguments with copies of all their tensors; tensors of one memory share the copy."""
    memories: dict[int, torch.UntypedStorage] = {}

    def copy(item: Any) -> Any:
        if isinstance(item, tuple | list):
            return type(item)(copy(part) for part in item)
        if not isinstance(item, torch.Tensor):
            return item
        memory = item.detach().untyped_storage()
        held = memories.setdefault(memory.data_ptr(), memory.clone())  # type: ignore[no-untyped-call]
        made = torch.empty(0, dtype=item.dtype)
        return made.set_(held, item.storage_offset(), item.shape, item.stride())

    return {name: copy(item) for name, item in bound.items()}


def memories(bound: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Each memory that tensors of the arguments lie in, once: its name and its elements."""
    seen: set[int] = set()
    for name, item in bound.items():
        parts = item if isinstance(item, tuple | list) else [item]
        for part in parts:
            if isinstance(part, torch.Tensor):
                memory = part.untyped_storage()
                if memory.data_ptr() not in seen:
                    seen.add(memory.data_ptr())
                    count = memory.nbytes() // part.element_size()
                    made = torch.empty(0, dtype=part.dtype)
                    yield name, made.set_(memory, 0, (count,), (1,))


def usable(launch: Launch) -> bool:
    """Whether arguments are numbers and tensors, `mutate.py` can name the programs, and the kernel
    does not use its names."""
    plain = all(
        item is None
        or isinstance(item, bool | int | float | str | torch.Tensor | ElementType | Constexpr)
        or (isinstance(item, tuple | list) and not any(map(_holds, item)))
        for item in launch.bound.values()
    )  # fmt: skip
    programs = [*launch.grid, 1, 1]
    counted = all(programs) and programs[0] <= LARGEST and programs[0] != 77
    code = launch.kernel.fn.__code__
    own = {*code.co_varnames, *code.co_names}.isdisjoint((*EXTRA, LANGUAGE))
    return plain and counted and own and launch.kernel.fn.__closure__ is None


def _holds(item: Any) -> bool:
    return not isinstance(item, bool | int | float | torch.Tensor)


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Within, launches that compile something are kept, one for each class of arguments."""
    found: dict[str, Launch] = {}
    run = JITFunction._run

    def keep(
        self: JITFunction, args: tuple[Any, ...], named: dict[str, Any], grid: Any, warmup: bool
    ) -> Any:
        if not warmup:
            bound, _ = self.bind(args, dict(named))
            options = {n: item for n, item in named.items() if n not in self.signature.parameters}
            launch = Launch(self, tuple(map(int, grid_of(grid, bound))), bound, options)
            if usable(launch) and launch.key not in found:
                found[launch.key] = Launch(self, launch.grid, copied(bound), options)
        return run(self, args, named, grid, warmup)

    launches: list[Launch] = []
    with mock.patch.object(JITFunction, "_run", keep):
        yield launches
    launches += found.values()


def launches_of(call: Callable[[], Any]) -> list[Launch]:
    """The launches of a call, in order."""
    with recorded() as found:
        call()
    return found


def first_of_each(found: list[Launch], most: int) -> list[Launch]:
    """Launches with at most so many of each kernel."""
    counts = itertools.count
    seen: dict[str, Any] = {}
    return [item for item in found if next(seen.setdefault(item.name, counts())) < most]
