"""Host time of launching a kernel, by door, and the floors that Python sets.

    python -m benchmarks.launch_cost
    python -m benchmarks.launch_cost --only numpy --rounds 20

The kernel adds two vectors in two programs, so that little but the launch is timed; arguments are
three arrays, their length and a block size. Doors: `fast` is the native launcher called with
tuples; `kernel[grid](...)` a kernel of the block language, with the block size by name, and
`kernel[function](...)` one whose grid is computed; `slow` describes every array and launches. On a
GPU launches are only put on the stream, which is emptied between rounds, and Triton's launch of the
same kernel takes turns where Triton is installed; `matmul[grid](...)` is a small matmul, whose
tensor maps are encoded at each launch where the GPU has them; and `cuLaunchKernelEx` is the driver
alone, called from a native loop: the floor. Microseconds a launch, the least of the rounds;
each round is timed as a whole. Results are checked.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import fuser.triton as triton
import fuser.triton.language as tl
from fuser.backend.cpu import compile_kernel as compile_for_cpu
from fuser.backend.cpu import host_target
from fuser.backend.module import CompiledKernel
from fuser.dtypes import f32
from fuser.errors import DeviceError
from fuser.graph.dims import symbol
from fuser.graph.sizes import Sizes
from fuser.runtime.arrays import describe
from fuser.runtime.cpu_launch import CpuKernel
from fuser.runtime.cuda_launch import CudaKernel, stream_for
from fuser.runtime.fast_launch import (
    Constant,
    Integer,
    Pointer,
    Signature,
    make_fast_launcher,
    why_not,
)
from fuser.runtime.jit import link_native
from fuser.runtime.memory import aligned_array
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import axis, index
from fuser.tilegen.ir import Kernel

BLOCK, GRID = 128, (2,)
SIZE = 2 * BLOCK
LAUNCHES = 1000
"""A round; a GPU's queue holds as many."""
TARGETS = {"cpu": 2.0, "cuda": 3.0}
SIGNATURE = Signature(
    (Pointer(writes=False), Pointer(writes=False), Pointer(),
     Integer(low=2, high=(1 << 31) - 1), Constant(BLOCK)),
    (0, 1, 2), {"n": (3, 1)},
)  # fmt: skip


@dataclass
class Case:
    device: str
    arrays: str
    door: str
    call: Callable[[], object]
    check: Callable[[], None] | None = None
    launches: int = 1
    best: float = float("inf")


def vector_add() -> Kernel:
    """out = x + y; to be called with the Sizes n and grid0 active."""
    n, blocks = symbol("n"), symbol("grid0")
    b = Builder("vector_add")
    x, y = b.buffer("x", f32, n), b.buffer("y", f32, n)  # type: ignore[arg-type]
    out = b.buffer("out", f32, n, role="output")  # type: ignore[arg-type]
    at = index(b.program_id(0, blocks)) * BLOCK + axis(0, BLOCK)  # type: ignore[arg-type]
    first, second = (b.load(b.view(item, (n,)), (at,), (BLOCK,)) for item in (x, y))  # type: ignore[arg-type]
    b.store(b.view(out, (n,)), (at,), b.map("add", first, second))  # type: ignore[arg-type]
    return b.build()


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def matmul(a, b, c, M, N, K, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for first in range(0, K, 64):
        inner = first + tl.arange(0, 64)
        x = tl.load(a + rows[:, None] * K + inner[None, :],
                    mask=(rows[:, None] < M) & (inner[None, :] < K), other=0.0)  # fmt: skip
        y = tl.load(b + inner[:, None] * N + columns[None, :],
                    mask=(inner[:, None] < K) & (columns[None, :] < N), other=0.0)  # fmt: skip
        total = tl.dot(x, y, total)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(tl.float16), mask=inside)


def cpu_cases(arrays: str) -> list[Case]:
    with Sizes({"n": 1000, "grid0": 8}):
        compiled = compile_for_cpu(vector_add(), host_target())
    made = []
    for seed in range(3):
        array = aligned_array((SIZE,), np.dtype(np.float32))
        array[...] = np.random.default_rng(seed).random(SIZE)
        made.append(array)
    x, y, out = made
    given: Sequence[Any] = made
    if arrays == "torch":
        import torch

        given = [torch.from_numpy(array) for array in made]
    kernel = CpuKernel(compiled)

    def slow() -> None:
        addresses = [describe(array).address for array in given]
        kernel.launch(addresses, GRID, {"n": SIZE})

    slow()
    cases = doors("cpu", arrays, kernel, (*given, SIZE, BLOCK), slow)
    for case in cases:
        out[...] = 0
        case.call()
        np.testing.assert_array_equal(out, x + y, err_msg=case.door)
    return cases


def cuda_cases() -> list[Case]:
    import torch

    from fuser.backend.nvptx import compile_kernel
    from fuser.runtime.cuda import device_target

    with Sizes({"n": 1000, "grid0": 8}):
        compiled: CompiledKernel = compile_kernel(vector_add(), device_target())
    x, y, out = (torch.rand(SIZE, device="cuda") for _ in range(3))
    kernel = CudaKernel(compiled)

    def slow() -> None:
        records = [describe(tensor) for tensor in (x, y, out)]
        stream = stream_for(records, 0)
        kernel.launch([item.address for item in records], GRID, {"n": SIZE}, stream=stream)

    cases = doors("cuda", "torch", kernel, (x, y, out, SIZE, BLOCK), slow)
    cases += [by_matmul(torch), by_driver(kernel, (x, y, out))]
    if importlib.util.find_spec("triton") is not None:
        cases.append(Case("cuda", "torch", "Triton kernel[grid](...)", by_triton(x, y, out)))
    for case in cases:
        out.zero_()
        if case.check is not None:
            case.check()
            continue
        case.call()
        torch.cuda.synchronize()
        assert torch.equal(out, x + y), case.door
    return cases


