"""The kernel cache: exact hits, every corruption a miss, privacy, bounds."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuser.backend.module import CompiledKernel, TensorMap
from fuser.runtime.cache import KernelCache

KERNEL = CompiledKernel(
    "matmul_3",
    "sm_90a",
    "k0123",
    b"\x00.version 8.3\nbinary\xff",
    (4, 2),
    launch=(8, 1, 1),
    threads=384,
    shared_bytes=100_000,
    tensor_maps=(TensorMap(0, "bf16", (64, 128), (64,), (64, 64), 128),),
    pdl=True,
    facts={"registers": 168, "spills": 0, "kind": "wgmma", "ratio": 0.5},
)


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    return KernelCache(tmp_path / "kernels")


def only_entry(cache: KernelCache) -> Path:
    [path] = cache.folder.glob("??/*")
    return path


def test_round_trip(cache: KernelCache) -> None:
    assert cache.get("key") is None
    cache.put("key", KERNEL)
    assert cache.get("key") == KERNEL
    assert KernelCache(cache.folder).get("key") == KERNEL
    assert cache.get("key2") is None
    assert (cache.hits, cache.misses) == (1, 2)
    assert oct(cache.folder.stat().st_mode & 0o777) == "0o700"
    assert "1 entry" in cache.describe()
    assert cache.clear() == 1 and cache.get("key") is None


def test_any_flipped_byte_is_a_miss(cache: KernelCache) -> None:
    cache.put("key", KERNEL)
    path = only_entry(cache)
    good = path.read_bytes()
    for position in np.random.default_rng(0).permutation(len(good))[:150].tolist():
        bad = bytearray(good)
        bad[position] ^= 1 << (position % 8)
        path.write_bytes(bad)
        assert cache.get("key") is None, position
        assert not path.exists()
        path.write_bytes(good)
    assert cache.get("key") == KERNEL


def test_any_truncation_is_a_miss(cache: KernelCache) -> None:
    cache.put("key", KERNEL)
    path = only_entry(cache)
    good = path.read_bytes()
    for length in (0, 1, 8, 20, 47, 48, 49, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:length])
        assert cache.get("key") is None
    path.write_bytes(good + b"x")
    assert cache.get("key") is None


def test_swapped_entries_are_misses(cache: KernelCache) -> None:
    cache.put("key", KERNEL)
    path = only_entry(cache)
    other = cache._path("other")
    other.parent.mkdir(exist_ok=True)
    other.write_bytes(path.read_bytes())
    assert cache.get("other") is None
    assert cache.get("key") == KERNEL


def test_links_are_refused(cache: KernelCache, tmp_path: Path) -> None:
    cache.put("key", KERNEL)
    path = only_entry(cache)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert cache.get("key") is None


def test_verify_finds_bad_entries(cache: KernelCache) -> None:
    cache.put("a", KERNEL)
    cache.put("b", KERNEL)
    cache._path("b").write_bytes(b"FUSERK1\ngarbage")
    assert cache.verify() == (1, 1)
    assert cache.verify() == (1, 0)


def test_others_may_not_write(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    cache = KernelCache(folder)
    cache.put("key", KERNEL)
    assert not cache.enabled and cache.get("key") is None
    assert "chmod 700" in cache.describe() and len(caplog.records) == 1


def test_foreign_folders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    cache = KernelCache(tmp_path)
    assert not cache.enabled and "another user" in cache.note


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not KernelCache(tmp_path / "file").enabled
    assert not KernelCache(tmp_path / "file" / "below").enabled


def test_an_unwritable_disk_warns_once(
    cache: KernelCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache.put("old", KERNEL)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    cache.put("a", KERNEL)
    cache.put("b", KERNEL)
    assert len(caplog.records) == 1 and "Read-only" in caplog.records[0].message
    assert cache.get("a") is None and cache.get("old") == KERNEL


def test_failed_writes_leave_nothing(cache: KernelCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    cache.put("a", KERNEL)
    assert not list(cache.folder.glob("??/*")) and not list(cache.folder.glob("??/.*"))


def test_the_least_recently_used_go(tmp_path: Path) -> None:
    payload = bytes(10_000)
    cache = KernelCache(tmp_path / "kernels", limit_bytes=55_000)
    for i in range(5):
        cache.put_bytes(f"{i}", {}, payload)
        os.utime(cache._path(f"{i}"), (i + 1, i + 1))
    assert cache.get_bytes("0") is not None  # used now, so it stays
    cache.put_bytes("5", {}, payload)
    kept = [i for i in range(6) if cache.get_bytes(f"{i}")]
    assert kept == [0, 3, 4, 5]


def test_the_entries_of_others_are_listed_seldom_and_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One listing serves all caches of a process until a sixteenth of the limit was written."""
    listed, real = [], KernelCache._entries

    def entries(cache: KernelCache) -> Any:
        listed.append(cache)
        return real(cache)

    monkeypatch.setattr(KernelCache, "_entries", entries)

    def put(name: str) -> KernelCache:
        cache = KernelCache(tmp_path / "kernels", limit_bytes=320_000)
        cache.put_bytes(name, {}, bytes(1000))
        return cache

    other = put("0")._path("other")
    for i in range(1, 10):
        put(f"{i}")
    assert len(listed) == 1
    other.parent.mkdir(exist_ok=True)
    other.write_bytes(bytes(400_000))
    os.utime(other, (1, 1))
    last = [put(f"{i}") for i in range(10, 40)][-1]
    assert not other.exists() and len(listed) < 6
    assert all(last.get_bytes(f"{i}") for i in range(40))
    last.clear()
    assert last.size() == (0, 0)


def test_concurrent_writers_and_readers(cache: KernelCache) -> None:
    def use(i: int) -> bool:
        cache.put(f"{i % 7}", KERNEL)
        return cache.get(f"{i % 7}") == KERNEL

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(100)))


def test_unserialisable_facts_are_dropped(cache: KernelCache) -> None:
    cache.put_bytes("numpy", {"n": np.int64(3)}, b"")
    assert cache.get_bytes("numpy") == ({"n": 3}, b"")
    cache.put_bytes("bad", {"n": object()}, b"")
    assert cache.get_bytes("bad") is None
