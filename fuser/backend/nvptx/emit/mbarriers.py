"""Barriers in shared memory that know phases and bytes."""

from __future__ import annotations

from collections.abc import Callable

from fuser.backend.nvptx.emit.code import Code
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.values import Operand


def address(code: Code, op: ops.Address) -> None:
    """At most one addition."""
    code.addresses[op.names[0]] = code.place(op.slot, op.offset)


def init(code: Code, op: ops.MbarrierInit) -> None:
    """One instruction, by whoever runs it."""
    pointer = code.addresses[op.barrier]
    code.emitter.do(
        f"call void @llvm.nvvm.mbarrier.init.shared(ptr addrspace(3) {pointer}, i32 {op.count})"
    )


def init_fence(code: Code, op: ops.MbarrierInitFence) -> None:
    """One instruction."""
    code.emitter.do("call void @llvm.nvvm.fence.mbarrier_init.release.cluster()")


def wait(code: Code, op: ops.MbarrierWait) -> None:
    """See `wait_at`."""
    wait_at(code, code.addresses[op.barrier], op.parity)


def wait_at(code: Code, pointer: str, parity: Operand) -> None:
    """A loop around an instruction that waits for a while."""
    e = code.emitter
    again, done = e.block("wait"), e.block("waited")
    e.jump(again)
    e.enter(again)
    ready = e.value(
        "call i1 @llvm.nvvm.mbarrier.try.wait.parity.scope.cta.space.cta("
        f"ptr addrspace(3) {pointer}, i32 {parity})"
    )
    e.branch(ready, done, again)
    e.enter(done)


def expect(code: Code, op: ops.MbarrierExpect) -> None:
    """One instruction."""
    code.emitter.value(
        "call i64 @llvm.nvvm.mbarrier.arrive.expect.tx.scope.cta.space.cta("
        f"ptr addrspace(3) {code.addresses[op.barrier]}, i32 {op.bytes})"
    )


def arrive(code: Code, op: ops.MbarrierArrive) -> None:
    """A predicated instruction: no branch. An arrival in another block is no release at the scope
    of the cluster, which would wait for all memory of the device."""
    e, pointer = code.emitter, code.addresses[op.barrier]
    if op.block is None:
        e.do(
            'call void asm sideeffect "@$1 mbarrier.arrive.shared::cta.b64 _, [$0];", '
            f'"r,b,~{{memory}}"(ptr addrspace(3) {pointer}, i1 {op.condition})'
        )
        return
    e.do(
        'call void asm sideeffect "{.reg .b32 there; mapa.shared::cluster.u32 there, $0, $2; '
        '@$1 mbarrier.arrive.shared::cluster.b64 _, [there];}", '
        f'"r,b,r,~{{memory}}"(ptr addrspace(3) {pointer}, i1 {op.condition}, i32 {op.block})'
    )


RULES: dict[type[Op], Callable[..., None]] = {
    ops.Address: address,
    ops.MbarrierInit: init,
    ops.MbarrierInitFence: init_fence,
    ops.MbarrierWait: wait,
    ops.MbarrierExpect: expect,
    ops.MbarrierArrive: arrive,
}
