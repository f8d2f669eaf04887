"""histogram, and the order of programs that swizzle2d gives."""

from __future__ import annotations

from typing import Any

from fuser.language import folds, shapes
from fuser.language.arithmetic import as_tensor, binary, cast, compare, logical, to_bool
from fuser.language.elementwise import extreme
from fuser.language.emitter import Emitter
from fuser.language.registry import builtin, static_int
from fuser.language.tensors import Tensor
from fuser.language.types import int32
from fuser.tilegen.index import axis


@builtin("histogram", method=True)
def histogram(e: Emitter, input: Any, num_bins: Any, mask: Any = None) -> Tensor:
    """How many elements are 0, 1, .. num_bins - 1; others do not count."""
    x, bins = as_tensor(e, input), static_int(e, num_bins, "the number of bins")
    if len(x.shape) != 1 or not x.dtype.is_int():
        e.fail(f"histogram of {x.type}", "it counts integers along one axis")
    shape = (x.shape[0], bins)
    wide = shapes.broadcast_to(e, shapes.expand_dims(e, x, [1]), shape)
    number = cast(e, e.whole(axis(1, bins), int32, shape), x.dtype)
    same = compare(e, "==", wide, number)
    if x.dtype.bits < 32:  # a bin that the type cannot hold would wrap
        same = logical(e, "&", same, compare(e, "==", cast(e, wide, int32),
                                             e.whole(axis(1, bins), int32, shape)))  # fmt: skip
    if mask is not None:
        kept = shapes.broadcast_to(e, to_bool(e, as_tensor(e, mask)), x.shape)
        kept = shapes.broadcast_to(e, shapes.expand_dims(e, kept, [1]), shape)
        same = logical(e, "&", same, kept)
    return folds.folded(e, "sum", cast(e, same, int32), 0)


@builtin("swizzle2d")
def swizzle2d(e: Emitter, i: Any, j: Any, size_i: Any, size_j: Any, size_g: Any) -> tuple[Any, Any]:
    """Row and column (i, j) of size_i x size_j, renumbered so that size_g rows at a time go down
    the columns."""
    flat = binary(e, "+", binary(e, "*", i, size_j), j)
    per_group = binary(e, "*", size_g, size_j)
    first = binary(e, "*", binary(e, "//", flat, per_group), size_g)
    rows = extreme(e, False, binary(e, "-", size_i, first), size_g)
    inside = binary(e, "%", flat, per_group)
    row = binary(e, "+", first, binary(e, "%", inside, rows))
    return row, binary(e, "//", inside, rows)
