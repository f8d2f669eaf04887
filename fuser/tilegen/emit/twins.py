"""Regions that are equal but for their names and weights get one kernel, made once.

A model is the same layer many times. Of two regions of one *form* (operators, attributes, types,
layouts, and how values connect) the second is bound to the programs of the first: a lookup in the
place of an emission, the tile passes and a proof. Values of constants count as far as the emitter
asked for them (constants.py): where a constant of the second answers otherwise, it is no twin.

    region 7: dot(%3, %w0), add %b0      programs of region 7
    region 9: dot(%8, %w1), add %b1      the same, with %8 for %3, %w1 for %w0, %b1 for %b0

The kernels of twins share views and ops. Which source nodes an op comes from is told for each:
what a node of the graph comes from, names of source nodes, is part of the form by where it is
repeated, so one table translates it. A node that all layers share has names of all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from fuser.dtypes import DType
from fuser.graph.dims import DimExpr
from fuser.graph.ir import Node, TensorType, Value
from fuser.graph.ops.kernel_call import KernelCall
from fuser.partition.region import Partition, Region
from fuser.tilegen.emit.constants import Answers, Question
from fuser.tilegen.program import TileProgram

MOST_BYTES = 4096
"""Of a constant inside a region that is compared by its elements; a larger one equals itself."""

SEEN = ("constant", "dequantize", "dims")
"""Nodes that emitters see behind values from outside of a region; others write to memory."""


@dataclass(frozen=True)
class _Form:
    """A region without its names: key. values: those that the key numbers, in order; sources: what
    nodes come from, in order."""

    key: Hashable
    values: list[Value]
    sources: list[tuple[str, ...]]


@dataclass(frozen=True)
class _Known:
    """A region whose programs are made. numbers: of its values; answers: (question, number of the
    value that was asked, form of the answer)."""

    region: Region
    numbers: dict[Value, int]
    sources: list[tuple[str, ...]]
    answers: list[tuple[Question, int, Hashable]]
    programs: tuple[TileProgram, ...]


class Twins:
    """The regions met so far, in one compile for one target."""

    def __init__(self) -> None:
        self._known: dict[Hashable, list[_Known]] = {}
        self._last: tuple[Region, _Form] | None = None

    def find(self, region: Region, partition: Partition) -> tuple[TileProgram, ...] | None:
        """The finished programs of a region that has a twin."""
        form = self._form(region, partition)
        for known in self._known.get(form.key, ()):
            if all(
                form_of(question(form.values[number])) == answer
                for question, number, answer in known.answers
            ):
                return tuple(_bound(program, known, region, form) for program in known.programs)
        return None

    def keep(
        self, region: Region, partition: Partition, programs: tuple[TileProgram, ...],
        asked: Answers,
    ) -> None:  # fmt: skip
        """Remember the finished programs of a region, and what was asked of constants for them."""
        form = self._form(region, partition)
        numbers = {value: number for number, value in enumerate(form.values)}
        answers = [
            (question, numbers[value], form_of(answer))
            for (question, value), answer in asked.items()
        ]
        known = _Known(region, numbers, form.sources, answers, programs)
        self._known.setdefault(form.key, []).append(known)

    def _form(self, region: Region, partition: Partition) -> _Form:
        if self._last is None or self._last[0] is not region:
            self._last = region, _Former(partition).region(region)
        return self._last[1]


def _bound(program: TileProgram, known: _Known, region: Region, form: _Form) -> TileProgram:
    """A program of a known region as one of its twin."""
    arguments = tuple(
        argument
        if argument.value is None
        else dataclasses.replace(argument, value=form.values[known.numbers[argument.value]])
        for argument in program.arguments
    )
    suffix = program.kernel.name.removeprefix(known.region.name)
    renamed = zip(known.sources, form.sources, strict=True)
    kernel = dataclasses.replace(program.kernel, name=region.name + suffix, sources=dict(renamed))
    return dataclasses.replace(
        program, region=region, kernel=kernel, arguments=arguments, notes=list(program.notes)
    )


class _Former:
    """Makes the form of one region."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.numbers: dict[Value, int] = {}
        self.nodes: dict[Node, int] = {}
        self.sources: dict[tuple[str, ...], int] = {}

    def region(self, region: Region) -> _Form:
        parts: list[Hashable] = [region.kind]
        for node in region.nodes:
            parts.append(node.op)
            parts += [self.value(value) for value in node.inputs]
            parts += [(name, self.any(item)) for name, item in node.attrs.items()]
            self.nodes[node] = len(self.nodes)
            parts += [self.made(value) for value in node.outputs]
            parts.append(self.sources.setdefault(tuple(node.origin), len(self.sources)))
        for values in (region.inputs, region.outputs):
            parts.append(tuple(map(self.value, values)))
        parts.append(tuple(self.nodes.get(node, -1) for node in region.anchors))
        parts.append(self.any(region.facts))
        return _Form(tuple(parts), list(self.numbers), list(self.sources))

    def value(self, value: Value) -> Hashable:
        """A value that is known by its number, or comes from outside of the region."""
        number = self.numbers.get(value)
        if number is not None:
            return number
        node = value.node
        kind = node.op if node is not None and node.op in SEEN else ""
        return self.made(value), kind, self.any(node.attrs) if node and kind == "dims" else None

    def made(self, value: Value) -> Hashable:
        self.numbers[value] = len(self.numbers)
        cut = self.partition
        copy = cut.copies.get(value)
        return (
            *_type_form(value.type), cut.layouts.get(value), self.room(value),
            copy and (copy.name, value in cut.narrow),
        )  # fmt: skip

    def room(self, value: Value) -> Hashable:
        room = self.partition.rooms.get(value)
        numbers = room and (room.capacity, room.start, room.settled)
        return room and (room.axis, form_of(numbers))

    def any(self, item: Any) -> Hashable:
        """An attribute or a fact, which may name values and nodes of the region."""
        if isinstance(item, Value):
            return "value", self.value(item)
        if isinstance(item, Node):
            number = self.nodes.get(item)
            return "node", id(item) if number is None else number
        if isinstance(item, dict):
            return tuple((name, self.any(content)) for name, content in item.items())
        if isinstance(item, tuple | list):
            return tuple(map(self.any, item))
        return form_of(item)


def _type_form(type: TensorType) -> tuple[Hashable, ...]:
    return type.dtype.name, form_of(type.shape)


def form_of(item: Any) -> Hashable:
    """Something that is equal for equal things alone: 0, 0.0, -0.0 and False differ. Symbolic dims
    are compared by identity, which asks nothing of the sizes."""
    kind = item.__class__
    if item is None or kind is int or kind is str:
        return cast(Hashable, item)
    if kind is tuple or kind is list:
        for part in item:
            if part.__class__ is not int:
                return tuple(map(form_of, item))
        return item if kind is tuple else tuple(item)
    if kind is DType:
        return "dtype", item.name
    if kind is TensorType:
        return _type_form(item)
    if isinstance(item, np.ndarray | np.generic):
        array = np.asarray(item)
        if array.nbytes <= MOST_BYTES:
            return array.dtype.name, array.shape, array.tobytes()
    elif isinstance(item, bool | float):
        return kind.__name__, repr(item)
    elif isinstance(item, DimExpr):
        return "dim", id(item)
    elif isinstance(item, KernelCall):
        return "call", item.digest
    elif dataclasses.is_dataclass(item) and not isinstance(item, type):
        names = [field.name for field in dataclasses.fields(item)]
        return kind.__name__, tuple(form_of(getattr(item, name)) for name in names)
    return "one", id(item)


__all__ = ["Twins", "form_of"]
