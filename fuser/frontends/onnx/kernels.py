"""Operators of models that are kernels of the caller.

    fuser.register_kernel(
        "my.domain::Scale", scale, lambda meta: (cdiv(meta["n"], meta["BLOCK"]),),
        lambda x, factor: [x.shape], lambda x, factor: {"n": x.size, "BLOCK": 64},
    )

Nodes of the operator become launches of the kernel in the model's plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuser.base.recording import FINDERS, Record
from fuser.dtypes import from_numpy
from fuser.errors import InvalidModelError, UsageError
from fuser.frontends.onnx.importer.registry import (
    OnnxNode,
    domains_with_handlers,
    set_handler,
)
from fuser.graph.builder import Builder
from fuser.graph.dims import as_int
from fuser.graph.ir import TensorType, Value
from fuser.graph.ops.families import KERNEL_CALL
from fuser.graph.ops.kernel_call import row_major

_REGISTERED: set[tuple[str, str]] = set()


@dataclass(frozen=True, eq=False)
class Operand:
    """A tensor of a node, as functions of the caller see it: sizes and no values."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count


def register_kernel(
    name: str,
    kernel: Any,
    grid: Any,
    shapes: Callable[..., Sequence[Any]],
    arguments: Callable[..., Mapping[str, Any]] | None = None,
) -> None:
    """Make an operator a kernel, in every model that is compiled from here on.

    name: "domain::Op". kernel: of `fuser.triton.jit`, autotuned too, or of `fuser.kernel`.
    grid: as for a launch: numbers of programs, or a function of the arguments by parameter.
    shapes: a function of the node's inputs (`shape`, `dtype`, `ndim`, `size`; None for one that is
    left out) and, by name, its attributes; for each output a shape, which then has the dtype of the
    first input, a pair (shape, dtype), or one of the inputs: the output is that input as the kernel
    has changed it. arguments: such a function of what the kernel is given beside tensors, by
    parameter. Other parameters are the node's attributes of their names; those that are left take
    the inputs and then the outputs, in order, an input that is an output once. Raises UsageError
    for a name that fuser has an operator of.
    """
    domain, separator, op_type = name.rpartition("::")
    if not (separator and domain and op_type):
        raise UsageError(
            f"{name!r} is not a name of an operator", hint='such as "my.domain::Scale"'
        )
    key = domain, op_type
    if domain == "ai.onnx" or (key in domains_with_handlers() and key not in _REGISTERED):
        raise UsageError(f"{name} is one of fuser's operators", hint="take a domain of your own")
    if not (hasattr(kernel, "__getitem__") and (hasattr(kernel, "fn"))):
        raise UsageError(
            f"{kernel!r} is not a kernel", hint="one that fuser.triton.jit or fuser.kernel made"
        )
    _REGISTERED.add(key)

    def handler(b: Builder, node: OnnxNode) -> list[Value]:
        return _launch(b, node, kernel, grid, shapes, arguments)

    set_handler(domain, op_type, handler)


@dataclass
class _Recorded:
    """A launch as it was recorded."""

    function: Any = None
    bound: Mapping[str, Any] | None = None
    grid: tuple[int, ...] = ()
    options: Any = None


_recorded: ContextVar[_Recorded] = ContextVar("_recorded")


def _find(values: Sequence[Any]) -> Record | None:
    return _record if any(isinstance(value, Operand) for value in values) else None


def _record(function: Any, bound: Mapping[str, Any], grid: tuple[int, ...], options: Any) -> None:
    found = _recorded.get()
    found.function, found.bound, found.grid, found.options = function, bound, grid, options


FINDERS.append(_find)


def _launch(
    b: Builder, node: OnnxNode, kernel: Any, grid: Any, shapes: Callable[..., Sequence[Any]],
    arguments: Callable[..., Mapping[str, Any]] | None,
) -> list[Value]:  # fmt: skip
    """The results of a node. Raises InvalidModelError where its tensors are not those of the
    kernel, and what the kernel raises."""
    values: dict[Operand, Value] = {}
    inputs: list[Operand | None] = []
    for value in node.inputs:
        if value is None:
            inputs.append(None)
            continue
        operand = Operand(tuple(map(as_int, value.type.shape)), value.dtype.numpy)
        inputs.append(operand)
        values[operand] = value
    outputs = [_output(item, inputs, node) for item in shapes(*inputs, **node.attrs)]
    if len(outputs) < len(node.outputs):
        raise InvalidModelError(
            f"it has {len(node.outputs)} outputs, and shapes= gives {len(outputs)}",
            where=node.where,
        )
    given = dict(arguments(*inputs, **node.attrs)) if arguments is not None else {}
    named = _by_parameter(kernel, inputs, outputs, given, node)
    found = _Recorded()
    token = _recorded.set(found)
    try:
        kernel[grid](**named)
    finally:
        _recorded.reset(token)
    return _results(b, node, found, values, outputs)


