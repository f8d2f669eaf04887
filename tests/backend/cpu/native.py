"""Run a compiled CPU kernel on NumPy arrays, with guard bytes around every buffer."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from fuser.backend.cpu import compile_kernel, host_target
from fuser.backend.module import CompiledKernel
from fuser.base.target import Target
from fuser.dtypes import DType
from fuser.graph import dims
from fuser.graph.sizes import evaluate
from fuser.runtime.jit import link_objects
from fuser.tilegen.builder import Builder
from fuser.tilegen.ir import Buffer, Kernel

Array = np.ndarray[Any, Any]
HOST = host_target()
GUARD = 4096
_FILL = 0x5A
_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


def pointer(b: Builder, name: str, dtype: DType, size: int, align: int = 0) -> Buffer:
    """A buffer that is a pointer of a caller."""
    buffer = b.buffer(name, dtype, size, "output")
    buffer.open, buffer.align = True, align
    return buffer


class Guarded:
    """`size` elements, 64-byte aligned (or `skew` bytes off), between guard bytes that must not
    change."""

    def __init__(self, size: int, dtype: np.dtype, skew: int = 0) -> None:
        count = size * dtype.itemsize
        self.raw = np.full(count + 2 * GUARD + 128, _FILL, np.uint8)
        self.start = GUARD + (-(self.raw.ctypes.data + GUARD)) % 64 + skew
        self.stop = self.start + count
        self.array = self.raw[self.start : self.stop].view(dtype)

    @property
    def address(self) -> int:
        return int(self.raw.ctypes.data) + self.start

    def check(self, name: str) -> None:
        assert (self.raw[: self.start] == _FILL).all(), f"{name}: written before the buffer"
        assert (self.raw[self.stop :] == _FILL).all(), f"{name}: written behind the buffer"


class Loaded:
    """A compiled kernel that is linked and bound to guarded copies of arrays."""

    def __init__(self, kernel: Kernel, arrays: Mapping[str, Array], target: Target = HOST) -> None:
        self.kernel = kernel
        self.compiled: CompiledKernel = compile_kernel(kernel, target)
        self._code = link_objects({self.compiled.entry: self.compiled.code})
        self._function = _ENTRY(self._code[self.compiled.entry])
        given = ("input", "constant")  # may start at any element
        self.buffers = {
            b.name: Guarded(b.size, b.dtype.numpy, b.dtype.bytes if b.role in given else 0)
            for b in kernel.buffers
        }
        for buffer in kernel.buffers:
            self.buffers[buffer.name].array[:] = arrays[buffer.name]
        addresses = [self.buffers[b.name].address for b in kernel.buffers]
        self._pointers = (ctypes.c_void_p * len(addresses))(*addresses)
        self.scratch = Guarded(self.compiled.scratch_bytes, np.dtype(np.uint8))

    def run(self, first: int = 0, last: int | None = None) -> None:
        stop = self.compiled.programs if last is None else last
        self._function(
            ctypes.cast(self._pointers, ctypes.c_void_p), first, stop, self.scratch.address
        )

    def check_guards(self) -> None:
        for name, guarded in self.buffers.items():
            guarded.check(name)
        self.scratch.check("scratch")


def run(kernel: Kernel, arrays: dict[str, Array], target: Target = HOST) -> dict[str, Array]:
    """Like fuser.tilegen.interpret.run, natively: results replace the arrays' contents. Nothing is
    known of which elements were written; poison shows it."""
    loaded = Loaded(kernel, arrays, target)
    loaded.run()
    loaded.check_guards()
    for buffer in kernel.buffers:
        have = loaded.buffers[buffer.name].array
        if buffer.role in ("input", "constant"):
            np.testing.assert_array_equal(
                have.view(np.uint8), np.ascontiguousarray(arrays[buffer.name]).view(np.uint8)
            )
        else:
            arrays[buffer.name][:] = have
    return {}


def numbers(
    kernel: Kernel,
    compiled: CompiledKernel,
    scalars: Mapping[str, float | int | bool],
    sizes: Mapping[str, int],
) -> Array:
    """The slots behind the buffers: sizes, then the bits of the scalars."""
    found = [evaluate(dims.parse(text), sizes) for text in compiled.facts.get("sizes", ())]
    slots = np.full((len(found) + len(kernel.scalars), 8), 0xA5, np.uint8)
    for slot, size in zip(slots, found, strict=False):
        slot[:] = np.array(size, np.int64).reshape(1).view(np.uint8)
    for slot, value in zip(slots[len(found) :], kernel.scalars, strict=True):
        raw = np.array([scalars[value.name]], value.dtype.numpy).view(np.uint8)
        slot[: raw.size] = raw
    return slots


def run_in_place(
    kernel: Kernel,
    arrays: Mapping[str, Array],
    *,
    scalars: Mapping[str, float | int | bool] | None = None,
    sizes: Mapping[str, int] | None = None,
    target: Target = HOST,
    threads: int = 1,
    compiled: CompiledKernel | None = None,
) -> CompiledKernel:
    """Run on the arrays themselves, which may overlap, as the kernel's buffers may. threads: over
    which the programs of the grid are dealt out. compiled: the kernel, from an earlier run."""
    for buffer in kernel.buffers:
        given = buffer.role in ("input", "constant")
        needed = max(buffer.align, buffer.dtype.bytes)
        needed = needed if buffer.open or given else 64
        assert arrays[buffer.name].ctypes.data % needed == 0, f"{buffer.name} is not aligned"
    compiled = compiled or compile_kernel(kernel, target)
    code = link_objects({compiled.entry: compiled.code})
    function = _ENTRY(code[compiled.entry])
    slots = numbers(kernel, compiled, scalars or {}, sizes or {})
    addresses = [arrays[b.name].ctypes.data for b in kernel.buffers] + [slots.ctypes.data]
    pointers = (ctypes.c_void_p * len(addresses))(*addresses)
    total = compiled.programs
    if sizes:
        total = int(np.prod([evaluate(dims.parse(n), sizes) for n in compiled.facts["grid"]]))

    def some(first: int) -> Guarded:
        scratch = Guarded(compiled.scratch_bytes, np.dtype(np.uint8))
        for program in range(first, total, threads):
            function(ctypes.cast(pointers, ctypes.c_void_p), program, program + 1, scratch.address)
        return scratch

    with ThreadPoolExecutor(threads) as pool:
        for scratch in pool.map(some, range(threads)):
            scratch.check("scratch")
    return compiled
