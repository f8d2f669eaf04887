"""A `DynamicPlan` as one file: the variants that it has, each with its guards and kernels.

The container is that of a plan (runtime/container.py). What is read from it serves the saved ranges
and compiles nothing: for other sizes the model is needed. Keys of buffers become numbers, dims
text.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fuser.base.forks import new_lock
from fuser.dtypes import BY_NAME
from fuser.errors import FuserError, InvalidModelError, UsageError
from fuser.graph.dims import Dim, parse
from fuser.graph.ir import TensorType
from fuser.graph.sizes import guard_from_list
from fuser.pipeline.binding import Bound
from fuser.pipeline.specialise import check_open_feeds, read_dims
from fuser.pipeline.variants import Bucket, Variant
from fuser.runtime.container import (
    MALFORMED,
    Contents,
    file_parts,
    read_file,
    shown,
    write_file,
)
from fuser.runtime.deferred import Deferred
from fuser.runtime.kernel_record import kernel_from_record, kernel_to_record
from fuser.runtime.plan import Plan
from fuser.runtime.plan_report import Report
from fuser.runtime.program import Step, TensorSpec
from fuser.runtime.store import native_record, take_native, target_from_record

KIND = "D"
Blob = Callable[[Sequence[int]], memoryview]


class SavedVariants:
    """Variants that came from a file, and the inputs of their model. Safe to use from many
    threads."""

    def __init__(self, inputs: Mapping[str, TensorType], variants: Sequence[Variant]) -> None:
        self.inputs = dict(inputs)
        self.variants: Sequence[Variant] = tuple(variants)
        self._lock = new_lock()

    @property
    def plans(self) -> Sequence[Plan]:
        return [plan for variant in self.variants for plan in variant.plans]

    def run(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The outputs by name. Raises FeedError, and UsageError for sizes that were not saved."""
        arrays = check_open_feeds(self.inputs, feeds)
        plan = self._find(read_dims(self.inputs, arrays))
        return plan.run({spec.name: arrays[spec.name] for spec in plan.inputs})

    def plan(self, feeds: Mapping[str, Any]) -> Plan:
        """The plan for the sizes of these feeds."""
        return self._find(read_dims(self.inputs, check_open_feeds(self.inputs, feeds)))

    def prepare(self, dims: Mapping[str, int]) -> Variant:
        """The variant for these sizes of all symbolic dims. Raises UsageError if there is none."""
        for variant in self.variants:
            if set(variant.buckets) <= set(dims) and variant.serves(dims):
                return variant
        ranges = "; ".join(
            ", ".join(f"{name} {bucket}" for name, bucket in variant.buckets.items())
            for variant in self.variants
        )
        sizes = ", ".join(f"{name} = {size}" for name, size in dims.items())
        raise UsageError(
            f"the saved plan has no kernels for {sizes}: it has them for {ranges}",
            hint="compile the model for these sizes too, by fuser compile --open, or with"
            " dynamic=True and prepare(), and save it again",
        )

    def _find(self, dims: Mapping[str, int]) -> Plan:
        with self._lock:
            return self.prepare(dims).plan(dims)


def save_variants(
    path: Path | str, inputs: Mapping[str, TensorType], variants: Sequence[Variant]
) -> None:
    """Write variants. Raises UsageError where the file cannot be written."""
    write_file(path, variants_file(inputs, variants))


def variants_file(
    inputs: Mapping[str, TensorType], variants: Sequence[Variant]
) -> list[bytes | memoryview]:
    """Variants as the parts of a file."""
    contents = Contents()  # variants share their weights
    manifest = {
        "inputs": [
            {"name": name, "dtype": type.dtype.name, "shape": list(map(str, type.shape))}
            for name, type in inputs.items()
        ],
        "variants": [
            _variant_record(variant, contents.blob, contents.array) for variant in variants
        ],
    }
    codes = [step.kernel.code for variant in variants for step in variant.bound.steps]
    for record, variant in zip(manifest["variants"], variants, strict=True):
        types = [_array_type(array) for array in variant.bound.constants.values()]
        record["seal"] = _seal(record, manifest["inputs"], variant.bound.steps, types)
    return file_parts(KIND, manifest | native_record(codes, contents), contents, minor=1)


def load_variants(file: Path | str | bytes, threads: int | None, ordinal: int) -> SavedVariants:
    """What `save_variants` wrote, or its bytes. Raises UsageError or InvalidModelError."""
    opened = read_file(file, KIND)
    manifest = opened.manifest
    try:
        take_native(opened)
        inputs = {
            str(item["name"]): TensorType(BY_NAME[item["dtype"]], _dims(item["shape"]))
            for item in manifest["inputs"]
        }
        variants = [
            _variant(record, opened.blob, opened.arrays, threads, ordinal)
            for record in manifest["variants"]
        ]
        for record, variant in zip(manifest["variants"], variants, strict=True):
            types = [_array_type(opened.arrays[number]) for _, number in record["constants"]]
            wanted = _seal(record, manifest["inputs"], variant.bound.steps, types)
            if opened.minor and record["seal"] != wanted:
                raise ValueError(f"variant {variant.number} is not as it was sealed")
    except (*MALFORMED, FuserError) as error:
        where = shown(file)
        raise InvalidModelError(f"the plan is malformed: {error!r}", where=where) from error
    return SavedVariants(inputs, variants)


