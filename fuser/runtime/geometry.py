"""The numbers of one launch: programs, the values of symbolic sizes, the bits of scalars.

A back end writes into the facts of a kernel, as text of dims: "grid", by axis of the kernel; and
"sizes", whose values the code reads; on a GPU "launch" and "maps", too. A kernel that was compiled
without symbols has none of them: its numbers are in its record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import SupportsFloat, SupportsInt

import numpy as np

from fuser.backend.module import CompiledKernel, TensorMap
from fuser.dtypes import DType
from fuser.errors import UsageError
from fuser.graph.dims import Atom, Dim, DimExpr, parse, substitute

MOST_ON_AXES = ((1 << 31) - 1, (1 << 16) - 1, (1 << 16) - 1)
"""Blocks along the axes of a CUDA grid."""


@dataclass(frozen=True)
class Placed:
    """The kernel at certain sizes. launch, maps: on a GPU."""

    grid: tuple[int, ...]
    sizes: tuple[int, ...]
    launch: tuple[int, int, int]
    maps: tuple[TensorMap, ...]

    @property
    def programs(self) -> int:
        return math.prod(self.grid)


class Geometry:
    """What a kernel's facts say of launches at other sizes."""

    def __init__(self, kernel: CompiledKernel) -> None:
        facts = kernel.facts
        self.kernel = kernel
        self.open = "grid" in facts
        self.grid: tuple[Dim, ...] = tuple(map(parse, facts.get("grid", ()))) or kernel.grid
        self.sizes: tuple[Dim, ...] = (
            tuple(map(parse, facts.get("sizes", ()))) if self.open else kernel.sizes
        )
        self.scalars: tuple[str, ...] = tuple(facts.get("scalars", ()))
        self.launch: tuple[Dim, ...] = tuple(map(parse, facts.get("launch", ()))) or kernel.launch
        self.maps = [
            (
                item,
                tuple(map(parse, record["shape"])),
                tuple(map(parse, record["strides"])),
                parse(record["offset"]),
            )
            for item, record in zip(kernel.tensor_maps, facts.get("maps", ()), strict=False)
        ]

    def at(self, grid: Sequence[int] | None, values: Mapping[str, int]) -> Placed:
        """The numbers for a grid of this many programs by axis of the kernel (axes that are left
        out have one) and for these values of symbols. A symbol that is the grid of an axis needs no
        value. grid None: as the sizes say. Raises UsageError."""
        known = dict(values)
        wanted = None if grid is None else self._wanted(grid, known)
        found = tuple(self._value(dim, known, "grid") for dim in self.grid)
        if wanted is not None and found != wanted:
            raise UsageError(
                f"the grid is {wanted}, the code is for {tuple(map(str, self.grid))}",
                where=self.kernel.name,
                hint="launch the variant that was compiled for this grid",
            )
        x, y, z = (self._value(dim, known, "launch") for dim in self.launch)
        for size, most in zip((x, y, z), MOST_ON_AXES, strict=True):
            if size > most:
                raise UsageError(
                    f"the grid {found} takes {(x, y, z)} blocks, and a GPU at most {MOST_ON_AXES}",
                    where=self.kernel.name,
                    hint="let each program do more, or use the first axis",
                )
        sizes = tuple(self._value(dim, known, "size") for dim in self.sizes)
        maps = self.kernel.tensor_maps
        if self.maps:
            maps = tuple(
                replace(
                    item,
                    shape=tuple(self._value(dim, known, "map") for dim in shape),
                    strides=tuple(self._value(dim, known, "map") for dim in strides),
                    offset=self._value(offset, known, "map"),
                )
                for item, shape, strides, offset in self.maps
            )
        return Placed(found, sizes, (x, y, z), maps)

    def _wanted(self, grid: Sequence[int], known: dict[str, int]) -> tuple[int, ...]:
        """The grid by the kernel's axes; the symbols among them become known."""
        rank = len(self.grid)
        given = (*(int(extent) for extent in grid), *[1] * (rank - len(grid)))
        if any(extent < 0 for extent in given) or any(extent != 1 for extent in given[rank:]):
            raise UsageError(
                f"the grid {given} does not fit a kernel with {rank} grid "
                + ("axis" if rank == 1 else "axes"),
                where=self.kernel.name,
                hint="axes that no program_id reads have one program",
            )
        for dim, extent in zip(self.grid, given, strict=False):
            if (name := symbol_name(dim)) is not None:
                known.setdefault(name, extent)
        return given[:rank]

    def _value(self, dim: Dim, known: Mapping[str, int], what: str) -> int:
        found = substitute(dim, known)
        if isinstance(found, DimExpr):
            raise UsageError(
                f"the {what} {dim} has no value at {dict(known)}",
                where=self.kernel.name,
                hint="give a value for each of its symbols",
            )
        return found


def symbol_name(dim: Dim) -> str | None:
    """The name of a dim that is a symbol and nothing else."""
    if not isinstance(dim, DimExpr) or len(dim.terms) != 1:
        return None
    ((monomial, factor),) = dim.terms
    if factor != 1 or len(monomial) != 1:
        return None
    atom: Atom = monomial[0]
    return atom.name if atom.op == "symbol" else None


def scalar_bits(value: SupportsInt | SupportsFloat, dtype: DType) -> int:
    """A number as the low bits of an 8-byte slot, the rest 0; as a signed 64-bit int.

    Raises UsageError for an integer that the type cannot hold."""
    if not dtype.is_float:
        number = int(value)  # type: ignore[arg-type]
        if not dtype.lowest <= number <= dtype.highest:
            raise UsageError(f"{number} does not fit {dtype}", hint="pass a smaller number")
        bits = number & ((1 << dtype.bits) - 1)
    else:
        with np.errstate(over="ignore"):
            raw = np.array(float(value), dtype.numpy).tobytes()  # type: ignore[arg-type]
        bits = int.from_bytes(raw, "little")
    return bits - (1 << 64) if bits >> 63 else bits
