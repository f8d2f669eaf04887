"""What the machine that runs this process can do."""

from __future__ import annotations

import functools
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fuser.backend import llvm
from fuser.backend.cores import available_cores
from fuser.backend.features import missing_features
from fuser.base.target import Target, cpu_target

_CPU = Path("/sys/devices/system/cpu")
_CACHES = _CPU / "cpu0/cache"
USUAL_CLOCK = 3.7e9
"""Cycles a second that cores of servers reach, where the system does not say: most virtual machines
hide it, and tell the rate of the time stamp counter for it, which is lower."""


@functools.cache
def host_target() -> Target:
    """The CPU target of this machine: LLVM's name and features, vector width, cores and caches."""
    features = llvm.host_features()
    withheld = missing_features(",".join(f"+{name}" for name in features))  # by the system
    features = features.difference(withheld)
    if "amx-tile" not in features:
        features = frozenset(name for name in features if not name.startswith("amx-"))
    name = llvm.host_cpu()
    if llvm.host_triple().startswith(("aarch64", "arm64")):
        bits = 128
    else:
        bits = 512 if {"avx512f", "avx512vl", "avx512dq", "avx512bw"} <= features else 256
    spelled = ",".join(f"+{feature}" for feature in sorted(features))
    l1, l2 = cache_bytes(1), cache_bytes(2)
    target = cpu_target(
        name, spelled, available_cores(), bits, l1_bytes=l1 or 32 << 10, l2_bytes=l2 or 1 << 20,
        vector_registers=32 if bits in (128, 512) else 16,
    )  # fmt: skip
    return replace(target, l2_cache_bytes=cache_bytes(3), clock=fastest_clock())


def fastest_clock(folder: Path = _CPU) -> float:
    """Cycles a second that the fastest core may reach, as the system's governor knows it, else
    USUAL_CLOCK."""
    found = []
    for file in folder.glob("cpu[0-9]*/cpufreq/cpuinfo_max_freq"):
        with suppress(OSError, ValueError):
            found.append(int(file.read_text()) * 1e3)
    return max(found, default=0.0) or USUAL_CLOCK


def cache_bytes(level: int) -> int:
    """Bytes of the data or unified cache of a level; 0 where the system does not say."""
    for index in sorted(_CACHES.glob("index*")) if _CACHES.is_dir() else ():
        try:
            if (index / "type").read_text().strip() == "Instruction":
                continue
            if int((index / "level").read_text()) == level:
                size = (index / "size").read_text().strip()
                return int(size[:-1]) << {"K": 10, "M": 20, "G": 30}[size[-1]]
        except (OSError, KeyError, ValueError):
            continue
    return 0
