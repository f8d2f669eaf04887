"""Build tile programs: each method appends one op to the current block and infers its result type.

    b = Builder("scale")
    x = b.buffer("x", f32, 1000); y = b.buffer("y", f32, 1000, role="output")
    i = b.program_id(0, 8)
    at = index(i) * 128 + axis(0, 128)
    tile = b.load(b.view(x, (1000,)), (at,), (128,))
    b.store(b.view(y, (1000,)), (at,), b.map("mul", tile, b.full(2.0, (128,), f32)))
    kernel = b.build()

What is known of integer values (facts.py) is inferred along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from fuser.base.limits import check_time
from fuser.dtypes import DType, bool_, f32, f64, i32, i64
from fuser.errors import VerifyError
from fuser.graph.sizes import same_shape
from fuser.tilegen import ops
from fuser.tilegen.facts import infer, infer_variable, set_fact
from fuser.tilegen.index import Index, index
from fuser.tilegen.ir import Block, Buffer, Kernel, Op, Role, View
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.value import INDEX, TileType, Value

COMPARISONS = frozenset(
    ("eq", "ne", "lt", "le", "gt", "ge", "is_nan", "is_inf", "logical_not", "logical_and",
     "logical_or", "logical_xor")
)  # fmt: skip


BITS = {"float_bits": {f32: i32, f64: i64}, "bits_float": {i32: f32, i64: f64}}
"""The result dtypes of the maps that read the same bits in another way."""


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of a contiguous array."""
    strides, step = [], 1
    for dim in reversed(shape):
        strides.append(step)
        step *= dim
    return tuple(reversed(strides))


