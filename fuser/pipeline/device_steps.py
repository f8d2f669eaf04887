"""Runs of one variant that keep state on a GPU, step after step.

A step is one CUDA graph, whatever the length of what is kept: kernels read sizes that depend on it
from memory (`fuser.graph.sizes.Sizes.moving`), which each run fills, and are launched with blocks
for the longest; those beyond the sizes return at once. The graph's addresses are those of the
state's tensors and of its own inputs and results, so each state has graphs of its own; memory for
values between kernels is that of all states, whose runs follow one another on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from fuser.base.forks import new_lock
from fuser.dtypes import u8
from fuser.graph.dims import Dim, parse, substitute, symbols_of
from fuser.graph.sizes import evaluate
from fuser.pipeline.binding import Bound
from fuser.pipeline.steps import AnySteps, SizedSpec, fit, guarded
from fuser.pipeline.variants import Variant, Variants
from fuser.runtime import driver
from fuser.runtime.binding import Binding
from fuser.runtime.cuda import CudaExecutor
from fuser.runtime.cuda_host import timed_launches
from fuser.runtime.device_share import Weights
from fuser.runtime.device_state import DeviceMemory, copy_rows
from fuser.runtime.device_tensors import DeviceArray, Event, check_tensors, on_host
from fuser.runtime.feeds import check_feeds
from fuser.runtime.memory import align
from fuser.runtime.moving import formula
from fuser.runtime.plan_report import Report
from fuser.runtime.program import IN_PLACE, Program, TensorSpec
from fuser.runtime.state import Slot, State

ALIGNMENT = 256
TURNS = 2
"""Sets of results that a state has: those of a run are there until the run after the next."""


class DeviceStates:
    """`fuser.pipeline.steps.StateBackend` of a GPU, whose weights all steps share."""

    on_gpu = True

    def __init__(self, ordinal: int) -> None:
        self._ordinal, self._weights = ordinal, Weights()

    def memory(self, slots: Sequence[Slot]) -> DeviceMemory:
        return DeviceMemory(slots, self._ordinal)

    def may_grow(self, variant: Variant, name: str) -> bool:
        """Sizes are part of a launch: where kernels are right for others than the one they were
        launched with, or for one size alone, which the variant's ranges say."""
        bucket = variant.buckets.get(name)
        return name in variant.moving or (bucket is not None and bucket.least == bucket.most)

    def steps(
        self, variant: Variant, known: Mapping[str, Dim], most: int, like: AnySteps | None
    ) -> DeviceSteps:
        shared = like if isinstance(like, DeviceSteps) else None
        return DeviceSteps(variant, known, most, shared, self._weights)

    def report(self, variants: Variants, dims: Mapping[str, int]) -> Report:
        return variants.variant(dims).report_at(dims)


