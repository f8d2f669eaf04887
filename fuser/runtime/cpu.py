"""Running a Program on the CPU: linked kernels, a launch table, one native call a run."""

from __future__ import annotations

import ctypes
import functools
import struct
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fuser.backend.cores import available_cores, check_threads
from fuser.backend.features import missing_features
from fuser.errors import DeviceError, OutOfMemoryError, VerifyError
from fuser.graph.units import byte_size
from fuser.runtime import native
from fuser.runtime.collectives import Communicator
from fuser.runtime.cpu_exchange import Exchanges
from fuser.runtime.jit import Linked, link_objects, runtime_library
from fuser.runtime.memory import Recycler, address, align, aligned_empty, settle
from fuser.runtime.program import BufferRef, Copy, Launch, Program, Steady
from fuser.runtime.threads import get_pool

CHUNKS_PER_THREAD = 8
"""Enough that uneven programs even out, few enough that claiming them costs nothing."""

ALONE_SECONDS = 4e-6
"""A launch cheaper than this is not worth waking another core for."""

WAKE_SECONDS = 20e-6
"""A plan cheaper than this is over about when a sleeping worker would be awake."""

_RECORD = np.dtype(
    [
        ("kind", "i8"),
        ("entry", "i8"),
        ("arguments", "i8"),
        ("arity", "i8"),
        ("programs", "i8"),
        ("chunks", "i8"),
        ("unused", "i8"),
        ("unused too", "i8"),
    ]
)