def _output(item: Any, inputs: Sequence[Operand | None], node: OnnxNode) -> Operand:
    if isinstance(item, Operand):
        return item
    shape, dtype = item, next((x.dtype for x in inputs if x is not None), np.dtype(np.float32))
    if len(item) == 2 and isinstance(item[0], tuple | list):
        shape, dtype = item[0], np.dtype(item[1])
    return Operand(tuple(map(as_int, shape)), dtype)


def _by_parameter(
    kernel: Any, inputs: Sequence[Operand | None], outputs: Sequence[Operand],
    given: Mapping[str, Any], node: OnnxNode,
) -> dict[str, Any]:  # fmt: skip
    """The arguments of the launch."""
    function = kernel
    while not hasattr(function, "signature"):
        function = function.fn
    tuned = _tuned(kernel)
    tensors: list[Operand | None] = [*inputs, *(out for out in outputs if out not in inputs)]
    left = iter(tensors)
    named: dict[str, Any] = {}
    taken = 0
    for name, parameter in function.signature.parameters.items():
        if name in given:
            named[name] = given[name]
        elif name in node.attrs:
            named[name] = node.attrs[name]
        elif name not in tuned and taken < len(tensors):
            named[name] = next(left)
            taken += 1
        elif name not in tuned and parameter.default is parameter.empty:
            raise InvalidModelError(
                f"nothing gives the parameter {name} of {function.fn.__name__}",
                where=node.where,
                hint="name it in what arguments= gives",
            )
    if taken < len(tensors):
        raise InvalidModelError(
            f"{function.fn.__name__} has parameters for {taken} tensors, the node has "
            f"{len(tensors)}",
            where=node.where,
        )
    known = function.signature.parameters
    named |= {name: value for name, value in given.items() if name not in known}
    return named


def _tuned(kernel: Any) -> set[str]:
    """Parameters that an autotuner or heuristics give."""
    found: set[str] = set()
    while not hasattr(kernel, "signature"):
        for config in getattr(kernel, "configs", ()):
            found |= set(config.kwargs)
        found |= set(getattr(kernel, "values", ()))
        kernel = kernel.fn
    return found


def _results(
    b: Builder, node: OnnxNode, found: _Recorded, values: Mapping[Operand, Value],
    outputs: Sequence[Operand],
) -> list[Value]:  # fmt: skip
    from fuser.language.graph_calls import InMemory, make_call  # loads the language

    def fresh(operand: Operand) -> Value:
        """What an output holds that nobody writes."""
        return b.full(0, TensorType(from_numpy(operand.dtype), operand.shape))

    assert found.bound is not None
    given = list(dict.fromkeys(x for x in found.bound.values() if isinstance(x, Operand)))
    held = {operand: values[operand] if operand in values else fresh(operand) for operand in given}
    made: dict[Operand, Value] = dict(held)
    if all(found.grid):
        placed = {
            name: InMemory(given.index(x), x.shape, row_major(x.shape))
            if isinstance(x, Operand)
            else x
            for name, x in found.bound.items()
        }
        types = [held[operand].type for operand in given]
        call = make_call(found.function, placed, types, found.grid, found.options)
        for operand, memory in zip(given, call.memories, strict=True):
            if memory.result is not None and operand not in outputs:
                raise InvalidModelError(
                    f"{call.name} writes {memory.name}, which is not an output of the node",
                    where=node.where,
                    hint="let shapes= give the input itself for an output",
                )
        pairs = zip(given, call.memories, strict=True)
        read = [held[operand] for operand, memory in pairs if memory.operand is not None]
        results = b.emit_node(KERNEL_CALL, *read, call=call).outputs
        for operand, memory in zip(given, call.memories, strict=True):
            if memory.result is not None:
                made[operand] = results[memory.result]
    return [made.get(operand) or fresh(operand) for operand in outputs]
