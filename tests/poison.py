"""Memory that shows what nobody wrote: NaN in floats, the greatest number in integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fuser.dtypes import DType
from fuser.runtime.cpu import CpuExecutor
from fuser.runtime.feeds import check_feeds
from fuser.runtime.memory import aligned_array
from fuser.runtime.plan import Plan

Array = np.ndarray[Any, Any]


def poison_of(dtype: DType) -> float | int | bool:
    """A value that is no sensible result."""
    return float("nan") if dtype.is_float else dtype.highest


def poisoned(shape: Sequence[int] | int, dtype: DType) -> Array:
    """An array of poison."""
    return np.full(shape, poison_of(dtype), dtype.numpy)


def run_poisoned(plan: Plan, feeds: Mapping[str, Any]) -> dict[str, Array]:
    """`plan.run` on a CPU, with poison in the outputs and in the memory between kernels: bytes of
    255 there, which are NaN in every float. On a GPU it is a plain run."""
    executor = plan.executor
    if not isinstance(executor, CpuExecutor):
        return plan.run(feeds)
    inputs = check_feeds(plan.program.inputs, feeds)
    outputs = []
    for spec in plan.outputs:
        array = aligned_array(tuple(spec.shape), spec.dtype.numpy)
        array[...] = poison_of(spec.dtype)
        outputs.append(array)
    for context in executor._free:
        context.arena[...] = 255
        context.scratch[...] = 255
    executor.run_into(inputs, outputs)
    return {spec.name: array for spec, array in zip(plan.outputs, outputs, strict=True)}
