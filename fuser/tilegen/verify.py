"""Check a tile program: every promise that later stages rely on and that needs no run.

Values are defined once and before their uses, types and shapes fit, index expressions fit the tile
and the view, views lie within their buffers, loops and branches yield what they give. What depends
on data (bounds, races) is checked by interpret.py.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence

from fuser.dtypes import BY_NAME, DType, bool_, f32
from fuser.errors import ShapeError, VerifyError
from fuser.graph.ir import TensorType
from fuser.graph.ops.registry import PRIMITIVES
from fuser.graph.sizes import is_symbolic
from fuser.tilegen import ops
from fuser.tilegen.core.verify import Check, Definitions, require, walk
from fuser.tilegen.index import Atom, Axis, Extreme, FloorDiv, Index, Lookup, Mod, Scalar
from fuser.tilegen.ir import Block, Kernel, Op, View
from fuser.tilegen.text import print_op
from fuser.tilegen.value import INDEX, UNBOUNDED, TileType, Value

ANY_FLOAT_FNS = frozenset(("select", "add", "sub", "mul"))
"""Maps that 16-bit floats need no widening for: those that only move data, and those that come to
the same whether they are rounded once, or computed in float32 and then rounded."""


def verify(kernel: Kernel) -> None:
    """Raise VerifyError, naming the op as text and its ONNX nodes, for the first broken rule."""
    where = f"kernel {kernel.name}"
    if not kernel.grid or any(extent < 1 for extent in kernel.grid):
        raise VerifyError(f"the grid {kernel.grid} has no programs", where=where)
    names = [buffer.name for buffer in kernel.buffers]
    if len(set(names)) != len(names):
        raise VerifyError(f"two buffers share a name: {', '.join(names)}", where=where)
    for view in kernel.views:
        try:
            _check_view(kernel, view)
        except VerifyError as error:
            raise VerifyError(error.what, where=where) from None
    walk(kernel.body, (_Definitions(kernel), _Types(kernel)), functools.partial(_where, kernel))


def _where(kernel: Kernel, op: Op) -> str:
    text = f"`{print_op(kernel, op)}` of kernel {kernel.name}"
    names = kernel.origin_of(op)
    return text + (f", from {', '.join(names)}" if names else "")


def _check_view(kernel: Kernel, view: View) -> None:
    if view.buffer not in kernel.buffers:
        raise VerifyError(f"{view!r} is of no buffer of the kernel")
    if len(view.shape) != len(view.strides):
        raise VerifyError(f"{view!r} has {len(view.shape)} dims and {len(view.strides)} strides")
    if any(dim < 0 for dim in view.shape):
        raise VerifyError(f"{view!r} has a negative dim")
    if view.buffer.open or 0 in view.shape:
        return
    known = [
        (dim, stride)
        for dim, stride in zip(view.shape, view.strides, strict=True)
        if is_symbolic(dim) or dim < UNBOUNDED
    ]
    spans = [(dim - 1) * stride for dim, stride in known]
    first = view.offset + sum(min(0, span) for span in spans)
    last = view.offset + sum(max(0, span) for span in spans)
    if first < 0 or last >= view.buffer.size:
        raise VerifyError(
            f"{view!r} covers elements {first} to {last} of {view.buffer.name}, "
            f"which has {view.buffer.size}"
        )


class _Definitions(Definitions):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.defined: set[Value] = set()
        for value in kernel.scalars:
            self.define(value)

    def uses(self, op: Op) -> Iterable[Value]:
        return op.operands()

    def define(self, item: Value) -> None:
        require(item not in self.defined, f"{item!r} is defined twice")
        require(all(dim >= 1 for dim in item.shape), f"{item!r} has an empty dim")
        require(item.low <= item.high, f"{item!r} is in [{item.low}, {item.high}]")
        self.defined.add(item)
        super().define(item)


class _Types(Check):
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.views = set(kernel.views)
        self.ends: set[Op] = set()

    def enter(self, op: Op, block: Block) -> None:
        self.ends.add(block.ops[-1])

    def op(self, op: Op) -> None:
        ends = not isinstance(op, ops.Yield) or op in self.ends
        require(ends, "a yield ends a nested block")
        expected = tuple(self.result_types(op))
        found = tuple(value.type for value in op.results)
        if found != expected:
            have, want = (" and ".join(map(str, types)) or "nothing" for types in (found, expected))
            raise VerifyError(f"the result is {have}, and should be {want}")

    def result_types(self, op: Op) -> Iterator[TileType]:
        """Check the operands and attributes; the types that the results must have."""
        match op:
            case ops.ProgramId():
                require(0 <= op.axis < len(self.kernel.grid), f"the grid has no axis {op.axis}")
                yield TileType(INDEX)
            case ops.IndexTile():
                self.index(op.expression, op.shape)
                require(op.dtype.is_integer, f"an index of type {op.dtype}")
                yield TileType(op.dtype, op.shape)
            case ops.Full():
                _check_literal(op.value, op.dtype)
                yield TileType(op.dtype, op.shape)
            case ops.Load():
                self.access(op.view, op.indices, op.shape)
                if op.pad is not None:
                    _check_literal(op.pad, op.view.dtype)
                require(op.mask is None or op.pad is not None, "a masked load needs a pad")
                _check_mask(op.mask, op.shape)
                yield TileType(op.view.dtype, op.shape)
            case ops.Store() | ops.AtomicAdd() | ops.Atomic():
                self.access(op.view, op.indices, op.value.shape)
                if not isinstance(op, ops.AtomicAdd):
                    _check_mask(op.mask, op.value.shape)
                if isinstance(op, ops.Atomic):
                    swaps = op.fn == "compare_exchange"
                    require(swaps == (op.compare is not None), f"compare and atomic {op.fn}")
                    same = op.compare is None or op.compare.type == op.value.type
                    require(same, f"{op.compare!r} is not of the type of {op.value!r}")
                    yield op.value.type
                require(op.value.dtype is op.view.dtype, f"{op.value!r} goes to {op.view!r}")
                role = op.view.buffer.role
                reads = isinstance(op, ops.Atomic) and op.fn == "load"
                stored = reads or role in ("output", "workspace")
                require(stored, f"a store to the {role} {op.view!r}")
            case ops.Assembly():
                require(len({arg.shape for arg in op.args}) == 1, f"assembly of {op.args}")
                require(op.pack > 0, f"packs of {op.pack}")
                yield TileType(BY_NAME[op.kinds[op.which]], op.args[0].shape)
            case ops.Map():
                yield self.map(op)
            case ops.Cast():
                yield TileType(op.dtype, op.x.shape)
            case ops.Bitcast():
                require(op.x.dtype.bits == op.dtype.bits, f"the bits of {op.x!r} as {op.dtype}")
                yield TileType(op.dtype, op.x.shape)
            case ops.Gather():
                require(op.at.dtype.is_integer, f"{op.at!r} holds no integers")
                require(0 <= op.axis < op.x.type.rank, f"{op.x!r} has no axis {op.axis}")
                fits = op.at.type.rank == op.x.type.rank and all(
                    axis == op.axis or dim == op.x.shape[axis]
                    for axis, dim in enumerate(op.at.shape)
                )
                require(fits, f"{op.at!r} does not fit {op.x!r}")
                yield TileType(op.x.dtype, op.at.shape)
            case ops.Broadcast():
                yield self.broadcast(op)
            case ops.Reshape():
                type = TileType(op.x.dtype, op.shape)
                require(type.size == op.x.type.size, f"{op.x!r} cannot have shape {op.shape}")
                yield type
            case ops.Permute():
                whole = sorted(op.axes) == list(range(op.x.type.rank))
                require(whole, f"{op.axes} is not an order of the axes of {op.x!r}")
                yield TileType(op.x.dtype, tuple(op.x.shape[axis] for axis in op.axes))
            case ops.Reduce():
                self.fold(op.fn, op.x, op.axis)
                yield TileType(op.x.dtype, op.x.shape[: op.axis] + op.x.shape[op.axis + 1 :])
            case ops.Scan():
                self.fold(op.fn, op.x, op.axis)
                yield op.x.type
            case ops.Dot():
                yield self.dot(op)
            case ops.For():
                yield from self.loop(op)
            case ops.While():
                carried = tuple(init.type for init in op.inits)
                for block, gives in ((op.condition, (TileType(bool_),)), (op.body, carried)):
                    params = tuple(param.type for param in block.params)
                    require(params == carried, f"it takes {_types(params)}, not {_types(carried)}")
                    self.yields(block, gives)
                yield from carried
            case ops.If():
                yield from self.branch(op)
            case ops.Yield():
                return
            case _:
                raise VerifyError(f"there is no op {op.opcode!r}")

    # index expressions --------------------------------------------------------------------------

    def access(self, view: View, indices: Sequence[Index], shape: tuple[int, ...]) -> None:
        require(view in self.views, f"{view!r} is not declared by the kernel")
        rank = len(view.shape)
        require(len(indices) == rank, f"{len(indices)} indices for {view!r} of rank {rank}")
        for expression in indices:
            self.index(expression, shape)

    def index(self, expression: Index, shape: tuple[int, ...]) -> None:
        for atom, _ in expression.terms:
            self.atom(atom, shape)

    def atom(self, atom: Atom, shape: tuple[int, ...]) -> None:
        match atom:
            case Axis():
                fits = atom.axis < len(shape) and shape[atom.axis] == atom.extent
                require(fits, f"axis #{atom.axis} of {atom.extent} in a tile of shape {shape}")
            case Scalar():
                fits = atom.value.dtype.is_integer and not atom.value.shape
                require(fits, f"{atom.value!r} is not an index scalar")
            case Lookup():
                require(atom.value.dtype.is_integer, f"{atom.value!r} holds no integers")
                fits = all(axis < len(shape) for axis in atom.axes)
                dims = tuple(shape[axis] for axis in atom.axes) if fits else ()
                fits = fits and dims == atom.value.shape
                require(fits, f"lookup of {atom.value!r} at {atom.axes} in a tile of {shape}")
            case FloorDiv() | Mod():
                require(atom.divisor > 0, f"division by {atom.divisor}")
                self.index(atom.base, shape)
            case Extreme():
                for item in atom.items:
                    self.index(item, shape)

    # rules of single ops ------------------------------------------------------------------------

    def map(self, op: ops.Map) -> TileType:
        primitive = PRIMITIVES.get(op.fn)
        if primitive is None or primitive.kind != "map" or op.fn == "cast":
            raise VerifyError(f"there is no map {op.fn!r}")
        if primitive.arity is not None and len(op.args) != primitive.arity:
            raise VerifyError(f"{op.fn} takes {primitive.arity} operands, not {len(op.args)}")
        types = [TensorType(arg.dtype, arg.shape) for arg in op.args]
        try:
            (result,) = primitive.infer(types, {})
        except ShapeError as error:
            raise VerifyError(error.what) from None
        if op.fn not in ANY_FLOAT_FNS:
            for arg in op.args:
                _check_wide(arg, op.fn)
        return TileType(result.dtype, op.args[0].shape)

    def broadcast(self, op: ops.Broadcast) -> TileType:
        fits = len(op.axes) == op.x.type.rank and len(set(op.axes)) == len(op.axes)
        fits = fits and all(0 <= axis < len(op.shape) for axis in op.axes)
        fits = fits and all(
            dim in (1, op.shape[axis]) for dim, axis in zip(op.x.shape, op.axes, strict=True)
        )
        require(fits, f"{op.x!r} cannot be broadcast to {op.shape} by axes {op.axes}")
        return TileType(op.x.dtype, op.shape)

    def fold(self, fn: str, x: Value, axis: int) -> None:
        bits = fn.startswith("bitwise")
        require(not bits or not x.dtype.is_float, f"the {fn} of {x!r}")
        require(0 <= axis < x.type.rank, f"{x!r} has no axis {axis}")
        require(fn not in ("sum", "prod") or x.dtype.kind != "bool", f"the {fn} of {x!r}")
        _check_wide(x, fn)

    def dot(self, op: ops.Dot) -> TileType:
        require(op.precision in ("exact", "tf32"), f"there is no precision {op.precision!r}")
        fits = op.a.type.rank == op.b.type.rank == 2 and op.a.dtype is op.b.dtype
        fits = fits and op.a.shape[1] == op.b.shape[0]
        require(fits, f"{op.a!r} and {op.b!r} do not multiply")
        accumulate = op.a.dtype.accumulate
        if op.codes:
            known = op.codes in ops.CODES and op.a.dtype.name == "u8"
            require(known, f"{op.a!r} cannot be codes of {op.codes!r}")
            accumulate = f32
        type = TileType(accumulate, (op.a.shape[0], op.b.shape[1]))
        require(op.acc.type == type, f"{op.acc!r} should be {type}")
        return type

    def loop(self, op: ops.For) -> Iterator[TileType]:
        require(op.step > 0, f"the step {op.step} is not positive")
        self.index(op.start, ())
        self.index(op.stop, ())
        carried = tuple(init.type for init in op.inits)
        params = tuple(param.type for param in op.body.params)
        wanted = (TileType(INDEX), *carried)
        require(params == wanted, f"the body takes {_types(params)}, not {_types(wanted)}")
        self.yields(op.body, carried)
        yield from carried

    def branch(self, op: ops.If) -> Iterator[TileType]:
        require(op.condition.type == TileType(bool_), f"{op.condition!r} is no condition")
        results = tuple(value.type for value in op.results)
        for block in (op.then, op.other):
            require(not block.params, "a branch has no parameters")
            self.yields(block, results)
        yield from results

    def yields(self, block: Block, types: tuple[TileType, ...]) -> None:
        last = block.ops[-1] if block.ops else None
        if not isinstance(last, ops.Yield):
            raise VerifyError("a nested block ends without a yield")
        found = tuple(arg.type for arg in last.args)
        require(found == types, f"it yields {_types(found)}, not {_types(types)}")


def _check_mask(mask: Value | None, shape: tuple[int, ...]) -> None:
    if mask is not None:
        require(mask.type == TileType(bool_, shape), f"{mask!r} is no mask of shape {shape}")


def _types(types: Sequence[TileType]) -> str:
    return f"({', '.join(map(str, types))})"


def _check_wide(value: Value, what: str) -> None:
    narrow = value.dtype.compute is not value.dtype
    require(not narrow, f"{what} of {value!r}: 16-bit floats are cast to f32 first")


def _check_literal(content: float | int | bool, dtype: DType) -> None:
    """Whether the dtype holds the value (a float may round, and may be infinite)."""
    if dtype.is_float:
        require(isinstance(content, float | int), f"{content!r} is not a value of {dtype}")
    elif dtype.kind == "bool":
        require(content in (0, 1), f"{content!r} is not a value of {dtype}")
    else:
        fits = dtype.lowest <= content <= dtype.highest and int(content) == content
        require(fits, f"{content!r} is not a value of {dtype}")
