"""Programs as files: one or more of a model, each for another target. See container.py.

A file holds native code, so it is to be trusted like any program. Where it is read, each count,
reference and size is checked against what it refers to. What code relies on and no check can derive
(its grid, scratch memory, tensor maps, the sizes of its arguments) has a seal: a SHA-256 over it
and the code. So neither can change without the other.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import fuser
from fuser.backend.elf import is_x86_64
from fuser.backend.module import CompiledKernel
from fuser.base.target import Target
from fuser.dtypes import BY_NAME
from fuser.errors import InvalidModelError
from fuser.runtime import jit, native
from fuser.runtime.container import Contents, Opened, file_parts, read_file, reading, write_file
from fuser.runtime.deferred import Deferred
from fuser.runtime.kernel_record import kernel_from_record, kernel_to_record
from fuser.runtime.program import BufferRef, Copy, Launch, Program, TensorSpec, Zero

if TYPE_CHECKING:
    from fuser.runtime.model_file import ModelWriter
    from fuser.runtime.plan_report import Report

KIND = "P"


@dataclasses.dataclass(frozen=True)
class Saved:
    """A program of a file, its report, and the sizes of symbolic dims that it is for."""

    program: Program
    report: Deferred[Report] | None
    dims: Mapping[str, int]


def save_program(program: Program, path: Path | str, report: Report | None = None) -> None:
    """Write a Program and its report. Raises UsageError where the file cannot be written."""
    write_file(path, program_file([(program, report)]))


def program_file(
    programs: Sequence[tuple[Program, Report | None]] | Sequence[tuple[Program, Report]],
    model: ModelWriter | None = None,
) -> list[bytes | memoryview]:
    """Programs of a model for several targets, with their reports, as the parts of a file. model:
    has the weights that stay in its file."""
    contents = Contents()

    def constant(array: np.ndarray) -> int | dict[str, int]:
        view = None if model is None else model.view(array)
        return contents.array(array) if view is None else {"view": view}

    records = [
        program_record(program, contents.blob)
        | {
            "constants": [constant(array) for array in program.constants],
            "report": report and contents.blob(json.dumps(dataclasses.asdict(report)).encode()),
            "dims": dict(report.dims) if report else {},
        }
        for program, report in programs
    ]
    codes = [launch.kernel.code for program, _ in programs for launch in program.launches]
    manifest = {"fuser": fuser.__version__, "programs": records} | native_record(codes, contents)
    if model is None:
        return file_parts(KIND, manifest, contents)
    manifest |= {"model": model.record, "views": model.views}
    return file_parts(KIND, manifest, contents, minor=1)


def native_record(codes: Sequence[bytes], contents: Contents) -> dict[str, Any]:
    """What a file has so that code for x86-64 runs where there is no LLVM: the runtime's object."""
    if not any(map(is_x86_64, codes)):
        return {"native": None}
    record = {"version": native.VERSION, "runtime": native.fingerprint()}
    return {"native": record | {"x86-64": contents.blob(jit.runtime_object())}}


def take_native(opened: Opened) -> None:
    """Use the runtime's object of a file, if it is this version's and the process has none. Raises
    InvalidModelError for kernels that are called otherwise."""
    record = opened.manifest["native"]
    if record is None:
        return
    if record["version"] != native.VERSION:
        raise InvalidModelError(
            f"the plan's kernels are called as version {record['version']} has it, and this is"
            f" version {native.VERSION}", where=opened.where, hint="compile the model again",
        )  # fmt: skip
    code = opened.blob(record["x86-64"])
    if record["runtime"] == native.fingerprint():
        jit.offer_runtime(bytes(code))


