"""Collectives of GPUs by NVIDIA's NCCL, one process a GPU. The library is loaded where it is: from
the package nvidia-nccl-cu13 (or cu12, as PyTorch brings it), or the system's.

Calls only put work on a stream, so a plan's collectives are captured in its CUDA graph; the launch
of such a graph is then an operation of all ranks. Source: the API of NCCL 2.18 and later (nccl.h).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fuser.dtypes import BY_NAME
from fuser.errors import DeviceError
from fuser.runtime import driver
from fuser.runtime.program import Exchange

LEAST = 21800
"""The first version with ncclCommSplit."""
_TYPES = {
    "i8": 0, "u8": 1, "bool": 1, "i32": 2, "u32": 3, "i64": 4, "u64": 5, "f16": 6, "f32": 7,
    "f64": 8, "bf16": 9,
}  # fmt: skip
_FOLDS = {"sum": 0, "prod": 1, "max": 2, "min": 3}
_BYTES = _TYPES["u8"]

_pointer, _int, _size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t


class UniqueId(ctypes.Structure):
    """What the ranks of a communicator must share before they meet: ncclUniqueId."""

    _fields_ = [("internal", ctypes.c_byte * 128)]


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ncclGetVersion": (ctypes.POINTER(_int),),
    "ncclGetUniqueId": (ctypes.POINTER(UniqueId),),
    "ncclCommInitRank": (ctypes.POINTER(_pointer), _int, UniqueId, _int),
    "ncclCommSplit": (_pointer, _int, _int, ctypes.POINTER(_pointer), _pointer),
    "ncclCommDestroy": (_pointer,),
    "ncclAllReduce": (_pointer, _pointer, _size, _int, _int, _pointer, _pointer),
    "ncclAllGather": (_pointer, _pointer, _size, _int, _pointer, _pointer),
    "ncclReduceScatter": (_pointer, _pointer, _size, _int, _int, _pointer, _pointer),
    "ncclBroadcast": (_pointer, _pointer, _size, _int, _int, _pointer, _pointer),
}


class Nccl:
    """The library with checked calls. library: what has its functions."""

    def __init__(self, library: Any) -> None:
        self._library = library
        for name, arguments in _SIGNATURES.items():
            try:
                function = getattr(library, name)
            except AttributeError as error:
                raise DeviceError(f"this NCCL has no {name}", hint=_HINT) from error
            function.argtypes, function.restype = arguments, _int
        self._text = library.ncclGetErrorString
        self._text.argtypes, self._text.restype = (_int,), ctypes.c_char_p
        found = _int()
        self("ncclGetVersion", ctypes.byref(found))
        self.version = found.value
        if self.version < LEAST:
            raise DeviceError(f"NCCL {self.version} is too old", hint=f"{LEAST} or later is wanted")

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call a function. Raises DeviceError with NCCL's words."""
        status = getattr(self._library, name)(*arguments)
        if status:
            text = self._text(status)
            words = text.decode(errors="replace") if text else f"error {status}"
            raise DeviceError(f"{name} failed: {words}", hint="NCCL_DEBUG=WARN says more")


_HINT = 'pip install "fuser-compiler[nccl]" brings one'


@functools.cache
def load() -> Nccl:
    """NCCL of this machine. Raises DeviceError where there is none."""
    places = ["libnccl.so.2"]
    try:
        found = importlib.util.find_spec("nvidia.nccl")
    except (ImportError, ValueError):
        found = None
    for folder in (found.submodule_search_locations or ()) if found else ():
        places.insert(0, str(Path(folder) / "lib" / "libnccl.so.2"))
    for place in places:
        try:
            return Nccl(ctypes.CDLL(place))
        except OSError:
            continue
    raise DeviceError("NCCL is not installed, over which GPUs exchange data", hint=_HINT)


def unique_id() -> bytes:
    """A token for one communicator: one rank asks for it and gives it to the others."""
    token = UniqueId()
    load()("ncclGetUniqueId", ctypes.byref(token))
    return bytes(token)


class NcclRank:
    """A rank on a GPU: `Plan.join` takes it. Making one waits for all the others.

    token: the `unique_id` of all; ordinal: which GPU, no other rank's. Raises DeviceError.
    """

    def __init__(
        self, rank: int, ranks: int, token: bytes, ordinal: int, nccl: Nccl | None = None
    ) -> None:
        self.rank, self.ranks, self.ordinal = rank, ranks, ordinal
        self._nccl = nccl or load()
        self._made: dict[tuple[tuple[int, ...], ...], Any] = {}
        self._whole = _pointer()
        shared = UniqueId.from_buffer_copy(token)
        with driver.current(ordinal) if nccl is None else contextlib.nullcontext():
            self._nccl("ncclCommInitRank", ctypes.byref(self._whole), ranks, shared, rank)

    def prepare(self, exchanges: Sequence[Exchange]) -> None:
        """Make the communicators of the groups that collectives name, in the order in which all
        ranks meet them. Not while a stream is captured."""
        for exchange in exchanges:
            _check(exchange)
            groups = exchange.groups
            if groups in self._made:
                continue
            color, key = next(
                (number, group.index(self.rank))
                for number, group in enumerate(groups) if self.rank in group
            )  # fmt: skip
            if groups == (tuple(range(self.ranks)),):
                self._made[groups] = self._whole
                continue
            made = _pointer()
            self._nccl("ncclCommSplit", self._whole, color, key, ctypes.byref(made), None)
            self._made[groups] = made

    def enqueue(self, exchange: Exchange, source: int, target: int, stream: int) -> None:
        """Put a collective on a stream, from one address of the GPU to another."""
        comm, size = self._made[exchange.groups], exchange.size
        kind, fold = _TYPES.get(exchange.dtype, _BYTES), _FOLDS.get(exchange.fold, 0)
        if exchange.kind in ("all_gather", "rank_broadcast"):  # bytes are all the same
            kind, size = _BYTES, size * BY_NAME[exchange.dtype].bytes
        match exchange.kind:
            case "all_reduce":
                self._nccl("ncclAllReduce", source, target, size, kind, fold, comm, stream)
            case "all_gather":
                self._nccl("ncclAllGather", source, target, size, kind, comm, stream)
            case "reduce_scatter":
                count = exchange.result
                self._nccl("ncclReduceScatter", source, target, count, kind, fold, comm, stream)
            case "rank_broadcast":
                group = next(group for group in exchange.groups if self.rank in group)
                root = group.index(exchange.root)
                self._nccl("ncclBroadcast", source, target, size, kind, root, comm, stream)

    def close(self) -> None:
        """End the communicators; to be called by all ranks."""
        made = [comm for comm in self._made.values() if comm is not self._whole]
        for comm in (*made, self._whole):
            self._nccl("ncclCommDestroy", comm)
        self._made.clear()


def _check(exchange: Exchange) -> None:
    if exchange.kind in ("all_reduce", "reduce_scatter") and exchange.dtype not in _TYPES:
        raise DeviceError(f"NCCL has no {exchange.kind} of {exchange.dtype}")
