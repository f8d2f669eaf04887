"""Names of an installed Triton, and of PyTorch's modules for it, in kernels."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import fuser.triton as triton
import fuser.triton.language as tl
from fuser.errors import LanguageError

# where PyTorch finds no Triton, its names are None ------------------------------------------------

IMPORTS = {
    "triton_compat": (
        "from torch._inductor.runtime.triton_compat import libdevice", "libdevice.rsqrt(v)"),
    "triton_helpers": (
        "from torch._inductor.runtime.triton_helpers import libdevice", "libdevice.rsqrt(v)"),
    "another name": (
        "from torch._inductor.runtime.triton_compat import libdevice as ld", "ld.rsqrt(v)"),
    "math": (
        "from torch._inductor.runtime.triton_helpers import math as tl_math",
        "1 / tl_math.sqrt(v)"),
    "both": (
        "from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math",
        "tl_math.exp(libdevice.log(libdevice.rsqrt(v)))"),
    "in a try": (
        "try:\n    from torch._inductor.runtime.triton_compat import libdevice\n"
        "except ImportError:\n    libdevice = None", "libdevice.pow(v, -0.5)"),
}  # fmt: skip
PROGRAM = """\
import fuser.triton as triton
import fuser.triton.language as tl
{imports}

@triton.jit
def k(x, o, B: tl.constexpr):
    v = tl.load(x + tl.arange(0, B))
    tl.store(o + tl.arange(0, B), {value})
"""


def load(folder: Path, imports: str, value: str) -> Any:
    path = folder / "program.py"
    path.write_text(PROGRAM.format(imports=imports, value=value))
    spec = importlib.util.spec_from_file_location(f"program_{folder.name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.k


@pytest.mark.parametrize("name", IMPORTS)
def test_modules_of_pytorch(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    kernel = load(tmp_path, *IMPORTS[name])
    x = np.array([1, 4, 16, 0.25] * 4, np.float32)
    out = np.zeros_like(x)
    for _ in range(2):
        kernel[(1,)](x, out, B=16)
    np.testing.assert_allclose(out, 1 / np.sqrt(x), rtol=1e-6)


def test_a_none_from_elsewhere_is_none(tmp_path: Path) -> None:
    kernel = load(tmp_path, "libdevice = None", "libdevice.rsqrt(v)")
    with pytest.raises(LanguageError, match="libdevice"):
        kernel[(1,)](np.ones(4, np.float32), np.ones(4, np.float32), B=4)


def test_a_name_that_libdevice_has_not(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    kernel = load(tmp_path, IMPORTS["triton_compat"][0], "libdevice.rsqrtt(v)")
    with pytest.raises(LanguageError, match="no 'rsqrtt'"):
        kernel[(1,)](np.ones(4, np.float32), np.ones(4, np.float32), B=4)


# an installed Triton: what is told of it by its modules and classes -------------------------------


def of_library(module: str, *names: str) -> ModuleType:
    """A module of functions that cannot be called outside of Triton's compiler."""
    made = ModuleType(module)
    for name in names:

        def stub(*args: Any, **named: Any) -> Any:
            raise ValueError("did you forget to add @triton.jit?")

        stub.__module__, stub.__name__ = module, name
        stub.__triton_builtin__ = True  # type: ignore[attr-defined]
        setattr(made, name, stub)
    return made


def class_of(module: str, name: str, **members: Any) -> Any:
    return type(name, (), {"__module__": module, **members})


LIBDEVICE = of_library("triton.language.extra.cuda.libdevice", "rsqrt", "log1p", "pow", "fast_expf")
CORE = of_library("triton.language.core", "load", "store", "arange", "where", "inline_asm", "dot")
MATH = of_library("triton.language.math", "exp", "sqrt")
JITTED = class_of("triton.runtime.jit", "JITFunction")
EVALUATED = class_of("triton.runtime.jit", "ConstexprFunction")
CONSTEXPR = class_of("triton.language.core", "constexpr")
DTYPE = class_of("triton.language.core", "dtype", __str__=lambda self: self.name)


def made(cls: Any, **members: Any) -> Any:
    found = cls()
    vars(found).update(members)
    return found


def jitted(fn: Any) -> Any:
    return functools.update_wrapper(made(JITTED, fn=fn), fn)


F32, F16 = made(DTYPE, name="fp32"), made(DTYPE, name="fp16")
THREE = made(CONSTEXPR, value=3)


@jitted
def helper(a, b: CONSTEXPR):
    return CORE.where(a > b, a, -a) + LIBDEVICE.rsqrt(a)


def _twice(n):
    return 2 * n


twice = made(EVALUATED, fn=_twice)


def zeros(shape, dtype):
    raise ValueError("of Triton's own library")


zeros.__module__ = "triton.language.standard"
theirs = jitted(zeros)
X = np.linspace(1, 5, 16).astype(np.float32)


def run(kernel: Any, **named: Any) -> Any:
    out = np.zeros_like(X)
    kernel[(1,)](X, out, B=16, **named)
    return out


def test_functions_of_libdevice() -> None:
    @triton.jit
    def kernel(x, o, B: tl.constexpr):
        v = tl.load(x + tl.arange(0, B))
        w = LIBDEVICE.rsqrt(v) + LIBDEVICE.log1p(v) + LIBDEVICE.pow(v, 2.0) + LIBDEVICE.fast_expf(v)
        tl.store(o + tl.arange(0, B), w)

    want = 1 / np.sqrt(X) + np.log1p(X) + X * X + np.exp(X)
    np.testing.assert_allclose(run(kernel), want, rtol=1e-6)


