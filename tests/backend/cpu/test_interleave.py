"""Long chains of elementwise operations: several vectors at once, with the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

import fuser
from fuser.backend import cpu
from fuser.base.target import X86_64_V3, X86_64_V4, Target
from fuser.partition import partition
from fuser.pipeline.kernels import emit_programs
from tests.test_growth import LINKS, chain, imported


def text(kind: str, links: int, shape: str, target: Target) -> str:
    (program,) = emit_programs(partition(imported(chain(kind, links, shape)), target), target)
    return cpu.lower_to_llvm(program.kernel, target)


@pytest.mark.parametrize("target,width", [(X86_64_V3, 8), (X86_64_V4, 16)], ids=["avx2", "avx512"])
@pytest.mark.parametrize("shape", ["64, 64", "1000, 1003"])
def test_long_chains_take_several_vectors(shape: str, target: Target, width: int) -> None:
    for kind in ("swish", "where", "residual"):
        wide = f"<{2 * width} x float>", f"<{4 * width} x float>"
        assert any(type in text(kind, 60, shape, target) for type in wide)
        assert not any(type in text(kind, 2, shape, target) for type in wide)


def test_no_more_vectors_than_registers_hold() -> None:
    """Thirty exponentials that are all still wanted when the last is there."""
    names = range(30)
    body = " ".join(f"e{i} = Exp({f'e{i - 1}' if i else 'x'})" for i in names)
    body += " s0 = Add(e29, x)"
    body += "".join(f" s{i + 1} = Mul(s{i}, e{i})" for i in names)
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["": 20]> g (float[64, 64] x) => (float[64, 64] y) '
        f"{{ {body} y = Identity(s30) }}"
    )
    (program,) = emit_programs(partition(imported(model), X86_64_V4), X86_64_V4)
    found = cpu.lower_to_llvm(program.kernel, X86_64_V4)
    assert "<16 x float>" in found and "<32 x float>" not in found


@pytest.mark.parametrize("kind", LINKS)
def test_the_bits_do_not_depend_on_how_many(kind: str) -> None:
    """4096 elements go by several vectors, 4095 by one and by single elements too."""
    x = np.random.default_rng(0).uniform(0.5, 1.5, 4096).astype(np.float32) * np.float32(-1e-3)
    whole = fuser.compile(chain(kind, 40, "4096"), device="cpu", threads=1)
    ragged = fuser.compile(chain(kind, 40, "4095"), device="cpu", threads=1)
    (expected,), (found,) = whole.run({"x": x}).values(), ragged.run({"x": x[:4095]}).values()
    np.testing.assert_array_equal(found, expected[:4095])
