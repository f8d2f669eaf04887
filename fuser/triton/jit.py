"""triton.jit: kernels with the launch rules of Triton."""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from fuser.base import recording
from fuser.language.aggregates import Aggregate
from fuser.language.jit import COMPILED_FOR, OPTIONS, KernelFunction, grid_of
from fuser.language.tensors import Constexpr
from fuser.triton import knobs
from fuser.triton.absent import stand_in
from fuser.triton.async_compile import AsyncCompileMode, FutureKernel, active_mode
from fuser.triton.compiled import CompiledKernel
from fuser.triton.constexprs import ConstexprFunction
from fuser.triton.driver import driver
from fuser.triton.errors import CompilationError, UnknownKeywordError
from fuser.triton.parameters import KernelParam
from fuser.triton.tensors import MockTensor

if TYPE_CHECKING:  # the compiler and LLVM load at the first launch
    from fuser.language.arguments import Arguments
    from fuser.language.compile import Options
    from fuser.runtime.front import Watch

SPELLING = {
    "powers_of_two": True, "no_slices": True, "constexpr_globals": True, "no_exits": True,
    "plain_pointers": True, "wraps": True,
    "equal_ranks": True, "loose_constexprs": True,
}  # fmt: skip
"""Where the language of Triton is narrower than fuser's (language/expressions.py reads these)."""


SETTINGS = {
    "runtime": ("launch_enter_hook", "launch_exit_hook", "debug"),
    "language": ("default_fp_fusion", "force_disable_fp_fusion"),
}
"""Of knobs, those that a launch asks, by group."""
VARIABLES = ("TRITON_DEBUG", "TRITON_DEFAULT_FP_FUSION", "TRITON_FORCE_DISABLE_FP_FUSION")
"""Their variables of the environment."""


gathering: ContextVar[list[Any] | None] = ContextVar("gathering", default=None)
"""Where compile-only runs are noted, (kernel, arguments, grid, options), in place of a compile."""


class KernelInterface(recording.Launchable):
    """What is launched as `kernel[grid](...)`."""

    def run(self, *args: Any, grid: Any, warmup: bool = False, **named: Any) -> Any:
        """Launch on a grid, or with warmup=True compile only."""
        raise NotImplementedError

    def warmup(self, *args: Any, grid: Any, **named: Any) -> Any:
        """Compile for these arguments without a launch; a dtype stands for a tensor."""
        return self.run(*map(MockTensor.wrap_dtype, args), grid=grid, warmup=True, **named)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        """The launcher for a grid: 1 to 3 numbers of programs, or a function of the arguments that
        gives them."""
        if recording.captures is not None and recording.captures():
            return recording.launcher(self, grid)  # type: ignore[misc]
        return lambda *args, **named: self.run(*args, grid=grid, warmup=False, **named)


class _Caches(defaultdict[Any, Any]):
    """What was compiled, by device; PyTorch calls the CPU "cpu"."""

    def __getitem__(self, device: Any) -> Any:
        return super().__getitem__(0 if device == "cpu" else device)


def _hooked() -> bool:
    """Whether launches are told to anybody."""
    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return enter is not None and bool(not hasattr(enter, "calls") or enter.calls or leave.calls)


class JitFunctionInfo(NamedTuple):
    """A kernel, as hooks see it."""

    module: str
    name: str
    jit_function: Any


