"""Names of a Triton that is installed beside fuser, where they reach a kernel.

Generated kernels take libdevice from PyTorch, and users mix imports: what they name is taken by its
meaning. Functions of the library are ours of the same name; a user's function under Triton's jit is
compiled from its source; a constexpr function is called. Types and constexprs are taken by
`tensors.plain`.

Where no Triton is installed, PyTorch's names are None. An import statement of the kernel's module
says which of ours is meant:

    from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from fuser.errors import UnsupportedError
from fuser.language.aggregates import Aggregate, aggregate
from fuser.language.functions import Function
from fuser.language.libdevice.registry import TABLE as LIBDEVICE
from fuser.language.registry import TABLE
from fuser.language.tensors import ConstantFunction, Constexpr, Tensor
from fuser.language.types import get_int_dtype

THEIRS = "triton."
LIBRARY = "triton.language."
CORE = "triton.language.core"
PYTORCH = "torch._inductor.runtime."
CLASSES = {"constexpr": Constexpr, "tensor": Tensor, "tuple": tuple}
"""Those of Triton's classes that stand for classes here; others are functions of the language."""
ABSENT = {"libdevice": "libdevice", "math": "math"}
"""What is None in PyTorch's modules where no Triton is installed, and the module of ours."""


def taken(found: Any) -> Any:
    """What a value of an installed Triton stands for; anything else as it is. Raises
    UnsupportedError."""
    kind = type(found).__module__
    if kind == "triton.runtime.jit" and hasattr(found, "fn"):
        return _function(found)
    if kind == CORE and type(found).__name__ == "constexpr":
        return Constexpr(taken(found.value))
    home = getattr(found, "__module__", None)
    if isinstance(found, type) and vars(found).get("__triton_aggregate__"):
        own: Any = found
        return own if issubclass(found, Aggregate) else _aggregate(own)
    if not isinstance(home, str) or not home.startswith(LIBRARY):
        return found
    name = getattr(found, "__name__", "")
    if isinstance(found, type):
        return CLASSES.get(name) or TABLE.get(name, found)
    return _of_library(home, name, found) if callable(found) else found


def _function(found: Any) -> Any:
    """A function under the installed Triton's jit, or its constexpr_function."""
    home, name = found.fn.__module__, found.fn.__name__
    if home.startswith(LIBRARY) and name in TABLE:
        return TABLE[name]
    if type(found).__name__ == "ConstexprFunction":
        return ConstantFunction(found.fn)
    return _compiled(found.fn)


@functools.lru_cache(maxsize=1024)
def _compiled(fn: Any) -> Function:
    """From its source, in the spelling of the kernel that calls it."""
    return Function(fn, {})


@functools.lru_cache(maxsize=1024)
def _aggregate(found: Any) -> Any:
    """A class under the installed Triton's aggregate: ours of the same fields and methods."""
    members = {
        name: taken(member)
        for name, member in vars(found).items()
        if getattr(getattr(member, "fn", member), "__module__", CORE) == found.__module__
    }
    (init,) = getattr(found, "hash_attrs", [None])[:1]
    if getattr(init, "__module__", CORE) != CORE:
        members["__init__"] = init
    members |= getattr(found, "__aggregate_defaults__", {})
    members["__annotations__"] = {name: taken(kind) for name, kind in found.__annotations__.items()}
    members |= {"__module__": found.__module__, "__qualname__": found.__qualname__}
    return aggregate(type(found.__name__, (), members))


def _of_library(home: str, name: str, found: Any) -> Any:
    table: Mapping[str, Any] = LIBDEVICE if home.endswith("libdevice") else TABLE
    if name == "get_int_dtype":
        return get_int_dtype
    if name in table:
        return table[name]
    if getattr(found, "__triton_builtin__", False):
        raise UnsupportedError(
            f"{home}.{name} of the installed Triton is no function of the block language",
            hint="docs/language-functions.md lists what there is",
        )
    return found


def of_pytorch(function: Any, name: str) -> Any:
    """The module of ours for a name that is None in a function's module, since PyTorch found no
    Triton; None where the name is none of those."""
    file = inspect.getfile(function) if function is not None else ""
    original = _imported(file, len(linecache.getlines(file))).get(name)
    home = ABSENT.get(original or "")
    return None if home is None else import_module(f"fuser.language.{home}")


@functools.lru_cache(maxsize=256)
def _imported(file: str, _: int) -> dict[str, str]:
    """What a file imports from PyTorch's modules for Triton: by its name there, the name here."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return {}
    return {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PYTORCH)
        for alias in node.names
    }
