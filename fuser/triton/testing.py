"""triton.testing: timing, comparison, and tables over sizes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fuser.errors import DeviceError, UsageError
from fuser.triton.absent import names
from fuser.triton.driver import driver
from fuser.triton.timing import measure, measure_in_graph
from fuser.triton.timing import summary as _summarize_statistics  # noqa: F401


def do_bench(
    fn: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    grad_to_none: Sequence[Any] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
) -> Any:
    """Milliseconds of a call of fn on the current device; its caches are emptied before each.

    warmup, rep: milliseconds to warm up and to measure for. grad_to_none: tensors whose gradients
    are dropped before a run. return_mode: mean, median, min, max or all.
    """
    return measure(driver.active, fn, warmup, rep, grad_to_none, quantiles, return_mode)


def do_bench_cudagraph(
    fn: Callable[[], Any],
    rep: float = 20,
    grad_to_none: Sequence[Any] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
) -> Any:
    """Milliseconds of a call of fn within a CUDA graph of many; on CPUs as do_bench."""
    return measure_in_graph(driver.active, fn, rep, grad_to_none, quantiles, return_mode)


def _array(x: Any) -> np.ndarray:
    if hasattr(x, "detach"):
        x = x.detach().cpu()
        x = x.float() if str(x.dtype) == "torch.bfloat16" else x
        return np.asarray(x.numpy())
    return np.asarray(x)


def assert_close(x: Any, y: Any, atol: Any = None, rtol: Any = None, err_msg: str = "") -> None:
    """Raise AssertionError unless |x - y| <= atol + rtol * |y| everywhere; NaN equals NaN.

    atol (0.01), rtol (0): numbers, or functions of a dtype.
    """
    near = 1e-2 if atol is None else atol(x.dtype) if callable(atol) else atol
    part = 0.0 if rtol is None else rtol(x.dtype) if callable(rtol) else rtol
    np.testing.assert_allclose(_array(x), _array(y), rtol=part, atol=near, err_msg=err_msg)


@dataclass
class Benchmark:
    """What to measure over: x_vals for the arguments x_names, a line for each of line_vals."""

    x_names: list[str]
    x_vals: list[Any]
    line_arg: str
    line_vals: list[Any]
    line_names: list[str]
    plot_name: str
    args: dict[str, Any]
    xlabel: str = ""
    ylabel: str = ""
    x_log: bool = False
    y_log: bool = False
    styles: Any = None


@dataclass
class Mark:
    """A function under perf_report: `run` measures it and prints a table."""

    fn: Callable[..., Any]
    benchmarks: Any
    rows: dict[str, list[list[Any]]] = field(default_factory=dict)

    def run(
        self,
        show_plots: bool = False,
        print_data: bool = False,
        save_path: str = "",
        return_df: bool = False,
        **named: Any,
    ) -> Any:
        """Measure. save_path: a folder for a CSV file of each benchmark. return_df: give the rows
        back, a list for each benchmark (its first item is the heads). Plots are not drawn."""
        several = isinstance(self.benchmarks, Sequence)
        tables = []
        for bench in self.benchmarks if several else [self.benchmarks]:
            table = self._table(bench, named)
            tables.append(table)
            if print_data or show_plots:
                print(f"{bench.plot_name}:")
                for row in table:
                    print("  ".join(f"{_shown(item):>14}" for item in row))
            if save_path:
                os.makedirs(save_path, exist_ok=True)
                with open(os.path.join(save_path, f"{bench.plot_name}.csv"), "w") as out:
                    out.writelines(",".join(map(_shown, row)) + "\n" for row in table)
        return (tables if several else tables[0]) if return_df else None

    def _table(self, bench: Benchmark, named: dict[str, Any]) -> list[list[Any]]:
        table: list[list[Any]] = [[*bench.x_names, *bench.line_names]]
        for x in bench.x_vals:
            items = x if isinstance(x, tuple | list) else [x] * len(bench.x_names)
            places = dict(zip(bench.x_names, items, strict=True))
            row = list(items)
            for line in bench.line_vals:
                found = self.fn(**places, **{bench.line_arg: line}, **bench.args, **named)
                row.append(found[0] if isinstance(found, tuple | list) else found)
            table.append(row)
        return table


def _shown(item: Any) -> str:
    return f"{item:.6g}" if isinstance(item, float) else str(item)


def perf_report(benchmarks: Any) -> Callable[[Callable[..., Any]], Mark]:
    """Mark a function for measuring with a Benchmark or several."""
    return lambda fn: Mark(fn, benchmarks)


# what devices can do ------------------------------------------------------------------------------

TENSOR_CORES: dict[int, dict[int, int]] = {
    7: {16: 256}, 8: {32: 256, 16: 512, 8: 1024},
}  # fmt: skip
"""By the major compute capability (later ones as 8) and the bits of a number: operations a clock of
a quarter of a multiprocessor, as Triton counts them."""
SIMD = {32: 32, 16: 64}
KILO, TERA = 1e3, 1e12
QUARTERS = 4


def get_dram_gbps(device: Any = None) -> float:
    """Gigabytes a second of the memory of a GPU by its clock and its width; of the CPU what fuser's
    cost model takes it to give."""
    active = driver.active
    if active.on_gpu:
        number = active.get_current_device() if device is None else int(device)
        facts = active.utils.get_device_properties(number)
        rate = facts["mem_clock_rate"] * KILO * facts["mem_bus_width"] / 8 * 2  # two a clock
        if rate:  # some drivers tell no clock
            return float(rate / 1e9)
    return float(_target().bandwidth / 1e9)


def get_max_tensorcore_tflops(dtype: Any, clock_rate: float, device: Any = None) -> float:
    """10 ** 12 operations a second of the tensor cores of a GPU at a clock in kHz, as Triton counts
    them; of the CPU what fuser's cost model takes it to give, whatever the clock is. Raises
    UsageError for a type that they do not multiply."""
    bits = _bits(dtype)
    if not driver.active.on_gpu:
        return _of_cpu(dtype, bits, (8, 16, 32))
    major = _capability(device)[0]
    return _quarters(dtype, bits, TENSOR_CORES[min(max(major, 7), 8)], clock_rate, device)


def get_max_simd_tflops(dtype: Any, clock_rate: float, device: Any = None) -> float:
    """10 ** 12 operations a second of a GPU without its tensor cores at a clock in kHz, as Triton
    counts them; of the CPU as get_max_tensorcore_tflops. Raises UsageError for a type that is
    neither float32 nor of 16 bits."""
    bits = _bits(dtype)
    if not driver.active.on_gpu:
        return _of_cpu(dtype, bits, (16, 32))
    return _quarters(dtype, bits, SIMD, clock_rate, device)


def _target() -> Any:
    from fuser.pipeline.devices import choose_target

    return choose_target("cuda" if driver.active.on_gpu else "cpu")


def _bits(dtype: Any) -> int:
    from fuser.triton._utils import get_primitive_bitwidth

    return get_primitive_bitwidth(str(dtype))


def _of_cpu(dtype: Any, bits: int, known: Sequence[int]) -> float:
    if bits not in known:
        raise UsageError(f"nothing is known of operations on {dtype}", hint="float32 or float16")
    target = _target()
    return float((target.flops_f16 if bits == 16 else target.flops_f32) / TERA)


def _capability(device: Any) -> tuple[int, int]:
    number = driver.active.get_current_device() if device is None else device
    found: tuple[int, int] = driver.active.get_device_capability(number)
    return found


def _quarters(
    dtype: Any, bits: int, table: dict[int, int], clock_rate: float, device: Any
) -> float:
    if bits not in table:
        raise UsageError(f"{dtype} is not multiplied there", hint=f"bits: {[*table]}")
    number = driver.active.get_current_device() if device is None else int(device)
    count = driver.active.utils.get_device_properties(number)["multiprocessor_count"] * QUARTERS
    return float(count * clock_rate * KILO * table[bits] / TERA)


def nvsmi(attrs: Sequence[str]) -> list[int]:
    """What `nvidia-smi --query-gpu` tells of the first GPU: whole numbers, in the order of attrs.
    Raises DeviceError where there is no such program, or no GPU."""
    import subprocess

    command = ["nvidia-smi", "-i", "0", f"--query-gpu={','.join(attrs)}",
               "--format=csv,noheader,nounits"]  # fmt: skip
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return [int(item) for item in told.split(",")]
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise DeviceError(f"nvidia-smi does not tell {', '.join(attrs)}: {error}") from None


@contextmanager
def cuda_graph_without_gc(*args: Any, **named: Any) -> Iterator[Any]:
    """`torch.cuda.graph(...)` without Python's garbage collection while it captures."""
    import gc

    import torch

    on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        with torch.cuda.graph(*args, **named) as graph:
            yield graph
    finally:
        if on:
            gc.enable()


__getattr__ = names(
    __name__,
    "cublas cuda_memcheck do_bench_cudagraph_proton do_bench_proton set_gpu_clock",
    "fuser changes no clocks and starts no library or tool of CUDA's",
    "use nvidia-smi, compute-sanitizer, and do_bench",
)


__all__ = [
    "Benchmark", "Mark", "assert_close", "cuda_graph_without_gc", "do_bench",
    "do_bench_cudagraph", "get_dram_gbps",
    "get_max_simd_tflops", "get_max_tensorcore_tflops", "nvsmi", "perf_report",
]  # fmt: skip
