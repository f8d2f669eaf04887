"""A kernel and the classes of its arguments -> a tile program -> machine code."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fuser.base.target import Target
from fuser.errors import UsageError
from fuser.graph import dims
from fuser.graph.dims import DimExpr, symbol
from fuser.graph.sizes import LEAST, Guard, Sizes
from fuser.language import schedules
from fuser.language.addresses import MEMORY, overlap_all
from fuser.language.calls import inline
from fuser.language.descriptors import Parts
from fuser.language.emitter import Emitter
from fuser.language.functions import Function
from fuser.language.layouts import Fact, Layout
from fuser.language.outside import Outside
from fuser.language.reach import Span, Witness, spans
from fuser.language.sites import Reports
from fuser.language.tensors import Pointer, Tensor
from fuser.language.types import ElementType, int64
from fuser.tilegen import ops
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import Index
from fuser.tilegen.ir import Buffer, Kernel
from fuser.tilegen.passes import run_passes
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.verify import verify

SMALL_BYTES = (1 << 31) - 1
"""Memory whose byte offsets fit 32 bits."""
LARGE_BYTES = 1 << 46
MOST_WARPS = 32
"""Maximum warps of a block of threads on GPUs; on CPUs they decide nothing."""
FP8_PRODUCTS = 89
"""The compute capability from which GPUs multiply 8-bit floats."""


@dataclass(frozen=True)
class ArrayClass:
    """What a kernel is compiled for of an array argument.

    align: bytes that its address is a multiple of, 16 at most. large: whether it has more than
    2^31 bytes. alias: arguments with the same number, if not 0, may overlap.
    """

    element: ElementType
    align: int = 16
    large: bool = False
    alias: int = 0
    const: bool = False


@dataclass(frozen=True)
class IntegerClass:
    """An integer that is known at the launch: a symbol of the code, `by` times a whole number.

    by 0: nothing is known of it; it is a number that no address is made of.
    """

    dtype: ElementType
    by: int = 1


@dataclass(frozen=True)
class FloatClass:
    """A float that is known at the launch."""

    dtype: ElementType


@dataclass(frozen=True, eq=False)
class Fixed:
    """A value that is compiled in. dtype: of a number that is no constexpr to the kernel."""

    value: Any
    dtype: ElementType | None = None

    def __hash__(self) -> int:
        try:
            return hash((type(self.value), self.value))
        except TypeError:
            return hash(id(self.value))

    def __eq__(self, other: object) -> bool:
        """1, 1.0 and True differ, and so do objects without an equality of their own."""
        if not isinstance(other, Fixed) or type(self.value) is not type(other.value):
            return False
        return self.dtype == other.dtype and bool(
            self.value is other.value or self.value == other.value
        )


ArgumentClass = ArrayClass | IntegerClass | FloatClass | Fixed | tuple[Any, ...]


@dataclass(frozen=True)
class Options:
    """How a launch wants a kernel compiled. check: in the interpreter, not compiled at all (see
    check.py); deterministic: with atomics in a fixed order; fp_fusion: products may be contracted
    with sums, and divisions on a GPU be approximate; overflow: sums, differences and products of
    integers that do not fit raise after the launch.

    GPUs. num_ctas: blocks of a cluster that share a program of rows; maxnreg: registers that a
    thread may have at most, 0: as many as it wants; launch_pdl: the kernel begins while the one
    before it on the stream ends, and waits for that before it reads."""

    num_warps: int = 4
    num_stages: int = 3
    debug: bool = False
    check: bool | Literal["benign"] = False
    deterministic: bool = False
    fp_fusion: bool = True
    overflow: bool = False
    num_ctas: int = 1
    maxnreg: int = 0
    launch_pdl: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    def meant(self, on_gpu: bool) -> Options:
        """With what means something on a device: a CPU has no warps, and pipelines no loads."""
        if on_gpu:
            return self
        return replace(self, num_warps=4, num_stages=3, num_ctas=1, maxnreg=0, launch_pdl=False)

    def on(self, target: Target) -> Options:
        """With what the language may ask of a target. Raises UsageError for more warps than it
        has."""
        if not target.is_cuda:
            return replace(self, num_warps=min(self.num_warps, MOST_WARPS))
        if self.num_warps > MOST_WARPS:
            raise UsageError(
                f"num_warps={self.num_warps}",
                hint=f"on a GPU it is a power of 2 up to {MOST_WARPS}",
            )
        known = {"gpu": True, "fp8_products": target.sm >= FP8_PRODUCTS}
        return replace(self, extra={**self.extra, **known})


@dataclass(eq=False)
class Program:
    """The tile program of a kernel for a class of arguments.

    read: gives the kernel, which one from the disk is parsed for only where somebody asks. name,
    rank: of the kernel and its grid. buffers: for each buffer of the kernel the leaf of the
    arguments that it is. symbols: what each symbol of the sizes is, (leaf, what divides it), or
    (-1 - axis, 1) of the grid. scalars: the leaves that are passed as numbers, in order, and their
    types. guards: what must hold of the symbols. notes: how accesses were read, for explain. facts:
    what must hold of the shapes and strides of arrays; measures: the symbols that stand for those,
    by name, and what divides them. outside: the constants it read.
    reports: what the kernel tells the host, or None. warps: how many the kernel was told that it
    has, 0 where it did not ask. told: whether the compile told the user anything. witnesses:
    elements that every launch touches, to look at before.
    """

    read: Callable[[], Kernel]
    name: str
    rank: int
    buffers: list[int]
    symbols: dict[str, tuple[int, int]]
    scalars: list[tuple[int, ElementType]]
    guards: tuple[Guard, ...]
    notes: list[str]
    facts: list[Fact] = field(default_factory=list)
    measures: dict[str, tuple[Fact, int]] = field(default_factory=dict)
    outside: Outside = field(default_factory=Outside)
    reports: Reports | None = None
    warps: int = 0
    told: bool = False
    witnesses: tuple[Witness, ...] = ()

    @functools.cached_property
    def kernel(self) -> Kernel:
        return self.read()

    @functools.cached_property
    def spans(self) -> list[Span]:
        """Where the arrays that have all witnesses reach."""
        return spans(self.witnesses)

    @property
    def writes(self) -> frozenset[int]:
        """The leaves of the arguments that it writes."""
        pairs = zip(self.buffers, self.kernel.buffers, strict=True)
        return frozenset(leaf for leaf, buffer in pairs if buffer.role == "output")


def trace(
    function: Function,
    classes: Mapping[str, ArgumentClass],
    leaves: Sequence[Any],
    grid: Sequence[int],
    options: Options,
    sizes: Sizes,
    open_grid: bool = True,
) -> Program:
    """The tile program, before its passes. `sizes` must be active; it learns the symbols.

    classes: by parameter. leaves: every array and number of the launch, in order. grid: programs
    along axes 0, 1, 2; open_grid: whether the code is to serve other grids. Raises LanguageError.
    """
    meant = options.meant(bool(options.extra.get("gpu")))
    builder = Builder(
        function.fn.__name__,
        Schedule(
            warps=meant.num_warps, stages=meant.num_stages, cluster=meant.num_ctas,
            max_registers=meant.maxnreg, launch_overlap=True if meant.launch_pdl else None,
        ),
    )  # fmt: skip
    builder.kernel.fast = options.fp_fusion
    plain = bool(function.options.get("plain_pointers"))
    binder = _Binder(builder, sizes, plain, open_grid)
    extents = _grid(grid, binder, open_grid)
    e = Emitter(builder, extents)
    e.options = {**function.options, **options.extra}
    e.options |= {"debug": options.debug, "overflow": options.overflow}
    e.warps = options.num_warps
    e.call = lambda fn, *args, **named: inline(e, fn, args, named)
    named = {name: binder.bind(e, name, kind, leaves) for name, kind in classes.items()}
    with e.at(function.source, function.source.tree):
        inline(e, function, (), named)
    kernel = builder.build()
    kernel.grid = tuple(reversed(extents))
    for sibling, owner in e.owners.items():
        binder.buffers[sibling] = binder.buffers[owner]
        if sibling.role == "output" or owner.role == "output":
            sibling.role = owner.role = "output"
    binder.buffers |= {buffer: leaf for leaf, buffer in e.own_buffers.items()}
    if e.all_memory:
        binder.buffers |= dict.fromkeys(e.all_memory.values(), MEMORY)
    _spread_roles(kernel)
    if e.all_memory:
        overlap_all(kernel)
    order = [binder.buffers[buffer] for buffer in kernel.buffers]
    return Program(
        lambda: kernel, kernel.name, len(kernel.grid), order, binder.symbols, binder.scalars, (),
        e.notes, binder.facts, binder.measures, e.outside, e.reports,
        options.num_warps if e.asked_warps else 0, e.told,
    )  # fmt: skip


def _spread_roles(kernel: Kernel) -> None:
    """Memory that is written under one name is no input under another."""
    written = {b.alias for b in kernel.buffers if b.role == "output"} - {0}
    for buffer in kernel.buffers:
        if buffer.alias in written:
            buffer.role = "output"


def finish(program: Program, sizes: Sizes, gpu: Target | None = None, check: bool = False) -> None:
    """Run the passes of the Tile IR, and note what was asked of the sizes. gpu: the one it is for,
    where rows are spread over threads."""
    kernel = program.kernel
    if check:
        verify(kernel)
    run_passes(kernel, verify=check)
    asked = kernel.schedule
    if not any(isinstance(op, ops.For | ops.While) for op in kernel.walk()):
        asked = replace(asked, stages=1)  # of no loop
    kernel.schedule = (
        replace(asked, cluster=1) if gpu is None else schedules.choose(kernel, asked, gpu)
    )
    program.guards = sizes.guards


def _grid(grid: Sequence[int], binder: _Binder, open_grid: bool) -> list[int]:
    rank = max((axis + 1 for axis, extent in enumerate(grid) if extent != 1), default=1)
    extents: list[int] = []
    for axis in range(rank):
        extent = grid[axis] if axis < len(grid) else 1
        if open_grid and extent >= LEAST:
            extents.append(binder.symbol(f"grid{axis}", -1 - axis, 1, extent))  # type: ignore[arg-type]
        else:
            extents.append(extent)
    return extents


class _Binder:
    """Makes the language values of arguments."""

    def __init__(self, builder: Builder, sizes: Sizes, plain: bool, symbolic: bool) -> None:
        """plain: whether arrays are pointers and nothing else. symbolic: whether their sizes are
        symbols."""
        self.builder, self.sizes, self.plain, self.symbolic = builder, sizes, plain, symbolic
        self.facts: list[Fact] = []
        self.measures: dict[str, tuple[Fact, int]] = {}
        self.buffers: dict[Buffer, int] = {}
        self.symbols: dict[str, tuple[int, int]] = {}
        self.scalars: list[tuple[int, ElementType]] = []
        self.leaf = 0

    def symbol(self, name: str, position: int, by: int, value: int) -> DimExpr:
        self.sizes.examples[name] = value // by
        self.symbols[name] = (position, by)
        return symbol(name)

    def bind(self, e: Emitter, name: str, kind: ArgumentClass, leaves: Sequence[Any]) -> Any:
        """The language value of an argument; leaves are taken in order."""
        if isinstance(kind, tuple):
            items = [self.bind(e, f"{name}.{n}", item, leaves) for n, item in enumerate(kind)]
            joined = type(kind)(*items) if hasattr(kind, "_fields") else tuple(items)
            return joined.bound() if isinstance(joined, Parts) else joined
        leaf = self.leaf
        self.leaf += 1
        match kind:
            case Fixed(value, None):
                return value
            case Fixed(value, dtype) if dtype is not None:
                return e.constant(value, dtype)
            case ArrayClass():
                return self._array(name, leaf, kind, leaves[leaf])
            case IntegerClass() if kind.by:
                whole = self.symbol(name, leaf, kind.by, leaves[leaf]) * kind.by
                return Tensor(kind.dtype, (), index=Index(dims.as_int(whole)))
        assert isinstance(kind, IntegerClass | FloatClass)
        self.scalars.append((leaf, kind.dtype))
        made = Tensor(kind.dtype)
        scalar = self.builder.scalar(name, kind.dtype.ir)
        made.made[self.builder.kernel.body] = scalar
        return e.counted(made, scalar)

    def _measure(self, name: str, by: int, value: int, fact: Fact) -> DimExpr:
        self.sizes.examples[name] = value // by
        self.measures[name] = (fact, by)
        return symbol(name)

    def _array(self, name: str, position: int, kind: ArrayClass, array: Any) -> Pointer:
        element = kind.element.ir
        size = (LARGE_BYTES if kind.large else SMALL_BYTES) // element.bytes
        buffer = self.builder.buffer(name, element, size)
        buffer.open, buffer.align, buffer.alias = True, kind.align, kind.alias
        self.buffers[buffer] = position
        zero = Tensor(int64, (), literal=0, index=Index(0))
        layout = None
        if not self.plain:
            make = self._measure if self.symbolic else None
            layout = Layout(name, position, array, self.facts, make)
        return Pointer(buffer, kind.element, zero, kind.const, layout)
