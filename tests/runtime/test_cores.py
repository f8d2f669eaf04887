"""Counting the cores that may be used."""

from __future__ import annotations

from pathlib import Path

from fuser.backend.cores import available_cores, cgroup_quota, physical_cores


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_hyper_threads_share_a_core(tmp_path: Path) -> None:
    for cpu in range(8):
        pair = f"{cpu % 4},{cpu % 4 + 4}\n"
        write(tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list", pair)
    assert physical_cores(range(8), tmp_path) == 4
    assert physical_cores([0, 4, 1], tmp_path) == 2
    assert physical_cores(range(3), tmp_path / "none") == 3


def test_quotas(tmp_path: Path) -> None:
    root, own = tmp_path / "cgroup", tmp_path / "own"
    assert cgroup_quota(root, own) == 0
    write(root / "cpu.max", "max 100000\n")
    assert cgroup_quota(root, own) == 0
    write(own, "0::/docker/abc\n")
    write(root / "docker" / "abc" / "cpu.max", "250000 100000\n")
    assert cgroup_quota(root, own) == 3
    write(root / "docker" / "cpu.max", "100000 100000\n")
    assert cgroup_quota(root, own) == 1


def test_quotas_of_the_first_version(tmp_path: Path) -> None:
    write(tmp_path / "cpu" / "cpu.cfs_quota_us", "-1\n")
    write(tmp_path / "cpu" / "cpu.cfs_period_us", "100000\n")
    assert cgroup_quota(tmp_path, tmp_path / "own") == 0
    write(tmp_path / "cpu" / "cpu.cfs_quota_us", "150000\n")
    assert cgroup_quota(tmp_path, tmp_path / "own") == 2


def test_this_machine() -> None:
    assert available_cores() >= 1
