"""Graphs of Dynamo as functional operators: calls are traced once, and what is changed is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from fuser.frontends.torch import capture as capturing  # noqa: E402
from fuser.frontends.torch.backend import backend  # noqa: E402
from fuser.frontends.torch.capture import Captured, Declined, capture  # noqa: E402
from fuser.frontends.torch.decompositions import decompositions  # noqa: E402

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore:.*treespec.*")]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    torch.manual_seed(5)
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def captured(function: Any, *arguments: Any) -> Captured | Declined:
    """What is made of the function's graph."""
    found: list[Captured | Declined] = []

    def noted(module: Any, _: Any) -> Any:
        found.append(capture(module, decompositions()))
        return module.forward

    torch.compile(function, backend=noted, fullgraph=True, dynamic=False)(*arguments)
    return found[0]


def check(function: Any, make: Callable[[], tuple[Any, ...]]) -> None:
    """Results and arguments are those of PyTorch, call after call."""
    fast = torch.compile(function, backend="fuser", fullgraph=True, dynamic=False)
    kept, like = make(), make()
    for place, x in enumerate(kept):
        like[place].copy_(x)
    for _ in range(3):
        results, wanted = fast(*kept), function(*like)
        torch.testing.assert_close(results, wanted)
        for x, y in zip(kept, like, strict=True):
            torch.testing.assert_close(x, y)


def two() -> tuple[Any, Any]:
    return torch.randn(3, 4), torch.randn(3, 4)


def operators(found: Captured | Declined) -> list[str]:
    assert isinstance(found, Captured), found
    return [str(n.target) for n in found.module.graph.nodes if n.op == "call_function"]


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.register_buffer("seen", torch.zeros(4, 8))

    def forward(self, x: Any) -> Any:
        self.seen[1:2] = x[:1]
        left, right = self.up(self.norm(x)).chunk(2, -1)
        return x + self.down(torch.cat((left.sigmoid(), right), -1)) + self.seen.sum(0)