def by_matmul(torch: Any) -> Case:
    a, b = (torch.rand(256, 256, device="cuda", dtype=torch.float16) for _ in range(2))
    c = torch.empty_like(a)

    def call() -> Any:
        return matmul[(2, 2)](a, b, c, 256, 256, 256, BLOCK=128)

    def check() -> None:
        maps = len(call().variant.compiled.tensor_maps)
        c.zero_()
        call()  # natively
        torch.cuda.synchronize()
        torch.testing.assert_close(c, a @ b)
        case.door = f"matmul[grid](...), {maps} tensor maps"

    case = Case("cuda", "torch", "", call, check)
    return case


def by_driver(kernel: CudaKernel, arrays: Sequence[Any]) -> Case:
    """A round of launches in native code; it is timed as one call."""
    compiled = kernel.kernel
    library = ctypes.CDLL("libcuda.so.1")
    address = ctypes.cast(library.cuLaunchKernelEx, ctypes.c_void_p).value
    numbers = [SIZE] * len(kernel.geometry.sizes)
    words = (ctypes.c_int64 * 8)(*(array.data_ptr() for array in arrays), *numbers)
    params = (ctypes.c_void_p * 8)(*(ctypes.addressof(words) + 8 * i for i in range(8)))
    config = (ctypes.c_uint32 * 14)(2, 1, 1, compiled.threads, 1, 1, compiled.shared_bytes)
    text = LOOP.format(
        launch=address, config=ctypes.addressof(config), function=int(kernel.function),
        params=ctypes.addressof(params), count=LAUNCHES,
    )  # fmt: skip
    code = link_native(text, {}, ("launches",))
    function = ctypes.CFUNCTYPE(None)(code["launches"])
    kept = words, params, config, code

    def run() -> None:
        assert kept
        function()

    def check() -> None:
        run()
        sys.modules["torch"].cuda.synchronize()
        x, y, out = arrays
        assert (out == x + y).all()

    return Case("cuda", "", "floor: cuLaunchKernelEx", run, check, LAUNCHES)


LOOP = """
define void @launches() {{
start:
  br label %next
next:
  %i = phi i64 [ 0, %start ], [ %following, %next ]
  call i32 inttoptr (i64 {launch} to ptr)(i64 {config}, i64 {function}, i64 {params}, i64 0)
  %following = add i64 %i, 1
  %more = icmp slt i64 %following, {count}
  br i1 %more, label %next, label %done
done:
  ret void
}}
"""


def by_triton(x: Any, y: Any, out: Any) -> Callable[[], object]:
    from benchmarks import triton_add

    return lambda: triton_add.add[(2,)](x, y, out, SIZE, BLOCK=BLOCK)


def blocks(meta: dict[str, Any]) -> tuple[int]:
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def doors(
    device: str, arrays: str, kernel: CpuKernel | CudaKernel, args: tuple[Any, ...],
    slow: Callable[[], None],
) -> list[Case]:  # fmt: skip
    fast = make_fast_launcher(kernel, SIGNATURE, args)
    if fast is None:
        print(f"{device}, {arrays}: no native launch: {why_not(kernel, SIGNATURE, args)}")
        return [Case(device, arrays, "slow", slow)]
    grid = GRID
    x, y, out, n, _ = args

    def by_tuples() -> None:
        fast(args, grid)

    def by_function() -> None:
        add[blocks](x, y, out, n, BLOCK=BLOCK)

    def by_name() -> None:
        add[(2,)](x, y, out, n, BLOCK=BLOCK)

    return [
        Case(device, arrays, "fast(args, grid)", by_tuples),
        Case(device, arrays, "kernel[grid](...)", by_name),
        Case(device, arrays, "kernel[function](...)", by_function),
        Case(device, arrays, "slow", slow),
    ]


def floors() -> list[Case]:
    absolute = ctypes.CDLL(None).abs
    absolute.argtypes, absolute.restype = (ctypes.c_int,), ctypes.c_int

    def nothing(*args: Any, **named: Any) -> None: ...

    return [
        Case("", "", "floor: a Python call", lambda: None),
        Case("", "", "floor: 4 arguments and a name", lambda: nothing(1, 2, 3, 4, BLOCK=5)),
        Case("", "", "floor: a ctypes call", lambda: absolute(3)),
    ]


def measure(case: Case) -> None:
    """A round. What calls the case's function is timed as well: the first floor."""
    call, each = case.call, range(LAUNCHES // case.launches)
    start = time.perf_counter()
    for _ in each:
        call()
    case.best = min(case.best, (time.perf_counter() - start) / LAUNCHES)
    if case.device == "cuda":
        sys.modules["torch"].cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="numpy, torch, cuda")
    parser.add_argument("--rounds", type=int, default=50)
    chosen = parser.parse_args()
    wanted = chosen.only or ["numpy", "torch", "cuda"]
    torch = importlib.util.find_spec("torch") is not None
    cases = floors()
    if "numpy" in wanted:
        cases += cpu_cases("numpy")
    if "torch" in wanted and torch:
        cases += cpu_cases("torch")
    if "cuda" in wanted and torch:
        try:
            cases += cuda_cases()
        except DeviceError as error:
            print(f"no GPU: {error}")
    for _ in range(chosen.rounds):
        for case in cases:
            measure(case)
    for case in cases:
        name = " ".join(part for part in (case.device, case.arrays, case.door) if part)
        target = TARGETS.get(case.device) if "kernel[grid]" in case.door else None
        note = f"  (target {target:g})" if target and "Triton" not in name else ""
        print(f"{name:42} {case.best * 1e6:8.3f} us{note}")


if __name__ == "__main__":
    main()
