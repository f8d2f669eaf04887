"""Kernels of users in PyTorch programs: launches that PyTorch traces become an operator.

    kernel[grid](x, out, n, BLOCK=64)    =>    %r = fuser.kernel_call([%x], [%out], 3)
                                               copy_(%out, %r[0])

Dynamo, torch.export, AOTAutograd and `torch.library.triton_op` see the operator and the copies:
what a kernel writes is found from the kernel, and PyTorch's own rules say what a write to a tensor
means to its views, to arguments and to gradients. The number is that of the call in a table of this
process: kernel, grid and all numbers of the launch, sizes and strides among them.

An array lies in memory with the strides that the traced tensor has, for the kernel is told them:
the operator is given tensors whose row-major order is that of the memory, gaps between rows filled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.symbolic_shapes import guard_scalar

from fuser.base import recording
from fuser.errors import FuserError, UnsupportedError
from fuser.frontends.torch.importer.registry import dtype_of
from fuser.frontends.torch.layouts import row_major
from fuser.frontends.torch.tensors import storage_of
from fuser.graph.ir import TensorType
from fuser.graph.ops.kernel_call import result_types
from fuser.language.graph_calls import InMemory, LanguageCall, make_call

_F = TypeVar("_F", bound=Callable[..., Any])

_CALLS: list[LanguageCall] = []
_NUMBERS: dict[str, int] = {}
"""The number of a call by its digest and the layouts of its arrays."""


def call_of(number: int) -> LanguageCall:
    """The call that the operator has the number of."""
    return _CALLS[number]


@dataclass(frozen=True)
class Rows:
    """How a tensor lies in memory. order: its axes that do, from the outermost to the innermost,
    the others repeat it or have one element. extents: of these axes; blocks: what each takes, gaps
    included, of which the last may be an axis more, between single elements."""

    order: tuple[int, ...]
    extents: tuple[int, ...]
    blocks: tuple[int, ...]


Plan = tuple[int, tuple[tuple[int, ...], ...] | None, bool, bool]
"""A memory: the number of the tensor, the fields of its `Rows` (None: row-major as it is),
whether it is an operand, and whether it is written."""


# what a launch becomes ----------------------------------------------------------------------------


def perform(tensors: Sequence[Any], plans: Sequence[Plan], number: int) -> None:
    """The operator, and what it writes put into the tensors. Dynamo traces it."""
    with torch.no_grad():
        operands = [_to_memory(tensors[n].detach(), rows) for n, rows, read, _ in plans if read]
        written = [tensors[n].detach() for n, _, _, writes in plans if writes]
        results = torch.ops.fuser.kernel_call(operands, written, number)
        place = 0
        for n, rows, _, writes in plans:
            if writes:
                tensors[n].copy_(_from_memory(results[place], rows, tensors[n].shape))
                place += 1


def _to_memory(x: Any, rows: tuple[tuple[int, ...], ...] | None) -> Any:
    if rows is None:
        return x
    order, extents, blocks = rows
    for axis in reversed(range(x.dim())):
        if axis not in order:
            x = x.select(axis, 0)
    kept = sorted(order)
    x = x.permute([kept.index(axis) for axis in order])
    if len(blocks) > len(extents):
        x = x.unsqueeze(-1)
        extents = (*extents, 1)
    if extents == blocks:
        return x
    amounts: list[int] = []
    for extent, block in zip(reversed(extents), reversed(blocks), strict=True):
        amounts += [0, block - extent]
    return torch.nn.functional.pad(x, amounts)


def _from_memory(x: Any, rows: tuple[tuple[int, ...], ...] | None, shape: Any) -> Any:
    if rows is None:
        return x
    order, extents, blocks = rows
    for axis, extent in enumerate((*extents, *(1,) * (len(blocks) - len(extents)))):
        x = x.narrow(axis, 0, extent)
    if len(blocks) > len(extents):
        x = x.squeeze(-1)
    kept = sorted(order)
    places = [order.index(axis) for axis in kept]
    return x.permute(places).reshape(shape)


def rows_of(shape: Sequence[int], strides: Sequence[int], name: str) -> Rows | None:
    """None where the tensor is row-major. Raises UnsupportedError for a tensor that is not an array
    with gaps, in any order of its axes."""
    if 0 in shape or all(
        stride == wanted or extent == 1
        for extent, stride, wanted in zip(shape, strides, row_major(shape), strict=True)
    ):
        return None
    axes = [a for a, extent in enumerate(shape) if extent != 1 and strides[a] != 0]
    order = tuple(sorted(axes, key=lambda axis: (-strides[axis], axis)))
    extents = tuple(shape[axis] for axis in order)
    steps = [strides[axis] for axis in order]
    blocks = list(extents[:1])
    if order and steps[-1] != 1:
        steps, wanted = [*steps, 1], (*extents, 1)
    else:
        wanted = extents
    for outer, inner, extent in zip(steps, steps[1:], wanted[1:], strict=False):
        block, rest = divmod(outer, inner)
        if rest or block < extent:
            raise UnsupportedError(
                f"{name} has the shape {list(shape)} and the strides {list(strides)}, which a "
                "kernel in a graph cannot be given",
                hint="pass a contiguous copy (.contiguous())",
            )
        blocks.append(block)
    return Rows(order, extents, tuple(blocks))


def prepare(
    function: Any, bound: Mapping[str, Any], grid: tuple[int, ...], options: Any
) -> tuple[list[Any], tuple[Plan, ...], int]:
    """The tensors of a launch, or what stands for them, the plans and the number of the call."""
    tensors: list[Any] = []
    layouts: list[Rows | None] = []
    types: list[TensorType] = []
    name = function.fn.__name__

    def place(value: Any) -> Any:
        if isinstance(value, tuple):
            items = tuple(map(place, value))
            return type(value)(*items) if hasattr(value, "_fields") else items
        if isinstance(value, torch.SymInt):
            return int(value)
        if not _is_array(value):
            return value
        shape, strides = tuple(map(int, value.shape)), tuple(map(int, value.stride()))
        number = next((n for n, other in enumerate(tensors) if other is value), None)
        if number is None:
            number = len(tensors)
            rows = rows_of(shape, strides, name)
            tensors.append(value)
            layouts.append(rows)
            types.append(TensorType(dtype_of(value.dtype), shape if rows is None else rows.blocks))
        return InMemory(number, shape, strides)

    placed = {key: place(value) for key, value in bound.items()}
    made = make_call(function, placed, types, grid, options)
    plans = []
    for number, (memory, rows) in enumerate(zip(made.memories, layouts, strict=True)):
        writes = memory.result is not None
        if writes and rows is not None and 0 in tensors[number].stride():
            raise UnsupportedError(f"{name} writes {memory.name}, whose elements share memory")
        fields = None if rows is None else (rows.order, rows.extents, rows.blocks)
        plans.append((number, fields, memory.operand is not None, writes))
    key = f"{made.digest} {layouts} {placed}"
    found = _NUMBERS.get(key)
    if found is None:
        found = _NUMBERS[key] = len(_CALLS)
        _CALLS.append(made)
    return tensors, tuple(plans), found


# who traces ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TensorSpec:
    """What stands for a tensor while Dynamo asks what a launch is: the one of this number."""

    number: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def stride(self, axis: int | None = None) -> Any:
        """The strides in elements, or that of an axis."""
        return self.strides if axis is None else self.strides[axis]

    def size(self, axis: int | None = None) -> Any:
        """The shape, or the size of an axis."""
        return self.shape if axis is None else self.shape[axis]

    def dim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def numel(self) -> int:
        """The number of elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    def element_size(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    def is_contiguous(self) -> bool:
        """Whether it is row-major."""
        return self.strides == tuple(row_major(self.shape))

    @property
    def ndim(self) -> int:
        return len(self.shape)


def _is_array(value: Any) -> bool:
    return isinstance(value, TensorSpec | torch.Tensor)


_answer: ContextVar[list[tuple[tuple[Plan, ...], int]]] = ContextVar("_answer")


def _find(values: Sequence[Any]) -> recording.Record | None:
    if any(isinstance(value, TensorSpec) for value in values):
        return _note
    if any(isinstance(value, torch.Tensor) and _is_traced(value) for value in values):
        return _record
    return None


def _is_traced(value: torch.Tensor) -> bool:
    if isinstance(value, FakeTensor | FunctionalTensor) or torch._is_functional_tensor(value):
        return True
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY)
    return mode is not None


