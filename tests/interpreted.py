"""Run regions through the emitters and the Tile IR interpreter: the compiler without a back end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fuser.base.target import SM_80, SM_90A, Target, cpu_target
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph, Value
from fuser.partition.region import Kind, Partition, Region
from fuser.tilegen.emit import emit
from fuser.tilegen.interpret import check_written, run
from fuser.tilegen.program import Argument, TileProgram
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.verify import verify
from tests.poison import fill

Array = np.ndarray[Any, Any]

CPU = cpu_target("x86-64-v4", "", units=2, vector_bits=256)
TARGETS: dict[str, Target] = {"cpu": CPU, "sm_80": SM_80, "sm_90a": SM_90A}


def one_region(
    graph: Graph, kind: Kind, layouts: dict[Value, tuple[int, ...]] | None = None
) -> Partition:
    """A partition of the whole graph into one region; array constants are inputs of it."""
    inside = tuple(n for n in graph.nodes if n.op != "constant" or n.output.type.size == 1)
    made = {value for node in inside for value in node.outputs}
    reads = dict.fromkeys(v for n in inside for v in n.inputs if v not in made)
    anchors = tuple(n for n in inside if n.op in ("dot_general", "conv"))
    outputs = tuple(dict.fromkeys(graph.outputs))
    region = Region(0, kind, inside, tuple(reads), outputs, anchors)
    return Partition(graph, [region], layouts=layouts or {})


def run_program(
    program: TileProgram, arrays: dict[Any, Array], partition: Partition, work: dict[int, Array]
) -> dict[Any, Array]:
    """Interpret one program. `arrays` holds values as flat buffers in their memory order. Returns
    which elements of its outputs it wrote; memory that nobody wrote holds poison."""
    buffers: dict[str, Array] = {}
    outputs: dict[str, Any] = {}
    for argument in program.arguments:
        buffer, value = argument.buffer, argument.value
        if value is None:
            if argument.workspace not in work or argument.zeroed:
                work[argument.workspace] = _fresh(argument)
            buffers[buffer.name] = work[argument.workspace]
        elif buffer.role == "constant":
            array = value.constant
            assert array is not None
            packed = argument.packing.apply(array) if argument.packing else array
            buffers[buffer.name] = np.ascontiguousarray(packed).reshape(-1)
        else:
            key = partition.memory_of(value)
            if buffer.dtype is not value.dtype:
                key = (value, buffer.dtype)  # a copy
            if key not in arrays:
                arrays[key] = _fresh(argument)
            if buffer.role == "output":
                outputs[buffer.name] = key
            buffers[buffer.name] = arrays[key]
        assert buffers[buffer.name].size == buffer.size, buffer
    written = run(program.kernel, buffers)
    zeroed = {argument.buffer.name for argument in program.arguments if argument.zeroed}
    return {
        key: written[name] | (name in zeroed) for name, key in outputs.items() if name in written
    }


def _fresh(argument: Argument) -> Array:
    """Memory that a kernel finds: zeroed where that is asked for, else poisoned."""
    buffer = argument.buffer
    size = buffer.size if argument.value is None else argument.value.type.size
    array = np.zeros(size, buffer.dtype.numpy)
    return array if argument.zeroed else fill(array)


def run_partition(
    partition: Partition,
    feeds: Mapping[str, Array],
    target: Target,
    schedule: Schedule | None = None,
) -> dict[str, Array]:
    """The graph outputs, computed region by region with interpreted tile programs."""
    regions = partition.regions
    programs = [p for region in regions for p in emit(region, partition, target, schedule)]
    return run_programs(partition, feeds, programs)


def run_programs(
    partition: Partition, feeds: Mapping[str, Array], programs: list[TileProgram]
) -> dict[str, Array]:
    """The graph outputs, computed by interpreted tile programs in launch order."""
    graph = partition.graph
    arrays: dict[Any, Array] = {}
    for value in graph.inputs:
        arrays[value] = physical(partition, value, np.asarray(feeds[value.name]))
    works: dict[int, dict[int, Array]] = {}
    written: dict[Any, Array] = {}
    for program in programs:
        verify(program.kernel)
        work = works.setdefault(program.region.id, {})
        for key, mask in run_program(program, arrays, partition, work).items():
            written[key] = written.get(key, False) | mask
    for key, mask in written.items():
        check_written(str(key), mask)
    results = {}
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        if value.constant is not None:
            results[name] = value.constant
        elif not value.type.size:  # no program stores nothing
            results[name] = np.zeros(value.shape, value.dtype.numpy)
        else:
            results[name] = logical(partition, value, arrays[partition.memory_of(value)])
    return results


def physical(partition: Partition, value: Value, array: Array) -> Array:
    """A flat buffer of the value in its memory order."""
    order = partition.layouts.get(value, tuple(range(value.type.rank)))
    return np.ascontiguousarray(array.transpose(order)).reshape(-1)


def logical(partition: Partition, value: Value, flat: Array) -> Array:
    """The array of a value from its flat buffer."""
    order = partition.layouts.get(value, tuple(range(value.type.rank)))
    return flat.reshape([value.shape[d] for d in order]).transpose(np.argsort(order).astype(int))


def check(
    partition: Partition,
    feeds: Mapping[str, Array],
    target: Target,
    schedule: Schedule | None = None,
    tolerance: float | None = None,
) -> None:
    """Assert that interpreted programs give what the graph means (float64 oracle for floats)."""
    graph = partition.graph
    expected = evaluate(graph, feeds, float64=True)
    found = run_partition(partition, feeds, target, schedule)
    for name, want in expected.items():
        have = found[name]
        assert have.shape == want.shape, (name, have.shape, want.shape)
        if have.dtype.kind in "iub":
            np.testing.assert_array_equal(have, want, err_msg=name)
            continue
        limit = tolerance or (1e-5 if have.dtype.itemsize >= 4 else 1e-2)
        have = have.astype(np.float64)
        finite = np.isfinite(want)
        np.testing.assert_array_equal(np.isfinite(have), finite, err_msg=name)
        have, want = have[finite], want[finite]
        error = np.linalg.norm(have - want) / (np.linalg.norm(want) + 1e-30)
        assert error < limit, (name, error)
