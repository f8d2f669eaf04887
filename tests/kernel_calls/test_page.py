"""What docs/kernels-in-graphs.md shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import fuser
from fuser.dtypes import f32
from tests.kernel_calls.kernels import rms_norm_of
from tests.kernel_calls.test_traced import floats
from tests.language.test_pages import blocks, module_of
from tests.numerics import assert_close


def test_the_page(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    sources = [text for kind, text in blocks("kernels-in-graphs.md") if kind == "python"]
    page: Any = module_of("\n\n".join(sources), tmp_path / "page_kernels.py")
    x, residual, weight = floats(5, 37), floats(5, 37), floats(37)
    y = np.exp(x.astype(np.float64))
    want = np.tanh(rms_norm_of(y + residual, weight, 1e-5))
    assert_close(page.block(x, residual, weight), want, f32, 37)
    assert page.block.trace(x, residual, weight).report().kernels.after == 1
    want = np.tanh(rms_norm_of(y, weight, 1e-5))
    given = torch.from_numpy(x), torch.from_numpy(weight)
    assert_close(page.fast(*given).numpy(), want, f32, 37)
    assert_close(page.norm_op(given[0].exp(), given[1]).tanh().numpy(), want, f32, 37)
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 20, "my.domain": 1]>
        page (float[5, 37] x, float[37] w) => (float[5, 37] y) {
            e = Exp(x)
            n = my.domain.RmsNorm<eps = 1e-5>(e, w)
            y = Tanh(n)
        }""")
    assert_close(fuser.compile(model).run({"x": x, "w": weight})["y"], want, f32, 37)
