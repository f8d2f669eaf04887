"""ATen operators at the edges of what they take: tensors without axes, axes without entries, empty
indices; and graphs that fuser cannot compile for a defect of its own."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import fuser  # noqa: E402
from fuser.errors import DeviceError, LoweringError, UsageError  # noqa: E402

pytestmark = pytest.mark.export

NUMBER = torch.tensor(3.0)
FIRST = torch.tensor(0)
VECTOR = torch.arange(5.0) - 2
NOTHING = torch.empty(2, 0, dtype=torch.int64)

WITHOUT_AXES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "softmax": (lambda x: torch.softmax(x, 0), (NUMBER,)),
    "log_softmax": (lambda x: torch.log_softmax(x, -1), (NUMBER,)),
    "cumsum": (lambda x: torch.cumsum(x, 0), (NUMBER,)),
    "sort": (lambda x: torch.sort(x, 0), (NUMBER,)),
    "stable sort": (lambda x: torch.sort(x, dim=-1, stable=True), (NUMBER,)),
    "argsort": (lambda x: torch.argsort(x, -1), (NUMBER,)),
    "topk": (lambda x: torch.topk(x, 1, 0), (NUMBER,)),
    "kthvalue": (lambda x: torch.kthvalue(x, 1, 0), (NUMBER,)),
    "kthvalue, kept": (lambda x: torch.kthvalue(x, 1, 0, keepdim=True), (NUMBER,)),
    "median": (lambda x: torch.median(x, 0), (NUMBER,)),
    "max": (lambda x: torch.max(x, 0), (NUMBER,)),
    "unfold": (lambda x: x.unfold(0, 1, 1), (NUMBER,)),
    "unfold to nothing": (lambda x: x.unfold(0, 0, 1), (NUMBER,)),
    "index_select": (lambda x, i: torch.index_select(x, 0, i), (NUMBER, torch.tensor([0]))),
    "index_select by a number": (lambda x, i: torch.index_select(x, 0, i), (VECTOR, FIRST)),
    "index_add": (lambda x, i: torch.index_add(x, 0, i, x), (NUMBER, torch.tensor([0]))),
    "gather": (lambda x, i: torch.gather(x, 0, i), (NUMBER, FIRST)),
    "gather by a vector": (lambda x, i: torch.gather(x, 0, i), (NUMBER, torch.tensor([0, 0]))),
    "gather by a number": (lambda x, i: torch.gather(x, 0, i), (VECTOR, torch.tensor(2))),
    "scatter": (lambda x, i, s: torch.scatter(x, 0, i, s), (NUMBER, FIRST, NUMBER * 2)),
    "scatter of a number": (lambda x, i, s: torch.scatter(x, 0, i, s), (VECTOR, FIRST, NUMBER)),
    "scatter of a constant": (lambda x, i: torch.scatter(x, 0, i, 7.0), (NUMBER, FIRST)),
    "scatter_add": (lambda x, i, s: torch.scatter_add(x, 0, i, s), (NUMBER, FIRST, NUMBER)),
    "scatter_reduce": (
        lambda x, i, s: torch.scatter_reduce(x, 0, i, s, "amax"), (NUMBER, FIRST, NUMBER * 2)
    ),
    "flip": (lambda x: torch.flip(x, (0,)), (VECTOR,)),
}  # fmt: skip

EMPTY_LISTS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "flip": (lambda x: torch.flip(x, ()), (VECTOR,)),
    "squeeze": (lambda x: torch.squeeze(x, ()), (VECTOR.reshape(1, 5, 1),)),
    "any": (lambda x: torch.ops.aten.any.dims(x, []), (VECTOR > 0,)),
    "all": (lambda x: torch.ops.aten.all.dims(x, []), (VECTOR > 0,)),
    "sum": (lambda x: torch.sum(x, ()), (VECTOR,)),
    "amax": (lambda x: torch.amax(x, ()), (VECTOR,)),
    "gather": (lambda x, i: torch.gather(x, 0, i), (VECTOR, NOTHING)),
    "scatter": (lambda x, i: torch.scatter(x, 0, i, x), (VECTOR, NOTHING)),
    "scatter_add": (lambda x, i: torch.scatter_add(x, 0, i, x), (VECTOR, NOTHING)),
}


@pytest.fixture(autouse=True)
def forgotten() -> None:
    torch._dynamo.reset()


def check(function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", "fuser leaves")
        found = torch.compile(function, backend="fuser")(*arguments)
    torch.testing.assert_close(found, function(*arguments))


@pytest.mark.parametrize("name", WITHOUT_AXES)
def test_tensors_without_axes(name: str) -> None:
    check(*WITHOUT_AXES[name])


@pytest.mark.parametrize("name", EMPTY_LISTS)
def test_empty_lists(name: str) -> None:
    check(*EMPTY_LISTS[name])


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_margins_of_several_classes(reduction: str) -> None:
    classes = torch.tensor([[3, 0, 0, 3, 2], [1, 1, 1, 1, 1], [4, 2, 0, 1, 3]])
    check(
        lambda x, t: torch.nn.functional.multilabel_margin_loss(x, t, reduction=reduction),
        (torch.linspace(-2, 3, 15).reshape(3, 5).sin(), classes),
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16])
@pytest.mark.parametrize("bounds", [(0.0, -8.000001, -4.0), (0.5, 5.5, 1.7), (-2.5, 3, 1)])
def test_whole_numbers_in_a_range_of_fractions(
    bounds: tuple[float, float, float], dtype: torch.dtype
) -> None:
    """The length of a range of int64 is that of the truncated bounds, others' is not."""
    check(lambda: torch.arange(*bounds, dtype=dtype), ())


