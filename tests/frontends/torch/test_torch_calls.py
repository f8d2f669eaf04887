"""Calls that come again: what they cost in Python, and which changes of a module they notice."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import fuser  # noqa: E402
from fuser.errors import FeedError  # noqa: E402
from fuser.frontends.torch import changes, module, program  # noqa: E402
from fuser.runtime import door  # noqa: E402
from fuser.runtime.torch_layout import torch_layout  # noqa: E402
from fuser.runtime.watch import dicts_tell  # noqa: E402

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore:.*treespec.*")]
NATIVE = not door.problem() and not torch_layout().problem and dicts_tell()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    torch.manual_seed(5)
    torch._dynamo.reset()
    with torch.no_grad():
        yield


@pytest.fixture(params=["native", "slow"])
def watching(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to notice changes: by memory, and by asking in Python."""
    if request.param == "native" and not NATIVE:
        pytest.skip("this Python or PyTorch keeps objects otherwise")
    if request.param == "slow":
        monkeypatch.setattr(changes.door, "problem", lambda: "none wanted")
        monkeypatch.setattr(changes, "dicts_tell", lambda: False)


class Net(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.a, self.drop = nn.Linear(width, width), nn.Dropout(0.0)
        self.register_buffer("shift", torch.randn(width))
        self.scale, self.act = 2.0, torch.relu

    def forward(self, x: Any) -> Any:
        return self.act(self.drop(self.a(x)) * self.scale + self.shift)


def replace_parameter(net: Any) -> None:
    net.a.weight = nn.Parameter(torch.randn(4, 4))


def replace_directly(net: Any) -> None:
    """As `module.to` does where it makes new parameters."""
    net.a._parameters["weight"] = nn.Parameter(torch.randn(4, 4))


def change_in_place(net: Any) -> None:
    net.a.weight.add_(1)


def optimize(net: Any) -> None:
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(net.parameters(), 0.1).step()


def load(net: Any) -> None:
    net.load_state_dict(Net().state_dict())


def load_by_assignment(net: Any) -> None:
    net.load_state_dict(Net().state_dict(), assign=True)


def set_data(net: Any) -> None:
    net.a.weight.data = torch.randn(4, 4)


def transpose_data(net: Any) -> None:
    """The same storage, another view of it."""
    net.a.weight.data = net.a.weight.data.t()


def transpose_in_place(net: Any) -> None:
    net.a.weight.t_()


def change_buffer(net: Any) -> None:
    net.shift.mul_(3)


def replace_buffer(net: Any) -> None:
    net.shift = torch.randn(4)


def replace_module(net: Any) -> None:
    net.a = nn.Linear(4, 4)


def replace_number(net: Any) -> None:
    net.scale = 3.0


def replace_function(net: Any) -> None:
    net.act = torch.sigmoid


def convert(net: Any) -> None:
    """There and back: new storages, under the same parameters."""
    net.double().float()
    net.a.weight.add_(1)


CHANGES = [
    replace_parameter, replace_directly, change_in_place, optimize, load, load_by_assignment,
    set_data, transpose_data, transpose_in_place, change_buffer, replace_buffer,
    replace_module, replace_number, replace_function, convert,
]  # fmt: skip


def test_changes_of_a_module_are_noticed(watching: None) -> None:
    """Each by what watches the module, or by what watches its tensors."""
    net, x = Net(), torch.randn(3, 4)
    for change in CHANGES:
        tensors = [*net.parameters(), *net.buffers()]
        of_values, of_places = (
            changes.watch_tensors(tensors, []),
            changes.watch_tensors([], tensors),
        )
        of_module, state = changes.watch_modules(net), changes.module_state(net)[0]
        before = net(x)
        assert of_values(None) and of_places(None) and of_module(None)
        change(net)
        assert not torch.equal(net(x), before), change.__name__
        assert not (of_values(None) and of_module(None)), change.__name__
        assert of_places(None) or not of_values(None)
        if of_values(None):
            assert changes.module_state(net)[0] != state, change.__name__


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_modules_without_dicts_are_not_misread(watching: None) -> None:
    scripted = torch.jit.script(nn.Linear(4, 4))
    assert changes.watch_modules(nn.Sequential(scripted))(None)


def test_calls_follow_a_module() -> None:
    """Changes one after the other; the call after the next is a steady one again."""
    net, x = Net(), torch.randn(3, 4)
    compiled = fuser.compile(net)
    for change in (replace_directly, optimize, load, set_data, replace_buffer, replace_number):
        torch.testing.assert_close(compiled(x), net(x))
        change(net)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), net(x), msg=change.__name__)


def test_changes_are_noticed_by_torch_compile() -> None:
    net, x = Net(), torch.randn(3, 4)
    fast = torch.compile(net, backend="fuser")
    for change in (replace_parameter, change_in_place, set_data, transpose_data, change_buffer):
        torch.testing.assert_close(fast(x), net(x))
        change(net)
        for _ in range(2):
            torch.testing.assert_close(fast(x), net(x), msg=change.__name__)


def test_a_mode_is_noticed_and_remembered() -> None:
    """train() of the module and of a part of it; its programs are kept."""
    net, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval(), torch.randn(6, 4)
    twin = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    twin.load_state_dict(net.state_dict())
    compiled = fuser.compile(net)
    for _ in range(2):
        for change in (lambda m: m.train(), lambda m: m[1].eval(), lambda m: m.eval()):
            change(net), change(twin)
            for _ in range(2):  # running statistics are changed by what is compiled
                torch.testing.assert_close(compiled(x), twin(x))
    torch.testing.assert_close(net.state_dict(), twin.state_dict())
    assert len(compiled._programs) == 3