class JITFunction(KernelInterface, KernelFunction):
    """A function under @triton.jit: a kernel to launch, or a function for kernels to call."""

    def __init__(
        self,
        fn: Callable[..., Any],
        version: Any = None,
        do_not_specialize: Iterable[str | int] | None = None,
        do_not_specialize_on_alignment: Iterable[str | int] | None = None,
        debug: bool | None = None,
        noinline: bool | None = None,
        repr: Callable[..., str] | None = None,
        launch_metadata: Any = None,
    ) -> None:
        plain = tuple(do_not_specialize or ())
        unaligned = tuple(do_not_specialize_on_alignment or ())
        KernelFunction.__init__(self, fn, SPELLING, plain)
        self.module: Any = fn.__module__
        self.__globals__ = getattr(fn, "__globals__", {})
        self.version, self.debug, self.noinline = version, debug, noinline
        self.do_not_specialize, self.do_not_specialize_on_alignment = plain, unaligned
        self.launch_metadata = launch_metadata
        self._repr = repr
        self.params = [
            KernelParam(n, p, n in plain or p.name in plain, n in unaligned or p.name in unaligned)
            for n, p in enumerate(self.signature.parameters.values())
        ]
        self.arg_names = [param.name for param in self.params]
        self.pre_run_hooks: list[Callable[..., Any]] = []
        self.hash: str | None = None
        self.kernel = None
        self.device_caches: Any = _Caches(lambda: ({}, {}, None, None, None))
        self._lines: tuple[list[str], int] | None = None

    # source -------------------------------------------------------------------------------------

    def _source_lines(self) -> tuple[list[str], int]:
        if self._lines is None:
            self._lines = inspect.getsourcelines(self.fn)
        return self._lines

    @property
    def raw_src(self) -> list[str]:
        """The lines of the function, with its decorators."""
        return self._source_lines()[0]

    @property
    def starting_line_number(self) -> int:
        """The line of the file that `raw_src` begins with."""
        return self._source_lines()[1]

    @property
    def src(self) -> str:
        """The text of the function, without its decorators."""
        if self.text is not None:
            return self.text
        text = textwrap.dedent("".join(self.raw_src))
        found = re.search(r"^def\s+\w+\s*\(", text, re.MULTILINE)
        return text[found.start() :] if found else text

    @src.setter
    def src(self, text: str) -> None:
        raise AttributeError("src is changed with _unsafe_update_src(), which forgets compiles")

    def _unsafe_update_src(self, new_src: str) -> None:
        """Other text for the function: what was compiled with it is forgotten."""
        self.text = new_src
        self.hash = None
        self.__dict__.pop("source", None)
        self.forget()
        for kernel in list(self.callers):
            kernel.forget()

    @property
    def cache_key(self) -> str:
        """A digest of the source, and of those of the functions that it calls."""
        if self.hash is None:
            self.hash = "..."  # a function that calls itself
            parts = [self.src, str(self.starting_line_number), *_uses(self)]
            self.hash = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        return self.hash

    @property
    def used_global_vals(self) -> dict[tuple[str, int], tuple[Any, Any]]:
        """The constants that were compiled in: (value, the names around it) by name and place."""
        found = {}
        for read in self.outside.reads.values():
            place = vars(read.owner) if isinstance(read.owner, ModuleType) else self.fn.__globals__
            found[read.name, id(place)] = (read.value, place)
        return found

    def repr(self, specialization: Any = None) -> str:
        """The name of the kernel, or what `repr=` of the decorator makes of a specialization."""
        full = f"{self.fn.__module__}.{self.fn.__qualname__}"
        return full if self._repr is None else self._repr(specialization)

    def __repr__(self) -> str:
        return f"JITFunction({self.module}:{self.fn.__qualname__})"

    create_binder = preload = type = stand_in(
        "JITFunction.create_binder, preload, type",
        "fuser binds and compiles by classes of arguments of its own",
        "call kernel.warmup with arguments of the types to compile for",
    )

    def is_gluon(self) -> bool:
        """Whether it is written in Gluon."""
        return False

    def parse(self) -> ast.Module:
        """The syntax tree of `src`."""
        return ast.parse(self.src)

    def get_capture_scope(self) -> Mapping[str, Any]:
        """The names around it, as they are now."""
        return self.scope

    # launches -----------------------------------------------------------------------------------

    def add_pre_run_hook(self, hook: Callable[..., Any]) -> None:
        """A function to call with the arguments of every launch before it."""
        self.pre_run_hooks.append(hook)

    def bind(self, args: Sequence[Any], named: dict[str, Any]) -> tuple[dict[str, Any], Options]:
        for name in named:
            if name not in self.signature.parameters and name not in OPTIONS:
                raise UnknownKeywordError(
                    f"Keyword argument {name} was specified but unrecognised",
                    where=self.fn.__name__,
                    hint=f"parameters: {', '.join(self.arg_names)}; options: {', '.join(OPTIONS)}",
                )
        debug = named.get("debug")
        named["debug"] = bool((self.debug if debug is None else debug) or knobs.runtime.debug)
        if "enable_fp_fusion" not in self.signature.parameters:
            asked = named.get("enable_fp_fusion")
            named["enable_fp_fusion"] = knobs.language.fp_fusion_enabled(asked)
        return super().bind(args, named)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        """The launcher for a grid: 1 to 3 numbers of programs, or a function of the arguments that
        gives them."""
        return KernelFunction.__getitem__(self, grid)

    def _launch(self, grid: Any, /, *args: Any, **named: Any) -> Any:
        """What is launched natively is mostly not seen here."""
        if self.outside.reads:
            self.outside.check(self.fn.__name__)
        if self._is_plain():
            known = self._steady.launch(grid, args, named, grid_of)
            if known is not None:
                return known
        return self._run(args, named, grid, False)

    def _watches(self) -> Sequence[Watch] | None:
        """That `_is_plain` holds, told by the dicts that it depends on."""
        from fuser.runtime.front import Watch

        environment = os.environ._data  # type: ignore[attr-defined]
        groups = {name: vars(getattr(knobs, name)) for name in SETTINGS}
        chains = knobs.runtime_knobs.launch_enter_hook, knobs.runtime_knobs.launch_exit_hook
        constants = super()._watches()
        if constants is None:
            return None
        return (
            *constants,
            Watch.empty(vars(self), "pre_run_hooks"),
            *(Watch.same(vars(knobs), name) for name in SETTINGS),
            *(Watch.empty(vars(chain), "calls") for chain in chains),
            *(Watch.absent(groups[group], name) for group in SETTINGS for name in SETTINGS[group]),
            Watch.same(vars(os), "environ"),
            *(Watch.absent(environment, os.environ.encodekey(name)) for name in VARIABLES),
        )

    def _is_plain(self) -> bool:
        """Whether a launch depends on its arguments alone: nobody is told, and nothing added."""
        asked = self.pre_run_hooks or _hooked() or knobs.runtime.debug
        return not asked and knobs.language.fp_fusion_enabled(None)

    def run(self, *args: Any, grid: Any, warmup: bool = False, **named: Any) -> Any:
        """Launch, or compile only. The compiled kernel."""
        if warmup:
            return self._run(args, named, grid, True)
        return self[grid](*args, **named)

    def _run(self, args: tuple[Any, ...], named: dict[str, Any], grid: Any, warmup: bool) -> Any:
        from fuser.language.arguments import classify
        from fuser.language.stored import sizes_of
        from fuser.language.variants import launch

        gathered = gathering.get() if warmup else None
        for hook in self.pre_run_hooks if gathered is None else ():
            hook(*args, **named)
        self.outside.check(self.fn.__name__)
        recorded = None if warmup else self._recorded(grid, args, dict(named))
        if recorded is not None:
            return recorded
        bound, options = self.bind(args, dict(named))
        self._check_parameters()
        found = classify(bound, self.constexprs, self.plain, self.annotated)
        if warmup and grid is not None and callable(grid):
            grid = grid(bound)
        extents = (1,) if grid is None else grid_of(grid, bound)
        if options.check and not warmup and all(extents):
            from fuser.language.check import run_checked

            return run_checked(self, found, extents, options, options.check)
        if gathered is not None:
            gathered.append((self, found, extents, options))
            return None
        mode = active_mode.get() if warmup else None
        if mode is not None:
            return self._handed_over(mode, found, extents, options)
        made = self._compiled(found, extents, options, warmup)
        if made is None or warmup or not all(extents):
            return made
        if not _hooked():
            launch(made.variant, found, extents)
            if self._is_plain():
                sizes = sizes_of(made.variant.program, found, extents)
                self._steady.remember(
                    args, named, bound, found, self.plain, made.variant, made, sizes
                )
            return made
        enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
        metadata = made.launch_metadata(extents, 0, *bound.values())
        for hook, now in ((enter, True), (leave, False)):
            if not now:
                launch(made.variant, found, extents)
            if hook is not None:
                hook(metadata)
        return made

    def _handed_over(
        self, mode: AsyncCompileMode, found: Arguments, extents: Sequence[int], options: Options
    ) -> FutureKernel:
        """The compile as one of an AsyncCompileMode's."""
        shape = tuple(min(extent, 2) for extent in extents)
        key = (self, str((tuple(found.classes.items()), shape, options, found.device)))
        held = self.device_caches[driver.active.get_current_device()][0]
        name = _cache_key(found, options)

        def give_up(future: FutureKernel) -> None:
            if held.get(name) is future:
                del held[name]

        future = mode.submit(
            key, lambda: self._compiled(found, extents, options, True), _nothing, give_up
        )
        held.setdefault(name, future)
        return future

    def _check_parameters(self) -> None:
        for param in self.params:
            if param.is_constexpr and param.do_not_specialize:
                raise CompilationError(
                    f"{param.name} marked as constexpr and listed in do_not_specialize",
                    where=f"{self.fn.__code__.co_filename}:{self.fn.__code__.co_firstlineno}",
                    hint="drop one of the two",
                    kernel=self.fn.__name__,
                )

    def _compiled(
        self, found: Arguments, extents: Sequence[int], options: Options, warmup: bool
    ) -> CompiledKernel | None:
        cache = self.device_caches[driver.active.get_current_device()][0]
        before = sum(map(len, self.variants.values()))
        hook = knobs.runtime.jit_cache_hook
        variant = self.variant(found, extents, options)
        known: dict[Any, CompiledKernel] = vars(variant).setdefault("triton", {})
        asked = tuple(getattr(options, name) for name in COMPILED_FOR)
        made = known.get(asked)
        if made is None:
            made = CompiledKernel(self, variant, options, driver.active.get_current_target())
            known[asked] = made
            # what was compiled ahead of a launch is told of nobody; other options that lead to the
            # same code are compiles, as far as hooks can see
            if len(known) == 1 and sum(map(len, self.variants.values())) == before:
                return made
            key = _cache_key(found, options)
            cache[key] = made
            told = self._facts(found, options, warmup, key)
            if hook is not None and hook(**told):
                return None
            for event in (knobs.runtime.kernel_load_start_hook, knobs.runtime.kernel_load_end_hook):
                if event is not None:
                    event(None, made.function, made.name, {}, made.hash)
            if knobs.runtime.jit_post_compile_hook is not None:
                knobs.runtime.jit_post_compile_hook(**told)
        return made

    def _facts(self, found: Arguments, options: Options, warmup: bool, key: str) -> dict[str, Any]:
        """What hooks are told of a compile."""
        name = f"{self.fn.__module__}.{self.fn.__qualname__}"
        signature = {n: str(kind) for n, kind in found.classes.items()}
        return {
            "key": key,
            "repr": f"{name}[num_warps={options.num_warps}]",
            "fn": JitFunctionInfo(self.fn.__module__, self.fn.__qualname__, self),
            "compile": {
                "key": key, "signature": signature, "constants": {}, "configs": [{}],
                "device": driver.active.get_current_device(),
                "num_warps": options.num_warps, "num_ctas": options.num_ctas,
                "num_stages": options.num_stages, "is_warmup": warmup,
                "enable_fp_fusion": options.fp_fusion, "launch_cooperative_grid": False,
                "extern_libs": (),
                "specialization_data": str({"name": name, "key": key}),
            },
            "is_manual_warmup": warmup,
            "already_compiled": False,
        }  # fmt: skip


