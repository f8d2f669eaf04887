"""An `nn.Module`, exported and compiled for what it is called with."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuser.base.forks import new_lock
from fuser.frontends.torch.changes import module_state, watch_modules
from fuser.frontends.torch.exported import CompiledProgram
from fuser.frontends.torch.program import MOST_PLANS, Options
from fuser.frontends.torch.saved import save
from fuser.frontends.torch.steady import signature
from fuser.frontends.torch.tensors import is_tensor
from fuser.runtime.plan import Plan
from fuser.runtime.plan_report import Report
from fuser.runtime.watch import Watch


@dataclass(frozen=True)
class _Steady:
    """Programs by the key of a call. They are right as long as nothing watched changes."""

    watch: Watch
    state: Hashable
    programs: OrderedDict[Hashable, CompiledProgram]


class CompiledModule:
    """An `nn.Module` or `GraphModule`, exported and compiled for each combination of input shapes,
    dtypes and options it is called with, and again where the module changes: `changes.py` says what
    is noticed."""

    def __init__(self, module: Any, options: Options) -> None:
        self._module, self._options = module, options
        self._programs: OrderedDict[tuple[Hashable, Hashable], tuple[CompiledProgram, Any]] = (
            OrderedDict()
        )
        self._lock = new_lock()
        self._steady: _Steady | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's result. Raises UnsupportedOpError, and what exporting raises."""
        leaves, nest = _take_apart(args, kwargs)
        known = signature(leaves)
        program = self._find(args, kwargs, (nest, known, _autocast()))
        return program.run(leaves, known)

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan that serves such inputs."""
        leaves, nest = _take_apart(args, kwargs)
        program = self._find(args, kwargs, (nest, signature(leaves), _autocast()))
        return program.plan(*args, **kwargs)

    def report(self, *args: Any, **kwargs: Any) -> Report:
        return self.plan(*args, **kwargs).report()

    def refresh(self) -> None:
        """Read the module, all its parameters and buffers again at the next call: for changes that
        are not noticed (writes into `tensor.data` or by NumPy, hooks)."""
        with self._lock:
            self._steady = None
            self._programs.clear()

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Every plan compiled so far."""
        return tuple(plan for program, _ in self._programs.values() for plan in program.plans)

    def save(self, path: Path | str) -> None:
        """Write what was compiled so far, for the module as it is, to a file for `fuser.load`:
        native code for this device, and the parameters. Raises UsageError where nothing was."""
        state, _ = module_state(self._module)
        found = [program for (then, _), (program, _) in self._programs.items() if then == state]
        save([program.record() for program in found], path)

    def _find(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], key: Hashable
    ) -> CompiledProgram:
        """The program for such inputs."""
        steady = self._steady
        if steady is not None and steady.watch(None):
            found = steady.programs.get(key)
            if found is not None:
                return found
        with self._lock:
            return self._find_slowly(args, kwargs, key)

    def _find_slowly(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], key: Hashable
    ) -> CompiledProgram:
        import torch

        # watched before it is read, so that no change falls between
        watch = watch_modules(self._module)
        state, named = module_state(self._module)
        found = self._programs.get((state, key))
        if found is None:
            exported = torch.export.export(self._module, args, kwargs or None, strict=False)
            program = CompiledProgram(exported, self._options, type(self._module).__name__)
            watch = watch_modules(self._module)  # exporting may have set attributes
            state, named = module_state(self._module)
            found = self._programs[state, key] = program, named
            if len(self._programs) > MOST_PLANS:
                self._programs.popitem(last=False)
        self._programs.move_to_end((state, key))
        steady = self._steady
        if steady is None or steady.state != state or not steady.watch(None):
            steady = _Steady(watch, state, OrderedDict())
        steady.programs[key] = found[0]
        if len(steady.programs) > MOST_PLANS:
            steady.programs.popitem(last=False)
        self._steady = steady
        return found[0]


def _take_apart(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Sequence[Any], str]:
    """The inputs in order, and how they nest."""
    if not kwargs and all(map(is_tensor, args)):
        return args, ""
    if all(map(is_tensor, args)) and all(map(is_tensor, kwargs.values())):
        return (*args, *kwargs.values()), f"{len(args)} {' '.join(kwargs)}"
    from torch.utils import _pytree

    leaves, spec = _pytree.tree_flatten((args, kwargs))
    return leaves, str(spec)


def _autocast() -> Hashable:
    """What PyTorch converts by itself while a module runs."""
    import torch

    if not torch._C._is_any_autocast_enabled():
        return None
    kinds = ("cpu", "cuda")
    return tuple(
        torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        for kind in kinds
    )
