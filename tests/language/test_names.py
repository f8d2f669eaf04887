"""Every name of triton.language 3.9 is there, and every function that tensors have as a method."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import fuser
import fuser.language as fl
import fuser.triton.language as tl
from fuser.errors import LanguageError
from fuser.language.builtins import METHODS, TABLE

_DATA = json.loads((Path(__file__).parents[1] / "triton" / "names_3_9.json").read_text())
NAMES = sorted({*_DATA["modules"]["triton.language"], "advance"} - {"target_info"})
"""`advance` was there up to 3.8; `target_info` is Triton's alone."""
MEMBERS = sorted({*_DATA["classes"]["triton.language.tensor"]["has"].split()} - {"T", "item"})


@pytest.mark.parametrize("module", [fl, tl])
def test_every_name_of_triton_is_there(module: object) -> None:
    missing = [name for name in NAMES if not hasattr(module, name)]
    assert not missing
    assert set(NAMES) <= set(module.__all__)  # type: ignore[attr-defined]


@pytest.mark.parametrize("module", [fl, tl])
def test_a_function_is_no_module_of_its_name(module: object) -> None:
    assert [name for name in TABLE if getattr(module, name) is not TABLE[name]] == []


def test_triton_alone_has_target_info() -> None:
    assert tl.target_info.is_hip() is False


def test_methods() -> None:
    assert not set(MEMBERS) - set(METHODS)


def test_functions_are_for_kernels() -> None:
    for function in TABLE.values():
        if function.host is not None:  # a number is a number outside of kernels, too
            continue
        with pytest.raises(LanguageError, match="outside of a kernel"):
            function()


@fuser.kernel
def methods(x, out, N: fl.constexpr):
    at = fl.arange(0, N)
    data = fl.load(x + at)
    size = data.abs().sqrt().to(fl.float32)
    both = (data > 0).logical_and(size < 1)
    (out + at).store(fl.math.exp2(size), both)
    (out + N).atomic_add(data.sum())
    fl.store(out + N + 1, data.max(0).item() + fl.extra.num_warps())


def test_methods_are_functions() -> None:
    x = np.linspace(-2, 2, 32).astype(np.float32)
    out = np.full(34, 9, np.float32)
    out[32] = 0
    methods[(1,)](x, out, N=32)
    inside = (x > 0) & (np.sqrt(np.abs(x)) < 1)
    np.testing.assert_allclose(out[:32], np.where(inside, np.exp2(np.sqrt(np.abs(x))), 9), 1e-6)
    assert abs(out[32]) < 1e-5 and out[33] == 2 + 4


@fuser.kernel
def assembled(x):
    fl.store(
        x, fl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [fl.load(x)], fl.int32, True, 1)
    )


def test_assembly_is_refused() -> None:
    with pytest.raises(LanguageError, match="inline assembly"):
        assembled[(1,)](np.zeros(1, np.int32))
