"""Rows: how they are spread over the threads of a GPU, what their code there has in it, and on
either device that the results are right for lengths that are no power of two."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pytest

import fuser
import fuser.language as fl
from fuser.backend.nvptx import compile_kernel
from fuser.base.target import SM_80, SM_90A, Target
from fuser.dtypes import BY_NAME, f32
from fuser.graph.sizes import Sizes
from fuser.language.arguments import classify
from fuser.language.compile import finish, trace
from fuser.tilegen.ir import Kernel
from tests.language.launching import DEVICES, launch
from tests.numerics import assert_close

ROWS = 3


@fuser.kernel
def norm(x, weight, bias, out, stride, columns, BLOCK: fl.constexpr):  # type: ignore[no-untyped-def]
    row = fl.program_id(0)
    at = fl.arange(0, BLOCK)
    inside = at < columns
    values = fl.load(x + row * stride + at, mask=inside, other=0.0).to(fl.float32)
    mean = fl.sum(values, axis=0) / columns
    centred = fl.where(inside, values - mean, 0.0)
    inverse = 1 / fl.sqrt(fl.sum(centred * centred, axis=0) / columns + 1e-5)
    w = fl.load(weight + at, mask=inside, other=0.0).to(fl.float32)
    b = fl.load(bias + at, mask=inside, other=0.0).to(fl.float32)
    result = centred * inverse * w + b
    fl.store(out + row * stride + at, result.to(out.dtype.element_ty), mask=inside)


@fuser.kernel
def softmax(x, out, stride, rows, columns, BLOCK: fl.constexpr):  # type: ignore[no-untyped-def]
    at = fl.arange(0, BLOCK)
    inside = at < columns
    for row in range(fl.program_id(0), rows, fl.num_programs(0)):
        values = fl.load(x + row * stride + at, mask=inside, other=-float("inf"))
        e = fl.exp(values - fl.max(values, axis=0))
        fl.store(out + row * stride + at, e / fl.sum(e, axis=0), mask=inside)


def traced(
    kernel: Any, *args: Any, grid: int, warps: int, target: Target, ptx: bool = False
) -> tuple[Kernel, str]:
    """The tile program of a launch with its schedule, and its PTX."""
    bound, options = kernel.bind(args, {"num_warps": warps})
    found = classify(bound, kernel.constexprs, kernel.plain, kernel.annotated)
    with Sizes({}) as sizes:
        asked = options.on(target)
        program = trace(kernel, found.classes, found.leaves, (grid,), asked, sizes)
        finish(program, sizes, target)
        text = compile_kernel(program.kernel, target).code.decode() if ptx else ""
    return program.kernel, text


def normed(
    columns: int, warps: int, dtype: str = "float16", target: Target = SM_90A, ptx: bool = False
) -> tuple[Kernel, str]:
    x, line = np.zeros((ROWS, columns), dtype), np.zeros(columns, dtype)
    block = 1 << (columns - 1).bit_length()
    return traced(
        norm, x, line, line.copy(), x.copy(), columns, columns, block, grid=4096, warps=warps,
        target=target, ptx=ptx,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "dtype", "asked", "spread"),
    [
        (1024, "float16", 2, (2, 1, 16)),
        (4096, "float16", 4, (4, 1, 8)),
        (8192, "float16", 8, (8, 1, 4)),
        (8192, "float16", 16, (8, 1, 4)),  # more would leave half of the registers unused
        (15872, "float16", 16, (16, 1, 2)),
        (15872, "float16", 4, (16, 1, 2)),  # a default; 128 elements a thread would not fit
        (16384, "float32", 16, (8, 1, 2)),  # two blocks rather than one
        (32768, "float16", 16, (8, 4, 4)),
        (65536, "float16", 16, (8, 8, 4)),
    ],
)
def test_rows_are_spread_by_registers(
    columns: int, dtype: str, asked: int, spread: tuple[int, int, int]
) -> None:
    """(warps, blocks that share a row, blocks of a multiprocessor)."""
    found = normed(columns, asked, dtype)[0].schedule
    assert (found.warps, found.cluster, found.blocks_per_sm) == spread


def test_no_clusters_before_hopper() -> None:
    assert normed(32768, 16, target=SM_80)[0].schedule.cluster == 1


@pytest.mark.parametrize(
    ("columns", "asked", "warps"), [(4096, 8, 8), (12672, 16, 16), (12672, 1, 16)]
)
def test_programs_that_walk_through_rows_keep_their_warps(
    columns: int, asked: int, warps: int
) -> None:
    x = np.zeros((ROWS, columns), np.float32)
    block = 1 << (columns - 1).bit_length()
    found, _ = traced(
        softmax, x, x.copy(), columns, 4096, columns, block, grid=528, warps=asked, target=SM_90A
    )
    assert found.schedule.warps == warps


@cache
def norm_ptx() -> str:
    return normed(8192 - 16, 8, ptx=True)[1]


def test_masked_halves_are_widened_where_they_are_used() -> None:
    """Not in the branch of their load: a thread would hold floats from there on."""
    branches = re.findall(r"bra[^\n]*\n\tld\.global[^$]*", norm_ptx())
    assert len(branches) == 3 * 4  # three tiles of 32 elements a thread, in vectors of 8
    assert not any("cvt.f32.f16" in branch.split("\n$L")[0] for branch in branches)


def test_a_vector_is_compared_once() -> None:
    assert len(re.findall(r"setp\.\w+\.[us]32", norm_ptx())) <= 4 + 4


def test_what_rows_are_multiplied_by_comes_in_strips() -> None:
    text = norm_ptx()
    order = re.findall(r"(ld|st)\.global(?:\.nc)?\.v4", text)
    assert "".join(name[0] for name in order) == "llll" + "llllsllsllss"


def test_a_sum_of_exponentials_is_divided_by_once() -> None:
    x = np.zeros((ROWS, 1024), np.float32)
    _, text = traced(
        softmax, x, x.copy(), 1024, 4096, 1024, 1024, grid=528, warps=4, target=SM_90A, ptx=True
    )
    assert text.count("rcp.approx") == 1
    assert "div.full" not in text


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("columns", "dtype"),
    [(5, "float16"), (781, "float32"), (5000, "float16"), (8176, "float16"), (33000, "float16")],
)
def test_norms_of_any_length(device: str, columns: int, dtype: str) -> None:
    if device == "cpu" and columns > 5000:
        pytest.skip("for the kernels of a GPU")
    rng = np.random.default_rng(columns)
    x = (3 + rng.standard_normal((ROWS, columns))).astype(dtype)
    weight, bias = (rng.standard_normal(columns).astype(dtype) for _ in range(2))
    out = np.full_like(x, np.nan)
    block = 1 << (columns - 1).bit_length()
    launch(norm, device, x, weight, bias, out, columns, columns, block, grid=(ROWS,))
    wide = x.astype(np.float64)
    centred = wide - wide.mean(1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * weight + bias
    assert_close(out, expected, BY_NAME[{2: "f16", 4: "f32"}[x.itemsize]], columns)


@pytest.mark.parametrize("device", DEVICES)
def test_softmax_of_odd_rows(device: str) -> None:
    """NaN and infinity stay in their rows."""
    x = np.random.default_rng(0).standard_normal((6, 1003)).astype(np.float32)
    x[1, 7], x[2, 9], x[3, :] = np.nan, np.inf, -np.inf
    x[4, :500] = -1e30
    out = np.zeros_like(x)
    launch(softmax, device, x, out, 1003, 6, 1003, 1024, grid=(2,))
    assert np.isnan(out[1:4]).all()
    wide = x[[0, 4, 5]].astype(np.float64)
    e = np.exp(wide - wide.max(1, keepdims=True))
    assert_close(out[[0, 4, 5]], e / e.sum(1, keepdims=True), f32, 1003)
