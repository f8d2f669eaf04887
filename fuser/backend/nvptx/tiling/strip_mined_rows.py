"""What follows the last reduction of rows, a few vectors a thread at a time instead of op by op.

    sum = reduce.sum(...)
    w = load(...)  b = load(...)  store(x * (1 / sum) * w + b)

As it is written, all that a thread needs of w and of b is in registers at once, beside x: three
tiles where one was, for the time of a few operations. In strips (tiling/strip_mined_epilogue.py) it
is a vector or two of each, and more blocks fit a multiprocessor.
"""

from __future__ import annotations

from fuser.backend.nvptx.layouts.assignment import lookups_of
from fuser.backend.nvptx.layouts.layout import strips_along
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.tiling.strip_mined_epilogue import Epilogue, layouts_of
from fuser.tilegen import ops
from fuser.tilegen.value import Value

STRIP = 8
"""Elements of a tile that a thread has in registers at a time, or one vector of them."""
_ALLOWED = ops.IndexTile | ops.Full | ops.Load | ops.Map | ops.Cast | ops.Broadcast | ops.Store


def find_strip_mined_rows(low: Builder) -> Epilogue | None:
    """The end of a kernel that loads tiles after a reduction and stores what it makes of them;
    None where that has no form by strips, or would be one strip."""
    body = low.kernel.body.ops
    ends = [at for at, op in enumerate(body) if op.blocks() or isinstance(op, ops.Reduce)]
    if not ends or low.assignment.dots:
        return None
    tail = [op for op in body[ends[-1] + 1 :] if not isinstance(op, ops.Yield)]
    if not all(isinstance(op, _ALLOWED) and not lookups_of(op) for op in tail):
        return None
    stores = [op for op in tail if isinstance(op, ops.Store) and op.value.shape]
    layouts = [low.assignment.layouts.get(op.value) for op in stores]
    if not layouts or layouts[0] is None or any(item != layouts[0] for item in layouts):
        return None
    strips = strips_along(layouts[0], low.assignment.accesses[stores[0]].axis, STRIP)
    needed: set[Value] = set()
    inside = []
    for op in reversed(tail):
        if op in stores or any(value in needed and value.shape for value in op.results):
            inside.append(op)
            needed.update(op.operands())
    once = [op for op in tail if op not in inside]
    inside.reverse()
    if len(strips) < 2 or not any(isinstance(op, ops.Load) for op in inside):
        return None
    made = {value for op in inside for value in op.results}
    if any(value in made for op in once for value in op.operands()):
        return None
    found = Epilogue(inside, layouts[0], strips, transposed=False, once=once, seams=False)
    return found if layouts_of(low, found, strips[0]) is not None else None
