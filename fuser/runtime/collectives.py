"""What collectives compute, in NumPy, over whatever brings ranks together.

A `Communicator` gives every rank of a group the arrays of all of them, piece by piece. Sums are
taken in the order of the group, float16 and bfloat16 in float32: all ranks get the same bits, and
every run gets them again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from fuser.errors import DeviceError

Array: TypeAlias = "np.ndarray[Any, Any]"
_FOLDS: dict[str, Callable[..., Any]] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
}  # fmt: skip


class Communicator(Protocol):
    """One rank among others."""

    @property
    def rank(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    def pieces(self, flat: Array, group: Sequence[int]) -> Iterator[tuple[int, list[Array]]]:
        """(start, the elements from there on of every rank of the group, in its order), until all
        of `flat` was exchanged. Pieces are valid until the next one is asked for. Raises
        DeviceError where a rank is gone."""


def perform(
    comm: Communicator, kind: str, attrs: Mapping[str, Any], source: Array, target: Array
) -> None:
    """Run a collective: from this rank's operand to its result. Both are C-contiguous.

    kind: a primitive of fuser/graph/ops/collective.py; attrs: its attributes. Raises DeviceError
    where another rank is gone.
    """
    group = group_of(attrs["groups"], comm.rank)
    own, members = group.index(comm.rank), len(group)
    flat, result = source.reshape(-1), target.reshape(-1)
    parts = result.reshape(members, -1) if kind == "all_gather" else result
    offset = own * result.size if kind == "reduce_scatter" else 0
    for start, pieces in comm.pieces(flat, group):
        stop = start + pieces[0].size
        if kind == "all_gather":
            for member, piece in enumerate(pieces):
                parts[member, start:stop] = piece
        elif kind == "rank_broadcast":
            result[start:stop] = pieces[group.index(attrs["root"])]
        else:
            low, high = max(start, offset), min(stop, offset + result.size)
            if low < high:
                taken = [piece[low - start : high - start] for piece in pieces]
                result[low - offset : high - offset] = _folded(taken, attrs["fold"])


def _folded(pieces: Sequence[Array], how: str) -> Array:
    half = pieces[0].dtype.itemsize == 2 and pieces[0].dtype.kind not in "iu"
    total = pieces[0].astype(np.float32) if half else pieces[0].copy()
    with np.errstate(all="ignore"):
        for piece in pieces[1:]:
            _FOLDS[how](total, piece, out=total)
        return total.astype(pieces[0].dtype, copy=False)


def group_of(groups: Sequence[Sequence[int]], rank: int) -> tuple[int, ...]:
    """The group that a rank is in. Raises DeviceError where it is in none."""
    for group in groups:
        if rank in group:
            return tuple(group)
    raise DeviceError(f"rank {rank} is in none of the groups {groups}")


class Threads:
    """Ranks that are threads of this process: `Threads(3).rank(0)` is the first."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.arrays: list[Array | None] = [None] * ranks
        self._barriers: dict[tuple[int, ...], threading.Barrier] = {}
        self._lock = threading.Lock()

    def rank(self, rank: int) -> ThreadRank:
        return ThreadRank(self, rank)

    def wait(self, group: Sequence[int]) -> None:
        with self._lock:
            barrier = self._barriers.setdefault(tuple(group), threading.Barrier(len(group)))
        try:
            barrier.wait()
        except threading.BrokenBarrierError as error:
            raise DeviceError("another rank failed") from error

    def abort(self) -> None:
        """What waits for a rank that failed fails, too; so does everything later."""
        with self._lock:
            for barrier in self._barriers.values():
                barrier.abort()

    def run(self, work: Callable[[ThreadRank], Any]) -> list[Any]:
        """`work` for every rank at once, and what it gives. Raises what a rank raised first."""
        results: list[Any] = [None] * self.ranks
        failures: list[BaseException] = []

        def one(rank: int) -> None:
            try:
                results[rank] = work(self.rank(rank))
            except BaseException as error:
                failures.append(error)
                self.abort()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return results


class ThreadRank:
    """A rank of `Threads`."""

    def __init__(self, group: Threads, rank: int) -> None:
        self._group, self.rank = group, rank

    @property
    def ranks(self) -> int:
        return self._group.ranks

    def pieces(self, flat: Array, group: Sequence[int]) -> Iterator[tuple[int, list[Array]]]:
        held = self._group.arrays
        held[self.rank] = flat
        self._group.wait(group)
        found = [held[member] for member in group]
        yield 0, [array for array in found if array is not None]
        self._group.wait(group)