def _seal(
    record: Mapping[str, Any], inputs: Any, steps: Sequence[Step], types: Sequence[str]
) -> str:
    """A SHA-256 of what the code of a variant relies on: all of its record but its report and what
    is only told, its code, the types of its constants, the inputs of the model. So none of them
    can change without the others."""
    told = {"seal", "report", "note", "hints"}
    relied = {key: value for key, value in record.items() if key not in told}
    text = json.dumps([json.loads(json.dumps(relied)), inputs, list(types)], sort_keys=True)
    digest = hashlib.sha256(text.encode())
    for step in steps:
        digest.update(step.kernel.code)
    return digest.hexdigest()


def _array_type(array: np.ndarray) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _variant_record(
    variant: Variant, blob: Callable[[bytes], list[int]], constant: Callable[[np.ndarray], int]
) -> dict[str, Any]:
    bound = variant.bound
    numbers: dict[Hashable, int] = {}

    def key(of: Hashable) -> int:
        return numbers.setdefault(of, len(numbers))

    steps = [
        {
            "kernel": kernel_to_record(step.kernel)[0],
            "code": blob(step.kernel.code),
            "operands": list(map(key, step.operands)),
            "zeroed": list(map(key, step.zeroed)),
            "label": step.label,
            "access": step.access,
        }
        for step in bound.steps
    ]
    ends = {
        "inputs": [[key(of), _spec_record(spec)] for of, spec in bound.inputs],
        "outputs": [[key(of), _spec_record(spec)] for of, spec in bound.outputs],
    }
    return {
        "number": variant.number,
        "name": bound.name,
        "target": dataclasses.asdict(bound.target),
        "buckets": {
            name: [bucket.least, bucket.most, bucket.example]
            for name, bucket in variant.buckets.items()
        },
        "guards": [guard.to_list() for guard in variant.guards],
        "note": variant.note,
        "hints": {name: list(ends_) for name, ends_ in variant.hints.items()},
        "types": {name: dtype.name for name, dtype in variant.types.items()},
        "report": dataclasses.asdict(variant.report.get()),
        "steps": steps,
        **ends,
        "constants": [[key(of), constant(array)] for of, array in bound.constants.items()],
        "bytes": [[key(of), str(size)] for of, size in bound.bytes.items()],
        "work": [list(map(str, item)) for item in bound.work],
    }


def _variant(
    record: Mapping[str, Any], blob: Blob, constants: Sequence[np.ndarray], threads: int | None,
    ordinal: int,
) -> Variant:  # fmt: skip
    steps = tuple(
        Step(
            kernel_from_record(item["kernel"], bytes(blob(item["code"]))),
            tuple(map(int, item["operands"])),
            tuple(map(int, item["zeroed"])),
            str(item["label"]),
            access=_access(item),
        )
        for item in record["steps"]
    )
    bound = Bound(
        str(record["name"]),
        target_from_record(record["target"]),
        steps,
        tuple((int(of), _spec(item)) for of, item in record["inputs"]),
        tuple((int(of), _spec(item)) for of, item in record["outputs"]),
        {int(of): constants[number] for of, number in record["constants"]},
        {int(of): _dim(size) for of, size in record["bytes"]},
        tuple((_dim(flops), _dim(moved)) for flops, moved in record["work"]),
        {},
    )
    return Variant(
        int(record["number"]),
        {name: Bucket(*ends) for name, ends in record["buckets"].items()},
        tuple(map(guard_from_list, record["guards"])),
        bound,
        Deferred.of(Report.from_record(record["report"])),
        {name: (int(low), int(high)) for name, (low, high) in record["hints"].items()},
        {name: BY_NAME[dtype] for name, dtype in record["types"].items()},
        threads,
        note=str(record["note"]),
        ordinal=ordinal,
    )


def _access(item: Mapping[str, Any]) -> str:
    """What a step does to its operands; "" of a file of an earlier release."""
    access = str(item.get("access", ""))
    if access and len(access) != len(item["operands"]):
        raise ValueError(f"{access!r} of {len(item['operands'])} operands")
    return access


def _dim(text: str) -> Any:
    """A dim, which is an int or symbolic, where records say int. Some are floats: estimates."""
    try:
        return parse(text)
    except FuserError:
        return float(text)


def _dims(texts: Sequence[str]) -> tuple[Dim, ...]:
    return tuple(map(parse, texts))


def _spec_record(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "dtype": spec.dtype.name, "shape": list(map(str, spec.shape))}


def _spec(record: Mapping[str, Any]) -> TensorSpec:
    shape: Any = _dims(record["shape"])
    return TensorSpec(str(record["name"]), BY_NAME[record["dtype"]], shape)
