"""What a call of a compiled program does once everything about it is known.

No argument is looked at but for its address: that a call is like the one that it was made for, the
caller has compared (`signature`), and that parameters are as they were, too (`changes.py`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fuser.frontends.torch.layouts import Layout
from fuser.frontends.torch.tensors import ready, to_tensor
from fuser.runtime.device_tensors import ALIGNMENT
from fuser.runtime.feeds import host_array
from fuser.runtime.memory import RECYCLED_BYTES, Recycler
from fuser.runtime.plan import Plan
from fuser.runtime.program import TensorSpec

MOST_OWN_BYTES = 4 << 20
"""What lies between the kernels of a run on a GPU and takes no more is in memory of the plan's own.
Asking PyTorch for it takes longer than anything else in a call but the launch."""

HOST_ALIGNMENT = 64
"""The alignment of what kernels of a CPU write to."""

_NONE: Mapping[int, Layout] = MappingProxyType({})

WRITTEN = "written"
"""What a result is whose argument kernels changed: (WRITTEN, where the argument is)."""

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
    moved: Mapping[int, Any], where: Any, plain: Collection[int] = (),
    layouts: Mapping[int, Layout] = _NONE,
) -> Call:  # fmt: skip
    """A call of the plan. inputs: of each input of the plan its index among what the caller gives,
    or the tensor that it always is. results: of each the number of the output that it is, or
    (WRITTEN, where the argument is that it is now, like an input), or (anything, value). moved:
    devices of results, by place, that are not where the plan makes them. where: the GPU that the
    tensors are on; None: they are in host memory. plain: the indices of what is always row-major
    there. layouts: of outputs that results have with other strides, by number."""
    if plan is None:
        compute: Call = _nothing
    elif plan.target.is_cuda == (where is not None):
        written = [entry[1] for entry in results if _is_written(entry)]
        compute = _in_place(plan, inputs, where, plain, layouts, written)
    else:
        compute = _by_host(plan, inputs, layouts)
    if any(layout.order is None for layout in layouts.values()):
        compute = _spaced(compute, layouts)
    if not moved and list(results) == list(range(len(plan.outputs) if plan else 0)):
        return compute

    def call(given: Sequence[Any]) -> list[Any]:
        outputs = compute(given)
        found = [
            outputs[entry] if isinstance(entry, int)
            else given[entry[1]] if _is_written(entry) and isinstance(entry[1], int)
            else entry[1]
            for entry in results
        ]  # fmt: skip
        for place, device in moved.items():
            found[place] = found[place].to(device)
        return found

    return call


def _is_written(entry: Any) -> bool:
    return isinstance(entry, tuple) and entry[0] == WRITTEN


def _nothing(given: Sequence[Any]) -> list[Any]:
    return []


def _spaced(compute: Call, layouts: Mapping[int, Layout]) -> Call:
    """The call, with the results whose elements have gaps between them copied to memory that has
    them, too."""
    import torch

    spaced = {n: layout for n, layout in layouts.items() if layout.order is None}

    def call(given: Sequence[Any]) -> list[Any]:
        made = compute(given)
        for number, layout in spaced.items():
            x = made[number]
            strides = layout.strides_for(x.shape)
            like = torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device)
            # One of the elements in the same place is written: they are equal.
            once = tuple(slice(0, 1) if not stride else slice(None) for stride in strides)
            like[once].copy_(x[once])
            made[number] = like
        return made

    return call


def _by_host(
    plan: Plan, inputs: Sequence[int | Any], layouts: Mapping[int, Layout]
) -> Call:  # fmt: skip
    """Tensors in host memory for a plan on a GPU."""
    names = [spec.name for spec in plan.inputs]
    orders = {n: layout.order for n, layout in layouts.items() if layout.order is not None}

    def call(given: Sequence[Any]) -> list[Any]:
        tensors = [given[item] if isinstance(item, int) else item for item in inputs]
        feeds = dict(zip(names, map(host_array, tensors), strict=True))
        made = [to_tensor(array) for array in plan.run(feeds).values()]
        for number, order in orders.items():
            made[number] = _reordered(made[number], layouts[number], order)
        return made

    return call


def _in_place(
    plan: Plan, inputs: Sequence[int | Any], where: Any, plain: Collection[int],
    layouts: Mapping[int, Layout], written: Sequence[int | Any] = (),
) -> Call:  # fmt: skip
    """Tensors where the plan is, read and made there. Only what is not row-major or aligned, or a
    number in host memory for a GPU, is copied. Fixed tensors that are neither are read as given.
    written: those of the inputs that kernels write to."""
    fixed: dict[int, int] = {}
    places: list[tuple[int, int, bool]] = []  # of what is given, or below 0 of what is copied again
    again: list[Any] = []
    for number, (item, spec) in enumerate(zip(inputs, plan.inputs, strict=True)):
        align = spec.dtype.bytes if where is None else ALIGNMENT
        if isinstance(item, int):
            places.append((item, align, item in plain))
        elif ready(item, align, where):
            fixed[number] = item.data_ptr()
        else:
            places.append((-1 - len(again), align, False))
            again.append(item)
    run, stream_of = plan.at(fixed), _stream_of(where)
    makers = [_maker(spec, where, layouts.get(n)) for n, spec in enumerate(plan.outputs)]
    count = len(plan.outputs)
    quick, slow, is_unusual = [one.quick for one in makers], [one.slow for one in makers], None
    if where is not None:
        work, is_own = _workspace(plan, where), plan.workspace_bytes <= MOST_OWN_BYTES
        slow.append(work.slow)
        quick += [] if is_own else [work.quick]
        is_unusual = _unusual(where, is_own)

    def call(given: Sequence[Any]) -> list[Any]:
        pointers, kept = [], []
        for place, align, is_plain in places:
            x = given[place] if place >= 0 else again[-1 - place]
            pointer = x.data_ptr()
            if pointer % align or not (is_plain or ready(x, align, where)):
                x = _copied(x, align, where)
                kept.append(x)  # until the run is on the stream
                pointer = x.data_ptr()
            pointers.append(pointer)
        made = []
        for make in slow if is_unusual is not None and is_unusual() else quick:
            made.append(y := make())
            pointers.append(y.data_ptr())
        run(pointers, stream_of())
        del made[count:]
        return made

    if not written:
        return call
    align = HOST_ALIGNMENT if where is None else ALIGNMENT
    first = list(again)

    def change(given: Sequence[Any]) -> list[Any]:
        given, staged = list(given), []
        for item in written:
            target = given[item] if isinstance(item, int) else item
            if ready(target, align, where):
                continue
            staged.append((target, copy := _copied(target, align, where)))
            if isinstance(item, int):
                given[item] = copy
            else:
                again[next(i for i, x in enumerate(first) if x is item)] = copy
        made = call(given)
        for target, copy in staged:
            target.copy_(copy)
        for item in written:
            _count_change(given[item] if isinstance(item, int) else item)
        return made

    return change


def _count_change(tensor: Any) -> None:
    """Tell PyTorch that a tensor was changed."""
    import torch

    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)


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


@dataclass(frozen=True)
class _Maker:
    """Makes new tensors. quick: as PyTorch's compiled code does, on the current GPU."""

    quick: Callable[[], Any]
    slow: Callable[[], Any]

    @classmethod
    def of(
        cls, shape: Sequence[int], dtype: Any, where: Any, strides: Sequence[int] | None = None
    ) -> _Maker:
        """Makes tensors of these strides; None: row-major. where: the GPU; None: in host memory."""
        import torch

        if strides is None:
            strides = [math.prod(max(1, n) for n in shape[i + 1 :]) for i in range(len(shape))]
        size, strides, device = tuple(shape), tuple(strides), where or "cpu"
        slow = functools.partial(torch.empty_strided, size, strides, dtype=dtype, device=device)
        name = "_empty_strided_cpu" if where is None else "_empty_strided_cuda"
        make = getattr(torch._C._dynamo.guards, name, None)
        if make is None:
            return cls(slow, slow)
        return cls(functools.partial(make, size, strides, dtype), slow)


