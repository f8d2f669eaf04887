"""A Program as one file: JSON for what it is, raw bytes for code and constants. No pickle.

    8 bytes magic | 32 bytes SHA-256 of all that follows | 8 bytes manifest length | manifest |
    blobs, each at a multiple of 64 bytes from the start of the blobs

A file holds native code, so it is to be trusted like any program. The checksum finds damage, not
malice; every count and reference of the manifest is checked all the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fuser.dtypes import BY_NAME, from_numpy
from fuser.errors import InvalidModelError, UsageError
from fuser.runtime.cache import kernel_from_record, kernel_to_record
from fuser.runtime.memory import align, aligned_array
from fuser.runtime.plan_report import Report
from fuser.runtime.program import BufferRef, Copy, Launch, Program, TensorSpec, Zero
from fuser.target import Target

MAGIC = b"FUSERP1\n"
MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What reading a record that makes no sense may raise."""
ALIGNMENT = 64
_HEAD = len(MAGIC) + 32


class Blobs(list[bytes | memoryview]):
    """The blobs of a file; called with one, it keeps it and gives (start, size)."""

    top = 0

    def __call__(self, data: bytes | memoryview) -> list[int]:
        start, self.top = self.top, self.top + align(len(data), ALIGNMENT)
        self.append(data)
        return [start, len(data)]


class Arrays(list[dict[str, Any]]):
    """The records of arrays that several programs of a file may share; called with one, it keeps it
    and gives its number."""

    def __init__(self, blobs: Blobs) -> None:
        super().__init__()
        self._blobs, self._held = blobs, dict[int, tuple[int, np.ndarray]]()

    def __call__(self, array: np.ndarray) -> int:
        if id(array) not in self._held:
            self._held[id(array)] = len(self), array
            self.append(array_record(array, self._blobs))
        return self._held[id(array)][0]


def save_program(program: Program, path: Path | str, report: Report | None = None) -> None:
    """Write a Program and its report. Raises UsageError where the file cannot be written."""
    write_file(path, program_file(program, report))


def program_file(program: Program, report: Report | None = None) -> list[bytes | memoryview]:
    """A Program and its report as the parts of a file."""
    blobs = Blobs()
    manifest = program_record(program, blobs) | {
        "constants": [array_record(array, blobs) for array in program.constants],
        "report": report and dataclasses.asdict(report),
    }
    return file_parts(MAGIC, manifest, blobs)


def file_parts(
    magic: bytes, manifest: Mapping[str, Any], blobs: Sequence[bytes | memoryview]
) -> list[bytes | memoryview]:
    """A file of a manifest and blobs, each of which begins at a multiple of ALIGNMENT bytes from
    the first one."""
    text = json.dumps(manifest).encode()
    parts: list[bytes | memoryview] = [len(text).to_bytes(8, "little"), text]
    for item in blobs:
        parts += [item, bytes(-len(item) % ALIGNMENT)]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return [magic + digest.digest(), *parts]


def write_file(path: Path | str, parts: Sequence[bytes | memoryview]) -> None:
    """Write the parts of a file. Raises UsageError where it cannot be written."""
    try:
        with open(path, "wb") as file:
            for part in parts:
                file.write(part)
    except OSError as error:
        raise UsageError(f"cannot write the plan {path}: {error.strerror}") from error


def program_record(program: Program, blob: Callable[[bytes], list[int]]) -> dict[str, Any]:
    """A Program without its constants as JSON-able data. blob: keeps bytes, gives (start, size)."""
    kernels = list({id(launch.kernel): launch.kernel for launch in program.launches}.values())
    position = {id(kernel): i for i, kernel in enumerate(kernels)}
    code = {kernel.code: blob(kernel.code) for kernel in kernels}
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
                "zeros": [[*_ref_record(zero.buffer), zero.bytes] for zero in launch.zeros],
                "label": launch.label,
                "cost": launch.cost,
            }
            for launch in program.launches
        ],
        "copies": [[*_ref_record(copy.source), copy.output] for copy in program.copies],
    }


def load_program(file: Path | str | bytes) -> Program:
    """Read a Program from a file, or from its bytes. Raises UsageError (no such file) or
    InvalidModelError (not a whole plan)."""
    return load_plan(file)[0]


