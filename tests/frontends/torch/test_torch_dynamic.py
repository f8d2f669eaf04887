"""PyTorch programs whose sizes are open: results at many sizes, and how often fuser compiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import fuser  # noqa: E402
from fuser.errors import UsageError  # noqa: E402
from fuser.frontends.torch.sizes import open_sizes  # noqa: E402
from fuser.pipeline import variants  # noqa: E402

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore:.*treespec.*")]
nn, F = torch.nn, torch.nn.functional


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ranges that were compiled for."""
    found: list[str] = []
    build = variants.Variants._build

    def counted(self: Any, buckets: Any) -> Any:
        found.append(", ".join(f"{name} {bucket}" for name, bucket in buckets.items()))
        return build(self, buckets)

    monkeypatch.setattr(variants.Variants, "_build", counted)
    return found


class Mixer(nn.Module):  # type: ignore[misc]
    """Attention without parameters, sizes as numbers of a float and of an integer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 8)

    def forward(self, x: Any) -> Any:
        h = F.gelu(self.norm(self.a(x)))
        h = torch.softmax(h @ h.transpose(-1, -2) / 5.6, -1) @ h
        return self.b(h) + x.shape[1] * 0.5, h.sum(1) / x.shape[1], x.shape[0] + 1


class Tower(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        return self.head(F.max_pool2d(F.relu(self.norm(self.conv(x))), 2).flatten(2).mean(2))


class Tagger(nn.Module):  # type: ignore[misc]
    """Positions, a causal mask, and a reshape by a size."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(40, 16), nn.Embedding(200, 16)
        self.qkv = nn.Linear(16, 48)

    def forward(self, ids: Any) -> Any:
        n, length = ids.shape
        x = self.words(ids) + self.places(torch.arange(length, device=ids.device))
        q, k, v = (part.view(n, length, 2, 8).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.cat((x, y.transpose(1, 2).reshape(n, length, 16)), -1)


def floats(*shape: int) -> Any:
    return torch.randn(*shape)


def ids(n: int, length: int) -> Any:
    return torch.randint(0, 40, (n, length))


CASES: dict[str, tuple[Callable[[], Any], Callable[[int, int], Any], bool]] = {
    # module, input for (batch, length), whether the length is open too
    "mixer": (Mixer, lambda n, t: floats(n, t, 16), True),
    "tower": (Tower, lambda n, t: floats(n, 3, 8, 8), False),
    "tagger": (Tagger, lambda n, t: ids(n, t), True),
}
SIZES = ((3, 20), (5, 9), (2, 33), (9, 64), (4, 4), (17, 2))


def agree(found: Any, wanted: Any) -> None:
    for a, b in zip(torch.utils._pytree.tree_leaves(found),
                    torch.utils._pytree.tree_leaves(wanted), strict=True):  # fmt: skip
        if isinstance(b, int):
            assert a == b
        else:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_an_exported_program_with_open_sizes_is_compiled_once(
    name: str, compiles: list[str]
) -> None:
    make, feed, both = CASES[name]
    module = make().eval()
    shapes = {0: torch.export.Dim("n", min=2)} | ({1: torch.export.Dim("t", min=2)} if both else {})
    example = feed(3, 20)
    exported = torch.export.export(module, (example,), dynamic_shapes=(shapes,), strict=False)
    compiled = fuser.compile(exported)
    with torch.no_grad():
        for n, t in SIZES:
            x = feed(n, t)
            agree(compiled(x), module(x))
        assert len(compiles) == 1, compiles
        assert len(compiled.plans) == len(SIZES)
        if both:  # a longer sequence is of another range
            for t in (66, 100):
                x = feed(2, t)
                agree(compiled(x), module(x))
            assert len(compiles) == 2


@pytest.mark.parametrize("name", ["mixer", "tagger"])
def test_torch_compile_with_dynamic_is_compiled_once(name: str, compiles: list[str]) -> None:
    make, feed, _ = CASES[name]
    module = make().eval()
    fast = torch.compile(module, backend="fuser", dynamic=True)
    with torch.no_grad():
        for n, t in SIZES:
            x = feed(n, t)
            agree(fast(x), module(x))
        assert len(compiles) == 1, compiles
        for t in (20, 30):  # PyTorch traces a size of 1 anew
            x = feed(1, t)
            agree(fast(x), module(x))
        assert len(compiles) == 2


def test_training_at_many_sizes(compiles: list[str]) -> None:
    def loss_of(f: Any, x: Any) -> list[Any]:
        for parameter in module.parameters():
            parameter.grad = None
        loss = f(x)[0].square().mean()
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in module.parameters())]

    module = Mixer()
    fast = torch.compile(module, backend="fuser", dynamic=True)
    for n, t in ((3, 20), (5, 9), (2, 33)):
        x = floats(n, t, 16)
        agree(loss_of(fast, x), loss_of(module, x))
    assert len(compiles) <= 2, compiles  # the forward and the backward graph


def test_sizes_that_do_not_agree_with_the_program_are_not_open() -> None:
    """Two inputs of one symbol, fed with two sizes."""
    n = torch.export.Dim("n", min=2)
    exported = torch.export.export(
        Pair(), (floats(3, 4), floats(3, 4)), dynamic_shapes=({0: n}, {0: n}), strict=False
    )
    found = open_sizes(exported.graph_module)
    assert list(found.symbols.values()) == [True]
    assert found.at((floats(5, 4), floats(5, 4))) == dict.fromkeys(found.symbols, 5)
    assert found.at((floats(5, 4), floats(6, 4))) is None


class Pair(nn.Module):  # type: ignore[misc]
    def forward(self, x: Any, y: Any) -> Any:
        return x + y


def test_dynamic_of_a_module_is_refused() -> None:
    with pytest.raises(UsageError, match="ONNX"):
        fuser.compile(Pair(), dynamic=True)
