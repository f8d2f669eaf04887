"""The kernel cache on disk: content-addressed, atomic, checksummed, private and bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fuser.backend.module import CompiledKernel


class KernelCache:
    """Entries under one folder. Never raises for what the disk does: a bad entry is a miss, a bad
    folder turns the cache off (`enabled` False, `note` says why).

    folder: default `FUSER_CACHE_DIR`, else the user's cache folder.
    """

    def __init__(self, folder: Path | str | None = None, limit_bytes: int = 1 << 30) -> None:
        self.folder: Path | None = None
        self.limit_bytes = limit_bytes
        self.enabled = False
        self.note = ""
        self.hits = 0
        self.misses = 0

    def get(self, material: str) -> CompiledKernel | None:
        """The kernel stored under exactly this key material, or None."""
        return None

    def put(self, material: str, kernel: CompiledKernel) -> None:
        """Store a kernel; what cannot be stored is dropped."""

    def get_bytes(self, material: str) -> tuple[dict[str, Any], bytes] | None:
        """(header, payload) stored under this key material, or None."""
        return None

    def put_bytes(self, material: str, header: dict[str, Any], payload: bytes) -> None:
        """Store a JSON-able header and raw bytes."""

    def clear(self) -> int:
        """Delete every entry; how many there were."""
        return 0
