"""Kernels as callables: `kernel[grid](x, y, n, BLOCK=128)`.

A launch classifies its arguments (arguments.py). For each class there are variants, each right for
the sizes at which its guards hold; a launch that no variant serves compiles another.
"""

from __future__ import annotations

import functools
import logging
import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fuser.backend.module import CompiledKernel
from fuser.backend.workers import CompileJob, compile_all
from fuser.config import Config, start_logs
from fuser.errors import UsageError
from fuser.graph.dims import symbols_of
from fuser.graph.sizes import Guard, Sizes, guard_from_list
from fuser.language.addresses import MEMORY
from fuser.language.arguments import Arguments, classify
from fuser.language.blocks import chosen
from fuser.language.check import Check, Checked, run_checked
from fuser.language.compile import ArgumentClass, Options, Program, finish, trace
from fuser.language.explain import explain
from fuser.language.functions import Function
from fuser.language.internal import located
from fuser.language.layouts import as_written, number_of
from fuser.language.order import depends_on_order
from fuser.language.outside import Outside
from fuser.language.reasons import changes
from fuser.language.reports import prepared, tell
from fuser.language.stages import Stages
from fuser.language.steady import Steady
from fuser.pipeline.devices import choose_target
from fuser.runtime.cache import KernelCache
from fuser.runtime.front import Watch
from fuser.runtime.launch import CpuKernel, CudaKernel, load_kernel, scalar_bits, stream_for
from fuser.target import Target
from fuser.tilegen.text import print_kernel

_log = logging.getLogger("fuser.recompiles")
Grid = Sequence[int] | Callable[[dict[str, Any]], Sequence[int] | int] | int

KEY = ("the grid (2: two and more programs)", "num_warps", "num_stages", "debug", "deterministic",
       "the device")  # fmt: skip
"""What a compile is for beside its arguments, in the order of the keys."""
OPTIONS = (
    "num_warps", "num_stages", "num_ctas", "maxnreg", "debug", "enable_fp_fusion", "launch_pdl",
    "launch_cooperative_grid", "sanitize_overflow", "arch", "warp_size", "extern_libs",
    "allow_fp8e4nv", "max_num_imprecise_acc_default", "ir_override", "instrumentation_mode",
    "check", "deterministic",
)  # fmt: skip
"""Keywords of a launch that are no arguments of the kernel."""

FP8_PRODUCTS = 89
"""The compute capability from which GPUs multiply 8-bit floats."""


@dataclass(eq=False)
class Variant:
    """One compile of a kernel. loaded: None until it is launched for the first time. tile, emitted:
    the Tile IR after and before its passes. classes: of the arguments it was compiled for;
    examples: the values that their symbols had."""

    program: Program
    compiled: CompiledKernel
    guards: tuple[Guard, ...]
    loaded: CpuKernel | CudaKernel | None
    tile: str
    function: Function
    target: Target
    classes: dict[str, ArgumentClass]
    emitted: str
    examples: dict[str, int]

    @functools.cached_property
    def asm(self) -> Stages:
        """The kernel as text by stage: see fuser/language/stages.py."""
        return Stages(self)

    def explain(self) -> str:
        """What it is for, how its memory is accessed, what it does, and what it takes for
        granted."""
        return explain(self)

    @property
    def writes(self) -> frozenset[int]:
        """The leaves of the arguments that it writes."""
        program = self.program
        return frozenset(
            leaf
            for leaf, buffer in zip(program.buffers, program.kernel.buffers, strict=True)
            if buffer.role == "output"
        )

    def broken(self, found: Arguments, grid: Sequence[int]) -> str:
        """What it takes for granted that does not hold, if there is anything."""
        for fact in self.program.facts:
            record = found.records[fact.leaf]
            if not fact.holds(record):
                return f"{fact.found(record)} (was compiled where {fact})"
        sizes = sizes_of(self.program, found, grid)
        guard = next((guard for guard in self.guards if not guard.holds(sizes)), None)
        if guard is None:
            return ""
        values = ", ".join(f"{n} = {sizes[n]}" for n in sorted(symbols_of(guard.expression)))
        return as_written(f"{guard} does not hold at {values}")


