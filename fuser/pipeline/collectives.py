"""The kernel of a region that is a collective: no code, a record for the runtime."""

from __future__ import annotations

from dataclasses import asdict

from fuser.backend.module import CompiledKernel
from fuser.base.target import Target
from fuser.errors import VerifyError
from fuser.partition.nodes import behind_reshapes
from fuser.runtime.program import Exchange
from fuser.tilegen.program import TileProgram


def exchange(program: TileProgram, target: Target) -> CompiledKernel:
    """What launches the collective that a program stands for: its operand, then its result."""
    region = program.region
    node = next(node for node in region.nodes if node.outputs[0] in region.outputs)
    ends = [argument.value for argument in program.arguments]
    if ends != [behind_reshapes(node.inputs[0]), node.output]:
        raise VerifyError("a collective has one operand and one result", where=region.name)
    record = Exchange(
        node.op,
        node.inputs[0].dtype.name,
        tuple(tuple(group) for group in node.attrs["groups"]),
        node.inputs[0].type.size,
        node.output.type.size,
        node.attrs.get("fold", ""),
        node.attrs.get("root", -1),
    )
    plain = [list(group) for group in record.groups]  # as a file has them
    facts = {"collective": asdict(record) | {"groups": plain}}
    return CompiledKernel(region.name, target.name, node.op, b"", (1,), facts=facts)
