"""Training through `torch.compile`: what is kept between the passes, and gradients beside eager."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy, scaled_dot_product_attention  # noqa: E402

pytestmark = pytest.mark.export


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(5)
    torch._dynamo.reset()
    yield


def kept_bytes(loss: Any) -> int:
    """Of the tensors that the backward pass of a compiled loss keeps, its inputs aside."""
    graph, seen = loss.grad_fn, {}
    while not type(graph).__name__.startswith("CompiledFunction"):
        graph = graph.next_functions[0][0]
    given = {f[0].variable.data_ptr() for f in graph.next_functions if hasattr(f[0], "variable")}
    for x in graph.saved_tensors:
        seen[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
    return sum(size for address, size in seen.items() if address not in given)


def compiled(f: Any) -> Any:
    return torch.compile(f, backend="fuser", fullgraph=True)


def gradients(f: Any, given: Any, weigh: Any) -> list[Any]:
    leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in given]
    (f(*leaves) * weigh).sum().backward()
    return [x.grad for x in leaves if x.requires_grad]


def compare(f: Any, given: Any, shape: Any, often: float = 2.0) -> None:
    """The error of gradients, against float64, is at most `often` that of PyTorch."""
    weigh = torch.randn(shape).to(given[0].dtype)
    wide = [x.double() if x.is_floating_point() else x for x in given]
    exact, eager = gradients(f, wide, weigh.double()), gradients(f, given, weigh)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "fuser leaves")
        found = gradients(compiled(f), given, weigh)
    rounding = torch.finfo(given[0].dtype).eps
    for ours, theirs, value in zip(found, eager, exact, strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        norm = value.norm()
        limit = often * max((theirs - value).norm() / norm, rounding)
        assert (ours - value).norm() / norm <= limit


def test_a_chain_keeps_its_input_alone() -> None:
    x = torch.randn(64, 1024, requires_grad=True)
    loss = compiled(lambda x: (x.sin() * x.tanh()).exp().sigmoid().square().sum())(x)
    assert kept_bytes(loss) == 0
    loss.backward()
    wanted = x.grad.clone()
    x.grad = None
    (x.sin() * x.tanh()).exp().sigmoid().square().sum().backward()
    torch.testing.assert_close(x.grad, wanted)


def test_activations_are_made_again() -> None:
    """Of an activation between matmuls its operand is kept, which the first matmul made."""
    x, up, down = torch.randn(64, 32), torch.randn(32, 512), torch.randn(512, 32)
    leaves = up.requires_grad_(), down.requires_grad_()
    loss = compiled(lambda a, b: (nn.functional.gelu(x @ a) @ b).square().sum())(*leaves)
    assert kept_bytes(loss) <= (64 * 512 + 2 * 64 * 32) * 4


def test_rows_keep_a_few_numbers_each() -> None:
    """Softmax, a norm and a loss over wide rows."""
    x, labels = torch.randn(32, 4096, requires_grad=True), torch.randint(4096, (32,))
    norm = nn.LayerNorm(4096)
    loss = compiled(lambda x: cross_entropy(norm(x).softmax(-1), labels))(x)
    assert kept_bytes(loss) <= x.nbytes + 64 * 32 + labels.nbytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_keeps_no_matrix_of_lengths(dtype: Any) -> None:
    q, k, v = (torch.randn(1, 2, 256, 8, dtype=dtype).requires_grad_() for _ in range(3))
    f = compiled(lambda *x: scaled_dot_product_attention(*x, is_causal=True).square().sum())
    loss = f(q, k, v)
    assert kept_bytes(loss) <= 4 * q.nbytes < 2 * 256 * 256 * q.itemsize


CASES = {
    "causal": ((2, 3, 37, 8), (2, 3, 37, 8), (2, 3, 37, 8), dict(is_causal=True)),
    "scaled": ((2, 3, 19, 8), (2, 3, 33, 8), (2, 3, 33, 5), dict(scale=0.3)),
    "groups": ((2, 6, 21, 8), (2, 2, 21, 8), (2, 2, 21, 8), dict(enable_gqa=True)),
    "flat": ((3, 17, 8), (3, 17, 8), (3, 17, 8), {}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_attention(name: str, dtype: Any) -> None:
    *shapes, options = CASES[name]
    given = [torch.randn(shape, dtype=dtype) for shape in shapes]
    compare(
        lambda q, k, v: scaled_dot_product_attention(q, k, v, **options), given,
        (*shapes[0][:-1], shapes[2][-1]),
    )  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_operator_of_attention_where_a_graph_is_left(name: str) -> None:
    """What an unsupported operator beside attention leads to."""
    *shapes, options = CASES[name]
    given = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    leaves = [x.requires_grad_() for x in given]
    out = scaled_dot_product_attention(*leaves, **options)
    grad = torch.randn_like(out)
    from fuser.frontends.torch import attention  # noqa: F401  which registers the operator

    found = torch.ops.fuser.attention_backward(
        grad, out.detach(), *(x.detach() for x in given), None, options.get("is_causal", False),
        options.get("scale"), options.get("enable_gqa", False),
    )  # fmt: skip
    torch.testing.assert_close(list(found), list(torch.autograd.grad(out, leaves, grad)))


@pytest.mark.parametrize("kind", ["bool", "float", "learned"])
def test_gradients_of_masked_attention(kind: str) -> None:
    q, k, v = (torch.randn(2, 2, 13, 8) for _ in range(3))
    if kind == "bool":
        mask = torch.rand(2, 1, 13, 13) > 0.4
        mask[0, :, 3] = False  # a query that sees nothing
    else:
        mask = torch.randn(1, 2, 13, 13)
    if kind == "learned":
        compare(lambda *x: scaled_dot_product_attention(*x), [q, k, v, mask], q.shape)
    else:
        compare(lambda q, k, v: scaled_dot_product_attention(q, k, v, mask), [q, k, v], q.shape)


class Tied(nn.Module):
    """A small language model whose head is its embedding."""

    def __init__(self, words: int = 131, width: int = 24) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)

    def forward(self, words: Any) -> Any:
        x = self.table(words)
        x = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        logits = nn.functional.linear(x, self.table.weight)
        return cross_entropy(logits[:, :-1].flatten(0, 1), words[:, 1:].flatten())


def test_steps_of_an_optimizer_follow_pytorch() -> None:
    """With a tied head; parameters change every step, and nothing is compiled again."""
    module = Tied()
    twin, words = copy.deepcopy(module), torch.randint(131, (3, 11))
    fast = compiled(module)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "fuser leaves")
        for _ in range(3):
            losses = []
            for net, call in ((module, fast), (twin, twin)):
                optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
                optimizer.zero_grad()
                loss = call(words)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
            torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-4)
    for a, b in zip(module.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("ignored", [-100, 2])
def test_gradients_of_a_loss_with_ignored_labels(ignored: int) -> None:
    labels = torch.randint(5, (21,))
    compare(lambda x: cross_entropy(x, labels, ignore_index=ignored), [torch.randn(21, 5)], ())


def test_a_loss_takes_no_memory_of_the_size_of_its_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of the chosen logits is a comparison within a kernel, no matrix of zeros."""
    from fuser.frontends.torch import backend

    made: list[Any] = []

    class Noted(backend.FxProgram):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            made.append(self)

    monkeypatch.setattr(backend, "FxProgram", Noted)
    x, labels = torch.randn(64, 8192, requires_grad=True), torch.randint(8192, (64,))
    compiled(lambda x: cross_entropy(x, labels))(x).backward()
    forward, backward = (program.plans[0].program for program in made)
    assert backward.arena_bytes < x.nbytes / 8
    assert sum(spec.bytes for spec in forward.outputs) < x.nbytes / 8  # x is handed on


