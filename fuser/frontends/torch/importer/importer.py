"""A `torch.fx.GraphModule` of ATen operators, read into a Graph."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuser.base.config import within
from fuser.dtypes import f64
from fuser.errors import FuserError, UnsupportedError, UnsupportedOpError, VerifyError
from fuser.frontends.torch.importer import (  # noqa: F401  the handlers register themselves
    bits,
    contraction,
    convolution,
    creation,
    elementwise,
    indexing,
    kernels,
    movement,
    normalization,
    pooling,
    random,
    reduction,
    resampling,
    scans,
    scattering,
    searching,
    special,
)
from fuser.frontends.torch.importer.numbers import Fraction, compute
from fuser.frontends.torch.importer.registry import dtype_of, find
from fuser.frontends.torch.layouts import layout_of
from fuser.frontends.torch.symbols import dim_of
from fuser.frontends.torch.views import root_of
from fuser.graph.builder import Builder
from fuser.graph.dims import DimExpr, product
from fuser.graph.ir import Graph, TensorType, Value
from fuser.graph.sources import Recorder

_IGNORED = (
    "aten._assert_scalar", "aten._assert_async", "aten._assert_tensor_metadata",
    "aten.sym_constrain_range", "aten._functional_assert_async",
)  # fmt: skip

_ABOUT_TENSORS = (
    "aten.sym_size", "aten.sym_numel", "aten.sym_stride", "aten.sym_storage_offset",
)  # fmt: skip
_ARITHMETIC = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div"}
"""Functions of Python's `operator` that also take what is read from tensors."""
_TAKE_FRACTIONS = ("add", "sub", "rsub", "mul", "div", "scalar_tensor", "full", "full_like", "fill")
"""Operators whose numbers may be tensors without axes."""


@dataclass(frozen=True)
class Input:
    """An argument that is an input of the graph."""

    name: str
    type: TensorType


@dataclass(frozen=True)
class Imported:
    """A graph, and what the module returns: each entry is the place of a graph output, or ("=", x)
    for an x that is no tensor."""

    graph: Graph
    results: tuple[int | tuple[str, Any], ...]


def import_fx(
    module: Any, arguments: Sequence[Input | np.ndarray | int | float | bool | None], name: str,
    orders: Sequence[tuple[int, ...] | None] = (),
) -> Imported:  # fmt: skip
    """Read a GraphModule with one argument a placeholder: an input, an array that is a constant, or
    a number (a symbolic size, say). Every size is known then, so sizes are computed, not recorded.
    orders: of results whose axes are to be in another order, by place, that order.

    Raises UnsupportedOpError with every operator that is not supported, LimitError.
    """
    check_operators(module)
    with within():
        return _Importer(module, name, orders).run(arguments)


def check_operators(module: Any) -> None:
    """Raise UnsupportedOpError if there are operators without a handler."""
    missing = sorted({str(node.target) for node in without_handler(module)})
    if missing:
        raise UnsupportedOpError(
            f"operators that are not supported: {', '.join(missing)}",
            hint="torch.compile runs what is around them; fuser.compile needs all of them",
        )


def without_handler(module: Any) -> list[Any]:
    """The nodes of a GraphModule whose operators have no handler, in order."""
    return [
        node
        for node in module.graph.nodes
        if node.op in ("call_module", "call_method")
        or (node.op == "call_function" and _is_operator(node.target) and not _known(node.target))
    ]


def failed_node(error: Exception) -> str | None:
    """The name of the node at which reading a graph ended with this error, if it was there."""
    return getattr(error, _FAILED, None)


_FAILED = "fuser_fx_node"


def is_ignored(node: Any) -> bool:
    """Whether a node is a promise about sizes or values, of which nothing is read."""
    return str(node.target).startswith(_IGNORED)


def _is_operator(target: Any) -> bool:
    """Whether a target works on tensors; plain Python functions work on sizes."""
    return hasattr(target, "_schema") or hasattr(target, "namespace")


def _known(target: Any) -> bool:
    return (
        str(target).startswith((*_IGNORED, "aten.sym_", kernels.WRAPPED))
        or find(target) is not None
    )


