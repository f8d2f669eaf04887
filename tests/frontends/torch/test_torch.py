"""PyTorch modules through `fuser.compile` and `torch.compile`, beside eager PyTorch on the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils import _pytree  # noqa: E402

import fuser  # noqa: E402
from fuser.errors import FeedError, UnsupportedError, UnsupportedOpError  # noqa: E402
from tests.frontends.torch.torch_modules import MODULES, Function, Residual  # noqa: E402

pytestmark = [
    pytest.mark.export,
    pytest.mark.filterwarnings("ignore:.*treespec.*"),
    pytest.mark.filterwarnings("ignore:.*_flat_weights.*"),
    pytest.mark.filterwarnings("ignore:.*meshgrid.*"),
]


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(3)
    torch._dynamo.reset()
    # Left alone, torch.compile runs recurrent modules in PyTorch and shows no backend any of them.
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


# Their code makes tensors in host memory, whatever the device of their inputs.
HOST_MADE = ("decoder", "shapes", "promotion", "scatters")


def close(found: Any, wanted: Any, loose: float = 2e-5) -> None:
    got, tree = _pytree.tree_flatten(found)
    expected, other = _pytree.tree_flatten(wanted)
    assert tree == other
    for a, b in zip(got, expected, strict=True):
        if not isinstance(b, torch.Tensor):
            assert a == b
            continue
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        limit = {torch.bfloat16: 2e-2, torch.float16: 2e-3}.get(b.dtype, loose)
        torch.testing.assert_close(a, b, rtol=limit, atol=limit)


@pytest.mark.parametrize("name", MODULES)
def test_export(name: str) -> None:
    make, inputs = MODULES[name]
    module, args = make().eval(), inputs()
    with torch.no_grad():
        close(fuser.compile(module, example_inputs=args)(*args), module(*args))


@pytest.mark.parametrize("name", MODULES)
def test_torch_compile(name: str) -> None:
    make, inputs = MODULES[name]
    module, args = make().eval(), inputs()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", "fuser leaves")
        close(torch.compile(module, backend="fuser")(*args), module(*args))


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["residual", "decoder", "windows", "bfloat16"])
def test_on_a_gpu(name: str) -> None:
    make, inputs = MODULES[name]
    module, args = make().eval(), inputs()
    with torch.no_grad():
        close(fuser.compile(module, example_inputs=args, device="cuda")(*args), module(*args))


def to_gpu(nest: Any) -> Any:
    return _pytree.tree_map(lambda x: x.cuda() if isinstance(x, torch.Tensor) else x, nest)


def to_host(nest: Any) -> Any:
    return _pytree.tree_map(lambda x: x.cpu() if isinstance(x, torch.Tensor) else x, nest)


def shapes_of(nest: Any) -> list[Any]:
    return [getattr(x, "shape", None) for x in _pytree.tree_leaves(nest)]


@pytest.mark.cuda
@pytest.mark.parametrize("route", ["export", "torch.compile"])
@pytest.mark.parametrize("name", [key for key in MODULES if key not in HOST_MADE])
def test_tensors_of_a_gpu(name: str, route: str) -> None:
    """Tensors of the GPU in and out, beside PyTorch on the CPU."""
    make, inputs = MODULES[name]
    module, args = make().eval(), inputs()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", "fuser leaves")
        wanted = module(*args)
        module, args = module.cuda(), to_gpu(args)
        if route == "torch.compile":
            traced = torch.compile(module, backend="aot_eager")(*args)
            torch._dynamo.reset()
            fast: Any = torch.compile(module, backend="fuser")
        else:
            traced = torch.export.export(module, args).run_decompositions().module()(*args)
            fast = fuser.compile(module)
        if shapes_of(traced) != shapes_of(wanted):  # an LSTM, in PyTorch 2.11
            pytest.skip("this PyTorch takes the module apart into one with results of other shapes")
        for _ in range(3):  # kernels launched one by one, a graph captured, a graph replayed
            found = fast(*args)
            leaves = [x for x in _pytree.tree_leaves(found) if isinstance(x, torch.Tensor)]
            assert all(leaf.is_cuda for leaf in leaves)
            close(to_host(found), wanted, loose=2e-4)


@pytest.mark.cuda
def test_gpu_tensors_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    from fuser.runtime.binding import Placed

    seen: list[tuple[Any, ...]] = []
    original = Placed.__call__

    def noted(placed: Any, pointers: Any, stream: int = 0) -> None:
        everything = placed._everything(tuple(pointers))
        seen.append((everything[:3], everything[3:], stream))
        original(placed, pointers, stream)

    monkeypatch.setattr(Placed, "__call__", noted)
    module = nn.Linear(64, 64).cuda()
    x = torch.randn(32, 64, device="cuda")
    compiled = fuser.compile(module, freeze=False)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad():
        with torch.cuda.stream(side):
            y = compiled(x)
        side.synchronize()
        sources, targets, stream = seen[-1]
        assert {x.data_ptr(), module.weight.data_ptr(), module.bias.data_ptr()} == set(sources)
        assert targets == [y.data_ptr()]
        assert stream == side.cuda_stream
        torch.testing.assert_close(y, module(x), rtol=1e-4, atol=1e-4)
        strided = torch.randn(64, 32, device="cuda").t()  # copied: kernels read rows
        torch.testing.assert_close(compiled(strided), module(strided), rtol=1e-4, atol=1e-4)


@pytest.mark.cuda
def test_work_on_a_gpu_is_in_order() -> None:
    """What PyTorch computes before and after on the same stream is waited for, nothing else is."""
    module = nn.Sequential(nn.Linear(256, 256), nn.GELU()).cuda()
    fast = fuser.compile(module)
    with torch.no_grad():
        x = torch.randn(128, 256, device="cuda")
        wanted = x
        for _ in range(20):
            wanted = module(wanted) * 1.5
        for _ in range(3):
            y = x
            for _ in range(20):
                y = fast(y) * 1.5
            torch.testing.assert_close(y, wanted, rtol=1e-3, atol=1e-3)


def check_training_step(module: Any, x: Any) -> None:
    """The loss and the gradients are PyTorch's, with nothing left to PyTorch."""

    def step(call: Any) -> Any:
        module.zero_grad()
        loss = call(x).square().sum()
        loss.backward()
        return loss.detach(), [p.grad.clone() for p in module.parameters()]

    wanted = step(module)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "fuser leaves")
        found = step(torch.compile(module, backend="fuser"))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.cuda
