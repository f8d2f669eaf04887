"""Inference by torch.compile: what stands between Dynamo's guards and a plan."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

import fuser  # noqa: E402
from fuser.errors import UnsupportedError  # noqa: E402
from fuser.frontends.torch.backend import backend  # noqa: E402
from fuser.frontends.torch.program import FxProgram  # noqa: E402
from fuser.frontends.torch.steady import _Maker  # noqa: E402

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore:.*treespec.*")]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    torch.manual_seed(5)
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def compiled(f: Any, made: list[Any]) -> Any:
    """By torch.compile; `made` gets what the back end makes of each graph."""

    def noted(*args: Any, **kwargs: Any) -> Any:
        made.append(found := backend(*args, **kwargs))
        return found

    return torch.compile(f, backend=noted, fullgraph=True, dynamic=False)


class Attention(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Any, mask: Any) -> Any:
        q, k, v = self.qkv(x).view(2, 6, 3, 2, 8).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(q, k, v, mask)
        return self.out(mixed.transpose(1, 2).reshape(2, 6, 16))


def test_attention_stays_whole() -> None:
    """Whichever of its own kernels PyTorch would choose."""
    net = Attention().bfloat16()
    x = torch.randn(2, 6, 16).bfloat16()
    mask = torch.ones(2, 1, 6, 6, dtype=torch.bool).tril()
    made: list[Any] = []
    with sdpa_kernel(SDPBackend.MATH):
        found = compiled(net, made)(x, mask)
    exported = fuser.compile(net)
    torch.testing.assert_close(found, exported(x, mask), rtol=0, atol=0)
    (plan,) = made[0].program.plans
    assert plan.launches == exported.plan(x, mask).launches


def test_heads_that_are_shared_and_autocast() -> None:
    q, k = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8)

    def grouped(q: Any, k: Any) -> Any:
        return scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)

    fast = torch.compile(grouped, backend="fuser")
    torch.testing.assert_close(fast(q, k), grouped(q, k))
    with torch.autocast("cpu", torch.bfloat16):
        assert fast(q, k).dtype == grouped(q, k).dtype
        torch.testing.assert_close(fast(q, k), grouped(q, k), rtol=2e-2, atol=2e-2)


def test_wrappers_stay_where_they_do_something() -> None:
    """Results that are arguments or views of them, or come twice."""
    scale = torch.randn(4)

    def plain(x: Any) -> Any:
        return x * scale, (x + 1).sum()

    def changes(x: Any) -> Any:
        x.mul_(2)
        return x + scale

    def views(x: Any) -> Any:
        return x.view(-1), x, x * scale

    def twice(x: Any) -> Any:
        y = x * scale
        return y, y.view(-1), y

    for function, direct in ((plain, True), (changes, True), (views, False), (twice, False)):
        made: list[Any] = []
        fast = compiled(function, made)
        for _ in range(3):
            x = torch.randn(3, 4)
            twin = x.clone()
            results, wanted = fast(x), function(twin)
            torch.testing.assert_close(results, wanted, msg=function.__name__)
            torch.testing.assert_close(x, twin, msg=function.__name__)
            if function is views:
                assert results[0].data_ptr() == x.data_ptr() and results[1] is x
        assert hasattr(made[0], "is_direct") == direct, function.__name__
        torch._dynamo.reset()


def test_what_dynamo_compared_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One comparison, then the call: of other strides and places of tensors, too."""
    net, made = nn.Linear(4, 4), []  # type: ignore[var-annotated]
    fast = compiled(net, made)
    whole = torch.randn(40)
    fast(whole[:12].view(3, 4))
    monkeypatch.setattr(FxProgram, "prepare", lambda *_: pytest.fail("this call was known"))
    monkeypatch.setattr(FxProgram, "steady", lambda *_: pytest.fail("looked at again"))
    for x in (whole[:12], whole[13:25], whole[16:28]):
        torch.testing.assert_close(fast(x.view(3, 4)), net(x.view(3, 4)))
    monkeypatch.undo()
    net.weight.add_(1)
    for x in (whole[:24].view(3, 8)[:, ::2], whole[:12].view(4, 3).t(), whole[:12].view(3, 4)):
        torch.testing.assert_close(fast(x), net(x))


@pytest.mark.filterwarnings("default")
def test_a_graph_left_to_pytorch_is_not_cast_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise UnsupportedError("not today")

    monkeypatch.setattr(FxProgram, "prepare", refuse)
    net, x = nn.Linear(4, 4), torch.randn(3, 4)

    def wide(x: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return net(x)

    made: list[Any] = []
    with warnings.catch_warnings(), torch.autocast("cpu", torch.bfloat16):
        warnings.simplefilter("ignore")
        fast = compiled(wide, made)
        for _ in range(2):
            assert fast(x).dtype == wide(x).dtype == torch.float32
    assert made[0].is_direct


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 1, 5)])
def test_new_tensors_are_alike(shape: tuple[int, ...]) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.int64):
        maker = _Maker.of(shape, dtype, None)
        quick, slow = maker.quick(), maker.slow()
        for x in (quick, slow):
            assert (x.shape, x.dtype, x.device.type) == (torch.Size(shape), dtype, "cpu")
            assert x.is_contiguous() and not x.requires_grad
        assert quick.data_ptr() != slow.data_ptr() or not quick.numel()


@pytest.mark.cuda
def test_a_captured_call_has_memory_of_its_own() -> None:
    """A graph that the caller captured runs beside calls of the same plan."""
    net = nn.Sequential(*(nn.Linear(512, 512) for _ in range(6))).cuda()
    x, other = torch.randn(64, 512, device="cuda"), torch.randn(64, 512, device="cuda")
    fast = fuser.compile(net)
    wanted, also = fast(x), fast(other)
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        captured = fast(x)
    for _ in range(20):
        graph.replay()
        with torch.cuda.stream(side):
            found = fast(other)
        torch.cuda.synchronize()
        torch.testing.assert_close(captured, wanted, rtol=0, atol=0)
        torch.testing.assert_close(found, also, rtol=0, atol=0)
