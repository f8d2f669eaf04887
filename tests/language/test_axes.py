"""Axes that a tile has not are refused with the user's line, by every function that takes one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fuser.triton as triton
import fuser.triton.language as tl
from fuser.errors import LanguageError
from tests.language.launching import DEVICES, launch
from tests.language.test_errors import body, module_of


@triton.jit
def grown(x, out, AXIS: tl.constexpr, N: tl.constexpr):
    tile = tl.expand_dims(tl.load(x + tl.arange(0, N)), AXIS)
    tl.static_assert(tile.shape[AXIS] == 1)
    tl.store(out + tl.reshape(tl.arange(0, N), tile.shape), tile)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("axis", [-2, -1, 0, 1])
def test_new_axes(axis: int, device: str) -> None:
    x = np.arange(16, dtype=np.float32)
    out = np.zeros_like(x)
    launch(grown, device, x, out, AXIS=axis, N=16)
    np.testing.assert_array_equal(out, x)


@pytest.mark.parametrize("axis", [2, 3, -3, -4, 100])
def test_new_axes_outside_of_the_result(axis: int) -> None:
    x = np.zeros(16, np.float32)
    with pytest.raises(LanguageError, match=f"no axis {axis}") as caught:
        grown[(1,)](x, x.copy(), AXIS=axis, N=16)
    assert r"in [-2, 1]" in str(caught.value)
    assert "tl.expand_dims(tl.load" in caught.value.excerpt


CALLS = {
    "expand_dims of a tile of two axes": "fl.expand_dims(t, 3)",
    "a negative one": "fl.expand_dims(t, -4)",
    "one of several": "fl.expand_dims(t, (0, 4))",
    "of a number": "fl.expand_dims(n, 1)",
    "of a tile of pointers": "fl.expand_dims(x + fl.arange(0, 4), 2)",
    "unsqueeze": "t.unsqueeze(3)",
    "squeeze": "t.squeeze(2)",
    "cat": "fl.cat(t, t, dim=2)",
    "gather": "fl.gather(t, fl.zeros((4, 8), fl.int32), 2)",
    "permute": "fl.permute(t, (0, 2))",
    "trans": "fl.trans(t, 1, -3)",
    "sum": "fl.sum(t, 2)",
    "argmax": "fl.argmax(t, -3)",
    "cumsum": "fl.cumsum(t, 2)",
    "flip": "fl.flip(t, 2)",
    "sort": "fl.sort(t, 2)",
    "topk": "fl.topk(t, 2, -3)",
    "softmax": "fl.softmax(t, 2)",
}
"""Of a tile t of 4 x 8."""


@pytest.mark.parametrize("name", CALLS)
def test_axes_outside(name: str, tmp_path: Path) -> None:
    module = module_of(tmp_path, body(f"t = fl.zeros((4, 8), fl.float32)\na = {CALLS[name]}"))
    with pytest.raises(LanguageError, match="no axis") as caught:
        module.k[(1,)](np.zeros(16, np.float32), np.zeros(16, np.int32), 5, B=16)
    assert CALLS[name] in caught.value.excerpt


@pytest.mark.parametrize("axes", ["(0, 0)", "(1, -3)", "(-1, 3)"])
def test_one_new_axis_twice(axes: str, tmp_path: Path) -> None:
    lines = f"t = fl.zeros((4, 8), fl.float32)\na = fl.expand_dims(t, {axes})"
    module = module_of(tmp_path, body(lines))
    with pytest.raises(LanguageError, match="two are one axis"):
        module.k[(1,)](np.zeros(16, np.float32), np.zeros(16, np.int32), 5, B=16)
