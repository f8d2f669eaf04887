"""Functions at the ends of their dtypes, and numbers beside 16-bit floats, through PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
mpmath = pytest.importorskip("mpmath")

from torch.nn import functional  # noqa: E402

import fuser  # noqa: E402
from tests.frontends.torch.compared import (  # noqa: E402
    assert_as_eager,
    assert_gradients_as_eager,
    compiled,
)
from tests.random_torch.check import Module  # noqa: E402

pytestmark = pytest.mark.export

INF, NAN = float("inf"), float("nan")
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
LEAST = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-133, torch.float32: 2.0**-149,
         torch.float64: 2.0**-1074}  # fmt: skip


def ends(dtype: Any) -> Any:
    """The largest numbers, those whose squares over- and underflow, the smallest normal one,
    subnormals, zeros, infinities, NaN; and some between them. Of both signs."""
    kind = torch.finfo(dtype)
    sizes = [
        kind.max, kind.max / 3, kind.max**0.5 * 1.5, 88.5, 20.0, 10.5, 3.0, 1.0, 0.5, kind.eps,
        kind.eps / 4, kind.tiny**0.5, kind.tiny, kind.tiny / 3, LEAST[dtype], 0.0, INF,
    ]  # fmt: skip
    signed = [value for size in sizes for value in (size, -size)]
    return torch.tensor([*signed, NAN], dtype=torch.float64).to(dtype)


def pairs(dtype: Any) -> tuple[Any, Any]:
    x = ends(dtype)
    shape = (len(x), len(x))
    return x[:, None].expand(shape).contiguous(), x[None].expand(shape).contiguous()


def assert_near(name: str, found: Any, wanted: Any) -> None:
    """Each element by its own size: to some units in the last place, or of the smallest number."""
    assert found.dtype is wanted.dtype
    units = 16 * torch.finfo(wanted.dtype).eps * wanted.double().abs() + 4 * LEAST[wanted.dtype]
    both_nan = found.isnan() & wanted.isnan()
    near = (found.double() - wanted.double()).abs() <= units
    zeros = (found == 0) & (wanted == 0) & (found.signbit() != wanted.signbit())
    right = ((found == wanted) | both_nan | near) & ~zeros
    assert right.all(), f"{name}: {found[~right].tolist()} for {wanted[~right].tolist()}"


OF_ONE: dict[str, Callable[[Any], Any]] = {
    **{name: getattr(torch, name) for name in (
        "exp", "expm1", "log1p", "sinh", "cosh", "tanh", "asinh", "sigmoid", "log", "sqrt", "rsqrt",
        "reciprocal", "erfc", "square", "atan",
    )},
    **{name: getattr(functional, name) for name in (
        "softplus", "elu", "selu", "celu", "logsigmoid", "silu", "leaky_relu",
    )},
    "softplus of a slope": lambda x: functional.softplus(x, 2.0, 30.0),
    "elu of a slope": lambda x: functional.elu(x, 1.7),
    "a remainder": lambda x: torch.remainder(x.clamp(-100, 100), 3.0),
    "tens": lambda x: torch.round(x.clamp(-1000, 1000), decimals=-1),
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_of_one_number(dtype: Any) -> None:
    x = ends(dtype)
    with torch.no_grad():
        found = compiled(lambda x: [function(x) for function in OF_ONE.values()], x)
    for name, one in zip(OF_ONE, found, strict=True):
        wanted = OF_ONE[name](x.double()) if dtype.itemsize == 2 else OF_ONE[name](x)
        if dtype.itemsize == 2:  # eager PyTorch flushes some subnormals of 16 bits
            near = wanted.abs() * 8 * torch.finfo(dtype).eps + 4 * torch.finfo(dtype).tiny
            overflow = one.isinf() & (wanted.abs() > torch.finfo(dtype).max * 0.99)
            same = (one == wanted) | (one.isnan() & wanted.isnan())
            assert (same | overflow | ((one.double() - wanted).abs() <= near)).all(), name
        else:
            assert_near(name, one, wanted)


OF_TWO: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(torch, name)
    for name in ("hypot", "atan2", "logaddexp", "copysign", "maximum", "minimum", "add", "mul")
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_of_two_numbers(dtype: Any) -> None:
    x, y = pairs(dtype)
    with torch.no_grad():
        found = compiled(lambda x, y: [function(x, y) for function in OF_TWO.values()], x, y)
    for name, one in zip(OF_TWO, found, strict=True):
        wanted = OF_TWO[name](x, y)
        if name in ("maximum", "minimum"):  # of two zeros either
            one, wanted = one + 0.0, wanted + 0.0
        assert_near(name, one, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gamma(dtype: Any) -> None:
    """At poles, between them, near the roots of its logarithm, far out."""
    places = [
        -3.0, -2.5, -1e-3, -0.0, 0.0, 1e-5, 0.4999, 0.5, 1.0, 1.4616, 2.0, 3.0, 9.99, 10.0, 50.0,
        1e5, INF, NAN, -0.3, -7.9, -100.5,
    ]  # fmt: skip
    x = torch.tensor(places, dtype=torch.float64).to(dtype)

    def gammas(x: Any) -> tuple[Any, ...]:
        return torch.lgamma(x), torch.digamma(x), torch.polygamma(1, x.clamp(min=0.25))

    with torch.no_grad():
        found, exact = compiled(gammas, x), gammas(x.double())
    for one, wanted in zip(found, exact, strict=True):
        torch.testing.assert_close(one, wanted.to(dtype), equal_nan=True)


def test_gammas_logarithm_has_the_digits_of_float64() -> None:
    """Beside 40 digits, over its range and near its roots; of negative numbers, where it is the
    difference of two logarithms, as exact as these are."""
    places = np.random.default_rng(0)
    near = [root + sign * 10.0**-k for root in (1, 2) for sign in (1, -1) for k in range(1, 12)]
    some = [*places.uniform(0, 3, 80), *places.uniform(3, 20, 40), *10 ** places.uniform(1, 9, 20)]
    x = np.array([*near, *some, *places.uniform(-6, 0, 60), 1.0, 2.0, 0.5, 1.5, 2.5, 10.0])
    with torch.no_grad():
        found = compiled(torch.lgamma, torch.tensor(x))
    with mpmath.workdps(40):
        for one, at in zip(found.tolist(), x.tolist(), strict=True):
            exact = mpmath.log(abs(mpmath.gamma(at)))
            parts = abs(mpmath.loggamma(1 - at)) + 4 if at < 0 else 0
            assert abs(one - exact) <= 6 * 2.0**-52 * (abs(exact) + parts), at


def near(found: Any, wanted: Any, units: Any) -> bool:
    """Whether found lies so many units in the last place from wanted, which is float64."""
    kind = torch.finfo(found.dtype)
    reach = (wanted.abs() * kind.eps + kind.tiny * kind.eps) * units
    return bool(((found.double() - wanted).abs() <= reach).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_gamma_near_its_roots_and_between(dtype: Any) -> None:
    steps = torch.logspace(-12, -1, 23, dtype=torch.float64)
    apart = torch.linspace(0.01, 30.0, 301, dtype=torch.float64)
    positive = torch.cat([1 - steps, 1 + steps, 2 - steps, 2 + steps, apart, steps]).to(dtype)
    with torch.no_grad():
        found, mirrored = compiled(lambda x: (torch.lgamma(x), torch.lgamma(-x)), positive)
    right, left = (torch.lgamma(x.double()) for x in (positive, -positive))
    assert near(found, right, 3.0)
    fine = left.isfinite()  # of two logarithms that may cancel
    assert near(mirrored[fine], left[fine], 3.0 * (1 + (1 + right[fine].abs()) / left[fine].abs()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tails_keep_their_digits(dtype: Any) -> None:
    """The normal distribution and its relatives: what is left is the rounding of the argument, by
    whose square they fall."""
    x = torch.linspace(-12.0, 12.0, 97).to(dtype)

    def tails(x: Any) -> tuple[Any, ...]:
        y = torch.special.ndtr(x)
        return y, torch.special.log_ndtr(x), torch.erfc(x / 2), torch.special.erfcx(x / 2)

    below = [math.erfc(-v * math.sqrt(0.5)) / 2 for v in x.tolist()]
    above = [math.erfc(v * math.sqrt(0.5)) / 2 for v in x.tolist()]
    rows = zip(x.tolist(), below, above, strict=True)
    logs = [math.log(a) if v < 1 else math.log1p(-b) for v, a, b in rows]
    falling = [math.erfc(v / 2) for v in x.tolist()]
    scaled = [math.exp(v * v / 4) * math.erfc(v / 2) for v in x.tolist()]
    with torch.no_grad():
        exported = fuser.compile(Module(tails), example_inputs=(x,), device="cpu")(x)
        for found in (compiled(tails, x), exported):
            for one, exact in zip(found, (below, logs, falling, scaled), strict=True):
                assert near(one, torch.tensor(exact, dtype=torch.float64), 6.0 + x.double() ** 2)
    assert_gradients_as_eager(torch.special.ndtr, x.requires_grad_())


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_greater_and_the_lesser_without_nan(dtype: Any) -> None:
    x, y = (side.masked_fill(side == 0, 0.0) for side in pairs(dtype))
    assert_as_eager(lambda x, y: (torch.fmax(x, y), torch.fmin(x, y)), x, y)


@pytest.mark.parametrize("dtype", DTYPES)
def test_signs(dtype: Any) -> None:
    x = torch.cat([ends(dtype), -ends(dtype)])
    assert_as_eager(lambda x: (torch.signbit(x), torch.copysign(torch.ones_like(x), x)), x)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool])
def test_signs_of_whole_numbers(dtype: Any) -> None:
    x = torch.tensor([0, 1, -3, 100]).to(dtype)
    assert_as_eager(lambda x: (torch.signbit(x), torch.copysign(x, -2.0)), x)


OF_ROWS: dict[str, Callable[[Any], Any]] = {
    "logsumexp": lambda x: torch.logsumexp(x, 1),
    "softmax": lambda x: torch.softmax(x, 1),
    "log_softmax": lambda x: torch.log_softmax(x, 1),
    **{f"norm {order}": lambda x, order=order: torch.linalg.vector_norm(x, order, 1)
       for order in (0, 1, 2, INF, -INF)},
    "mean": lambda x: x.mean(1),
    "amax": lambda x: x.amax(1),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions_of_rows(dtype: Any) -> None:
    """Of float32 norms over- and underflow in PyTorch, too: its squares are float32."""
    kind = torch.finfo(dtype)
    large, small = kind.max, kind.tiny
    rows = [
        [large, large, large, large], [large / 2, large / 2, 0.0, 1.0], [small] * 4, [INF] * 4,
        [-INF] * 4, [INF, -INF, 0.0, 1.0], [INF, 1.0, 1.0, 1.0], [-INF, 1.0, 1.0, 1.0],
        [NAN, 1.0, 1.0, 1.0], [0.0] * 4, [1e4, 1e4 + 8, 1e4, 1e4 + 8], [-INF, NAN, 0.0, 0.0],
    ]  # fmt: skip
    x = torch.tensor(rows, dtype=dtype)
    with torch.no_grad():
        found = compiled(lambda x: [function(x) for function in OF_ROWS.values()], x)
    for name, one in zip(OF_ROWS, found, strict=True):
        assert_near(name, one, OF_ROWS[name](x))


# numbers beside 16-bit floats -------------------------------------------------------------------


BESIDE: dict[str, Callable[..., Any]] = {
    "quotient": lambda x, y: x / 0.3,
    "product": lambda x, y: x * 0.1,
    "floor": lambda x, y: x // 0.3,
    "truncated": lambda x, y: torch.div(x, 0.3, rounding_mode="trunc"),
    "leaky_relu": lambda x, y: functional.leaky_relu(x, 0.1),
    "elu": lambda x, y: functional.elu(x, 0.3),
    "celu": lambda x, y: functional.celu(x, 0.3),
    "selu": lambda x, y: functional.selu(x),
    "softplus": lambda x, y: functional.softplus(x, 0.3),
    "threshold": lambda x, y: functional.threshold(x, 0.3, 0.7),
    "addcmul": lambda x, y: torch.addcmul(x, y, y, value=0.3),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "lerp from afar": lambda x, y: torch.lerp(x, y, 0.7),
    "clamp": lambda x, y: x.clamp(-0.3, 0.7),
    "sum": lambda x, y: x + 0.3,
    "difference": lambda x, y: 0.3 - x,
    "a share of a sum": lambda x, y: torch.add(x, y, alpha=0.3),
    "remainder": lambda x, y: x % 0.3,
    "comparison": lambda x, y: (x < 0.3).to(x.dtype),
    "a tensor without axes": lambda x, y: x / torch.tensor(0.3),
    "log2": lambda x, y: torch.log2(y),
    "log10": lambda x, y: torch.log10(y),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_beside_halves(dtype: Any) -> None:
    """As many digits as eager PyTorch has on the CPU, which rounds numbers that are added first:
    hardly an element is off by a unit, where half of all are if a factor is rounded."""
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(2000, generator=generator) * 4 - 2).to(dtype)
    y = (torch.rand(2000, generator=generator) + 0.5).to(dtype)
    with torch.no_grad():
        found = compiled(lambda x, y: [function(x, y) for function in BESIDE.values()], x, y)
    for (name, function), one in zip(BESIDE.items(), found, strict=True):
        wanted = function(x, y)
        different = int((one != wanted).sum())
        assert different <= 80, f"{name}: {different} of 2000"


def test_scales_of_attention_keep_their_digits() -> None:
    """A scale that is rounded first moves all scores of a row to one side."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 64, 80, generator=generator).half() * 3 for _ in range(3))

    def attention(q: Any, k: Any, v: Any) -> Any:
        return functional.scaled_dot_product_attention(q, k, v, scale=0.1)

    with torch.no_grad():
        exact = attention(*(x.double() for x in (q, k, v)))
        ours = (compiled(attention, q, k, v).double() - exact).square().mean()
        theirs = (attention(q, k, v).double() - exact).square().mean()
    assert ours <= theirs