def program_record(program: Program, blob: Callable[[bytes], list[int]]) -> dict[str, Any]:
    """A Program without its constants as JSON-able data. blob: keeps bytes, gives (start, size)."""
    kernels = list({id(launch.kernel): launch.kernel for launch in program.launches}.values())
    position = {id(kernel): i for i, kernel in enumerate(kernels)}
    code = {kernel.code: blob(kernel.code) for kernel in kernels}
    seals = Seals()
    return {
        "name": program.name,
        "target": dataclasses.asdict(program.target),
        "inputs": [_spec_record(spec) for spec in program.inputs],
        "outputs": [_spec_record(spec) for spec in program.outputs],
        "arena_bytes": program.arena_bytes,
        "kernels": [
            {"record": kernel_to_record(kernel)[0], "blob": code[kernel.code]} for kernel in kernels
        ],
        "launches": [
            {
                "kernel": position[id(launch.kernel)],
                "arguments": [_ref_record(ref) for ref in launch.arguments],
                "sizes": list(launch.sizes),
                "seal": seals(launch.kernel, launch.sizes),
                "zeros": [[*_ref_record(zero.buffer), zero.bytes] for zero in launch.zeros],
                "label": launch.label,
                "cost": launch.cost,
                "access": launch.access,
            }
            for launch in program.launches
        ],
        "copies": [[*_ref_record(copy.source), copy.output] for copy in program.copies],
    }


class Seals:
    """The seals of launches; the code of a kernel is hashed once."""

    def __init__(self) -> None:
        self._kernels: dict[int, tuple[CompiledKernel, str]] = {}

    def __call__(self, kernel: CompiledKernel, sizes: Sequence[int]) -> str:
        """Of a kernel and the bytes of its arguments."""
        if id(kernel) not in self._kernels:
            header, code = kernel_to_record(kernel)
            text = json.dumps(json.loads(json.dumps(header)), sort_keys=True).encode()
            self._kernels[id(kernel)] = kernel, hashlib.sha256(text + code).hexdigest()
        text = json.dumps([self._kernels[id(kernel)][1], *sizes]).encode()
        return hashlib.sha256(text).hexdigest()


def load_program(file: Path | str | bytes) -> Program:
    """The first Program of a file, or of its bytes. Raises UsageError (no such file) or
    InvalidModelError (not a whole plan)."""
    return load_programs(file)[0].program


def load_programs(
    file: Path | str | bytes,
    *,
    weights: Path | str | None = None,
    choose: Callable[[Sequence[Target]], int] | None = None,
    with_weights: bool = True,
) -> list[Saved]:
    """The programs of a file, or of its bytes; the one alone whose place `choose` gives. weights:
    where the model is, of a plan whose weights are in it. with_weights: whether they are read;
    otherwise they are zeros. Raises UsageError (no such file) or InvalidModelError (not a whole
    plan, not its model)."""
    opened = read_file(file, KIND)
    with reading(file):
        take_native(opened)
        opened.arrays  # noqa: B018  checked, whether a program wants one or none
        records = opened.manifest["programs"]
        if choose is not None:
            records = [records[choose([target_from_record(one["target"]) for one in records])]]
        held = functools.partial(_constants, opened, file, weights, with_weights)
        return [_read(record, opened, held(record["constants"])) for record in records]


def _constants(
    opened: Opened, file: Path | str | bytes, weights: Path | str | None, with_weights: bool,
    entries: Sequence[Any],
) -> list[np.ndarray]:  # fmt: skip
    """The constants of a program: arrays of the file, and views of the model's."""
    numbers = [entry["view"] for entry in entries if isinstance(entry, dict)]
    found: dict[int, np.ndarray] = {}
    if numbers:
        from fuser.runtime.model_file import ModelReader  # few plans have one

        plan = None if isinstance(file, bytes) else Path(file)
        given = None if weights is None else Path(weights)
        model = ModelReader(opened.manifest, opened.where, plan, given)
        views = (model.read if with_weights else model.shapes)(numbers)
        found = dict(zip(numbers, views, strict=True))
    return [
        found[entry["view"]] if isinstance(entry, dict) else opened.arrays[entry]
        for entry in entries
    ]


def _read(record: Mapping[str, Any], opened: Opened, constants: Sequence[np.ndarray]) -> Saved:
    program = program_from_record(record, opened.blob, constants)
    report = None
    if record["report"] is not None:
        text = opened.blob(record["report"])

        def read_report() -> Report:
            from fuser.runtime.plan_report import Report  # where it is asked for

            with reading(opened.where):
                return Report.from_record(json.loads(bytes(text)))

        report = Deferred(read_report)
    return Saved(program, report, {str(k): int(v) for k, v in record["dims"].items()})