class Builder:
    """Appends ops to a kernel. Raises VerifyError where operand types do not fit."""

    def __init__(self, name: str, schedule: Schedule | None = None) -> None:
        self.kernel = Kernel(name, [], [], (), Block(), schedule or Schedule())
        self.block = self.kernel.body
        self.origin: tuple[str, ...] = ()
        self._count = 0
        self._grid: dict[int, int] = {}
        self._program_ids: dict[int, Value] = {}
        self._views: dict[tuple[object, ...], View] = {}

    # parameters ---------------------------------------------------------------------------------

    def scalar(self, name: str, dtype: DType) -> Value:
        """A number that a launch gives."""
        value = Value(TileType(dtype), name)
        self.kernel.scalars.append(value)
        return value

    def buffer(self, name: str, dtype: DType, size: int, role: Role = "input") -> Buffer:
        buffer = Buffer(name, dtype, size, role)
        self.kernel.buffers.append(buffer)
        return buffer

    def view(
        self,
        buffer: Buffer,
        shape: Sequence[int],
        strides: Sequence[int] | None = None,
        offset: int = 0,
        settled: tuple[int, int] | None = None,
    ) -> View:
        """A view of the buffer, row-major unless strides (in elements) are given; shared."""
        steps = tuple(strides) if strides is not None else row_major(shape)
        key = (buffer, tuple(shape), steps, offset, settled)
        if key not in self._views:
            name = f"{buffer.name}{len(self._views)}"
            view = View(name, buffer, tuple(shape), steps, offset, settled)
            self._views[key] = view
            self.kernel.views.append(view)
        return self._views[key]

    def forget_views(self, count: int) -> None:
        """Drop the views but for the first so many: nothing uses the others."""
        del self.kernel.views[count:]
        kept = set(map(id, self.kernel.views))
        self._views = {key: view for key, view in self._views.items() if id(view) in kept}

    # ops ----------------------------------------------------------------------------------------

    def append(self, op: Op, *types: TileType) -> tuple[Value, ...]:
        """Append an op that was made elsewhere; its results."""
        self._append(op, *types)
        return op.results

    def value(self, type: TileType, hint: str = "v") -> Value:
        """A new value, for the parameter of a block."""
        return self._value(type, hint)

    def _value(self, type: TileType, hint: str = "v") -> Value:
        self._count += 1
        return Value(type, f"{hint}{self._count}")

    def _append(self, op: Op, *types: TileType, hint: str = "v") -> Value:
        check_time()
        op.results = tuple(self._value(type, hint) for type in types)
        op.origin = (self.origin,) if self.origin else ()
        for value in op.results:
            set_fact(value, infer(op))
        self.block.ops.append(op)
        return op.results[0] if types else Value(TileType(bool_), "none")

    def program_id(self, axis: int, extent: int) -> Value:
        """The program's coordinate on `axis` of the grid, which has `extent` programs there."""
        if axis in self._program_ids:
            return self._program_ids[axis]
        op = ops.ProgramId(axis=axis)
        value = self._value(TileType(INDEX), "pid")
        value.low, value.high = 0, extent - 1
        op.results = (value,)
        self.kernel.body.ops.insert(len(self._program_ids), op)
        self._grid[axis] = extent
        self._program_ids[axis] = value
        return value

    def index(
        self, expression: Index, shape: Sequence[int] = (), dtype: DType | None = None
    ) -> Value:
        """The values of an index expression: an index scalar, or an i32 tile."""
        kind = dtype or (i32 if shape else INDEX)
        op = ops.IndexTile(expression=expression, shape=tuple(shape), dtype=kind)
        return self._append(op, TileType(kind, tuple(shape)), hint="i")

    def full(self, value: float | int | bool, shape: Sequence[int], dtype: DType) -> Value:
        """A tile of one value; shape () gives a scalar."""
        kind = float if dtype.is_float else bool if dtype.kind == "bool" else int
        op = ops.Full(value=kind(value), shape=tuple(shape), dtype=dtype)
        return self._append(op, TileType(dtype, tuple(shape)), hint="c")

    def load(
        self,
        view: View,
        indices: Sequence[Index | int],
        shape: Sequence[int],
        pad: float | int | None = 0,
        mask: Value | None = None,
    ) -> Value:
        at = _position(view, indices)
        op = ops.Load(view=view, indices=at, shape=tuple(shape), pad=pad, mask=mask)
        return self._append(op, TileType(view.dtype, tuple(shape)), hint="x")

    def store(
        self,
        view: View,
        indices: Sequence[Index | int],
        value: Value,
        mask: Value | None = None,
    ) -> None:
        if value.dtype != view.dtype:
            raise VerifyError(f"store of {value!r} to {view!r}")
        at = _position(view, indices)
        self._append(ops.Store(view=view, indices=at, value=value, mask=mask))

    def atomic(
        self,
        fn: ops.AtomicFn,
        view: View,
        indices: Sequence[Index | int],
        value: Value,
        *,
        compare: Value | None = None,
        mask: Value | None = None,
        system: bool = False,
    ) -> Value:
        """The values that were there before. value: of fn load, anything of the shape of the
        result."""
        if value.dtype != view.dtype:
            raise VerifyError(f"atomic {fn} of {value!r} to {view!r}")
        at = _position(view, indices)
        op = ops.Atomic(
            fn=fn, view=view, indices=at, value=value, compare=compare, mask=mask, system=system
        )
        return self._append(op, value.type)

    def atomic_add(self, view: View, indices: Sequence[Index | int], value: Value) -> None:
        if value.dtype != view.dtype:
            raise VerifyError(f"atomic_add of {value!r} to {view!r}")
        self._append(ops.AtomicAdd(view=view, indices=_position(view, indices), value=value))

    def map(self, fn: str, *args: Value) -> Value:
        """An elementwise primitive; every operand has one shape."""
        shape = args[0].shape
        if any(arg.shape != shape for arg in args):
            raise VerifyError(f"map {fn} on {args}")
        dtype = bool_ if fn in COMPARISONS else args[-1].dtype
        if fn in BITS:
            dtype = BITS[fn][dtype]
        return self._append(ops.Map(fn=fn, args=args), TileType(dtype, shape))

    def assembly(
        self, text: str, constraints: str, args: Sequence[Value], kinds: Sequence[DType], pack: int
    ) -> list[Value]:
        """Instructions of a GPU on each element: one result for each of `kinds`."""
        return [
            self._append(
                ops.Assembly(
                    text=text, constraints=constraints, args=tuple(args), pack=pack,
                    kinds=tuple(item.name for item in kinds), which=which,
                ),
                TileType(kind, args[0].shape),
            )
            for which, kind in enumerate(kinds)
        ]  # fmt: skip

    def cast(self, x: Value, dtype: DType, flush: bool = False) -> Value:
        """Convert; x itself if it has the dtype already."""
        if x.dtype == dtype:
            return x
        return self._append(ops.Cast(x=x, dtype=dtype, flush=flush), TileType(dtype, x.shape))

    def bitcast(self, x: Value, dtype: DType) -> Value:
        """The same bits as another dtype; x itself if it has the dtype already."""
        if x.dtype == dtype:
            return x
        if x.dtype.bits != dtype.bits:
            raise VerifyError(f"bitcast of {x!r} to {dtype}")
        return self._append(ops.Bitcast(x=x, dtype=dtype), TileType(dtype, x.shape))

    def gather(self, x: Value, at: Value, axis: int) -> Value:
        """x at other places along an axis: see ops.Gather."""
        return self._append(ops.Gather(x=x, at=at, axis=axis), TileType(x.dtype, at.shape))

    def broadcast(self, x: Value, shape: Sequence[int], axes: Sequence[int]) -> Value:
        """Axis i of x becomes axes[i] of the result; x itself if nothing changes."""
        if same_shape(x.shape, tuple(shape)):
            return x
        for position, axis in enumerate(axes):
            if x.shape[position] not in (1, shape[axis]):
                raise VerifyError(f"broadcast of {x!r} to {tuple(shape)} by {tuple(axes)}")
        op = ops.Broadcast(x=x, shape=tuple(shape), axes=tuple(axes))
        return self._append(op, TileType(x.dtype, tuple(shape)))

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        if x.shape == tuple(shape):
            return x
        type = TileType(x.dtype, tuple(shape))
        if type.size != x.type.size:
            raise VerifyError(f"reshape of {x!r} to {tuple(shape)}")
        return self._append(ops.Reshape(x=x, shape=tuple(shape)), type)

    def permute(self, x: Value, axes: Sequence[int]) -> Value:
        if tuple(axes) == tuple(range(x.type.rank)):
            return x
        type = TileType(x.dtype, tuple(x.shape[axis] for axis in axes))
        return self._append(ops.Permute(x=x, axes=tuple(axes)), type)

    def reduce(self, fn: ops.ReduceFn, x: Value, axis: int) -> Value:
        type = TileType(x.dtype, x.shape[:axis] + x.shape[axis + 1 :])
        return self._append(ops.Reduce(fn=fn, x=x, axis=axis), type, hint="r")

    def scan(self, fn: ops.ReduceFn, x: Value, axis: int, reverse: bool = False) -> Value:
        return self._append(ops.Scan(fn=fn, x=x, axis=axis, reverse=reverse), x.type)

    def dot(
        self, a: Value, b: Value, acc: Value, precision: str = "exact", codes: str = ""
    ) -> Value:
        """acc + a @ b. codes: see ops.Dot."""
        fits = (
            a.type.rank == b.type.rank == 2
            and a.shape[1] == b.shape[0]
            and acc.shape == (a.shape[0], b.shape[1])
            and a.dtype == b.dtype
        )
        if not fits:
            raise VerifyError(f"dot of {a!r}, {b!r}, {acc!r}")
        made = ops.Dot(a=a, b=b, acc=acc, precision=precision, codes=codes)
        return self._append(made, acc.type, hint="acc")

    def loop(
        self,
        start: Index | int,
        stop: Index | int,
        step: int,
        inits: Sequence[Value],
        body: Callable[..., Sequence[Value]],
    ) -> tuple[Value, ...]:
        """for i in range(start, stop, step): carried = body(i, *carried). The last carried."""
        first, last = index(start), index(stop)
        block = Block()
        variable = self._value(TileType(INDEX), "i")
        set_fact(variable, infer_variable(first, last, step))
        carried = [self._value(init.type, "a") for init in inits]
        block.params = [variable, *carried]
        with self.inside(block):
            yielded = tuple(body(variable, *carried))
            for have, want in zip(yielded, inits, strict=True):
                if have.type != want.type:
                    raise VerifyError(f"the loop carries {want.type} but yields {have!r}")
            self._append(ops.Yield(args=yielded))
        op = ops.For(start=first, stop=last, step=step, inits=tuple(inits), body=block)
        op.results = tuple(self._value(init.type) for init in inits)
        op.origin = (self.origin,) if self.origin else ()
        self.block.ops.append(op)
        return op.results

    def while_loop(
        self,
        inits: Sequence[Value],
        condition: Callable[..., Value],
        body: Callable[..., Sequence[Value]],
    ) -> tuple[Value, ...]:
        """while condition(*carried): carried = body(*carried). The last carried."""
        blocks = []
        for make in (lambda *carried: (condition(*carried),), body):
            block = Block()
            block.params = [self._value(init.type, "a") for init in inits]
            with self.inside(block):
                self._append(ops.Yield(args=tuple(make(*block.params))))
            blocks.append(block)
        op = ops.While(inits=tuple(inits), condition=blocks[0], body=blocks[1])
        op.results = tuple(self._value(init.type) for init in inits)
        op.origin = (self.origin,) if self.origin else ()
        self.block.ops.append(op)
        return op.results

    def branch(
        self,
        condition: Value,
        then: Callable[[], Sequence[Value]],
        other: Callable[[], Sequence[Value]],
    ) -> tuple[Value, ...]:
        """The values of `then()` where the scalar bool holds, else those of `other()`."""
        blocks, yielded = [], []
        for branch in (then, other):
            block = Block()
            with self.inside(block):
                values = tuple(branch())
                self._append(ops.Yield(args=values))
            blocks.append(block)
            yielded.append(values)
        types = [tuple(value.type for value in values) for values in yielded]
        if types[0] != types[1]:
            raise VerifyError(f"the branches yield {types[0]} and {types[1]}")
        op = ops.If(condition=condition, then=blocks[0], other=blocks[1])
        op.results = tuple(self._value(type) for type in types[0])
        op.origin = (self.origin,) if self.origin else ()
        self.block.ops.append(op)
        return op.results

    @contextmanager
    def inside(self, block: Block) -> Iterator[None]:
        """Append to another block meanwhile."""
        outer, self.block = self.block, block
        try:
            yield
        finally:
            self.block = outer

    def build(self) -> Kernel:
        """The finished kernel; grid axes that no program_id used have one program."""
        rank = max(self._grid, default=0) + 1
        self.kernel.grid = tuple(self._grid.get(axis, 1) for axis in range(rank))
        return self.kernel


def _position(view: View, indices: Sequence[Index | int]) -> tuple[Index, ...]:
    if len(indices) != len(view.shape):
        raise VerifyError(f"{len(indices)} indices for {view!r}")
    return tuple(index(item) for item in indices)