def test_training_step_on_a_gpu() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)).cuda()
    x = torch.randn(6, 4, device="cuda")
    check_training_step(module, x)


def test_tensors_on_several_devices_are_refused() -> None:
    from fuser.frontends.torch.tensors import gpu_of

    meta = torch.empty(3, device="meta")
    assert gpu_of([torch.ones(3), 2.0, torch.tensor(1)]) is None
    with pytest.raises(UnsupportedError, match="tensors on cpu, meta"):
        gpu_of([torch.ones(3), meta])


def test_recurrent_layers_by_torch_compile() -> None:
    """Dynamo traces an LSTM only on request; PyTorch then names a layer of its own library."""
    make, inputs = MODULES["lstm"]
    module, args = make().eval(), inputs()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", "fuser leaves")
        fast = torch.compile(module, backend="fuser", fullgraph=True)
        close(fast(*args), module(*args))


def test_cells_as_a_gpu_names_them() -> None:
    """PyTorch has each as one kernel on a GPU, whose operator is taken apart again."""
    from fuser.frontends.torch.decompositions import gru_cell, lstm_cell

    x, h, c = torch.randn(3, 5), torch.randn(3, 4), torch.randn(3, 4)
    lstm, gru = nn.LSTMCell(5, 4), nn.GRUCell(5, 4)

    def products(cell: Any) -> tuple[Any, ...]:
        return x @ cell.weight_ih.t(), h @ cell.weight_hh.t()

    with torch.no_grad():
        found = lstm_cell(*products(lstm), c, lstm.bias_ih, lstm.bias_hh)
        close(list(found[:2]), list(lstm(x, (h, c))))
        close(gru_cell(*products(gru), h, gru.bias_ih, gru.bias_hh)[0], gru(x, h))


def test_dynamic_batch() -> None:
    module = Residual().eval()
    compiled = fuser.compile(module)
    fast = torch.compile(module, backend="fuser", dynamic=True)
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(
        module, (torch.randn(2, 4, 8, 8),), dynamic_shapes=({0: batch},), strict=False
    )
    program = fuser.compile(exported)
    with torch.no_grad():
        for size in (2, 5, 3, 2):
            x = torch.randn(size, 4, 8, 8)
            wanted = module(x)
            close(compiled(x), wanted)
            close(program(x), wanted)
            close(fast(x), wanted)
    assert len(compiled.plans) == len(program.plans) == 3
    with pytest.raises(FeedError, match=r"'x' is f32\[s\w+, 4, 8, 8\], the feed is f32\[2, 4, 9"):
        program(torch.randn(2, 4, 9, 8))
    with pytest.raises(FeedError, match="nest otherwise"):
        program(torch.randn(2, 4, 8, 8), 1)


