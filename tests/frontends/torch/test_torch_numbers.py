"""Numbers that follow from open sizes, and edges of operators, through torch.compile: nothing is
left to PyTorch."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fuser.dtypes import f32  # noqa: E402
from fuser.frontends.torch.importer import Input, import_fx  # noqa: E402
from fuser.graph.evaluate import evaluate  # noqa: E402
from fuser.graph.ir import TensorType  # noqa: E402
from tests.frontends.torch.compared import assert_gradients_as_eager  # noqa: E402

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore:.*treespec.*")]
F = torch.nn.functional


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _check(f: Callable[..., Any], calls: list[list[Any]], dynamic: bool | None = None) -> None:
    """Results, and arguments after the call."""
    compiled = torch.compile(f, backend="fuser", dynamic=dynamic)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for given in calls:
            others = [x.clone() for x in given]
            torch.testing.assert_close(compiled(*given), f(*others))
            torch.testing.assert_close(given, others)


NUMBERS: dict[str, Callable[[Any], Any]] = {
    "** -0.5": lambda x: x * x.shape[-1] ** -0.5,
    "** 2": lambda x: x * x.shape[-1] ** 2,
    "max": lambda x: x * max(x.shape[-1], x.shape[0], 3),
    "min": lambda x: x[..., : min(x.shape[-1], x.shape[0])],
    "round": lambda x: x * round(x.shape[-1] * 1.5),
    "round, digits": lambda x: x * round(x.shape[-1] / 3, 2),
    "ceil": lambda x: x[..., : math.ceil(x.shape[-1] / 2)] * 2,
    "int": lambda x: x[..., : int(x.shape[-1] * 0.7)] * 2,
    "float": lambda x: x * float(x.shape[-1]),
    "log2": lambda x: x * math.log2(x.shape[-1]),
    "full": lambda x: x + torch.full((1,), x.shape[-1] * 0.5),
    "clamp": lambda x: x.clamp(max=1 / x.shape[-1]),
    "of halves": lambda x: x.half() * (x.shape[-1] * 0.3),
    "returned": lambda x: (x + 1, x.shape[-1] * 0.5),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "strides": lambda x: (y := x * 2, y.t() + y.stride(0)),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_open_sizes(name: str) -> None:
    shapes = [(4, 6), (9, 5)] if name != "strides" else [(4, 4), (5, 5)]
    _check(NUMBERS[name], [[torch.randn(shape)] for shape in shapes], dynamic=True)


@pytest.mark.parametrize("offset", [-3, -2, -1, 0, 2, 5])
@pytest.mark.parametrize("shape", [(1, 3), (2, 3), (3, 0), (2, 4, 3)])
def test_diagonals_of_any_offset(shape: tuple[int, ...], offset: int) -> None:
    _check(lambda x: x.diagonal(offset=offset) * 2, [[torch.randn(shape)]])


OF_DIAGONALS: dict[str, Callable[[Any], Any]] = {
    "times its sum": lambda d: d.sum(-1, keepdim=True) * d,
    "less its maximum": lambda d: d - d.amax(-1, keepdim=True),
    "softmax": lambda d: torch.softmax(d, -1),
    "its norm": lambda d: d / (d.norm() + 1),
}


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("name", OF_DIAGONALS)
def test_reductions_of_diagonals_of_open_sizes(name: str, rank: int) -> None:
    """The step between elements of a diagonal follows from the columns."""

    def f(x: Any) -> Any:
        return OF_DIAGONALS[name](x.diagonal(0, -2, -1))

    shapes = ((9, 16), (5, 7), (16, 9))
    _check(f, [[torch.randn((2,) * (rank - 2) + shape)] for shape in shapes], dynamic=True)


def _put(x: Any, index: Any, value: Any) -> Any:
    x[index] = value
    return x


PUTS: dict[str, Callable[[Any], Any]] = {
    "rows": lambda x: _put(x, torch.tensor([-2, 0, 0]), 0.0),
    "one row": lambda x: _put(x, torch.tensor([1]), 5.0),
    "a row of values": lambda x: _put(x, torch.tensor([2]), torch.ones(7)),
    "all rows": lambda x: _put(x, torch.tensor([1, 0, 2]), 1.0),
    "index_fill_": lambda x: x.index_fill_(0, torch.tensor([1]), 3.0),
    "index_copy_": lambda x: x.index_copy_(0, torch.tensor([2]), torch.ones(1, 7)),
    "places": lambda x: _put(x, (torch.tensor([0, 2]), torch.tensor([1, 3])), 4.0),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PUTS)
def test_rows_at_constant_indices_are_written_where_they_are(name: str, dynamic: bool) -> None:
    calls = [
        [torch.randn(rows, 7)] for rows in ((3, 5) if dynamic and name != "all rows" else (3,))
    ]
    _check(PUTS[name], calls, dynamic)


@pytest.mark.parametrize(
    ("x", "weight", "padding"),
    [
        ((2, 0, 6), (3, 0, 1), 0), ((0, 0, 3), (1, 0, 1), 3), ((0, 2, 6), (3, 2, 1), 0),
        ((2, 0, 5, 4), (3, 0, 2, 2), 1), ((2, 0, 6), (3, 0, 3), 2),
    ],
)  # fmt: skip
def test_convolutions_of_no_channels(x: Any, weight: Any, padding: int) -> None:
    convolve = F.conv1d if len(x) == 3 else F.conv2d
    given = [torch.randn(x), torch.randn(weight)]
    _check(lambda x, w: convolve(x, w, None, 1, padding), [given])


@pytest.mark.parametrize(
    ("x", "weight", "padding", "stride"),
    [
        ((7, 0, 4), (2, 0, 2), 0, 1), ((4, 0, 2, 5), (2, 0, 3, 3), 1, 1),
        ((5, 0, 0), (2, 0, 0), 0, 1),
        ((0, 2, 6), (3, 2, 1), 0, 1), ((2, 0, 6), (3, 0, 3), 2, 1), ((0, 3, 0), (2, 3, 2), 1, 1),
        ((2, 0, 5, 4), (3, 0, 2, 2), 0, 2),
        ((2, 3, 2), (2, 3, 4), 1, 2),
    ],
)  # fmt: skip
@pytest.mark.parametrize("bias", [False, True])
def test_gradients_of_convolutions_of_nothing(
    x: Any, weight: Any, padding: int, stride: int, bias: bool
) -> None:
    convolve = F.conv1d if len(x) == 3 else F.conv2d
    given = [torch.randn(x), torch.randn(weight), torch.randn(weight[0])]
    assert_gradients_as_eager(
        lambda x, w, c: convolve(x, w, c if bias else None, stride, padding) + c.sum(),
        *(one.requires_grad_() for one in given),
    )


@pytest.mark.parametrize("number", [3, -1.5, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool])
def test_a_number_is_copied_into_an_argument(number: float, dtype: torch.dtype) -> None:
    def put(x: torch.Tensor) -> torch.Tensor:
        return x.view(-1)[1:].copy_(number)

    have, want = (torch.zeros(2, 5, dtype=dtype) for _ in range(2))
    with torch.no_grad():
        made = torch.compile(put, backend="fuser")(have)
        assert torch.equal(made, put(want)) and torch.equal(have, want)


@pytest.mark.parametrize("number", [-1, 255, 300, -129])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
def test_a_number_beyond_a_dtype_wraps_around(number: int, dtype: torch.dtype) -> None:
    """As the bits of a copy do."""
    _check(lambda x: x.to(dtype).copy_(number) * 1, [[torch.randn(3, 4)]])


@pytest.mark.parametrize("exponent", [True, False, 0, 2, 3, 5])
def test_powers_of_booleans(exponent: int) -> None:
    given = torch.tensor([True, False, True])
    _check(lambda x: torch.pow(x, exponent) + 0.5, [[given]])
    _check(lambda x: (torch.pow(x, torch.tensor(exponent)) if exponent > 1 else x) + 0.5, [[given]])


COMPARISONS = (torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge)


@pytest.mark.parametrize("number", [-1, 255, 300, -129, 70000, 7])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.bool])
def test_a_number_beside_integers_wraps_around(number: int, dtype: torch.dtype) -> None:
    def f(x: torch.Tensor) -> list[torch.Tensor]:
        results = [compare(x, number) for compare in COMPARISONS] + [number >= x, number < x]
        if dtype is torch.bool:
            return results
        rest = [
            torch.fmod(x, number),
            torch.remainder(x, number),
            x // number,
            x % number,
            x + number,
            number - x,
            x * number,
            torch.add(x, number, alpha=3),
            x.sub(x, alpha=-1),
        ]
        return results + rest

    x = torch.tensor([0, 1, 2, 6, 7, 43, 44, 45, 126, 127, 128, 254, 255, -1, -7, -128])
    x = torch.cat([x, x + 4464]).to(dtype)
    _check(f, [[x]])


@pytest.mark.parametrize("alpha", [0, 1, -1, 2, True, False])
def test_a_factor_beside_booleans(alpha: int) -> None:
    """Whether it is 0 says it all."""
    x, y = torch.tensor([True, False, True, False]), torch.tensor([True, True, False, False])
    _check(
        lambda x, y: (
            torch.add(x, y, alpha=alpha),
            torch.add(x, True, alpha=alpha),
            x.clone().add_(y, alpha=alpha),
        ),
        [[x, y]],
    )


@pytest.mark.parametrize("start", [0, 2])
def test_where_a_view_begins_in_memory(start: int) -> None:
    """A number of the traced program."""
    graph = torch.fx.Graph()
    x = torch.arange(12.0).reshape(4, 3)
    given = graph.placeholder("x")
    view = graph.call_function(torch.ops.aten.slice.Tensor, (given, 0, start))
    given.meta["val"], view.meta["val"] = x, x[start:]
    at = graph.call_function(torch.ops.aten.sym_storage_offset.default, (view,))
    graph.output((graph.call_function(torch.ops.aten.add.Scalar, (view, at)), at))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    imported = import_fx(module, [Input("x", TensorType(f32, (4, 3)))], "test")
    (found,) = evaluate(imported.graph, {"x": x.numpy()}).values()
    assert (found == (x[start:] + 3 * start).numpy()).all()
    assert imported.results[1] == ("=", 3 * start)


@pytest.mark.parametrize("name", ["sign", "abs", "frac", "trunc", "square", "positive", "neg"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.float16])
def test_functions_of_every_dtype(name: str, dtype: torch.dtype) -> None:
    """What eager PyTorch has, of constants as well."""
    x = torch.tensor([0, 1, 2, 3, -0.0, -1.5, -2.0]).to(dtype)
    try:
        getattr(torch, name)(x)
    except RuntimeError:
        pytest.skip(f"torch.{name} does not take {dtype}")
    given = [x, torch.tensor([3, 1, 2], dtype=torch.int16)]
    _check(lambda x, y: (getattr(torch, name)(x), getattr(torch, name)(torch.isinf(y).to(dtype))),
           [given])  # fmt: skip