def load_plan(file: Path | str | bytes) -> tuple[Program, Report | None]:
    """`load_program`, and the report that was saved with it."""
    manifest, blobs = read_file(file, MAGIC)
    with reading(file):
        report = manifest.get("report")
        return _read(manifest, blobs), report and Report.from_record(report)


@contextlib.contextmanager
def reading(file: Path | str | bytes) -> Iterator[None]:
    """What records that make no sense raise is an InvalidModelError."""
    try:
        yield
    except MALFORMED as error:
        raise InvalidModelError(f"the plan is malformed: {error!r}", where=shown(file)) from error


def read_file(file: Path | str | bytes, magic: bytes) -> tuple[dict[str, Any], memoryview]:
    """The manifest and the blobs of a file, or of its bytes. Raises UsageError (no such file) or
    InvalidModelError (not whole, or of another kind)."""
    where = shown(file)
    try:
        data = file if isinstance(file, bytes) else Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the plan {file!s}: {error.strerror}") from error
    body = memoryview(data)[_HEAD:]
    if not data.startswith(magic) or hashlib.sha256(body).digest() != data[len(MAGIC) : _HEAD]:
        raise InvalidModelError(
            "the file is not a plan, or was damaged", where=where, hint="compile it again"
        )
    length = int.from_bytes(body[:8], "little")
    try:
        manifest = json.loads(bytes(body[8 : 8 + length]))
    except ValueError as error:
        raise InvalidModelError(f"the plan is malformed: {error!r}", where=where) from error
    if not isinstance(manifest, dict):
        raise InvalidModelError("the plan is malformed", where=where)
    return manifest, body[8 + length :]


def shown(file: Path | str | bytes) -> str:
    """What errors call it."""
    return "bytes in memory" if isinstance(file, bytes) else str(file)


def _read(manifest: dict[str, Any], blobs: memoryview) -> Program:
    def blob(span: Sequence[int]) -> memoryview:
        return blob_of(blobs, span)

    constants = [array_from_record(item, blob) for item in manifest["constants"]]
    return program_from_record(manifest, blob, constants)


def array_record(array: np.ndarray, blob: Callable[[memoryview], list[int]]) -> dict[str, Any]:
    """An array as JSON-able data and a blob."""
    return {
        "dtype": from_numpy(array.dtype).name,
        "shape": list(array.shape),
        "blob": blob(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data),
    }


def array_from_record(
    item: Mapping[str, Any], blob: Callable[[Sequence[int]], memoryview]
) -> np.ndarray:
    """The inverse of `array_record`."""
    shape, dtype = tuple(item["shape"]), BY_NAME[item["dtype"]].numpy
    data = np.frombuffer(blob(item["blob"]), np.uint8)
    if data.size != math.prod(shape) * dtype.itemsize:  # before memory is taken for it
        raise ValueError(f"an array of shape {shape} in {data.size} bytes")
    array = aligned_array(shape, dtype)
    array.reshape(-1).view(np.uint8)[:] = data
    return array


def blob_of(blobs: memoryview, span: Sequence[int]) -> memoryview:
    """The bytes at (start, size). Raises ValueError where that is not inside."""
    start, size = span
    if not 0 <= start <= start + size <= len(blobs):
        raise ValueError("a blob lies outside the file")
    return blobs[start : start + size]


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
        )
        for item in manifest["launches"]
    )
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
    """Raise ValueError for references to buffers that are not there."""
    counts = {
        "input": len(program.inputs),
        "output": len(program.outputs),
        "constant": len(program.constants),
        "arena": program.arena_bytes + 1,
    }
    for launch in program.launches:
        for ref in (*launch.arguments, *(zero.buffer for zero in launch.zeros)):
            if not 0 <= ref.index < counts[ref.space]:
                raise ValueError(f"{ref} is out of range")
    for copy in program.copies:
        if not (0 <= copy.source.index < counts[copy.source.space]) or not (
            0 <= copy.output < counts["output"]
        ):
            raise ValueError(f"{copy} is out of range")


def _spec_record(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "dtype": spec.dtype.name, "shape": list(spec.shape)}


def _spec(record: dict[str, Any]) -> TensorSpec:
    return TensorSpec(record["name"], BY_NAME[record["dtype"]], tuple(record["shape"]))


def _ref_record(ref: BufferRef) -> list[Any]:
    return [ref.space, ref.index]
