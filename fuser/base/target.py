"""Facts about devices: plain records that cost models and schedules read.

No code generation and no device access here, so every stage may import it.
Rates are peak figures of the vendor, or measured where docs/performance.md says so.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class DotUnit:
    """An instruction that multiplies groups of `group` neighbours along k and adds them up.

    name: "amx" (tiles of 16 rows by 64 bytes), or the extension that has it for vectors. features:
    what LLVM calls it, all needed. group: elements of k that share 32 bits. depth: elements of k in
    a step. rate: multiply-adds a cycle and core, over those of the float32 vectors. bits: of its
    vectors. unsigned_left: whether it takes the left bytes as unsigned ones.
    """

    name: Literal["amx", "avx512_bf16", "avx512_vnni", "avx_vnni", "neon_bf16", "neon_dotprod"]
    dtype: str
    features: tuple[str, ...]
    group: int
    depth: int
    rate: float
    bits: int = 512
    unsigned_left: bool = False


DOT_UNITS = (
    DotUnit("amx", "bf16", ("amx-tile", "amx-bf16"), 2, 32, 8.0),
    DotUnit("avx512_bf16", "bf16", ("avx512bf16", "avx512vl"), 2, 2, 1.0),
    DotUnit("amx", "i8", ("amx-tile", "amx-int8"), 4, 64, 16.0),
    DotUnit("avx512_vnni", "i8", ("avx512vnni", "avx512vl"), 4, 4, 2.0, unsigned_left=True),
    DotUnit("avx_vnni", "i8", ("avxvnni",), 4, 4, 2.0, 256, unsigned_left=True),
    DotUnit("neon_bf16", "bf16", ("bf16", "neon"), 2, 2, 2.0, 128),
    DotUnit("neon_dotprod", "i8", ("dotprod", "neon"), 4, 4, 4.0, 128),
)
"""The best first. Everything else multiplies with float32 (or float64, int32) vectors."""


@dataclass(frozen=True)
class UnitRates:
    """What a multiprocessor of a GPU does in a microsecond, by the unit that multiplies.

    peak: of `Target.peak`, what the unit reaches. copied: bytes that it receives where all
    multiprocessors ask. hidden: of loading and multiplying, whichever is shorter, the part that
    adds to the longer. barriers: microseconds of an iteration.
    """

    peak: float
    copied: float
    hidden: float
    barriers: float


COPY_ENGINE = UnitRates(1.043, 116.2e3, 0.0181, 0.0)
"""wgmma of operands that the copy engine fetches. All of these were fitted (docs/schedules.md)."""
WGMMA = UnitRates(0.669, 144.9e3, 0.39, 0.0637)
"""wgmma of operands that threads copy, as all below."""
MMA_SYNC = UnitRates(0.303, 152.6e3, 0.157, 0.0572)
"""mma.sync, on a GPU with wgmma."""
MMA_ALONE = UnitRates(1.0, 108e3, 1.0, 0.1)
"""mma.sync of a GPU that has no other unit."""
TF32_WGMMA = UnitRates(1.2, 150e3, 0.45, 0.2)
TF32_SYNC = UnitRates(0.55, 34e3, 0.0, 0.04)
"""float32 in three products of TF32, and what multiplies operands of 64 bits."""
CLUSTER_SUMS = 1.4
"""Microseconds in which the blocks of a cluster add up the tile that they share."""


NOMINAL_CLOCK = 2.6e9
"""Cycles a second of a core, of a CPU that is not this machine's."""
CORE_BANDWIDTH = 32e9
"""Bytes a second that one core can get from memory while nobody else asks for any: streams of one
reach 30 GB/s, of two 62 (docs/performance-cpu.md). `Target.bandwidth` is what is left of that where
all cores work."""


