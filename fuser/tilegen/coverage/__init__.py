"""Proof that tile programs write what they are there to write: every element of an output exactly
once, over grid, loops and tile axes.

A store gives one index a dim of its view. Its variables (program ids, loop variables, tile axes)
range over boxes, and most indices are mixed radix numbers of variables of their own:
`%pid*64 + #0` counts 0, 1, 2, ... once each. That is *algebra*, and holds for symbolic sizes as
well. Divisions and remainders of one number are its digits, `f // 6` and `f % 6`, and count as
variables of their own. What does not separate so is *counted*, by evaluating the indices over the
whole box (at the example sizes, where sizes are symbolic); above MOST_POINTS a part of the box is
evaluated, which finds elements that are stored twice but not all that are left out (*sampled*).
Where data decides the place (a scatter, a sort), there is no proof (*data*), nor for parts of
workspaces beyond that size (*large*). What is zeroed before a launch needs none (*zeroed*).

    region                     a store                                          proof
    matmul                     store &y[100, 60], [%m*32 + #0, %n*32 + #1]      algebra
    transpose of flat tiles    store &y[6, 5], [f // 5, f % 5], f = %pid*4 + #0 algebra
    x[0] beside sum(x)         store &y[1, 1], [#0, #0 - 5]                     counted: never
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from fuser.errors import VerifyError
from fuser.graph.ir import Value
from fuser.graph.sizes import by_example, same, size_hint
from fuser.tilegen import ops
from fuser.tilegen.coverage.access import Access, loads_of, stores_of
from fuser.tilegen.coverage.box import Box, box_of, tile_exactly
from fuser.tilegen.coverage.count import MOST_POINTS, addresses, count, points_of
from fuser.tilegen.program import Argument, Part, TileProgram
from fuser.tilegen.text import print_kernel

Method = Literal["algebra", "counted", "sampled", "data", "large", "zeroed"]


@dataclass(frozen=True)
class Proof:
    """How it is known that a buffer is written. buffer: its name in the program."""

    program: str
    buffer: str
    method: Method


def prove(
    programs: Sequence[TileProgram], inputs: Iterable[Value], outputs: Iterable[Value]
) -> list[Proof]:
    """Prove of all programs of a graph, in launch order, that every output of a region is written
    once, before anything reads it. inputs and outputs: of the graph.

    Raises VerifyError, with the text of the program at fault.
    """
    proofs: list[Proof] = []
    for _, group in itertools.groupby(programs, key=lambda program: program.region):
        proofs += prove_region(list(group))
    prove_order(programs, inputs, outputs)
    return proofs


@by_example  # what it asks of symbolic sizes must not narrow them
def prove_region(programs: Sequence[TileProgram]) -> tuple[Proof, ...]:
    """Prove that the programs of a region, in order, write every output and all of a workspace that
    they read.

    Raises VerifyError with the text of the program that stores for an element that is stored never
    or twice, and for a workspace that is read where nothing wrote it.
    """
    written: dict[Hashable, list[Access]] = {}
    wanted: dict[Hashable, tuple[TileProgram, Argument]] = {}
    zeroed: set[Hashable] = set()
    last: dict[Hashable, TileProgram] = {}
    for program in programs:
        keys = {argument.buffer: _key(argument) for argument in program.arguments}
        for argument in program.arguments:
            empty = same(argument.buffer.size, 0)
            if argument.buffer.role in ("output", "workspace") and not (empty or argument.kept):
                wanted.setdefault(keys[argument.buffer], (program, argument))
            if argument.zeroed:
                zeroed.add(keys[argument.buffer])
        added = {a.buffer for a in program.arguments if a.kept}
        for store in stores_of(program.kernel):
            if store.buffer in added:
                continue  # over what a program in front wrote throughout
            written.setdefault(keys[store.buffer], []).append(store)
            last[keys[store.buffer]] = program
    proofs = []
    for key, (program, argument) in wanted.items():
        stores = written.get(key, [])
        name = argument.buffer.name
        try:
            if key in zeroed:
                method: Method = "zeroed"
            elif argument.buffer.role == "workspace":
                method = prove_reads(stores, partial(_loads, programs, key))
            else:
                method = _prove_output(stores, argument.part)
        except VerifyError as error:
            program = last.get(key, program)
            text = print_kernel(program.kernel)
            raise VerifyError(
                f"{name} is not written as it should be: {error.what}\n{text}",
                where=_where(program),
                hint="this is a defect of fuser; fusion=False may avoid it",
            ) from None
        proofs.append(Proof(program.kernel.name, name, method))
    return tuple(proofs)


def _loads(programs: Sequence[TileProgram], key: Hashable) -> list[Access]:
    """The loads of a workspace."""
    return [
        load
        for program in programs
        for argument in program.arguments
        if _key(argument) == key
        for load in loads_of(program.kernel, argument.buffer)
    ]


def _key(argument: Argument) -> Hashable:
    """What two programs of a region share: a value in one dtype, or a numbered workspace."""
    if argument.value is None:
        return argument.workspace
    return argument.value, argument.buffer.dtype


def _where(program: TileProgram) -> str:
    names = ", ".join(program.region.origin[:3])
    return f"region {program.region.id} ({names})" if names else f"region {program.region.id}"


def _prove_output(stores: Sequence[Access], part: Part | None = None) -> Method:
    """All stores to an output. Where data decides the place, only what others store is proved: the
    updates of a scatter go into a copy."""
    fixed = [access for access in stores if access.is_static]
    if not stores:
        raise VerifyError("no program stores to it")
    if part is not None and same(part.capacity, part.extent):
        return "data"  # rows of an argument that is written in place: the others stay as they are
    if part is not None:
        fixed = [access.within(part) for access in fixed]
    return prove_whole(fixed, part.size if part is not None else None) if fixed else "data"


def prove_whole(stores: Sequence[Access], size: int | None = None) -> Method:
    """That the stores together write every element of their buffer exactly once. size: of the
    buffer, if not its own.

    Raises VerifyError, which names an element, if they do not.
    """
    size = stores[0].buffer.size if size is None else size
    boxes: list[Box] = []
    for access in stores:
        box = box_of(access)
        if box is None:
            break
        boxes.append(box)
    if len(boxes) == len(stores) and tile_exactly(boxes, size):
        return "algebra"
    return _counted(stores, size)


@by_example
def covers(stores: Sequence[Access], size: int) -> bool:
    """Whether it is certain that the stores write each of the first `size` elements exactly once,
    whatever data holds, and none beyond."""
    for access in stores:
        masked = isinstance(access.op, ops.Store) and access.op.mask is not None
        if masked or not access.is_static or not isinstance(access.op, ops.Store):
            return False
    boxes = [box_of(access) for access in stores]
    known = [box for box in boxes if box is not None]
    if len(known) == len(boxes) and tile_exactly(known, size):
        return True
    if max(size, sum(map(points_of, stores))) > MOST_POINTS:
        return False
    try:
        return bool((count(stores, size) == 1).all())
    except VerifyError:
        return False


@by_example
def _counted(stores: Sequence[Access], size: int) -> Method:
    total = size_hint(size)
    if max(total, sum(map(points_of, stores))) > MOST_POINTS:
        _sampled(stores, total)
        return "sampled"
    seen = count(stores, total)
    if (missing := seen == 0).any():
        place = int(missing.argmax())
        raise VerifyError(
            f"element {place} is stored by nobody ({int(missing.sum())} of {total} elements)"
        )
    if (twice := seen > 1).any():
        place = int(twice.argmax())
        raise VerifyError(
            f"element {place} is stored {int(seen[place])} times ({int(twice.sum())} of {total} "
            "elements are stored more than once)"
        )
    return "counted"


def _sampled(stores: Sequence[Access], total: int) -> None:
    """What a part of the boxes says: in memory of its size, not of the buffer's."""
    met = np.sort(np.concatenate([addresses(access, MOST_POINTS) for access in stores]))
    if not met.size:
        raise VerifyError("no element that was looked at is stored: the bounds contradict")
    if met[0] < 0 or met[-1] >= total:
        raise VerifyError(f"an element beyond the buffer of {total} is stored")
    if (twice := met[1:] == met[:-1]).any() or any(size_hint(s.repeats) > 1 for s in stores):
        raise VerifyError(f"element {int(met[int(twice.argmax())])} is stored more than once")


