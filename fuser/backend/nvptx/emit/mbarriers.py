"""Barriers in shared memory that know phases and bytes."""

from __future__ import annotations

from collections.abc import Callable

from fuser.backend.nvptx.emit.code import Code
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Op


def init(code: Code, op: ops.MbarrierInit) -> None:
    """One instruction, by whoever runs it."""
    pointer = code.place(op.slot, op.offset)
    code.emitter.do(
        f"call void @llvm.nvvm.mbarrier.init.shared(ptr addrspace(3) {pointer}, i32 {op.count})"
    )


def wait(code: Code, op: ops.MbarrierWait) -> None:
    """A loop around an instruction that waits for a while."""
    e = code.emitter
    pointer = code.place(op.slot, op.offset)
    again, done = e.block("wait"), e.block("waited")
    e.jump(again)
    e.enter(again)
    ready = e.value(
        "call i1 @llvm.nvvm.mbarrier.try.wait.parity.scope.cta.space.cta("
        f"ptr addrspace(3) {pointer}, i32 {op.parity})"
    )
    e.branch(ready, done, again)
    e.enter(done)


def expect(code: Code, op: ops.MbarrierExpect) -> None:
    """One instruction."""
    pointer = code.place(op.slot, op.offset)
    code.emitter.value(
        "call i64 @llvm.nvvm.mbarrier.arrive.expect.tx.scope.cta.space.cta("
        f"ptr addrspace(3) {pointer}, i32 {op.bytes})"
    )


def arrive(code: Code, op: ops.MbarrierArrive) -> None:
    """A predicated instruction: no branch."""
    pointer = code.place(op.slot, op.offset)
    code.emitter.do(
        'call void asm sideeffect "@$1 mbarrier.arrive.shared::cta.b64 _, [$0];", '
        f'"r,b,~{{memory}}"(ptr addrspace(3) {pointer}, i1 {op.condition})'
    )


RULES: dict[type[Op], Callable[..., None]] = {
    ops.MbarrierInit: init,
    ops.MbarrierWait: wait,
    ops.MbarrierExpect: expect,
    ops.MbarrierArrive: arrive,
}
