"""Ranks that are processes of one machine: they meet by bytes on sockets and exchange data in
memory that they share. No names, so that nothing is left behind whoever is killed."""

from __future__ import annotations

import mmap
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fuser.errors import DeviceError
from fuser.runtime.collectives import Array

SLOT = 1 << 20
"""Bytes that a rank shows the others at once."""


def shared_file(size: int) -> int:
    """A descriptor of memory that children inherit, of `size` bytes."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("fuser ranks")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, max(size, 1))
    return descriptor


def mapped(descriptor: int, size: int) -> np.ndarray:
    """The bytes of such memory, which are those of everyone who maps it."""
    return np.frombuffer(mmap.mmap(descriptor, max(size, 1)), np.uint8)


class ProcessRank:
    """A rank that is this process. peers: a socket to each other rank; slots: SLOT bytes a rank,
    in memory that all share."""

    def __init__(self, rank: int, peers: Mapping[int, socket.socket], slots: np.ndarray) -> None:
        self.rank, self.ranks = rank, len(peers) + 1
        self._peers = dict(peers)
        self._slots = slots.reshape(self.ranks, -1)

    def pieces(self, flat: Array, group: Sequence[int]) -> Iterator[tuple[int, list[Array]]]:
        step = max(1, self._slots.shape[1] // flat.itemsize)
        for start in range(0, flat.size, step):
            piece = flat[start : start + step]
            used = piece.size * flat.itemsize
            self._slots[self.rank, :used] = piece.view(np.uint8)
            self._meet(group)
            yield start, [self._slots[member, :used].view(flat.dtype) for member in group]
            self._meet(group)

    def _meet(self, group: Sequence[int]) -> None:
        """Wait until all of the group are here. The kernel orders what they wrote before it."""
        others = [member for member in group if member != self.rank]
        try:
            for member in others:
                self._peers[member].sendall(b".")
            for member in others:
                if not self._peers[member].recv(1):
                    raise DeviceError(f"rank {member} is gone", where=f"rank {self.rank}")
        except OSError as error:
            raise DeviceError("another rank is gone", where=f"rank {self.rank}") from error
