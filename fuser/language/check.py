"""Checked launches: a kernel in the interpreter, on the memory of its arrays.

    add[grid](x, y, out, n, BLOCK=128, check=True)      # or FUSER_CHECK=1 for all launches

The tile program is traced for the very numbers of the launch and run by fuser/tilegen/interpret.py,
one program after another. Results are the kernel's. What it reports, as CheckError with the user's
line, the program and the element: an access outside of the storage of its array, an element that
two programs store, or that one stores and another reads, two elements of a tile at one place.

A program that looks at the result of an atomic comes behind the programs that used the same element
atomically before it: locks and counters are no races.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fuser.errors import CheckError, UsageError, VerifyError
from fuser.graph.sizes import Sizes
from fuser.language.addresses import MEMORY
from fuser.language.arguments import Arguments
from fuser.language.compile import ArgumentClass, Fixed, IntegerClass, Options, Program, trace
from fuser.language.functions import Function
from fuser.language.internal import located
from fuser.language.reports import prepared, tell
from fuser.language.source import excerpt_of
from fuser.runtime import driver
from fuser.runtime.arrays import ArrayRecord
from fuser.tilegen.interpret import run
from fuser.tilegen.interpreted_memory import MANY, AccessError
from fuser.tilegen.ops import Atomic, Load
from fuser.tilegen.text import print_kernel
from fuser.tilegen.verify import verify

Check = bool | Literal["benign"]
"""benign: programs may store to an element what it holds already."""


@dataclass(frozen=True, eq=False)
class Checked:
    """A launch that was checked, and ran without an error."""

    program: Program

    @property
    def tile(self) -> str:
        return print_kernel(self.program.kernel)


def run_checked(
    function: Function, found: Arguments, grid: Sequence[int], options: Options, how: Check = True
) -> Checked:
    """Run a kernel in the interpreter. Raises CheckError, and what compiling raises."""
    device, ordinal = found.device
    leaves = iter(found.leaves)
    classes = {name: _fixed(kind, leaves) for name, kind in found.classes.items()}
    with Sizes({}) as sizes:
        program = trace(function, classes, found.leaves, grid, options, sizes, open_grid=False)
        with located(function, program.kernel):
            verify(program.kernel)
        report: dict[int, Any] = {}
        if program.reports is not None:
            found, report = prepared(program.reports, found)
        writes = {program.buffers[n] for n, b in enumerate(program.kernel.buffers)
                  if b.role == "output"}  # fmt: skip
        for leaf, record in found.records.items():
            record.require(
                found.names.get(leaf, function.fn.__name__), writes=leaf in writes, device=device,
                ordinal=ordinal, kernel=function.fn.__name__,
            )  # fmt: skip
        with _memory(found, writes) as memory:
            _interpret(program, found, memory, how, report.keys())
        if program.reports is not None:
            tell(program.reports, report, tuple(grid), ordinal)
    return Checked(program)


def _fixed(kind: ArgumentClass, leaves: Iterator[Any]) -> ArgumentClass:
    """The class with its number in it."""
    if isinstance(kind, tuple):
        items = tuple(_fixed(item, leaves) for item in kind)
        return type(kind)(*items) if hasattr(kind, "_fields") else items  # type: ignore[arg-type]
    value = next(leaves)
    return Fixed(value, kind.dtype) if isinstance(kind, IntegerClass) else kind


def _interpret(
    program: Program,
    found: Arguments,
    memory: dict[int, tuple[np.ndarray, int]],
    how: Check,
    aside: Collection[int] = (),
) -> None:
    """aside: leaves whose atomics put no programs in order, for they are not the user's."""
    kernel = program.kernel
    arrays: dict[str, np.ndarray] = {}
    origins: dict[str, int] = {}
    if MEMORY in program.buffers:
        raise UsageError(
            f"{kernel.name} points to memory by addresses, of which no end is known",
            hint="launch it without check=True, or pass the arrays themselves",
        )
    for buffer, leaf in zip(kernel.buffers, program.buffers, strict=True):
        raw, start = memory[leaf]
        size = buffer.dtype.numpy.itemsize
        before, lead = divmod(found.records[leaf].address - start, size)
        count = (raw.size - lead) // size
        arrays[buffer.name] = raw[lead : lead + count * size].view(buffer.dtype.numpy)
        origins[buffer.name] = before
    scalars = {
        value.name: found.leaves[leaf]
        for value, (leaf, _) in zip(kernel.scalars, program.scalars, strict=True)
    }
    try:
        run(
            kernel, arrays, scalars=scalars, origins=origins, equal_stores=how == "benign",
            aside=[b.name for b, leaf in zip(kernel.buffers, program.buffers, strict=True)
                   if leaf in aside],
        )  # fmt: skip
    except AccessError as error:
        raise _told(error, program, found) from None
    except VerifyError as error:
        raise VerifyError(
            error.what, where=error.where, hint="this is a defect of fuser, please report it"
        ) from None


