"""Each test draws the same numbers, whatever ran before it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernel_calls import test_traced


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    test_traced.RNG.bit_generator.state = np.random.default_rng(7).bit_generator.state
