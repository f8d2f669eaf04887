"""What a launch gives back: a compiled kernel, with Triton's names for what is in it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fuser.errors import UnsupportedError
from fuser.language.jit import COMPILED_FOR
from fuser.triton.sources import ASTSource

if TYPE_CHECKING:
    from fuser.language.compile import Options
    from fuser.language.variants import Variant


class LazyDict:
    """The metadata of a launch: computed when a hook asks for it."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.extras: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def add(self, func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.extras.append((func, args))

    def get(self) -> dict[str, Any]:
        for func, args in self.extras:
            self.data = self.data | func(*args)
        self.extras.clear()
        return self.data


class NoStageError(UnsupportedError, KeyError):
    """A stage of Triton's compiler that fuser's has not."""


class Stages(dict[str, Any]):
    """Programs by stage."""

    def __missing__(self, stage: str) -> Any:
        raise NoStageError(
            f"there is no {stage!r} of a kernel that fuser compiled",
            hint=f"it has {', '.join(self)}",
        )


class CompiledKernel:
    """One compile of a kernel.

    asm: the program by stage: "tile" (the Tile IR), and on GPUs "ptx"; Triton's own stages (ttir,
    ttgir, llir) are not made.
    """

    def __init__(
        self,
        function: Any,
        variant: Variant,
        options: Options,
        target: Any,
        source: ASTSource | None = None,
    ) -> None:
        """source: what it was compiled from, if it was no launch."""
        self.jit_function, self.variant, self.options, self.target = (
            function, variant, options, target,
        )  # fmt: skip
        self.name: str = function.fn.__name__
        self.source = source

    @cached_property
    def src(self) -> ASTSource:
        """The kernel, the types of its arguments and their constants."""

        return self.source or ASTSource.of_launch(self.jit_function, self.variant.classes)

    @cached_property
    def asm(self) -> Stages:
        code = self.variant.compiled
        found = Stages(tile=self.variant.tile)
        found["ptx" if code.threads else "object"] = (
            code.code.decode(errors="replace") if code.threads else code.code
        )
        return found

    @cached_property
    def hash(self) -> str:
        material = f"{self.variant.tile}{self.options}{self.target}"
        return hashlib.sha256(material.encode()).hexdigest()

    @cached_property
    def metadata(self) -> SimpleNamespace:
        return SimpleNamespace(
            name=self.name, num_warps=self.options.num_warps, num_ctas=self.options.num_ctas,
            num_stages=self.options.num_stages, shared=self.variant.compiled.shared_bytes,
            target=self.target, hash=self.hash, cluster_dims=(1, 1, 1),
            maxnreg=self.options.maxnreg or None, enable_fp_fusion=self.options.fp_fusion,
            launch_pdl=self.options.launch_pdl, debug=self.options.debug,
            global_scratch_size=self.variant.compiled.workspace_bytes,
        )  # fmt: skip

    @property
    def packed_metadata(self) -> tuple[Any, ...]:
        return (self.options.num_warps, 1, self.metadata.shared, 1, 1, 1)

    def _fact(self, name: str) -> int:
        facts = getattr(self.variant.loaded, "facts", None) or self.variant.compiled.facts
        return int(facts.get(name, 0) or 0)

    @property
    def n_regs(self) -> int:
        """Registers of a thread; 0 on CPUs."""
        return self._fact("registers")

    @property
    def n_spills(self) -> int:
        """Bytes of local memory of a thread, in words of 4; 0 on CPUs."""
        return self._fact("local_bytes") // 4

    @property
    def n_max_threads(self) -> int:
        return 1024

    @property
    def kernel(self) -> Any:
        code = self.variant.compiled
        return code.code

    @property
    def function(self) -> Any:
        return self.variant.loaded

    module = function

    def _init_handles(self) -> None:
        """Nothing: the code is loaded when it is compiled."""

    def result(self) -> CompiledKernel:
        return self

    def launch_metadata(self, grid: Sequence[int], stream: int, *args: Any) -> LazyDict:
        """What hooks get of a launch."""
        found = LazyDict({"name": self.name, "function": self.function, "stream": stream})
        own = self.jit_function.launch_metadata
        if own is not None:
            named = dict(zip(self.jit_function.arg_names, args, strict=False))
            found.add(own, (tuple(grid), self.metadata, named))
        return found

    def run(
        self, grid_0: int, grid_1: int, grid_2: int, stream: Any, function: Any,
        packed_metadata: Any, launch_metadata: Any, launch_enter_hook: Any, launch_exit_hook: Any,
        *args: Any,
    ) -> Any:  # fmt: skip
        """Launch it as Triton's launchers do: with all arguments in order, constants too. The
        stream is the current one, and hooks are those of the knobs."""
        grid = (grid_0, grid_1, grid_2) if grid_2 > 1 else (grid_0, grid_1)
        return self[grid if grid[1] > 1 or len(grid) > 2 else (grid_0,)](*args)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        """The launcher of this kernel for a grid, with all of its arguments in order, or with all
        but the constants."""
        names, constants, options = self._fixed
        launch = self.jit_function[grid]

        def run(*args: Any, stream: Any = None, **named: Any) -> Any:
            rest = iter(args)
            whole = len(args) == len(names)
            if whole or len(args) == len(names) - len(constants):
                given = {} if whole else constants
                placed = [given[n] if n in given else next(rest) for n in range(len(names))]
                args = tuple(constants.get(n, value) for n, value in enumerate(placed))
            return launch(*args, **named, **options)

        return run

    @cached_property
    def _fixed(self) -> tuple[list[str], dict[int, Any], dict[str, Any]]:
        """Names of parameters, the constants that were compiled in by position, the options."""
        function = self.jit_function
        names, known = function.arg_names, self.src.constants
        fixed = known if self.source is not None else function.constexprs & known.keys()
        options = {
            keyword: getattr(self.options, field)
            for field, keyword in COMPILED_FOR.items() if keyword not in names
        }  # fmt: skip
        return names, {names.index(name): known[name] for name in fixed if name in names}, options
