"""Run a tile program in NumPy: the definition of what each op means, and the check of its promises.

    arrays = {"x": np.ones(1000, np.float32), "y": np.zeros(1000, np.float32)}
    run(kernel, arrays)            # y is filled in place

Programs run one after another, but nothing may depend on that: a program that stores an element
which another program stored or read, or reads one which another stored, is an error, and so is an
index outside of a load without a pad, an address outside of its buffer, two elements of one store
at one place, and an integer value outside of the range that the program claims for it. `run` tells
which elements were written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np

from fuser.dtypes import BY_NAME
from fuser.errors import UnsupportedError, VerifyError
from fuser.graph.ops.registry import primitive
from fuser.tilegen import ops
from fuser.tilegen.index import Atom, Axis, Extreme, FloorDiv, Index, Lookup, Mod, Scalar
from fuser.tilegen.interpreted_memory import ADD, LOOK, READ, WRITE, AccessError, Memory, share
from fuser.tilegen.ir import Block, Buffer, Kernel, Op, View
from fuser.tilegen.value import UNBOUNDED, Value

Array: TypeAlias = "np.ndarray[Any, Any]"


def run(
    kernel: Kernel,
    arrays: Mapping[str, Array],
    programs: Iterable[int] | None = None,
    *,
    scalars: Mapping[str, float | int | bool] | None = None,
    races: bool = True,
    origins: Mapping[str, int] | None = None,
    equal_stores: bool = False,
    aside: Iterable[str] = (),
) -> dict[str, Array]:
    """Run the kernel on its buffers, in place.

    arrays: one 1-D array a buffer name, of the buffer's dtype and size. programs: the row-major
    numbers of the grid points to run, all by default. scalars: the numbers of the launch, by name.
    races: whether programs that meet in memory are an error. Arrays may overlap. origins: by name,
    the place in its array of a buffer's first element, 0 by default. equal_stores: whether programs
    may store to an element what it holds already. aside: buffers whose atomics put no programs in
    order. Returns, by the name of each buffer
    that the kernel stores to, which of its elements were written: `check_written` wants all.
    Raises VerifyError, naming the op and its origin, for every broken promise (module docstring):
    AccessError for those about memory.
    """
    memory = {
        buffer: Memory(
            buffer, _array_of(kernel, buffer, arrays), (origins or {}).get(buffer.name, 0)
        )
        for buffer in kernel.buffers
    }
    modified = _modified(kernel)
    if races:
        share(memory, modified)
    unordered = frozenset(aside)
    read = {value for op in kernel.walk() for value in op.operands()}
    given = {
        value: np.asarray((scalars or {})[value.name], value.dtype.numpy)
        for value in kernel.scalars
    }
    total = int(np.prod(kernel.grid, dtype=np.int64))
    for program in range(total) if programs is None else programs:
        point = tuple(int(i) for i in np.unravel_index(program, kernel.grid))
        one = _Program(kernel, memory, program, point)
        one.read, one.equal_stores, one.aside = read, equal_stores, unordered
        one.values.update(given)
        one.block(kernel.body)
    return {buffer.name: memory[buffer].written for buffer in modified if races}


def check_written(name: str, written: Array) -> None:
    """Raise VerifyError if an element was written by nobody. written: of the buffer of that name,
    from `run`, of several kernels together where they share it."""
    if not written.all():
        place = int(np.argmin(written))
        missing = f"{written.size - np.count_nonzero(written)} of {written.size} elements"
        raise VerifyError(f"element {place} of {name} is written by nobody ({missing})")


def evaluate_index(expression: Index, shape: Sequence[int], values: Mapping[Value, Array]) -> Array:
    """The expression over tile coordinates: an int64 array that broadcasts to `shape`."""
    fixed: dict[Atom, int] = {}
    total: Array | None = None
    for atom, coefficient in expression.terms:
        if _reads_values(atom):
            part = _atom(atom, tuple(shape), values) * coefficient
            total = part if total is None else total + part
        else:
            fixed[atom] = coefficient
    base = _fixed(Index(expression.constant, tuple(fixed.items())), tuple(shape))
    return base if total is None else np.asarray(total + base)


@functools.lru_cache(maxsize=4096)
def _reads_values(atom: Atom) -> bool:
    return bool(Index(0, ((atom, 1),)).values())


@functools.lru_cache(maxsize=1024)
def _fixed(expression: Index, shape: tuple[int, ...]) -> Array:
    """An expression without values is the same in every program."""
    total = np.asarray(expression.constant, np.int64)
    for atom, coefficient in expression.terms:
        total = np.asarray(total + _atom(atom, shape, {}) * coefficient)
    total.flags.writeable = False
    return total


def _coordinate(axis: int, extent: int, rank: int) -> Array:
    return np.arange(extent, dtype=np.int64).reshape((extent,) + (1,) * (rank - axis - 1))


def _atom(atom: Atom, shape: tuple[int, ...], values: Mapping[Value, Array]) -> Array:
    match atom:
        case Axis():
            if atom.axis >= len(shape) or shape[atom.axis] != atom.extent:
                raise VerifyError(f"axis {atom} of extent {atom.extent} in a tile of shape {shape}")
            return _coordinate(atom.axis, atom.extent, len(shape))
        case Scalar():
            return np.asarray(values[atom.value], np.int64)
        case Lookup():
            places = tuple(_coordinate(axis, shape[axis], len(shape)) for axis in atom.axes)
            if atom.value.shape != tuple(shape[axis] for axis in atom.axes):
                raise VerifyError(f"lookup {atom} of {atom.value!r} in a tile of shape {shape}")
            return np.asarray(values[atom.value][places], np.int64)
        case FloorDiv():
            return np.asarray(evaluate_index(atom.base, shape, values) // atom.divisor)
        case Mod():
            return np.asarray(evaluate_index(atom.base, shape, values) % atom.divisor)
        case Extreme():
            pick = np.minimum if atom.fn == "min" else np.maximum
            return functools.reduce(pick, (evaluate_index(i, shape, values) for i in atom.items))


def _modified(kernel: Kernel) -> set[Buffer]:
    return {op.view.buffer for op in kernel.walk() if isinstance(op, ops.WRITES)}


def _array_of(kernel: Kernel, buffer: Buffer, arrays: Mapping[str, Array]) -> Array:
    where = f"kernel {kernel.name}"
    if buffer.name not in arrays:
        raise VerifyError(f"there is no array for buffer {buffer.name}", where=where)
    array = arrays[buffer.name]
    fits = array.ndim == 1 if buffer.open else array.shape == (buffer.size,)
    if not fits or array.dtype != buffer.dtype.numpy:
        raise VerifyError(
            f"buffer {buffer.name} is {buffer.dtype}[{buffer.size}], "
            f"its array {array.dtype}{list(array.shape)}",
            where=where,
        )
    return array


def _rest(array: Array, multiple: int) -> Array:
    """The rest of integers by a positive number, which may be as large as 2**63."""
    size = np.where(array < 0, -array, array) if array.dtype.kind == "i" else array
    return np.asarray(size.astype(np.uint64) % np.uint64(multiple))


class _Program:
    """One grid point: the values it has computed so far."""

    def __init__(
        self, kernel: Kernel, memory: dict[Buffer, Memory], program: int, point: tuple[int, ...]
    ) -> None:
        self.kernel, self.memory, self.program, self.point = kernel, memory, program, point
        self.values: dict[Value, Array] = {}
        self.read: set[Value] = set()
        """Values that something uses."""
        self.equal_stores = False
        self.aside: frozenset[str] = frozenset()
        self.deeds = 0
        """Counts what may have changed memory."""

    def block(self, block: Block) -> tuple[Array, ...]:
        """Run the ops; what the final Yield gives."""
        for op in block.ops:
            if isinstance(op, ops.Yield):
                return tuple(self.values[arg] for arg in op.args)
            try:
                results = _RULES[type(op)](self, op)
                for value, array in zip(op.results, results, strict=True):
                    self.define(value, array)
            except VerifyError as error:
                if error.where:
                    raise
                told = type(error)(error.what, where=self.where(op), hint=error.hint)
                if isinstance(told, AccessError) and isinstance(error, AccessError):
                    told.noted(error)
                    told.op, told.point = op, self.point
                raise told from None
        return ()

    def where(self, op: Op) -> str:
        names = ", ".join(f"%{value.name}" for value in op.results)
        text = f"{names + ' = ' if names else ''}{op.opcode}"
        text += f" in program {self.program} of kernel {self.kernel.name}"
        origin = self.kernel.origin_of(op)
        return text + (f", from {', '.join(origin)}" if origin else "")

    def define(self, value: Value, array: Array) -> None:
        """Bind a value and check its type and the facts claimed of it."""
        if array.shape != value.shape or array.dtype != value.dtype.numpy:
            raise VerifyError(f"{value!r} came out as {array.dtype}{list(array.shape)}")
        if value.dtype.kind != "float" and array.size:
            if (value.low > -UNBOUNDED and array.min() < value.low) or (
                value.high < UNBOUNDED and array.max() > value.high
            ):
                raise VerifyError(
                    f"{value!r} is claimed to be in [{value.low}, {value.high}] "
                    f"and is in [{array.min()}, {array.max()}]"
                )
            if value.multiple > 1 and _rest(array, value.multiple).any():
                raise VerifyError(f"{value!r} is claimed to be a multiple of {value.multiple}")
        self.values[value] = array

    # memory -------------------------------------------------------------------------------------

    def locate(
        self,
        view: View,
        indices: Sequence[Index],
        shape: tuple[int, ...],
        mask: Value | None = None,
    ) -> tuple[Array, Array]:
        """(element numbers from the buffer's first on, whether in bounds and in the mask), both of
        the tile's shape."""
        address = np.asarray(view.offset, np.int64)
        inside = np.asarray(True) if mask is None else self.values[mask]
        for expression, extent, stride in zip(indices, view.shape, view.strides, strict=True):
            place = evaluate_index(expression, shape, self.values)
            if extent < UNBOUNDED:
                inside = inside & (place >= 0) & (place < extent)
            address = np.asarray(address + place * stride)
        address = np.broadcast_to(address, shape)
        inside = np.broadcast_to(inside, shape)
        used = address[inside]
        memory = self.memory[view.buffer]
        memory.check_inside(used, view)
        return address, inside

    def load(self, op: ops.Load) -> tuple[Array]:
        address, inside = self.locate(op.view, op.indices, op.shape, op.mask)
        memory = self.memory[op.view.buffer]
        if inside.all():
            memory.touch(address.reshape(-1), self.program, "reader", READ)
            return (memory.data[address + memory.origin],)
        if op.pad is None:
            bad = tuple(int(i) for i in np.argwhere(~inside)[0])
            raise VerifyError(f"element {bad} of a load without a pad is outside of {op.view!r}")
        used = address[inside]
        memory.touch(used, self.program, "reader", READ)
        result = np.full(op.shape, op.pad, op.view.dtype.numpy)
        result[inside] = memory.data[used + memory.origin]
        return (result,)

    def store(self, op: ops.Store) -> tuple[()]:
        address, inside = self.locate(op.view, op.indices, op.value.shape, op.mask)
        memory = self.memory[op.view.buffer]
        used, new = address[inside], self.values[op.value][inside]
        if self.equal_stores:
            equal = memory.alike(used, new)
            memory.touch(used[equal], self.program, "writer", ())
            used, new = used[~equal], new[~equal]
        memory.check_distinct(used)
        memory.touch(used, self.program, "writer", WRITE)
        self.deeds += 1
        memory.data[used + memory.origin] = new
        return ()

    def atomic_add(self, op: ops.AtomicAdd) -> tuple[()]:
        address, inside = self.locate(op.view, op.indices, op.value.shape)
        memory = self.memory[op.view.buffer]
        used = address[inside]
        self.deeds += 1
        memory.touch(used, self.program, "adder", ADD)
        np.add.at(memory.data, used + memory.origin, self.values[op.value][inside])
        return ()

    def atomic(self, op: ops.Atomic) -> tuple[Array]:
        address, inside = self.locate(op.view, op.indices, op.value.shape, op.mask)
        memory, dtype = self.memory[op.view.buffer], op.view.dtype
        if memory.buffer.name not in self.aside:
            learns = any(value in self.read for value in op.results)
            memory.meet(address[inside], self.program, learns)
        if op.fn == "load":
            memory.touch(address[inside], self.program, "watcher", LOOK)
            found = np.zeros(op.value.shape, dtype.numpy)
            found[inside] = memory.data[address[inside] + memory.origin]
            return (found,)
        memory.touch(address[inside], self.program, "adder", ADD)
        value = self.values[op.value]
        compare = value if op.compare is None else self.values[op.compare]
        old = np.zeros(op.value.shape, dtype.numpy)
        for at in np.ndindex(old.shape):  # elements at one place follow each other
            if inside[at]:
                place = address[at] + memory.origin
                old[at] = memory.data[place]
                new = dtype.numpy.type(_ATOMICS[op.fn](old[at], value[at], compare[at]))
                self.deeds += new.tobytes() != old[at].tobytes()
                memory.data[place] = new
                if op.fn == "store":
                    old[at] = new
        return (old,)

    # values -------------------------------------------------------------------------------------

    def program_id(self, op: ops.ProgramId) -> tuple[Array]:
        return (np.asarray(self.point[op.axis], np.int64),)

    def index(self, op: ops.IndexTile) -> tuple[Array]:
        places = evaluate_index(op.expression, op.shape, self.values)
        return (np.broadcast_to(places, op.shape).astype(op.dtype.numpy),)

    def full(self, op: ops.Full) -> tuple[Array]:
        return (np.full(op.shape, op.value, op.dtype.numpy),)

    def map(self, op: ops.Map) -> tuple[Array, ...]:
        return primitive(op.fn).evaluate([self.values[arg] for arg in op.args], {})

    def assembly(self, op: ops.Assembly) -> NoReturn:
        raise UnsupportedError(
            "assembly: instructions of a GPU have no meaning in the interpreter",
            hint="launch the kernel on a GPU",
        )

    def cast(self, op: ops.Cast) -> tuple[Array, ...]:
        return primitive("cast").evaluate([self.values[op.x]], {"dtype": op.dtype})

    def bitcast(self, op: ops.Bitcast) -> tuple[Array]:
        return (np.array(self.values[op.x], order="C").view(op.dtype.numpy),)

    def gather(self, op: ops.Gather) -> tuple[Array]:
        at = self.values[op.at]
        if at.size and (at.min() < 0 or at.max() >= op.x.shape[op.axis]):
            raise AccessError(f"a gather reaches outside of {op.x!r}")
        return (np.take_along_axis(self.values[op.x], at.astype(np.int64), op.axis),)

    def broadcast(self, op: ops.Broadcast) -> tuple[Array]:
        x = self.values[op.x]
        # place the axes of x in result order, ones elsewhere
        order = sorted(range(x.ndim), key=lambda i: op.axes[i])
        spread = [1] * len(op.shape)
        for position in order:
            spread[op.axes[position]] = x.shape[position]
        return (np.broadcast_to(x.transpose(order).reshape(spread), op.shape),)

    def reshape(self, op: ops.Reshape) -> tuple[Array]:
        return (self.values[op.x].reshape(op.shape),)

    def permute(self, op: ops.Permute) -> tuple[Array]:
        return (self.values[op.x].transpose(op.axes),)

    def reduce(self, op: ops.Reduce) -> tuple[Array, ...]:
        if op.fn in _FOLDS:
            x = self.values[op.x]
            return (np.asarray(_FOLDS[op.fn].reduce(x, axis=op.axis), x.dtype),)
        return primitive(f"reduce_{op.fn}").evaluate([self.values[op.x]], {"axes": (op.axis,)})

    def scan(self, op: ops.Scan) -> tuple[Array]:
        x = self.values[op.x]
        wide = x.astype(op.x.dtype.compute.numpy)
        if op.reverse:
            wide = np.flip(wide, op.axis)
        with np.errstate(all="ignore"):
            result = np.asarray(
                (_SCANS | _FOLDS)[op.fn].accumulate(wide, axis=op.axis, dtype=wide.dtype)
            )
        return ((np.flip(result, op.axis) if op.reverse else result).astype(x.dtype),)

    def dot(self, op: ops.Dot) -> tuple[Array]:
        a, b, acc = (self.values[operand] for operand in (op.a, op.b, op.acc))
        if op.codes:
            a, b = (np.ascontiguousarray(x).view(BY_NAME[op.codes].numpy) for x in (a, b))
        with np.errstate(all="ignore"):
            return (acc + a.astype(acc.dtype) @ b.astype(acc.dtype),)

    # control ------------------------------------------------------------------------------------

    def loop(self, op: ops.For) -> tuple[Array, ...]:
        start, stop = (int(evaluate_index(e, (), self.values)) for e in (op.start, op.stop))
        carried = tuple(self.values[init] for init in op.inits)
        variable, *params = op.body.params
        for i in range(start, stop, op.step):
            self.define(variable, np.asarray(i, np.int64))
            for param, array in zip(params, carried, strict=True):
                self.define(param, array)
            carried = self.block(op.body)
        return carried

    def while_loop(self, op: ops.While) -> tuple[Array, ...]:
        carried = tuple(self.values[init] for init in op.inits)
        while True:
            deeds = self.deeds
            for block in (op.condition, op.body):
                for param, array in zip(block.params, carried, strict=True):
                    self.define(param, array)
            if not bool(self.block(op.condition)[0]):
                return carried
            before, carried = carried, self.block(op.body)
            kept = all(a.tobytes() == b.tobytes() for a, b in zip(before, carried, strict=True))
            if kept and deeds == self.deeds:  # the next iteration is this one again
                raise AccessError("a loop waits for ever: no program before this one ends it")

    def branch(self, op: ops.If) -> tuple[Array, ...]:
        return self.block(op.then if bool(self.values[op.condition]) else op.other)


_SCANS: dict[str, np.ufunc] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
}  # fmt: skip

