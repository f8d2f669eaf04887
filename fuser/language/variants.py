"""Compiles of a kernel, and their launches."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fuser.backend.module import CompiledKernel
from fuser.backend.symbols import named, readable
from fuser.backend.workers import CompileJob, compile_all
from fuser.base.config import Config
from fuser.base.target import Target
from fuser.errors import UsageError
from fuser.graph.dims import symbols_of
from fuser.graph.sizes import Guard, Sizes, guard_from_list
from fuser.language.addresses import MEMORY
from fuser.language.arguments import Arguments
from fuser.language.compile import ArgumentClass, Options, Program, finish, trace
from fuser.language.explain import explain
from fuser.language.functions import Function
from fuser.language.internal import located
from fuser.language.layouts import as_written, number_of
from fuser.language.order import depends_on_order
from fuser.language.reports import prepared, tell
from fuser.language.stages import Stages
from fuser.pipeline.devices import choose_target
from fuser.runtime.cache import KernelCache
from fuser.runtime.launch import CpuKernel, CudaKernel, load_kernel, scalar_bits, stream_for
from fuser.tilegen.text import print_kernel


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


def make_variant(
    function: Function, found: Arguments, grid: Sequence[int], options: Options
) -> Variant:
    """A kernel compiled for the arguments of a launch. Raises LanguageError, and what compiling
    raises."""
    device, ordinal = found.device
    target = choose_target("cuda" if device == "cuda" else "cpu")
    code = code_for(function, found, grid, options, target)
    program, compiled = code.program, code.compiled
    in_order = options.deterministic and depends_on_order(program.kernel)
    if in_order and device == "cuda":
        raise UsageError(
            f"deterministic=True: {function.fn.__name__} has an atomic whose order decides its "
            "result, and a GPU runs programs in no fixed order",
            where=in_order,
            hint="store a part for each program and add the parts up, or run it on the CPU",
        )
    loaded = load_kernel(compiled, "cuda" if device == "cuda" else "cpu", ordinal)
    if in_order and isinstance(loaded, CpuKernel):
        loaded = CpuKernel(compiled, threads=1)
    return Variant(
        program, compiled, code.guards, loaded, code.text, function, target, dict(found.classes),
        code.emitted, code.examples,
    )  # fmt: skip


class Code(NamedTuple):
    """A kernel compiled for a target, which need not be here."""

    program: Program
    compiled: CompiledKernel
    guards: tuple[Guard, ...]
    emitted: str
    """The Tile IR as the walk over the source left it."""
    text: str
    """The Tile IR that was compiled."""
    examples: dict[str, int]
    """Sizes of this launch, by symbol."""


def code_for(
    function: Function, found: Arguments, grid: Sequence[int], options: Options, target: Target
) -> Code:
    """The code for the arguments of a launch; nothing is loaded. Raises LanguageError, and what
    compiling raises."""
    options = options.on(target)
    with Sizes({}) as sizes:
        program = trace(function, found.classes, found.leaves, grid, options, sizes)
        emitted = print_kernel(program.kernel)
        with located(function, program.kernel):
            finish(program, sizes, target if target.name == "cuda" else None)
            compiled, text = _machine_code(program, target)
        guards = sizes.guards
    records = compiled.facts.get("guards", ())
    known = {guard.key for guard in guards}
    more = (guard_from_list(record) for record in records)
    guards += tuple(guard for guard in more if guard.key not in known)
    return Code(program, compiled, guards, emitted, text, dict(sizes.examples))


def _machine_code(program: Program, target: Target) -> tuple[CompiledKernel, str]:
    config = Config.from_environment()
    cache = KernelCache(config.cache_dir) if config.cache else None
    text = print_kernel(program.kernel)
    job = CompileJob(program.kernel, target, where=program.kernel.name)
    (compiled,) = compile_all([job], cache)
    return named([compiled], [readable(program.kernel.name)])[0], text


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
            found.names.get(leaf, program.kernel.name), writes=leaf in variant.writes,
            device=device, ordinal=ordinal, kernel=program.kernel.name,
        )  # fmt: skip
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
