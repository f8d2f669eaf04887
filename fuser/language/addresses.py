"""Whole numbers as pointers: `x.to(tl.pointer_type(tl.float16))` of loaded or passed addresses.

All memory is one buffer that starts at address 0; a pointer is the element at address / size. It
may be the memory of any argument, so that loads and stores of all arguments keep their order.
"""

from __future__ import annotations

from fuser.language.arithmetic import cast, mapped
from fuser.language.emitter import Emitter
from fuser.language.tensors import Pointer, Tensor
from fuser.language.types import PointerType, int64
from fuser.tilegen.ir import Kernel

MEMORY = -(1 << 30)
"""In place of the number of an argument: the buffer that is all memory."""
LARGEST = 1 << 60
"""Bytes that addresses reach."""


def from_address(e: Emitter, value: Tensor, dtype: PointerType) -> Pointer:
    """Pointers to the elements at these addresses, which must be multiples of their size. A number
    that was passed may be a small one, and have 32 bits for that."""
    passed = value.dtype.is_int() and value.index is not None and not any(value.index.values())
    if not passed and (not value.dtype.is_int() or value.dtype.bits != 64):
        e.fail(f"a cast of {value.type} to {dtype}", "addresses are integers of 64 bits")
    element = dtype.element_ty
    buffer = e.all_memory.get(element.ir.name)
    if buffer is None:
        buffer = e.builder.buffer(f"memory.{element.ir}", element.ir, LARGEST // element.ir.bytes)
        buffer.open, buffer.align = True, element.ir.bytes
        e.all_memory[element.ir.name] = buffer
    places = cast(e, value, int64)
    shift = element.ir.bytes.bit_length() - 1
    if shift:
        by = e.constant(shift, int64, places.shape)
        places = mapped(e, "shift_right", int64, places, by, ends=(0, LARGEST >> shift))
    return Pointer(
        buffer, element, Tensor(int64, places.shape, index=e.index_of(places)), dtype.const
    )


def overlap_all(kernel: Kernel) -> None:
    """Where all memory is a buffer, every other one may be part of it."""
    for buffer in kernel.buffers:
        buffer.alias = 1