def _note(function: Any, bound: Mapping[str, Any], grid: tuple[int, ...], options: Any) -> None:
    answers = _answer.get()
    specs, plans, number = prepare(function, bound, grid, options)
    answers.append((tuple((specs[n].number, *rest) for n, *rest in plans), number))


def _record(function: Any, bound: Mapping[str, Any], grid: tuple[int, ...], options: Any) -> None:
    if all(grid):
        perform(*prepare(function, bound, grid, options))


# Dynamo -------------------------------------------------------------------------------------------


def _at_once(function: _F) -> _F:
    """For a function that Dynamo calls while it reads a program: its result is a constant there."""
    marked: _F = torch._dynamo.assume_constant_result(function)  # type: ignore[no-untyped-call]
    return marked


@_at_once
def describe(number: int, grids: Any, names: tuple[str, ...], *given: Any) -> Any:
    """(plans, place) of a launch of the kernel of a number; -1: nothing is launched. grids:
    (meta-parameters, grid) of each config. given: arguments, ("tensor", number, shape, strides,
    dtype, device) for tensors; names: of the last of them."""
    specs: dict[int, TensorSpec] = {}

    def argument(value: Any) -> Any:
        if not (isinstance(value, tuple) and value[:1] == ("tensor",)):
            return value
        return specs.setdefault(value[1], TensorSpec(*value[1:]))

    arguments = list(map(argument, given))
    count = len(arguments) - len(names)
    named = dict(zip(names, arguments[count:], strict=True))

    def grid(meta: Mapping[str, Any]) -> Any:
        for config, extents in grids:
            if all(meta.get(name) == value for name, value in config):
                return extents
        raise UnsupportedError("the grid of a config that was not asked for")

    answers: list[tuple[tuple[Plan, ...], int]] = []
    token = _answer.set(answers)
    try:
        if all(all(extents) for _, extents in grids):
            kernel: Any = recording.LAUNCHABLE[number]
            kernel[grid](*arguments[:count], **named)
    finally:
        _answer.reset(token)
    return answers[0] if answers else ((), -1)


