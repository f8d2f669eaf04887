"""The file that plans are saved in: a manifest, code, and arrays that are mapped, not read.

      0   8 bytes   FUSER, the kind (P: plan, D: for many sizes, T: of PyTorch), the major version
                    of the format, a newline
      8   u32       its minor version
     12   u32       0
     16   u64       bytes of the manifest
     24   u64       bytes of the code
     32   32 bytes  SHA-256 of the 32 bytes above, the manifest and the code
     64   the manifest: JSON, blanks up to a multiple of 64
          the code: blobs at multiples of 64
          from a multiple of 4096 to the end, which is one: arrays at multiples of 64

Numbers are little-endian; what lies between parts is 0. The manifest has a check of each array: the
SHA-256 of the sums of its blocks of 4096 bytes, as words of 64 bits, which is as fast as memory. A
reader takes files of its own and of older minor versions.

The checks find damage, not malice; every count and reference is checked all the same. Nothing is
unpickled. A file is never written in place: processes may have it mapped.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import mmap
import os
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fuser.backend.cores import available_cores
from fuser.dtypes import BY_NAME, from_numpy
from fuser.errors import InvalidModelError, UsageError
from fuser.runtime.memory import align, aligned_empty

MAJOR, MINOR = 2, 1
"""2.1 has weights that stay in the model's file (model_file.py), and seals in plans for many sizes;
others are written as 2.0."""
MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What reading a record that makes no sense may raise."""
ALIGNMENT, PAGE = 64, 4096
MAGIC_BYTES = 8
_HEAD = struct.Struct("<8sIIQQ32s")
_SEALED = _HEAD.size - 32
_ALONE = 1 << 20
"""Bytes of arrays that one thread checks."""


def magic(kind: str) -> bytes:
    """What a file of this kind begins with."""
    return f"FUSER{kind}{MAJOR}\n".encode()


class Contents:
    """What a file holds beside its manifest. `blob` and `array` keep something and give how the
    manifest names it; of equal arrays one is kept."""

    def __init__(self) -> None:
        self.blobs: list[bytes | memoryview] = []
        self.arrays: list[memoryview] = []
        self.records: list[dict[str, Any]] = []
        self._flat: list[np.ndarray] = []
        self._blob_bytes = self._array_bytes = 0
        self._held: dict[int, tuple[int, np.ndarray]] = {}

    def blob(self, data: bytes | memoryview) -> list[int]:
        """(start, size)."""
        start, self._blob_bytes = self._blob_bytes, self._blob_bytes + align(len(data), ALIGNMENT)
        self.blobs.append(data)
        return [start, len(data)]

    def array(self, array: np.ndarray) -> int:
        """Its number."""
        if id(array) not in self._held:
            flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            record = {"dtype": from_numpy(array.dtype).name, "shape": list(array.shape)}
            record["check"] = _check(flat)
            for number, other in enumerate(self.records):  # programs of several targets share
                if other == record | {"start": other["start"]} and np.array_equal(
                    self._flat[number], flat
                ):
                    break
            else:
                number = len(self.records)
                self.records.append(record | {"start": self._array_bytes})
                self.arrays.append(flat.data)
                self._flat.append(flat)
                self._array_bytes += align(flat.size, ALIGNMENT)
            self._held[id(array)] = number, array
        return self._held[id(array)][0]


def file_parts(
    kind: str, manifest: Mapping[str, Any], contents: Contents, minor: int = 0
) -> list[bytes | memoryview]:
    """A file as parts to be written one after the other. minor: the oldest version that has what
    is in it."""
    text = json.dumps({**manifest, "arrays": contents.records}).encode()
    text += b" " * (-(_HEAD.size + len(text)) % ALIGNMENT)
    code, arrays = (
        [part for item in items for part in (item, bytes(-len(item) % ALIGNMENT))]
        for items in (contents.blobs, contents.arrays)
    )
    size = sum(map(len, code))
    sealed = _HEAD.pack(magic(kind), minor, 0, len(text), size, b"")[:_SEALED]
    digest = hashlib.sha256(sealed)
    for part in (text, *code):
        digest.update(part)
    gaps = [bytes(-size % PAGE) for size in (_HEAD.size + len(text) + size, sum(map(len, arrays)))]
    return [sealed, digest.digest(), text, *code, gaps[0], *arrays, gaps[1]]


