"""The public names of Triton 3.9 (names_3_9.json, read from its wheel): each is here with its
parameters, or is a stand-in that the page on compatibility lists and that raises when it is used.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from fuser.triton.experimental.gluon import language as gl

import fuser.triton as triton
import fuser.triton.language as tl
from fuser.base.imports import NAMES_ONLY, Answers
from fuser.dtypes import f32, from_numpy
from fuser.errors import DeviceAssertionError, FuserError, LanguageError, UnsupportedError
from fuser.language.builtins import METHODS
from fuser.language.descriptors import ATOMICS
from fuser.language.tensors import Builtin, Constexpr
from fuser.language.types import BY_NAME
from fuser.triton.absent import Absent
from fuser.triton.experimental import gluon
from fuser.triton.tools.tensor_descriptor import TensorDescriptor
from tests.numerics import assert_close

NAMES = json.loads((Path(__file__).parent / "names_3_9.json").read_text())
MODULES: dict[str, dict[str, str | None]] = NAMES["modules"]
CLASSES: dict[str, dict[str, str]] = NAMES["classes"]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "triton-compatibility.md"
OWN_PARAMETERS = {"triton.profiler.metadata_state"}
"""Functions that take what fuser's own take."""
OWN_MEMBERS = ["kind", "KIND", "SIGNEDNESS", "mangle", "codegen_name", "to_ir"]
"""Members of Triton's types that are of its compiler; `kind` is a text here."""
LISTS = ["FP_TYPES", "OTHER_TYPES", "SINT_TYPES", "STANDARD_FP_TYPES", "UINT_TYPES"]
"""Members that `language.core.dtype` has, and no type by itself."""


def module_of(name: str) -> Any:
    return importlib.import_module(f"fuser.{name}")