def test_what_is_given_is_looked_at() -> None:
    """Shapes, dtypes, strides, gradients, views, the same tensor twice, names, numbers."""

    class Two(nn.Module):  # type: ignore[misc]
        def forward(self, x: Any, y: Any, k: int = 1) -> Any:
            return {"sum": x + y * k}

    net = Two()
    compiled = fuser.compile(net, threads=1)
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    pairs = [
        (x, y), (x.double(), y.double()), (x.t(), y), (x, x), (x[::2], y[1::2]),
        (x.clone().requires_grad_(), y), (torch._neg_view(x), y), (x[2:], y[:2]),
    ]  # fmt: skip
    for _ in range(2):
        for a, b in pairs:
            torch.testing.assert_close(compiled(a, b), net(a, b))
        torch.testing.assert_close(compiled(x, y, 3), net(x, y, 3))
        torch.testing.assert_close(compiled(y=y, x=x, k=3), net(x, y, 3))
        with torch.enable_grad():
            assert not compiled(x.clone().requires_grad_(), y)["sum"].requires_grad


def test_autocast_is_noticed() -> None:
    net, x = Net(), torch.randn(3, 4)
    compiled = fuser.compile(net)
    for _ in range(2):
        assert compiled(x).dtype == torch.float32
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(compiled(x), net(x), rtol=2e-2, atol=2e-2)


def test_an_exported_program_keeps_its_types() -> None:
    net, x = Net(), torch.randn(3, 4)
    compiled = fuser.compile(torch.export.export(net, (x,)))
    compiled(x)
    net.a.weight.data.add_(1)  # which PyTorch does not count
    compiled.refresh()
    torch.testing.assert_close(compiled(x), net(x))
    net.a.weight.data = net.a.weight.data.double()
    with pytest.raises(FeedError, match=r"is f32\[4, 4\], the feed is f64\[4, 4\]"):
        compiled(x)


def test_what_pytorch_does_not_count_needs_a_refresh() -> None:
    """The promise of `changes.py`; a plan may still see such a write, where it reads in place."""
    net, x = Net(), torch.randn(3, 4)
    compiled = fuser.compile(net)
    compiled(x)
    net.a.weight.data.add_(1)
    compiled.refresh()
    torch.testing.assert_close(compiled(x), net(x))


def test_two_threads_with_arguments_of_their_own() -> None:
    net = Net()
    compiled, wrong = fuser.compile(net), []
    for rows in (2, 3):  # PyTorch traces in one thread at a time
        compiled(torch.randn(rows, 4))

    def work(rows: int) -> None:
        generator = torch.Generator().manual_seed(rows)
        for _ in range(40):
            x = torch.randn(rows, 4, generator=generator)
            with torch.no_grad():
                if not torch.allclose(compiled(x), net(x), atol=1e-6):
                    wrong.append(rows)

    threads = [threading.Thread(target=work, args=(rows,)) for rows in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.cuda
def test_two_threads_with_streams_of_their_own() -> None:
    net = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4))).cuda()
    compiled, wrong = fuser.compile(net), []
    compiled(torch.randn(64, 256, device="cuda"))

    def work(seed: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream), torch.no_grad():
            generator = torch.Generator("cuda").manual_seed(seed)
            for _ in range(50):
                x = torch.randn(64, 256, device="cuda", generator=generator)
                y = compiled(x)
                if not torch.allclose(y, net(x), rtol=1e-2, atol=1e-2):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def events(call: Callable[[], Any]) -> int:
    """Calls of functions, Python's and builtin ones, within a call."""
    count = 0

    def note(_: Any, event: str, __: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    for _ in range(3):
        call()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


def many(parameters: int) -> Any:
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(parameters // 2)))


@pytest.mark.skipif(not NATIVE, reason="this Python or PyTorch keeps objects otherwise")
@pytest.mark.parametrize("freeze", [True, False])
def test_the_work_of_a_call_does_not_grow_with_parameters(freeze: bool) -> None:
    """Of the module, and of the graph that torch.compile hands over (what PyTorch does itself in
    front of it is its own)."""
    x = torch.randn(2, 4)
    found = []
    for parameters in (4, 24):
        net = many(parameters)
        compiled = fuser.compile(net, freeze=freeze)
        torch.testing.assert_close(compiled(x), net(x))
        captured: list[Any] = []
        fast = torch.compile(net, backend=capture(captured, freeze))
        torch.testing.assert_close(fast(x), net(x))
        (run, arguments) = captured[-1]
        assert len(arguments) == parameters + 1
        found.append((events(lambda: compiled(x)), events(lambda: run(list(arguments)))))  # noqa: B023
    assert found[0] == found[1]


def capture(captured: list[Any], freeze: bool) -> Any:
    """fuser's backend, and what its compiled graph was called with last."""
    from torch._dynamo.backends.common import aot_autograd

    from fuser.frontends.torch.backend import _compile_traced

    def compiler(graph: Any, _: Any) -> Any:
        run = _compile_traced(graph, program.Options(freeze=freeze), "forward")

        def note(arguments: Any) -> Any:
            captured.append((run, list(arguments)))
            return run(arguments)

        note._boxed_call = True  # type: ignore[attr-defined]
        return note

    return aot_autograd(fw_compiler=compiler)


def test_modules_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A steady call asks nothing of the module; one that changed is asked once."""
    if not NATIVE:
        pytest.skip("this Python or PyTorch keeps objects otherwise")
    net, x, asked = Net(), torch.randn(3, 4), []
    original = changes.module_state

    def noted(given: Any) -> Any:
        asked.append(given)
        return original(given)

    compiled = fuser.compile(net)
    compiled(x)
    monkeypatch.setattr(module, "module_state", noted)
    for _ in range(3):
        compiled(x)
    assert not asked
    net.unrelated = [1, 2]
    for _ in range(3):
        compiled(x)
    assert asked == [net]
