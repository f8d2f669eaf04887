"""Tile IR: target-free, block-level, pure SSA. docs/tile-ir.md is the reference.

A `Kernel` runs one copy of its body per point of its grid. Values are index scalars or tiles with
static shapes; memory is reached only through `View`s of the kernel's buffers. No layouts, threads,
barriers or shared memory appear: back ends decide those. An op is a record; operands, nested
blocks, cloning and printing are derived from its fields (see `Op`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from fuser.dtypes import DType
from fuser.tilegen.core.records import BlockBase, OpBase
from fuser.tilegen.index import Atom, Index, Lookup, Scalar, lookup, scalar
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.value import Value

Role = Literal["input", "output", "constant", "workspace"]


@dataclass(eq=False)
class Buffer:
    """A kernel parameter: `size` elements in memory, 64-byte aligned (256 on a GPU); on a CPU,
    inputs and constants start at any element.

    open: a pointer of a caller, to memory that starts `align` bytes aligned; `size` is only an
    upper bound of its elements, and views of it promise nothing. alias: buffers with the same
    number, if it is not 0, may overlap.
    """

    name: str
    dtype: DType
    size: int
    role: Role = "input"
    open: bool = False
    align: int = 0
    alias: int = 0


@dataclass(eq=False)
class View:
    """A strided window on a buffer: element i lives at offset + sum(i[d] * strides[d]) elements.

    Index expressions outside `shape` are out of bounds: a load gives its pad, a store is dropped.
    A dim of UNBOUNDED elements has no bounds.

    settled: (dim, count), where elements below `count` along a dim were there before the first
    kernel of the run, and none of its kernels writes them.
    """

    name: str
    buffer: Buffer
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    settled: tuple[int, int] | None = None

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype

    def __repr__(self) -> str:
        text = f"&{self.name}: {self.dtype}{list(self.shape)} strides {list(self.strides)}"
        return text + (f" offset {self.offset}" if self.offset else "")


class Block(BlockBase[Value, "Op"]):
    """Ops in order. `params` are the induction variable and carried values of a loop body."""


_KINDS = {
    "Value": "value",
    "Value | None": "optional",
    "tuple[Value, ...]": "values",
    "Index": "index",
    "tuple[Index, ...]": "indices",
    "View": "view",
}


@dataclass(eq=False, kw_only=True)
class Op(OpBase[Block]):
    """Base of all ops. A field annotated Value, Index, Block or a tuple of them is what it says;
    any other field is an attribute. `results` and `origin` belong to every op: for each node of the
    graph that it was written for, the names of the model's nodes which that comes from."""

    access: ClassVar[str] = ""
    """What it does to the buffer of its `view`: r, it reads; w, it writes; u, both."""
    results: tuple[Value, ...] = ()
    origin: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def kind_of(cls, name: str, annotation: str, default: Any) -> str:
        return "fn" if name == "fn" else _KINDS.get(annotation, "attribute")

    @property
    def result(self) -> Value:
        return self.results[0]

    @property
    def source(self) -> str:
        """The first name that it comes from; empty if there is none."""
        return self.origin[0][0] if self.origin else ""

    def operands(self) -> tuple[Value, ...]:
        """Every value it reads, those inside index expressions included, without repetition."""
        found: dict[Value, None] = {}
        for item in self.contents():
            if isinstance(item, Value):
                found[item] = None
            elif isinstance(item, Index):
                found.update(dict.fromkeys(item.values()))
        return tuple(found)

    def replace_indices(self, leaf: Callable[[Atom], Index | None]) -> None:
        """Rebuild its index expressions in place, with what `leaf` gives for their atoms."""
        for name, content in self.fields():
            if isinstance(content, Index):
                setattr(self, name, content.replace(leaf))
            elif isinstance(content, tuple) and content and isinstance(content[0], Index):
                setattr(self, name, tuple([item.replace(leaf) for item in content]))

    def replace_operands(self, table: dict[Value, Value]) -> None:
        """Replace operands in place (not inside nested blocks)."""

        def leaf(atom: Atom) -> Index | None:
            if isinstance(atom, Scalar) and atom.value in table:
                return scalar(table[atom.value])
            if isinstance(atom, Lookup) and atom.value in table:
                return lookup(table[atom.value], atom.axes)
            return None

        self.replace_indices(leaf)
        for name, content in self.fields():
            if isinstance(content, Value):
                setattr(self, name, table.get(content, content))
            elif isinstance(content, tuple) and content and isinstance(content[0], Value):
                setattr(self, name, tuple([table.get(item, item) for item in content]))

    @property
    def has_effect(self) -> bool:
        """Whether it must stay although nothing uses its results."""
        return any(op.has_effect for block in self.blocks() for op in block.ops)


@dataclass(eq=False)
class Kernel:
    """A tile program. `grid` programs run in any order and never talk to each other.

    scalars: numbers that a launch gives beside the buffers, visible everywhere. sources: other
    origins of ops, where kernels of equal regions share a body. fast: products may be contracted
    with sums, and float32 divisions need not be rounded correctly. row_order: the order in which
    the terms of a row are added must not depend on how many rows a tile has.
    """

    name: str
    buffers: list[Buffer]
    views: list[View]
    grid: tuple[int, ...]
    body: Block
    schedule: Schedule = field(default_factory=Schedule)
    scalars: list[Value] = field(default_factory=list)
    sources: Mapping[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)
    fast: bool = False
    row_order: bool = False

    def origin_of(self, op: Op) -> tuple[str, ...]:
        """The names of the model's nodes that an op comes from."""
        origins = (self.sources.get(names, names) for names in op.origin)
        return tuple(dict.fromkeys(name for names in origins for name in names))

    def walk(self) -> Iterator[Op]:
        yield from self.body.walk()

    def accessed(self) -> dict[Buffer, str]:
        """What the kernel does to each buffer that it meets, in the letters of ops."""
        found: dict[Buffer, str] = {}
        for op in self.walk():
            if op.access:
                buffer: Buffer = getattr(op, "view").buffer  # noqa: B009  of those that have one
                found[buffer] = op.access if found.get(buffer, op.access) == op.access else "u"
        return found

    def rewrite(self, fn: Callable[[Block], None]) -> None:
        """Apply `fn` to every block, inner blocks first."""

        def visit(block: Block) -> None:
            for op in block.ops:
                for inner in op.blocks():
                    visit(inner)
            fn(block)

        visit(self.body)
