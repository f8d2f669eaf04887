"""`TracedArray`: what a traced function computes with: its operators and methods record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

from fuser.errors import TraceError
from fuser.frontends.numpy.trace import namespace, ufuncs
from fuser.frontends.numpy.trace.context import Traced
from fuser.frontends.numpy.trace.functions import FUNCTIONS
from fuser.frontends.numpy.trace.indexing import get_item
from fuser.frontends.numpy.trace.inplace import set_item, update
from fuser.graph.dims import DimExpr

METHODS = frozenset(
    ("all", "any", "argmax", "argmin", "argpartition", "argsort", "astype", "clip", "compress")
    + ("cumprod", "cumsum", "diagonal", "dot", "max", "mean", "min", "nonzero", "prod", "ravel")
    + ("repeat", "round", "searchsorted", "squeeze", "std", "sum", "swapaxes", "take", "trace")
    + ("var",)
)
"""Methods of ndarray that are the function of the same name."""


def _binary(ufunc: np.ufunc, swapped: bool = False) -> Callable[[TracedArray, Any], Any]:
    def operator(self: TracedArray, other: Any) -> Any:
        if not _is_operand(other):
            return NotImplemented
        return ufuncs.apply(ufunc, (other, self) if swapped else (self, other))

    return operator


def _unary(ufunc: np.ufunc) -> Callable[[TracedArray], Any]:
    return lambda self: ufuncs.apply(ufunc, (self,))


def _in_place(ufunc: np.ufunc) -> Callable[[TracedArray, Any], Any]:
    def operator(self: TracedArray, other: Any) -> Any:
        return update(ufunc, self, other) if _is_operand(other) else NotImplemented

    return operator


def _is_operand(x: Any) -> bool:
    # A complex number is refused by its dtype; Python would compare it by identity.
    numbers = bool | int | float | complex | DimExpr  # a size of a traced array may be open
    return isinstance(x, TracedArray | np.ndarray | np.generic | list | tuple | numbers)


class UntracedAttributeError(TraceError, AttributeError):
    """An attribute of ndarray that a traced array has not."""


class TracedArray(Traced):
    """An array of a traced function, with the operators, methods and protocols of NumPy's."""

    __array_priority__ = 1000.0
    __hash__ = None  # type: ignore[assignment]  # == is elementwise

    def to_device(self, device: object, /, *, stream: object = None) -> TracedArray:
        return self

    def __repr__(self) -> str:
        return f"TracedArray({self.value.type})"

    def __format__(self, spec: str) -> str:
        """As text; a format of numbers needs one."""
        if spec:
            self._no_value(f"the format {spec!r}", "print it without a format")
        return repr(self)

    def __round__(self, decimals: int = 0) -> Any:
        return FUNCTIONS["round"](self, decimals)

    def __contains__(self, x: Any) -> bool:
        self._no_value("`in`", "use np.any(x == value), which is traced")

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of an array without axes")
        return self.shape[0]

    def __iter__(self) -> Iterator[TracedArray]:
        return (self[index] for index in range(len(self)))

    # protocols ----------------------------------------------------------------------------------

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        return namespace

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        dtype = kwargs.pop("dtype", None)
        if kwargs.get("out") is not None:
            raise TraceError(
                f"{ufunc.__name__}: out= cannot be traced",
                hint="use the result; and for a += x begin with a traced array: np.zeros_like(x)",
            )
        if method == "__call__":
            if kwargs.get("where", True) is not True:
                raise TraceError(f"{ufunc.__name__}: where= cannot be traced", hint="use np.where")
            axes = {name: kwargs[name] for name in ("axis", "axes", "keepdims") if name in kwargs}
            if set(axes) == {"axis"} and ufunc is np.vecdot:
                axis = axes.pop("axis")
                inputs = tuple(FUNCTIONS["moveaxis"](x, axis, -1) for x in inputs)
            if axes:
                raise TraceError(f"{ufunc.__name__}: {', '.join(axes)} cannot be traced")
            return ufuncs.apply(ufunc, inputs, dtype)
        name = _METHOD_FUNCTIONS.get((ufunc.__name__, method))
        if name is None:
            raise TraceError(f"{ufunc.__name__}.{method} cannot be traced")
        kwargs.pop("out", None)
        kwargs.setdefault("axis", 0)
        if dtype is not None:
            kwargs["dtype"] = dtype
        return FUNCTIONS[name](*inputs, **kwargs)

    def __array_function__(
        self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        found = FUNCTIONS.get(func.__name__)
        if found is None:
            name = f"{func.__module__}.{func.__name__}"
            raise TraceError(
                f"{name} is not among the functions that can be traced",
                hint="docs/python.md lists them",
            )
        return found(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in METHODS:
            return lambda *args, **kwargs: FUNCTIONS[name](self, *args, **kwargs)
        if hasattr(np.ndarray, name) and not name.startswith("__"):
            raise UntracedAttributeError(
                f"x.{name} cannot be traced", hint="docs/python.md lists what can"
            )
        raise AttributeError(f"a traced array has no attribute {name!r}")

    # values that do not exist -------------------------------------------------------------------

    def _no_value(self, use: str, hint: str) -> NoReturn:
        raise TraceError(
            f"{use} needs the values of a traced array ({self.value.type}), "
            "which are not known while the function is traced",
            hint=hint,
        )

    def __bool__(self) -> bool:
        self._no_value(
            "a Python if, while, and, or, not, min or max",
            "use np.where, fuser.cond, fuser.while_loop, & and |; "
            "or make the argument static (static_argnames)",
        )

    def __int__(self) -> int:
        self._no_value("int()", "use .astype(int); or make the argument static (static_argnames)")

    def __index__(self) -> int:
        self._no_value(
            "a size, a range or an index of a list",
            "make the argument static (static_argnames); arrays can be indexed by arrays",
        )

    def __float__(self) -> float:
        self._no_value(
            "float()",
            "use .astype(float), np functions for those of math, and np.zeros_like(x) for an array "
            "to assign to; or make the argument static",
        )

    def __complex__(self) -> complex:
        self._no_value("complex()", "complex numbers cannot be traced")

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._no_value(
            "a conversion to a NumPy array", "use np.zeros_like(x) for an array to assign to, "
            "x.astype, and functions of docs/python.md instead of foreign ones",
        )  # fmt: skip

    def item(self, *args: int) -> NoReturn:
        self._no_value(".item()", "index the array instead")

    def tolist(self) -> NoReturn:
        self._no_value(".tolist()", "keep it an array")

    # operators ----------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        return get_item(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        set_item(self, index, value)

    def fill(self, value: Any) -> None:
        set_item(self, ..., value)

    def sort(self, axis: int = -1, kind: Any = None, order: None = None, **options: Any) -> None:
        set_item(self, ..., FUNCTIONS["sort"](self, axis, **options))

    __iadd__, __isub__ = _in_place(np.add), _in_place(np.subtract)
    __imul__, __itruediv__ = _in_place(np.multiply), _in_place(np.divide)
    __ifloordiv__, __imod__ = _in_place(np.floor_divide), _in_place(np.remainder)
    __ipow__, __imatmul__ = _in_place(np.power), _in_place(np.matmul)
    __iand__, __ior__ = _in_place(np.bitwise_and), _in_place(np.bitwise_or)
    __ixor__ = _in_place(np.bitwise_xor)
    __ilshift__, __irshift__ = _in_place(np.left_shift), _in_place(np.right_shift)
    __add__, __radd__ = _binary(np.add), _binary(np.add, True)
    __sub__, __rsub__ = _binary(np.subtract), _binary(np.subtract, True)
    __mul__, __rmul__ = _binary(np.multiply), _binary(np.multiply, True)
    __truediv__, __rtruediv__ = _binary(np.divide), _binary(np.divide, True)
    __floordiv__, __rfloordiv__ = _binary(np.floor_divide), _binary(np.floor_divide, True)
    __mod__, __rmod__ = _binary(np.remainder), _binary(np.remainder, True)
    __divmod__, __rdivmod__ = _binary(np.divmod), _binary(np.divmod, True)
    __pow__, __rpow__ = _binary(np.power), _binary(np.power, True)
    __matmul__, __rmatmul__ = _binary(np.matmul), _binary(np.matmul, True)
    __and__, __rand__ = _binary(np.bitwise_and), _binary(np.bitwise_and, True)
    __or__, __ror__ = _binary(np.bitwise_or), _binary(np.bitwise_or, True)
    __xor__, __rxor__ = _binary(np.bitwise_xor), _binary(np.bitwise_xor, True)
    __lshift__, __rlshift__ = _binary(np.left_shift), _binary(np.left_shift, True)
    __rshift__, __rrshift__ = _binary(np.right_shift), _binary(np.right_shift, True)
    __eq__ = _binary(np.equal)
    __ne__ = _binary(np.not_equal)
    __lt__, __le__ = _binary(np.less), _binary(np.less_equal)
    __gt__, __ge__ = _binary(np.greater), _binary(np.greater_equal)
    __neg__, __pos__ = _unary(np.negative), _unary(np.positive)
    __abs__, __invert__ = _unary(np.absolute), _unary(np.invert)

    # methods whose arguments are not those of the function ---------------------------------------

    @property
    def T(self) -> Any:
        return FUNCTIONS["transpose"](self)

    @property
    def mT(self) -> Any:
        return FUNCTIONS["matrix_transpose"](self)

    @property
    def real(self) -> TracedArray:
        return self

    @property
    def imag(self) -> Any:
        return FUNCTIONS["imag"](self)

    def conjugate(self) -> TracedArray:
        return self

    conj = conjugate

    def reshape(self, *shape: Any, order: str = "C", copy: bool | None = None) -> Any:
        wanted = shape[0] if len(shape) == 1 else shape
        return FUNCTIONS["reshape"](self, wanted, order=order)

    def transpose(self, *axes: Any) -> Any:
        wanted = axes[0] if len(axes) == 1 else (axes or None)
        return FUNCTIONS["transpose"](self, wanted)

    def flatten(self, order: str = "C") -> Any:
        return FUNCTIONS["ravel"](self, order).copy()

    def copy(self, order: str = "C") -> TracedArray:
        return TracedArray(self.trace, self.value, self.weak)


_METHOD_FUNCTIONS = {
    ("add", "reduce"): "sum",
    ("multiply", "reduce"): "prod",
    ("maximum", "reduce"): "max",
    ("minimum", "reduce"): "min",
    ("logical_and", "reduce"): "all",
    ("logical_or", "reduce"): "any",
    ("add", "accumulate"): "cumsum",
    ("multiply", "accumulate"): "cumprod",
}
