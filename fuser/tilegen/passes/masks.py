"""Drop the pad of a load that can be proved to stay in bounds.

    buffer of 1024, grid(8)
    %x = load &x, [%pid*128 + #0] : tile<128xf32>
                          =>
    %x = load &x, [%pid*128 + #0] {pad = none} : tile<128xf32>

The proof is the range of each index: of the grid, of loop variables and of what they are made of.
Where that is too wide, as for `%i` below `min(3, 8 - 3 * %pid)`, it is the range with a loop
variable at the last value before one of the ends that its loop has.
A back end emits no bounds checks for such a load. (It can use the same ranges to check only the
dims that need it where a pad stays.)
"""

from __future__ import annotations

from collections.abc import Mapping

from fuser.graph.sizes import is_symbolic, same
from fuser.tilegen import ops
from fuser.tilegen.index import Extreme, Index, Scalar, in_range
from fuser.tilegen.ir import Kernel
from fuser.tilegen.value import Value


def drop_proven_masks(kernel: Kernel) -> None:
    loops = {op.body.params[0]: op for op in kernel.walk() if isinstance(op, ops.For)}
    for op in kernel.walk():
        if not isinstance(op, ops.Load) or op.pad is None or op.mask is not None:
            continue
        ends = zip(op.indices, op.view.shape, strict=True)
        if all(in_range(at, extent) or _ends_before(at, extent, loops) for at, extent in ends):
            op.pad = None


def _ends_before(at: Index, extent: int, loops: Mapping[Value, ops.For]) -> bool:
    """Whether 0 <= at < extent by the ends of the loops around."""
    if is_symbolic(extent, *at.range) or at.range[0] < 0:
        return False
    for atom, coefficient in at.terms:
        loop = loops.get(atom.value) if isinstance(atom, Scalar) else None
        if loop is None or is_symbolic(coefficient) or coefficient < 0:
            continue
        rest = at - Index(0, ((atom, coefficient),))
        if loop.body.params[0] in rest.values():
            continue  # inside of another term, which would not follow
        for end in _ends(loop.stop):
            last = rest + (end - 1) * coefficient
            if not is_symbolic(*last.range) and last.range[1] < extent:
                return True
    return False


def _ends(stop: Index) -> tuple[Index, ...]:
    """Expressions that a loop's variable stays below."""
    if len(stop.terms) == 1 and same(stop.constant, 0):
        atom, coefficient = stop.terms[0]
        if isinstance(atom, Extreme) and atom.fn == "min" and same(coefficient, 1):
            return atom.items
    return (stop,)


def is_in_bounds(op: ops.Load | ops.Store | ops.AtomicAdd) -> bool:
    """Whether no index can ever leave the view."""
    return all(
        in_range(expression, extent)
        for expression, extent in zip(op.indices, op.view.shape, strict=True)
    )