@dataclass(frozen=True)
class Target:
    """What a kernel is compiled for.

    name: "cpu" or "cuda". arch: "x86-64-v4", "aarch64", "sm_80", "sm_90a" (LLVM's spelling).
    features: LLVM feature string of the CPU ("" for the host's own list on cuda).
    units: cores, or streaming multiprocessors. flops: operations a second of the device, f32 and
    f16, by which costs are counted; on a CPU those of cores of NOMINAL_CLOCK with two pipes, so
    that plans do not depend on clocks. `peak` and `peak_bandwidth` are what no kernel exceeds.
    threads: of a plan on a CPU, 0 for one a unit; rules ask `workers` for them, and then only about
    the order of the work and its parts, so that all thread counts give the same bits.
    bandwidth: bytes per second of main memory. launch_cost: seconds a kernel boundary costs.
    """

    name: Literal["cpu", "cuda"]
    arch: str
    units: int
    flops_f32: float
    flops_f16: float
    bandwidth: float
    launch_cost: float
    features: str = ""
    # cpu
    threads: int = 0
    clock: float = 0.0
    """Cycles a second that a core reaches at most; 0: NOMINAL_CLOCK."""
    vector_bits: int = 256
    vector_registers: int = 16
    l1_bytes: int = 32 << 10
    l2_bytes: int = 1 << 20
    # cuda
    shared_bytes: int = 0
    registers: int = 65536
    tensor_memory_bytes: int = 0
    """Bytes of tensor memory of a multiprocessor, for the sums of matmuls that one thread issues
    (tcgen05); 0: sums are in registers."""
    # both
    l2_cache_bytes: int = 0
    """Of the last cache: the L2 of a GPU, the L3 of a CPU; 0: unknown."""

    @property
    def is_cuda(self) -> bool:
        return self.name == "cuda"

    @property
    def workers(self) -> int:
        """How many programs run at once: threads of a plan on a CPU, else `units`."""
        return self.threads or self.units

    @property
    def sm(self) -> int:
        """90 for sm_90a; 0 on a CPU."""
        digits = "".join(c for c in self.arch.removeprefix("sm_") if c.isdigit())
        return int(digits) if self.is_cuda and digits else 0

    @property
    def async_copies(self) -> bool:
        """Whether threads can have copies to shared memory under way (cp.async)."""
        return self.sm >= 80

    @property
    def clusters(self) -> bool:
        """Whether blocks form clusters, and kernels start under the end of the one before."""
        return self.sm >= 90

    @property
    def wgmma(self) -> bool:
        """Whether warp groups multiply what a producer warp fetches by TMA. Later architectures
        have another instruction for that (`tcgen05`), or mma.sync alone."""
        return self.arch == "sm_90a"

    @property
    def tcgen05(self) -> bool:
        """Whether one thread issues matmuls whose sums lie in tensor memory."""
        return self.tensor_memory_bytes > 0

    def dot_unit(self, dtype: str) -> DotUnit | None:
        """What multiplies operands of a dtype (its name) on this CPU; None: plain vectors do."""
        if self.is_cuda:
            return None
        fitting = (u for u in DOT_UNITS if u.dtype == dtype and self._has(*u.features))
        return next(fitting, None)

    def _has(self, *features: str) -> bool:
        return {f"+{name}" for name in features} <= set(self.features.split(","))

    @property
    def dp4a(self) -> bool:
        """Whether vectors of 32-bit words add up four products of bytes at once (CPU)."""
        return self._has("avx512vnni", "avx512vl")

    def one_wave_columns(self, columns: int) -> int:
        """Columns of a block of a matmul of few rows: a multiple of 8, as few as let all blocks run
        at once, each on a processor of its own."""
        return max(16, -(-columns // (8 * self.units)) * 8)

    def lanes(self, bits: int) -> int:
        """How many elements of `bits` one vector register holds (CPU)."""
        return max(1, self.vector_bits // bits)

    @property
    def vector_fmas(self) -> int:
        """Multiply-adds of whole vectors that a core begins in a cycle (CPU): one where pipes are
        half as wide as vectors."""
        return 1 if self.arch == "znver4" and self.vector_bits == 512 else 2

    def peak(self, dtype: str = "f32", bits: int = 32) -> float:
        """Operations a second that no kernel exceeds which multiplies and adds operands of a dtype
        (its name and bits). A GPU with float32 matmuls on tensor cores takes three products of half
        the rate for each."""
        if self.is_cuda:
            if bits <= 16:
                return self.flops_f16 * (2 if bits <= 8 else 1)
            return max(self.flops_f32, self.flops_f16 / 6 if self.sm >= 80 else 0.0)
        unit = self.dot_unit("i8" if bits == 8 else dtype)
        rate = max(unit.rate, unit.group) if unit else 1.0
        cycles = self.units * (self.clock or NOMINAL_CLOCK)
        return cycles * 2 * self.lanes(32) * self.vector_fmas * rate

    @property
    def peak_bandwidth(self) -> float:
        """Bytes a second of main memory that no kernel exceeds."""
        return self.bandwidth if self.is_cuda else self.units * CORE_BANDWIDTH

    @property
    def tile_vectors(self) -> int:
        """Vectors of a dot's result that stay in registers, at most (CPU)."""
        return 28 if self.vector_registers >= 32 else 13

    def micro_tile(self, bits: int = 32) -> tuple[int, int]:
        """(rows, columns) of the register tile of a dot on a CPU.

        rows * columns accumulators plus one row of B vectors and a broadcast must fit the
        registers: 8 x 3 vectors with 32 registers, 6 x 2 with 16.
        """
        rows, vectors = (8, 3) if self.vector_registers >= 32 else (6, 2)
        return rows, vectors * self.lanes(bits)


SM_90A = Target(
    "cuda", "sm_90a", units=132, flops_f32=60e12, flops_f16=790e12, bandwidth=4.28e12,
    launch_cost=1.1e-6, shared_bytes=232448, l2_cache_bytes=50 << 20,
)  # fmt: skip
SM_100A = Target(
    "cuda", "sm_100a", units=148, flops_f32=75e12, flops_f16=2.25e15, bandwidth=8e12,
    launch_cost=1.1e-6, shared_bytes=232448, tensor_memory_bytes=256 << 10,
    l2_cache_bytes=126 << 20,
)  # fmt: skip
"""By the vendor's figures of a B200: nothing was measured on one."""
SM_80 = Target(
    "cuda", "sm_80", units=108, flops_f32=19e12, flops_f16=280e12, bandwidth=1.8e12,
    launch_cost=1.5e-6, shared_bytes=166912, l2_cache_bytes=40 << 20,
)  # fmt: skip
SM_75 = Target(
    "cuda", "sm_75", units=40, flops_f32=8.1e12, flops_f16=65e12, bandwidth=3.2e11,
    launch_cost=1.5e-6, shared_bytes=65536, l2_cache_bytes=4 << 20,
)  # fmt: skip
_SMALL_SHARED = 101376
"""Bytes of shared memory of a block where a multiprocessor has 100 KiB or 128 KiB of it."""


def cpu_target(
    arch: str,
    features: str,
    units: int | None = None,
    vector_bits: int = 256,
    *,
    vector_registers: int | None = None,
    l1_bytes: int = 32 << 10,
    l2_bytes: int = 1 << 20,
) -> Target:
    """A CPU target from LLVM's names; rates are per core estimates scaled by `units`."""
    if units is None:
        affinity = getattr(os, "sched_getaffinity", None)
        units = len(affinity(0)) if affinity else os.cpu_count() or 1
    per_core = vector_bits / 32 * 2 * 2 * NOMINAL_CLOCK
    registers = 32 if vector_bits == 512 or arch == "aarch64" else 16
    return Target(
        "cpu", arch, units=units, flops_f32=per_core * units, flops_f16=per_core * units,
        bandwidth=1.2e10 * units, launch_cost=5e-7, features=features, vector_bits=vector_bits,
        vector_registers=vector_registers or registers, l1_bytes=l1_bytes, l2_bytes=l2_bytes,
    )  # fmt: skip


X86_64_V3 = cpu_target("x86-64-v3", "+avx2,+fma,+f16c,+bmi2", 8, 256)
X86_64_V4 = cpu_target("x86-64-v4", "+avx512f,+avx512vl,+avx512dq,+avx512bw", 8, 512)
AARCH64 = cpu_target("aarch64", "+neon", 8, 128)
_VNNI = replace(X86_64_V4, features=X86_64_V4.features + ",+avx512vnni,+avx512bf16")
TARGETS: dict[str, Target] = {
    "sm_75": SM_75,
    "sm_80": SM_80,
    "sm_86": replace(SM_80, arch="sm_86", shared_bytes=_SMALL_SHARED),
    "sm_87": replace(SM_80, arch="sm_87"),
    "sm_89": replace(SM_80, arch="sm_89", shared_bytes=_SMALL_SHARED),
    "sm_90a": SM_90A,
    "sm_100a": SM_100A,
    "sm_120a": replace(SM_90A, arch="sm_120a", shared_bytes=_SMALL_SHARED),
    "avx2": X86_64_V3,
    "avx512": X86_64_V4,
    "avx512_vnni": _VNNI,
    "amx": replace(_VNNI, features=_VNNI.features + ",+amx-tile,+amx-int8,+amx-bf16"),
    "neon": AARCH64,
}
"""Targets to compile for from another machine: code for them uses what their name says, and no
more, whatever this machine has. GPUs newer than Hopper run code for sm_80; sm_100a and sm_120a are
for whoever asks for them."""
