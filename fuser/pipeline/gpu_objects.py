"""A program of a GPU as files for programs in any language: PTX, weights, and what to launch.

NAME.json is the manifest: the steps of a run in order, each with the places of its arguments in
memory: ["input", i], ["output", i], ["weights", bytes] or ["workspace", bytes]. NAME.h is the same
as tables of C, which examples/c/gpu.c walks with the driver API.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fuser
from fuser.pipeline.c_header import gpu_header
from fuser.runtime.cuda_maps import SWIZZLES, TYPES
from fuser.runtime.device_code import map_arguments
from fuser.runtime.memory import align
from fuser.runtime.program import BufferRef, Program, TensorSpec

ALIGNMENT = 256
"""The alignment of the workspace, of the weights, and of each constant in them."""
VERSION = 1
"""The manifest's version."""


def write_gpu_objects(
    program: Program, folder: Path, symbol: str, dims: Mapping[str, int]
) -> list[Path]:
    """Write SYMBOL.json, SYMBOL.h, SYMBOL.weights, and a file of PTX for each kernel. Raises
    OSError, CompileError for a view that no tensor map describes."""
    record, kernels = manifest(program, symbol, dims)
    weights = np.zeros(record["weights"]["bytes"], np.uint8)
    for array, start in zip(program.constants, _offsets(program)[0], strict=True):
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        weights[start : start + flat.size] = flat
    files = {
        f"{symbol}.json": (json.dumps(record, indent=1) + "\n").encode(),
        f"{symbol}.h": gpu_header(record, symbol).encode(),
        f"{symbol}.weights": weights.tobytes(),
        **kernels,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in files]


def manifest(
    program: Program, symbol: str, dims: Mapping[str, int]
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest, and the files of the kernels."""
    offsets, size = _offsets(program)
    kernels: dict[bytes, str] = {}

    def place(ref: BufferRef) -> list[Any]:
        if ref.space == "constant":
            return ["weights", offsets[ref.index]]
        return ["workspace" if ref.space == "arena" else ref.space, ref.index]

    steps: list[dict[str, Any]] = []
    for launch in program.launches:
        kernel = launch.kernel
        for zero in launch.zeros:
            steps.append({"step": "zero", "to": place(zero.buffer), "bytes": zero.bytes})
        if not all(kernel.launch):
            continue
        follows = bool(steps) and steps[-1]["step"] == "launch"
        steps.append(
            {
                "step": "launch",
                "kernel": launch.name,
                "file": kernels.setdefault(kernel.code, f"{symbol}.{len(kernels)}.ptx"),
                "entry": kernel.entry,
                "grid": list(kernel.launch),
                "block": kernel.threads,
                "shared": kernel.shared_bytes,
                "cluster": kernel.cluster,
                "overlap": kernel.pdl and follows,
                "arguments": [place(ref) for ref in launch.arguments],
                "maps": [_map(item) for item in kernel.tensor_maps],
                "sizes": list(kernel.sizes),
            }
        )
    for copy in program.copies:
        bytes_ = program.outputs[copy.output].bytes
        to = ["output", copy.output]
        steps.append({"step": "copy", "from": place(copy.source), "to": to, "bytes": bytes_})
    record = {
        "manifest": VERSION,
        "fuser": fuser.__version__,
        "name": symbol,
        "target": program.target.arch,
        "dims": dict(dims),
        "inputs": _specs(program.inputs),
        "outputs": _specs(program.outputs),
        "alignment": ALIGNMENT,
        "weights": {"file": f"{symbol}.weights", "bytes": size},
        "workspace": align(program.arena_bytes, ALIGNMENT),
        "steps": steps,
    }
    return record, {file: code for code, file in kernels.items()}


def _offsets(program: Program) -> tuple[list[int], int]:
    """The offset of each constant in the weights, and the bytes of all."""
    offsets, top = [], 0
    for array in program.constants:
        offsets.append(top)
        top += align(array.nbytes, ALIGNMENT)
    return offsets, top


def _map(item: Any) -> dict[str, Any]:
    """The arguments of the driver's encoder, with its own numbers for enumerations. start: bytes
    from the beginning of the argument's buffer."""
    plain = map_arguments(item, 0)
    return {
        "argument": item.argument,
        "start": plain["address"],
        "type": TYPES[plain["type"].removeprefix("CU_TENSOR_MAP_DATA_TYPE_")],
        "shape": list(plain["shape"]),
        "strides": list(plain["strides"]),
        "box": list(plain["box"]),
        "steps": list(plain["steps"]),
        "lower": list(item.lower),
        "upper": list(item.upper),
        "swizzle": SWIZZLES[item.swizzle],
        "im2col": bool(item.steps),
    }


def _specs(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    return [
        {"name": s.name, "dtype": s.dtype.numpy.name, "shape": list(s.shape), "bytes": s.bytes}
        for s in specs
    ]
