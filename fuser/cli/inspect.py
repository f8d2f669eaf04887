"""`fuser inspect`: what is in a model or a plan file, without compiling or running it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuser.errors import UsageError
from fuser.graph.units import byte_size, counted

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

    from fuser.base.target import Target
    from fuser.runtime.program import TensorSpec


@click.command("inspect")
@click.argument("file", metavar="MODEL|PLAN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-v", "--verbose", is_flag=True, help="Each kernel, input and processor feature.")
def inspect_command(file: Path, as_json: bool, verbose: bool) -> int:
    """Print the inputs, outputs, dims, operators and weights of an ONNX model, or the inputs,
    outputs, target and kernels of a plan."""
    from fuser.runtime.container import MAGIC_BYTES
    from fuser.runtime.terminal import echo, table

    try:
        with open(file, "rb") as opened:
            kind = opened.read(MAGIC_BYTES)[:6]
    except IsADirectoryError as error:
        raise UsageError(f"{file} is a folder") from error
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    readers = {b"FUSERP": _plan, b"FUSERD": _dynamic_plan}
    found = readers.get(kind, _model)(file)
    if as_json:
        click.echo(json.dumps(found))
    else:
        echo(table(_rows(found, verbose), labels=True, paint=True))
    return 0


def _model(path: Path) -> dict[str, Any]:
    from onnx import helper

    from fuser.frontends.onnx.importer import load_mapped

    proto, _ = load_mapped(path)
    graph = proto.graph
    held = {tensor.name for tensor in graph.initializer}
    inputs = [_info(info) for info in graph.input if info.name not in held]
    weights: dict[str, dict[str, int]] = {}
    for tensor in graph.initializer:
        count = 1
        for size in tensor.dims:
            count *= size
        name = _dtype(tensor.data_type)
        entry = weights.setdefault(name, {"tensors": 0, "elements": 0, "bytes": 0})
        bits = {"int4": 4, "uint4": 4, "float4e2m1": 4, "int2": 2, "uint2": 2}.get(name)
        bits = bits or helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize * 8
        entry["tensors"] += 1
        entry["elements"] += count
        entry["bytes"] += -(-count * bits // 8)
    operators = Counter(
        f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        for node in _nodes(graph)
    )
    dims = {dim for info in inputs for dim in info["shape"] if isinstance(dim, str)}
    return {
        "kind": "model", "file": str(path), "name": graph.name,
        "producer": f"{proto.producer_name} {proto.producer_version}".strip(),
        "ir_version": proto.ir_version,
        "opsets": {entry.domain or "ai.onnx": entry.version for entry in proto.opset_import},
        "inputs": inputs, "outputs": [_info(info) for info in graph.output],
        "dims": sorted(dims), "operators": dict(operators.most_common()), "weights": weights,
    }  # fmt: skip


def _info(info: Any) -> dict[str, Any]:
    """Name, dtype and shape of an input or output; a dim is a number, a name or "?"."""
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        return {"name": info.name, "dtype": kind or "?", "shape": []}
    tensor = info.type.tensor_type
    shape = [
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?"
        for dim in tensor.shape.dim
    ]
    return {"name": info.name, "dtype": _dtype(tensor.elem_type), "shape": shape}


def _dtype(number: int) -> str:
    """NumPy's name of a dtype of ONNX."""
    from onnx import TensorProto

    name = str(TensorProto.DataType.Name(number)).lower()
    return {"float": "float32", "double": "float64"}.get(name, name)


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Every node, those of the bodies of loops and branches among them."""
    graphs = [graph]
    while graphs:
        for node in graphs.pop().node:
            yield node
            for attribute in node.attribute:
                graphs += [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]


def _plan(path: Path) -> dict[str, Any]:
    from fuser.runtime.store import load_programs

    programs = [one.program for one in load_programs(path, with_weights=False)]
    program = programs[0]
    launches = Counter(launch.kernel.name for launch in program.launches)
    kernels = {launch.kernel.name: launch.kernel for launch in program.launches}
    return {
        "kind": "plan", "file": str(path), "name": program.name,
        "target": _target(program.target), "targets": [_target(p.target) for p in programs],
        "inputs": _specs(program.inputs), "outputs": _specs(program.outputs),
        "kernels": [
            {"name": name, "launches": launches[name], "bytes": len(kernel.code)}
            for name, kernel in kernels.items()
        ],
        "constants_bytes": sum(array.nbytes for array in program.constants),
        "peak_memory_bytes": program.peak_memory_bytes,
    }  # fmt: skip


def _target(target: Target) -> dict[str, str]:
    return {key: getattr(target, key) for key in ("name", "arch", "features")}


def _dynamic_plan(path: Path) -> dict[str, Any]:
    from fuser.dtypes import BY_NAME
    from fuser.errors import InvalidModelError
    from fuser.pipeline.dynamic_store import KIND
    from fuser.runtime.container import MALFORMED, read_file

    manifest = read_file(path, KIND).manifest
    try:
        inputs = [
            {**item, "dtype": BY_NAME[item["dtype"]].numpy.name} for item in manifest["inputs"]
        ]
        return {
            "kind": "plan for many sizes", "file": str(path), "inputs": inputs,
            "ranges": len(manifest["variants"]),
        }  # fmt: skip
    except MALFORMED as error:
        raise InvalidModelError(f"the plan is malformed: {error!r}", where=str(path)) from error


def _specs(specs: Iterable[TensorSpec]) -> list[dict[str, Any]]:
    return [
        {"name": spec.name, "dtype": spec.dtype.numpy.name, "shape": list(spec.shape)}
        for spec in specs
    ]


def _rows(found: dict[str, Any], verbose: bool) -> Iterator[tuple[str, str]]:
    """What is printed of a file. verbose: all inputs, kernels and features of the processor."""
    yield found["kind"], found["file"] + (f" ({found['name']})" if found.get("name") else "")
    if "ranges" in found:
        yield "ranges of sizes", f"{found['ranges']:,}"
    elif found["kind"] == "plan":
        for target in found["targets"]:
            features = features_text(target["features"], verbose)
            yield "target", f"{target['name']} {target['arch']} {features}".strip()
    else:
        yield "producer", found["producer"] or "unknown"
        opsets = ", ".join(f"{domain} {version}" for domain, version in found["opsets"].items())
        yield "opsets", f"{opsets}; IR version {found['ir_version']}"
    for label in ("input", "output"):
        ends = found.get(f"{label}s", ())
        for item in ends if verbose else ends[:MOST_ENDS]:
            shape = ", ".join(map(str, item["shape"]))
            yield label, f"{item['name']} {item['dtype']}[{shape}]"
        if len(ends) > MOST_ENDS and not verbose:
            yield f"{label}s", f"{len(ends) - MOST_ENDS:,} more (-v)"
    if found["kind"] == "plan":
        yield from _kernel_rows(found["kernels"], verbose)
        yield "constants", byte_size(found["constants_bytes"])
        yield "peak memory", byte_size(found["peak_memory_bytes"])
        return
    if "ranges" in found:
        return
    yield "dims", ", ".join(found["dims"]) or "all fixed"
    for name, entry in found["weights"].items():
        text = f"{entry['tensors']:,} of {name}, {counted(entry['elements'], 'element')}"
        yield "weights", f"{text}, {byte_size(entry['bytes'])}"
    operators = found["operators"]
    if operators:
        listed = ", ".join(f"{count:,} {name}" for name, count in operators.items())
        yield "operators", f"{sum(operators.values()):,}: {listed}"


def features_text(features: str, verbose: bool = False) -> str:
    """The features of a target's processor, or how many they are. verbose: in any case."""
    listed = features.split(",") if features else []
    if verbose or len(listed) <= MOST_FEATURES:
        return " ".join(listed)
    return f"with {len(listed)} processor features"


def _kernel_rows(kernels: list[dict[str, Any]], verbose: bool) -> Iterator[tuple[str, str]]:
    """The kernels of a plan by their kinds, or each."""
    launches = sum(kernel["launches"] for kernel in kernels)
    size = byte_size(sum(kernel["bytes"] for kernel in kernels))
    kinds: Counter[str] = Counter()
    for kernel in kernels:
        kinds[re.split(r"_\d", kernel["name"])[0]] += kernel["launches"]
    listed = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
    more = "" if verbose or not kernels else " (-v lists each)"
    codes = counted(len(kernels), "kernel")
    yield "kernels", f"{counted(launches, 'launch', 'launches')} of {codes}, {size}: {listed}{more}"
    for kernel in kernels if verbose else ():
        times = f", {kernel['launches']:,} times" if kernel["launches"] > 1 else ""
        yield "kernel", f"{kernel['name']}, {byte_size(kernel['bytes'])}{times}"


MOST_ENDS, MOST_FEATURES = 12, 6
"""Inputs and outputs, and features of a processor, that are listed unless all are asked for."""