class KernelFunction(Function):
    """A function that can be launched as a kernel, or called by other functions of the language."""

    def __init__(
        self,
        fn: Callable[..., Any],
        options: dict[str, Any],
        plain: Iterable[str | int] = (),
    ) -> None:
        """plain: parameters for whose values no code is made of its own, by name or position."""
        super().__init__(fn, options)
        start_logs()
        names = list(self.signature.parameters)
        self.plain = frozenset(names[n] if isinstance(n, int) else n for n in plain)
        self.variants: dict[Any, list[Variant]] = {}
        self._lock = threading.Lock()
        self._steady: Steady[Variant] = Steady(self._launch, self._watches)
        self.outside = Outside()

    def __call__(self, *args: Any, **named: Any) -> Any:
        raise UsageError(
            f"{self.fn.__name__} is a kernel: it is launched over a grid",
            hint=f"{self.fn.__name__}[(blocks,)](...), or call it from another kernel",
        )

    def __getitem__(self, grid: Grid) -> Callable[..., Any]:
        """The launcher for a grid: 1 to 3 numbers of programs, or a function of the arguments that
        gives them."""
        return self._steady.bind(grid)

    def _watches(self) -> Sequence[Watch] | None:
        """What native launches depend on besides their arguments; None: on what native code cannot
        see."""
        return self.outside.watches()

    def keep_up(self) -> None:
        """Forget what was compiled where constants that it read have changed."""
        read = self.outside.changed()
        if read is not None:
            _log.info("%s is compiled again: %s has changed", self.fn.__name__, read.name)
            self.forget()

    def forget(self) -> None:
        """Forget what was compiled."""
        self.variants.clear()
        self._steady.clear()
        self.outside = Outside()

    def run(self, *args: Any, grid: Grid, warmup: bool = False, **named: Any) -> Variant | Checked:
        """Launch. warmup: compile only. Raises LanguageError, UsageError, CheckError and what
        compiling raises."""
        if warmup:
            return self.warmup(*args, grid=grid, **named)
        return self[grid](*args, **named)  # type: ignore[no-any-return]

    def _launch(self, grid: Grid, /, *args: Any, **named: Any) -> Variant | Checked:
        """What is launched natively is mostly not seen here."""
        if self.outside.reads:
            self.keep_up()
        known: Variant | None = self._steady.launch(grid, args, named, grid_of)
        if known is not None:
            return known
        given = dict(named)
        bound, options = self.bind(args, named)
        found = classify(bound, self.constexprs, self.plain, self.annotated)
        extents = grid_of(grid, bound)
        if options.check and all(extents):
            return run_checked(self, found, extents, options, options.check)
        variant = self.variant(found, extents, options)
        if all(extents):
            launch(variant, found, extents)
            self._steady.remember(args, given, bound, found, self.plain, variant, variant)
        return variant

    def warmup(self, *args: Any, grid: Grid, **named: Any) -> Variant:
        """Compile for these arguments without a launch."""
        bound, options = self.bind(args, named)
        found = classify(bound, self.constexprs, self.plain, self.annotated)
        return self.variant(found, grid_of(grid, bound), options)

    def bind(self, args: Sequence[Any], named: dict[str, Any]) -> tuple[dict[str, Any], Options]:
        """Arguments by parameter, and the options of the launch. Raises UsageError."""
        parameters = self.signature.parameters
        asked = {
            name: named.pop(name) for name in list(named)
            if name in OPTIONS and name not in parameters
        }  # fmt: skip
        try:
            bound = self.signature.bind(*args, **named)
        except TypeError as error:
            raise UsageError(
                f"{self.fn.__name__}: {error}", hint=f"its parameters: {', '.join(parameters)}"
            ) from None
        bound.apply_defaults()
        options = Options(
            num_warps=int(asked.get("num_warps") or 4),
            num_stages=int(asked.get("num_stages") or 3),
            debug=bool(asked.get("debug", False)),
            check=_check_of(asked.get("check")),
            deterministic=bool(asked.get("deterministic", False)),
        )
        return {name: chosen(value) for name, value in bound.arguments.items()}, options

    def variant(self, found: Arguments, grid: Sequence[int], options: Options) -> Variant:
        """The variant for a launch, compiled now if there is none."""
        shape = tuple(min(extent, 2) for extent in (max(1, extent) for extent in grid))
        key = (tuple(found.classes.values()), shape, options.num_warps, options.num_stages,
               options.debug, options.deterministic, found.device)  # fmt: skip
        with self._lock:
            variants = self.variants.setdefault(key, [])
            reasons = []
            for item in variants:
                broken = item.broken(found, grid)
                if not broken:
                    return item
                reasons.append(broken)
            if variants or len(self.variants) > 1:
                why = "; and ".join(reasons) or ", ".join(self._changes(key))
                _log.info("%s is compiled again: %s", self.fn.__name__, why)
            made = self._compile(found, [max(1, extent) for extent in grid], options)
            variants.append(made)
            return made

    def _changes(self, key: tuple[Any, ...]) -> list[str]:
        """What is not as at the compile that is most like this one."""
        names = list(self.signature.parameters)
        classes = dict(zip(names, key[0], strict=False))
        found: list[list[str]] = []
        for other in self.variants:
            if other is not key and self.variants[other]:
                more = zip(KEY, key[1:], other[1:], strict=True)
                rest = [f"{what} is {now} (was {was})" for what, now, was in more if now != was]
                old = dict(zip(names, other[0], strict=False))
                found.append(changes(old, classes) + rest)
        return min(found, key=len, default=[])

    def explain(self, *args: Any, grid: Grid, **named: Any) -> str:
        """What a launch with these arguments would run, as text; it is compiled, not launched."""
        return self.warmup(*args, grid=grid, **named).explain()

    def _compile(self, found: Arguments, grid: Sequence[int], options: Options) -> Variant:
        device, ordinal = found.device
        target = choose_target("cuda" if device == "cuda" else "cpu")
        if target.name == "cuda" and target.sm >= FP8_PRODUCTS:
            options = replace(options, extra={**options.extra, "fp8_products": True})
        with Sizes({}) as sizes:
            program = trace(self, found.classes, found.leaves, grid, options, sizes)
            emitted = print_kernel(program.kernel)
            self.outside.reads.update(program.outside.reads)
            with located(self, program.kernel):
                finish(program, sizes, device == "cuda")
                compiled, text = _machine_code(program, target)
            guards = sizes.guards
        records = compiled.facts.get("guards", ())
        known = {guard.key for guard in guards}
        more = (guard_from_list(record) for record in records)
        guards += tuple(guard for guard in more if guard.key not in known)
        in_order = options.deterministic and depends_on_order(program.kernel)
        if in_order and device == "cuda":
            raise UsageError(
                f"deterministic=True: {self.fn.__name__} has an atomic whose order decides its "
                "result, and a GPU runs programs in no fixed order",
                where=in_order,
                hint="store a part for each program and add the parts up, or run it on the CPU",
            )
        loaded = load_kernel(compiled, "cuda" if device == "cuda" else "cpu", ordinal)
        if in_order and isinstance(loaded, CpuKernel):
            loaded = CpuKernel(compiled, threads=1)
        return Variant(
            program, compiled, guards, loaded, text, self, target, dict(found.classes), emitted,
            dict(sizes.examples),
        )  # fmt: skip


