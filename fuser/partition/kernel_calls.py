"""What may be computed inside of a kernel that a user wrote: in the place of its loads, and before
its stores.

    %a = exp %x; %y = kernel_call(%a); %z = add %y, %r       one region: the kernel loads %x and %r,
                                                       =>    computes exp of what it loads, and
                                                             stores %z

An operand may be computed where the kernel loads it, if the places of its loads are known: each is
an element of the operand. A result that is stored throughout, each element once, may be followed by
maps on the same elements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from fuser.graph.ir import Node, Value
from fuser.graph.ops.families import KERNEL_CALL
from fuser.graph.ops.kernel_call import KernelCall, Memory
from fuser.partition import positions as at
from fuser.partition.grouping import Grouping, Misfit
from fuser.partition.nodes import behind_reshapes
from fuser.partition.positions import Positions
from fuser.partition.region import Region


def read_by(grouping: Grouping, node: Node, value: Value) -> list[Memory]:
    """What a kernel is given that is made of a value by movement and inlined maps."""
    call: KernelCall = node.attrs["call"]
    return [
        call.operand(place)
        for place, operand in enumerate(node.inputs)
        if value in grouping.sources(operand)
    ]


def unreadable(grouping: Grouping, node: Node, value: Value) -> Misfit | None:
    """Why a kernel cannot compute a value where it loads it, if it cannot."""
    for memory in read_by(grouping, node, value):
        if memory.reads is None:
            name = node.attrs["call"].name
            return Misfit("gathered", f"data decides which elements of {memory.name} {name} loads")
    return None


def evaluations(grouping: Grouping, node: Node, value: Value) -> int:
    """How many elements of a value a kernel asks for."""
    return sum(memory.reads or 0 for memory in read_by(grouping, node, value))


def result_positions(node: Node) -> dict[Value, Positions]:
    """Where the results of a kernel lie, those that maps may follow: a space of its own for each,
    so that no two line up."""
    found: dict[Value, Positions] = {}
    if node.op != KERNEL_CALL:
        return found
    for memory in node.attrs["call"].memories:
        if memory.result is not None and memory.is_written_once:
            value = node.outputs[memory.result]
            found[value] = np.roll(at.sample(at.count(value)), memory.result + 1)
    return found


def share_memory(regions: Sequence[Region], kept: Collection[Value]) -> dict[Value, Value]:
    """Results that lie where the operand was that a kernel changes: nobody reads that afterwards.
    Other kernels change a copy. kept: values whose memory is not the plan's own, or is returned."""
    readers = Counter(value for region in regions for value in region.inputs)
    written = {value for region in regions for value in region.outputs}
    found: dict[Value, Value] = {}
    for region in regions:
        if region.kind != "kernel":
            continue
        node = next(node for node in region.nodes if node.op == KERNEL_CALL)
        call: KernelCall = node.attrs["call"]
        shared = []
        for number, memory in enumerate(call.memories):
            if memory.operand is None or memory.result is None:
                continue
            value = behind_reshapes(node.inputs[memory.operand])
            inside = [n for n in region.nodes if value in n.inputs]
            alone = readers[value] == 1 and len(inside) == 1 and inside[0].op in _DIRECT
            if alone and value in written and value not in kept:
                found[node.outputs[memory.result]] = value
                shared.append(number)
        region.facts["in_place"] = tuple(shared)
    return found


_DIRECT = ("reshape", KERNEL_CALL)