def test_parameters_are_shared_and_followed() -> None:
    module = nn.Linear(4, 4)
    compiled = fuser.compile(module)
    x = torch.randn(2, 4)
    with torch.no_grad():
        close(compiled(x), module(x))
        for _ in range(2):
            module.weight.add_(1)
            module.bias.mul_(2)
            close(compiled(x), module(x))
    assert len(compiled.plans) == 1  # changed parameters became inputs, and stay so


def test_constants_share_the_memory_of_parameters() -> None:
    from fuser.frontends.torch.importer import import_fx, tensor_array

    weight = torch.randn(3, 3)
    graph = torch.fx.symbolic_trace(nn.Identity())
    imported = import_fx(graph, [tensor_array(weight)], "shared")
    assert imported.graph.outputs[0].constant.ctypes.data == weight.data_ptr()


def test_buffers_and_inputs_are_changed() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Any) -> Any:
            self.calls += 1
            x.mul_(2)
            return self.norm(x) + self.calls

    module, twin, third = Counts(), Counts(), Counts()
    compiled, fast = fuser.compile(module), torch.compile(third, backend="fuser")
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(4, 3)
            y, z = x.clone(), x.clone()
            wanted = twin(x)
            close(compiled(y), wanted)
            close(fast(z), wanted)
            close(y, x)
            close(z, x)
    close(dict(module.named_buffers()), dict(twin.named_buffers()))
    close(dict(third.named_buffers()), dict(twin.named_buffers()))


def test_training_step() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))
    x, labels = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])

    def step(call: Any) -> Any:
        module.zero_grad()
        loss = nn.functional.cross_entropy(call(x), labels)
        loss.backward()
        return loss.detach(), [p.grad.clone() for p in module.parameters()]

    wanted = step(module)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "fuser leaves")
        close(step(torch.compile(module, backend="fuser")), wanted)


@pytest.mark.parametrize("causal", [False, True])
def test_training_attention(causal: bool) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(16, 48)

        def forward(self, x: Any) -> Any:
            q, k, v = self.qkv(x).view(2, 6, 3, 2, 8).permute(2, 0, 3, 1, 4)
            return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    check_training_step(Block(), torch.randn(2, 6, 16))


def test_parameters_as_inputs() -> None:
    module = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)).eval()
    x = torch.randn(2, 6)
    compiled = fuser.compile(module, example_inputs=(x,), freeze=False)
    fast = torch.compile(module, backend="fuser", options={"freeze": False})
    with torch.no_grad():
        for _ in range(2):
            close(compiled(x), module(x))
            close(fast(x), module(x))
            module[0].weight.mul_(2)
    plan = compiled.plan(x)
    assert len(plan.inputs) == 7
    assert len(compiled.plans) == 1


def test_graph_breaks() -> None:
    def function(x: Any) -> Any:
        y = x.sin() + 1
        if y.sum() > 4:
            return y * 2
        return y.exp()

    fast = torch.compile(function, backend="fuser")
    for x in (torch.zeros(3), torch.ones(9)):
        close(fast(x), function(x))


def test_fx_graph_modules_and_reports() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    x = torch.randn(3, 4)
    compiled = fuser.compile(torch.fx.symbolic_trace(module), example_inputs=(x,))
    close(compiled(x), module(x).detach())
    report = compiled.report(x)
    assert report.kernels.after == compiled.plan(x).launches <= 2
    assert report.kernels.before == 3
    assert any("addmm" in name for region in report.regions for name in region.nodes)


def test_what_is_not_supported_is_named() -> None:
    module = Function(lambda x: torch.linalg.svdvals(x) + torch.rand(3))
    x = torch.rand(3, 3)
    with pytest.raises(UnsupportedOpError, match=r"aten._linalg_svd.*aten.rand"):
        fuser.compile(module, example_inputs=(x,))
    function = Function(lambda x: torch.linalg.svdvals(x).sin())
    with pytest.warns(RuntimeWarning, match="aten._linalg_svd"):
        close(torch.compile(function, backend="fuser")(x), function(x))


def test_the_backend_is_known_to_torch() -> None:
    assert "fuser" in torch._dynamo.list_backends()
    f = torch.compile(lambda x: x + 1, backend="fuser", options={"threads": 1, "fusion": False})
    close(f(torch.ones(3)), torch.ones(3) + 1)