def test_calls_are_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many layers a program has."""
    traced: list[Any] = []
    trace = capturing._trace
    monkeypatch.setattr(
        capturing, "_trace", lambda call, *rest: [traced.append(call), trace(call, *rest)][1]
    )
    counts = []
    for layers in (2, 7):
        traced.clear()
        found = captured(nn.Sequential(*(Block() for _ in range(layers))), torch.randn(3, 8))
        assert isinstance(found, Captured) and len(found.changed) == layers
        assert len(found.static) == 7 * layers
        counts.append(len(traced))
        assert operators(found).count("aten.addmm.default") == 2 * layers
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(2)), (2, 3, 8, 8)),
        (nn.Upsample(scale_factor=2, mode="bilinear"), (1, 2, 3, 3)),
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 5, 8)),
        (nn.Sequential(nn.GroupNorm(2, 4), nn.GELU(), nn.Flatten(), nn.Softmax(-1)), (2, 4, 6)),
        (nn.LSTM(4, 6), (3, 2, 4)),
    ],
    ids=["pooling", "resampling", "attention", "normalisation", "recurrence"],
)
@torch._dynamo.config.patch(allow_rnn=True)
def test_operators_are_those_of_autograd(net: Any, shape: tuple[int, ...]) -> None:
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    traced: list[Any] = []

    def note(module: Any, _: Any) -> Any:
        traced.append(module)
        return make_boxed_func(module.forward)

    net, x = net.eval(), torch.randn(shape)
    found = captured(net, x)
    torch._dynamo.reset()
    by_autograd = aot_autograd(
        fw_compiler=note, inference_compiler=note, decompositions=decompositions()
    )
    torch.compile(net, backend=by_autograd, fullgraph=True, dynamic=False)(x)
    wanted = [str(n.target) for n in traced[0].graph.nodes if n.op == "call_function"]
    assert sorted(operators(found)) == sorted(wanted)


def test_a_module_and_its_buffers() -> None:
    net, like = nn.Sequential(Block(), Block()), nn.Sequential(Block(), Block())
    like.load_state_dict(net.state_dict())
    fast = torch.compile(net, backend="fuser", fullgraph=True, dynamic=False)
    for _ in range(3):
        x = torch.randn(3, 8)
        torch.testing.assert_close(fast(x), like(x))
        torch.testing.assert_close(dict(net.named_buffers()), dict(like.named_buffers()))


def adds(x: Any, y: Any) -> Any:
    x += y
    return x * 2


def through_a_view(x: Any, y: Any) -> Any:
    x[:, 1:3].mul_(2)
    return x + y


def later_views(x: Any, y: Any) -> Any:
    x.add_(1)
    return x.t() @ y


def swaps(x: Any, y: Any) -> Any:
    old = x.clone()
    x.copy_(y)
    y.copy_(old)
    return old.sum()


def one_of_the_other(x: Any, y: Any) -> Any:
    x.copy_(y)
    return y + 1


def inner(x: Any, y: Any) -> Any:
    """What is changed is no argument."""
    z = x * y
    z.relu_()
    z[0] = y[0]
    return z + x


def read_before(x: Any, y: Any) -> Any:
    old = x.sum(0)
    x.zero_()
    return old + y, x.max(-1)


def names_a_result(x: Any, y: Any) -> Any:
    values, places = x.sort(-1)
    return values + y, places


def test_what_is_changed() -> None:
    for function, places in (
        (adds, (0,)), (later_views, (0,)), (swaps, (0, 1)), (one_of_the_other, (0,)), (inner, ()),
        (read_before, (0,)), (names_a_result, ()),
    ):  # fmt: skip
        found = captured(function, *two())
        assert isinstance(found, Captured), (function, found)
        assert found.changed == places, function
        torch._dynamo.reset()
        check(function, two)
        torch._dynamo.reset()


def stale(x: Any, y: Any) -> Any:
    row = x[1]
    x.add_(1)
    return row * y


def returns_a_view(x: Any, y: Any) -> Any:
    return x[1], x + y


def returns_it_twice(x: Any, y: Any) -> Any:
    z = x + y
    return z, z[0]


def noisy(x: Any, y: Any) -> Any:
    return nn.functional.dropout(x, 0.5) * 0 + y


def a_view_alone(x: Any, y: Any) -> Any:
    x[:, 1:3].mul_(2)
    return y + 1


def constant(x: Any, y: Any) -> Any:
    x[0] = 1
    return x + y


def other_shape(x: Any, y: Any) -> Any:
    return x.clone().t_() @ y


def test_what_is_left_to_autograd() -> None:
    for function, reason in (
        (through_a_view, "by way of another one"),
        (a_view_alone, "by way of another tensor"),
        (constant, "get_attr"),
        (stale, "by way of another one"),
        (returns_a_view, "shares memory with an argument"),
        (returns_it_twice, "or another result"),
        (noisy, "random numbers"),
        (other_shape, "shape"),
    ):
        found = captured(function, *two())
        assert isinstance(found, Declined) and reason in found.reason, (function, found)
        torch._dynamo.reset()
        if function is not noisy:
            check(function, two)
        torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:fuser leaves:RuntimeWarning")
def test_arguments_that_share_memory() -> None:
    """A change of one is one of the other."""

    def change(x: Any, y: Any) -> Any:
        x.add_(1)
        return y * 2

    memory = torch.randn(8)
    found = captured(change, memory[:6], memory[2:])
    assert isinstance(found, Declined)
    torch._dynamo.reset()
    fast = torch.compile(change, backend="fuser", fullgraph=True, dynamic=False)
    like = memory.clone()
    for _ in range(2):
        torch.testing.assert_close(fast(memory[:6], memory[2:]), change(like[:6], like[2:]))
        torch.testing.assert_close(memory, like)


def test_gradients_autocast_and_open_sizes_are_not_for_it() -> None:
    x = torch.randn(3, 4)
    with torch.enable_grad():
        assert isinstance(captured(torch.sin, x), Declined)
    torch._dynamo.reset()
    with torch.autocast("cpu", torch.bfloat16):
        assert isinstance(captured(torch.cos, x), Declined)
    torch._dynamo.reset()
    found: list[Any] = []

    def noted(module: Any, inputs: Any, **more: Any) -> Any:
        found.append(capture(module, decompositions()))
        return backend(module, inputs, **more)

    fast = torch.compile(lambda x: x.sin() + x.shape[0], backend=noted, dynamic=True)
    for rows in (3, 5):
        y = torch.randn(rows, 4)
        torch.testing.assert_close(fast(y), y.sin() + rows)
    assert all(isinstance(one, Declined) for one in found)
