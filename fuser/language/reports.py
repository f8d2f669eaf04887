"""What kernels report to the host: device_print's values and device_assert's failures.

A kernel with either has buffers of its own behind those of its arguments: one counter for each
place of the source that reports, and for each device_print the values of some records. After the
launch, which then waits for the kernel, they are printed, and the first failure is raised.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fuser.dtypes import i32, i64
from fuser.errors import DeviceAssertionError
from fuser.language.arguments import Arguments
from fuser.language.sites import HEADER, MOST_SITES, AssertSite, PrintSite, Reports
from fuser.language.types import ElementType
from fuser.runtime import driver
from fuser.runtime.arrays import ArrayRecord, describe
from fuser.runtime.device_tensors import DeviceArray
from fuser.runtime.memory import aligned_array


def prepared(reports: Reports, found: Arguments) -> tuple[Arguments, dict[int, Any]]:
    """The arguments of a launch with the report's memory, and that memory by leaf."""
    device, ordinal = found.device
    sizes = {reports.leaf: (MOST_SITES, i32)}
    sizes |= {site.leaf: (site.records * site.words, i64) for site in reports.prints}
    memory: dict[int, Any] = {}
    for leaf, (size, dtype) in sizes.items():
        if device == "cpu":
            memory[leaf] = aligned_array((size,), dtype.numpy)  # as kernels take own buffers to be
            memory[leaf][...] = 0
            continue
        made = DeviceArray((size,), dtype, ordinal)
        with driver.current(ordinal):
            driver.call("cuMemsetD8Async", made.pointer, 0, made.bytes, 0)
            driver.synchronize()
        memory[leaf] = made
    records = {leaf: _record(array) for leaf, array in memory.items()}
    return replace(found, records={**found.records, **records}), memory


def _record(array: Any) -> ArrayRecord:
    """The record of a report's memory: what was allocated around it to align it is not its own."""
    found = describe(array, "a report")
    return replace(
        found, storage=(found.address, found.address + math.prod(found.shape) * found.dtype.bytes)
    )


def tell(reports: Reports, memory: dict[int, Any], grid: tuple[int, ...], ordinal: int = 0) -> None:
    """Print what was left in memory. Raises DeviceAssertionError."""
    if any(isinstance(item, DeviceArray) for item in memory.values()):
        with driver.current(ordinal):
            driver.synchronize()
    counters = _host(memory[reports.leaf])
    for site in reports.prints:
        count = int(counters[site.number])
        if count:
            for line in _lines(site, _host(memory[site.leaf]), count):
                print(line)
    sys.stdout.flush()
    for failure in reports.asserts:
        program = int(counters[failure.number])
        if program:
            raise _failed(failure, program - 1, grid)


def _host(array: Any) -> np.ndarray:
    return array.numpy() if isinstance(array, DeviceArray) else np.asarray(array)


def _failed(site: AssertSite, program: int, grid: tuple[int, ...]) -> DeviceAssertionError:
    x, y, _ = (*grid, 1, 1, 1)[:3]
    place = (program % x, program // x % y, program // (x * y))
    message = f": {site.message}" if site.message else ""
    return DeviceAssertionError(
        f"device-side assert failed in program {place}{message}",
        where=site.where, excerpt=site.excerpt, kernel=site.kernel,
    )  # fmt: skip


# text ---------------------------------------------------------------------------------------------


def _lines(site: PrintSite, words: np.ndarray, count: int) -> Iterator[str]:
    """A line for each element of each record: `pid (0, 0, 0) idx ( 3) x: 7`."""
    kept = min(count, site.records)
    for record in words[: kept * site.words].reshape(kept, site.words):
        start = f"pid ({', '.join(map(str, record[:HEADER]))})"
        if not site.operands:
            yield start + site.prefix
        at = HEADER
        for number, (dtype, shape) in enumerate(site.operands):
            size = int(np.prod(shape, dtype=np.int64))
            operand = f"(operand {number}) " if len(site.operands) > 1 else ""
            texts = _texts(record[at : at + size], dtype, site.hexadecimal)
            for place, text in zip(np.ndindex(*shape), texts, strict=True):
                yield f"{start} idx ({_index(place, shape)}){site.prefix}{operand}{text}"
            at += size
    if count > kept:
        yield f"{count - kept} more of{site.prefix}... were not kept"


def _index(place: tuple[int, ...], shape: tuple[int, ...]) -> str:
    return ", ".join(
        f"{at:{len(str(extent - 1))}}" for at, extent in zip(place, shape, strict=True)
    )


def _texts(words: np.ndarray, dtype: ElementType, hexadecimal: bool) -> Iterator[str]:
    if dtype.is_floating():
        numbers = np.ascontiguousarray(words).view(np.float64)
        yield from (f"{number:f}" for number in numbers)
        return
    mask = (1 << max(8, dtype.bits)) - 1
    for word in words:
        number = int(word)
        if hexadecimal:
            yield f"0x{number & mask:0{max(8, dtype.bits) // 4}x}"
        else:
            yield str(number & mask if dtype.kind == "uint" else number)
