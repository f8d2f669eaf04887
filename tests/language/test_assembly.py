"""inline_asm_elementwise: PTX in the code for GPUs, an error with the line elsewhere."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import fuser.triton as triton
import fuser.triton.language as tl
from fuser.base.target import SM_80, SM_90A
from fuser.dtypes import f32
from fuser.errors import LanguageError, UnsupportedError
from fuser.language.compile import Options
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import axis
from fuser.tilegen.interpret import run
from fuser.tilegen.verify import verify
from tests.language.launching import DEVICES, launch
from tests.triton.test_options import ptx_of


@triton.jit
def tangents(x, out, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    y = tl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [tl.load(x + at)], tl.float32, is_pure=True, pack=1
    )
    tl.store(out + at, y * 2)


@triton.jit
def sums(x, y, out, less, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    a, b = tl.load(x + at), tl.load(y + at)
    c, d = tl.inline_asm_elementwise(
        """
        {
            // the sum and the "difference" of two numbers
            add.s32 $0, $2, $3;
            sub.s32 $1, $2, $3;
        }
        """,
        "=&r,=r,r,r", [a, b], dtype=(tl.int32, tl.int32), is_pure=True, pack=1,
    )  # fmt: skip
    tl.store(out + at, c)
    tl.store(less + at, d)


@triton.jit
def halves(x, out, B: tl.constexpr, PACK: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    if PACK == 1:
        y = tl.inline_asm_elementwise("neg.f16 $0, $1;", "=h,h", [tl.load(x + at)], tl.float16,
                                      True, 1)  # fmt: skip
    elif PACK == 2:
        y = tl.inline_asm_elementwise("neg.f16x2 $0, $1;", "=r,r", [tl.load(x + at)], tl.float16,
                                      True, 2)  # fmt: skip
    else:
        y = tl.inline_asm_elementwise(
            "neg.f16x2 $0, $2; neg.f16x2 $1, $3;", "=r,=r,r,r", [tl.load(x + at)], tl.float16,
            True, 4,
        )  # fmt: skip
    tl.store(out + at, y)


@triton.jit
def bytes_(x, out, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    y = tl.inline_asm_elementwise(
        "xor.b32 $0, $1, 0x80808080;", "=r,r", [tl.load(x + at)], tl.uint8, True, 4
    )
    tl.store(out + at, y)


def words(text: str, pattern: str) -> int:
    return len(re.findall(pattern, text))


@pytest.mark.parametrize("target", [SM_80, SM_90A], ids=lambda target: target.arch)
@pytest.mark.parametrize("n", [32, 256, 1024])
def test_one_instruction_an_element(n: int, target: Any) -> None:
    x = np.zeros(4096, np.float32)
    text = ptx_of(tangents, target, (4,), x, x.copy(), B=n)
    assert words(text, r"tanh\.approx\.f32 %r\d+, %r\d+;") == max(1, n // 128)


@pytest.mark.parametrize("n", [128, 512])
def test_several_results_are_those_of_one_call(n: int) -> None:
    arrays = [np.zeros(4096, np.int32) for _ in range(4)]
    text = ptx_of(sums, SM_80, (4,), *arrays, B=n)
    assert words(text, r'the "difference" of two numbers') == n // 128
    assert words(text, r"sub\.s32 %r\d+, %r\d+, %r\d+;") == n // 128


@pytest.mark.parametrize(("pack", "each"), [(1, 1), (2, 2), (4, 2)])
def test_halves_share_words(pack: int, each: int) -> None:
    x = np.zeros(8192, np.float16)
    text = ptx_of(halves, SM_80, (4,), x, x.copy(), B=1024, PACK=pack)
    assert words(text, r"neg\.f16x2 %r\d+, %r\d+;" if pack > 1 else r"neg\.f16 ") == 8 // each


def test_bytes_share_words() -> None:
    x = np.zeros(8192, np.uint8)
    text = ptx_of(bytes_, SM_80, (4,), x, x.copy(), B=2048)
    assert words(text, r"xor\.b32 %r\d+, %r\d+, 0x80808080;") == 4


def test_packs_of_fewer_elements_than_a_thread_has() -> None:
    x = np.zeros(64, np.uint8)
    text = ptx_of(bytes_, SM_80, (1,), x, x.copy(), B=32)
    assert words(text, r"xor\.b32 %r\d+, %r\d+, 0x80808080;") == 1


@pytest.mark.cuda
@pytest.mark.skipif("cuda" not in DEVICES, reason="no GPU")
def test_results(rng: np.random.Generator) -> None:
    x = rng.standard_normal(1000 // 8 * 8).astype(np.float32)[:512]
    out = np.zeros_like(x)
    launch(tangents, "cuda", x, out, grid=(4,), B=128)
    np.testing.assert_allclose(out, 2 * np.tanh(x), rtol=2**-9)
    a, b = rng.integers(-1000, 1000, (2, 512)).astype(np.int32)
    c, d = np.zeros_like(a), np.zeros_like(a)
    launch(sums, "cuda", a, b, c, d, grid=(4,), B=128)
    np.testing.assert_array_equal(c, a + b)
    np.testing.assert_array_equal(d, a - b)
    for pack in (1, 2, 4):
        h, out16 = x.astype(np.float16), np.zeros(512, np.float16)
        launch(halves, "cuda", h, out16, grid=(2,), B=256, PACK=pack)
        np.testing.assert_array_equal(out16, -h)
    u, out8 = rng.integers(0, 256, 512).astype(np.uint8), np.zeros(512, np.uint8)
    for n in (32, 512):
        launch(bytes_, "cuda", u, out8, grid=(512 // n,), B=n)
        np.testing.assert_array_equal(out8, u ^ 0x80)


@pytest.mark.parametrize("given", [{}, {"check": True}])
def test_a_cpu_refuses_it_with_the_line(given: dict[str, Any]) -> None:
    x = np.ones(16, np.float32)
    with pytest.raises(LanguageError, match=r"PTX, which a CPU does not run \(at .*assembly.py:"):
        tangents[(1,)](x, x.copy(), B=16, **given)


@triton.jit
def wrong(x, CASE: tl.constexpr):
    at = tl.arange(0, 16)
    v = tl.load(x + at)
    if CASE == "nothing":
        v = tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], tl.int32, True, 1)
    elif CASE == "effects":
        v = tl.inline_asm_elementwise("membar.gl;", "=f,f", [v], tl.float32, False, 1)
    elif CASE == "bools":
        v = tl.inline_asm_elementwise("x", "=r,r", [v > 0], tl.int32, True, 1)
    elif CASE == "packs":
        v = tl.inline_asm_elementwise("x", "=r,r", [v.to(tl.int8)], tl.int8, True, 6)
    elif CASE == "shapes":
        v = tl.inline_asm_elementwise("x", "=f,f,f", [v, tl.load(x + tl.arange(0, 8))], tl.float32,
                                      True, 1)  # fmt: skip
    tl.store(x + at, v)


@pytest.mark.parametrize(
    ("case", "message"),
    [("nothing", "without operands"), ("effects", "is_pure=False"), ("bools", "elements of int1"),
     ("packs", "packs of 6 elements of int8"), ("shapes", "16")],
)  # fmt: skip
def test_what_is_none(case: str, message: str) -> None:
    with pytest.raises(LanguageError, match=message):
        ptx_of(wrong, SM_80, (1,), np.zeros(16, np.float32), CASE=case)


def test_targets_say_what_they_are() -> None:
    assert Options().on(SM_80).extra["gpu"] and not Options().extra


def test_the_interpreter_has_no_meaning_for_it() -> None:
    b = Builder("k")
    source, out = b.buffer("x", f32, 16), b.buffer("out", f32, 16, role="output")
    here = (axis(0, 16),)
    given = b.load(b.view(source, (16,)), here, (16,))
    (made,) = b.assembly("x", "=f,f", [given], [f32], 1)
    b.store(b.view(out, (16,)), here, made)
    kernel = b.build()
    verify(kernel)
    with pytest.raises(UnsupportedError, match="assembly"):
        run(kernel, {name: np.zeros(16, np.float32) for name in ("x", "out")})