def test_functions_of_the_language() -> None:
    @triton.jit
    def kernel(x, o, B: CONSTEXPR):
        v = CORE.load(x + CORE.arange(0, B))
        CORE.store(o + CORE.arange(0, B), MATH.exp(v) + MATH.sqrt(v) + theirs((B,), F32))

    np.testing.assert_allclose(run(kernel), np.exp(X) + np.sqrt(X), rtol=1e-6)


def test_functions_of_users() -> None:
    @triton.jit
    def kernel(x, o, B: tl.constexpr):
        v = tl.load(x + tl.arange(0, B))
        tl.store(o + tl.arange(0, B), helper(v, THREE) + twice(4))

    want = np.where(X > 3, X, -X) + 1 / np.sqrt(X) + 8
    np.testing.assert_allclose(run(kernel), want, rtol=1e-6)


@pytest.mark.parametrize(("given", "dtype"), [(F16, np.float16), (F32, np.float32)])
def test_types(given: Any, dtype: Any) -> None:
    @triton.jit
    def kernel(x, o, B: tl.constexpr, DTYPE: tl.constexpr):
        v = tl.load(x + tl.arange(0, B)).to(DTYPE)
        tl.static_assert(v.dtype == DTYPE)
        tl.store(o + tl.arange(0, B), v.to(F32))

    np.testing.assert_array_equal(run(kernel, DTYPE=given), X.astype(dtype))


def test_constants_as_arguments_and_around() -> None:
    @triton.jit
    def kernel(x, o, B: tl.constexpr, N: tl.constexpr):
        tl.store(o + tl.arange(0, B), 1.0 * N + THREE)

    for n in (made(CONSTEXPR, value=7), 7, np.int64(7)):
        assert (run(kernel, N=n) == 10).all()
    assert sum(map(len, kernel.variants.values())) == 1


def test_a_function_that_there_is_not() -> None:
    @triton.jit
    def kernel(x, o, B: tl.constexpr):
        tl.store(o + tl.arange(0, B), CORE.inline_asm(x))

    with pytest.raises(LanguageError, match=r"core\.inline_asm of the installed Triton"):
        run(kernel)


# aggregates and loops of an installed Triton ------------------------------------------------------

BASE_VALUE = class_of("triton.language.core", "base_value")
TENSOR = class_of("triton.language.core", "tensor")
static_range = class_of("triton.language.core", "static_range")


def aggregate_of(
    fields: dict[str, Any], defaults: dict[str, Any], init: Any = None, **members: Any
):
    """A class as Triton's decorator makes it."""

    def own_init(self, *args, **named): ...

    own_init.__module__ = "triton.language.core"
    own = {"_flatten_ir": own_init, "__setattr__": own_init, "__annotations__": fields}
    found = type("Pair", (BASE_VALUE,), {**own, **members, "__triton_aggregate__": True})
    found.__module__ = __name__
    found.hash_attrs = [init or own_init, *members.values()]
    found.__aggregate_fields__, found.__aggregate_defaults__ = tuple(fields), defaults
    return found


@jitted
def total(self, by):
    return (self.a + self.b) * by


def _swapped(self):
    return Pair(self.b, self.a)


def _init(self, a):
    self.a = a
    self.b = a


Pair = aggregate_of({"a": TENSOR, "b": TENSOR}, {}, total=total, swapped=_swapped)
Made = aggregate_of({"a": TENSOR, "b": TENSOR}, {}, _init, total=total)
Sized = aggregate_of({"a": TENSOR, "n": CONSTEXPR}, {"n": 5})


def test_aggregates_of_users() -> None:
    @triton.jit
    def kernel(x, o, B: tl.constexpr):
        v = tl.load(x + tl.arange(0, B))
        pair = Pair(v, v * 2)
        sized = Sized(v)
        tl.store(o + tl.arange(0, B), pair.total(2) + Made(v).total(1) + sized.a * sized.n)

    np.testing.assert_allclose(run(kernel), 6 * X + 2 * X + 5 * X, rtol=1e-6)


def get_int_dtype(bitwidth, signed):
    raise ValueError("of Triton's own library")


get_int_dtype.__module__ = "triton.language.core"


@pytest.mark.parametrize("function", [get_int_dtype, tl.core.get_int_dtype])
def test_integer_types_by_their_bits(function: Any) -> None:
    @triton.jit
    def kernel(x, o, B: tl.constexpr):
        v = tl.load(x + tl.arange(0, B))
        bits = v.to(function(v.dtype.primitive_bitwidth, signed=True), bitcast=True)
        tl.store(o + tl.arange(0, B), (bits & 0x7F800000).to(tl.float32, bitcast=True))

    np.testing.assert_array_equal(run(kernel), 2.0 ** np.floor(np.log2(X)))


def test_loops_of_the_language() -> None:
    @triton.jit
    def kernel(x, o, B: tl.constexpr):
        v = tl.load(x + tl.arange(0, B))
        for n in static_range(3):
            v += n
        tl.store(o + tl.arange(0, B), v)

    np.testing.assert_allclose(run(kernel), X + 3)
