"""What the tutorials share and what is no part of their stories: arrays, checks, timing.

An array is a NumPy array on the CPU and a PyTorch tensor on a GPU; kernels take both.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "tf32": 2.0**-10}
"""The distance from 1 to the next number of a type."""


# arrays -------------------------------------------------------------------------------------------


def draw(seed: int, shape: Sequence[int], dtype: str = "float32", device: str = "cpu") -> Any:
    """Normal random numbers, the same on every device."""
    return put(np.random.default_rng(seed).standard_normal(shape).astype(dtype), device)


def empty(shape: Sequence[int], dtype: str = "float32", device: str = "cpu") -> Any:
    """An array for a result; it holds NaN (or -1), so that what is not written shows."""
    return put(np.full(shape, np.nan if dtype.startswith("float") else -1, dtype), device)


def scratch(shape: Sequence[int], dtype: str = "float32", device: str = "cpu") -> Any:
    """Memory for what one kernel leaves to another; nothing is in it yet."""
    if device == "cpu":
        return np.empty(shape, dtype)
    import torch

    return torch.empty(tuple(shape), dtype=getattr(torch, dtype), device=device)


def zeros(shape: Sequence[int], dtype: str = "float32", device: str = "cpu") -> Any:
    """An array of zeros, for a sum or a counter."""
    found = scratch(shape, dtype, device)
    found[...] = 0
    return found


def put(array: np.ndarray, device: str) -> Any:
    """A NumPy array on a device."""
    if device == "cpu":
        return array
    import torch

    return torch.from_numpy(array).to(device)


def host(array: Any) -> np.ndarray:
    """The array as NumPy has it."""
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()


def exact(array: Any) -> np.ndarray:
    """The array in float64, for the reference."""
    return host(array).astype(np.float64)


def strides(array: Any) -> tuple[int, ...]:
    """The distance of neighbours along each axis, in elements."""
    if isinstance(array, np.ndarray):
        return tuple(stride // array.itemsize for stride in array.strides)
    return tuple(array.stride())


def device_of(array: Any) -> str:
    """cpu or cuda."""
    return "cpu" if isinstance(array, np.ndarray) else str(array.device.type)


def operands_of_dot(dtype: str, device: str) -> str:
    """What `dot` rounds its operands to: float32 loses bits on tensor cores."""
    return "tf32" if dtype == "float32" and device == "cuda" else dtype


def multiprocessors(array: Any) -> int:
    """How many processors work on programs at the same time: multiprocessors of a GPU, cores."""
    if device_of(array) == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(array.device).multi_processor_count)
    import os

    return os.cpu_count() or 1


# checks -------------------------------------------------------------------------------------------


def assert_close(
    result: Any, reference: np.ndarray, terms: int = 1, dtype: str = "", dots: int = 1
) -> None:
    """Every element is as close to the float64 reference as roundings allow.

    terms: how many numbers a sum has; the roundings of a sum grow with its square root. dtype: the
    narrowest type that a number is rounded to on its way, if that is not the result's. dots: how
    many products stand one behind another; each rounds its operands, and these errors add up. An
    error is relative to its element plus the root mean square of all.
    """
    found = host(result)
    assert found.shape == reference.shape, f"shape {found.shape}, not {reference.shape}"
    limit = 4 * (dots * EPSILON[dtype or str(found.dtype)] + EPSILON["float32"] * terms**0.5)
    scale = np.abs(reference) + np.sqrt(np.mean(reference**2)) + np.finfo(np.float64).tiny
    error = np.abs(found.astype(np.float64) - reference) / scale
    worst = float(np.max(error)) if error.size else 0.0
    assert worst <= limit, f"an element is off by {worst:.1e}, allowed are {limit:.1e}"


def assert_repeats(run: Callable[[], Any], *results: Any) -> None:
    """A second run writes the same bits."""
    run()
    first = [host(item).copy() for item in results]
    run()
    for before, after in zip(first, results, strict=True):
        assert before.tobytes() == host(after).tobytes(), "a second run gives other bits"


# timing -------------------------------------------------------------------------------------------


def milliseconds(run: Callable[[], Any], device: str, rounds: int = 20) -> float:
    """The median time of a run, after a few that warm up."""
    for _ in range(3):
        run()
    times = []
    if device == "cuda":
        import torch

        for _ in range(rounds):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
    else:
        for _ in range(rounds):
            begun = time.perf_counter()
            run()
            times.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(times)


# scripts ------------------------------------------------------------------------------------------


def default_device() -> str:
    """cuda where PyTorch and fuser find a GPU, else cpu."""
    try:
        import torch
    except ImportError:
        return "cpu"
    return "cuda" if torch.cuda.is_available() else "cpu"


def main(
    file: str,
    check: Callable[..., None],
    plot: Callable[[str], str] | None = None,
) -> None:
    """What a tutorial does as a script: its check, and with --plot its picture as an SVG file."""
    name = Path(file).stem
    parser = argparse.ArgumentParser(description=f"The tutorial {name}.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default=default_device())
    parser.add_argument("--plot", metavar="FILE", help="measure, and write a picture to this file")
    chosen = parser.parse_args()
    try:
        check(device=chosen.device)
        print(f"{name}: right on {chosen.device}", flush=True)
        if chosen.plot and plot is not None:
            Path(chosen.plot).write_text(plot(chosen.device))
            print(f"wrote {chosen.plot}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        asked = "--plot measures beside PyTorch" if chosen.plot else "a GPU needs PyTorch's tensors"
        parser.exit(2, f"{parser.prog}: {asked}, which is not installed: pip install torch\n")