def prove_reads(stores: Sequence[Access], loads: Callable[[], Sequence[Access]]) -> Method:
    """That every element of a workspace that the loads read was stored. A program may store it
    several times: sums grow there. loads: gives them, where they matter.

    Raises VerifyError, which names an element, if it is not.
    """
    boxes = [box for box in map(box_of, stores) if box is not None]
    if stores:
        size = stores[0].buffer.size
        alone = len(stores) < 8 and any(tile_exactly([box], size) for box in boxes)
        if alone or (boxes and tile_exactly(boxes, size)):
            return "algebra"
    found = loads()
    if not found:
        return "algebra"
    if not stores:
        raise VerifyError("it is read, and no program stores to it")
    if not all(access.is_static for access in (*stores, *found)):
        return "data"
    return _counted_reads(stores, found, size)


@by_example
def _counted_reads(stores: Sequence[Access], loads: Sequence[Access], size: int) -> Method:
    total = size_hint(size)
    if max(total, *(points_of(access) for access in (*stores, *loads))) > MOST_POINTS:
        return "large"
    lost = (count(loads, total) > 0) & (count(stores, total) == 0)
    if lost.any():
        raise VerifyError(f"element {int(lost.argmax())} is read, and stored by nobody")
    return "counted"


def prove_order(
    programs: Iterable[TileProgram], inputs: Iterable[Value], outputs: Iterable[Value]
) -> None:
    """That every value is written before a program reads it, and every output is written.

    inputs and outputs: values of the graph. Raises VerifyError.
    """
    known = set(inputs)
    for program in programs:
        made = []
        for argument in program.arguments:
            value = argument.value
            if value is None or value.constant is not None or same(value.type.size, 0):
                continue
            if argument.buffer.role == "output":
                made.append(value)
            elif value not in known and not _is_appended(value, known):
                raise VerifyError(
                    f"{value!r} is read before a program writes it", where=_where(program)
                )
        known.update(made)
    for value in outputs:
        if value not in known and value.constant is None and not same(value.type.size, 0):
            raise VerifyError(f"no program writes the output {value!r}")


def _is_appended(value: Value, known: set[Value]) -> bool:
    """Whether a value is there because its last rows are."""
    node = value.node
    return node is not None and node.op == "append" and known.issuperset(node.inputs)


__all__ = [
    "Method",
    "Proof",
    "covers",
    "prove",
    "prove_order",
    "prove_reads",
    "prove_region",
    "prove_whole",
]
