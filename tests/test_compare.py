"""Outputs beside a reference: what is a mismatch, what is rounding."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fuser import dtypes
from fuser.dtypes import DType
from fuser.graph.evaluate import evaluate
from fuser.report.compare import compare
from tests.tilegen_emit.graphs import Model

ONES = np.ones((3, 5), np.float32)


def differs(out: Any, ref: Any, tolerance: float = 1e-5, **options: float) -> tuple[str, ...]:
    found = compare({"y": out}, {"y": ref}, tolerance=tolerance, **options)  # type: ignore[arg-type]
    assert found.ok == (not found.differs)
    return found.differs


def test_what_rounding_of_one_leaves_is_no_mismatch() -> None:
    """Numbers near one that cancel leave 1e-8 where the reference has 0 or less."""
    tiny = np.full((3, 5), 3e-8, np.float32)
    assert not differs(tiny, np.zeros((3, 5)))
    assert not differs(tiny, np.full((3, 5), 1e-12))
    assert differs(tiny * 10, np.zeros((3, 5)))
    assert differs(np.float64(tiny), np.zeros((3, 5)), 1e-12)
    assert differs(ONES * 1.001, ONES)
    assert not differs(ONES * 1.000001, ONES)


def test_integers_are_equal_or_differ() -> None:
    large = np.array([2**60, 5])
    assert not differs(large, large)
    assert "1 of 2" in differs(large + [1, 0], large)[0]
    assert differs(np.array([True]), np.array([1]))


def test_what_the_dtype_cannot_hold_is_infinite() -> None:
    """A float64 reference has 1e5 where float16 has infinity."""
    ref = np.array([1.0, 1e5, np.nan])
    assert not differs(ref.astype(np.float16), ref, 1e-2)
    assert "NaN or infinity" in differs(np.array([1.0, 2.0, np.nan], np.float16), ref, 1e-2)[0]


def test_types_that_numpy_files_keep_as_bytes() -> None:
    out = np.arange(4).astype(ml_dtypes.bfloat16)
    assert not differs(out, out.view("V2"), 1e-2)
    assert "expected is" in differs(out, np.zeros(4, "V3"))[0]


def test_text() -> None:
    words = np.array(["a", "b"], object)
    assert not differs(words, words)
    assert differs(words, words[::-1])


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f16])
def test_the_reference_decides_in_the_dtype_of_the_model(dtype: DType) -> None:
    """log(x / 8) / log(16) * 8 rounds to below 2 for some x, where float64 gives 2 or more: what
    is decided by it is decided so, and only that."""
    m = Model(dtype)
    x = m.input(1024)
    m.feeds["x0"] = np.arange(1, 1025).astype(dtype.numpy)
    scaled = m.b.map("div", m.b.emit("log", m.b.map("div", x, 8.0)), float(np.log(16)))
    scaled = m.b.map("mul", scaled, 8.0)
    m.output(m.b.emit("floor", scaled), m.b.cast(scaled, dtypes.i32))
    m.output(m.b.cast(m.b.map("ge", scaled, 2.0), dtype), scaled)
    own, wide = evaluate(m.graph, m.feeds), evaluate(m.graph, m.feeds, float64=True)
    for name in ("y0", "y1", "y2"):
        np.testing.assert_array_equal(own[name], wide[name])
    assert wide["y0"].dtype == wide["y3"].dtype == np.float64
    exact = np.log(np.arange(1, 1025) / 8) / np.log(dtype.numpy.type(16)).astype(float) * 8
    np.testing.assert_allclose(wide["y3"], exact, 1e-3, 1e-12)
    assert (np.floor(wide["y3"]) != wide["y0"]).any()
