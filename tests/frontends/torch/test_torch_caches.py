"""Buffers and arguments that a program changes, by torch.compile: kernels write them in place."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from fuser.frontends.torch.program import FxProgram  # noqa: E402

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore:.*treespec.*")]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    torch.manual_seed(5)
    torch._dynamo.reset()
    with torch.no_grad():
        yield


class Layer(nn.Module):  # type: ignore[misc]
    """Keys and values of tokens in buffers of a fixed length, as transformers' StaticCache."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, 32)
        self.register_buffer("keys", torch.zeros(1, 2, 24, 8))
        self.register_buffer("values", torch.zeros(1, 2, 24, 8))

    def forward(self, x: Any, at: Any) -> Any:
        k, v = self.project(x).view(1, -1, 2, 2, 8).permute(2, 0, 3, 1, 4)
        self.keys.index_copy_(2, at, k)
        self.values[:, :, at] = v
        scores = k @ self.keys.transpose(2, 3)
        seen = torch.arange(24, device=x.device) <= at[:, None]
        return scores.masked_fill(~seen, -1e9).softmax(-1) @ self.values


@pytest.mark.parametrize("device", DEVICES)
def test_buffers_are_written_in_place(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a copy of a cache in or out, compiled once, and counted as a change."""
    net, eager = Layer().to(device), Layer().to(device)
    eager.load_state_dict(net.state_dict())
    plans: list[Any] = []
    compile = FxProgram._compile

    def noted(self: FxProgram, *given: Any) -> Any:
        plans.append(found := compile(self, *given))
        return found

    monkeypatch.setattr(FxProgram, "_compile", noted)
    run = torch.compile(net, backend="fuser", fullgraph=True, dynamic=False)
    places = net.keys.data_ptr(), net.values.data_ptr()
    for step in range(5):
        x = torch.randn(1, 2, 16, device=device)
        at = torch.tensor([3 * step, 3 * step + 1], device=device)
        before = net.keys._version
        torch.testing.assert_close(run(x, at.to(device)), eager(x, at.to(device)))
        torch.testing.assert_close(net.keys, eager.keys)
        torch.testing.assert_close(net.values, eager.values)
        assert net.keys._version > before
    assert (net.keys.data_ptr(), net.values.data_ptr()) == places
    (found,) = plans
    cache = 4 * net.keys.numel()
    assert [spec.bytes for spec in found.plan.outputs if spec.bytes == cache] == []
    assert len(found.plan.outputs) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_an_argument_is_changed_whatever_its_layout(device: str) -> None:
    """What no kernel may write as it is, is written by way of a copy."""

    def put(cache: Any, x: Any, at: Any) -> Any:
        cache.index_copy_(1, at, x)
        return cache.sum(1)

    run = torch.compile(put, backend="fuser", fullgraph=True, dynamic=False)
    memory = torch.randn(4 * 10 * 6 + 1, device=device)
    at = torch.tensor([7, 2], device=device)
    for make in (
        lambda: memory[:240].view(4, 10, 6),
        lambda: memory[1:].view(4, 10, 6),
        lambda: memory[:240].view(4, 6, 10).transpose(1, 2),
    ):
        for _ in range(3):
            x = torch.randn(4, 2, 6, device=device)
            wanted = make().clone()
            wanted[:, at] = x
            total = run(make(), x, at)
            torch.testing.assert_close(make(), wanted)
            torch.testing.assert_close(total, wanted.sum(1))


@pytest.mark.parametrize("device", DEVICES)
def test_who_reads_the_old_rows_reads_them(device: str) -> None:
    def move(cache: Any, x: Any, at: Any) -> Any:
        old = cache.sum(1)
        cache.index_copy_(1, at, x)
        return old

    run = torch.compile(move, backend="fuser", fullgraph=True, dynamic=False)
    cache, at = torch.randn(4, 10, 6, device=device), torch.tensor([1], device=device)
    for _ in range(3):
        x = torch.randn(4, 1, 6, device=device)
        old, wanted = cache.sum(1), cache.clone()
        wanted[:, 1:2] = x
        torch.testing.assert_close(run(cache, x, at), old)
        torch.testing.assert_close(cache, wanted)


def _index(x: Any) -> Any:
    return torch.zeros_like(x, dtype=torch.int64)


NUMBERS: dict[str, Any] = {
    "scatter_ of a number": lambda x: x.scatter_(0, _index(x), 2),
    "scatter_ of a tensor": lambda x: x.scatter_(-1, _index(x), x * 3),
    "scatter_ at one index": lambda x: x.scatter_(0, torch.tensor([0]), x.reshape(1) * 3),
    "scatter_add_": lambda x: x.scatter_add_(0, _index(x), x * 1),
    "scatter_reduce_": lambda x: x.scatter_reduce_(0, _index(x), x * 2, "prod"),
    "index_fill_": lambda x: x.index_fill_(0, torch.tensor([0]), 3),
    "index_copy_": lambda x: x.index_copy_(0, torch.tensor(0), x * 5),
    "index_add_": lambda x: x.index_add_(0, torch.tensor(0), x * 5),
    "masked_fill_": lambda x: x.masked_fill_(x > 0, 7),
    "assigned to": lambda x: operator.setitem(x, ..., 4),
    "copy_": lambda x: x.copy_(x + 1),
    "read as well": lambda x: (x * 2, x.scatter_(0, _index(x), 2), x + 1),
    "a view of one element": lambda x: x.view(1).index_copy_(0, torch.tensor([0]), x.view(1) * 5),
}
"""Changes of a tensor without axes."""


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", list(NUMBERS))
def test_a_single_number_is_changed(name: str, dynamic: bool) -> None:
    def f(x: Any, y: Any) -> Any:
        return NUMBERS[name](x), y * x

    given, other = [[torch.tensor(1.5), torch.arange(6.0)] for _ in range(2)]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "fuser leaves")
        found = torch.compile(f, backend="fuser", dynamic=dynamic)(*given)
    wanted = f(*other)
    torch.testing.assert_close((found, given), (wanted, other), rtol=0, atol=0)