_FOLDS: dict[str, np.ufunc] = {
    "fmax": np.fmax, "fmin": np.fmin, "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
}  # fmt: skip

_ATOMICS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "add": lambda old, value, _: old + value,
    "max": lambda old, value, _: max(old, value),
    "min": lambda old, value, _: min(old, value),
    "and": lambda old, value, _: old & value,
    "or": lambda old, value, _: old | value,
    "xor": lambda old, value, _: old ^ value,
    "exchange": lambda old, value, _: value,
    "store": lambda old, value, _: value,
    "compare_exchange": lambda old, value, want: value if old.tobytes() == want.tobytes() else old,
}

_RULES: dict[type[Op], Callable[[_Program, Any], tuple[Array, ...]]] = {
    ops.ProgramId: _Program.program_id,
    ops.IndexTile: _Program.index,
    ops.Full: _Program.full,
    ops.Load: _Program.load,
    ops.Store: _Program.store,
    ops.AtomicAdd: _Program.atomic_add,
    ops.Atomic: _Program.atomic,
    ops.Bitcast: _Program.bitcast,
    ops.Gather: _Program.gather,
    ops.While: _Program.while_loop,
    ops.Map: _Program.map,
    ops.Assembly: _Program.assembly,
    ops.Cast: _Program.cast,
    ops.Broadcast: _Program.broadcast,
    ops.Reshape: _Program.reshape,
    ops.Permute: _Program.permute,
    ops.Reduce: _Program.reduce,
    ops.Scan: _Program.scan,
    ops.Dot: _Program.dot,
    ops.For: _Program.loop,
    ops.If: _Program.branch,
}