def _cache_key(found: Arguments, options: Options) -> str:
    """What a compile is held by in device_caches."""
    return str((tuple(found.classes.items()), options))


def _nothing(item: Any) -> None:
    """What is to be done when a compile ends."""


def _uses(function: Any) -> list[str]:
    """The functions and constants from outside that a function's text names, as text."""
    found = []
    scope = function.scope
    for name in sorted(set(re.findall(r"[A-Za-z_]\w*", function.src))):
        value = scope.get(name)
        if isinstance(value, JITFunction | ConstexprFunction) and value is not function:
            found.append(value.cache_key)
        elif isinstance(value, type) and issubclass(value, Aggregate):
            found.append(f"{name}: {value._aggregate_fields}")
            for method in value._aggregate_methods.values():
                found += [method.cache_key] if hasattr(method, "cache_key") else []
        elif isinstance(value, Constexpr):
            found.append(f"{name}={value!r}")
    return found


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    version: Any = None,
    repr: Callable[..., str] | None = None,
    launch_metadata: Any = None,
    do_not_specialize: Iterable[str | int] | None = None,
    do_not_specialize_on_alignment: Iterable[str | int] | None = None,
    debug: bool | None = None,
    noinline: bool | None = None,
) -> Any:
    """Make a function a kernel. Parameters as those of triton.jit 3.9."""

    def decorate(function: Callable[..., Any]) -> JITFunction:
        return JITFunction(
            function, version, do_not_specialize, do_not_specialize_on_alignment, debug, noinline,
            repr, launch_metadata,
        )  # fmt: skip

    return decorate if fn is None else decorate(fn)


def wrap_triton(kernel: Any) -> Any:
    """What `torch.library.wrap_triton` is for kernels of fuser: PyTorch traces their launches as
    they are."""
    return kernel