def program_from_record(
    manifest: Mapping[str, Any],
    blob: Callable[[Sequence[int]], memoryview],
    constants: Sequence[np.ndarray],
) -> Program:
    """The inverse of `program_record`, with these constants. Raises one of MALFORMED for a record
    that makes no sense."""
    kernels = [
        kernel_from_record(item["record"], bytes(blob(item["blob"])))
        for item in manifest["kernels"]
    ]
    launches = tuple(
        Launch(
            kernels[item["kernel"]],
            tuple(BufferRef(*ref) for ref in item["arguments"]),
            tuple(Zero(BufferRef(space, index), size) for space, index, size in item["zeros"]),
            str(item["label"]),
            float(item["cost"]),
            tuple(item["sizes"]),
            str(item.get("access", "")),  # "": a file of an earlier release
        )
        for item in manifest["launches"]
    )
    seals = Seals()
    for item, launch in zip(manifest["launches"], launches, strict=True):
        if item["seal"] != seals(launch.kernel, launch.sizes):
            raise ValueError(f"kernel {launch.kernel.name!r} is not as it was sealed")
    program = Program(
        target_from_record(manifest["target"]),
        tuple(_spec(item) for item in manifest["inputs"]),
        tuple(_spec(item) for item in manifest["outputs"]),
        launches,
        tuple(constants),
        int(manifest["arena_bytes"]),
        tuple(Copy(BufferRef(space, index), at) for space, index, at in manifest["copies"]),
        str(manifest["name"]),
    )
    _check(program)
    return program


def target_from_record(record: Mapping[str, Any]) -> Target:
    """A Target from its fields. Raises TypeError or ValueError for what is none."""
    target = Target(**record)
    for field in dataclasses.fields(Target):
        value, number = getattr(target, field.name), field.type in ("int", "float")
        if number and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise TypeError(f"{field.name} of the target is {value!r}")
        if field.type == "str" and not isinstance(value, str):
            raise TypeError(f"{field.name} of the target is {value!r}")
    if target.name not in ("cpu", "cuda"):
        raise ValueError(f"the target is {target.name!r}")
    return target


def _check(program: Program) -> None:
    """Raise ValueError for references to buffers that are not there, or too small."""
    held = {
        "input": [spec.bytes for spec in program.inputs],
        "output": [spec.bytes for spec in program.outputs],
        "constant": [array.nbytes for array in program.constants],
    }
    for specs in (program.inputs, program.outputs):
        if len({spec.name for spec in specs}) != len(specs):
            raise ValueError("two inputs or outputs of one name")

    def check(ref: BufferRef, size: int, whole: bool) -> None:
        if ref.space == "arena":
            fits = 0 <= size <= program.arena_bytes - ref.index
        else:
            buffers = held[ref.space]
            room = buffers[ref.index] if 0 <= ref.index < len(buffers) else -1
            fits = size == room or (not whole and 0 <= size < room)
        if ref.index < 0 or not fits:
            raise ValueError(f"{ref} is out of range, or not of {size} bytes")

    for launch in program.launches:
        if launch.access and len(launch.access) != len(launch.arguments):
            raise ValueError(f"{launch.access!r} of {len(launch.arguments)} arguments")
        for ref, size in zip(launch.arguments, launch.sizes, strict=True):
            check(ref, size, whole=True)
        for zero in launch.zeros:
            check(zero.buffer, zero.bytes, whole=False)
    for copy in program.copies:
        check(BufferRef("output", copy.output), 0, whole=False)
        check(copy.source, held["output"][copy.output], whole=True)


def _spec_record(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "dtype": spec.dtype.name, "shape": list(spec.shape)}


def _spec(record: dict[str, Any]) -> TensorSpec:
    shape = tuple(record["shape"])
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"a tensor of shape {shape}")
    return TensorSpec(str(record["name"]), BY_NAME[record["dtype"]], shape)


def _ref_record(ref: BufferRef) -> list[Any]:
    return [ref.space, ref.index]