def _check(data: np.ndarray) -> str:
    """The check of the bytes of an array."""
    whole = len(data) // PAGE * PAGE
    words = data[:whole].view(np.uint64).reshape(-1, PAGE // 8)
    digest = hashlib.sha256(np.add.reduce(words, axis=1).astype("<u8").tobytes())
    digest.update(data[whole:].tobytes())
    return digest.hexdigest()


def _checks(arrays: Sequence[np.ndarray]) -> list[str]:
    """The check of each, made by several threads."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(available_cores()) as pool:
        return list(pool.map(_check, arrays))


def write_file(path: Path | str, parts: Sequence[bytes | memoryview]) -> None:
    """Write the parts of a file beside it, then put it in its place. Raises UsageError where it
    cannot be written."""
    import secrets  # only what writes

    place = Path(os.path.realpath(path))
    beside = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    whole = not place.exists() or place.is_file()  # else a pipe or a device
    try:
        with open(beside if whole else place, "xb" if whole else "wb") as file:
            file.writelines(parts)
        if whole:
            os.replace(beside, place)
    except OSError as error:
        raise UsageError(f"cannot write the plan {path}: {error.strerror}") from error
    finally:
        if whole:
            with contextlib.suppress(OSError):
                beside.unlink()


class Opened:
    """A file that was read. where: what errors call it. minor: the version of its format."""

    def __init__(
        self, manifest: dict[str, Any], code: memoryview, arrays: np.ndarray, where: str,
        minor: int = MINOR,
    ) -> None:  # fmt: skip
        self.manifest, self.where, self.minor = manifest, where, minor
        self._code, self._arrays = code, arrays

    def blob(self, span: Sequence[int]) -> memoryview:
        """The bytes at (start, size). Raises ValueError where that is not inside."""
        return blob_of(self._code, span)

    @functools.cached_property
    def arrays(self) -> list[np.ndarray]:
        """The arrays, checked. They look into the file and cannot be written to. Raises one of
        MALFORMED, and InvalidModelError for damage."""
        records = self.manifest["arrays"]
        pieces, top = [], 0
        for record in records:
            shape, dtype = tuple(record["shape"]), BY_NAME[record["dtype"]].numpy
            size = math.prod(shape) * dtype.itemsize
            if record["start"] != top or not all(isinstance(n, int) and n >= 0 for n in shape):
                raise ValueError("an array is out of its place")
            if top + size > len(self._arrays):  # before memory is taken for it
                raise ValueError(f"an array of shape {shape} lies outside the file")
            pieces.append((self._arrays[top : top + size], shape, dtype))
            end, top = top + size, top + align(size, ALIGNMENT)
            if self._arrays[end:top].any():
                raise self.damaged()
        if len(self._arrays) != align(top, PAGE) or self._arrays[top:].any():
            raise self.damaged()
        flat = [piece for piece, _, _ in pieces]
        found = _checks(flat) if top > _ALONE else [*map(_check, flat)]
        if found != [record["check"] for record in records]:
            raise self.damaged()
        return [piece.view(dtype).reshape(shape) for piece, shape, dtype in pieces]

    def damaged(self) -> InvalidModelError:
        return InvalidModelError(
            "the file is not a plan, or was damaged", where=self.where, hint="compile it again"
        )


def read_file(file: Path | str | bytes, kind: str) -> Opened:
    """A file of this kind, or its bytes. Raises UsageError (no such file) or InvalidModelError
    (not whole, or of another kind or version)."""
    where = shown(file)
    try:
        data = _whole(file) if isinstance(file, bytes) else _mapped(Path(file))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read the plan {file!s}: {reason}") from error
    damaged = Opened({}, memoryview(b""), data[:0], where).damaged()
    head = bytes(data[: _HEAD.size])
    _check_version(head, kind, where)
    if len(head) < _HEAD.size:
        raise damaged
    _, minor, zero, length, size, digest = _HEAD.unpack(head)
    text, code = _HEAD.size, _HEAD.size + length
    end = align(code + size, PAGE)
    if end > len(data) or zero or code % ALIGNMENT:
        raise damaged
    held = data[text : code + size]
    found = hashlib.sha256(head[:_SEALED])
    found.update(held.data)
    if found.digest() != digest or data[code + size : end].any():
        raise damaged
    with reading(where):
        manifest = json.loads(bytes(data[text:code]))
        if not isinstance(manifest, dict):
            raise ValueError("the manifest is no record")
    return Opened(manifest, held.data[length:], data[end:], where, minor)


def _check_version(head: bytes, kind: str, where: str) -> None:
    """Raise InvalidModelError for a file of another kind, or of a version that is not read."""
    known = magic(kind)
    written = head[6:7]
    if head[:6] == known[:6] and head[7:8] == known[7:8] and written.isdigit():
        newer = written > known[6:7]
        if written == known[6:7]:
            minor = int.from_bytes(head[8:12], "little")
            newer = minor > MINOR
            if not newer:
                return
            written += b".%d" % minor
        raise InvalidModelError(
            f"the plan has format {written.decode()}, and this fuser reads {MAJOR}.{MINOR}",
            where=where, hint="update fuser" if newer else "compile the model again",
        )  # fmt: skip
    raise Opened({}, memoryview(b""), np.zeros(0, np.uint8), where).damaged()


def _mapped(path: Path) -> np.ndarray:
    """The bytes of a file, mapped where it can be. Raises OSError."""
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or not status.st_size:
            return _whole(file.read())
        # Pages come with the threads that check them, in parallel: MAP_POPULATE is one thread.
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(mapping, np.uint8)


def _whole(data: bytes) -> np.ndarray:
    """Bytes at an address that arrays may have."""
    held = aligned_empty(len(data), ALIGNMENT)
    held[:] = np.frombuffer(data, np.uint8)
    held.flags.writeable = False
    return held


def blob_of(blobs: memoryview, span: Sequence[int]) -> memoryview:
    """The bytes at (start, size). Raises ValueError where that is not inside."""
    start, size = span
    if not 0 <= start <= start + size <= len(blobs):
        raise ValueError("a blob lies outside the file")
    return blobs[start : start + size]


@contextlib.contextmanager
def reading(file: Path | str | bytes) -> Iterator[None]:
    """What records that make no sense raise is an InvalidModelError."""
    try:
        yield
    except MALFORMED as error:
        raise InvalidModelError(f"the plan is malformed: {error!r}", where=shown(file)) from error


def shown(file: Path | str | bytes) -> str:
    """What errors call it."""
    return "bytes in memory" if isinstance(file, bytes) else str(file)
