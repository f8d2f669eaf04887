"""The calls that reach NCCL, on a stand-in for the library whose ranks are threads."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fuser.backend.module import CompiledKernel
from fuser.base.target import SM_90A
from fuser.dtypes import BY_NAME
from fuser.errors import DeviceError, UsageError
from fuser.runtime.collectives import ThreadRank, Threads, perform
from fuser.runtime.cuda import CudaExecutor
from fuser.runtime.nccl import Nccl, NcclRank, UniqueId
from fuser.runtime.program import BufferRef, Exchange, Launch, Program

TYPES = {0: "i8", 1: "u8", 2: "i32", 3: "u32", 4: "i64", 5: "u64", 6: "f16", 7: "f32", 8: "f64",
         9: "bf16"}  # fmt: skip
FOLDS = {0: "sum", 1: "prod", 2: "max", 3: "min"}
WHOLE = 100


class Library:
    """NCCL's functions on memory of the host. A communicator is WHOLE, or the color of a group."""

    def __init__(self, comm: ThreadRank, version: int = 22809) -> None:
        self.comm, self.version, self.calls = comm, version, list[tuple[Any, ...]]()
        self.groups: dict[int, tuple[int, ...]] = {WHOLE: tuple(range(comm.ranks))}
        for name in dir(self):
            if name.startswith("do_"):
                setattr(self, f"nccl{name[3:]}", _Function(getattr(self, name)))

    def do_GetVersion(self, found: Any) -> int:
        found._obj.value = self.version
        return 0

    def do_GetErrorString(self, status: int) -> bytes:
        return b"invalid usage"

    def do_GetUniqueId(self, token: Any) -> int:
        return 0

    def do_CommInitRank(self, made: Any, ranks: int, token: UniqueId, rank: int) -> int:
        made._obj.value = WHOLE
        return 0 if (ranks, rank) == (self.comm.ranks, self.comm.rank) else 5

    def do_CommSplit(self, whole: Any, color: int, key: int, made: Any, config: Any) -> int:
        everyone: list[tuple[int, int, int]] = []
        mine = np.array([color, key, self.comm.rank])
        for _, pieces in self.comm.pieces(mine, self.groups[WHOLE]):
            everyone = [(int(c), int(k), int(r)) for c, k, r in pieces]
        self.groups[color + 1] = tuple(r for c, _, r in sorted(everyone) if c == color)
        made._obj.value = color + 1
        return 0

    def do_CommDestroy(self, comm: Any) -> int:
        self.calls.append(("destroy", comm.value))
        return 0

    def _meet(
        self, kind: str, sizes: tuple[int, int], dtype: int, comm: Any, source: int, target: int,
        **attrs: Any,
    ) -> int:  # fmt: skip
        numbers = BY_NAME[TYPES[dtype]].numpy
        here, there = (
            np.frombuffer((ctypes.c_char * (size * numbers.itemsize)).from_address(at), numbers)
            for size, at in zip(sizes, (source, target), strict=True)
        )
        perform(self.comm, kind, {"groups": (self.groups[comm.value],), **attrs}, here, there)
        return 0

    def do_AllReduce(self, s: int, t: int, n: int, d: int, op: int, comm: Any, stream: int) -> int:
        self.calls.append(("stream", stream))
        return self._meet("all_reduce", (n, n), d, comm, s, t, fold=FOLDS[op])

    def do_AllGather(self, s: int, t: int, n: int, d: int, comm: Any, stream: int) -> int:
        return self._meet("all_gather", (n, n * len(self.groups[comm.value])), d, comm, s, t)

    def do_ReduceScatter(
        self, s: int, t: int, n: int, d: int, op: int, comm: Any, stream: int
    ) -> int:
        sizes = (n * len(self.groups[comm.value]), n)
        return self._meet("reduce_scatter", sizes, d, comm, s, t, fold=FOLDS[op])

    def do_Broadcast(self, s: int, t: int, n: int, d: int, root: int, comm: Any, st: int) -> int:
        rank = self.groups[comm.value][root]
        return self._meet("rank_broadcast", (n, n), d, comm, s, t, root=rank)


