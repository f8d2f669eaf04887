"""Compiles of a kernel, and their launches."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fuser.backend.module import CompiledKernel
from fuser.backend.symbols import named, readable
from fuser.backend.workers import CompileJob, compile_all, compile_each, start
from fuser.base.config import Config
from fuser.base.target import Target
from fuser.errors import FuserError, UsageError
from fuser.graph.sizes import Guard, Sizes, guard_from_list
from fuser.language.addresses import MEMORY
from fuser.language.arguments import Arguments
from fuser.language.compile import ArgumentClass, Options, Program, finish, trace
from fuser.language.explain import explain
from fuser.language.functions import Function
from fuser.language.internal import located
from fuser.language.order import depends_on_order
from fuser.language.reach import witnesses
from fuser.language.reports import prepared, tell
from fuser.language.stages import Stages
from fuser.language.stored import Code, Shelf, broken, sizes_of
from fuser.pipeline.devices import choose_target
from fuser.runtime.cache import KernelCache
from fuser.runtime.launch import CpuKernel, CudaKernel, load_kernel, scalar_bits, stream_for
from fuser.tilegen.text import print_kernel


@dataclass(eq=False)
class Variant:
    """One compile of a kernel. loaded: None until it is launched for the first time. tile, emitted:
    the Tile IR after and before its passes. classes: of the arguments it was compiled for;
    examples: the values that their symbols had. writes: the leaves of the arguments that it
    writes."""

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
    writes: frozenset[int]

    @functools.cached_property
    def asm(self) -> Stages:
        """The kernel as text by stage: see fuser/language/stages.py."""
        return Stages(self)

    def explain(self) -> str:
        """What it is for, how its memory is accessed, what it does, and what it takes for
        granted."""
        return explain(self)

    def broken(self, found: Arguments, grid: Sequence[int], options: Options) -> str:
        """What it takes for granted that does not hold, if there is anything."""
        return broken(self.program, self.guards, found, grid, options.num_warps)

    def runs(self, found: Arguments, grid: Sequence[int]) -> Any:
        """What a launch runs, whatever it was compiled from: launches of the same arrays for which
        this is equal do the same."""
        program, code = self.program, self.compiled
        numbers = [*sizes_of(program, found, grid).values()]
        numbers += [found.leaves[leaf] for leaf, _ in program.scalars]
        shape = code.launch, code.threads, code.shared_bytes, code.cluster
        return code.code, shape, tuple(program.buffers), tuple(numbers), tuple(grid)


def make_variant(
    function: Function, found: Arguments, grid: Sequence[int], options: Options
) -> Variant:
    """A kernel compiled for the arguments of a launch. Raises LanguageError, and what compiling
    raises."""
    target = choose_target("cuda" if found.device[0] == "cuda" else "cpu")
    wanted = Wanted(function, found, grid, options)
    return _variant(wanted, code_for(*wanted, target), target)


def _variant(wanted: Wanted, code: Code, target: Target) -> Variant:
    function, found, _, options = wanted
    device, ordinal = found.device
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
        code.emitted, code.examples, code.writes,
    )  # fmt: skip


class Wanted(NamedTuple):
    """What code is wanted for: a kernel and a launch of it."""

    function: Function
    found: Arguments
    grid: Sequence[int]
    options: Options


def code_for(
    function: Function, found: Arguments, grid: Sequence[int], options: Options, target: Target
) -> Code:
    """The code for the arguments of a launch; nothing is loaded. Raises LanguageError, and what
    compiling raises."""
    compiling = _Compiling(Wanted(function, found, grid, options), target)
    if compiling.code is None:
        with compiling.walk() as job:
            (compiled,) = compile_all([job], compiling.cache)
            compiling.finish(compiled)
    assert compiling.code is not None
    return compiling.code


def make_variants(wanted: Sequence[Wanted]) -> list[Variant | None]:
    """Kernels compiled for launches on one device: some are walked while others are with the
    workers. None for those that do not compile: `make_variant` says why."""
    if not wanted:
        return []
    device, _ = wanted[0].found.device
    target = choose_target("cuda" if device == "cuda" else "cpu")
    compiling = [_Compiling(item, target) for item in wanted]
    left = [item for item in compiling if item.code is None]

    def jobs() -> Generator[CompileJob, None, None]:
        for item in left:
            with contextlib.suppress(FuserError), item.walk() as job:
                yield dataclasses.replace(job, replaceable=True)

    if left:
        with contextlib.suppress(FuserError), contextlib.closing(jobs()) as given:
            found = iter(compile_each(given, compiling[0].cache))
            for item in left:
                compiled = next(found) if item.program is not None else None
                if isinstance(compiled, CompiledKernel):
                    item.finish(compiled)
    made: list[Variant | None] = []
    for item in compiling:
        made.append(None)
        if item.code is not None:
            with contextlib.suppress(FuserError):
                made[-1] = _variant(item.wanted, item.code, target)
    return made


class _Compiling:
    """One compile on its way. code: None while there is none."""

    def __init__(self, wanted: Wanted, target: Target) -> None:
        config = Config.from_environment()
        self.wanted, self.target = wanted, target
        self.cache = KernelCache(config.cache_dir) if config.cache else None
        self.options = wanted.options.on(target)
        function, found, grid, _ = wanted
        self.shelf = Shelf(function, found, grid, self.options, target, self.cache)
        self.code = self.shelf.find()
        self.program: Program | None = None
        self._emitted = self._text = ""
        self._guards: tuple[Guard, ...] = ()
        self._examples: dict[str, int] = {}

    @contextlib.contextmanager
    def walk(self) -> Iterator[CompileJob]:
        """Walk over the source, and run the passes. In the block its sizes are active."""
        start(self.target)  # the compiler is loaded there meanwhile
        function, found, grid, _ = self.wanted
        with Sizes({}) as sizes:
            program = trace(function, found.classes, found.leaves, grid, self.options, sizes)
            self._emitted = print_kernel(program.kernel)
            with located(function, program.kernel):
                finish(program, sizes, self.target if self.target.is_cuda else None)
                self._text = print_kernel(program.kernel)
                self._guards, self._examples = sizes.guards, dict(sizes.examples)
                program.witnesses = witnesses(program.kernel, program.buffers)
                if sizes.guards != self._guards:  # an answer that is not for all sizes
                    program.witnesses = ()
                self.program = program
                yield CompileJob(program.kernel, self.target, where=program.name)

    def finish(self, compiled: CompiledKernel) -> None:
        """Take the machine code."""
        program = self.program
        assert program is not None
        (compiled,) = named([compiled], [readable(program.name)])
        known = {guard.key for guard in self._guards}
        more = (guard_from_list(record) for record in compiled.facts.get("guards", ()))
        guards = self._guards + tuple(guard for guard in more if guard.key not in known)
        self.code = Code(
            program, compiled, guards, self._emitted, self._text, self._examples, program.writes
        )
        self.shelf.keep(self.code)


def launch(variant: Variant, found: Arguments, grid: Sequence[int]) -> None:
    """Run a variant on the arguments of a launch."""
    program = variant.program
    memory: dict[int, Any] = {}
    if program.reports is not None:
        found, memory = prepared(program.reports, found)
    device, ordinal = found.device
    for leaf, record in found.records.items():
        record.require(
            found.names.get(leaf, program.name), writes=leaf in variant.writes,
            device=device, ordinal=ordinal, kernel=program.name,
        )  # fmt: skip
    values = sizes_of(program, found, grid)
    for item in program.witnesses:
        item.check(found.records[item.leaf], found.names.get(item.leaf, program.name), values)
    records = found.records
    pointers = [0 if leaf == MEMORY else records[leaf].address for leaf in program.buffers]
    scalars = [
        scalar_bits(_number(found.leaves[leaf], dtype.ir.is_float), dtype.ir)
        for leaf, dtype in program.scalars
    ]
    rank = program.rank
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
