"""Results of PyTorch programs as memory: what they share with arguments and with each other, what
strides they have, and what is written to them afterwards, at fixed and at open sizes."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import fuser  # noqa: E402
from fuser.errors import UnsupportedError  # noqa: E402

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore:.*treespec.*")]
nn, F = torch.nn, torch.nn.functional
Function = Callable[..., Any]
MODES = ("no_grad", "grad", "train")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


VIEWS: dict[str, Function] = {
    "slice to the end but one": lambda x: x[..., : x.shape[-1] - 1],
    "half": lambda x: x[..., x.shape[-1] // 2 :],
    "rows": lambda x: x[1:],
    "steps": lambda x: x[..., ::2],
    "transposed": lambda x: x.transpose(0, -1),
    "flat": lambda x: x.reshape(-1),
    "flat, cut": lambda x: x.reshape(-1)[1:],
    "one more axis": lambda x: x.unsqueeze(1),
    "expand": lambda x: x.unsqueeze(0).expand(2, *x.shape),
    "narrow": lambda x: x.narrow(-1, 1, x.shape[-1] - 1),
    "chunk": lambda x: x.chunk(2, -1)[-1],
    "split": lambda x: x.split([1, x.shape[-1] - 1], -1)[1],
    "windows": lambda x: x.unfold(-1, 2, 1),
    "diagonal": lambda x: x.diagonal(1, 0, -1) if x.ndim > 1 else x,
    "row": lambda x: x[0] if x.ndim > 1 else x,
    "column": lambda x: x[..., -1] if x.ndim > 1 else x,
    "as_strided": lambda x: x.as_strided((2, x.shape[-1] - 1), (x.shape[-1], 1)),
    "as_strided, overlapping": lambda x: x.as_strided((2, x.shape[-1] - 1), (1, 1), 1),
    "alias": lambda x: x[:],
    "part by a fraction": lambda x: x[..., : round(x.shape[-1] * 0.7)],
    "rounded up": lambda x: x[..., : -(-x.shape[-1] // 2)],
}

LAYOUTS: dict[str, Function] = {
    "row-major": lambda x: x,
    "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "within memory": lambda x: torch.cat([torch.ones(3), x.reshape(-1)])[3:].view(x.shape),
    "with gaps": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
}


def _chain(names: tuple[str, ...]) -> Function:
    def view(x: Any) -> Any:
        for name in names:
            x = VIEWS[name](x)
        return x

    return view


def _programs(view: Function) -> dict[str, Function]:
    """Programs of two tensors with this view."""

    def changed(x: Any, y: Any) -> Any:
        x.add_(1)
        return view(x), x * y

    def changed_within(x: Any, y: Any) -> Any:
        x[..., 1:].mul_(2)
        return view(x), y

    def changed_result(x: Any, y: Any) -> Any:
        z = x * 2
        w = view(z)
        z.add_(1)
        return w, y

    def swapped(x: Any, y: Any) -> Any:
        t = x.clone()
        x.copy_(y)
        y.copy_(t)
        return view(x), y

    def late(y: Any, x: Any) -> Any:
        x.copy_(y)
        y.add_(1)
        return view(y), view(x) * 2

    return {
        "of an argument": lambda x, y: view(x),
        "of a result": lambda x, y: (lambda z: (z, view(z)))(x * 2 + y),
        "of a result alone": lambda x, y: view(x * 2),
        "of a hidden result": lambda x, y: (lambda z: (view(z), z[..., 1:], z[1:], z.mT))(x * 2),
        "of both": lambda x, y: (lambda z: (view(z), view(x), x + 1))(x * 2),
        "of two": lambda x, y: (view(x), view(y), x),
        "of what is changed": changed,
        "of what is changed within": changed_within,
        "of a result that is changed": changed_result,
        "of what is swapped": swapped,
        "of what is read late": late,
    }


def _listed(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


def _alike(x: Any, y: Any) -> bool:
    """Whether tensors are equal, and have the same strides where these matter."""
    if x.shape != y.shape or not torch.equal(x, y):
        return False
    return x.numel() == 0 or all(
        a == b for a, b, n in zip(x.stride(), y.stride(), x.shape, strict=True) if n > 1
    )


def _weighted(x: Any) -> Any:
    return (x * torch.arange(1.0, x.numel() + 1).view(x.shape)).sum()


def _compare(
    f: Function, shapes: list[tuple[int, ...]], layout: str, mode: str, dynamic: bool | None
) -> None:
    """At each shape: results, arguments afterwards, gradients, and all of it after writing to the
    results."""
    compiled = torch.compile(f, backend="fuser", dynamic=dynamic)
    for shape in shapes:
        values = [torch.randn(shape), torch.randn(shape)]
        leaves = [[v.clone().requires_grad_(mode == "train") for v in values] for _ in range(2)]
        arrange = LAYOUTS[layout]
        wanted_given, given = (
            [arrange(x * 1 if mode == "train" else x) for x in xs] for xs in leaves
        )
        with torch.set_grad_enabled(mode != "no_grad"), warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)  # nothing is left to PyTorch
            wanted, found = _listed(f(*wanted_given)), _listed(compiled(*given))
        pairs = list(zip([*wanted, *wanted_given], [*found, *given], strict=True))
        assert all(_alike(a, b) for a, b in pairs)
        if any(x.requires_grad for x in wanted):
            one, other = (
                torch.autograd.grad(
                    sum(map(_weighted, results)),
                    tensors, allow_unused=True,
                )
                for results, tensors in ((wanted, leaves[0]), (found, leaves[1]))
            )  # fmt: skip
            for a, b in zip(one, other, strict=True):
                zero = torch.zeros(shape)
                torch.testing.assert_close(zero if b is None else b, zero if a is None else a)
        with torch.no_grad():
            for number, (a, b) in enumerate(zip(wanted, found, strict=True)):
                try:
                    a.add_(number + 1.5)
                except RuntimeError:  # elements share memory
                    continue
                b.add_(number + 1.5)
            assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(("name", "mode"), [(n, MODES[i % 3]) for i, n in enumerate(VIEWS)])
def test_views_of_arguments_and_results_at_many_sizes(name: str, mode: str) -> None:
    if "overlapping" in name and mode == "train":
        mode = "grad"  # AOTAutograd's own gradients are others than PyTorch's
    view = _chain((name,))
    _compare(
        lambda x, y: (view(x), view(x + 1), x * 2, y),
        [(4, 6), (4, 10), (5, 8)],
        "row-major",
        mode,
        None,
    )


HIDDEN: dict[str, Function] = {
    "rows": lambda z: (z[:3], z[1:]),
    "columns": lambda z: (z[:, :3], z[:, 2:], z[:, -1]),
    "row and column": lambda z: (z[1], z[:, 2], z[:1]),
    "apart": lambda z: (z[:1], z[2:], z[1:2, :1]),
    "apart at first": lambda z: (z[:2], z[z.shape[0] - 2 :]),
    "steps": lambda z: (z[::2], z[1::2], z[::3]),
    "parts": lambda z: (*z.chunk(2, 1), z[:1]),
    "of a view": lambda z: (lambda w: (w[:2], w[1:].mT, w[:2, 1:]))(z.mT[1:]),
    "flat": lambda z: (z.view(-1)[:7], z.flatten()[5:]),
    "expanded": lambda z: (z[:1].expand(3, z.shape[1]), z[:, 1:]),
    "nothing": lambda z: (z[:0], z[:, :1]),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", HIDDEN)
def test_views_of_a_tensor_that_is_no_result(name: str, mode: str) -> None:
    """What is written to one is seen in the other, also where they met at other sizes only."""
    for dynamic in (False, True):
        shapes = [(5, 6), (3, 4), (4, 7)] if dynamic else [(5, 6)]
        _compare(lambda x, y: (*HIDDEN[name](x * 2), y), shapes, "row-major", mode, dynamic)


@pytest.mark.parametrize("seed", range(12))
def test_random_views_in_random_programs(seed: int) -> None:
    r = random.Random(seed)
    names = tuple(r.choice(list(VIEWS)) for _ in range(r.randint(1, 3)))
    mode, dynamic, layout = r.choice(MODES), r.choice([None, True, False]), r.choice([*LAYOUTS])
    if mode == "train" and not {"windows", "as_strided, overlapping"}.isdisjoint(names):
        mode = "grad"  # AOTAutograd's own gradients are others than PyTorch's
    programs = _programs(_chain(names))
    f = programs[r.choice(list(programs))]
    rank = r.choice([2, 3])
    shapes = [(r.randint(4, 7), *[4] * (rank - 2), r.choice([6, 8, 9, 11])) for _ in range(3)]
    try:
        for shape in shapes:
            with torch.no_grad():
                f(*[LAYOUTS[layout](torch.randn(shape)) for _ in range(2)])
    except (RuntimeError, IndexError, ValueError):
        pytest.skip("PyTorch refuses it")
    _compare(f, shapes, layout, mode, dynamic)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_what_is_written_to_a_view_is_written_to_the_argument(grad: bool, dynamic: bool) -> None:
    f = lambda x: x[:, : x.shape[1] - 1]  # noqa: E731
    compiled = torch.compile(f, backend="fuser", dynamic=dynamic)
    with torch.set_grad_enabled(grad):
        for width in (6, 10, 8):
            whole = torch.zeros(5, width)
            x = whole[1:]  # begins within its memory
            compiled(x).fill_(1)
            assert whole.sum(1).tolist() == [0.0, *[width - 1.0] * 4]


def _assigned(v: Any, at: Any, value: Any) -> None:
    v[at] = value


SHARED: dict[str, Function] = {
    "a mask of an expanded": lambda x: _assigned(y := x[0].expand(3, 5), y > 0, 3.0),
    "a mask of a broadcast number": lambda x: _assigned(
        y := torch.broadcast_to(x[0, 0], (4,)), y > -9, 1.0
    ),
    "a row of an expanded": lambda x: _assigned(x[:1].expand(3, 5), 0, 2.0),
    "indices of an expanded": lambda x: _assigned(x[0].expand(3, 5), torch.tensor([1, 2]), 7.0),
    "an element, added to": lambda x: x[0].expand(3, 5)[1].add_(1),
    "a row in place": lambda x: torch.relu_(x[0].expand(3, 5)[1]),
    "a row by inplace": lambda x: F.relu(x[0].expand(3, 5)[1], inplace=True),
    "a row by inplace, by position": lambda x: F.relu(x[0].expand(3, 5)[1], True),
    "a row by out": lambda x: torch.mul(x[1], 2, out=x[0].expand(3, 5)[1]),
    "overlapping rows": lambda x: x.as_strided((3, 2), (1, 1)).mul_(2),
    "windows": lambda x: x.unfold(1, 2, 1).zero_(),
    "a window": lambda x: _assigned(x.unfold(1, 2, 1), (0, 1), 5.0),
    "windows that leave a column out": lambda x: x.unfold(1, 2, 2).mul_(2),
    "a view twice away": lambda x: x[:2].unsqueeze(0).expand(2, 2, 5).transpose(0, 1)[0][1].neg_(),
}
"""Writes to elements of which several are one in memory, and to windows with gaps."""

REASON = "several elements are one in memory|leave some elements out"


def _as_eager(f: Function, make: Callable[[], Any], dynamic: bool | None = None) -> list[str]:
    """What fuser warns of; results and arguments are compared with eager PyTorch."""
    x, y = make(), make()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found, wanted = torch.compile(f, backend="fuser", dynamic=dynamic)(x), f(y)
    torch.testing.assert_close((found, x), (wanted, y), rtol=0, atol=0)
    return [str(w.message) for w in caught if str(w.message).startswith("fuser leaves")]


@pytest.mark.parametrize(("name", "grad"), [(n, bool(i % 2)) for i, n in enumerate(SHARED)])
def test_writes_to_elements_that_share_memory_are_those_of_pytorch(name: str, grad: bool) -> None:
    def f(x: Any) -> Any:
        y = x * 2
        SHARED[name](y)
        SHARED[name](x)
        return y + 1, x.sum(0)

    make = lambda: torch.arange(15.0).reshape(3, 5) - 4.5  # noqa: E731
    with torch.set_grad_enabled(grad):
        (told,) = _as_eager(f, make)
    assert re.search(REASON, told) and "(at " in told

    class Module(nn.Module):
        def forward(self, x: Any) -> Any:
            return f(x)

    with pytest.raises(UnsupportedError, match=REASON):
        fuser.compile(Module(), example_inputs=(make(),), device="cpu")


APART: dict[str, Function] = {
    "the tensor that is expanded": lambda x: (x.expand(2, 3, 5) * 2, x.add_(1)),
    "a clone of an expanded": lambda x: x[0].expand(3, 5).clone().mul_(x),
    "expanded to what it is": lambda x: x.expand(3, 5).mul_(2),
    "one row": lambda x: x[:1].expand(1, 5).mul_(2),
    "rows apart": lambda x: x.as_strided((2, 2), (5, 2)).mul_(2),
    "windows apart": lambda x: x.unfold(1, 5, 5).mul_(2),
    "turned": lambda x: _assigned(x.mT, (slice(1, 3), 0), 4.0),
    "a diagonal": lambda x: x.diagonal().mul_(3),
}
"""Writes to elements that are apart, near tensors whose elements are not."""


@pytest.mark.parametrize(("name", "dynamic"), [(n, bool(i % 2)) for i, n in enumerate(APART)])
def test_writes_to_elements_that_are_apart_are_compiled(name: str, dynamic: bool) -> None:
    def f(x: Any) -> Any:
        return APART[name](x), x.sum(0)

    with torch.no_grad():
        assert _as_eager(f, lambda: torch.arange(15.0).reshape(3, 5) - 4.5, dynamic) == []


SCATTERED: dict[str, Function] = {
    "select_scatter": lambda v: torch.select_scatter(v, v.select(-1, 0) * 2, -1, 0),
    "slice_scatter": lambda v: torch.slice_scatter(v, v[:, :1] * 2, 1, 0, 1),
    "diagonal_scatter": lambda v: torch.diagonal_scatter(v, v.diagonal() * 2),
    "as_strided_scatter": lambda v: torch.as_strided_scatter(v, v[:, 0] * 2, (4,), (1,), 0),
    "a method": lambda v: v.slice_scatter(v[1:] * 2, 0, 1),
}
"""Operators whose result has the strides of their operand."""


@pytest.mark.parametrize("name", list(SCATTERED))
def test_updates_of_copies_whose_elements_share_memory(name: str) -> None:
    def f(x: Any) -> Any:
        return SCATTERED[name](x.as_strided((4, 2), (1, 1))) + 1

    with torch.no_grad():
        (told,) = _as_eager(f, lambda: torch.arange(15.0) + 1)
        assert re.search(REASON, told)
        g = lambda x: SCATTERED[name](x.as_strided((4, 2), (2, 1))) + 1  # noqa: E731
        assert _as_eager(g, lambda: torch.arange(15.0) + 1) == []


def test_writes_to_tensors_whose_sizes_data_decide() -> None:
    def f(x: Any) -> Any:
        y = x[x > 0].clone()
        return y.mul_(2).sum()

    def g(x: Any) -> Any:
        y = x[x > 0]
        v = y[:, None].expand(-1, 2)
        v[v > 1] = 7
        return y.sum()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True), torch.no_grad():
        make = lambda: torch.arange(5.0) - 2  # noqa: E731
        assert not any("one in memory" in text for text in _as_eager(f, make))
        (told,) = _as_eager(g, make)
        assert "one in memory" in told


STRIDES: dict[str, tuple[Function, Function]] = {
    "channels_last": (lambda: _image(), lambda x: x * 2),
    "channels_last, a convolution": (
        lambda: _image(), lambda x: F.conv2d(x, torch.ones(4, 3, 2, 2))
    ),
    "channels_last asked for": (
        lambda: torch.randn(2, 3, 4, 5), lambda x: (x + 1).to(memory_format=torch.channels_last)
    ),
    "transposed": (lambda: torch.randn(4, 6).t(), lambda x: x * 2),
    "a transposed result": (lambda: torch.randn(4, 6), lambda x: (x * 2).t()),
    "three axes turned": (lambda: torch.randn(2, 3, 4), lambda x: (x + 1).permute(2, 0, 1)),
    "turned, then computed": (lambda: torch.randn(2, 3, 4), lambda x: x.permute(2, 0, 1).exp()),
    "part of a result": (lambda: torch.randn(6, 8), lambda x: (x * 2)[:, 1:7]),
    "little of a result": (lambda: torch.randn(64, 8), lambda x: (x * 2)[:2, ::4]),
    "an expanded result": (lambda: torch.randn(6), lambda x: (x * 2).expand(4, 6)),
    "windows of a result": (lambda: torch.randn(3, 8), lambda x: (x * 2).unfold(1, 3, 1)),
    "a matmul of turned operands": (
        lambda: torch.randn(2, 5, 4).transpose(1, 2), lambda x: x @ x.transpose(1, 2)
    ),
    "one element wide": (lambda: torch.randn(4, 1, 3, 1).transpose(0, 1), lambda x: x + 1),
    "nothing": (lambda: torch.randn(4, 0, 3).transpose(0, 2), lambda x: x + 1),
    "large": (lambda: torch.randn(300, 500).t(), lambda x: x * 2),
}  # fmt: skip


def _image() -> Any:
    return torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)


@pytest.mark.parametrize(("name", "dynamic"), [(n, bool(i % 2)) for i, n in enumerate(STRIDES)])
def test_results_have_the_strides_of_the_traced_program(name: str, dynamic: bool) -> None:
    make, f = STRIDES[name]
    x = make()
    compiled = torch.compile(lambda x: (y := f(x), y.stride()), backend="fuser", dynamic=dynamic)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        found, traced = compiled(x)
    assert found.stride() == traced
    assert found.shape == f(x).shape
    torch.testing.assert_close(found, f(x))


DETACHED: dict[str, Function] = {
    "beside a row": lambda y: (y.detach(), y[0]),
    "after a row": lambda y: (y[0], y.detach()),
    "beside what is viewed": lambda y: (y.detach(), y),
    "beside a view of all": lambda y: (y.detach(), y.mT),
    "beside what is computed": lambda y: (y.detach(), y.exp()),
    "twice": lambda y: (y.detach(), y.detach(), y[1:]),
    "of another shape": lambda y: (y.detach().exp(), y.flatten(), y[0]),
}


@pytest.mark.parametrize(("name", "dynamic"), [(n, bool(i % 2)) for i, n in enumerate(DETACHED)])
def test_detached_results_want_no_gradient(name: str, dynamic: bool) -> None:
    f = lambda x: DETACHED[name](x.sin() * 2)  # noqa: E731
    x, other = (torch.arange(6.0).reshape(2, 3).requires_grad_() for _ in range(2))
    found, wanted = torch.compile(f, backend="fuser", dynamic=dynamic)(x), f(other)
    assert [y.requires_grad for y in found] == [y.requires_grad for y in wanted]
    for results in (found, wanted):
        torch.autograd.backward([y.sum() for y in results if y.requires_grad])
    torch.testing.assert_close((found, x.grad), (wanted, other.grad))
    found[0].detach().fill_(3)  # what is detached is in the same memory
    wanted[0].detach().fill_(3)
    torch.testing.assert_close(found, wanted)


OF_HIDDEN: dict[str, Function] = {
    "diagonal": lambda x: x.diagonal(),
    "transposed": lambda x: x.transpose(0, 1),
    "transposed, steps": lambda x: x.transpose(0, 1)[:, ::2],
    "permuted": lambda x: x.permute(2, 0, 3, 1)[1:],
    "select": lambda x: x.permute(3, 2, 1, 0).select(2, 1),
    "windows": lambda x: x.unfold(0, 2, 2),
}
MADE_OF_VIEWS: dict[str, list[Function]] = {
    "written": [lambda x: x.fill_(2), lambda x: x.mul_(2), lambda x: x.copy_(x * 3), torch.relu_],
    "left to PyTorch": [torch.special.i0, lambda x: torch.special.i0(torch.special.i0(x) + 1)],
}


@pytest.mark.parametrize("made", MADE_OF_VIEWS)
@pytest.mark.parametrize("name", OF_HIDDEN)
def test_strides_of_what_is_made_of_a_view_of_a_hidden_tensor(name: str, made: str) -> None:
    def f(x: Any) -> Any:
        return [make(OF_HIDDEN[name](x * 2)) for make in MADE_OF_VIEWS[made]]

    compiled = torch.compile(f, backend="fuser")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "fuser leaves operators")
        for rows in (5, 3):  # of an open size, then
            x = torch.randn(rows, 7, 4, 2)
            assert all(map(_alike, compiled(x.clone()), f(x)))


def test_results_of_training_in_channels_last() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 1))
    module = module.to(memory_format=torch.channels_last)
    x, other = _image().requires_grad_(), None
    wanted = module(x)
    other = x.detach().clone().requires_grad_()
    found = torch.compile(module, backend="fuser")(other)
    assert found.stride() == wanted.stride()
    assert not found._is_view()
    found.detach().add_(1)
    torch.testing.assert_close(found, wanted + 1)
    module.zero_grad()
    wanted.square().sum().backward()
    wanted_grads = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    found = torch.compile(module, backend="fuser")(other)
    found.square().sum().backward()
    torch.testing.assert_close(other.grad, x.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close([p.grad for p in module.parameters()], wanted_grads)


READS: dict[str, Function] = {
    "within": lambda x: x.as_strided((2, 3), (3, 1)) * 2,
    "from an offset": lambda x: x.as_strided((2, 3), (1, 2), 2) + x[0, 0],
    "overlapping": lambda x: x.as_strided((3, 3), (1, 1), 0).sum(0),
    "of a view": lambda x: x[1:].as_strided((2, 2), (2, 1)) + 1,
    "of a result": lambda x: (x * 2).as_strided((2, 3), (1, 2), 1) + 1,
    "of a view of a result": lambda x: (x * 2)[1:].as_strided((2, 2), (2, 1)) + 1,
}


@pytest.mark.parametrize(
    ("name", "layout"), [(n, [*LAYOUTS][i % 4]) for i, n in enumerate([*READS, *READS][:10])]
)
def test_as_strided_reads_memory_whatever_the_layout(name: str, layout: str) -> None:
    f = READS[name]
    x = LAYOUTS[layout](torch.randn(4, 6))
    compiled = torch.compile(f, backend="fuser")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        torch.testing.assert_close(compiled(x), f(x))
