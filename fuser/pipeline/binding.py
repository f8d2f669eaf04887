"""The end of a compile: kernels bound to values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fuser.backend.module import CompiledKernel
from fuser.backend.symbols import named, readable
from fuser.base.target import Target
from fuser.dtypes import i64
from fuser.graph.dims import parse
from fuser.graph.sizes import evaluate
from fuser.pipeline.packing import pack, source_of
from fuser.runtime.memory import trim_heap
from fuser.runtime.program import IN_PLACE, Program, Step, TensorSpec, assemble
from fuser.runtime.source import Source
from fuser.tilegen.program import Packing

if TYPE_CHECKING:  # a plan for open sizes that comes from a file needs `Bound` alone
    from fuser.graph.ir import Node, Value
    from fuser.partition.region import Partition
    from fuser.tilegen.program import Argument, TileProgram

TRIM_BYTES = 16 << 20
"""The heap is trimmed after constants of so many bytes were freed."""


@dataclass(frozen=True)
class Bound:
    """Kernels bound to values, before buffers have offsets. Where dims are symbolic, bytes, grids,
    costs and shapes are dims too: `at` gives the program at any sizes."""

    name: str
    target: Target
    steps: tuple[Step, ...]
    inputs: tuple[tuple[Hashable, TensorSpec], ...]
    outputs: tuple[tuple[Hashable, TensorSpec], ...]
    constants: dict[Hashable, np.ndarray]
    bytes: dict[Hashable, int]
    work: tuple[tuple[int, int], ...]
    """(operations, bytes moved) of each step."""
    sources: dict[Hashable, Source]
    """Where constants lie in the model's file, for those that come straight from it."""
    in_place: bool = False
    """Whether kernels write to inputs."""

    @property
    def tables(self) -> dict[Hashable, tuple[str, ...]]:
        """The texts of sizes that kernels of a GPU read from memory, by the key of the input that
        holds them: inputs after those of the model, filled anew for each run."""
        found = {}
        for step in self.steps:
            if step.kernel.facts.get("moving"):
                found[self._table(step.kernel)] = tuple(step.kernel.facts["sizes"])
        return found

    @staticmethod
    def _table(kernel: CompiledKernel) -> Hashable:
        return ("sizes", *kernel.facts["sizes"])

    def at(self, sizes: Mapping[str, int] | None = None) -> Program:
        """The program, for sizes of every symbol that there is."""
        known = sizes or {}
        constants = dict(self.constants)
        steps = []
        values: dict[str, int] = {}
        for number, (step, (flops, moved)) in enumerate(zip(self.steps, self.work, strict=True)):
            kernel, operands, access = step.kernel, step.operands, step.access
            if "sizes" in kernel.facts:
                key = ("sizes", number)
                kernel = _kernel_at(kernel, known, values)
                if not self.target.is_cuda:  # an array after the buffers
                    constants[key] = np.array(kernel.sizes or (0,), np.int64)
                    operands, access = (*operands, key), access and f"{access}r"
                elif kernel.facts.get("moving"):  # the same, filled anew for each run
                    operands, access = (*operands, self._table(kernel)), access and f"{access}r"
                    kernel = replace(kernel, sizes=())
            seconds = max(
                evaluate(flops, known) / self.target.flops_f32,
                evaluate(moved, known) / self.target.bandwidth,
            )
            cost = seconds * self.target.units
            steps.append(replace(step, kernel=kernel, operands=operands, cost=cost, access=access))
        program = assemble(
            self.target,
            steps,
            [(key, _spec_at(spec, known)) for key, spec in self.inputs]
            + [
                (key, TensorSpec(f"sizes {number}", i64, (len(texts),)))
                for number, (key, texts) in enumerate(self.tables.items())
            ],
            [(key, _spec_at(spec, known)) for key, spec in self.outputs],
            constants,
            {key: evaluate(size, known) for key, size in self.bytes.items()},
            self.name,
        )
        return replace(program, facts={IN_PLACE: True}) if self.in_place else program


def _kernel_at(
    kernel: CompiledKernel, known: Mapping[str, int], values: dict[str, int]
) -> CompiledKernel:
    """The kernel as it is launched at these sizes. facts: text of dims, as the back end left it.
    values: those of texts met before."""
    facts = kernel.facts

    def numbers(texts: Sequence[str]) -> tuple[int, ...]:
        for text in texts:
            if text not in values:
                values[text] = evaluate(parse(text), known)
        return tuple(values[text] for text in texts)

    found = replace(kernel, grid=numbers(facts["grid"]), sizes=numbers(facts["sizes"]))
    if "launch" not in facts:
        return found
    x, y, z = numbers(facts["launch"])
    maps = tuple(
        replace(
            item,
            shape=numbers(record["shape"]),
            strides=numbers(record["strides"]),
            offset=numbers([record["offset"]])[0],
        )
        for item, record in zip(kernel.tensor_maps, facts["maps"], strict=True)
    )
    return replace(found, launch=(x, y, z), tensor_maps=maps)


