"""Constants of long epilogues stay out of the loops of dots (nest_constants.py)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
from onnx import numpy_helper, parser

from fuser.backend import cpu
from fuser.backend.cpu.loops import nest_constants
from fuser.base.target import X86_64_V4
from fuser.frontends.onnx.model import Model, open_model
from fuser.partition import partition
from fuser.pipeline.kernels import emit_programs
from fuser.tilegen.ir import Kernel
from tests.backend.cpu import native

M, K, N = 128, 1024, 768
GELU = f"""<ir_version: 8, opset_import: ["": 20]>
g (float[{M}, {K}] x) => (float[{M}, {N}] y) {{ h = MatMul (x, w) y = Gelu (h) }}"""
DIVIDED = f"""<ir_version: 8, opset_import: ["": 20]>
g (float[189, {K}] x) => (float[189, {N}] y) <float root = {{1.4142135}}> {{
  h = MatMul (x, w)  d = Div (h, root)  e = Erf (d)  y = Mul (h, e) }}"""
"""A division by one number compares integers; tiles of 9 rows leave it few registers."""
LOOP = re.compile(r"^(\.LBB\w+):\n((?:(?!\.LBB).*\n)*?)\s+j\w+\s+\1$", re.M)


@pytest.fixture(scope="module", params=[GELU, DIVIDED], ids=["gelu", "divided"])
def model(request: pytest.FixtureRequest) -> Model:
    proto = parser.parse_model(request.param)
    weights = np.random.default_rng(7).standard_normal((K, N), np.float32) / 32
    proto.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return open_model(proto)


def kernel_of(model: Model) -> Kernel:
    (program,) = emit_programs(partition(model.graph({}), X86_64_V4), X86_64_V4)
    return program.kernel


def stacked(kernel: Kernel) -> Iterator[int]:
    """Of every loop of a register tile: how many vectors of it are on the stack."""
    for _, body in LOOP.findall(cpu.assembly(kernel, X86_64_V4)):
        if body.count("vfmadd231ps") >= 16:
            yield len(re.findall(r"\(%rsp\).*%zmm|%zmm.*\(%rsp\)", body))


def test_sums_stay_in_registers(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = kernel_of(model)
    assert "blocks of k" in kernel.schedule.reason
    found = list(stacked(kernel))
    assert len(found) >= 2 and not any(found)
    monkeypatch.setattr(nest_constants, "FEWEST", 1 << 30)
    assert any(stacked(kernel)), "LLVM keeps them by itself: nest_constants.py can go"


def test_bits_do_not_change(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    (program,) = emit_programs(partition(model.graph({}), native.HOST), native.HOST)
    rng = np.random.default_rng(8)
    given = {b.name: rng.standard_normal(b.size, np.float32) for b in program.kernel.buffers}
    results = []
    for fewest in (nest_constants.FEWEST, 1 << 30):
        monkeypatch.setattr(nest_constants, "FEWEST", fewest)
        arrays = {name: array.copy() for name, array in given.items()}
        native.run(program.kernel, arrays)
        results.append(arrays)
    (output,) = (b.name for b in program.kernel.buffers if b.role == "output")
    assert np.isfinite(results[0][output]).all() and (results[0][output] != given[output]).any()
    assert results[0][output].tobytes() == results[1][output].tobytes()
