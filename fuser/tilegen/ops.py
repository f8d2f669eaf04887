"""The ops of the Tile IR, one record each. The meaning of each is in docs/tile-ir.md and, as
running code, in interpret.py. Result types are inferred by builder.py and checked by verify.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fuser.dtypes import DType
from fuser.tilegen.index import Index
from fuser.tilegen.ir import Block, Op, View
from fuser.tilegen.value import Value

ReduceFn = Literal[
    "sum", "max", "min", "prod", "fmax", "fmin", "bitwise_and", "bitwise_or", "bitwise_xor"
]
AtomicFn = Literal[
    "add", "max", "min", "and", "or", "xor", "exchange", "compare_exchange", "load", "store"
]


@dataclass(eq=False, kw_only=True)
class ProgramId(Op):
    """The program's coordinate on a grid axis: an index in [0, grid[axis])."""

    opcode: ClassVar[str] = "program_id"
    axis: int


@dataclass(eq=False, kw_only=True)
class IndexTile(Op):
    """The values of an index expression over the tile's own coordinates, i32 or index.

    With shape () it is an index scalar. iota, causal masks and the like are made of it.
    """

    opcode: ClassVar[str] = "index"
    expression: Index
    shape: tuple[int, ...]
    dtype: DType


@dataclass(eq=False, kw_only=True)
class Full(Op):
    """Every element is `value`."""

    opcode: ClassVar[str] = "full"
    value: float | int | bool
    shape: tuple[int, ...]
    dtype: DType


@dataclass(eq=False, kw_only=True)
class Load(Op):
    """Element at tile coordinates c is view[indices(c)], or `pad` where any index is out of bounds
    or the mask, a bool of the result's shape, is false.

    pad None states that no index is ever out of bounds (checked by the interpreter).
    Rank of `indices` is the rank of the view; axes not mentioned by any index are broadcast.
    """

    opcode: ClassVar[str] = "load"
    access: ClassVar[str] = "r"
    view: View
    indices: tuple[Index, ...]
    shape: tuple[int, ...]
    pad: float | int | None = 0
    mask: Value | None = None


@dataclass(eq=False, kw_only=True)
class Store(Op):
    """view[indices(c)] = value[c]; elements out of bounds, or where the mask is false, are dropped.

    Two elements of the grid never store to one place (the interpreter checks it).
    """

    opcode: ClassVar[str] = "store"
    access: ClassVar[str] = "w"
    view: View
    indices: tuple[Index, ...]
    value: Value
    mask: Value | None = None

    @property
    def has_effect(self) -> bool:
        return True


@dataclass(eq=False, kw_only=True)
class AtomicAdd(Op):
    """view[indices(c)] += value[c], in any order; out of bounds elements are dropped."""

    opcode: ClassVar[str] = "atomic_add"
    access: ClassVar[str] = "u"
    view: View
    indices: tuple[Index, ...]
    value: Value

    @property
    def has_effect(self) -> bool:
        return True


@dataclass(eq=False, kw_only=True)
class Atomic(Op):
    """view[indices(c)] = fn(view[indices(c)], value[c]), as one step that all programs see whole;
    its result is what was there before, 0 where out of bounds or masked. It acquires and releases:
    what a program wrote before is seen by one that finds its result.

    fn exchange takes value[c]; compare_exchange takes it where `compare[c]` was there, bit by bit.
    load leaves memory as it is and acquires only; store takes value[c], which is its result, and
    releases only. system: seen whole by the host and other devices, too.
    """

    opcode: ClassVar[str] = "atomic"
    access: ClassVar[str] = "u"
    fn: AtomicFn
    view: View
    indices: tuple[Index, ...]
    value: Value
    compare: Value | None = None
    mask: Value | None = None
    system: bool = False

    @property
    def has_effect(self) -> bool:
        return True


@dataclass(eq=False, kw_only=True)
class Map(Op):
    """An elementwise primitive of the graph (add, exp, select, lt, ...), on tiles of one shape.

    `fn` is the primitive's name; it means what graph/README.md says. Comparisons give bool.
    """

    opcode: ClassVar[str] = "map"
    fn: str
    args: tuple[Value, ...]


@dataclass(eq=False, kw_only=True)
class Assembly(Map):
    """Instructions of a GPU on each element, written by the user, without effects beside their
    results: text and constraints as LLVM has them, of `pack` elements at a time, which share 32-bit
    registers where they are shorter.

    kinds: dtypes of all results, of which this is the one with the number `which`.
    """

    opcode: ClassVar[str] = "assembly"
    fn: str = "assembly"
    text: str
    constraints: str
    pack: int
    kinds: tuple[str, ...]
    which: int


