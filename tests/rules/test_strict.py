"""A sample of `python -m tests.rules.strict`."""

from __future__ import annotations

import pytest

from tests.rules.strict import check


@pytest.mark.parametrize("start", range(0, 60, 20))
def test_strict_graphs_have_the_bits_of_their_operators(start: int) -> None:
    wrong = [text for seed in range(start, start + 20) if (text := check(seed))]
    assert not wrong


def test_model_graphs_of_wide_floats_have_them_too() -> None:
    wrong = [text for seed in range(20) if (text := check(seed, numerics="model"))]
    assert not wrong


@pytest.mark.cuda
def test_strict_graphs_on_a_gpu() -> None:
    wrong = [text for seed in range(60) if (text := check(seed, "cuda"))]
    assert not wrong
