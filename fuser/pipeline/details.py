"""What a page shows of a plan beside its report: the model's nodes, the tensors between kernels,
refused fusions, the text of each kernel. Plain data, a part of the report's JSON
(docs/report-page.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fuser.base.target import Target
from fuser.graph.ir import Graph
from fuser.graph.sizes import size_hint
from fuser.partition.explanation import explanation
from fuser.partition.region import Partition
from fuser.pipeline.outline import outline
from fuser.pipeline.stage_texts import kernel_text
from fuser.report.build import Planned, region_bytes
from fuser.tilegen.program import TileProgram
from fuser.tilegen.text import canonical_text, print_kernel

Told = Callable[[str], None]


def source_nodes(graph: Graph) -> list[dict[str, Any]]:
    """The nodes of the model that run: name, operator, kind, and the nodes that each reads."""
    return [
        {"name": node.name, "op": node.op_type, "kind": node.kind, "reads": list(node.reads)}
        for node in graph.source
        if node.kind in ("compute", "view")
    ]


def tensors_between(cut: Partition) -> list[dict[str, Any]]:
    """The tensors that kernels hand on, weights left out: type, bytes, the region that writes it
    (None: the input of that name), those that read it, and the outputs that it is."""
    writer = {value: region.id for region in cut.regions for value in region.outputs}
    outputs: dict[Any, list[str]] = {}
    for value, name in zip(cut.graph.outputs, cut.graph.output_names, strict=True):
        outputs.setdefault(value, []).append(name)
    found = []
    for value in dict.fromkeys((*cut.graph.inputs, *writer)):
        readers = [region.id for region in cut.regions if value in region.inputs]
        found.append(
            {
                "type": str(value.type),
                "bytes": size_hint(value.type.bytes),
                "input": None if value in writer else value.name,
                "writer": writer.get(value),
                "readers": readers,
                "outputs": outputs.get(value, []),
            }
        )
    return found


def kernel_texts(
    programs: Sequence[TileProgram], target: Target, told: Told = lambda step: None
) -> list[dict[str, Any]]:
    """The tile program and the generated code of each kernel, in launch order: "tile", "code" and
    "stage", what `fuser dump` calls that. A kernel whose code is that of an earlier one has "same",
    its place, instead. Raises what lowering raises."""
    first: dict[str, int] = {}
    found: list[dict[str, Any]] = []
    stage = "ptx" if target.is_cuda else "asm"
    for number, program in enumerate(programs):
        same = first.setdefault(canonical_text(program.kernel), number)
        if same != number:
            found.append({"same": same})
            continue
        told(f"writing the code of {program.kernel.name}")
        code = kernel_text(program, stage, target)
        found.append({"tile": print_kernel(program.kernel), "stage": stage, "code": code})
    return found


def details(
    cut: Partition, programs: Sequence[TileProgram], target: Target,
    told: Told = lambda step: None, *, texts: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """All of it: "nodes", "tensors", "refusals", "seconds" of a run as the partitioner predicts it,
    and "texts" if they are wanted."""
    moved = region_bytes(Planned(cut, programs, outline(cut, programs, target)))
    found = explanation(cut, moved).to_dict()
    return {
        "nodes": source_nodes(cut.graph),
        "tensors": tensors_between(cut),
        "refusals": found["refusals"],
        "seconds": found["seconds"],
        "texts": kernel_texts(programs, target, told) if texts else [],
    }
