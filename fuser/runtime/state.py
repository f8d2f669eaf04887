"""What a plan keeps between runs: one state a sequence of runs, as many as wanted a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fuser.dtypes import DType
from fuser.errors import FeedError, InvalidModelError, OutOfMemoryError, UsageError
from fuser.forks import new_lock
from fuser.runtime.memory import aligned_array


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

    def first(self, array: np.ndarray, length: int) -> np.ndarray:
        """The rows that are there: a view."""
        if self.axis is None:
            return array
        return array[(slice(None),) * self.axis + (slice(0, length),)]


class Runner(Protocol):
    """What runs with a state: `fuser.pipeline.stateful.StatefulPlan`."""

    def step(self, state: State, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]: ...


class State:
    """Tensors that a plan keeps from run to run, and how many rows of those that grow are there.

        state = plan.state(batch=1, capacity=2048)
        logits = state.run({"input_ids": prompt})["logits"]    # writes the prompt's rows
        logits = state.run({"input_ids": token})["logits"]     # writes one more, in place

    `plan.explain` says of what is kept whether runs write it in place. States do not meet: each
    may run in a thread of its own; runs of one state follow one another.
    """

    def __init__(
        self, plan: Runner, slots: Sequence[Slot], dims: Mapping[str, int], capacity: int
    ) -> None:
        self.plan, self.slots, self.dims, self.capacity = plan, tuple(slots), dict(dims), capacity
        self.length = 0
        """Rows that are there, of `capacity`: the position at which the next run writes."""
        self.memo: tuple[Any, int] | None = None
        """What the plan keeps of the last run's sizes."""
        self.lock = new_lock()
        try:
            self.arrays = {
                slot.input: aligned_array(slot.shape, slot.dtype.numpy) for slot in slots
            }
        except MemoryError as error:
            raise OutOfMemoryError(
                f"a state of {sum(slot.bytes for slot in slots):,} bytes", where="plan.state"
            ) from error
        self.reset()

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

    def reset(self) -> None:
        """Back to length 0; what does not grow becomes zeros."""
        with self.lock:
            self.length = 0
            for slot in self.slots:
                if slot.axis is None:
                    self.arrays[slot.input] = np.zeros_like(self.arrays[slot.input])

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
            return {s.input: s.first(self.arrays[s.input], self.length).copy() for s in self.slots}

    def save(self, path: Path | str) -> None:
        """Write what is kept to an .npz file. Raises UsageError."""
        arrays = {f"kept/{name}": _bits(array) for name, array in self.kept().items()}
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
            rooms = {s.input: s.first(self.arrays[s.input], length) for s in self.slots}
            for slot in self.slots:
                room, array = _bits(rooms[slot.input]), found[slot.input]
                if room.shape != array.shape or room.dtype != array.dtype:
                    raise FeedError(
                        f"{slot.input!r} is {array.dtype}{list(array.shape)} in the file, "
                        f"here {room.dtype}{list(room.shape)}"
                    )
            for name, room in rooms.items():
                _bits(room)[...] = found[name]
            self.length = length


def _bits(array: np.ndarray) -> np.ndarray:
    """Floats that NumPy has no file form for as whole numbers of their size."""
    return array if array.dtype.kind in "biuf" else array.view(f"u{array.dtype.itemsize}")