@pytest.mark.parametrize("order", [1.0, 2.0])
def test_distances_of_rows_in_batches_of_one_side(order: float) -> None:
    mode = "donot_use_mm_for_euclid_dist"
    check(lambda x, y: torch.cdist(x, y, order, mode), (torch.ones(2, 4, 5), torch.rand(3, 5)))
    check(lambda x, y: torch.cdist(x, y, order, mode), (torch.rand(3, 5), torch.ones(2, 4, 5)))


@pytest.mark.parametrize("error", [LoweringError("a row that turns"), RecursionError("too deep")])
def test_a_defect_leaves_the_graph_to_pytorch(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """torch.compile goes on, and says what happened; fuser.compile raises."""

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr("fuser.frontends.torch.program.compile_graph", fail)
    module = torch.nn.Linear(4, 3)
    fast = torch.compile(module, backend="fuser")
    x = torch.ones(2, 4)
    with torch.no_grad():
        with pytest.warns(RuntimeWarning, match=f"please report {type(error).__name__}: {error}"):
            found = fast(x)
        torch.testing.assert_close(found, module(x))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it is said once
            fast(x)
    with pytest.raises(type(error), match=str(error)):
        fuser.compile(module, example_inputs=(x,))


@pytest.mark.parametrize("error", [UsageError("no such option"), DeviceError("no such device")])
def test_what_the_caller_can_mend_is_raised(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr("fuser.frontends.torch.program.compile_graph", fail)
    with torch.no_grad(), pytest.raises(type(error), match=str(error)):
        torch.compile(torch.nn.Linear(4, 3), backend="fuser")(torch.ones(2, 4))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_statistics_have_the_dtype_that_pytorch_gives_them(dtype: Any) -> None:
    """On a CPU that of the input, on a GPU float32."""
    x = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(0)).to(dtype)

    def norms(x: Any) -> Any:
        _, mean, scale = torch.native_layer_norm(x, (6,), None, None, 1e-5)
        _, group_mean, group_scale = torch.native_group_norm(x, None, None, 2, 4, 6, 2, 1e-5)
        return mean, scale, group_mean, group_scale

    with torch.no_grad():
        found, wanted = torch.compile(norms, backend="fuser")(x), norms(x)
    assert [y.dtype for y in found] == [y.dtype for y in wanted] == [dtype] * 4
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("name", ["sign", "sgn"])
def test_the_sign_of_zero_and_nan_is_zero(name: str) -> None:
    x = torch.tensor([0.0, -0.0, float("nan"), 2.0, -3.0])
    with torch.no_grad():
        found = torch.compile(getattr(torch, name), backend="fuser")(x)
    assert found.tolist() == [0, 0, 0, 1, -1]
    assert torch.signbit(found).tolist() == [False, False, False, False, True]