def _maker(spec: TensorSpec, where: Any, layout: Layout | None) -> _Maker:
    """Makes an output. layout: that of the result it is, its axes in the order of memory; None:
    row-major, as where the elements have gaps."""
    import torch

    order = layout.order if layout is not None else None
    if where is None and spec.bytes >= RECYCLED_BYTES:
        recycler = Recycler(spec.shape, spec.dtype.numpy)

        def make() -> Any:
            found = to_tensor(recycler()[0])
            return found if layout is None or order is None else _reordered(found, layout, order)

        return _Maker(make, make)
    dtype = getattr(torch, spec.dtype.numpy.name)
    if layout is None or order is None:
        return _Maker.of(spec.shape, dtype, where)
    shape = _unordered(spec.shape, order)
    return _Maker.of(shape, dtype, where, layout.strides_for(shape))


def _unordered(shape: Sequence[int], order: Sequence[int]) -> list[int]:
    """The shape of a result from that of its axes in the order of memory."""
    found = [0] * len(order)
    for axis, size in zip(order, shape, strict=True):
        found[axis] = size
    return found


def _reordered(x: Any, layout: Layout, order: Sequence[int]) -> Any:
    """A row-major tensor as the result that it is in memory. It is no view: PyTorch's autograd
    would see two tensors."""
    shape = _unordered(x.shape, order)
    return x.as_strided(shape, layout.strides_for(shape)).data


def _workspace(plan: Plan, where: Any) -> _Maker:
    """Makes the memory between the kernels of one run. It is PyTorch's, which gives it to the next
    plan or operator as soon as this run is on the stream."""
    import torch

    return _Maker.of((plan.workspace_bytes,), torch.uint8, where)


def _unusual(where: Any, is_own: bool) -> Callable[[], bool] | None:
    """Tells whether another GPU is PyTorch's current one, or the stream is being captured by who
    calls, where runs in the plan's own memory could later meet; None: never."""
    import torch

    several, is_captured = torch.cuda.device_count() > 1, torch.cuda.is_current_stream_capturing
    if not several:
        return is_captured if is_own else None
    return lambda: bool(torch.cuda.current_device() != where.index or (is_own and is_captured()))
