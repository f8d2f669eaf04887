"""What the machine that runs this process can do."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

from fuser.backend import llvm
from fuser.backend.cores import available_cores
from fuser.backend.features import missing_features
from fuser.target import Target, cpu_target

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


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
    return replace(target, l2_cache_bytes=cache_bytes(3))


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
