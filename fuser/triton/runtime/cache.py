"""triton.runtime.cache: files by key, for programs that keep some beside Triton's.

fuser's own kernels are not here: they are in its cache (FUSER_CACHE_DIR, docs/command-line.md).
"""

from __future__ import annotations

import json
import os
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from fuser.errors import UsageError
from fuser.triton import knobs
from fuser.triton.absent import names
from fuser.triton.backends.compiler import version_key


class CacheManager(ABC):
    """Files of one key."""

    @abstractmethod
    def get_file(self, filename: str) -> str | None:
        """The path of a file, None where there is none."""

    @abstractmethod
    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        """Write a file; its path."""

    @abstractmethod
    def get_group(self, filename: str) -> dict[str, str] | None:
        """Paths by name of a group of files, None unless all of them are there."""

    @abstractmethod
    def put_group(self, filename: str, group: dict[str, str]) -> str:
        """Note files as a group."""


class FileCacheManager(CacheManager):
    """Files of one key in a folder: below knobs.cache.dir, dump_dir or override_dir. A file is
    whole or not there. Raises UsageError."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        name = "dump_dir" if dump else "override_dir" if override else "dir"
        root = getattr(knobs.cache, name)
        if not root:
            raise UsageError(f"there is no folder for {key}", hint=f"set knobs.cache.{name}")
        self.key = _part(key, "key")
        self.cache_dir = os.path.join(root, self.key)
        if dump or not override:
            os.makedirs(self.cache_dir, exist_ok=True)

    def _path(self, filename: str) -> Path:
        return Path(self.cache_dir) / _part(filename, "file")

    def has_file(self, filename: str) -> bool:
        return self._path(filename).exists()

    def get_file(self, filename: str) -> str | None:
        return str(self._path(filename)) if self.has_file(filename) else None

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        path = self._path(filename)
        content = data if isinstance(data, bytes) else str(data).encode()
        handle, made = tempfile.mkstemp(dir=self.cache_dir)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(made, path)
        except BaseException:
            Path(made).unlink(missing_ok=True)
            raise
        return str(path)

    def get_group(self, filename: str) -> dict[str, str] | None:
        path = self.get_file(f"__grp__{filename}")
        try:
            found = json.loads(Path(path).read_bytes())["child_paths"] if path else None
        except (ValueError, KeyError, TypeError, OSError):  # damaged: as if it were not there
            return None
        if not isinstance(found, dict) or not all(map(os.path.exists, found.values())):
            return None
        return found

    def put_group(self, filename: str, group: dict[str, str]) -> str:
        return self.put(json.dumps({"child_paths": group}), f"__grp__{filename}")


def _part(name: str, what: str) -> str:
    if not name or name in (".", "..") or any(mark in name for mark in ("/", "\\", "\0")):
        raise UsageError(f"{name!r} is no {what} of a cache", hint="it is one part of a path")
    return name


def get_cache_manager(key: str) -> CacheManager:
    """The files of a key, by the class that knobs.cache.manager_class names or holds."""
    chosen = knobs.cache.manager_class
    if isinstance(chosen, str):
        module, _, name = chosen.partition(":")
        from importlib import import_module

        chosen = getattr(import_module(module), name)
    made: CacheManager = (chosen or FileCacheManager)(key)
    return made


def get_override_manager(key: str) -> CacheManager:
    """Files of a key that replace others."""
    return FileCacheManager(key, override=True)


def get_dump_manager(key: str) -> CacheManager:
    """Files of a key that are written to be read by people."""
    return FileCacheManager(key, dump=True)


def triton_key() -> str:
    """A digest of what compiles kernels: fuser's source and what it generates code with."""
    return version_key()


__getattr__ = names(
    __name__,
    "RedisRemoteCacheBackend RemoteCacheBackend RemoteCacheManager get_cache_key make_so_cache_key",
    "fuser's caches are folders of this machine, by keys of its own",
    "share the folder FUSER_CACHE_DIR; kernel.cache_key is a digest of a kernel's source",
)