@functools.cache
def _always_checked() -> bool:
    """Whether FUSER_CHECK asks for it, read once."""
    return Config.from_environment().check


def _check_of(asked: Any) -> Check:
    if asked is None:
        return _always_checked()
    if asked not in (True, False, "benign"):
        raise UsageError(f"check={asked!r}", hint='it is True, False or "benign"')
    return asked  # type: ignore[no-any-return]


def _machine_code(program: Program, target: Target) -> tuple[CompiledKernel, str]:
    config = Config.from_environment()
    cache = KernelCache(config.cache_dir) if config.cache else None
    text = print_kernel(program.kernel)
    job = CompileJob(program.kernel, target, where=program.kernel.name)
    return compile_all([job], cache)[0], text


def grid_of(grid: Grid, bound: dict[str, Any]) -> tuple[int, ...]:
    """1 to 3 numbers of programs. Raises UsageError."""
    found = grid(bound) if callable(grid) else grid
    items = tuple(found) if isinstance(found, tuple | list) else (found,)
    if not 1 <= len(items) <= 3:
        raise UsageError(f"a grid of {len(items)} axes", hint="it has 1 to 3")
    try:
        extents = tuple(operator.index(item) for item in items)
    except TypeError:
        raise UsageError(f"the grid {items} holds what is no whole number") from None
    if any(extent < 0 for extent in extents):
        raise UsageError(f"the grid {extents} is negative on an axis")
    return extents


def sizes_of(program: Program, found: Arguments, grid: Sequence[int]) -> dict[str, int]:
    """The values of the symbols of a program in a launch."""
    sizes = {}
    for name, (leaf, by) in program.symbols.items():
        sizes[name] = grid[-1 - leaf] if leaf < 0 else found.leaves[leaf] // by
    for name, (fact, by) in program.measures.items():
        number = number_of(found.records[fact.leaf], fact.what, fact.axis)
        assert number is not None
        sizes[name] = number // by
    return sizes


def launch(variant: Variant, found: Arguments, grid: Sequence[int]) -> None:
    """Run a variant on the arguments of a launch."""
    program = variant.program
    memory: dict[int, Any] = {}
    if program.reports is not None:
        found, memory = prepared(program.reports, found)
    device, ordinal = found.device
    for leaf, record in found.records.items():
        record.require(
            program.kernel.name, writes=leaf in variant.writes, device=device, ordinal=ordinal
        )
    records = found.records
    pointers = [0 if leaf == MEMORY else records[leaf].address for leaf in program.buffers]
    values = sizes_of(program, found, grid)
    scalars = [
        scalar_bits(_number(found.leaves[leaf], dtype.ir.is_float), dtype.ir)
        for leaf, dtype in program.scalars
    ]
    rank = len(program.kernel.grid)
    extents = tuple(reversed((*grid, *[1] * rank)[:rank]))
    loaded = variant.loaded
    if isinstance(loaded, CudaKernel):
        stream = stream_for(found.records.values(), loaded.ordinal)
        loaded.launch(pointers, extents, values, scalars, stream)
    else:
        assert loaded is not None
        loaded.launch(pointers, extents, values, scalars)
    if program.reports is not None:
        tell(program.reports, memory, tuple(grid), ordinal)


def _number(value: Any, floating: bool) -> float | int:
    return float(value) if floating else int(value)
