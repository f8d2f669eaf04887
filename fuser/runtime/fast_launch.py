"""Launches of a signature that was launched before, at next to no host time.

    fast = make_fast_launcher(kernel, signature, args)
    if fast is None or not fast(args, grid):
        ...  # describe the arguments, choose or compile a variant, launch it

`fast` is native (`fuser.runtime.native_door`). It either launches the kernel and returns True, or
does nothing and returns False. What it makes sure of before it launches, and why that is enough:

- Arrays. The type of the object is the very one of the example (numpy.ndarray, torch.Tensor or
  torch.nn.Parameter; others have no fast launch), so its fields are where they were. A NumPy array
  has the same descriptor object, and so dtype and byte order; it is writeable if the kernel writes
  it. A tensor has the same key set, dtype and device; the key set tells sparse, negated, batched
  and other memory apart. Shapes and strides are not looked at: a kernel gets addresses only.
- Addresses are (or are not) multiples of what the code was compiled for, and storages end where
  its offsets still reach.
- Overlap. Which storages overlap decides what the compiler may reorder. Storages are read at each
  launch, not remembered, for memory is freed and comes again with other ends: of a NumPy array that
  of its last base, of a tensor its storage. Just those pairs overlap that did in the example.
- Integers are exact ints between the bounds of the signature, and multiples of 16 or not, as the
  signature says. Floats are exact floats. Constants are the same objects, equal ints or strings of
  the same type, or floats of the same bits. Anything else returns False.
- What was compiled for a range of sizes carries guards (`fuser.graph.sizes`), and that no symbol is
  below 2; they are computed from the integers and the grid, as are the numbers that the code reads.
  A product that does not fit 64 bits is a guard that fails.
- The grid is computed as the kernel has it, and compared where it is no symbol.

Scratch memory of a CPU kernel belongs to one launch at a time; a second one at the same time
returns False. A pool that is busy is not waited for: the caller's thread does the work. In a forked
process the pool is gone, and returns with the first launch that needs it and goes the slow way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fuser.dtypes import DType
from fuser.errors import UnsupportedError
from fuser.graph import dims
from fuser.graph.dims import Dim
from fuser.graph.sizes import LEAST, Guard
from fuser.runtime import door
from fuser.runtime.arrays import describe
from fuser.runtime.cpu_launch import CpuKernel
from fuser.runtime.cuda_door import fill_cuda
from fuser.runtime.cuda_launch import CudaKernel
from fuser.runtime.cuda_maps import map_formulas
from fuser.runtime.formulas import Formulas
from fuser.runtime.geometry import symbol_name
from fuser.runtime.memory import address
from fuser.runtime.native_guards import BFLOAT16, FLOAT16
from fuser.runtime.native_words import (
    GRID_VALUES,
    LAUNCH_AT,
    MOST,
    PARAM_WORDS,
    Door,
    Kind,
    Param,
)
from fuser.runtime.torch_layout import key_set, torch_layout

FastLaunch = Callable[[tuple[Any, ...], tuple[int, ...]], bool]
LARGEST = (1 << 63) - 1
FLOATS = {"f64": 64, "f32": 32, "f16": FLOAT16, "bf16": BFLOAT16}
"""Types that a float may be passed as."""
CLASS_DIVISOR = 16
"""Integers are told apart by whether they are multiples of this."""


@dataclass(frozen=True)
class Pointer:
    """An array. writes: whether the kernel writes it. aligned: whether its address must be a
    multiple of `align` bytes, None: it need not matter. most_bytes: from its address to the end of
    its storage."""

    writes: bool = True
    align: int = 16
    aligned: bool | None = None
    most_bytes: int = LARGEST


@dataclass(frozen=True)
class Integer:
    """An int from low to high. multiple: whether it must be a multiple of 16, None: it need not
    matter."""

    low: int = -LARGEST - 1
    high: int = LARGEST
    multiple: bool | None = None


@dataclass(frozen=True)
class Real:
    """A float."""


@dataclass(frozen=True)
class Truth:
    """A bool."""


@dataclass(frozen=True)
class Constant:
    """The value that the code was compiled for."""

    value: Any = field(hash=False)


Parameter = Pointer | Integer | Real | Truth | Constant


@dataclass(frozen=True)
class Signature:
    """What the arguments of a launch are, in order.

    buffers: for each buffer of the kernel the argument that it is. symbols: by name (argument,
    divisor); an argument that is negative is -1 - an axis of the grid.
    scalars: (argument, type) of each, in the order of the kernel. axes: for each axis of the
    kernel's grid that of the launch's grid; () for the same. guards: what the code was compiled to
    take for granted. reached: (argument, start, end) of bytes, from the address of an array on,
    that the launch touches; an array without them is for the slow way to tell.
    """

    parameters: Sequence[Parameter]
    buffers: Sequence[int]
    symbols: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    scalars: Sequence[tuple[int, DType]] = ()
    axes: Sequence[int] = ()
    guards: Sequence[Guard] = ()
    reached: Sequence[tuple[int, Dim, Dim]] = ()


def make_fast_launcher(
    kernel: CpuKernel | CudaKernel, signature: Signature, args: Sequence[Any]
) -> FastLaunch | None:
    """A launcher for calls like this one, or None where `why_not` says why.

    args: those of a call that this kernel is right for.
    """
    try:
        return _make(kernel, signature, args)
    except UnsupportedError:
        return None


def why_not(kernel: CpuKernel | CudaKernel, signature: Signature, args: Sequence[Any]) -> str:
    """Why `make_fast_launcher` returns None; "" where it does not."""
    try:
        _make(kernel, signature, args)
    except UnsupportedError as error:
        return str(error)
    return ""


def _make(kernel: CpuKernel | CudaKernel, signature: Signature, args: Sequence[Any]) -> FastLaunch:
    parameters = signature.parameters
    if found := door.problem():
        raise UnsupportedError(found)
    if len(parameters) != len(args) or len(args) > MOST:
        raise UnsupportedError(f"{len(args)} arguments for {len(parameters)} parameters")
    record = door.new_record()
    record[Door.COUNT] = len(args)
    if not all(isinstance(parameters[i], Pointer) for i in signature.buffers):
        raise UnsupportedError("a buffer is no array")
    if len(signature.buffers) > MOST:
        raise UnsupportedError(f"more than {MOST} buffers")
    listed = np.array([*signature.buffers, 0], np.int64)
    record[Door.BUFFERS], record[Door.BUFFER_ARGUMENTS] = len(listed) - 1, address(listed)
    table = np.zeros((len(args), PARAM_WORDS), np.int64)
    for words, item, value in zip(table, parameters, args, strict=True):
        _fill_parameter(words, item, value)
    record[Door.NUMBERS] = _fill_scalars(table, kernel, signature)
    _fill_overlaps(table, parameters, args)
    code = door.fill(_formulas(kernel, signature))
    record[Door.PARAMS], record[Door.CODE] = address(table), address(code)
    constants = [item.value for item in parameters if isinstance(item, Constant)]
    arrays = [a for a, item in zip(args, parameters, strict=True) if isinstance(item, Pointer)]
    dtypes = [array.dtype for array in arrays]
    record.keep = [table, code, listed, constants, dtypes, [type(value) for value in args], kernel]
    if (table[:, Param.KIND] == Kind.TORCH).any():
        _fill_torch(record)
    if isinstance(kernel, CpuKernel):
        kernel.fill_door(record)
    else:
        fill_cuda(record, kernel, arrays)
    made: FastLaunch = door.make_door(record)
    return made


def _fill_parameter(words: np.ndarray, item: Parameter, value: Any) -> None:
    words[Param.NUMBER] = -1
    words[Param.ALIGNED] = 2
    words[Param.TYPE] = id(type(value))
    match item:
        case Pointer():
            _fill_array(words, item, value)
        case Integer():
            words[Param.KIND] = Kind.INTEGER
            if item.high > LARGEST:
                raise UnsupportedError("an integer beyond those of 64 bits with a sign")
            words[Param.LOW], words[Param.HIGH] = item.low, item.high
            words[Param.ALIGN_MASK] = CLASS_DIVISOR - 1
            words[Param.ALIGNED] = 2 if item.multiple is None else item.multiple
        case Real():
            if type(value) is not float:
                raise UnsupportedError(f"what was a float is of type {type(value).__name__}")
            words[Param.KIND] = Kind.FLOAT
        case Truth():
            words[Param.KIND] = Kind.BOOL
        case Constant():
            words[Param.KIND], words[Param.OBJECT] = Kind.CONSTANT, id(item.value)
            words[Param.TYPE] = id(type(item.value))


def _fill_scalars(table: np.ndarray, kernel: CpuKernel | CudaKernel, signature: Signature) -> int:
    """Where the bits of scalars go. The count of all numbers."""
    first = len(kernel.geometry.sizes)
    wanted = len(kernel.geometry.scalars)
    if len(signature.scalars) != wanted or first + wanted > MOST:
        raise UnsupportedError(f"{len(signature.scalars)} scalars for {wanted}")
    for number, (argument, dtype) in enumerate(signature.scalars):
        words, item = table[argument], signature.parameters[argument]
        if words[Param.NUMBER] >= 0:
            raise UnsupportedError(f"argument {argument} is two scalars")
        words[Param.NUMBER] = first + number
        bits = dtype.bits
        match item:
            case Real() if dtype.name in FLOATS:
                words[Param.MASK] = FLOATS[dtype.name]
            case Integer() if not dtype.is_float:
                # bits beyond the scalar's would be dropped in silence
                if item.low < dtype.lowest or item.high > min(dtype.highest, LARGEST):
                    raise UnsupportedError(f"argument {argument} may not fit {dtype}")
                words[Param.MASK] = (1 << bits) - 1 if bits < 64 else -1
            case Truth() if dtype.kind == "bool":
                pass
            case _:
                raise UnsupportedError(f"argument {argument} is no {dtype}")
    return first + wanted


def _fill_array(words: np.ndarray, item: Pointer, value: Any) -> None:
    torch = sys.modules.get("torch")
    words[Param.ALIGN_MASK] = item.align - 1
    words[Param.ALIGNED] = 2 if item.aligned is None else item.aligned
    words[Param.WRITES], words[Param.MOST_BYTES] = item.writes, item.most_bytes
    if type(value) is np.ndarray:
        words[Param.KIND], words[Param.DTYPE] = Kind.NUMPY, id(value.dtype)
    elif torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter):
        layout = torch_layout()
        if layout.problem:
            raise UnsupportedError(layout.problem)
        words[Param.KIND], words[Param.DTYPE] = Kind.TORCH, layout.ask(value, "dtype")
        words[Param.KEYS] = door.fill([key_set(value)])[0]
        words[Param.DEVICE] = layout.ask(value, "device")
        words[Param.ITEM_BYTES] = value.element_size()
    else:
        kind = type(value)
        raise UnsupportedError(f"arrays of type {kind.__module__}.{kind.__name__} are described")


def _fill_overlaps(table: np.ndarray, parameters: Sequence[Parameter], args: Sequence[Any]) -> None:
    """Bit j of word i: the storages of arrays j < i overlap."""
    spans: list[tuple[int, int]] = []
    for words, item, value in zip(table, parameters, args, strict=True):
        span = describe(value).storage if isinstance(item, Pointer) else (0, 0)
        met = [
            j
            for j, (start, end) in enumerate(spans)
            if max(start, span[0]) < min(end, span[1])
        ]  # fmt: skip
        words[Param.SHARES] = door.fill([sum(1 << j for j in met)])[0]
        spans.append(span)


def _formulas(kernel: CpuKernel | CudaKernel, signature: Signature) -> list[int]:
    geometry = kernel.geometry
    rank = len(geometry.grid)
    axes = tuple(signature.axes) or tuple(range(rank))
    if rank > GRID_VALUES or len(axes) != rank:
        raise UnsupportedError(f"a grid of {rank} axes")
    values: dict[str, tuple[int, int]] = {}
    for name, (argument, by) in signature.symbols.items():
        place = -1 - argument if argument < 0 else GRID_VALUES + argument
        if argument >= 0 and not isinstance(signature.parameters[argument], Integer):
            raise UnsupportedError(f"{name} is no integer")
        values[name] = place, by
    checked = []
    for axis, dim in zip(axes, geometry.grid, strict=True):
        own = symbol_name(dim)
        if own is None or values.setdefault(own, (axis, 1)) != (axis, 1):
            checked.append((axis, dim))
    memory = {}
    for argument, *_ in signature.reached:
        memory[f"bytes_after{argument}"] = GRID_VALUES + argument, 1
        memory[f"bytes_before{argument}"] = GRID_VALUES + MOST + argument, 1
    code = Formulas(values | memory)
    try:
        for axis, dim in checked:
            code.check_value(axis, dim)
        for name in values:
            code.check(dims.symbol(name) - LEAST, ">=")
        for axis in set(range(GRID_VALUES)) - set(axes):
            code.check_value(axis, 1)
        for guard in signature.guards:
            code.check(guard.expression, guard.relation)
        for argument, start, end in signature.reached:
            if not isinstance(end, int) or end > 0:
                code.check(dims.symbol(f"bytes_after{argument}") - end, ">=")
            if not isinstance(start, int) or start < 0:
                code.check(dims.symbol(f"bytes_before{argument}") + start, ">=")
        for number, dim in enumerate(geometry.sizes):
            code.out(dim, number)
        if isinstance(kernel, CudaKernel):
            for axis, dim in enumerate(geometry.launch):
                code.out(dim, LAUNCH_AT + axis)
            map_formulas(code, kernel)
    except ValueError as error:
        raise UnsupportedError(str(error)) from error
    return code.words


def _fill_torch(record: door.Record) -> None:
    layout = torch_layout()
    assert layout.functions is not None
    words = {
        Door.DATA: "data", Door.DTYPE: "dtype", Door.DEVICE: "device", Door.SIZE: "size",
        Door.OFFSET: "offset",
    }  # fmt: skip
    for word, name in words.items():
        record[word] = layout.functions[name]
    record[Door.KEYS_AT] = layout.keys_at
