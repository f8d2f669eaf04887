"""Copies from global to shared memory that threads issue and wait for (cp.async)."""

from __future__ import annotations

from collections.abc import Callable

from fuser.backend.nvptx.emit.code import Code
from fuser.backend.nvptx.emit.memory import Guard, Pointers, only_once
from fuser.backend.nvptx.emit.operands import SharedAddress
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.layouts import vectors
from fuser.backend.nvptx.ir.op import Op


def copy_async(code: Code, op: ops.CopyAsync) -> None:
    """One copy a vector, of no bytes where it may not be touched: the rest is zeros."""
    emitter, tile, layout, access = code.emitter, op.target, op.layout, op.at.access
    indexer = code.indexer(layout, op.at.scope)
    pointers = Pointers(code, op.at, indexer)
    guard = Guard(code, op.at, layout, indexer)
    address = SharedAddress(code, tile, layout)
    size = access.width * tile.dtype.bytes
    mode = "cg" if size == 16 else "ca"
    # Copies of one element by two threads would race, though with one value.
    single = only_once(code, layout)
    for offset, _ in vectors(layout, tile.inner, access.width):
        allocated = emitter.both(single, indexer.inside(tile.shape, offset))
        if allocated == 0:
            continue
        condition = guard.at(offset)
        if not op.fill and condition is not None:
            allocated, condition = emitter.both(allocated, condition), None
            if allocated == 0:
                continue
        pointer = pointers.at(offset)
        target = address.pointer(offset)
        name = f"@llvm.nvvm.cp.async.{mode}.shared.global.{size}"
        operands = f"ptr addrspace(3) {target}, ptr addrspace(1) {pointer}"
        text = f"call void {name}({operands})"
        if condition is not None:
            count = emitter.pick(condition, size, 0)
            text = f"call void {name}.s({operands}, i32 {count})"
        if allocated is None:
            emitter.do(text)
        else:
            with emitter.where(allocated):
                emitter.do(text)


def commit_copies(code: Code, op: ops.CommitCopies) -> None:
    """One instruction."""
    code.emitter.do("call void @llvm.nvvm.cp.async.commit.group()")


def wait_copies(code: Code, op: ops.WaitCopies) -> None:
    """One instruction."""
    code.emitter.do(f"call void @llvm.nvvm.cp.async.wait.group(i32 {op.pending})")


def fence_async(code: Code, op: ops.FenceAsync) -> None:
    """One instruction."""
    code.emitter.do("call void @llvm.nvvm.fence.proxy.async.shared_cta()")


RULES: dict[type[Op], Callable[..., None]] = {
    ops.CopyAsync: copy_async,
    ops.CommitCopies: commit_copies,
    ops.WaitCopies: wait_copies,
    ops.FenceAsync: fence_async,
}
