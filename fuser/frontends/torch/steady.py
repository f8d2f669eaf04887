"""What a call of a compiled program does once everything about it is known.

No argument is looked at but for its address: that a call is like the one that it was made for, the
caller has compared (`signature`), and that parameters are as they were, too (`changes.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from fuser.frontends.torch.tensors import ready, to_tensor
from fuser.runtime.device_tensors import ALIGNMENT
from fuser.runtime.feeds import host_array
from fuser.runtime.memory import RECYCLED_BYTES, Recycler
from fuser.runtime.plan import Plan
from fuser.runtime.program import TensorSpec

Call = Callable[[Sequence[Any]], list[Any]]
"""From what the caller gives to the results, in order."""


def signature(values: Sequence[Any]) -> Hashable:
    """Equal for values that one steady call serves."""
    return tuple([
        (x.shape, x.dtype, x.device) if hasattr(x, "data_ptr") else (type(x), repr(x))
        for x in values
    ])  # fmt: skip


def steady_call(
    plan: Plan | None, inputs: Sequence[int | Any], results: Sequence[Any],
    moved: Mapping[int, Any], where: Any,
) -> Call:  # fmt: skip
    """A call of the plan. inputs: of each input of the plan its index among what the caller gives,
    or the tensor that it always is. results: of each the number of the output that it is, or
    (anything, value). moved: devices of results, by place, that are not where the plan makes them.
    where: the GPU that the tensors are on; None: they are in host memory."""
    if plan is None:
        compute: Call = _nothing
    elif plan.target.is_cuda == (where is not None):
        compute = _in_place(plan, inputs, where)
    else:
        compute = _by_host(plan, inputs)
    if not moved and list(results) == list(range(len(plan.outputs) if plan else 0)):
        return compute

    def call(given: Sequence[Any]) -> list[Any]:
        outputs = compute(given)
        found = [outputs[entry] if isinstance(entry, int) else entry[1] for entry in results]
        for place, device in moved.items():
            found[place] = found[place].to(device)
        return found

    return call


def _nothing(given: Sequence[Any]) -> list[Any]:
    return []


def _by_host(plan: Plan, inputs: Sequence[int | Any]) -> Call:
    """Tensors in host memory for a plan on a GPU."""
    names = [spec.name for spec in plan.inputs]

    def call(given: Sequence[Any]) -> list[Any]:
        tensors = [given[item] if isinstance(item, int) else item for item in inputs]
        feeds = dict(zip(names, map(host_array, tensors), strict=True))
        return [to_tensor(array) for array in plan.run(feeds).values()]

    return call


def _in_place(plan: Plan, inputs: Sequence[int | Any], where: Any) -> Call:
    """Tensors where the plan is, read and made there. Only what is not row-major or aligned, or a
    number in host memory for a GPU, is copied. Fixed tensors that are neither are read as given."""
    fixed: dict[int, int] = {}
    places: list[tuple[int, int]] = []  # of what is given, or below 0 of what is copied again
    again: list[Any] = []
    for number, (item, spec) in enumerate(zip(inputs, plan.inputs, strict=True)):
        align = spec.dtype.bytes if where is None else ALIGNMENT
        if isinstance(item, int):
            places.append((item, align))
        elif ready(item, align, where):
            fixed[number] = item.data_ptr()
        else:
            places.append((-1 - len(again), align))
            again.append(item)
    run, stream_of = plan.at(fixed), _stream_of(where)
    make = [_maker(spec, where) for spec in plan.outputs]
    work = None if where is None else _workspace(plan, where)

    def call(given: Sequence[Any]) -> list[Any]:
        pointers, kept = [], []
        for place, align in places:
            x = given[place] if place >= 0 else again[-1 - place]
            if not ready(x, align, where):
                x = _copied(x, align, where)
                kept.append(x)  # until the run is on the stream
            pointers.append(x.data_ptr())
        outputs = []
        for one in make:
            outputs.append(y := one())
            pointers.append(y.data_ptr())
        if work is not None:
            kept.append(between := work())
            pointers.append(between.data_ptr())
        run(pointers, stream_of())
        return outputs

    return call


def _workspace(plan: Plan, where: Any) -> Callable[[], Any]:
    """Makes the memory between the kernels of one run: PyTorch's, which gives it to the next plan
    or operator as soon as this run is on the stream."""
    import torch

    return functools.partial(torch.empty, plan.workspace_bytes, dtype=torch.uint8, device=where)


def _copied(x: Any, align: int, where: Any) -> Any:
    x = x.detach().resolve_conj().resolve_neg()
    x = (x if where is None else x.to(where)).contiguous()
    return x.clone() if x.data_ptr() % align else x


def _stream_of(where: Any) -> Callable[[], int]:
    """PyTorch's current stream of a device."""
    if where is None:
        return int
    import torch

    get: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if get is None:
        return lambda: int(torch.cuda.current_stream(where).cuda_stream)
    return functools.partial(get, where.index)


def _maker(spec: TensorSpec, where: Any) -> Callable[[], Any]:
    """Makes new tensors for an output."""
    import torch

    if where is None and spec.bytes >= RECYCLED_BYTES:
        recycler = Recycler(spec.shape, spec.dtype.numpy)
        return lambda: to_tensor(recycler()[0])
    dtype = getattr(torch, spec.dtype.numpy.name)
    return functools.partial(torch.empty, spec.shape, dtype=dtype, device=where or "cpu")