class Residual(nn.Module):
    """What residual networks are of, small and odd."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first = nn.Conv2d(3, 6, 7, 2, 3, bias=False), nn.BatchNorm2d(6)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.down = nn.Conv2d(6, 10, 3, 2, 1, groups=2, bias=False)
        self.second = nn.BatchNorm2d(10)
        self.short = nn.Conv2d(6, 10, 1, 2)
        self.head = nn.Linear(10, 5)

    def forward(self, x: Any, labels: Any) -> Any:
        x = self.pool(self.first(self.stem(x)).relu())
        x = (self.second(self.down(x)) + self.short(x)).relu()
        return cross_entropy(self.head(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)), labels)


def test_a_step_of_a_residual_network() -> None:
    """Gradients and running statistics, beside float64."""
    module, x, labels = Residual(), torch.randn(3, 3, 37, 29), torch.randint(5, (3,))
    exact, eager = copy.deepcopy(module).double(), copy.deepcopy(module)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "fuser leaves")
        compiled(module)(x, labels).backward()
    eager(x, labels).backward()
    exact(x.double(), labels).backward()
    ours, theirs, wanted = (
        torch.cat([p.grad.double().flatten() for p in net.parameters()])
        for net in (module, eager, exact)
    )
    assert (ours - wanted).norm() <= 2 * (theirs - wanted).norm()
    for a, b in zip(module.buffers(), exact.buffers(), strict=True):
        torch.testing.assert_close(a, b.to(a.dtype))
