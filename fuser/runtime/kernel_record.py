"""Kernels as JSON-able data and code, for caches and plan files."""

from __future__ import annotations

import dataclasses
from typing import Any

from fuser.backend.module import CompiledKernel, TensorMap


def kernel_to_record(kernel: CompiledKernel) -> tuple[dict[str, Any], bytes]:
    """(JSON-able header, code) of a kernel."""
    header = {
        field.name: getattr(kernel, field.name)
        for field in dataclasses.fields(kernel)
        if field.name != "code"
    }
    header["tensor_maps"] = [dataclasses.asdict(item) for item in kernel.tensor_maps]
    return header, kernel.code


def kernel_from_record(header: dict[str, Any], code: bytes) -> CompiledKernel:
    """The inverse of kernel_to_record. Raises KeyError, TypeError or ValueError."""
    names = [field.name for field in dataclasses.fields(CompiledKernel) if field.name != "code"]
    fields = {name: header[name] for name in names}
    fields["grid"] = _tuple_of_ints(fields["grid"])
    launch = _tuple_of_ints(fields["launch"])
    if len(launch) != 3 or not all(isinstance(fields[key], str) for key in ("name", "entry")):
        raise ValueError("the record of a kernel is malformed")
    fields["launch"] = launch
    fields["sizes"] = _tuple_of_ints(fields["sizes"])
    fields["tensor_maps"] = tuple(_tensor_map(item) for item in fields["tensor_maps"])
    return CompiledKernel(code=code, **fields)


def _tensor_map(record: dict[str, Any]) -> TensorMap:
    keys = ("shape", "strides", "box", "lower", "upper", "steps")
    lists = {key: _tuple_of_ints(record[key]) for key in keys}
    return TensorMap(**{**record, **lists})


def _tuple_of_ints(items: Any) -> tuple[int, ...]:
    if not all(isinstance(item, int) for item in items):
        raise ValueError("integers expected")
    return tuple(items)
