"""Hashes of the text of every kernel: scripts/kernel-hashes (see there).

A line a kernel: the target, the model or case, the kernel's number in it, the SHA-256 of its
canonical Tile IR and that of its assembly or PTX, 16 digits each. Kernels are named by their
number, so that names do not count.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from onnx import ModelProto

from fuser.backend import cpu, nvptx
from fuser.base.target import SM_80, SM_90A, X86_64_V4, Target
from fuser.errors import FuserError
from fuser.frontends.onnx.model import open_model
from fuser.partition import partition
from fuser.pipeline.kernels import emit_programs
from fuser.tilegen.parse import parse_kernel
from fuser.tilegen.text import canonical_text

TARGETS = (X86_64_V4, SM_80, SM_90A)
FEW_LAYERS = {"bert": 2, "gpt2": 2, "llama": 1, "vit": 2}
"""Of models whose layers are all alike."""
DTYPES = ("float32", "float16", "bfloat16")


def sources() -> dict[str, Callable[[], ModelProto]]:
    """What makes each model, by name."""
    from benchmarks.kernel_cases import GROUPS
    from models import MODELS, build

    found: dict[str, Callable[[], ModelProto]] = {}
    for name in MODELS:
        layers = {"layers": FEW_LAYERS[name]} if name in FEW_LAYERS else {}
        for dtype in DTYPES:
            found[f"{name} {dtype}"] = functools.partial(build, name, dtype, **layers)
    for group, make in GROUPS.items():
        for case in make(False):
            found[f"{group} {case.name} {case.dtype}"] = functools.partial(_case, case)
    return found


def _case(case: Any) -> ModelProto:
    """The model of a case; its constants are any numbers."""
    import torch

    generator = torch.Generator().manual_seed(0)
    constants = {
        name: torch.randint(1, 3, case.shapes[name], generator=generator) for name in case.constants
    }
    model: ModelProto = case.model(constants)
    return model


@functools.cache
def _code(text: str, target: Target) -> str:
    """The hash of the code of a kernel with this canonical text."""
    kernel = parse_kernel(text)
    kernel.name = "kernel"
    if target.is_cuda:
        code = nvptx.compile_kernel(kernel, target).code
    else:
        code = cpu.assembly(kernel, target).encode()
    return hashlib.sha256(code).hexdigest()[:16]


def lines_of(name: str) -> list[str]:
    """The lines of one model, for all targets; a line that says why, where it does not compile."""
    found = []
    model = open_model(sources()[name]())
    for target in TARGETS:
        try:
            programs = emit_programs(partition(model.graph({}), target), target)
            for number, program in enumerate(programs):
                text = canonical_text(program.kernel)
                tile = hashlib.sha256(text.encode()).hexdigest()[:16]
                found.append(f"{target.arch} | {name} | {number} | {tile} {_code(text, target)}")
        except FuserError as error:  # what is not compiled before is not to be compiled after
            found.append(f"{target.arch} | {name} | - | {type(error).__name__}: {error}")
    return found


def all_lines(jobs: int, only: str) -> Iterator[str]:
    names = [name for name in sources() if only in name]
    with ProcessPoolExecutor(jobs) as pool:
        for number, lines in enumerate(pool.map(lines_of, names)):
            print(f"\r{number + 1} of {len(names)}", end="", file=sys.stderr, flush=True)
            yield from lines
    print(file=sys.stderr)


def differences(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """What is in one and not in the other, or is another code."""
    found = []
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key, "nothing"), after.get(key, "nothing")
        if old != new:
            found.append(f"{key}: {old} -> {new}")
    return found


def _keyed(lines: list[str]) -> dict[str, str]:
    return {key: value for key, _, value in (line.rpartition(" | ") for line in lines)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/kernel-hashes", description=__doc__)
    parser.add_argument("--out", type=Path, help="write the lines to this file")
    parser.add_argument("--before", type=Path, help="compare with the lines of this file")
    parser.add_argument("--only", default="", help="models and cases whose name contains this")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    lines = list(all_lines(arguments.jobs, arguments.only))
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n")
    if not arguments.before:
        if not arguments.out:
            print("\n".join(lines))
        return 0
    before = arguments.before.read_text().splitlines()
    before = [line for line in before if arguments.only in line.split(" | ")[1]]
    found = differences(_keyed(before), _keyed(lines))
    print("\n".join(found))
    print(f"{len(lines)} kernels, {len(found)} differ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