@dataclass(eq=False, kw_only=True)
class Cast(Op):
    """Convert each element, as the graph's cast. flush: results below the normal range may be 0."""

    opcode: ClassVar[str] = "cast"
    x: Value
    dtype: DType
    flush: bool = False


@dataclass(eq=False, kw_only=True)
class Bitcast(Op):
    """The same bits as another dtype of as many bits."""

    opcode: ClassVar[str] = "bitcast"
    x: Value
    dtype: DType


@dataclass(eq=False, kw_only=True)
class Broadcast(Op):
    """Axis i of x becomes axis axes[i] of the result; other axes repeat it, and so do dims of 1."""

    opcode: ClassVar[str] = "broadcast"
    x: Value
    shape: tuple[int, ...]
    axes: tuple[int, ...]


@dataclass(eq=False, kw_only=True)
class Reshape(Op):
    """The same elements in row-major order under another shape."""

    opcode: ClassVar[str] = "reshape"
    x: Value
    shape: tuple[int, ...]


@dataclass(eq=False, kw_only=True)
class Permute(Op):
    """Result axis i is axis axes[i] of x."""

    opcode: ClassVar[str] = "permute"
    x: Value
    axes: tuple[int, ...]


@dataclass(eq=False, kw_only=True)
class Gather(Op):
    """Element c is x at c with coordinate `axis` replaced by at[c]: integers within x's axis. `at`
    has the shape of x but for that axis."""

    opcode: ClassVar[str] = "gather"
    x: Value
    at: Value
    axis: int


@dataclass(eq=False, kw_only=True)
class Reduce(Op):
    """Fold one axis away. The order is the target's choice, but fixed."""

    opcode: ClassVar[str] = "reduce"
    fn: ReduceFn
    x: Value
    axis: int


@dataclass(eq=False, kw_only=True)
class Scan(Op):
    """Running fold along an axis (inclusive)."""

    opcode: ClassVar[str] = "scan"
    fn: ReduceFn
    x: Value
    axis: int
    reverse: bool = False


CODES = ("f8e4m3fn", "f8e5m2")
"""Dtypes of 8-bit floats whose codes a dot may multiply."""


@dataclass(eq=False, kw_only=True)
class Dot(Op):
    """acc + a @ b. a: tile<MxKxT>, b: tile<KxNxT>, acc and result: tile<MxNxA>, A = accumulate(T).

    precision "exact" keeps the accuracy of T; "tf32" lets float32 operands be rounded to tf32.
    codes: where u8 operands are codes of 8-bit floats, the dtype of these by name; A is f32 then,
    and sums within the dot may keep 14 bits.
    """

    opcode: ClassVar[str] = "dot"
    a: Value
    b: Value
    acc: Value
    precision: str = "exact"
    codes: str = ""


@dataclass(eq=False, kw_only=True)
class For(Op):
    """for i in range(start, stop, step) with carried tiles: body params are (i, *carried), it ends
    in Yield, and the results are the carried values after the last iteration."""

    opcode: ClassVar[str] = "for"
    start: Index
    stop: Index
    step: int
    inits: tuple[Value, ...]
    body: Block


@dataclass(eq=False, kw_only=True)
class While(Op):
    """While the bool that `condition` yields holds, `body` yields the next carried values. Both
    take the carried values as params."""

    opcode: ClassVar[str] = "while"
    inits: tuple[Value, ...]
    condition: Block
    body: Block


@dataclass(eq=False, kw_only=True)
class If(Op):
    """Run `then` where the scalar condition holds, else `other`; both yield the results."""

    opcode: ClassVar[str] = "if"
    condition: Value
    then: Block
    other: Block


@dataclass(eq=False, kw_only=True)
class Yield(Op):
    """The end of a loop body or branch."""

    opcode: ClassVar[str] = "yield"
    args: tuple[Value, ...]

    @property
    def has_effect(self) -> bool:
        return True


WRITES = Store | AtomicAdd | Atomic
"""The ops that change memory."""

OPS: dict[str, type[Op]] = {
    op.opcode: op
    for op in (
        ProgramId, IndexTile, Full, Load, Store, AtomicAdd, Atomic, Map, Assembly, Cast, Bitcast,
        Broadcast, Reshape, Permute, Gather, Reduce, Scan, Dot, For, While, If, Yield,
    )
}  # fmt: skip
