"""The kernel cache on disk: content-addressed, atomic, checksummed, private and bounded.

An entry is one file, named by the SHA-256 of its key material:

    8 bytes magic | 32 bytes SHA-256 of all that follows | 8 bytes header length | header | payload

The header is JSON and repeats the whole key material, which a hit compares; the payload is raw
bytes at a multiple of 64 from the start. Nothing is unpickled or imported. An entry holds native
code, so the folder must belong to this user and be writable by nobody else; otherwise the cache is
off.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fuser.backend import failed_kernels
from fuser.backend.module import CompiledKernel
from fuser.graph.units import byte_size, counted
from fuser.runtime.kernel_record import kernel_from_record, kernel_to_record
from fuser.runtime.memory import aligned_empty

MAGIC = b"FUSERK2\n"
_PREFIX = len(MAGIC) + 32 + 8
_ALIGNMENT = 64
_log = logging.getLogger("fuser")

COUNTS = 16
"""The entries are listed again after this part of the limit was written: others write too."""

_counted: dict[Path, tuple[int, int]] = {}
"""Bytes of a folder's entries, and bytes written since the folder was listed."""


class KernelCache:
    """Entries under one folder. Never raises for what the disk does or holds: a bad entry is a
    miss and is removed, a bad folder turns the cache off (`enabled` False, `note` says why).

    folder: None is the user's cache folder. limit_bytes: beyond it the entries that were used
    longest ago go. quiet: what is wrong with the folder is noted, not logged.
    """

    def __init__(
        self, folder: Path | str | None = None, limit_bytes: int = 1 << 30, *, quiet: bool = False
    ) -> None:
        self._quiet = quiet
        self.folder = Path(folder) if folder else _default_folder()
        self.limit_bytes = limit_bytes
        self.hits = 0
        self.misses = 0
        self.note = ""
        self.enabled = True
        self.writable = True
        problem = _open_folder(self.folder)
        if problem:
            self.enabled = False
            self._warn(f"the kernel cache is off: {problem}")

    @property
    def failed_folder(self) -> Path | None:
        """Where the text of kernels that failed to compile is kept, if anything can be."""
        return self.folder / "failed" if self.enabled and self.writable else None

    def describe(self) -> str:
        """One line: where it is and what it holds, or why it is off."""
        if not self.enabled:
            return self.note
        count, size = self.size()
        text = f"{self.folder}, {counted(count, 'entry', 'entries')}, {byte_size(size)}"
        return text + (f" ({self.note})" if self.note else "")

    def size(self) -> tuple[int, int]:
        """How many entries there are, and their bytes."""
        sizes = [status.st_size for _, status in self._entries()]
        return len(sizes), sum(sizes)

    # kernels ------------------------------------------------------------------------------------

    def get(self, material: str) -> CompiledKernel | None:
        """The kernel stored under exactly this key material, or None."""
        found = self.get_bytes(material)
        if found is not None:
            with contextlib.suppress(KeyError, TypeError, ValueError):
                return kernel_from_record(found[0], bytes(found[1]))
            self.hits, self.misses = self.hits - 1, self.misses + 1
        return None

    def put(self, material: str, kernel: CompiledKernel) -> None:
        """Store a kernel; what cannot be stored is dropped."""
        self.put_bytes(material, *kernel_to_record(kernel))

    def refusal(self, material: str) -> tuple[str, float] | None:
        """Why there is no kernel of this key material, and after how many seconds, as put_refusal
        had it."""
        material = _refusal_material(material)
        found = self.get_bytes(material) if self.holds(material) else None
        if found is not None:
            with contextlib.suppress(KeyError, TypeError, ValueError):
                return str(found[0]["reason"]), float(found[0]["seconds"])
        return None

    def put_refusal(self, material: str, reason: str, seconds: float) -> None:
        """Remember that there is no kernel."""
        self.put_bytes(_refusal_material(material), {"reason": reason, "seconds": seconds}, b"")

    # any bytes ----------------------------------------------------------------------------------

    def get_bytes(self, material: str) -> tuple[dict[str, Any], memoryview] | None:
        """(header, payload) stored under exactly this key material, or None. The payload is in
        memory of its own, aligned to 64 bytes."""
        if not self.enabled:
            return None
        path = self._path(material)
        found = None
        try:
            found = _decode(_read(path), material)
            if found is None:
                _log.warning("%s was damaged or is of another version; it is made again", path)
                path.unlink()
            else:
                os.utime(path)  # the time of use, which eviction goes by
        except OSError:
            pass  # absent, or a folder that cannot be written to
        if found is None:
            self.misses += 1
        else:
            self.hits += 1
        return found

    def put_bytes(self, material: str, header: dict[str, Any], payload: bytes | memoryview) -> None:
        """Store a JSON-able header and raw bytes: all of it, or what a read finds to be torn."""
        if not (self.enabled and self.writable):
            return
        try:
            parts = _encode(material, header, payload)
        except (TypeError, ValueError, AttributeError):
            return
        path = self._path(material)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            _write_atomically(path, parts)
        except OSError as error:
            self.writable = False
            self._warn(f"cannot write to the kernel cache {self.folder}: {error.strerror}")
            return
        if self._is_full(sum(map(len, parts))):
            self._evict()

    def holds(self, material: str) -> bool:
        """Whether there is an entry, good or bad, under this key material."""
        return self.enabled and self._path(material).exists()

    def clear(self) -> int:
        """Delete every entry, and the text of failed kernels; how many entries there were."""
        count = 0
        for path, _ in list(self._entries()):
            with contextlib.suppress(OSError):
                path.unlink()
                count += 1
        _counted.pop(self.folder, None)
        if self.failed_folder is not None:
            failed_kernels.clear(self.failed_folder)
        return count

    def verify(self) -> tuple[int, int]:
        """(good, bad) entries; bad ones are removed."""
        good = bad = 0
        for path, _ in list(self._entries()):
            with contextlib.suppress(OSError):
                if _decode(_read(path), None) is None:
                    bad += 1
                    path.unlink()
                else:
                    good += 1
        return good, bad

    def _path(self, material: str) -> Path:
        name = hashlib.sha256(material.encode()).hexdigest()
        return self.folder / name[:2] / name

    def _entries(self) -> Iterator[tuple[Path, os.stat_result]]:
        if not self.enabled:
            return
        for path in self.folder.glob("[0-9a-f][0-9a-f]/*"):
            with contextlib.suppress(OSError):
                yield path, path.lstat()

    def _is_full(self, added: int) -> bool:
        """Whether the entries are beyond the limit, after `added` bytes more. A listing takes long
        where there are many, and every compile has a KernelCache: it is for all of a process."""
        total, since = _counted.get(self.folder, (0, self.limit_bytes))
        total, since = total + added, since + added
        if since > self.limit_bytes // COUNTS:
            total, since = sum(status.st_size for _, status in self._entries()), 0
        _counted[self.folder] = total, since
        return total > self.limit_bytes

    def _evict(self) -> None:
        """Remove the entries used longest ago until a fifth of the limit is free again."""
        entries = sorted(self._entries(), key=lambda entry: entry[1].st_mtime_ns)
        total = sum(status.st_size for _, status in entries)
        for path, status in entries:
            if total <= self.limit_bytes * 4 // 5:
                break
            with contextlib.suppress(OSError):
                path.unlink()
                total -= status.st_size
        _counted[self.folder] = total, 0

    def _warn(self, note: str) -> None:
        self.note = note
        if not self._quiet and note not in _told:
            _told.add(note)
            _log.warning(note)