# memory -------------------------------------------------------------------------------------------


@contextmanager
def _memory(found: Arguments, writes: set[int]) -> Iterator[dict[int, tuple[np.ndarray, int]]]:
    """For each array the bytes of its storage and the address that they have. Those of a GPU are
    copies; what was written goes back."""
    spans = _spans(found.records)
    made: list[tuple[int, int, np.ndarray]] = []
    device, ordinal = found.device
    if device == "cpu":
        made = [(start, stop, _bytes_at(start, stop - start)) for start, stop in spans]
        yield _placed(found.records, made)
        return
    with driver.current(ordinal):
        driver.synchronize()
        for start, stop in spans:
            copy = np.empty(stop - start, np.uint8)
            driver.call("cuMemcpyDtoH", copy.ctypes.data, start, copy.size)
            made.append((start, stop, copy))
        try:
            yield _placed(found.records, made)
        finally:
            written = {found.records[leaf].address for leaf in writes}
            for start, stop, copy in made:
                if any(start <= address < stop for address in written):
                    driver.call("cuMemcpyHtoD", start, copy.ctypes.data, copy.size)


def _spans(records: dict[int, ArrayRecord]) -> list[tuple[int, int]]:
    """The memory of all arrays as ranges that do not overlap."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(r.storage for r in records.values() if r.storage[1] > r.storage[0]):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return merged


def _bytes_at(start: int, count: int) -> np.ndarray:
    memory = (ctypes.c_uint8 * count).from_address(start)
    return np.ctypeslib.as_array(memory)


def _placed(
    records: dict[int, ArrayRecord], made: list[tuple[int, int, np.ndarray]]
) -> dict[int, tuple[np.ndarray, int]]:
    found = {}
    for leaf, record in records.items():
        first, last = record.storage
        found[leaf] = (np.empty(0, np.uint8), record.address)
        for start, stop, raw in made:
            if start <= first and last <= stop and first < last:
                found[leaf] = (raw[first - start : last - start], first)
    return found


# errors -------------------------------------------------------------------------------------------


def _told(error: AccessError, program: Program, found: Arguments) -> CheckError:
    """The error in the words of the user."""
    kernel = program.kernel
    leaf = next(
        (leaf for buffer, leaf in zip(kernel.buffers, program.buffers, strict=True)
         if buffer.name == error.buffer), -1
    )  # fmt: skip
    element = f"element {error.element}{_coordinates(found.records.get(leaf), error.element)}"
    looks = isinstance(error.op, Atomic) and error.op.fn == "load"
    verb = "reads" if looks or isinstance(error.op, Load) else "stores to"
    point = tuple(reversed(error.point))
    me = f"program {_shown(point)}"
    name = error.buffer
    if error.deed == "twice":
        what = f"{me} stores two elements of one tile to {element} of {name}"
        hint = "the pointers of a store must differ where its mask holds"
    elif error.deed:
        if error.other == MANY:
            who = "several other programs"
        else:
            where = np.unravel_index(error.other, kernel.grid)
            who = f"program {_shown(tuple(int(i) for i in reversed(where)))}"
        done = {"read": "reads", "stored": "stores to", "added to": "adds to"}[error.deed]
        what = f"a race: {me} {verb} {element} of {name}, which {who} {done}, too"
        hint = "programs run in any order: give each its own elements, or use atomics"
        if error.deed == "stored" and verb == "stores to":
            hint += ' (check="benign" allows stores of equal values)'
    elif not error.buffer:
        what, hint = f"{me}: {error.what}", ""
    else:
        low, high = error.limits
        has = f"has the elements {low} to {high}" if high >= low else "is empty"
        what = f"{me} {verb} {element} of {name}, whose memory {has}"
        hint = "mask the access: load(pointer, mask=...), store(pointer, value, mask=...)"
    place = error.op.source if error.op is not None else ""
    return CheckError(
        what, where=place, hint=hint, excerpt=excerpt_of(place),
        program=(*point, *(0,) * (3 - len(point))), array=name, element=error.element,
    )  # fmt: skip


def _shown(point: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, (*point, *(0,) * (3 - len(point)))))})"


def _coordinates(record: ArrayRecord | None, element: int) -> str:
    """The element as an index of a contiguous array of two and more dims."""
    if record is None or len(record.shape) < 2:
        return ""
    step = 1
    for extent, stride in zip(reversed(record.shape), reversed(record.strides), strict=True):
        if stride != step and extent != 1:
            return ""
        step *= extent
    if not 0 <= element < step:
        return ""
    at = np.unravel_index(element, record.shape)
    return f" [{', '.join(str(int(i)) for i in at)}]"
