"""What a plan keeps between runs: one state a sequence of runs, as many as wanted a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fuser.base.forks import new_lock
from fuser.dtypes import DType
from fuser.errors import FeedError, InvalidModelError, OutOfMemoryError, UsageError
from fuser.graph.units import byte_size
from fuser.runtime.memory import aligned_array

if TYPE_CHECKING:
    from fuser.runtime.device_tensors import DeviceArray


@dataclass(frozen=True)
class Slot:
    """One kept tensor: an input and the output that is its value in the next run.

    shape: its dims, the batch's among them. axis: the one that grows, of `capacity` places; None
    where a run replaces it by a tensor of the same shape.
    """

    input: str
    output: str
    dtype: DType
    shape: tuple[int, ...]
    axis: int | None = None

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.bytes

    def rows(self, length: int) -> tuple[int, ...]:
        """The shape of the rows that are there."""
        if self.axis is None:
            return self.shape
        return (*self.shape[: self.axis], length, *self.shape[self.axis + 1 :])

    def first(self, array: np.ndarray, length: int) -> np.ndarray:
        """The rows that are there: a view."""
        if self.axis is None:
            return array
        return array[(slice(None),) * self.axis + (slice(0, length),)]


class Runner(Protocol):
    """What runs with a state: `fuser.pipeline.stateful.StatefulPlan`."""

    def step(self, state: State, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]: ...
    def step_on_device(self, state: State, feeds: Mapping[str, Any]) -> dict[str, DeviceArray]: ...


class Memory(Protocol):
    """The kept tensors of a state, by the name of the input: `HostMemory`, or
    `fuser.runtime.device_state.DeviceMemory`."""

    @property
    def arrays(self) -> dict[str, Any]: ...

    def zero(self, slot: Slot) -> None:
        """Make all of a tensor zeros."""

    def read(self, slot: Slot, length: int) -> np.ndarray:
        """A copy of the first rows."""

    def write(self, slot: Slot, length: int, array: np.ndarray) -> None:
        """Make these the first rows."""


class HostMemory:
    """Arrays. Raises OutOfMemoryError."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        try:
            self.arrays = {
                slot.input: aligned_array(slot.shape, slot.dtype.numpy) for slot in slots
            }
        except MemoryError as error:
            raise OutOfMemoryError(
                f"a state of {byte_size(sum(slot.bytes for slot in slots))}", where="plan.state"
            ) from error

    def zero(self, slot: Slot) -> None:
        # In place: the memory is aligned as kernels that write it expect.
        self.arrays[slot.input][...] = 0

    def read(self, slot: Slot, length: int) -> np.ndarray:
        return slot.first(self.arrays[slot.input], length).copy()

    def write(self, slot: Slot, length: int, array: np.ndarray) -> None:
        slot.first(self.arrays[slot.input], length)[...] = array