_told: set[str] = set()
"""Notes of this process: each is told once."""


def _refusal_material(material: str) -> str:
    return "no kernel of\n" + material


def _default_folder() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_path("fuser")) / "kernels"


def _open_folder(folder: Path) -> str:
    """Create the folder if need be; why it cannot be trusted or used, else ""."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        return f"{folder}: {error.strerror}"
    if not stat.S_ISDIR(status.st_mode):
        return f"{folder} is not a folder"
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        return f"{folder} belongs to another user"
    if status.st_mode & 0o022:
        return f"others may write to {folder}; chmod 700 mends it"
    return ""


def _read(path: Path) -> memoryview:
    """The content of a regular file; links are refused. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    with open(descriptor, "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        foreign = hasattr(os, "geteuid") and status.st_uid != os.geteuid()
        if foreign or not stat.S_ISREG(status.st_mode):
            return memoryview(b"")
        content = aligned_empty(status.st_size, _ALIGNMENT).data
        held = 0
        while count := file.readinto(content[held:]):
            held += count
        return content[:held].toreadonly()


def _encode(material: str, header: dict[str, Any], payload: bytes | memoryview) -> list[Any]:
    """The bytes of an entry, in parts."""
    text = json.dumps({"material": material, "header": header}, default=_plain).encode()
    text += b" " * (-(_PREFIX + len(text)) % _ALIGNMENT)
    length = len(text).to_bytes(8, "little")
    digest = hashlib.sha256(length + text)
    digest.update(payload)
    return [MAGIC + digest.digest() + length + text, payload]


def _plain(item: Any) -> Any:
    """NumPy scalars as Python numbers."""
    return item.item()


def _decode(data: memoryview, material: str | None) -> tuple[dict[str, Any], memoryview] | None:
    """(header, payload) if every byte is in order and the material is this (None: any)."""
    body = data[_PREFIX - 8 :]
    if len(data) < _PREFIX or data[: len(MAGIC)] != MAGIC:
        return None
    if hashlib.sha256(body).digest() != data[len(MAGIC) : len(MAGIC) + 32]:
        return None
    length = int.from_bytes(body[:8], "little")
    try:
        record = json.loads(bytes(body[8 : 8 + length]))
        if material is not None and record["material"] != material:
            return None
        return dict(record["header"]), body[8 + length :]
    except (ValueError, TypeError, KeyError):
        return None


def _write_atomically(path: Path, parts: list[Any]) -> None:
    """Write beside, rename over: other processes see all of it or nothing. Nothing waits for the
    disk: what a loss of power tears, the checksum of the entry finds. Raises OSError."""
    descriptor, name = tempfile.mkstemp(prefix=".new-", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.writelines(parts)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
