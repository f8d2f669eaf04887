"""libdevice: functions against wider arithmetic, roundings against whole numbers of Python."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fuser
import fuser.language as fl
from fuser.base.target import SM_90A
from fuser.errors import LanguageError
from fuser.language import libdevice
from fuser.language.arguments import classify
from fuser.language.variants import code_for
from tests.language.launching import DEVICES, launch

RNG = np.random.default_rng(23)
N = 512
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, math.inf, -math.inf, math.nan, 2.0, 1e-30, -1e-30)


@fuser.kernel
def one(x, out, COUNT: fl.constexpr, FN: fl.constexpr):
    at = fl.arange(0, COUNT)
    fl.store(out + at, FN(fl.load(x + at)))


@fuser.kernel
def blocks(x, out, COUNT: fl.constexpr, FN: fl.constexpr):
    at = fl.program_id(0) * COUNT + fl.arange(0, COUNT)
    fl.store(out + at, FN(fl.load(x + at)))


@fuser.kernel
def two(x, y, out, COUNT: fl.constexpr, FN: fl.constexpr):
    at = fl.arange(0, COUNT)
    fl.store(out + at, FN(fl.load(x + at), fl.load(y + at)))


@fuser.kernel
def three(x, y, z, out, COUNT: fl.constexpr, FN: fl.constexpr):
    at = fl.arange(0, COUNT)
    fl.store(out + at, FN(fl.load(x + at), fl.load(y + at), fl.load(z + at)))


def applied(name: str, out: Any, *args: Any, device: str = "cpu") -> Any:
    found = np.zeros(args[0].size, out)
    kernel = (one, two, three)[len(args) - 1]
    launch(kernel, device, *args, found, COUNT=args[0].size, FN=getattr(libdevice, name))
    return found


def spread(scale: float, dtype: Any, special: bool = True) -> Any:
    x = RNG.standard_normal(N) * scale * 10.0 ** RNG.integers(-3, 1, N)
    if special:
        x[: len(SPECIAL)] = SPECIAL
    return x.astype(dtype)


def worst_ulp(have: Any, exact: list[Any]) -> float:
    """Greatest error in units in the last place; what is not finite must agree."""
    worst = 0.0
    kind = have.dtype.type
    with np.errstate(all="ignore"):
        for found, want in zip(have, exact, strict=True):
            near = kind(float(want))
            if not np.isfinite(near) or not np.isfinite(found):
                assert found == near or (np.isnan(found) and np.isnan(near)), (found, want)
                continue
            step = float(np.spacing(max(abs(near), np.finfo(kind).tiny)))
            worst = max(worst, float(abs(want - float(found)) / step))
    return worst


def reference(name: str) -> Callable[..., Any]:
    """The function in 40 digits."""
    mp = pytest.importorskip("mpmath")
    table: dict[str, Callable[..., Any]] = {
        "exp10": lambda x: mp.mpf(10) ** x, "log10": mp.log10, "expm1": mp.expm1,
        "log1p": mp.log1p, "sinpi": mp.sinpi, "cospi": mp.cospi, "erfc": mp.erfc,
        "erfcx": lambda x: mp.exp(x * x) * mp.erfc(x), "normcdf": mp.ncdf, "erfinv": mp.erfinv,
        "erfcinv": lambda y: mp.erfinv(1 - y), "normcdfinv": lambda p: mp.erfinv(2 * p - 1)
        * mp.sqrt(2), "lgamma": lambda x: mp.log(abs(mp.gamma(x))), "tgamma": mp.gamma,
        "cbrt": lambda x: mp.sign(x) * mp.cbrt(abs(x)),
        "rcbrt": lambda x: mp.sign(x) / mp.cbrt(abs(x)), "hypot": mp.hypot,
        "rhypot": lambda x, y: 1 / mp.hypot(x, y), "atan2": mp.atan2,
        "norm3d": lambda x, y, z: mp.sqrt(x * x + y * y + z * z),
        "rnorm3d": lambda x, y, z: 1 / mp.sqrt(x * x + y * y + z * z),
        "rsqrt_rn": lambda x: 1 / mp.sqrt(x),
    }  # fmt: skip
    return table[name]


ULP = {
    # name: (operands, scale, least, greatest, error of float32, of float64)
    "exp10": (1, 20, -300, 300, 0.51, 2), "log10": (1, 50, 1e-9, 1e9, 0.51, 2.5),
    "expm1": (1, 10, -700, 700, 0.51, 6), "log1p": (1, 50, -0.999, 1e9, 0.51, 4),
    "sinpi": (1, 50, -1e9, 1e9, 0.51, 4), "cospi": (1, 50, -1e9, 1e9, 0.51, 4),
    "erfc": (1, 5, -6, 25, 0.51, 6), "erfcx": (1, 20, -5, 1e9, 0.51, 6),
    "normcdf": (1, 5, -8, 30, 0.51, 6), "erfinv": (1, 0.9, -0.99999, 0.99999, 0.6, 8),
    "erfcinv": (1, 0.9, 1e-9, 1.9999, 0.6, 8), "normcdfinv": (1, 0.4, 1e-9, 0.9999, 0.6, 8),
    "lgamma": (1, 20, -20, 1e9, 0.6, None), "tgamma": (1, 8, -8, 30, 0.6, None),
    "cbrt": (1, 100, -1e9, 1e9, 0.51, 1.5), "rcbrt": (1, 100, -1e9, 1e9, 0.51, 2.5),
    "hypot": (2, 100, -1e9, 1e9, 0.51, 3), "rhypot": (2, 100, -1e9, 1e9, 0.51, 4),
    "atan2": (2, 100, -1e9, 1e9, 0.51, 5), "norm3d": (3, 100, -1e9, 1e9, 0.51, 3),
    "rnorm3d": (3, 100, -1e9, 1e9, 0.51, 4), "rsqrt_rn": (1, 100, 1e-9, 1e9, 0.51, 2),
}  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ULP)
def test_accuracy(name: str, dtype: Any, device: str) -> None:
    mp = pytest.importorskip("mpmath")
    count, scale, low, high, narrow, wide = ULP[name]
    bound = narrow if dtype == np.float32 else wide
    if bound is None:
        pytest.skip("float32 only, or as exact as its argument lets it be")
    args = [spread(scale, dtype, special=False) for _ in range(count)]
    args = [np.clip(x, dtype(low), dtype(high)) for x in args]
    if name in ("lgamma", "tgamma"):
        args = [np.where(x == np.round(x), x + dtype(0.25), x) for x in args]
    have = applied(name, dtype, *args, device=device)
    function = reference(name)
    with mp.workdps(50):
        exact = [function(*map(mp.mpf, map(float, row))) for row in zip(*args, strict=True)]
        assert worst_ulp(have, exact) <= bound


PAIRS: dict[str, tuple[Callable[..., Any], tuple[float, ...]]] = {
    # the function of float64, and where its formula changes
    "log1p": (np.log1p, (-1, -(1 - 0.5**0.5), 2**0.5 - 1, 2.0**-30, -(2.0**-30), 2.0**24, 1e30)),
    "log10": (np.log10, (2.0**-126, 0.5**0.5, 1, 2**0.5, 1000, 1e-45)),
    "expm1": (np.expm1, (-30, -math.log(2) / 2, math.log(2) / 2, 2.0**-30, 88.7228, 17.3, -17.3)),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_float32_in_pairs(name: str) -> None:
    """Bit patterns of all kinds, and all neighbours of the places where a formula changes."""
    exact, places = PAIRS[name]
    words = np.arange(0, 1 << 32, 8191, dtype=np.uint64).astype(np.uint32)
    near = np.float32(places).view(np.uint32)[:, None] + np.arange(-500, 500).astype(np.uint32)
    usual = (RNG.standard_normal(1 << 17) * 10.0 ** RNG.integers(-3, 2, 1 << 17)).astype("f")
    x = np.concatenate([words.view("f"), near.ravel().view("f"), usual, np.float32(SPECIAL)])
    x = np.concatenate([x, np.full(-x.size % 4096, np.float32(3))])
    have = np.zeros_like(x)
    blocks[(x.size // 4096,)](x, have, COUNT=4096, FN=getattr(libdevice, name))
    with np.errstate(all="ignore"):
        want = exact(x.astype(np.float64))
        rounded = want.astype(np.float32)
        step = np.spacing(np.maximum(np.abs(rounded), np.finfo("f").tiny)).astype(np.float64)
        error = np.abs(have - want) / step
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(have[~finite], rounded[~finite])
    np.testing.assert_array_equal(np.signbit(have[rounded == 0]), np.signbit(rounded[rounded == 0]))
    assert error[finite].max() <= 0.51


@pytest.mark.parametrize("device", DEVICES)
def test_log10_of_many_float64(device: str) -> None:
    """The logarithm may be off by 1 ulp, which is up to 1.74 ulp of the result."""
    x = np.concatenate([np.exp(RNG.uniform(-20, 20, 1 << 16)), RNG.uniform(0.5, 2, 1 << 16)])
    have = np.zeros_like(x)
    launch(blocks, device, x, have, grid=(x.size // 4096,), COUNT=4096, FN=libdevice.log10)
    want = np.log10(x.astype(np.longdouble))
    assert (np.abs(have - want) / np.spacing(np.abs(have))).max() <= 2.5


@pytest.mark.parametrize("name", PAIRS)
def test_float32_in_pairs_has_no_float64_on_a_gpu(name: str) -> None:
    x = np.zeros(4096, np.float32)
    bound, options = blocks.bind((x, x.copy()), {"COUNT": 4096, "FN": getattr(libdevice, name)})
    found = classify(bound, blocks.constexprs, blocks.plain, blocks.annotated)
    for fused in (True, False):
        asked = replace(options, fp_fusion=fused)
        ptx = code_for(blocks, found, (1,), asked, SM_90A).compiled.code.decode()
        assert "f64" not in ptx and "fma.rn.f32" in ptx


EDGES: dict[str, tuple[list[float], list[float]]] = {
    "exp10": ([-math.inf, math.inf, 0, 400], [0, math.inf, 1, math.inf]),
    "log10": ([0, -1, math.inf, 1], [-math.inf, math.nan, math.inf, 0]),
    "expm1": ([-math.inf, math.inf, 0, -800], [-1, math.inf, 0, -1]),
    "log1p": ([-1, -2, math.inf, 0], [-math.inf, math.nan, math.inf, 0]),
    "sinpi": ([1, 1e10, 0.5, 1.5], [0, 0, 1, -1]),
    "cospi": ([1, 1e10, 0.5, 1.5], [-1, 1, 0, 0]),
    "erfc": ([math.inf, -math.inf, 0, 40], [0, 2, 1, 0]),
    "erfcx": ([math.inf, -math.inf, 0, -40], [0, math.inf, 1, math.inf]),
    "erfinv": ([1, -1, 1.5, 0], [math.inf, -math.inf, math.nan, 0]),
    "erfcinv": ([0, 2, 2.5, 1], [math.inf, -math.inf, math.nan, 0]),
    "normcdfinv": ([0, 1, 2, 0.5], [-math.inf, math.inf, math.nan, 0]),
    "lgamma": ([0, -3, math.inf, 1], [math.inf, math.inf, math.inf, 0]),
    "tgamma": ([0, -3, math.inf, 5], [math.inf, math.nan, math.inf, 24]),
    "cbrt": ([0, -27, math.inf, -math.inf], [0, -3, math.inf, -math.inf]),
    "logb": ([0, 8, 0.75, math.inf], [-math.inf, 3, -1, math.inf]),
    "saturatef": ([-3, 0.25, 7, math.nan], [0, 0.25, 1, 0]),
}


@pytest.mark.parametrize("name", EDGES)
def test_edges(name: str) -> None:
    given, want = EDGES[name]
    have = applied(name, np.float32, np.array(given, np.float32))
    np.testing.assert_array_equal(have, np.array(want, np.float32))


INTEGERS: dict[str, Callable[[int, int], int]] = {
    "popc": lambda x, bits: x.bit_count(), "clz": lambda x, bits: bits - x.bit_length(),
    "ffs": lambda x, bits: (x & -x).bit_length(),
    "brev": lambda x, bits: int(format(x, f"0{bits}b")[::-1], 2),
}  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32])
@pytest.mark.parametrize("name", INTEGERS)
def test_bits_of_integers(name: str, dtype: Any, device: str) -> None:
    info = np.iinfo(dtype)
    x = RNG.integers(info.min, info.max, 64, dtype, endpoint=True)
    x >>= RNG.integers(0, info.bits, 64).astype(dtype)
    x[:4] = [0, 1, info.min, info.max]
    out = np.dtype(dtype) if name == "brev" else np.dtype(np.int32)
    have = applied(name, out, x, device=device)
    word = f"u{x.itemsize}"
    want = [INTEGERS[name](int(n), info.bits) for n in x.view(word)]
    assert [int(n) for n in have.view(f"u{have.itemsize}")] == want


def test_integer_arithmetic() -> None:
    x, y, z = (RNG.integers(-(2**31), 2**31 - 1, 64, np.int32) for _ in range(3))
    wide = [item.astype(np.int64) for item in (x, y, z)]

    def low(values: Any) -> Any:
        return values.astype(np.uint64).astype(np.uint32).view(np.int32)

    def check(name: str, want: Any, *args: Any) -> None:
        np.testing.assert_array_equal(applied(name, np.int32, *args), low(want), err_msg=name)

    check("mulhi", (wide[0] * wide[1]) >> 32, x, y)
    check("hadd", (wide[0] + wide[1]) >> 1, x, y)
    check("rhadd", (wide[0] + wide[1] + 1) >> 1, x, y)
    check("sad", np.abs(wide[0] - wide[1]) + wide[2], x, y, z)
    short = [((item << 40) >> 40) for item in wide[:2]]
    check("mul24", short[0] * short[1], x, y)
    both = np.stack([x, y], 1).view(np.uint8).astype(np.int64)
    nibbles = np.stack([(wide[2] >> 4 * n) & 7 for n in range(4)], 1)
    chosen = np.take_along_axis(both, nibbles, 1)
    check("byte_perm", (chosen << (8 * np.arange(4))).sum(1), x, y, z)
    a, b = (RNG.integers(-(2**63), 2**63 - 1, 64, np.int64) for _ in range(2))
    want = [(int(p) * int(q)) >> 64 for p, q in zip(a, b, strict=True)]
    assert applied("mulhi", np.int64, a, b).tolist() == want


def test_bits_of_floats() -> None:
    x, y = (spread(10, np.float32) for _ in range(2))
    y = RNG.permutation(y)
    with np.errstate(all="ignore"):
        rest = np.fmod(x, y)
    for name, out, want in (
        ("copysign", np.float32, np.copysign(x, y)), ("nextafter", np.float32, np.nextafter(x, y)),
        ("fdim", np.float32, np.where(np.isnan(x - y), x - y, np.maximum(x - y, 0))),
        ("fmod", np.float32, rest),
        ("remainder", np.float32, [_remainder(a, b) for a, b in zip(x, y, strict=True)]),
    ):  # fmt: skip
        with np.errstate(all="ignore"):
            have = applied(name, out, x, y)
        if name == "fdim":
            both = np.isinf(x) & (x == y)
            have, want = have[~both], np.asarray(want)[~both]
        np.testing.assert_array_equal(have, want, err_msg=name)
    for name, want in (("isnan", np.isnan(x)), ("isinf", np.isinf(x)), ("finitef", np.isfinite(x)),
                       ("signbit", np.signbit(x))):  # fmt: skip
        np.testing.assert_array_equal(applied(name, np.int32, x), want, err_msg=name)
    assert (applied("float_as_int", np.int32, x) == x.view(np.int32)).all()
    words = RNG.integers(0, 2**31, 64, np.int32)
    assert (applied("hiloint2double", np.float64, words, words).view(np.int64)
            == (words.astype(np.int64) << 32) + words).all()  # fmt: skip
    wide = spread(10, np.float64)
    assert (applied("double2hiint", np.int32, wide) == wide.view(np.int64) >> 32).all()
    low = (wide.view(np.uint64) & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.int32)
    assert (applied("double2loint", np.int32, wide) == low).all()


def _remainder(x: Any, y: Any) -> float:
    try:
        return math.remainder(float(x), float(y))
    except ValueError:
        return math.nan


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_whole_numbers(dtype: Any) -> None:
    x = spread(100, dtype)
    x[20:28] = [2.5, -2.5, 3.5, 0.49999997, -0.5, 1.5, 8388609.0, -0.2]
    away = np.copysign(np.floor(np.abs(x).astype(np.longdouble) + 0.5).astype(dtype), x)
    for name, want in (("trunc", np.trunc(x)), ("rint", np.rint(x)), ("nearbyint", np.rint(x)),
                       ("round", away), ("floor", np.floor(x)), ("ceil", np.ceil(x))):  # fmt: skip
        have = applied(name, dtype, x)
        np.testing.assert_array_equal(have, want, err_msg=name)
        np.testing.assert_array_equal(np.signbit(have), np.signbit(want), err_msg=name)
    finite = np.where(np.isfinite(x), x, 0)
    have = applied("llrint", np.int64, finite)
    np.testing.assert_array_equal(have, np.rint(finite).astype(np.int64))


def rounded(exact: Fraction, dtype: Any, mode: str) -> float:
    """A fraction as a float, in a direction."""
    near = dtype(float(exact)) if dtype == np.float64 else _nearest_f32(exact)
    if not np.isfinite(near):
        limit = np.finfo(dtype).max
        down = near > 0
        if mode == "rz" or mode == ("rd" if down else "ru"):
            return float(limit if down else -limit)
        return float(near)
    gap = exact - Fraction(float(near))
    if mode == "rz":
        mode = "rd" if exact > 0 else "ru"
    if gap > 0 and mode == "ru":
        return float(np.nextafter(near, dtype(np.inf)))
    if gap < 0 and mode == "rd":
        return float(np.nextafter(near, dtype(-np.inf)))
    return float(near)


def _nearest_f32(exact: Fraction) -> Any:
    with np.errstate(over="ignore"):
        near = np.float32(float(exact))
    if not np.isfinite(near):
        return near
    around = [near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))]
    gaps = [(abs(Fraction(float(n)) - exact), int(n.view(np.int32)) & 1, n)
            for n in around if np.isfinite(n)]  # fmt: skip
    return min(gaps, key=lambda item: item[:2])[2]


OPERATIONS: dict[str, tuple[int, Callable[..., Fraction]]] = {
    "add": (2, lambda a, b: a + b), "sub": (2, lambda a, b: a - b), "mul": (2, lambda a, b: a * b),
    "div": (2, lambda a, b: a / b), "rcp": (1, lambda a: 1 / a),
    "fma": (3, lambda a, b, c: a * b + c),
}  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["rn", "rz", "rd", "ru"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_directions(name: str, mode: str, device: str) -> None:
    count, exact = OPERATIONS[name]
    scales = 10.0 ** RNG.integers(-18, 18, (count, N))
    args = [a.astype(np.float32) for a in RNG.standard_normal((count, N)) * scales]
    args[0][:4] = [1e38, -1e38, 3e38, -3e38]
    if count > 1:
        args[1][:4] = [3e38, -3e38, 1e-30, 1e-30]
    have = applied(f"{name}_{mode}", np.float32, *args, device=device)
    rows = zip(*args, strict=True)
    want = [rounded(exact(*(Fraction(float(v)) for v in row)), np.float32, mode) for row in rows]
    np.testing.assert_array_equal(have, np.array(want, np.float32))


@pytest.mark.parametrize("mode", ["rn", "rz", "rd", "ru"])
def test_roots_and_narrowing_in_directions(mode: str) -> None:
    x = np.abs(RNG.standard_normal(N)).astype(np.float32)
    x[:3] = [4, 0, np.inf]
    have = applied(f"sqrt_{mode}", np.float32, x)
    root = np.sqrt(x.astype(np.longdouble))
    near = root.astype(np.float32)
    below, above = near.astype(np.longdouble) < root, near.astype(np.longdouble) > root
    want = np.where(above & (mode in ("rz", "rd")), np.nextafter(near, np.float32(-np.inf)), near)
    want = np.where(below & (mode == "ru"), np.nextafter(near, np.float32(np.inf)), want)
    np.testing.assert_array_equal(have, want)
    wide = RNG.standard_normal(N) * 10.0 ** RNG.integers(-44, 40, N)
    narrow = applied(f"double2float_{mode}", np.float32, wide)
    exact = [rounded(Fraction(float(v)), np.float32, mode) for v in wide]
    np.testing.assert_array_equal(narrow, np.array(exact, np.float32))


WHOLE = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", WHOLE)
@pytest.mark.parametrize("end", ["int", "uint", "ll", "ull"])
@pytest.mark.parametrize("start", ["float", "double"])
def test_floats_to_integers_saturate(start: str, end: str, mode: str, device: str) -> None:
    out = {"int": np.int32, "uint": np.uint32, "ll": np.int64, "ull": np.uint64}[end]
    kind = np.float32 if start == "float" else np.float64
    info = np.iinfo(out)
    x = np.concatenate([RNG.standard_normal(40) * 10.0 ** RNG.integers(0, 21, 40),
                        [0.5, -0.5, 1.5, 2.5, math.inf, -math.inf, math.nan, 2.0**31, -(2.0**31),
                         2.0**32, 2.0**63, -(2.0**63), 2.0**64, 0.0, 7.0, 1e30]])  # fmt: skip
    x = np.resize(x, 56).astype(kind)
    have = applied(f"{start}2{end}_{mode}", out, np.concatenate([x, x[:8]]), device=device)
    none = 0 if info.bits == 32 else (1 << 63 if info.min == 0 else info.min)

    def integer(value: float) -> int:
        if value != value:
            return none
        if abs(value) > 2.0**70:
            return int(info.max if value > 0 else info.min)
        return min(max(int(WHOLE[mode](value)), int(info.min)), int(info.max))

    assert have[:56].tolist() == [integer(float(value)) for value in x]


@pytest.mark.parametrize("mode", ["rn", "rz", "rd", "ru"])
@pytest.mark.parametrize("start", ["int", "uint", "ll", "ull"])
def test_integers_to_floats_in_directions(start: str, mode: str) -> None:
    kind = {"int": np.int32, "uint": np.uint32, "ll": np.int64, "ull": np.uint64}[start]
    info = np.iinfo(kind)
    x = RNG.integers(info.min, info.max, 64, kind, endpoint=True)
    x[:4] = [info.min, info.max, 0, 5]
    have = applied(f"{start}2float_{mode}", np.float32, x)
    want = [rounded(Fraction(int(v)), np.float32, mode) for v in x]
    np.testing.assert_array_equal(have, np.array(want, np.float32))
    if info.bits == 64:
        have = applied(f"{start}2double_{mode}", np.float64, x)
        want = [rounded(Fraction(int(v)), np.float64, mode) for v in x]
        np.testing.assert_array_equal(have, np.array(want))


@fuser.kernel
def scaled_by(x, n, out, COUNT: fl.constexpr):
    at = fl.arange(0, COUNT)
    fl.store(out + at, libdevice.ldexp(fl.load(x + at), fl.load(n + at)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ldexp_rounds_once(dtype: Any) -> None:
    x = spread(10, dtype)
    n = RNG.integers(-1100, 1100, N).astype(np.int32) // (8 if dtype == np.float32 else 1)
    out = np.zeros(N, dtype)
    launch(scaled_by, "cpu", x, n, out, COUNT=N)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(out, np.ldexp(x, n))
    have = applied("ilogb", np.int32, np.abs(x) + dtype(1e-20))
    finite = np.isfinite(x)
    want = np.frexp(np.abs(x) + dtype(1e-20))[1] - 1
    np.testing.assert_array_equal(have[finite], want[finite])


def test_the_page_lists_what_is_missing() -> None:
    page = Path(__file__).parents[2] / "docs" / "language-functions.md"
    row = next(line for line in page.read_text().splitlines() if "not implemented" in line)
    assert tuple(re.findall(r"`(\w+)`", row)) == libdevice.MISSING


def test_every_name_is_there_and_says_what_it_has_not() -> None:
    assert len(libdevice.IMPLEMENTED) + len(libdevice.MISSING) == 198
    x = np.zeros(4, np.float32)
    for name in libdevice.MISSING:
        with pytest.raises(LanguageError, match=f"libdevice.{name} has no implementation"):
            one[(1,)](x, x.copy(), COUNT=4, FN=getattr(libdevice, name))
    with pytest.raises(LanguageError, match="cast it to float32"):
        one[(1,)](np.zeros(4, np.int32), x, COUNT=4, FN=libdevice.expm1)
    with pytest.raises(LanguageError, match="made for fp32"):
        one[(1,)](np.zeros(4), np.zeros(4), COUNT=4, FN=libdevice.tgamma)


@pytest.mark.parametrize("name", libdevice.IMPLEMENTED)
def test_every_implementation_compiles(name: str) -> None:
    """With the first types and number of operands that it takes."""
    table = [np.float32, np.float64, np.int32, np.uint32, np.int64]
    for kind in table:
        for count in (1, 2, 3):
            args = [np.ones(4, kind) for _ in range(count)]
            try:
                applied(name, np.float64, *args)
            except LanguageError:
                continue
            return
    assert name in ("norm4d", "rnorm4d", "ldexp", "scalbn", "ull2float_rn"), name