class State:
    """Tensors that a plan keeps from run to run, and how many rows of those that grow are there.

        state = plan.state(batch=1, capacity=2048)
        logits = state.run({"input_ids": prompt})["logits"]    # writes the prompt's rows
        logits = state.run({"input_ids": token})["logits"]     # writes one more, in place

    `plan.explain` says of what is kept whether runs write it in place. States do not meet: each
    may run in a thread of its own; runs of one state follow one another.
    """

    def __init__(
        self, plan: Runner, slots: Sequence[Slot], dims: Mapping[str, int], capacity: int,
        memory: Memory | None = None,
    ) -> None:  # fmt: skip
        self.plan, self.slots, self.dims, self.capacity = plan, tuple(slots), dict(dims), capacity
        self.length = 0
        """Rows that are there, of `capacity`: the position at which the next run writes."""
        self.memo: tuple[Any, int] | None = None
        """What the plan keeps of the last run's sizes."""
        self.lock = new_lock()
        self.memory: Memory = HostMemory(slots) if memory is None else memory
        self.reset()

    @property
    def arrays(self) -> dict[str, Any]:
        """The memory of what is kept, by the name of the input, with room for `capacity` rows:
        NumPy arrays, or `DeviceArray`s of a plan on a GPU."""
        return self.memory.arrays

    @property
    def bytes(self) -> int:
        """The memory it takes, whatever its length."""
        return sum(slot.bytes for slot in self.slots)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The outputs by name, those that are kept aside; what they hold is kept for the next run.

        feeds: the inputs by name, those that are kept aside. Raises FeedError, also for more rows
        than there is room for, and what compiling raises; the state is then as it was.
        """
        with self.lock:
            return self.plan.step(self, feeds)

    def run_device(self, feeds: Mapping[str, Any]) -> dict[str, DeviceArray]:
        """`run` of a plan on a GPU, whose results stay there; it returns before they are computed.

        feeds may be tensors of the GPU, too: results of the run before, of this or another state,
        or of other libraries. The results are memory of the state: the run after the next one
        overwrites them. `numpy()` of one waits for it and gives a copy. Raises UsageError for a
        plan on a CPU.
        """
        with self.lock:
            return self.plan.step_on_device(self, feeds)

    def reset(self) -> None:
        """Back to length 0; what does not grow becomes zeros."""
        with self.lock:
            self.length = 0
            for slot in self.slots:
                if slot.axis is None:
                    self.memory.zero(slot)

    def truncate(self, length: int) -> None:
        """Forget the rows from `length` on: the next run writes there. Raises UsageError for more
        rows than there are, and where something is kept that does not grow."""
        with self.lock:
            if not 0 <= length <= self.length:
                raise UsageError(f"a state of length {self.length} has no first {length} rows")
            if any(slot.axis is None for slot in self.slots):
                raise UsageError("not all that this state keeps has rows to forget")
            self.length = length

    def kept(self) -> dict[str, np.ndarray]:
        """What is kept, by the name of the input: copies of the rows that are there."""
        with self.lock:
            return {slot.input: self.memory.read(slot, self.length) for slot in self.slots}

    def save(self, path: Path | str) -> None:
        """Write what is kept to an .npz file. Raises UsageError."""
        kept = self.kept()
        arrays = {f"kept/{s.input}": kept[s.input].view(_stored(s)) for s in self.slots}
        try:
            with Path(path).open("wb") as file:
                np.savez(file, length=np.int64(self.length), **arrays)  # type: ignore[arg-type]
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error}") from error

    def load(self, path: Path | str) -> None:
        """Go on from what `save` wrote, of a state of the same plan and batch, whatever its
        capacity. Raises UsageError, InvalidModelError, FeedError for what does not fit."""
        try:
            with np.load(path, allow_pickle=False) as file:
                length = int(file["length"])
                found = {slot.input: file[f"kept/{slot.input}"] for slot in self.slots}
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error}") from error
        except (KeyError, ValueError) as error:
            raise InvalidModelError("this is no state of this plan", where=str(path)) from error
        if not 0 <= length <= self.capacity:
            raise FeedError(f"the state has {length} rows, this one has room for {self.capacity}")
        with self.lock:
            for slot in self.slots:
                array, shape, dtype = found[slot.input], slot.rows(length), _stored(slot)
                if array.shape != shape or array.dtype != dtype:
                    raise FeedError(
                        f"{slot.input!r} is {array.dtype}{list(array.shape)} in the file, "
                        f"here {dtype}{list(shape)}"
                    )
            for slot in self.slots:
                self.memory.write(slot, length, found[slot.input].view(slot.dtype.numpy))
            self.length = length


def _stored(slot: Slot) -> np.dtype:
    """Floats that NumPy has no file form for are whole numbers of their size in files."""
    dtype = slot.dtype.numpy
    return dtype if dtype.kind in "biuf" else np.dtype(f"u{dtype.itemsize}")