FOLLOWS_WRITES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
"""Whether Dynamo follows what a kernel writes to the results of an autograd.Function. Before 2.13
their gradients are 0 (seen with 2.11), so the function runs as it is."""


def _leave_to_autograd() -> None:
    """Raises Dynamo's Unsupported where an autograd.Function is traced that would lose gradients:
    the graph ends before it, or with fullgraph=True that is the error."""
    if FOLLOWS_WRITES:
        return
    from torch._dynamo.exc import Unsupported
    from torch._dynamo.symbolic_convert import InstructionTranslator

    tracer: Any = InstructionTranslator.current_tx().output.current_tracer
    while tracer is not None:
        if getattr(tracer, "source_target", None) == "autograd.Function":
            raise Unsupported(
                "a kernel of fuser in an autograd.Function is traced with PyTorch from 2.13 on; "
                "torch.library.triton_op with register_autograd is traced with older ones"
            )
        tracer = tracer.parent


@_at_once
def _configs(number: int) -> Any:
    """Names of the parameters of the kernel of a number, and the meta-parameters of each config."""
    _leave_to_autograd()
    names: tuple[str, ...] = ()
    configs: tuple[Any, ...] = ((),)
    inner: Any = recording.LAUNCHABLE[number]
    while not hasattr(inner, "signature"):
        if hasattr(inner, "configs"):
            configs = tuple(tuple(config.kwargs.items()) for config in inner.configs)
        inner = inner.fn
    names = tuple(inner.signature.parameters)
    return names, configs, _defaults(inner)


def _defaults(function: Any) -> tuple[tuple[str, Any], ...]:
    plain = (int, float, bool, str, type(None))
    return tuple(
        (name, parameter.default)
        for name, parameter in function.signature.parameters.items()
        if isinstance(parameter.default, plain)
    )


def _known(value: Any) -> Any:
    """A number as what it is in this call, where its value was left open."""
    return guard_scalar(value) if isinstance(value, (int, float, torch.SymInt)) else value


