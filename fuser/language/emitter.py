"""The one place where language values become ops of the Tile IR.

It holds the builder of the kernel, and the node of the user's source that is being compiled, which
becomes the origin of every op.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from fuser.dtypes import DType, bool_, i32, i64
from fuser.graph.sizes import certain, is_symbolic
from fuser.language.formats import code_of
from fuser.language.outside import Outside
from fuser.language.sites import Reports
from fuser.language.source import Source
from fuser.language.tensors import Bound, Pointer, Tensor
from fuser.language.types import ElementType, PointerType, int1, int32, int64
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import Atom, Axis, Index, Lookup, index, lookup, scalar
from fuser.tilegen.ir import Block, Buffer
from fuser.tilegen.value import INDEX, UNBOUNDED, TileType, Value

INT32 = (1 << 31) - 1


class Emitter:
    """Makes ops of language values, at the current place of the program."""

    def __init__(self, builder: Builder, grid: Sequence[int] = (1,)) -> None:
        """grid: programs along the language's axes 0, 1, 2."""
        self.builder = builder
        self.grid = tuple(grid)
        self.call: Callable[..., Any] = self._no_calls
        self.blocks: list[Block] = [builder.block]
        self.frames: list[tuple[Source, ast.AST]] = []
        self.trials = 0
        """How many loops are being compiled on trial: what they emit is thrown away."""
        self.flagged: dict[str, Any] = {}
        """What the flags of loops (exits.py) were set to last."""
        self.notes: list[str] = []
        self.calls: list[Any] = []
        self.siblings: dict[tuple[Buffer, str], Buffer] = {}
        self.owners: dict[Buffer, Buffer] = {}
        """Buffers that are another buffer's memory, read as another type."""
        self.options: dict[str, object] = {}
        self.outside = Outside()
        self.reports: Reports | None = None
        """What the kernel reports to the host, if it does."""
        self.own_buffers: dict[int, Buffer] = {}
        self.all_memory: dict[str, Buffer] = {}
        """What addresses point into, by dtype (addresses.py)."""
        """Buffers of the kernel that are no arguments, by the number of their leaf."""
        self.warps, self.asked_warps = 0, False
        """Warps that the launch asked for, and whether the kernel reads that."""
        self.told = False
        """Whether compiling printed anything."""
        self.pointwise = False
        """Whether an `if` may be decided by a tile: see pointwise.py."""

    def _no_calls(self, function: object, *_: object) -> Any:
        self.fail(f"{function} cannot be called here")

    def combiner(self, function: Any, parts: int) -> Callable[..., tuple[Tensor, ...]]:
        """A user's function of two elements, or of two tuples of so many parts, on tensors."""

        def combine(*args: Tensor) -> tuple[Tensor, ...]:
            found = self.call(function, *args)
            found = found if isinstance(found, tuple) else (found,)
            if len(found) != parts:
                self.fail(f"the function to combine with gives {len(found)} values, not {parts}")
            return found

        return combine

    # programs -----------------------------------------------------------------------------------

    def program(self, axis: int) -> Index:
        """The number of the program along an axis; axis 0 is the one that varies fastest."""
        rank = len(self.grid)
        if axis >= rank:
            return Index(0)
        return index(self.builder.program_id(rank - 1 - axis, self.grid[axis]))

    def extent(self, axis: int) -> Index:
        """How many programs there are along an axis."""
        return Index(self.grid[axis] if axis < len(self.grid) else 1)

    # pointers -----------------------------------------------------------------------------------

    def cast_pointer(self, value: Any, dtype: Any, bits: bool) -> Any:
        """A pointer to the same place, read as another type."""
        if not isinstance(value, Pointer) or not isinstance(dtype, PointerType):
            self.fail(
                f"a cast of {getattr(value, 'type', value)} to {dtype}",
                "addresses stay pointers; cast to a pointer type to read them as another type",
            )
        old, new = value.element, dtype.element_ty
        if old == new:
            return value
        buffer = self.sibling(value.buffer, new)
        offset = value.offset
        size, wanted = max(1, old.bits // 8), max(1, new.bits // 8)
        if size != wanted:
            at = self.index_of(offset) * size
            offset = Tensor(offset.dtype, offset.shape, index=at // wanted if wanted > 1 else at)
        return Pointer(buffer, new, offset, value.const)

    def sibling(self, buffer: Buffer, element: ElementType) -> Buffer:
        """The memory of a buffer as one of another type."""
        if buffer.dtype is element.ir:
            return buffer
        key = (self.owners.get(buffer, buffer), element.ir.name)
        if key not in self.siblings:
            owner = key[0]
            if not owner.alias:
                owner.alias = 1 + max((b.alias for b in self.builder.kernel.buffers), default=0)
            made = self.builder.buffer(f"{owner.name}.{element.ir}", element.ir, owner.size)
            made.open, made.align, made.alias = True, owner.align, owner.alias
            self.siblings[key], self.owners[made] = made, owner
        return self.siblings[key]

    # places of the source -----------------------------------------------------------------------

    @contextmanager
    def at(self, source: Source, node: ast.AST) -> Iterator[None]:
        """Compile for a node: where errors point, and where ops come from."""
        self.frames.append((source, node))
        before = self.builder.origin
        self.builder.origin = (source.place(node),)
        yield
        self.builder.origin = before
        self.frames.pop()

    def fail(self, what: str, hint: str = "") -> NoReturn:
        """Raise a LanguageError at the node being compiled."""
        source, node = self.frames[-1]
        raise source.error(what, node, hint)

    @contextmanager
    def inside(self, block: Block) -> Iterator[None]:
        """Append to a nested block meanwhile."""
        self.blocks.append(block)
        with self.builder.inside(block):
            yield
        self.blocks.pop()

    # values -------------------------------------------------------------------------------------

    def tensor(
        self, value: Value, dtype: ElementType, shape: tuple[int, ...] | None = None
    ) -> Tensor:
        """A tensor that the current block computes."""
        made = Tensor(dtype, value.shape if shape is None else shape)
        made.made[self.builder.block] = value
        return self.counted(made, value)

    def counted(self, tensor: Tensor, value: Value) -> Tensor:
        """A tensor that a value computes; a signed integer scalar may be part of addresses."""
        if not tensor.shape and tensor.dtype in (int32, int64):
            tensor.index = scalar(value)
        return tensor

    def held(self, tensor: Tensor) -> Value | None:
        """The value of a tensor, if it was computed where it can be seen from here."""
        for block, value in tensor.made.items():
            if block in self.blocks:
                return value
        return None

    def value_of(self, tensor: Tensor) -> Value:
        """The Tile IR value of a tensor, computed here if it was not before."""
        found = self.held(tensor)
        if found is not None:
            return found
        found = self._make(tensor)
        tensor.made[self.builder.block] = found
        return found

    def _make(self, tensor: Tensor) -> Value:
        b, dtype = self.builder, tensor.dtype.ir
        if tensor.index is not None:
            if tensor.index.is_constant and not is_symbolic(tensor.index.constant):
                return b.full(wrap(tensor.index.constant, dtype), tensor.shape, dtype)
            if dtype in (i32, i64):
                return b.index(tensor.index, tensor.shape, dtype)
            return b.cast(b.index(tensor.index, tensor.shape, i64), dtype)
        if tensor.literal is not None:
            literal = tensor.literal
            if tensor.dtype.is_fp8():
                literal = code_of(float(literal), tensor.dtype)
            return b.full(literal, tensor.shape, dtype)
        assert tensor.bounds is not None, "a tensor without any form"
        total = None if tensor.rest is None else self.value_of(tensor.rest)
        for bound in tensor.bounds:
            part = self._holds(bound, tensor.shape)
            total = part if total is None else b.map("logical_and", total, part)
        return b.full(True, tensor.shape, bool_) if total is None else total

    def _holds(self, bound: Bound, shape: tuple[int, ...]) -> Value:
        kind = i64 if self.is_long(bound.below) or self.is_long(bound.limit) else i32
        sides = (self.builder.index(side, shape, kind) for side in (bound.below, bound.limit))
        return self.builder.map("lt", *sides)

    def is_long(self, expression: Index) -> bool:
        """Whether 32 bits are known to be too few for it."""
        # an end near UNBOUNDED is a distance from one that is not known
        return any(
            not is_symbolic(end) and INT32 < abs(end) < UNBOUNDED // 2 for end in expression.range
        )

    def index_of(self, tensor: Tensor) -> Index:
        """An integer tensor as an index expression over its axes."""
        if tensor.index is not None:
            return tensor.index
        if tensor.literal is not None:
            return Index(int(tensor.literal))
        value = self.value_of(tensor)
        if not tensor.shape:
            return scalar(value)
        axes = [axis for axis, dim in enumerate(tensor.shape) if dim > 1]
        if len(axes) < len(tensor.shape):  # an axis of 1 may be repeated: it is not looked up
            value = self.builder.reshape(value, tuple(tensor.shape[axis] for axis in axes))
        return lookup(value, axes) if axes else scalar(value)

    def fresh_scalar(self, name: str = "d") -> Value:
        """An index scalar of which nothing is known."""
        return Value(TileType(INDEX), name)

    # constants ----------------------------------------------------------------------------------

    def constant(
        self, number: float | int | bool, dtype: ElementType, shape: tuple[int, ...] = ()
    ) -> Tensor:
        """A number that is known, as a tensor."""
        if dtype.is_floating():
            return Tensor(dtype, shape, literal=float(number))
        if dtype is int1:
            return Tensor(int1, shape, literal=bool(number))
        whole = wrap(int(number), dtype.ir)
        return Tensor(dtype, shape, literal=whole, index=Index(whole))

    def whole(self, expression: Index | int, dtype: ElementType, shape: tuple[int, ...]) -> Tensor:
        """An integer tensor that is an index expression."""
        made = index(expression)
        fixed = made.is_constant and not is_symbolic(made.constant)
        return Tensor(dtype, shape, literal=made.constant if fixed else None, index=made)


def wrap(number: int, dtype: DType) -> int:
    """An integer as the dtype holds it."""
    if dtype.kind == "bool":
        return int(bool(number))
    low, count = int(dtype.lowest), 1 << dtype.bits
    return (number - low) % count + low


def moved(expression: Index, axes: dict[int, int]) -> Index:
    """The expression with tile axis a renamed axes[a]."""

    def leaf(atom: Atom) -> Index | None:
        if isinstance(atom, Axis):
            return Index(0, ((Axis(axes[atom.axis], atom.extent), 1),))
        if isinstance(atom, Lookup):
            return lookup(atom.value, (axes[a] for a in atom.axes))
        return None

    return expression.replace(leaf)


def is_nonnegative(expression: Index) -> bool:
    """Whether it is known never to be below 0."""
    return certain(expression.range[0])
