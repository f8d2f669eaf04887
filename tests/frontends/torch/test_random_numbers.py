"""Random numbers of programs through torch.compile: dropout in training, and what draws by name."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.functional import dropout, scaled_dot_product_attention  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

pytestmark = pytest.mark.export


@pytest.fixture(autouse=True)
def computed() -> Iterator[None]:
    """Nothing is left to PyTorch."""
    torch.manual_seed(11)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "fuser leaves")
        yield


def compiled(f: Any, **options: Any) -> Any:
    return torch.compile(f, backend="fuser", fullgraph=True, **options)


def seeded(f: Any, *given: Any, seed: int = 5) -> Any:
    torch.manual_seed(seed)
    return f(*given)


DRAWN: dict[str, tuple[Any, float, float]] = {
    "rand": (lambda x: torch.rand(x.shape), 1 / 2, 1 / 12),
    "rand, half": (lambda x: torch.rand(x.shape, dtype=torch.float16), 1 / 2, 1 / 12),
    "rand, double": (lambda x: torch.rand(x.shape, dtype=torch.float64), 1 / 2, 1 / 12),
    "rand_like": (lambda x: torch.rand_like(x), 1 / 2, 1 / 12),
    "randn": (lambda x: torch.randn(x.shape), 0, 1),
    "randn_like": (lambda x: torch.randn_like(x, dtype=torch.bfloat16), 0, 1),
    "bernoulli": (lambda x: torch.bernoulli(x * 0 + 0.3), 0.3, 0.21),
    "bernoulli of a number": (lambda x: torch.bernoulli(x, 0.7), 0.7, 0.21),
    "uniform_": (lambda x: torch.empty_like(x).uniform_(2, 5), 3.5, 9 / 12),
    "normal_": (lambda x: torch.empty_like(x).normal_(1, 2), 1, 4),
    "dropout": (lambda x: dropout(x * 0 + 1, 0.2), 1, 0.25),
}
"""What is drawn, its mean and its variance."""


@pytest.mark.parametrize("name", DRAWN)
def test_draws_have_their_distribution(name: str) -> None:
    f, mean, variance = DRAWN[name]
    fast, x = compiled(lambda x: f(x) + 0), torch.ones(150, 200)
    with torch.no_grad():
        first, second, again = seeded(fast, x), fast(x), seeded(fast, x)
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert first.dtype == f(x).dtype
    first, second = first.double(), second.double()
    error = 5 * (variance / x.numel()) ** 0.5  # five standard deviations of a mean
    for drawn in (first, second):
        assert abs(drawn.mean() - mean) < error
        assert drawn.var().item() == pytest.approx(variance, rel=0.1)
    for other in (second, first.roll(1, 0), first.roll(1, 1), first.flip(0)):  # uncorrelated
        covariance = ((first - mean) * (other - mean)).mean()
        assert abs(covariance) < 5 * variance / x.numel() ** 0.5


@pytest.mark.parametrize("bits", [8, 11, 24, 53])
def test_bits_are_those_of_the_operator_in_pytorch(bits: int) -> None:
    """A graph that is left to PyTorch has the same mask as the one that is not."""
    from fuser.frontends.torch import draws  # noqa: F401  which registers the operators

    seed = torch.tensor(0x123456789ABCDEF)
    uniform = torch.ops.fuser.random_uniform
    with torch.no_grad():
        for number, shape in enumerate([[7], [3, 5, 2], [129, 33], []]):
            fast = compiled(lambda s, n=number, z=shape: uniform(s, n, z, bits))
            wanted = uniform(seed, number, shape, bits)
            assert wanted.min() >= 0 and wanted.max() < 1
            torch.testing.assert_close(fast(seed), wanted, rtol=0, atol=0)
            torch._dynamo.reset()


def test_words_are_those_of_philox() -> None:
    """The known answer of its authors for a counter of (0, 0, 0, 0) and a key of zeros."""
    from fuser.frontends.torch.draws import _words

    first, second = _words(torch.tensor(0), 0, [1])
    assert [int(first), int(second)] == [0x6627E8D5, 0xE169C58D]


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dropout_has_one_mask_in_both_graphs(p: float, dtype: Any) -> None:
    x = torch.ones(40, 50, dtype=dtype, requires_grad=True)
    found = compiled(lambda x: dropout((x * 2).exp(), p, True) * 3)(x)
    found.float().sum().backward()
    kept = found != 0
    assert abs(kept.float().mean() - (1 - p)) < 5 * (p * (1 - p) / x.numel()) ** 0.5 + 1e-9
    wanted = (found.detach().double() * 2).to(dtype)
    torch.testing.assert_close(x.grad, wanted, rtol=4 * torch.finfo(dtype).eps, atol=0)


def test_several_draws_of_a_graph_differ() -> None:
    f = compiled(lambda x: (dropout(x, 0.5, True), dropout(x, 0.5, True), torch.rand_like(x)))
    one, two, three = f(torch.ones(64, 64, requires_grad=True))
    for a, b in ((one > 0, two > 0), (one > 0, three < 0.5)):
        assert 0.4 < (a == b).double().mean() < 0.6


def test_a_kept_mask_takes_a_byte() -> None:
    from tests.frontends.torch.test_training import kept_bytes

    x = torch.randn(64, 1024, requires_grad=True)
    loss = compiled(lambda x: dropout(x.sin(), 0.3, True).square().sum())(x)
    assert kept_bytes(loss) <= x.numel() + 64


def test_layers_train_with_dropout() -> None:
    """Two steps from equal seeds are equal; gradients are those of differences."""
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.3, batch_first=True).double()
    fast, x = compiled(layer), torch.randn(2, 5, 16, dtype=torch.float64)
    weigh = torch.randn(2, 5, 16, dtype=torch.float64)

    def loss(x: Any) -> Any:
        return (seeded(fast, x) * weigh).sum()

    leaf = x.clone().requires_grad_()
    loss(leaf).backward()
    assert (seeded(fast, leaf) == seeded(fast, leaf)).all()
    assert (seeded(fast, leaf) != seeded(fast, leaf, seed=6)).any()
    way = torch.randn_like(x)
    beyond, before = (loss((x + e * way).requires_grad_()).detach() for e in (1e-5, -1e-5))
    assert ((beyond - before) / 2e-5).item() == pytest.approx(
        (leaf.grad * way).sum().item(), rel=1e-5
    )


def test_attention_with_dropout() -> None:
    q, k, v = (torch.randn(2, 2, 64, 8, requires_grad=True) for _ in range(3))
    fast = compiled(lambda *x: scaled_dot_product_attention(*x, dropout_p=0.5))
    total = torch.stack([fast(q, k, v).detach() for _ in range(60)]).mean(0)
    plain = scaled_dot_product_attention(q, k, v).detach()
    assert (total - plain).norm() < 0.35 * plain.norm()
    assert (fast(q, k, v) - plain).norm() > 0.3 * plain.norm()
    fast(q, k, v).sum().backward()
    assert all(x.grad.isfinite().all() and x.grad.norm() > 0 for x in (k, v))


def test_checkpoints_draw_the_same_again() -> None:
    def f(x: Any) -> Any:
        part = checkpoint(lambda x: dropout(x.exp(), 0.5, True) * 2, x, use_reentrant=False)
        return part * 3

    x = torch.ones(30, 40, requires_grad=True)
    found = compiled(f)(x)
    found.sum().backward()
    torch.testing.assert_close(found.detach(), x.grad)


def test_draws_at_open_sizes() -> None:
    f = compiled(lambda x: dropout(x * 2, 0.5, True) * 3, dynamic=True)
    for rows in (4, 9, 17):
        x = torch.ones(rows, 30, requires_grad=True)
        found = f(x)
        found.sum().backward()
        torch.testing.assert_close(found.detach(), x.grad)
        assert 0.2 < (found == 0).double().mean() < 0.8


def test_a_state_of_the_generator_is_enough() -> None:
    f, x = compiled(lambda x: torch.rand_like(x) * 2), torch.ones(9)
    with torch.no_grad():
        f(x)
        state = torch.get_rng_state()
        first = f(x)
        torch.set_rng_state(state)
        torch.testing.assert_close(f(x), first, rtol=0, atol=0)
        with torch.random.fork_rng():
            torch.testing.assert_close(seeded(f, x), seeded(f, x), rtol=0, atol=0)


def test_other_draws_run_in_pytorch_in_their_order() -> None:
    """What is not computed has the numbers that PyTorch gives."""

    def f(x: Any) -> Any:
        return torch.multinomial(x.exp(), 3), torch.randperm(7), (x * 2).exp()

    with warnings.catch_warnings(record=True) as told, torch.no_grad():
        warnings.simplefilter("always")
        x = torch.rand(4, 6)
        torch.testing.assert_close(seeded(compiled(f), x), seeded(f, x))
    texts = [str(w.message) for w in told if "fuser leaves" in str(w.message)]
    assert len(texts) == 1 and "aten.multinomial" in texts[0] and "aten.randperm" in texts[0]
