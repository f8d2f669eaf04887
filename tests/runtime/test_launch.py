"""Kernels launched on arrays of a caller: grids and sizes at launch, threads, refusals."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from fuser.backend.cpu import compile_kernel as compile_for_cpu
from fuser.backend.cpu import host_target
from fuser.backend.module import CompiledKernel
from fuser.dtypes import bf16, bool_, f16, f32, f64, i8, i32, i64, u64
from fuser.errors import UsageError
from fuser.runtime import launch_cost
from fuser.runtime.arrays import describe
from fuser.runtime.cpu import CHUNKS_PER_THREAD
from fuser.runtime.geometry import Geometry, scalar_bits
from fuser.runtime.launch import CpuKernel
from fuser.runtime.memory import aligned_array
from fuser.runtime.threads import get_pool
from fuser.tilegen.ir import Kernel
from tests.runtime.pools import taken

from .language_kernels import BLOCK, add_columns, vector_add


def for_cpu(kernel: Kernel) -> CompiledKernel:
    return compile_for_cpu(kernel, host_target())


def drawn(*shape: int) -> np.ndarray:
    made = aligned_array(shape, np.dtype(np.float32))
    made[...] = np.random.default_rng(0).random(shape)
    return made


def blank(*shape: int) -> np.ndarray:
    made = aligned_array(shape, np.dtype(np.float32))
    made[...] = 0
    return made


def launch(kernel: CpuKernel, arrays: Any, grid: Any, **values: int) -> None:
    kernel.launch([describe(array).address for array in arrays], grid, values)


def ceildiv(a: int, b: int) -> int:
    return -(-a // b)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_one_code_serves_all_sizes(threads: int) -> None:
    kernel = CpuKernel(vector_add(for_cpu), threads)
    for n in (1000, 2, 128, 129, 300_000, 1000):
        x, y, out = drawn(n), drawn(n), blank(n)
        launch(kernel, (x, y, out), (ceildiv(n, BLOCK),), n=n)
        np.testing.assert_array_equal(out, x + y)


def test_a_grid_smaller_than_the_array() -> None:
    kernel = CpuKernel(vector_add(for_cpu), 1)
    x, y, out = drawn(1000), drawn(1000), drawn(1000)
    out[...] = -1
    launch(kernel, (x, y, out), (3,), n=1000)
    np.testing.assert_array_equal(out[: 3 * BLOCK], (x + y)[: 3 * BLOCK])
    assert (out[3 * BLOCK :] == -1).all()
    launch(kernel, (x, y, out), (0,), n=1000)
    assert (out[3 * BLOCK :] == -1).all()


def test_grids_of_two_axes() -> None:
    kernel = CpuKernel(add_columns(for_cpu), 2)
    for rows, columns in ((10, 300), (3, 1), (200, 1000)):
        x, y, out = drawn(rows, columns), drawn(rows, columns), drawn(rows, columns)
        launch(kernel, (x, y, out), None, rows=rows, columns=columns)
        np.testing.assert_array_equal(out, x + y)
        grid = (rows, ceildiv(columns, BLOCK), 1)
        launch(kernel, (x, y, out), grid, rows=rows, columns=columns)
    with pytest.raises(UsageError, match=r"the grid is \(10, 4\), the code is for"):
        launch(kernel, (x, y, out), (10, 4), rows=10, columns=300)


def test_two_threads_at_a_time() -> None:
    """Of launches at the same time, one has the pool, and each its own numbers and scratch."""
    kernel = CpuKernel(vector_add(for_cpu), 2)
    kernel.estimate[0] = launch_cost.MOST  # worth the pool
    failed = []

    def work(n: int) -> None:
        x, y = drawn(n), drawn(n)
        for _ in range(300):
            out = blank(n)
            launch(kernel, (x, y, out), (ceildiv(n, BLOCK),), n=n)
            if not (out == x + y).all():
                failed.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in (700, 9000, 20_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_a_busy_pool_is_not_waited_for() -> None:
    kernel = CpuKernel(vector_add(for_cpu), 2)
    n = 100_000
    x, y, out = drawn(n), drawn(n), drawn(n)
    with taken(get_pool(2)):
        launch(kernel, (x, y, out), (ceildiv(n, BLOCK),), n=n)
    np.testing.assert_array_equal(out, x + y)


def test_cheap_launches_stay_on_their_thread() -> None:
    estimate = launch_cost.first_estimate(1e-7)
    assert [launch_cost.chunks(estimate, programs, 2) for programs in (1, 150)] == [0, 0]
    assert launch_cost.chunks(launch_cost.MOST, 1, 2) == launch_cost.chunks(estimate, 10**6, 1) == 0
    chunks = [launch_cost.chunks(estimate, programs, 2) for programs in (250, 1000, 10**6)]
    assert chunks == sorted(chunks) and chunks[-1] == 2 * CHUNKS_PER_THREAD
    assert all(count % 2 == 0 and count for count in chunks)


def test_estimates_follow_launches() -> None:
    """Down at once, up in steps; from the pool back to one thread where the pool was no use."""
    slow, quick = (launch_cost.first_estimate(seconds) for seconds in (1e-4, 1e-7))
    assert launch_cost.learned(slow, 10, 1e-6, True) == pytest.approx(quick, rel=0.01)
    assert launch_cost.learned(quick, 10, 1e-3, True) == 2 * quick
    assert launch_cost.learned(slow, 10, 1e-3, False) == slow
    falling = slow
    while launch_cost.chunks(falling, 10, 2):
        before, falling = falling, launch_cost.learned(falling, 10, 1e-6, False)
        assert falling < before
    assert launch_cost.learned(1, 10**9, 0.0, True) == launch_cost.learned(1, 5, 0.0, False) == 1


def test_the_first_launch_measures_one_program() -> None:
    kernel = CpuKernel(vector_add(for_cpu), 2)
    n = 1000
    x, y, out = drawn(n), drawn(n), blank(n)
    assert kernel.estimate[0] == 0
    launch(kernel, (x, y, out), (ceildiv(n, BLOCK),), n=n)
    np.testing.assert_array_equal(out, x + y)
    assert kernel.estimate[0] > 0


@pytest.mark.parametrize(
    ("grid", "values", "words"),
    [
        ((8, 2), {"n": 1000}, "does not fit a kernel with 1 grid axis"),
        ((-1,), {"n": 1000}, "does not fit"),
        ((8,), {}, "the size n has no value"),
        (None, {"n": 1000}, "the grid grid0 has no value"),
    ],
)
def test_refusals(grid: Any, values: dict[str, int], words: str) -> None:
    kernel = CpuKernel(vector_add(for_cpu), 1)
    with pytest.raises(UsageError, match=words) as caught:
        kernel.launch([0, 0, 0], grid, values)
    assert caught.value.hint


def test_scalars_are_counted() -> None:
    kernel = CpuKernel(vector_add(for_cpu), 1)
    with pytest.raises(UsageError, match="1 scalars for 0"):
        kernel.launch([0, 0, 0], (1,), {"n": 100}, (7,))


def test_what_a_gpu_launch_takes() -> None:
    facts = {
        "grid": ["grid0", "2"], "sizes": ["n"], "scalars": ["alpha"],
        "launch": ["2*grid0", "1", "1"],
    }  # fmt: skip
    kernel = CompiledKernel("k", "sm_90a", "k", b"", (8, 2), launch=(16, 1, 1), facts=facts)
    geometry = Geometry(kernel)
    placed = geometry.at((5, 2), {"n": 77})
    assert (placed.grid, placed.sizes, placed.launch) == ((5, 2), (77,), (10, 1, 1))
    assert geometry.scalars == ("alpha",)
    with pytest.raises(UsageError, match="a GPU at most"):
        geometry.at((1 << 31, 2), {"n": 77})


@pytest.mark.parametrize(
    ("value", "dtype", "bits"),
    [
        (1.0, f32, 0x3F800000), (-2.0, f64, 0xC000000000000000 - (1 << 64)), (1.0, f16, 0x3C00),
        (1.0, bf16, 0x3F80), (-1, i32, 0xFFFFFFFF), (-1, i64, -1), (-1, i8, 0xFF),
        ((1 << 64) - 1, u64, -1), (True, bool_, 1), (1e300, f32, 0x7F800000),
    ],
)  # fmt: skip
def test_bits_of_scalars(value: Any, dtype: Any, bits: int) -> None:
    assert scalar_bits(value, dtype) == bits


def test_integers_that_do_not_fit() -> None:
    with pytest.raises(UsageError, match="128 does not fit i8"):
        scalar_bits(128, i8)


@pytest.mark.cuda
def test_launches_on_the_gpu() -> None:
    from fuser.backend.nvptx import compile_kernel
    from fuser.runtime.cuda import device_target
    from fuser.runtime.launch import CudaKernel, stream_for

    torch = pytest.importorskip("torch")
    compiled = vector_add(lambda kernel: compile_kernel(kernel, device_target()))
    kernel = CudaKernel(compiled)
    for n in (1000, 2, 100_000):
        x, y = torch.rand(n, device="cuda"), torch.rand(n, device="cuda")
        out = torch.zeros(n, device="cuda")
        records = [describe(tensor) for tensor in (x, y, out)]
        with torch.cuda.stream(torch.cuda.Stream()) as _:
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            stream = stream_for(records, 0)
            assert stream == torch.cuda.current_stream().cuda_stream
            pointers = [record.address for record in records]
            kernel.launch(pointers, (ceildiv(n, BLOCK),), {"n": n}, stream=stream)
        torch.cuda.synchronize()
        assert torch.equal(out, x + y)
    kernel.close()
