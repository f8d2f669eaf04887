"""What a kernel's parameters are, as Triton describes them."""

from __future__ import annotations

import inspect
from functools import cached_property
from typing import Any

from fuser.language.tensors import is_constexpr
from fuser.language.types import BY_NAME, Const, ElementType


class KernelParam:
    """A parameter of a kernel. num: its position."""

    def __init__(
        self,
        num: int,
        param: inspect.Parameter,
        do_not_specialize: bool,
        do_not_specialize_on_alignment: bool,
    ) -> None:
        self.num = num
        self._param = param
        self.do_not_specialize = do_not_specialize
        self.do_not_specialize_on_alignment = do_not_specialize_on_alignment

    @property
    def name(self) -> str:
        return self._param.name

    @cached_property
    def annotation(self) -> str:
        """The annotation as text; empty where there is none."""
        found = self._param.annotation
        if found is inspect.Parameter.empty or found is None:
            return ""
        return found if isinstance(found, str) else getattr(found, "__name__", str(found))

    @cached_property
    def annotation_type(self) -> str:
        """The short name of the type that the annotation gives; empty where it gives none."""
        found = self._param.annotation
        if isinstance(found, ElementType):
            return short_name(found)
        kind = BY_NAME.get(self.annotation.rsplit(".", 1)[-1])
        return "" if kind is None else short_name(kind)

    @cached_property
    def is_constexpr(self) -> bool:
        return is_constexpr(self._param.annotation)

    @cached_property
    def is_const(self) -> bool:
        named = self.annotation.rsplit(".", 1)[-1] == "const"
        return self._param.annotation is Const or named

    @property
    def default(self) -> Any:
        return self._param.default

    @property
    def has_default(self) -> bool:
        return self._param.default is not inspect.Parameter.empty


def short_name(dtype: ElementType) -> str:
    """`i32`, `u1`, `fp16`: how signatures name types."""
    if dtype.is_int():
        return ("u" if dtype.kind == "uint" else "i") + str(dtype.bits)
    return dtype.name


SHORT_NAMES: dict[str, ElementType] = {
    short_name(dtype): dtype for dtype in BY_NAME.values() if not dtype.is_void()
} | {"i1": BY_NAME["int1"], "B": BY_NAME["int1"]}
