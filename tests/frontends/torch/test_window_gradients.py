"""Gradients of convolutions and pools, beside PyTorch's: as graphs, evaluated, for many parameters;
as kernels for a few."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fuser.dtypes import f64  # noqa: E402
from fuser.frontends.torch import pools  # noqa: E402, F401  which registers an operator
from fuser.frontends.torch.importer import Input, import_fx  # noqa: E402
from fuser.graph.evaluate import evaluate  # noqa: E402
from fuser.graph.ir import TensorType  # noqa: E402

pytestmark = pytest.mark.export


def evaluated(operator: Any, *given: Any) -> list[Any]:
    """What the import of a call means; tensors among the arguments are its inputs. None for
    results that are none."""
    graph = torch.fx.Graph()
    arguments = [
        graph.placeholder(f"x{i}") if isinstance(x, torch.Tensor) else x
        for i, x in enumerate(given)
    ]
    graph.output(graph.call_function(operator, tuple(arguments)))
    tensors = {f"x{i}": x.numpy() for i, x in enumerate(given) if isinstance(x, torch.Tensor)}
    inputs = [Input(name, TensorType(f64, x.shape)) for name, x in tensors.items()]
    imported = import_fx(torch.fx.GraphModule(torch.nn.Module(), graph), inputs, "test")
    found = evaluate(imported.graph, tensors, float64=True)
    names = imported.graph.output_names
    return [found[names[at]] if isinstance(at, int) else at[1] for at in imported.results]


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_gradients_of_convolutions(rank: int) -> None:
    rng = np.random.default_rng(rank)
    met = 0
    while met < 60 // rank:
        groups = int(rng.choice([1, 1, 2, 3]))
        inner, outer = (groups * int(rng.integers(1, 4)) for _ in range(2))
        window = [int(n) for n in rng.integers(1, 4, rank)]
        steps, gaps = ([int(n) for n in rng.integers(1, 4, rank)] for _ in range(2))
        pads = [int(n) for n in rng.integers(0, 4, rank)]
        transposed = bool(rng.integers(2))
        more = [int(rng.integers(max(s, d))) for s, d in zip(steps, gaps, strict=True)]
        image = [int(n) for n in rng.integers(1, 9, rank)]
        x = torch.from_numpy(rng.standard_normal((2, inner, *image)))
        shape = (inner, outer // groups) if transposed else (outer, inner // groups)
        weight = torch.from_numpy(rng.standard_normal((*shape, *window)))
        more = more if transposed else [0] * rank
        options = (steps, pads, gaps, transposed, more, groups)
        try:
            y = torch.ops.aten.convolution(x, weight, None, *options)
        except RuntimeError:
            continue  # nothing left of the image
        if not y.numel():
            continue
        met += 1
        wanted = [bool(n) for n in rng.integers(0, 2, 3)]
        wanted[met % 3] = True
        grad = torch.from_numpy(rng.standard_normal(y.shape))
        given = (grad, x, weight, [outer], *options, wanted)
        exact = torch.ops.aten.convolution_backward(*given)
        ours = evaluated(torch.ops.aten.convolution_backward.default, *given)
        for one, other in zip(ours, exact, strict=True):
            assert (one is None) == (other is None)
            if other is not None:
                assert np.abs(one - other.numpy()).max(initial=0) < 1e-11, options


@pytest.mark.parametrize("rank", [2, 3])
def test_gradients_of_pools(rank: int) -> None:
    """With ties, NaN and infinities for the maximum."""
    aten, rng = torch.ops.aten, np.random.default_rng(rank)
    for number in range(40 // rank):
        window, steps, gaps = ([int(n) for n in rng.integers(1, m, rank)] for m in (4, 4, 3))
        pads = [int(rng.integers(width // 2 + 1)) for width in window]
        image = [int(n) for n in rng.integers(7, 10, rank)]
        x = torch.from_numpy(rng.integers(-2, 3, (2, 2, *image)).astype(float))
        ceil, counted = bool(rng.integers(2)), bool(rng.integers(2))
        divisor = None if rng.integers(2) else 5
        steps = steps if number % 3 else []
        plain = (window, steps, pads, ceil, counted, divisor)
        y = getattr(aten, f"avg_pool{rank}d")(x, *plain)
        grad = torch.from_numpy(rng.standard_normal(y.shape))
        operator = getattr(aten, f"avg_pool{rank}d_backward")
        (ours,) = evaluated(operator.default, grad, x, *plain)
        assert np.abs(ours - operator(grad, x, *plain).numpy()).max() < 1e-13, plain
        grad = torch.from_numpy(rng.standard_normal((2, 2, *window)))
        operator = getattr(aten, f"_adaptive_avg_pool{rank}d_backward")
        (ours,) = evaluated(operator.default, grad, x)
        assert np.abs(ours - operator(grad, x).numpy()).max() < 1e-13, (window, image)
        x[0, 0, 0, 1], x[0, 1, 2] = torch.nan, -torch.inf
        options = (window, steps, pads, gaps, ceil)
        y, indices = getattr(aten, f"max_pool{rank}d_with_indices")(x, *options)
        grad = torch.from_numpy(rng.standard_normal(y.shape))
        exact = getattr(aten, f"max_pool{rank}d_with_indices_backward")(grad, x, *options, indices)
        (ours,) = evaluated(torch.ops.fuser.max_pool_backward.default, grad, x, *options)
        assert np.abs(ours - exact.numpy()).max() < 1e-13, options