def test_sums_of_matmuls_keep_their_factors() -> None:
    generator = torch.Generator().manual_seed(0)
    bias, x, y = (torch.randn(32, 32, generator=generator).bfloat16() for _ in range(3))

    def total(bias: Any, x: Any, y: Any) -> Any:
        return torch.addmm(bias, x, y, beta=0.3, alpha=0.1)

    exact = total(*(value.double() for value in (bias, x, y)))
    found = compiled(total, bias, x, y).double()
    assert ((found - exact).abs() <= exact.abs() * 2**-8 + 1e-2 * 2**-8).all()


@pytest.mark.parametrize("sizes", [(3, 4, 0, 5), (3, 3, 0, 0), (0, 3, 4, 4), (3, 3, 0, 1)])
def test_attention_of_nothing(sizes: tuple[int, ...]) -> None:
    """Without features scores are 0, with no rows there is no result; forward and backward."""
    queries, keys, features, wide = sizes
    q, k, v = (
        torch.linspace(-1, 1, n * m).reshape(n, m).expand(2, 3, n, m).requires_grad_()
        for n, m in ((queries, features), (keys, features), (keys, wide))
    )

    def attention(*x: Any) -> Any:
        one = tuple(y[0] for y in x)
        return [
            functional.scaled_dot_product_attention(*given, is_causal=causal)
            for given in (x, one)
            for causal in (False, True)
        ]

    assert_as_eager(attention, q.detach(), k.detach(), v.detach())
    assert_gradients_as_eager(attention, q, k, v)
