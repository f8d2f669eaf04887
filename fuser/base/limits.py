"""Limits on what a model may ask of the machine: time, memory, nodes.

    with limited(Limits(seconds=5)):
        ...                       # Graph.add, the passes and the compiler call check()

A limit holds for the thread that set it. Without one, DEFAULT counts, with no end in time.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from fuser.errors import CompileTimeoutError, LimitError, OutOfMemoryError

LARGEST = 1 << 48
"""Elements that no tensor has, not even one that is never stored: going through them takes days."""

MAX_AXES = 64
"""Axes of a tensor: as many as an array of NumPy has."""
SMALL_STRUCTURE = 4 << 20
"""Bytes of messages and nodes that no limit on bytes is about."""
NODE_BYTES = 2000
"""Memory of a node of a graph, with what a compile makes of it."""


@dataclass(frozen=True)
class Limits:
    """seconds: of reading and compiling a model; 0 for no end. bytes: of the inputs, outputs,
    constants and intermediate values of a plan together, and each by itself of the tables that
    operators make on the host, what a loop on the host collects, and the nodes of a large model; 0
    for the memory of this machine. nodes:
    of a graph, with functions, loops and branches written out. kernel_seconds: of processor time
    for one kernel, once to write it and once to compile it; a region that takes longer is split. 0
    for no end. data_folders: where links in the folder of an ONNX model may lead, for its external
    data."""

    seconds: float = 1800.0
    bytes: int = 0
    nodes: int = 100_000
    kernel_seconds: float = 10.0
    data_folders: tuple[Path, ...] = ()

    @property
    def memory(self) -> int:
        """The limit on bytes as a number."""
        return self.bytes or _machine_memory()


DEFAULT = Limits()
YOUNG = 20_000
"""New objects between two looks for dead cycles while something compiles: some megabytes."""


@dataclass(frozen=True)
class _State:
    limits: Limits
    deadline: float


_FOREVER = float("inf")
_NONE = _State(DEFAULT, _FOREVER)
_state: ContextVar[_State] = ContextVar("limits", default=_NONE)


@dataclass(frozen=True)
class _Ends:
    """When the work on a kernel has had its time. The clock is asked first: a thread takes no more
    processor time than passes, and asking for that is a system call."""

    clock: float
    processor: float


_NEVER = _Ends(_FOREVER, _FOREVER)
_kernel_end: ContextVar[_Ends] = ContextVar("kernel", default=_NEVER)


@contextmanager
def limited(limits: Limits) -> Iterator[None]:
    """Hold the limits within the block; within an outer block its deadline stays."""
    deadline = time.monotonic() + limits.seconds if limits.seconds else _FOREVER
    token = _state.set(_State(limits, min(deadline, _state.get().deadline)))
    try:
        yield
    finally:
        _state.reset(token)


def are_set() -> bool:
    """Whether a block of `limited` is around this call."""
    return _state.get() is not _NONE


def current() -> Limits:
    """The limits that hold here."""
    return _state.get().limits


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Let Python look for cycles of dead objects once in YOUNG new ones within the block, if it
    would oftener. What a compile makes mostly lives as long as the compile does, and to look at it
    again and again takes a quarter of the time of a large one. Where blocks of several threads
    overlap, the first that began ends it for all."""
    found = gc.get_threshold()
    if not 0 < found[0] < YOUNG:  # somebody has chosen, or another block is around this one
        yield
        return
    gc.set_threshold(YOUNG, *found[1:])
    try:
        yield
    finally:
        gc.set_threshold(*found)


@contextmanager
def kernel_time() -> Iterator[None]:
    """Let the work in the block, which is that on one kernel, take `kernel_seconds` at most: then
    check_time raises CompileTimeoutError."""
    seconds = current().kernel_seconds
    ends = _NEVER
    if seconds:
        ends = _Ends(time.monotonic() + seconds, time.thread_time() + seconds)
    token = _kernel_end.set(ends)
    try:
        yield
    finally:
        _kernel_end.reset(token)


def check_time() -> None:
    """Raise LimitError once the time is over, CompileTimeoutError once that of a kernel is. Cheap
    enough for every step of a walk."""
    ends, state = _kernel_end.get(), _state.get()
    if ends is _NEVER and state is _NONE:
        return
    now = time.monotonic()
    if now > ends.clock and time.thread_time() > ends.processor:
        raise CompileTimeoutError(
            f"its kernel took more than {current().kernel_seconds:g} s to compile",
            hint="allow more with --max-kernel-seconds or FUSER_MAX_KERNEL_SECONDS",
        )
    if now > state.deadline:
        raise LimitError(
            f"reading and compiling the model takes longer than {state.limits.seconds:g} s",
            hint="allow more with --max-seconds or FUSER_MAX_SECONDS",
        )


def check_nodes(count: int, what: str = "the graph") -> None:
    """Raise LimitError if a graph has too many nodes, or the time is over, which is looked at once
    in a while."""
    if count > _state.get().limits.nodes:
        raise LimitError(
            f"{what} has more than {current().nodes} nodes, with functions and loops written out",
            hint="allow more with --max-nodes or FUSER_MAX_NODES",
        )
    if count % 16 == 0:
        check_time()


def check_bytes(count: int, what: str) -> None:
    """Raise OutOfMemoryError if `what` takes more bytes than allowed."""
    if count > current().memory:
        raise OutOfMemoryError(
            f"{what} takes {count} bytes of memory, more than {current().memory}",
            hint="allow more with --max-bytes or FUSER_MAX_BYTES",
        )


def check_structure_bytes(count: int, what: str) -> None:
    """check_bytes of what is read and built beside tensors: messages, nodes, names. What every
    model takes is not counted."""
    if count > SMALL_STRUCTURE:
        check_bytes(count, what)


def check_table(what: str, *sizes: int, item: int = 8, arrays: int = 1) -> None:
    """Raise OutOfMemoryError if a table on the host takes more bytes than allowed: to be called by
    what makes arrays of sizes that a model gives, before it does. sizes: its shape; one of less
    than 1 counts as 1. item: bytes of an element. arrays: how many of that shape there are at once,
    those in between included."""
    count = item * arrays
    for size in sizes:
        count *= max(int(size), 1)
    if count > 1 << 16:  # most tables are small
        check_bytes(count, what)


def _machine_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 1 << 36
