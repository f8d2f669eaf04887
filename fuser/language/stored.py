"""Compiled kernels on disk under what decides them, so that a new process walks no source.

The kernel cache holds code under the text of its tile program, which only the walk over the source
and the passes give. Here code lies under what these start from: the fingerprint of the kernel's
source (fingerprint.py), the classes of its arguments, options, target, and fuser's own source. What
the code takes for granted of shapes and sizes is part of an entry, and is asked of each launch. Of
sizes the key has the order of magnitude: schedules are chosen by them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from fuser.backend.module import CompiledKernel
from fuser.base.target import Target
from fuser.errors import ParseError
from fuser.graph.dims import symbols_of
from fuser.graph.sizes import Guard, Sizes, guard_from_list
from fuser.language.arguments import Arguments
from fuser.language.compile import (
    ArgumentClass,
    ArrayClass,
    Fixed,
    FloatClass,
    IntegerClass,
    Options,
    Program,
)
from fuser.language.fingerprint import Fingerprint, Unknown
from fuser.language.functions import Function
from fuser.language.layouts import Fact, as_written, number_of
from fuser.language.outside import Outside, Read
from fuser.language.reach import witness_from_list
from fuser.language.types import BY_NAME
from fuser.pipeline.plan_cache import versions
from fuser.runtime.cache import KernelCache
from fuser.runtime.kernel_record import kernel_from_record, kernel_to_record
from fuser.tilegen.parse import parse_kernel

MAX_ENTRIES = 8
"""Entries of one key, for sizes that other guards hold of."""


class Code(NamedTuple):
    """A kernel compiled for a target, which need not be here."""

    program: Program
    compiled: CompiledKernel
    guards: tuple[Guard, ...]
    emitted: str
    """The Tile IR as the walk over the source left it."""
    text: str
    """The Tile IR that was compiled."""
    examples: dict[str, int]
    """Sizes of this launch, by symbol."""
    writes: frozenset[int]
    """The leaves of the arguments that it writes."""


def sizes_of(program: Program, found: Arguments, grid: Sequence[int]) -> dict[str, int]:
    """The values of the symbols of a program in a launch."""
    sizes = {}
    for name, (leaf, by) in program.symbols.items():
        sizes[name] = grid[-1 - leaf] if leaf < 0 else found.leaves[leaf] // by
    for name, (fact, by) in program.measures.items():
        number = number_of(found.records[fact.leaf], fact.what, fact.axis)
        assert number is not None
        sizes[name] = number // by
    return sizes


def broken(
    program: Program, guards: Sequence[Guard], found: Arguments, grid: Sequence[int], warps: int
) -> str:
    """What code takes for granted that does not hold of a launch, if there is anything."""
    if program.warps and program.warps != warps:
        return f"num_warps is {warps} (was {program.warps})"
    for fact in program.facts:
        record = found.records.get(fact.leaf)
        if record is None:
            return f"{fact.name} is not an array"
        if not fact.holds(record):
            return f"{fact.found(record)} (was compiled where {fact})"
    sizes = sizes_of(program, found, grid)
    guard = next((guard for guard in guards if not guard.holds(sizes)), None)
    if guard is None:
        return ""
    values = ", ".join(f"{n} = {sizes[n]}" for n in sorted(symbols_of(guard.expression)))
    return as_written(f"{guard} does not hold at {values}")


class Shelf:
    """The entries of one key. cache: None where nothing is kept."""

    def __init__(
        self, function: Function, found: Arguments, grid: Sequence[int], options: Options,
        target: Target, cache: KernelCache | None,
    ) -> None:  # fmt: skip
        self.cache, self.options, self.found, self.grid = cache, options, found, grid
        self.material = ""
        if cache is None or options.deterministic:
            return
        try:
            self.fingerprint = Fingerprint(function)
            classes = [_class_text(self.fingerprint, kind) for kind in found.classes.values()]
        except (Unknown, RecursionError):
            return
        numbers = (leaf for leaf in found.leaves if isinstance(leaf, int))
        key = {
            "kind": "kernel of the language", "versions": versions(),
            "target": dataclasses.asdict(target), "classes": classes,
            "options": repr(options.meant(target.is_cuda)), "grid": [min(n, 2) for n in grid],
            "magnitudes": [number.bit_length() for number in (*grid, *numbers)],
        }  # fmt: skip
        self.material = f"{json.dumps(key, sort_keys=True)}\n{self.fingerprint.text}"

    def find(self) -> Code | None:
        """The code for the launch, if there is any."""
        for number in range(MAX_ENTRIES):
            entry = self._entry(number)
            if entry is None:
                return None
            try:
                code = self._read(*entry)
            except (KeyError, TypeError, ValueError, IndexError, ParseError):
                continue
            warps = self.options.num_warps
            if not broken(code.program, code.guards, self.found, self.grid, warps):
                return code
        return None

    def keep(self, code: Code) -> None:
        """Keep code, if all that it means can be kept."""
        program = code.program
        if not self.material or program.reports is not None or program.told:
            return
        places = {id(owner): number for number, owner in enumerate(self.fingerprint.owners)}
        reads = list(program.outside.reads.values())
        if any(id(read.owner) not in places for read in reads):
            return
        number = next((n for n in range(MAX_ENTRIES) if not self._holds(n)), None)
        if number is None:
            return
        record = {
            "emitted": code.emitted, "text": code.text, "examples": code.examples,
            "writes": sorted(code.writes), "name": program.name, "rank": program.rank,
            "buffers": program.buffers, "symbols": program.symbols, "notes": program.notes,
            "scalars": [(leaf, dtype.name) for leaf, dtype in program.scalars],
            "guards": [guard.to_list() for guard in code.guards],
            "facts": [dataclasses.astuple(fact) for fact in program.facts],
            "measures": {
                name: (program.facts.index(fact), by)
                for name, (fact, by) in program.measures.items()
            },
            "reads": [(places[id(read.owner)], read.name) for read in reads],
            "warps": program.warps,
            "witnesses": [item.to_list() for item in program.witnesses],
        }  # fmt: skip
        header, content = kernel_to_record(code.compiled)
        assert self.cache is not None
        self.cache.put_bytes(self._material(number), {"record": record, "kernel": header}, content)

    def _material(self, number: int) -> str:
        return f"{number}\n{self.material}"

    def _holds(self, number: int) -> bool:
        assert self.cache is not None
        return self.cache.holds(self._material(number))

    def _entry(self, number: int) -> tuple[dict[str, Any], bytes] | None:
        if not self.material or not self._holds(number):
            return None
        assert self.cache is not None
        found = self.cache.get_bytes(self._material(number))
        return None if found is None else (found[0], bytes(found[1]))

    def _read(self, header: dict[str, Any], content: bytes) -> Code:
        """The code of an entry. Raises what a wrong one leads to."""
        record = header["record"]
        facts = [Fact(*items) for items in record["facts"]]
        outside = Outside()
        outside.functions = self.fingerprint.functions
        for place, name in record["reads"]:
            owner = self.fingerprint.owners[place]
            outside.note(owner, name, Read(owner, name, None, False).now())
        guards = tuple(map(guard_from_list, record["guards"]))
        text, examples = str(record["text"]), dict(record["examples"])

        def kernel() -> Any:
            with Sizes(examples):
                return parse_kernel(text)

        program = Program(
            kernel, record["name"], record["rank"], list(record["buffers"]),
            {name: (leaf, by) for name, (leaf, by) in record["symbols"].items()},
            [(leaf, BY_NAME[dtype]) for leaf, dtype in record["scalars"]], guards,
            list(record["notes"]), facts,
            {name: (facts[n], by) for name, (n, by) in record["measures"].items()},
            outside, None, record["warps"], False,
            tuple(map(witness_from_list, record["witnesses"])),
        )  # fmt: skip
        return Code(
            program, kernel_from_record(header["kernel"], content), guards, record["emitted"], text,
            examples, frozenset(record["writes"]),
        )  # fmt: skip


def _class_text(fingerprint: Fingerprint, kind: ArgumentClass) -> str:
    match kind:
        case ArrayClass() | IntegerClass() | FloatClass():
            return repr(kind)
        case Fixed():
            return f"{fingerprint.of(kind.value)} {kind.dtype!r}"
    assert isinstance(kind, tuple)
    items = ", ".join(_class_text(fingerprint, item) for item in kind)
    return f"{type(kind).__qualname__}({items})"
