"""What the processor of this machine can do, asked without LLVM where Linux tells it."""

from __future__ import annotations

import ctypes
import functools
import platform
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")

_SPELLINGS = {
    "64bit": "lm", "sse3": "pni", "crc32": "sse4_2", "sahf": "lahf_lm", "lzcnt": "abm",
    "bmi": "bmi1", "pclmul": "pclmulqdq", "sha": "sha_ni", "rdrnd": "rdrand",
    "prfchw": "3dnowprefetch", "avxvnni": "avx_vnni", "avxifma": "avx_ifma",
    "avx512vnni": "avx512_vnni", "avx512bf16": "avx512_bf16", "avx512fp16": "avx512_fp16",
    "avx512vbmi2": "avx512_vbmi2", "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq", "avx512vp2intersect": "avx512_vp2intersect",
}  # fmt: skip
"""LLVM's names of x86 features beside those of Linux, where more than "." and "-" differ."""
_OF_SYSTEMS = {"shstk", "kl", "widekl", "usermsr", "uintr", "enqcmd", "sgx", "pconfig", "pku"}
_RANDOM = {"rdrnd", "rdseed"}  # off where Linux knows that the processor's are broken
_NOT_IN_KERNELS = _OF_SYSTEMS | _RANDOM
"""Features whose instructions no kernel has, and which Linux may hide though LLVM sees them."""


def missing_features(features: str) -> list[str]:
    """What code compiled for a feature string ("+avx2,+fma") needs and this machine lacks."""
    wanted = {name[1:] for name in features.split(",") if name.startswith("+")}
    missing = wanted - _features(frozenset(wanted)) if wanted else set()
    if "amx-tile" in wanted and not tiles_granted():  # asks for it, too
        missing.add("amx-tile")
    return sorted(missing)


def _features(asked: frozenset[str]) -> frozenset[str]:
    """Those of these features, in LLVM's names, that this machine has, and maybe more."""
    flags = _linux_flags()
    if flags is None:
        from fuser.backend.llvm import host_features

        return host_features()
    return frozenset(
        name for name in asked
        if name in _NOT_IN_KERNELS
        or _SPELLINGS.get(name, name.replace("-", "_").replace(".", "_")) in flags
    )  # fmt: skip


@functools.cache
def _linux_flags() -> frozenset[str] | None:
    """The flags of an x86-64 processor under Linux, which lists what programs may use; None
    elsewhere."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return None
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        return None
    sets = [set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")]
    return frozenset(set.intersection(*sets)) if sets else None


@functools.cache
def tiles_granted() -> bool:
    """Ask the system for the tile registers (AMX), for all threads of this process.

    Linux wants a process to ask before it touches them, and may refuse (arch/x86/kernel/fpu).
    """
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "AMD64"):
        return False
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return int(ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data)) == 0
