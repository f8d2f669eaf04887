"""triton.testing: timing, comparison, and tables over sizes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fuser.triton.driver import driver
from fuser.triton.timing import measure, measure_in_graph


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


__all__ = ["Benchmark", "Mark", "assert_close", "do_bench", "do_bench_cudagraph", "perf_report"]