class _Context:
    """What one run at a time uses: its arena, scratch, and the table of base addresses."""

    def __init__(self, executor: CpuExecutor) -> None:
        program = executor.program
        try:
            self.arena = aligned_empty(program.arena_bytes)
            self.scratch = aligned_empty(executor.scratch_stride * executor.threads)
        except MemoryError as error:
            raise OutOfMemoryError(
                f"the plan needs {byte_size(program.arena_bytes)} for values between kernels",
                where=program.name,
            ) from error
        constants = [address(array) for array in executor.constants]
        ends = [0] * (len(program.inputs) + len(program.outputs))
        self.bases = np.array([*ends, *constants, address(self.arena)], np.int64)
        self.buffers = np.zeros(executor.max_arity, np.int64)
        self.record = np.zeros(native.CONTEXT_BYTES // 8, np.int64)
        self.record[:6] = (
            address(executor.table),
            len(executor.table),
            address(self.bases),
            address(self.buffers),
            address(self.scratch),
            executor.scratch_stride,
        )
        self.pointer = address(self.record)


class CpuExecutor:
    """Runs a cpu Program. Safe to use from many threads: each run has its own `_Context`."""

    def __init__(
        self, program: Program, threads: int | None = None, like: CpuExecutor | None = None
    ) -> None:
        """like: an executor of the same kernels at other sizes, whose linked code is used again."""
        self.program = program
        _check_host(program)
        self.threads = check_threads(threads) or available_cores()
        self.constants = [settle(array, array.itemsize)[0] for array in program.constants]
        kernels = [launch.kernel for launch in program.launches]
        self.scratch_stride = max((align(k.scratch_bytes, 64) for k in kernels), default=0)
        self._libraries: _Entries = (
            like._libraries if like is not None else _link_kernels(program.launches)
        )
        self._arguments: list[np.ndarray] = []
        self.table, self.labels = self._build_table()
        self.exchanges = self._find_exchanges()
        self.max_arity = max(1, *self.table["arity"]) if len(self.table) else 1
        costs = [launch.cost for launch in program.launches]
        short = all(costs) and sum(costs) < WAKE_SECONDS
        self._parallel = self.threads > 1 and not short and bool((self.table["chunks"] > 1).any())
        self._results = [Recycler(spec.shape, spec.dtype.numpy) for spec in program.outputs]
        self._copies = [self._copy(copy) for copy in program.copies]
        ends = len(program.inputs) + len(program.outputs)
        self._place: Callable[..., None] = struct.Struct(f"{ends}q").pack_into
        self._free: list[_Context] = []
        run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self._run = run(runtime_library()["fuser_run"])
        self._free.append(_Context(self))

    @property
    def device_name(self) -> str:
        target = self.program.target
        return f"cpu ({target.arch}, {self.threads} thread{'s' * (self.threads > 1)})"

    @property
    def peak_memory_bytes(self) -> int:
        return self.program.peak_memory_bytes + self.scratch_stride * self.threads

    @property
    def workspace_bytes(self) -> int:
        return self.program.arena_bytes + self.scratch_stride * self.threads

    def run(
        self, inputs: Sequence[np.ndarray], times: np.ndarray | None = None
    ) -> list[np.ndarray]:
        """New output arrays for C-contiguous inputs of the right dtypes and shapes.

        times: room for len(table) + 1 (seconds, nanoseconds) pairs of int64.
        """
        made = [allocate() for allocate in self._results]
        held = [settle(array, array.itemsize) for array in inputs]
        context = self._take()
        self._place(context.bases, 0, *[at for _, at in held], *[at for _, at in made])
        self._run_on(context, times)
        return [array for array, _ in made]

    def run_into(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Run from C-contiguous inputs into outputs like them, aligned as `allocate` aligns;
        they share no memory."""
        held = [settle(array, array.itemsize) for array in inputs]
        context = self._take()
        self._place(context.bases, 0, *[at for _, at in held], *map(address, outputs))
        self._run_on(context)

    def run_in(
        self, context: _Context, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
    ) -> None:
        """`run_into`, in a context that `new_context` gave. What is copied into an output that is
        smaller than the program says is its beginning."""
        held = [settle(array, array.itemsize) for array in inputs]
        self._place(context.bases, 0, *[at for _, at in held], *map(address, outputs))
        self._execute(context, None)
        for target, source, size in self._copies:
            size = min(size, outputs[target - len(inputs)].nbytes)
            ctypes.memmove(int(context.bases[target]), int(context.bases[source]), size)

    def new_context(self) -> _Context:
        """What one run at a time uses, for the caller to keep."""
        return self._take()

    def caller(self, context: _Context) -> Callable[[], None]:
        """What runs the kernels, without the copies, on the addresses in a context. Not for plans
        with collectives."""
        pool = get_pool(self.threads) if self._parallel else None
        pointer = pool.pointer if pool is not None else None
        return functools.partial(self._run, context.pointer, pointer, None)

    def copies_between(
        self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """What a run copies after its kernels: bytes of an output, and where they come from."""
        places = [*inputs, *outputs, *self.constants]
        return [
            (_bytes_of(places[target])[:size], _bytes_of(places[source])[:size])
            for target, source, size in self._copies
        ]

    def at(self, fixed: Mapping[int, int]) -> Steady:
        """See `Plan.at`."""
        count = len(self.program.inputs) + len(self.program.outputs)
        ends = np.array([fixed.get(place, 0) for place in range(count)], np.int64)
        free = [place for place in range(count) if place not in fixed]

        def run(pointers: Sequence[int], stream: int = 0) -> None:
            context = self._take()
            bases = context.bases
            bases[:count] = ends
            for place, pointer in zip(free, pointers, strict=True):
                bases[place] = pointer
            self._run_on(context)

        return run

    def _take(self) -> _Context:
        try:
            return self._free.pop()
        except IndexError:
            return _Context(self)

    def _run_on(self, context: _Context, times: np.ndarray | None = None) -> None:
        """Run on the addresses in the context, and give it back."""
        self._execute(context, times)
        for target, source, size in self._copies:
            ctypes.memmove(int(context.bases[target]), int(context.bases[source]), size)
        self._free.append(context)

    def _execute(self, context: _Context, times: np.ndarray | None) -> None:
        pool = get_pool(self.threads) if self._parallel else None
        pointer = pool.pointer if pool is not None else None
        if self.exchanges is None:
            self._run(context.pointer, pointer, address(times) if times is not None else None)
        else:
            self.exchanges.check(self.program.name)
            self.exchanges.run(self._run, context.pointer, context.record, context.bases,
                               _RECORD.itemsize, pointer, times)  # fmt: skip

    def _find_exchanges(self) -> Exchanges | None:
        launches = self.program.launches
        if all(launch.kernel.code for launch in launches):
            return None
        found = Exchanges(
            launches, self.labels, lambda launch: [self._base(ref) for ref in launch.arguments]
        )
        return found if found.launches else None

    def join(self, comm: Communicator) -> None:
        """See `Plan.join`."""
        if self.exchanges is not None:
            self.exchanges.comm = comm

    def time_replays(
        self, inputs: Sequence[np.ndarray], iterations: int, warmup: int
    ) -> list[float]:
        """Seconds of each of `iterations` runs."""
        times = []
        for i in range(-warmup, iterations):
            start = time.perf_counter()
            self.run(inputs)
            if i >= 0:
                times.append(time.perf_counter() - start)
        return times

    def time_kernels(self, inputs: Sequence[np.ndarray]) -> list[float]:
        """Seconds of each launch in one run; clears count into the launch after them."""
        times = np.zeros((len(self.table) + 1, 2), np.int64)
        self.run(inputs, times)
        # Differences first: nanoseconds since an epoch do not fit a float64 exactly.
        steps = np.diff(times, axis=0)
        seconds = steps[:, 0] + steps[:, 1] * 1e-9
        found: dict[int, float] = {}
        for launch, spent in zip(self.labels, seconds, strict=True):
            found[launch] = found.get(launch, 0.0) + float(spent)
        return [found[i] for i in range(len(self.program.launches))]

    def run_kernels(
        self, inputs: Sequence[np.ndarray], around: Callable[[int, Callable[[], None]], None]
    ) -> None:
        """Run launch by launch: `around` is given the number of each and what runs it, first -1 and
        what runs none. The results go nowhere."""
        made = [allocate() for allocate in self._results]
        held = [settle(array, array.itemsize) for array in inputs]
        context = _Context(self)
        self._place(context.bases, 0, *[at for _, at in held], *[at for _, at in made])
        pool = get_pool(self.threads) if self._parallel else None
        pointer = pool.pointer if pool is not None else None
        if self.exchanges is not None:
            self.exchanges.check(self.program.name)
        run = functools.partial(self._run, context.pointer, pointer, None)
        for launch in range(-1, len(self.program.launches)):
            places = [i for i, label in enumerate(self.labels) if label == launch] or [0]
            context.record[0] = address(self.table) + places[0] * _RECORD.itemsize
            context.record[1] = self.labels.count(launch)
            if self.exchanges is not None and launch in self.exchanges.launches:
                around(launch, functools.partial(self.exchanges.perform, launch, context.bases))
            else:
                around(launch, run)

    def close(self) -> None:
        self._free.clear()

    def _copy(self, copy: Copy) -> tuple[int, int, int]:
        """Where it goes and where it comes from in the base table, and its bytes."""
        if copy.source.space == "arena":
            raise VerifyError("an output cannot be copied from the arena", where=self.program.name)
        sizes = [spec.bytes for spec in (*self.program.inputs, *self.program.outputs)]
        sizes += [array.nbytes for array in self.constants]
        target, source = len(self.program.inputs) + copy.output, self._base(copy.source)[0]
        if sizes[source] != sizes[target]:
            raise VerifyError("an output is copied from another size", where=self.program.name)
        return target, source, sizes[target]

    def _base(self, ref: BufferRef) -> tuple[int, int]:
        """(index into the base table, byte offset)."""
        inputs, outputs = len(self.program.inputs), len(self.program.outputs)
        if ref.space == "arena":
            return inputs + outputs + len(self.constants), ref.index
        start = {"input": 0, "output": inputs, "constant": inputs + outputs}[ref.space]
        return start + ref.index, 0

    def _build_table(self) -> tuple[np.ndarray, list[int]]:
        """The records of `fuser.runtime.native`, and the launch each belongs to."""
        records: list[tuple[int, ...]] = []
        labels: list[int] = []

        def arguments(refs: Sequence[BufferRef]) -> int:
            pairs = np.array([self._base(ref) for ref in refs], np.int64).reshape(-1, 2)
            self._arguments.append(pairs)
            return address(pairs)

        for position, launch in enumerate(self.program.launches):
            for zero in launch.zeros:
                records.append((1, 0, arguments([zero.buffer]), 1, zero.bytes, 0, 0, 0))
                labels.append(position)
            programs = launch.kernel.programs
            if not launch.kernel.code:  # a collective: a row that does nothing
                records.append((1, 0, arguments(launch.arguments[:1]), 1, 0, 0, 0, 0))
                labels.append(position)
                continue
            if not programs:
                continue
            chunks = chunking(programs, self.threads, launch.cost)
            entry = self._libraries[position]
            at = arguments(launch.arguments)
            records.append((0, entry, at, len(launch.arguments), programs, chunks, 0, 0))
            labels.append(position)
        return np.array(records, _RECORD), labels


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """A view of a C-contiguous array as bytes."""
    return array.reshape(-1).view(np.uint8)


def _check_host(program: Program) -> None:
    """Raise DeviceError for code that this processor cannot run."""
    missing = missing_features(program.target.features)
    if missing:
        raise DeviceError(
            f"the plan needs a processor with {', '.join(missing)}",
            where=program.name,
            hint="compile the model on this machine",
        )


def chunking(programs: int, threads: int, cost: float = 0.0) -> int:
    """How many chunks a launch is cut into; 0: the calling thread runs it alone.

    A multiple of the threads, so that every thread starts with as many programs as the others, or
    one more; the native code makes chunks equal but for one program.
    """
    if threads < 2 or programs < 2 or 0 < cost < ALONE_SECONDS:
        return 0
    wanted = threads * CHUNKS_PER_THREAD
    if cost:  # a chunk should be worth claiming
        wanted = min(wanted, max(threads, int(cost / ALONE_SECONDS)))
    return min(programs, -(-wanted // threads) * threads)


class _Entries(dict[int, int]):
    """Launch position -> address of its entry; keeps the code mapped."""

    libraries: list[Linked]


def _link_kernels(launches: Sequence[Launch]) -> _Entries:
    """Link every distinct object once. Objects that define the same symbol go apart."""
    groups: list[dict[str, bytes]] = []
    group_of: dict[tuple[str, bytes], int] = {}
    for launch in launches:
        kernel = launch.kernel
        key = (kernel.entry, kernel.code)
        if key in group_of or not kernel.code:
            continue
        number = next(
            (i for i, group in enumerate(groups) if kernel.entry not in group), len(groups)
        )
        if number == len(groups):
            groups.append({})
        groups[number][kernel.entry] = kernel.code
        group_of[key] = number
    entries = _Entries()
    entries.libraries = [link_objects(group) for group in groups]
    for position, launch in enumerate(launches):
        kernel = launch.kernel
        if not kernel.code:
            continue
        library = entries.libraries[group_of[kernel.entry, kernel.code]]
        entries[position] = library[kernel.entry]
    return entries
