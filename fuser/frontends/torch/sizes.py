"""Sizes that PyTorch left open in a traced program, as symbolic dims.

A placeholder of such a program is a tensor with symbolic sizes, or a size itself (a SymInt). Names
are PyTorch's own (`s0`); an expression over them that fuser's dims cannot spell leaves the program
to be compiled size by size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuser.errors import FuserError
from fuser.frontends.torch.importer.registry import dtype_of
from fuser.frontends.torch.symbols import dim_of, is_symbolic
from fuser.frontends.torch.tensors import is_tensor
from fuser.graph.dims import Dim, DimExpr, substitute, symbols_of
from fuser.graph.evaluate import bind_shape
from fuser.graph.ir import TensorType


@dataclass(frozen=True)
class OpenSizes:
    """The shapes of the arguments of a program, by place: of a tensor its dims, of a size the dim
    that it is; None for others. symbols: every name, and whether it is an outermost axis."""

    shapes: tuple[tuple[Dim, ...] | Dim | None, ...]
    symbols: Mapping[str, bool] = field(default_factory=dict)

    def at(self, arguments: Sequence[Any]) -> dict[str, int] | None:
        """The sizes of all symbols that these arguments have; None where they have none, or do not
        agree with the shapes."""
        found: dict[str, int] = {}
        for shape, x in zip(self.shapes, arguments, strict=True):
            if isinstance(shape, tuple):
                if not is_tensor(x) or len(x.shape) != len(shape):
                    return None
                bind_shape(TensorType(dtype_of(x.dtype), shape), tuple(x.shape), found)
            elif isinstance(shape, DimExpr) and len(names := symbols_of(shape)) == 1:
                if str(shape) in names:
                    found.setdefault(str(shape), int(x))
        if not self.symbols or set(found) != set(self.symbols):
            return None
        for shape, x in zip(self.shapes, arguments, strict=True):
            sizes = tuple(x.shape) if isinstance(shape, tuple) else (x,)
            dims: tuple[Any, ...]
            dims = shape if isinstance(shape, tuple) else (x if shape is None else shape,)
            if any(substitute(d, found) != size for d, size in zip(dims, sizes, strict=True)):
                return None
        return found

    def given(self, place: int, sizes: Mapping[str, int]) -> Any:
        """What a program is read with in place of argument `place`: its shape, or its size, some
        symbols having sizes."""
        shape = self.shapes[place]
        if isinstance(shape, tuple):
            return tuple(substitute(dim, sizes) for dim in shape)
        return None if shape is None else substitute(shape, sizes)


def open_sizes(module: Any) -> OpenSizes:
    """The open sizes of a GraphModule's placeholders; no symbols where all are fixed, or not to be
    spelled."""
    shapes: list[tuple[Dim, ...] | Dim | None] = []
    symbols: dict[str, bool] = {}
    for node in module.graph.nodes:
        if node.op != "placeholder":
            continue
        value = node.meta.get("val")
        try:
            if is_tensor(value):
                sizes = tuple(map(dim_of, value.shape))
                shapes.append(sizes)
                for axis, dim in enumerate(sizes):
                    if symbols_of(dim) == {str(dim)}:
                        symbols.setdefault(str(dim), axis == 0)
            elif is_symbolic(value):
                shapes.append(dim_of(value))
            else:
                shapes.append(None)
        except FuserError:
            return OpenSizes(())
    for shape in shapes:  # those that are met as a size, or within an expression, only
        for size in shape if isinstance(shape, tuple) else (shape or 0,):
            for name in sorted(symbols_of(size)):
                symbols.setdefault(name, False)
    return OpenSizes(tuple(shapes), symbols)