def parameters(item: Any) -> tuple[list[str], bool]:
    """The names of a function's parameters, and whether it takes any others by name."""
    if isinstance(item, Builtin):
        found = list(inspect.signature(item.call).parameters.values())[1:]
    else:
        while hasattr(item, "fn") and callable(item.fn):
            item = item.fn
        found = list(inspect.signature(item).parameters.values())
    named = [p.name for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return named, any(p.kind is p.VAR_KEYWORD for p in found)


@pytest.mark.parametrize("name", MODULES)
def test_every_name_is_there(name: str) -> None:
    module = module_of(name)
    assert not [item for item in MODULES[name] if not hasattr(module, item)]


@pytest.mark.parametrize("name", [m for m in MODULES if "gluon" not in m])
def test_every_function_has_its_parameters(name: str) -> None:
    module = module_of(name)
    missing = {}
    for item, text in MODULES[name].items():
        own = getattr(module, item)
        if text is None or isinstance(own, Absent) or f"{name}.{item}" in OWN_PARAMETERS:
            continue
        here, others = parameters(own)
        there = [w.rstrip("=") for w in text.split() if w[0] not in "*_"]
        lacks = [] if others else [p for p in there if p not in here]
        if lacks or [p for p in here if p in there] != [p for p in there if p in here]:
            missing[item] = (there, here)
    assert not missing


MEMBERS = {
    "triton.language.tensor": {*METHODS, "T", "item"},
    "triton.language.tensor_descriptor": {
        *dir(tl.tensor_descriptor), *ATOMICS, "load", "store", "gather", "scatter", "block_shape",
    },
    "triton.language.constexpr": {*dir(Constexpr)},
    "triton.language.dtype": {*dir(tl.float32), *LISTS},
    "triton.language.pointer_type": {*dir(tl.pi32_t), *LISTS},
    "triton.language.block_type": {*dir(tl.block_type(tl.float32, [4])), *LISTS},
    "triton.tools.tensor_descriptor.TensorDescriptor": {
        *dir(TensorDescriptor), *TensorDescriptor.__dataclass_fields__,
    },
}  # fmt: skip
"""What has the members of a class, where it is not the class itself."""


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_has_its_members(name: str) -> None:
    home, _, short = name.rpartition(".")
    known = MEMBERS.get(name) or set(dir(getattr(module_of(home), short)))
    here = known.union(OWN_MEMBERS)
    assert not [member for member in CLASSES[name]["has"].split() if member not in here]


def test_a_name_of_no_release_is_not_there() -> None:
    for name in MODULES:
        module = module_of(name)
        if module.__spec__.origin != NAMES_ONLY:
            assert not hasattr(module, "no_such_name"), name
        assert not hasattr(module, "_no_such_name"), name


def refused() -> dict[str, set[str]]:
    """The names that the page lists as refused, by module; {"all"}: all of it and of those below
    it."""
    table = PAGE.read_text().partition("### Names that are refused")[2].partition("\n###")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \|", table, re.MULTILINE)
    return {
        f"triton.{module}": set(re.findall(r"`(\w+)`", text) or [text]) for module, text in rows
    }


def test_the_page_lists_what_is_refused() -> None:
    listed, seen = refused(), {}
    for name, items in MODULES.items():
        module = module_of(name)
        absent = {item for item in items if isinstance(getattr(module, item), Absent)}
        whole = [key for key in listed if "all" in listed[key] and f"{name}.".startswith(f"{key}.")]
        assert bool(whole) == (module.__spec__.origin == NAMES_ONLY), name
        if absent and not whole:
            seen[name] = absent
    assert seen == {key: names for key, names in listed.items() if "all" not in names}


@pytest.mark.parametrize("name", MODULES)
def test_what_is_refused_says_so_when_it_is_used(name: str) -> None:
    for item in MODULES[name]:
        own = getattr(module_of(name), item)
        if isinstance(own, Absent) and not item.endswith("Layout"):
            with pytest.raises(UnsupportedError, match=item):
                own(1, x=2)
            with pytest.raises(UnsupportedError, match=item):
                own["x"]
            with pytest.raises(UnsupportedError, match=item):
                list(own)


# stand-ins ----------------------------------------------------------------------------------------


def test_stand_ins_serve_where_a_module_is_loaded() -> None:
    from fuser.triton.compiler import code_generator

    class Own(code_generator.CodeGenerator):  # type: ignore[misc, name-defined]
        pass

    assert code_generator.CodeGenerator | None
    assert not isinstance(3, code_generator.CodeGenerator)
    assert not hasattr(code_generator.CodeGenerator.visit_Call, "fn")
    with pytest.raises(UnsupportedError, match="CodeGenerator"):
        Own()


def test_a_kernel_that_calls_one_says_where() -> None:
    from fuser.triton.language.extra.cuda import utils

    @triton.jit
    def kernel(x):
        tl.store(x, utils.convert_custom_float8_sm80(tl.load(x), tl.float32))

    with pytest.raises(LanguageError, match=r"convert_custom_float8_sm80: .*\(at .*test_surface"):
        kernel[(1,)](np.zeros(1, np.float32))


# what 3.9 has beside 3.6, and Python that kernels run --------------------------------------------


@tl.core.builtin
def doubled_sine(x, _semantic=None):
    kinds = {
        (tl.core.dtype("fp32"),): ("__nv_sinf", tl.core.dtype("fp32")),
        (tl.core.dtype("fp64"),): ("__nv_sin", tl.core.dtype("fp64")),
    }
    found = tl.core.extern_elementwise("libdevice", "", [x], kinds, True, _semantic=_semantic)
    return tl.mul(found, 2.0, _semantic=_semantic)


@triton.jit
def sines(x, out, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(out + at, doubled_sine(tl.load(x + at)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_python_that_a_kernel_runs_calls_libdevice_by_symbols(dtype: Any) -> None:
    x = np.random.default_rng(0).standard_normal(32).astype(dtype)
    out = np.zeros_like(x)
    sines[(1,)](x, out, B=32)
    assert_close(out, 2 * np.sin(x.astype(float)), from_numpy(np.dtype(dtype)))
    with pytest.raises(LanguageError, match="an extern function of int32"):
        sines[(1,)](x.astype(np.int32), out, B=32)


@pytest.mark.parametrize(
    ("symbol", "function"),
    [("__nv_fsqrt_rn", np.sqrt), ("__nv_expf", np.exp), ("__nv_fast_sinf", np.sin),
     ("__nv_fabsf", np.abs)],
)  # fmt: skip
def test_symbols_of_libdevice(symbol: str, function: Any) -> None:
    @tl.core.extern
    def called(x, _semantic=None):
        kinds = {(tl.float32,): (symbol, tl.float32)}
        return tl.core.extern_elementwise("", "", [x], kinds, True, _semantic=_semantic)

    @triton.jit
    def kernel(x, out, B: tl.constexpr):
        at = tl.arange(0, B)
        tl.store(out + at, called(tl.load(x + at)))

    x = np.linspace(0.5, 3, 32, dtype=np.float32)
    out = np.zeros_like(x)
    kernel[(1,)](x, out, B=32)
    assert_close(out, function(x.astype(float)), f32)


@pytest.mark.parametrize("symbol", ["__nv_nothing", "own_sinf", "sin"])
def test_symbols_of_other_libraries(symbol: str) -> None:
    @tl.core.extern
    def called(x, _semantic=None):
        kinds = {(tl.float32,): (symbol, tl.float32)}
        return tl.core.extern_elementwise("", "", [x], kinds, True, _semantic=_semantic)

    @triton.jit
    def kernel(x):
        tl.store(x, called(tl.load(x)))

    with pytest.raises(LanguageError, match=f"the extern function {symbol} .at"):
        kernel[(1,)](np.zeros(1, np.float32))


@triton.jit
def underflowed(x, out, limit, B: tl.constexpr):
    at = tl.arange(0, B)
    found = tl.load(x + at)
    tl.store(out + at, tl.expect_zero(found, found < limit))


def test_expect_zero_is_an_assertion_of_debug_launches() -> None:
    x = np.array([0, -0.0, 2, 5] * 4, np.float32)
    for given in ({}, {"debug": True}):
        out = np.ones_like(x)
        underflowed[(1,)](x, out, 1.0, B=16, **given)
        np.testing.assert_array_equal(np.signbit(out), np.signbit(x))
        np.testing.assert_array_equal(out, x)
    underflowed[(1,)](x, out, 3.0, B=16)
    np.testing.assert_array_equal(out, x)
    with pytest.raises(DeviceAssertionError, match="expect_zero"):
        underflowed[(1,)](x, out, 3.0, B=16, debug=True)


@triton.jit
def products(x, out, B: tl.constexpr, WIDE: tl.constexpr):
    at = tl.arange(0, B)
    found = tl.cumprod(tl.load(x + at), 0, dtype=tl.int64 if WIDE else None)
    tl.store(out + at, found.sort(descending=True))


@pytest.mark.parametrize("wide", [False, True])
def test_running_products_in_another_type(wide: bool) -> None:
    x = np.array([3, 100, 1000, 7, 900, 11, 2, 5], np.int32)
    out = np.zeros(8, np.int64)
    products[(1,)](x, out, B=8, WIDE=wide)
    want = np.cumprod(x, dtype=np.int64 if wide else np.int32)
    np.testing.assert_array_equal(out, np.sort(want)[::-1])


def test_what_types_tell() -> None:
    for kind in (tl.int8, tl.uint16, tl.float8e5, tl.float8e4nv, tl.float64, tl.pi32_t):
        told = [word for word in dir(kind) if word.startswith("is_") and word[3:] in BY_NAME]
        assert [word for word in told if getattr(kind, word)()] == (
            [] if kind is tl.pi32_t else [f"is_{kind.name}"]
        )
    assert (tl.int8.get_int_min_value(), tl.int8.get_int_max_value()) == (-128, 127)
    assert (tl.uint16.get_int_min_value(), tl.uint16.get_int_max_value()) == (0, 65535)
    assert tl.block_type(tl.int8, [4, 8]).with_element_ty(tl.float64).nbytes == 256
    assert tl.float32.is_dtype("int8") and not tl.float32.is_dtype("int7")
    assert (
        tl.core.get_int_dtype(16, True) is tl.int16 and tl.core.get_int_dtype(1, False) is tl.int1
    )
    assert tl.core.is_builtin(tl.load) and not tl.core.is_builtin(len)
    assert [tl.core.is_negative_zero(x) for x in (-0.0, 0.0, -1.0, 0)] == [
        True,
        False,
        False,
        False,
    ]


# Gluon --------------------------------------------------------------------------------------------


@gluon.jit(do_not_specialize=["n"])
def of_gluon(x, n, B: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    at = gl.arange(0, B, layout=layout)
    gl.store(x + at, 1.0, mask=at < n)


@triton.jit
def caller(x):
    of_gluon(x, 16, 16)


def test_kernels_of_gluon_are_refused_by_name() -> None:
    x = np.zeros(16, np.float32)
    tuned = triton.autotune([triton.Config({"B": 16})], key=["n"])(of_gluon)
    uses = (
        lambda: of_gluon[(1,)](x, 16, B=16), lambda: of_gluon.run(x, 16, 16, grid=(1,)),
        lambda: of_gluon.warmup(x, 16, 16, grid=(1,)), lambda: tuned[(1,)](x, 16),
        lambda: caller[(1,)](x),
    )  # fmt: skip
    for use in uses:
        with pytest.raises(FuserError, match="of_gluon is a Gluon kernel"):
            use()
    assert of_gluon.is_gluon() and not caller.is_gluon() and not x.any()


def test_a_module_has_one_identity() -> None:
    for name in MODULES:
        module, parts = module_of(name), name.split(".")
        assert sys.modules[f"fuser.{name}"] is module
        above = sys.modules["fuser." + ".".join(parts[:-1])] if len(parts) > 1 else None
        own = getattr(above, parts[-1], module)
        if isinstance(own, ModuleType):  # `triton.runtime.driver` is an object, `scope` a class
            assert own is module, name


def test_layouts_of_modules_are_made_and_not_used() -> None:
    made = gl.BlockedLayout([1], [32], [4], [0])
    assert isinstance(made, gl.BlockedLayout) and "[32]" in repr(made)
    with pytest.raises(UnsupportedError, match=r"NVMMASharedLayout\.get_default_for"):
        gl.NVMMASharedLayout.get_default_for([16, 16], gl.float16)


def test_who_asks_for_gluon_before_using_it_is_told_that_it_is_not_there() -> None:
    answers = Answers({"triton": "fuser.triton"})
    util = answers.scoped_import("importlib.util", fromlist=["find_spec"])
    assert util.find_spec("triton.experimental.gluon") is None
    assert util.find_spec("triton.profiler.hooks") is None
    assert util.find_spec("triton.language") is not None
    found = answers.scoped_import("triton.experimental.gluon.language", fromlist=["constexpr"])
    assert found.constexpr is tl.constexpr  # type: ignore[attr-defined]


def test_private_names_that_packages_use() -> None:
    @triton.jit
    def kernel(out, N: tl.constexpr):
        steps: tl.constexpr = tl.standard._log2(N)
        x = tl.arange(0, N)
        for i in tl.static_range(steps):
            x += 1 << i
        tl.store(out + tl.arange(0, N), x)

    out = np.zeros(16, np.int32)
    kernel[(1,)](out, 16)
    assert out.tolist() == [n + 15 for n in range(16)]
    assert [tl.standard._log2(n) for n in (1, 2, 64)] == [0, 1, 6]
