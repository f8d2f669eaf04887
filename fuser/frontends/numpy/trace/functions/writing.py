"""Functions that change their first argument, as assignments to its elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuser.errors import TraceError
from fuser.frontends.numpy.trace.context import is_traced, traced
from fuser.frontends.numpy.trace.functions.registry import array_function, one_axis
from fuser.frontends.numpy.trace.inplace import set_item


def _target(name: str, x: Any) -> Any:
    if not is_traced(x):
        raise TraceError(
            f"{name} puts a traced array into one of NumPy",
            hint="begin with a traced array: np.zeros_like(x)",
        )
    return x


@array_function("copyto")
def copyto(dst: Any, src: Any, casting: Any = "same_kind", where: Any = True) -> None:
    target, new = _target("copyto", dst), traced(src)
    if not np.can_cast(new.dtype, target.dtype, casting):
        raise TraceError(f"copyto: {new.dtype} cannot be put into an array of {target.dtype}")
    new = np.broadcast_to(new, target.shape)
    set_item(target, ..., new if where is True else np.where(where, new, target))


@array_function("putmask")
def putmask(a: Any, mask: Any, values: Any) -> None:
    """The values must be as many as the elements, or one."""
    target, new = _target("putmask", a), traced(values)
    if new.size not in (1, target.size):
        raise TraceError(f"putmask: {new.size} values for {target.size} elements")
    new = np.reshape(new, () if new.size == 1 else target.shape)
    set_item(target, ..., np.where(mask, new.astype(target.dtype), target))


@array_function("put_along_axis")
def put_along_axis(arr: Any, indices: Any, values: Any, axis: Any) -> None:
    target, at = _target("put_along_axis", arr), traced(indices)
    if axis is None:
        raise TraceError("put_along_axis needs an axis", hint="write to x.reshape(-1) of a copy")
    place = one_axis(axis, target.ndim)
    shape = at.shape
    index = [
        at if i == place else np.arange(n).reshape([-1 if j == i else 1 for j in range(len(shape))])
        for i, n in enumerate(target.shape)
    ]
    set_item(target, tuple(index), values)


@array_function("fill_diagonal")
def fill_diagonal(a: Any, val: Any, wrap: bool = False) -> None:
    """Only for a matrix. val: one value, or one for each element."""
    target = _target("fill_diagonal", a)
    if target.ndim != 2 or wrap:
        raise TraceError("fill_diagonal of other than matrices, or with wrap, cannot be traced")
    line = np.arange(min(target.shape))
    set_item(target, (line, line), val)
