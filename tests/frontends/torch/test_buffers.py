"""Buffers and inputs that a program changes, by `fuser.compile`: kernels write them in place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import fuser  # noqa: E402
from fuser.frontends.torch import program, steady  # noqa: E402
from tests.runtime.pretend_gpu import Driver, pretend_gpu  # noqa: E402

__all__ = ["pretend_gpu"]

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore:.*treespec.*")]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    torch.manual_seed(5)
    with torch.no_grad():
        yield


class Cache(nn.Module):  # type: ignore[misc]
    """Rows of a buffer of 24 are replaced by those of x, and all are read."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, 8)
        self.register_buffer("rows", torch.zeros(2, 24, 8))

    def forward(self, x: Any, at: Any) -> Any:
        y = self.project(x)
        self.rows.index_copy_(1, at, y)
        return y @ self.rows.transpose(1, 2)


def pair(device: str = "cpu") -> tuple[Any, Any]:
    """A module, and one like it."""
    net, like = Cache().to(device), Cache().to(device)
    like.load_state_dict(net.state_dict())
    return net, like


def inputs(step: int, rows: int = 2, device: str = "cpu") -> tuple[Any, Any]:
    at = [(3 * step + row) % 24 for row in range(rows)]
    return torch.randn(2, rows, 16, device=device), torch.tensor(at, device=device)


def without_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "copy_", lambda *_: pytest.fail("a buffer is copied"))