class Launcher:
    """`kernel[grid]` as Dynamo traces it."""

    def __init__(self, kernel: Any, grid: Any) -> None:
        self.kernel, self.grid = kernel, grid

    def __call__(self, *args: Any, **named: Any) -> None:
        parameters, configs, defaults = _configs(self.kernel.launch_number)
        meta = {
            **{name: _known(value) for name, value in defaults},
            **dict(zip(parameters, args, strict=False)),
            **named,
        }
        grids = []
        for config in configs:
            chosen = {name: _known(value) for name, value in config}
            grid = self.grid
            if callable(grid):
                grid = grid(_computed(self.kernel, {**meta, **chosen}))
            if not isinstance(grid, (tuple, list)):
                grid = (grid,)
            grids.append((config, tuple([_known(extent) for extent in grid])))
        tensors: list[Any] = []
        given: list[Any] = []
        for value in (*args, *named.values()):
            if isinstance(value, torch.Tensor):
                number = -1
                for place, other in enumerate(tensors):
                    if other is value:
                        number = place
                if number < 0:
                    number = len(tensors)
                    tensors.append(value)
                shape = tuple([_known(extent) for extent in value.shape])
                strides = tuple([_known(step) for step in value.stride()])
                given.append(("tensor", number, shape, strides, value.dtype, value.device))
            else:
                given.append(_known(value))
        plans, number = describe(self.kernel.launch_number, tuple(grids), tuple(named), *given)
        if number >= 0:
            perform(tensors, plans, number)


def _computed(kernel: Any, meta: dict[str, Any]) -> dict[str, Any]:
    """Arguments with those that heuristics compute."""
    while hasattr(kernel, "fn") and not hasattr(kernel, "signature"):
        if hasattr(kernel, "values"):
            for name, compute in kernel.values.items():
                meta = {**meta, name: compute(meta)}
        kernel = kernel.fn
    return meta


# PyTorch's own way -------------------------------------------------------------------------------


def as_ours(kernel: Any) -> Any:
    """A kernel of PyTorch's table, of fuser's or of an installed Triton, as one of fuser's."""
    from fuser.triton.autotuner import Config, autotune
    from fuser.triton.jit import KernelInterface, jit

    if isinstance(kernel, KernelInterface):
        return kernel
    found = _OURS.get(id(kernel))
    if found is None:
        if hasattr(kernel, "configs"):
            names = ("num_warps", "num_stages", "num_ctas")
            configs = [
                Config(dict(one.kwargs), **{name: getattr(one, name) for name in names})
                for one in kernel.configs
            ]
            made = autotune(configs, key=[])(as_ours(kernel.fn))
        else:
            made = jit(kernel.fn)
        found = _OURS[id(kernel)] = kernel, made
    return found[1]


_OURS: dict[int, tuple[Any, Any]] = {}
"""By the identity of a kernel of an installed Triton: it, and what it is here."""


def wrapped_launch(
    kernel_idx: int, constant_args_idx: int, grid: Sequence[Any],
    tma_descriptor_metadata: Mapping[str, Any], kwargs: Mapping[str, Any],
) -> None:  # fmt: skip
    """`triton_kernel_wrapper_mutation`, as a launch that is recorded. Raises UnsupportedError."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    if tma_descriptor_metadata:
        raise UnsupportedError("a kernel in a graph that is given tensor descriptors")
    kernel = as_ours(kernel_side_table.get_kernel(kernel_idx))
    constants = kernel_side_table.get_constant_args(constant_args_idx)
    inner = kernel
    while not hasattr(inner, "signature") and not hasattr(inner, "configs"):
        inner = inner.fn
    configs = [dict(one.kwargs) for one in getattr(inner, "configs", ())] or [{}]

    def extents(meta: Mapping[str, Any]) -> Any:
        found = next(
            one for config, one in zip(configs, grid, strict=True)
            if all(meta.get(name) == value for name, value in config.items())
        )  # fmt: skip
        return tuple(map(int, found))

    kernel[extents if len(grid) > 1 else tuple(map(int, grid[0]))](**kwargs, **constants)


def launch_or_leave(**launch: Any) -> None:
    """`wrapped_launch`; what fuser cannot compile stays PyTorch's."""
    from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_mutation

    try:
        wrapped_launch(**launch)
    except FuserError:
        triton_kernel_wrapper_mutation(**launch)