class _Function:
    """Takes argtypes and restype, as functions of ctypes do, and minds the number of arguments."""

    argtypes: tuple[Any, ...] = ()

    def __init__(self, work: Any) -> None:
        self.work = work

    def __call__(self, *arguments: Any) -> Any:
        assert len(arguments) == len(self.argtypes)
        return self.work(*arguments)


EXCHANGES = [
    Exchange("all_reduce", "f32", ((0, 1, 2, 3),), 12, 12, "sum"),
    Exchange("all_reduce", "i64", ((0, 2), (1, 3)), 12, 12, "max"),
    Exchange("reduce_scatter", "f16", ((3, 1), (2, 0)), 12, 6, "sum"),
    Exchange("all_gather", "bf16", ((0, 1, 2, 3),), 12, 48),
    Exchange("all_gather", "i16", ((0, 2), (1, 3)), 12, 24),
    Exchange("rank_broadcast", "bool", ((0, 1, 2, 3),), 12, 12, root=2),
]


def test_collectives_are_what_they_are_on_the_cpu() -> None:
    lock = threading.Lock()
    ranks = Threads(4)
    destroyed: list[int] = []

    def work(comm: ThreadRank) -> None:
        library = Library(comm)
        rank = NcclRank(comm.rank, comm.ranks, bytes(128), 0, Nccl(library))
        rank.prepare(EXCHANGES)
        rng = np.random.default_rng(comm.rank)
        for exchange in EXCHANGES:
            dtype = BY_NAME[exchange.dtype].numpy
            source = rng.integers(0, 2, exchange.size).astype(dtype)
            target, expected = (np.zeros(exchange.result, dtype) for _ in range(2))
            rank.enqueue(exchange, source.ctypes.data, target.ctypes.data, 77)
            attrs = {"groups": exchange.groups, "fold": exchange.fold, "root": exchange.root}
            perform(comm, exchange.kind, attrs, source, expected)
            np.testing.assert_array_equal(target, expected)
        assert ("stream", 77) in library.calls
        rank.close()
        with lock:
            destroyed.append(sum(call[0] == "destroy" for call in library.calls))

    ranks.run(work)
    assert destroyed == [3] * 4  # all four, and two ways of two groups


def test_a_plan_puts_collectives_on_its_stream() -> None:
    """What an executor captures, on a plan for a GPU that is not here."""
    exchange = EXCHANGES[0]
    facts = {"collective": asdict(exchange) | {"groups": [[0, 1, 2, 3]]}}
    kernel = CompiledKernel("collective_0", "cuda", exchange.kind, b"", (1,), facts=facts)
    launch = Launch(kernel, (BufferRef("input", 0), BufferRef("output", 0)))
    executor = CudaExecutor.__new__(CudaExecutor)
    executor.program = Program(SM_90A, (), (), (launch,), name="rank")
    executor.ranks = None
    addresses = SimpleNamespace(address=lambda ref: {"input": 64, "output": 128}[ref.space])
    with pytest.raises(UsageError, match="rank is one rank's part"):
        executor.prepare(addresses)  # type: ignore[arg-type]
    calls: list[tuple[Any, ...]] = []
    executor.ranks = SimpleNamespace(enqueue=lambda *given: calls.append(given))  # type: ignore[assignment]
    (go,) = executor.prepare(addresses)  # type: ignore[arg-type]
    go(9, True)
    assert calls == [(exchange, 64, 128, 9)]


def test_errors_have_nccls_words() -> None:
    comm = Threads(2).rank(0)
    with pytest.raises(DeviceError, match="too old"):
        Nccl(Library(comm, version=21205))
    with pytest.raises(DeviceError, match="ncclCommInitRank failed: invalid usage"):
        NcclRank(1, 2, bytes(128), 0, Nccl(Library(comm)))
    library = Library(comm)
    del library.ncclCommSplit  # type: ignore[attr-defined]
    with pytest.raises(DeviceError, match="no ncclCommSplit"):
        Nccl(library)
    rank = NcclRank(0, 2, bytes(128), 0, Nccl(Library(comm)))
    with pytest.raises(DeviceError, match="no all_reduce of i16"):
        rank.prepare([Exchange("all_reduce", "i16", ((0, 1),), 4, 4, "sum")])
