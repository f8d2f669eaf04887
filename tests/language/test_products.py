"""dot of tiles of more than three axes."""

from __future__ import annotations

import numpy as np
import pytest

import fuser
import fuser.language as fl
from tests.language.launching import DEVICES, launch


@pytest.mark.parametrize("device", DEVICES)
def test_a_product_for_each_place_of_the_leading_axes(device: str) -> None:
    @fuser.kernel
    def kernel(x, y, acc, out, TOTAL: fl.constexpr):
        at = fl.arange(0, 4 * 16 * 16)
        a, b, c = (fl.load(p + at).reshape(2, 2, 16, 16) for p in (x, y, acc))
        if TOTAL:
            found = fl.dot(a, b, c, input_precision="ieee")
        else:
            found = fl.dot(a, b, input_precision="ieee")
        fl.store(out + at, found.reshape(4 * 16 * 16))

    rng = np.random.default_rng(5)
    x, y, acc = rng.integers(-8, 8, (3, 2, 2, 16, 16)).astype(np.float32)
    for total in (False, True):
        out = np.zeros_like(x)
        launch(kernel, device, x, y, acc, out, total)
        np.testing.assert_array_equal(out, x @ y + acc * total)