def described_launch(kwargs: Mapping[str, Any], **launch: Any) -> tuple[list[str], Any, int]:
    """The names of the tensors of a launch, the plans and the number of the call, of arguments that
    are tensors without values. Number -1: nothing is launched."""
    names = [name for name, value in kwargs.items() if isinstance(value, torch.Tensor)]
    specs: dict[str, TensorSpec] = {}
    for number, name in enumerate(names):
        x = kwargs[name]
        shape, strides = tuple(map(int, x.shape)), tuple(map(int, x.stride()))
        same = next((n for n in names[:number] if kwargs[n] is x), name)
        specs[name] = specs.get(same) or TensorSpec(number, shape, strides, x.dtype, x.device)
    answers: list[tuple[tuple[Plan, ...], int]] = []
    token = _answer.set(answers)
    try:
        if all(all(extents) for extents in launch["grid"]):
            wrapped_launch(kwargs={**kwargs, **specs}, **launch)
    finally:
        _answer.reset(token)
    plans, number = answers[0] if answers else ((), -1)
    return names, plans, number


# the operator -------------------------------------------------------------------------------------

_library: Any = torch.library.Library("fuser", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(
    "kernel_call(Tensor[] arrays, Tensor[] written, int call) -> Tensor[]",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _like(arrays: Sequence[Any], written: Sequence[Any], call: int) -> list[Any]:
    made = call_of(call)
    _check_memory(made, arrays, written)
    device = next(iter((*arrays, *written))).device
    results = iter(written)
    return [
        torch.empty(memory.type.static_shape, dtype=next(results).dtype, device=device)
        for memory in made.memories
        if memory.result is not None
    ]


def _check_memory(call: LanguageCall, arrays: Sequence[Any], written: Sequence[Any]) -> None:
    """Raise UnsupportedError where a tensor that is written shares memory with another one."""
    results = [memory for memory in call.memories if memory.result is not None]
    for memory, tensor in zip(results, written, strict=True):
        others = [x for x, m in zip(written, results, strict=True) if m is not memory]
        others += [x for place, x in enumerate(arrays) if place != memory.operand]
        if any(storage_of(tensor) == storage_of(x) and _meet(tensor, x) for x in others):
            raise UnsupportedError(
                f"{call.name} writes {memory.name}, which shares its memory with another argument",
                hint="clone one of them before the launch",
            )


def _meet(x: Any, y: Any) -> bool:
    """Whether the memory between the first and the last elements of two tensors overlaps."""

    def span(t: Any) -> tuple[int, int]:
        begin = int(t.storage_offset())
        steps = zip(t.shape, t.stride(), strict=True)
        return begin, begin + sum((int(n) - 1) * int(step) for n, step in steps) + 1

    (low, high), (other_low, other_high) = span(x), span(y)
    return low < other_high and other_low < high


def _launch(arrays: Sequence[Any], written: Sequence[Any], call: int) -> list[Any]:
    """Where PyTorch runs the operator: a launch on copies."""
    made = call_of(call)
    results = iter(written)
    memories = []
    for memory in made.memories:
        like = next(results) if memory.result is not None else None
        if memory.operand is not None:
            x = arrays[memory.operand].contiguous()
            memories.append(x.clone() if like is not None and x is arrays[memory.operand] else x)
        else:
            assert like is not None
            memories.append(
                torch.empty(memory.type.static_shape, dtype=like.dtype, device=like.device)
            )

    def view(place: InMemory) -> Any:
        return memories[place.memory].as_strided(place.shape, place.strides, place.offset)

    made.launch(view)
    found = {m.result: memories[n] for n, m in enumerate(made.memories) if m.result is not None}
    return [found[number] for number in range(len(result_types(made)))]


_library.impl("kernel_call", _launch, "CompositeExplicitAutograd")
torch.library.register_fake("fuser::kernel_call", _like, lib=_library)

recording.FINDERS.append(_find)
recording.captures = torch.compiler.is_dynamo_compiling
recording.launcher = Launcher