class _Importer:
    def __init__(
        self, module: Any, name: str, orders: Sequence[tuple[int, ...] | None] = ()
    ) -> None:
        self.module, self.orders = module, orders
        self.graph = Graph(name)
        self.builder = Builder(self.graph)
        self.recorder = Recorder(self.builder)
        self.found: dict[Any, Any] = {}

    def run(self, arguments: Sequence[Any]) -> Imported:
        given = iter(arguments)
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                self.found[node] = self._argument(next(given))
            elif node.op == "get_attr":
                self.found[node] = self._attribute(str(node.target))
            elif node.op == "call_function":
                self.found[node] = self._call(node)
            elif node.op == "output":
                return self._finish(self._resolve(node.args[0]))
        raise AssertionError("an fx graph ends in its output")

    def _argument(self, argument: Any) -> Any:
        if isinstance(argument, Input):
            return self.graph.add_input(argument.name, argument.type)
        if isinstance(argument, np.ndarray):
            return self.builder.constant(argument)
        return argument

    def _attribute(self, path: str) -> Any:
        found = operator.attrgetter(path)(self.module)
        return self.builder.constant(tensor_array(found)) if hasattr(found, "detach") else found

    def _resolve(self, nest: Any) -> Any:
        if isinstance(nest, list | tuple):
            return type(nest)(map(self._resolve, nest)) if type(nest) in (list, tuple) else [
                self._resolve(part) for part in nest
            ]  # fmt: skip
        if isinstance(nest, dict):
            return {key: self._resolve(part) for key, part in nest.items()}
        if isinstance(nest, slice):
            return slice(*map(self._resolve, (nest.start, nest.stop, nest.step)))
        return self.found[nest] if type(nest).__name__ == "Node" else nest

    def _call(self, node: Any) -> Any:
        args, kwargs = self._resolve(tuple(node.args)), self._resolve(dict(node.kwargs))
        name = str(node.target)
        if is_ignored(node):
            return None
        if name.startswith(_ABOUT_TENSORS):
            return _size(name, node, *args)
        operands = list(values_in((args, tuple(kwargs.values()))))
        if name == kernels.WRAPPED:
            return self._wrapped(node, kwargs, operands)
        handler = find(node.target)
        try:
            if handler is not None:
                args, kwargs = self._numbers(name, (args, kwargs), operands)
            args, kwargs = _positional(node.target, args, kwargs)
            if name.startswith("aten.as_strided."):
                args = self._in_memory(node, args)
            if handler is None:  # arithmetic of sizes, and getitem of several results
                return self._checked(self._of_sizes(node.target, args, kwargs), node)
            return self.recorder.record(
                name.split(".")[1],
                operands,
                lambda: self._declared(handler(self.builder, *args, **kwargs), node),
                values_in,
                name=node.name,
            )
        except Exception as error:
            if isinstance(error, FuserError):
                error.where = error.where or f"{node.name} ({name})"
            setattr(error, _FAILED, failed_node(error) or _operator_of(node).name)
            raise

    def _wrapped(self, node: Any, given: dict[str, Any], operands: Sequence[Value]) -> Any:
        """A kernel as PyTorch traces it. Raises what reading the kernel raises."""
        values = dict(given.pop("kwargs"))
        written = given.pop("tensors_to_clone")
        traced = {
            name: item.meta["val"] for name, item in node.kwargs["kwargs"].items()
            if isinstance(values[name], Value)
        }  # fmt: skip
        try:
            return self.recorder.record(
                "kernel", operands,
                lambda: kernels.wrapped(self.builder, values, traced, written, given),
                lambda found: found.values(), name=node.name,
            )  # fmt: skip
        except Exception as error:
            if isinstance(error, FuserError):
                error.where = error.where or f"{node.name} ({node.target})"
            setattr(error, _FAILED, node.name)
            raise

    def _declared(self, found: Any, node: Any) -> Any:
        """Results in the dtypes that PyTorch gives them: those of statistics differ by device.
        Raises VerifyError where a shape is another one."""
        declared = getattr(node, "meta", {}).get("val")
        if isinstance(found, Value):
            return self._as_one(found, declared)
        if hasattr(declared, "dtype"):
            self._checked(found, node)
        if isinstance(found, list | tuple) and isinstance(declared, list | tuple):
            # PyTorch says of results that nobody reads what another device would give.
            read = {user.args[1] for user in node.users if user.target is operator.getitem}
            return type(found)(
                self._as_one(value, one) if isinstance(value, Value) and i in read else value
                for i, (value, one) in enumerate(zip(found, declared, strict=False))
            )
        return found

    def _checked(self, found: Any, node: Any) -> Any:
        """What was found for a node, unless that is no tensor where PyTorch has one and reads it.
        Raises UnsupportedOpError, at the operator whose result it is."""
        declared = getattr(node, "meta", {}).get("val")
        if isinstance(found, Value) or not hasattr(declared, "dtype") or not node.users:
            return found
        source = _operator_of(node)
        number = f" {node.args[1]}" if source is not node else ""
        error = UnsupportedOpError(
            f"result{number} of {source.target} is not supported", where=source.name
        )
        setattr(error, _FAILED, source.name)
        raise error

    def _as_one(self, value: Value, declared: Any) -> Value:
        if not hasattr(declared, "dtype"):
            return value
        shape = tuple(declared.shape)
        known = len(shape) == value.type.rank and all(
            a == b for a, b in zip(value.shape, shape, strict=True) if type(a) is type(b) is int
        )
        if not known:
            raise VerifyError(f"the import is {value.type}, PyTorch says {list(shape)}")
        return self.builder.cast(value, dtype_of(declared.dtype))

    def _of_sizes(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A Python function of numbers. What makes a float of a size that is open is computed by
        the kernels."""
        if not any(isinstance(x, Value) for x in args):
            return target(*args, **kwargs) if kwargs else compute(target, args)
        op = _ARITHMETIC.get(getattr(target, "__name__", ""))
        if op and all(isinstance(x, Value | int | float | DimExpr | Fraction) for x in args):
            return self.builder.map(op, *map(self._as_value, args))
        return target(*args, **kwargs)

    def _as_value(self, x: Any) -> Value:
        if isinstance(x, Value):
            return x
        return x.value(self.builder) if isinstance(x, Fraction) else self.builder.scalar(x, f64)

    def _in_memory(self, node: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of as_strided, its operand as the vector that it lies in: that of which it
        is a view, in the order of its memory. Raises UnsupportedError where there is none."""
        _, shape, strides, *more = args
        operand, root = node.args[0], root_of(node.args[0])
        declared = root.meta.get("val")
        if declared is None:
            return args
        layout = layout_of(declared)
        if (layout is not None and layout.order is None) or not isinstance(self.found[root], Value):
            raise UnsupportedError(
                f"as_strided of a tensor of the strides {tuple(declared.stride())}"
            )
        offset = more[0] if more else None
        if offset is None:
            offset = dim_of(operand.meta["val"].storage_offset())
        if (begin := dim_of(declared.storage_offset())) != 0:
            offset = offset - begin
        whole = self.found[root]
        if layout is not None and layout.order is not None:
            whole = self.builder.transpose(whole, layout.order)
        return self.builder.reshape(whole, (whole.type.size,)), shape, strides, offset

    def _numbers(self, name: str, nest: Any, operands: Sequence[Value]) -> Any:
        """Arguments of an operator, fractions that follow from open sizes as it takes them: as
        tensors, or as numbers. Halves are computed with wider ones, which tensors are not."""
        if isinstance(nest, Fraction):
            halves = any(x.dtype.is_float and x.dtype.bits < 32 for x in operands)
            is_taken = name.split(".")[1] in _TAKE_FRACTIONS and not halves
            return nest.value(self.builder) if is_taken else float(nest)
        if isinstance(nest, list | tuple):
            return type(nest)([self._numbers(name, part, operands) for part in nest])
        if isinstance(nest, dict):
            return {key: self._numbers(name, part, operands) for key, part in nest.items()}
        return nest

    def _finish(self, results: Any) -> Imported:
        listed = results if isinstance(results, list | tuple) else [results]
        places: list[int | tuple[str, Any]] = []
        for place, result in enumerate(listed):
            if isinstance(result, Value):
                order = self.orders[place] if place < len(self.orders) else None
                if order is not None and list(order) != sorted(order):
                    result = self.builder.transpose(result, order)
                places.append(len(self.graph.outputs))
                self.graph.outputs.append(result)
            else:
                places.append(("=", float(result) if isinstance(result, Fraction) else result))
        self.graph.output_names = [f"output{i}" for i in range(len(self.graph.outputs))]
        return Imported(self.graph, tuple(places))


def _operator_of(node: Any) -> Any:
    """A node, or the one of several results that it takes one of."""
    while node.target is operator.getitem:
        node = node.args[0]
    return node


def _positional(
    target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments that may be given by position, given so: handlers have names of their own."""
    declared = [a for a in getattr(getattr(target, "_schema", None), "arguments", ())
                if not a.kwarg_only]  # fmt: skip
    while any(argument.name in kwargs for argument in declared[len(args) :]):
        argument = declared[len(args)]
        args = (*args, kwargs.pop(argument.name, argument.default_value))
    return args, kwargs


def _size(name: str, node: Any, x: Value, dim: int | None = None) -> Any:
    if "numel" in name:
        return x.type.size
    if "stride" in name:
        strides = _strides(node, x)
        return strides if dim is None else strides[dim]
    if "offset" in name:
        return dim_of(node.args[0].meta["val"].storage_offset())
    return list(x.shape) if dim is None else x.shape[dim]


def _strides(node: Any, x: Value) -> list[Any]:
    """Those that the traced program has, of what a node asks for the strides of."""
    declared = node.args[0].meta.get("val")
    layout = layout_of(declared) if declared is not None else None
    if layout is not None and layout.order is None:
        return list(layout.strides or ())
    order = range(x.type.rank) if layout is None else layout.order
    assert order is not None
    strides: list[Any] = [1] * x.type.rank
    for place, axis in enumerate(order):
        strides[axis] = product([x.shape[inner] for inner in list(order)[place + 1 :]])
    return strides


def values_in(nest: Any) -> Iterator[Value]:
    if isinstance(nest, Value):
        yield nest
    elif isinstance(nest, Iterable) and not isinstance(nest, str | np.ndarray):
        for part in nest:
            yield from values_in(part)


def tensor_array(tensor: Any) -> np.ndarray:
    """The values of a tensor on the host, in its own memory where they lie in row-major order."""
    import ml_dtypes

    tensor = tensor.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":
        import torch

        return np.asarray(tensor.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.asarray(tensor.numpy())