class DeviceSteps:
    """`fuser.pipeline.steps.Steps` on a GPU. Safe to use from many threads."""

    def __init__(
        self, variant: Variant, known: Mapping[str, Dim], most: int,
        like: DeviceSteps | None = None, weights: Weights | None = None,
    ) -> None:  # fmt: skip
        """As `Steps`. weights: of all variants, on the GPU."""
        self.variant = variant
        bound = variant.bound
        self._guard = guarded(variant, known)
        program = bound.at({name: evaluate(dim, {"n": most}) for name, dim in known.items()})
        program = _widest(program, known, [n for n in range(most + 1) if self._guard(n)])
        program = replace(program, facts={**program.facts, IN_PLACE: True})  # no run by copies
        shared: CudaExecutor | None = like._executor if like is not None else None
        self._executor: CudaExecutor = CudaExecutor(program, variant.ordinal, shared, weights)
        self._inputs = [SizedSpec(spec, variant.types, known) for _, spec in bound.inputs]
        self._outputs = [SizedSpec(spec, variant.types, known) for _, spec in bound.outputs]
        self._tables = _Tables(bound, known)
        self._places: WeakKeyDictionary[State, _Place] = WeakKeyDictionary()
        self._lock = new_lock()

    def serves(self, length: int, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """As `Steps.serves`."""
        return self._guard(length) and fit(self._inputs, length, shapes)

    def run(self, state: State, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """One run: from the state's memory, and into it. Raises FeedError."""
        made = self.run_device(state, feeds)
        stream = _memory(state).stream
        results = {}
        with driver.current(self._executor.ordinal):
            for item in self._outputs:
                if item.name in made:
                    array, given = item.allocate(state.length), made[item.name]
                    results[item.name] = array
                    if array.nbytes:
                        driver.call("cuMemcpyDtoHAsync", array.ctypes.data, given.pointer,
                                    array.nbytes, stream)  # fmt: skip
            driver.call("cuStreamSynchronize", stream)
        return results

    def run_device(self, state: State, feeds: Mapping[str, Any]) -> dict[str, DeviceArray]:
        """The same, put on the state's stream; the results stay on the GPU."""
        length, memory, place = state.length, _memory(state), self._place(state)
        slots = {slot.input: slot for slot in state.slots}
        fed = [item.at(length) for item in self._inputs if item.name not in slots]
        ordinal, stream = self._executor.ordinal, int(memory.stream)
        placed = self._feeds(fed, feeds, stream)
        turn = place.turn
        with driver.current(ordinal):
            for spec, given in zip(fed, placed, strict=True):
                target = place.feeds[spec.name]
                if isinstance(given, np.ndarray):
                    if given.nbytes:
                        driver.call(
                            "cuMemcpyHtoDAsync", target, given.ctypes.data, given.nbytes, stream
                        )
                elif spec.bytes:
                    driver.call("cuMemcpyDtoDAsync", target, given, spec.bytes, stream)
            self._tables.fill(place, length, stream)
            for name, target in place.packed.items():  # kernels do not write in place
                source = memory.arrays[name].pointer
                copy_rows(slots[name], length, target, source, stream, packed="target")
        results = place.results[turn]
        pointers = {**place.feeds, **place.packed}
        sources = [
            pointers.get(item.name) or memory.arrays[item.name].pointer for item in self._inputs
        ]
        targets = dict(results)
        for slot in state.slots:  # handed on: it takes the memory of what it replaces next time
            if slot.axis is None and slot.output in targets:
                targets[slot.output] = place.spare[slot.input].pointer
        key = (*sources, *place.tables, *targets.values())
        binding = place.bindings.get(key)
        if binding is None:
            binding = place.bindings[key] = self._executor.bind_at(key)
        binding.run(stream)
        place.last = key
        made: dict[str, DeviceArray] = {}
        with driver.current(ordinal):
            outputs = {item.name: item.at(length) for item in self._outputs}
            for slot in state.slots:
                if slot.output not in outputs:  # kernels wrote it where it lies
                    continue
                grown = outputs.pop(slot.output)
                if slot.axis is None:
                    arrays = memory.arrays
                    arrays[slot.input], place.spare[slot.input] = (
                        place.spare[slot.input], arrays[slot.input],
                    )  # fmt: skip
                else:
                    rows, target = grown.shape[slot.axis], memory.arrays[slot.input].pointer
                    source = targets[slot.output]
                    copy_rows(slot, rows, target, source, stream, packed="source")
        ready = Event(ordinal, stream)
        for name, spec in outputs.items():
            array = DeviceArray(spec.shape, spec.dtype, ordinal, at=results[name], keep=place)
            array.ready = ready
            made[name] = array
        place.turn = (turn + 1) % TURNS
        return made

    def time_kernels(self, state: State, rounds: int = 1) -> list[tuple[str, float]]:
        """(kernel, seconds) of each launch of the state's last run, by events between them: the
        median of so many runs of it again, which leave the state as it is."""
        executor, key = self._executor, self._place(state).last
        count = len(executor.program.inputs)
        stream, names = _memory(state).stream, [item.name for item in executor.program.launches]
        with executor.lock, driver.current(executor.ordinal):
            addresses = replace(executor.addresses, inputs=key[:count], outputs=key[count:])
            times = timed_launches(executor, addresses, stream, rounds)
        return list(zip(names, times, strict=True))

    def _feeds(
        self, specs: Sequence[TensorSpec], feeds: Mapping[str, Any], stream: int
    ) -> list[np.ndarray | int]:
        """Arrays of the host, or addresses on the GPU of what the stream will find computed."""
        if not any(not on_host(feed) for feed in feeds.values()):
            return list(check_feeds(specs, feeds))
        found: list[np.ndarray | int] = []
        for spec in specs:
            given = {spec.name: feeds[spec.name]}
            if on_host(feeds[spec.name]):
                found += check_feeds([spec], given)
                continue
            (tensor,) = check_tensors([spec], given, self._executor.ordinal, "input", stream)
            if tensor.stream is not None:
                Event(self._executor.ordinal, tensor.stream).before(stream)
            found.append(tensor.address)
        return found

    def _place(self, state: State) -> _Place:
        with self._lock:
            place = self._places.get(state)
            if place is None:
                place = self._places[state] = _Place(self._executor, state, len(self._inputs))
            return place

    def close(self) -> None:
        self._executor.close()


class _Place:
    """What the graphs of one state use beside its tensors: addresses of inputs and results, and of
    the tables of sizes. turn: which of the sets of results is next."""

    def __init__(self, executor: CudaExecutor, state: State, count: int) -> None:
        """count: of the inputs that are the model's; tables follow."""
        program, ordinal = executor.program, executor.ordinal
        slots = {slot.input: slot for slot in state.slots}
        kept = {slot.output for slot in state.slots if slot.axis is None}
        parts: list[int] = []

        def part(size: int) -> int:
            parts.append(size)
            return len(parts) - 1

        feeds: dict[str, int] = {}
        packed: dict[str, int] = {}
        for spec in program.inputs[:count]:
            slot = slots.get(spec.name)
            if slot is None:
                feeds[spec.name] = part(spec.bytes)
            elif spec.shape != slot.shape:
                packed[spec.name] = part(spec.bytes)
        places = [part(spec.bytes) for spec in program.inputs[count:]]
        results = [
            {spec.name: part(0 if spec.name in kept else spec.bytes) for spec in program.outputs}
            for _ in range(TURNS)
        ]
        offsets = [0]
        for size in parts:
            offsets.append(offsets[-1] + max(align(size, ALIGNMENT), ALIGNMENT))
        self._memory = DeviceArray((offsets[-1],), u8, ordinal)
        at = [self._memory.pointer + offset for offset in offsets]
        self.feeds = {name: at[number] for name, number in feeds.items()}
        self.packed = {name: at[number] for name, number in packed.items()}
        self.tables = tuple(at[number] for number in places)
        self.results = [{name: at[n] for name, n in table.items()} for table in results]
        self.spare = {
            slot.input: DeviceArray(slot.shape, slot.dtype, ordinal)
            for slot in state.slots if slot.axis is None and slot.output in results[0]
        }  # fmt: skip
        self.bindings: dict[tuple[int, ...], Binding] = {}
        self.last: tuple[int, ...] = ()
        self.turn = 0
        self.filled: np.ndarray | None = None


class _Tables:
    """The sizes that kernels read from memory, as they are at a length."""

    def __init__(self, bound: Bound, known: Mapping[str, Dim]) -> None:
        texts: dict[str, int] = {}
        words = ALIGNMENT // 8
        places: list[int] = []
        for table in bound.tables.values():
            first = align(len(places), words)
            places += [0] * (first - len(places))
            places += [texts.setdefault(text, len(texts)) for text in table]
        self._places = np.array(places, np.intp)
        self._formula = formula(map(parse, texts), known)

    def fill(self, place: _Place, length: int, stream: int) -> None:
        """Write them where the kernels of a state read them: its tables follow one another."""
        if not place.tables:
            return
        numbers = np.array(self._formula(length), np.int64)[self._places]
        if place.filled is not None and np.array_equal(numbers, place.filled):
            return
        source = numbers.ctypes.data
        driver.call("cuMemcpyHtoDAsync", place.tables[0], source, numbers.nbytes, stream)
        place.filled = numbers


def _widest(program: Program, known: Mapping[str, Dim], lengths: Sequence[int]) -> Program:
    """The program with as many blocks of each kernel as any of the lengths takes."""
    found: dict[tuple[str, ...], tuple[int, ...]] = {}

    def launch_of(texts: tuple[str, ...]) -> tuple[int, ...]:
        if texts not in found:
            dims = [parse(text) for text in texts]
            blocks: Callable[[int], tuple[int, ...]] = formula(dims, known)
            moving = any(symbols_of(substitute(dim, known)) for dim in dims)
            each = [blocks(length) for length in (lengths if moving else lengths[:1])]
            found[texts] = tuple(map(max, *each)) if len(each) > 1 else each[0]
        return found[texts]

    launches = []
    for launch in program.launches:
        facts = launch.kernel.facts
        if facts.get("moving"):
            x, y, z = launch_of(tuple(facts["launch"]))
            launch = replace(launch, kernel=replace(launch.kernel, launch=(x, y, z)))
        launches.append(launch)
    return replace(program, launches=tuple(launches))


def _memory(state: State) -> DeviceMemory:
    memory = state.memory
    assert isinstance(memory, DeviceMemory)
    return memory


__all__ = ["DeviceSteps"]
