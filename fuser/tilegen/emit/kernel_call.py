"""A kernel that a user wrote, as the program of a region.

It reads and writes whole arrays in memory, each of them a value of the graph. A result that holds
what an operand held, where the kernel does not write, is a copy of the operand first:

    program 0    out[i] = x[i]                 for each result with an operand
    program 1    the kernel, on out
"""

from __future__ import annotations

from fuser.base.target import Target
from fuser.graph.ir import Node, Value
from fuser.graph.ops.families import KERNEL_CALL
from fuser.graph.ops.kernel_call import KernelCall
from fuser.partition.region import Partition, Region
from fuser.tilegen.emit.map import program
from fuser.tilegen.emit.maps import delinearise
from fuser.tilegen.emit.space import Emission
from fuser.tilegen.program import Argument, TileProgram
from fuser.tilegen.rules import rules_of
from fuser.tilegen.schedule import Schedule


def emit(
    region: Region, partition: Partition, target: Target, schedule: Schedule | None
) -> tuple[TileProgram, ...]:
    """The copies of what the kernel changes, and the kernel."""
    node = next(node for node in region.nodes if node.op == KERNEL_CALL)
    call: KernelCall = node.attrs["call"]
    changed = [m for m in call.memories if m.operand is not None and m.result is not None]
    copies = [
        _copy(region, partition, target, schedule, node.inputs[m.operand or 0],
              node.outputs[m.result or 0])
        for m in changed
    ]  # fmt: skip
    kernel, memories = call.program(target)
    kernel.name = f"{region.name}_{call.name}"
    for op in kernel.walk():
        op.origin = (node.origin,) if node.origin else ()
    arguments = []
    for buffer, number in zip(kernel.buffers, memories, strict=True):
        memory = call.memories[number]
        value = value_of(region, node, number)
        buffer.role = "output" if memory.result is not None else "input"
        if memory.result is None and value.constant is not None:
            buffer.role = "constant"
        arguments.append(Argument(buffer, value, kept=memory in changed))
    return *copies, TileProgram(region, kernel, tuple(arguments), call.flops)


def value_of(region: Region, node: Node, number: int) -> Value:
    """What holds the contents of a memory while the kernel of a node runs."""
    call: KernelCall = node.attrs["call"]
    memory = call.memories[number]
    if memory.result is not None:
        return node.outputs[memory.result]
    assert memory.operand is not None
    value = node.inputs[memory.operand]
    while value not in region.inputs and value.node is not None and value.node.op == "reshape":
        value = value.node.inputs[0]
    return value


def _copy(
    region: Region, partition: Partition, target: Target, schedule: Schedule | None,
    source: Value, made: Value,
) -> TileProgram:  # fmt: skip
    size = made.type.size
    rules = rules_of(target, partition.graph.numerics)
    chosen = schedule or rules.map(target, [size], None, made.dtype.bytes)
    em = Emission(region, partition, target, chosen)
    flat = program(em, 0, size, chosen.block("columns"))
    at = delinearise(flat, made.shape)
    em.store(made, at, em.tile(source, at), [(flat, size)])
    return em.finish()
