"""The copy engine: boxes of tensor maps, copied into shared tiles."""

from __future__ import annotations

from collections.abc import Callable

from fuser.backend.nvptx.emit.code import Code
from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Op


def fetch(code: Code, op: ops.Fetch) -> None:
    """One instruction a box."""
    e, tile = code.emitter, op.into
    columns = tile.span // tile.dtype.bytes
    many = "i16 0, i64 0, i1 0"
    if op.to is not None:
        word = op.to if isinstance(op.to, int) else e.value(f"trunc i32 {op.to} to i16")
        many = f"i16 {word}, i64 0, i1 1"
    offsets = [
        at if isinstance(at, int) else e.value(f"trunc i32 {at} to i16") for at in op.offsets
    ]
    kind = "im2col" if op.im2col else "tile"
    map = op.map
    if op.edge:
        map = e.value(f"select i1 {op.beyond}, ptr {op.edge}, ptr {op.map}")
    first, *starts = op.start
    for block in range(op.across):
        for row in range(0, op.rows, op.step):
            at = [e.plus(first, block * columns), e.plus(starts[0], row), *starts[1:]]
            place = e.plus(tile.stage, block * tile.block_bytes + row * tile.span)
            pointer = code.place(tile.slot, place)
            target = e.value(f"addrspacecast ptr addrspace(3) {pointer} to ptr addrspace(7)")
            listed = ", ".join([*(f"i32 {i}" for i in at), *(f"i16 {i}" for i in offsets)])
            e.do(
                f"call void @llvm.nvvm.cp.async.bulk.tensor.g2s.{kind}.{len(at)}d("
                f"ptr addrspace(7) {target}, ptr addrspace(3) {code.addresses[op.barrier]}, "
                f"ptr {map}, {listed}, {many}, i1 0, i32 0)"
            )


def prefetch_map(code: Code, op: ops.PrefetchMap) -> None:
    """One instruction."""
    code.emitter.do(f"call void @llvm.nvvm.prefetch.tensormap.p0(ptr {op.map})")


RULES: dict[type[Op], Callable[..., None]] = {
    ops.Fetch: fetch,
    ops.PrefetchMap: prefetch_map,
}