@pytest.mark.parametrize("device", DEVICES)
def test_a_buffer_is_written_in_place(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module's own, which has the new value after the call, and counts as changed."""
    net, like = pair(device)
    compiled = fuser.compile(net, example_inputs=inputs(0, device=device))
    buffer, place = net.rows, net.rows.data_ptr()
    for step in range(5):
        x, at = inputs(step, device=device)
        wanted, count = like(x, at), buffer._version
        with monkeypatch.context() as patch:
            without_copies(patch)
            result = compiled(x, at)
        torch.testing.assert_close(result, wanted)
        torch.testing.assert_close(net.rows, like.rows)
        assert net.rows is buffer and buffer.data_ptr() == place and buffer._version > count
    (plan,) = compiled.plans
    assert [spec.shape for spec in plan.outputs] == [(2, 2, 24)]


class Device:
    """Tensors in the memory of a pretended GPU, which PyTorch takes for host memory."""

    def __init__(self, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
        self.driver = driver
        where = torch.device("cuda", 0)
        ready, copied = steady.ready, steady._copied
        monkeypatch.setattr(program, "gpu_of", lambda _: where)
        for module in (program, steady):
            monkeypatch.setattr(module, "ready", lambda x, align, _: ready(x, align, None))
        monkeypatch.setattr(steady, "_copied", lambda x, align, _: self.put(copied(x, align, None)))
        monkeypatch.setattr(steady, "_stream_of", lambda _: lambda: 0)
        monkeypatch.setattr(steady, "_unusual", lambda *_: None)
        monkeypatch.setattr(
            steady._Maker, "of", lambda *like: steady._Maker(*2 * [lambda: self.empty(*like[:2])])
        )

    def empty(self, shape: Any, dtype: Any) -> Any:
        count = torch.Size(shape).numel()
        size = max(1, count * dtype.itemsize)
        raw = self.driver.array(self.driver.do_cuMemAlloc(size), size)
        return torch.from_numpy(raw).view(dtype)[:count].view(shape)

    def put(self, x: Any) -> Any:
        return self.empty(x.shape, x.dtype).copy_(x)


def test_a_gpu_writes_a_buffer_in_place(
    pretend_gpu: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(pretend_gpu, monkeypatch)
    net, like = pair()
    net._apply(device.put)
    compiled = fuser.compile(net)
    place = net.rows.data_ptr()
    for step in range(4):
        x, at = inputs(step)
        wanted = like(x, at)
        x, at = device.put(x), device.put(at)
        with monkeypatch.context() as patch:
            without_copies(patch)
            result = compiled(x, at)
        pretend_gpu.do_cuCtxSynchronize()
        torch.testing.assert_close(result, wanted)
        torch.testing.assert_close(net.rows, like.rows)
        assert net.rows.data_ptr() == place
    (plan,) = compiled.plans
    assert plan.target.is_cuda and len(pretend_gpu.launched) == 4 * plan.launches
    assert [spec.shape for spec in plan.outputs] == [(2, 2, 24)]
    assert not [call for call in pretend_gpu.calls if "DtoD" in call or "2D" in call]


def test_what_the_user_writes_is_read() -> None:
    """By assignments of values, and of another tensor."""
    net, like = pair()
    compiled = fuser.compile(net, example_inputs=inputs(0))
    for step in range(6):
        if step == 2:
            net.rows.zero_()
            like.rows.zero_()
        if step == 4:
            net.rows, like.rows = torch.ones(2, 24, 8), torch.ones(2, 24, 8)
        x, at = inputs(step)
        torch.testing.assert_close(compiled(x, at), like(x, at))
        torch.testing.assert_close(net.rows, like.rows)


def test_an_input_is_written_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """By way of a copy where it does not lie row-major."""

    class Put(nn.Module):  # type: ignore[misc]
        def forward(self, cache: Any, x: Any, at: Any) -> Any:
            cache[:, at] = x
            return cache.sum(1)

    x, at = torch.randn(2, 3, 8), torch.tensor([5, 0, 9])
    cache, like = torch.randn(2, 12, 8), torch.empty(2, 12, 8)
    like.copy_(cache)
    exported = torch.export.export(Put(), (cache, x, at))
    for model in (Put(), exported):
        compiled = fuser.compile(model)
        for _ in range(3):
            x = torch.randn(2, 3, 8)
            wanted = Put()(like, x, at)
            with monkeypatch.context() as patch:
                without_copies(patch)
                torch.testing.assert_close(compiled(cache, x, at), wanted)
            torch.testing.assert_close(cache, like)
        turned = torch.randn(2, 8, 12).transpose(1, 2)
        other = turned.clone()
        torch.testing.assert_close(compiled(turned, x, at), Put()(other, x, at))
        torch.testing.assert_close(turned, other)


def test_open_sizes_share_a_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of several lengths, then single tokens, one after another."""
    net, like = pair()
    rows = torch.export.Dim("rows", min=2, max=20)
    exported = torch.export.export(net, inputs(0, 4), dynamic_shapes=({1: rows}, {0: rows}))
    compiled = fuser.compile(exported)
    for step, count in enumerate((4, 7, 3, 3, 12)):
        x, at = inputs(step, count)
        wanted = like(x, at)
        with monkeypatch.context() as patch:
            without_copies(patch)
            torch.testing.assert_close(compiled(x, at), wanted)
        torch.testing.assert_close(net.rows, like.rows)


def test_a_saved_module_goes_on_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, like = pair()
    compiled = fuser.compile(net, example_inputs=inputs(0))
    x, at = inputs(0)
    torch.testing.assert_close(compiled(x, at), like(x, at))
    compiled.save(tmp_path / "cache.fuser")
    loaded = fuser.load(tmp_path / "cache.fuser")
    for step in range(1, 4):
        x, at = inputs(step)
        wanted = like(x, at)
        with monkeypatch.context() as patch:
            without_copies(patch)
            torch.testing.assert_close(loaded(x, at), wanted)


def test_other_changes_are_copied_back() -> None:
    """Where a kernel does not write rows: a mean that moves, a counter, rows that are read before
    they change, buffers that share memory."""

    class Several(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(8))
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))
            self.register_buffer("rows", torch.zeros(4, 8))

        def forward(self, x: Any) -> Any:
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            self.count += 1
            old = self.rows.sum(0)
            self.rows.index_copy_(0, self.count[None] % 4, x[:1])
            return x - self.mean, old

    net, like = Several(), Several()
    compiled = fuser.compile(net)
    for _ in range(4):
        x = torch.randn(3, 8)
        torch.testing.assert_close(compiled(x), like(x))
        torch.testing.assert_close(dict(net.named_buffers()), dict(like.named_buffers()))