def _spec_at(spec: TensorSpec, sizes: Mapping[str, int]) -> TensorSpec:
    return replace(spec, shape=tuple(evaluate(dim, sizes) for dim in spec.shape))


def bind_program(
    name: str, cut: Partition, programs: list[TileProgram], kernels: list[CompiledKernel],
    target: Target,
) -> Program:  # fmt: skip
    """Bind every kernel buffer to a graph value, a packed constant or a workspace of its region."""
    return bind_kernels(name, cut, programs, kernels, target).at()


def bind_kernels(
    name: str, cut: Partition, programs: list[TileProgram], kernels: list[CompiledKernel],
    target: Target, consume: bool = False, pack: Callable[[np.ndarray, Packing], np.ndarray] = pack,
) -> Bound:  # fmt: skip
    """`bind_program` where dims may be symbolic. consume: nobody reads the graph's constants after
    this, so the memory of each goes when it was packed for the last time. pack: constants."""
    # By record, which copies of a node share: all of them must have been read.
    readers = Counter(
        id(value.node.attrs) for value in (
            *(argument.value for program in programs for argument in program.arguments),
            *cut.graph.outputs,
        ) if consume and value is not None and value.node is not None
    )  # fmt: skip
    kernels = named(kernels, [_symbol(program) for program in programs])
    constants: dict[Hashable, np.ndarray] = {}
    sources: dict[Hashable, Source] = {}
    sizes: dict[Hashable, int] = {}
    steps = []
    work = []
    freed = 0
    for program, kernel in zip(programs, kernels, strict=True):
        keys: list[Hashable] = []
        zeroed: list[Hashable] = []
        for argument in program.arguments:
            value, key = argument.value, _key(program, argument)
            if value in cut.places:
                key = cut.memory_of(value)
            if value in cut.rooms:
                key = cut.rooms[value].state
            if value is not None and value.constant is not None:
                if key not in constants:
                    packing = argument.packing or Packing()
                    source = source_of(value.constant, packing)
                    if source is not None:
                        sources[key] = source
                    constants[key] = pack(value.constant, packing)
                assert value.node is not None
                record = value.node.attrs
                readers[id(record)] -= 1
                if not readers[id(record)]:
                    freed += value.type.bytes
                    record.update(spent(value.node))
                    if freed >= TRIM_BYTES:
                        freed = 0
                        trim_heap()
            else:
                found = argument.buffer.size * argument.buffer.dtype.bytes
                sizes[key] = found if key not in sizes else max(sizes[key], found)
            keys.append(key)
            if argument.zeroed:
                zeroed.append(key)
        met = program.kernel.accessed()
        access = "".join(met.get(argument.buffer, "-") for argument in program.arguments)
        steps.append(Step(kernel, tuple(keys), tuple(zeroed), program.region.name, access=access))
        work.append((program.flops, program.region.traffic()))
    for value in cut.graph.outputs:
        if value.constant is not None:
            constants.setdefault(value, pack(np.ascontiguousarray(value.constant), Packing()))
    return Bound(
        name,
        target,
        tuple(steps),
        tuple(
            (value, TensorSpec(value.name, value.dtype, cut.extents(value)))
            for value in cut.graph.inputs
        ),
        tuple(
            (cut.memory_of(value), _spec(value, label))
            for value, label in zip(cut.graph.outputs, cut.graph.output_names, strict=True)
            if value not in cut.rooms
        ),
        constants,
        sizes,
        tuple(work),
        sources,
        bool(cut.rooms),
    )


def _symbol(program: TileProgram) -> str:
    region = program.region
    marked = next((node for node in (*region.anchors, *region.nodes) if node.origin), None)
    return readable(program.kernel.name, marked.origin if marked else ())


def spent(node: Node) -> dict[str, np.ndarray]:
    """The attributes of a constant whose type and shape alone are still asked for."""
    array = node.attrs["value"]
    return {"value": np.broadcast_to(np.zeros((), array.dtype), array.shape)}


def _key(program: TileProgram, argument: Argument) -> Hashable:
    if argument.value is None:
        return (program.region.id, argument.workspace)
    if argument.packing is None or argument.value.constant is None:
        copy = argument.buffer.dtype
        return argument.value if copy is argument.value.dtype else (argument.value, copy.name)
    return (argument.value, argument.packing)


def _spec(value: Value, name: str) -> TensorSpec:
    return TensorSpec(name, value.dtype, value.shape)
