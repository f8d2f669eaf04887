"""How many cores this process may keep busy: affinity, hyper-threads and quotas considered."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from pathlib import Path

from fuser.errors import UsageError


@functools.cache
def available_cores() -> int:
    """Physical cores in the affinity mask, no more than the cgroup's quota; at least 1.

    A second hyper-thread adds nothing to code that fills the vector units; threads beyond a quota
    are stopped by the kernel in the middle of a kernel that all others wait for.
    """
    if hasattr(os, "sched_getaffinity"):
        logical = os.sched_getaffinity(0)
    else:
        logical = set(range(os.cpu_count() or 1))
    return max(1, min(physical_cores(logical), cgroup_quota() or len(logical)))


def check_threads(threads: int | None) -> int:
    """The number of threads asked for, 0 for none. Raises UsageError for less and for no int."""
    if threads is not None and (not isinstance(threads, int) or threads < 0):
        raise UsageError(
            f"threads={threads!r} is no number of threads", hint="a whole number; 0: one a core"
        )
    return threads or 0


def physical_cores(logical: Iterable[int], root: Path = Path("/sys/devices/system/cpu")) -> int:
    """Distinct physical cores among logical ones; each counts if the system does not tell."""
    cores = set()
    for number in logical:
        file = root / f"cpu{number}" / "topology" / "thread_siblings_list"
        try:
            cores.add(file.read_text().strip())
        except OSError:
            cores.add(str(number))
    return len(cores)


def cgroup_quota(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Cores that the control group grants, rounded up; 0 if it sets no limit."""
    quotas = []
    for folder in _folders(root, own):
        quotas += [_quota_v2(folder / "cpu.max"), _quota_v1(folder)]
    return min((quota for quota in quotas if quota), default=0)


def _folders(root: Path, own: Path) -> list[Path]:
    """The root and the process's own group with its parents: the tightest limit holds."""
    folders = [root, root / "cpu"]
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return folders
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / controllers if controllers else root
        parts = [part for part in path.split("/") if part and part != ".."]
        folders += [base.joinpath(*parts[: i + 1]) for i in range(len(parts))]
    return folders


def _quota_v2(file: Path) -> int:
    try:
        quota, period = file.read_text().split()
        return 0 if quota == "max" else -(-int(quota) // int(period))
    except (OSError, ValueError):
        return 0


def _quota_v1(folder: Path) -> int:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
        return -(-quota // period) if quota > 0 else 0
    except (OSError, ValueError):
        return 0
