"""Poisoned memory and unwritten elements: what the checks of the tests themselves find."""

from __future__ import annotations

import numpy as np
import pytest

import fuser
from fuser.errors import VerifyError
from fuser.runtime.cpu import CpuExecutor
from fuser.tilegen.interpret import check_written, run
from fuser.tilegen.parse import parse_kernel
from tests.poison import fill

HALF = """kernel @half grid(3) {
  buffer out: output f32[24]
  view &out: out[24] strides(1)

  %p = program_id {axis = 0} : index
  %c = full {value = 0.0} : tile<4xf32>
  store &out, [%p*8 + #0], %c
}
"""


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_poison_is_no_number(dtype: str) -> None:
    assert np.isnan(fill(np.zeros((3, 5), dtype))).all()


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_poison_is_large(dtype: str) -> None:
    assert (fill(np.zeros(7, dtype)) > 1 << 30).all()


def test_interpreter_tells_what_nobody_wrote() -> None:
    written = run(parse_kernel(HALF), {"out": np.zeros(24, np.float32)})["out"]
    assert written.reshape(3, 8).tolist() == [[True] * 4 + [False] * 4] * 3
    with pytest.raises(VerifyError, match=r"element 4 of out is written by nobody \(12 of 24"):
        check_written("out", written)


def test_every_run_finds_poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs and the values between kernels are poisoned again before each run."""
    x = np.ones((8, 8), np.float32)
    compiled = fuser.trace(
        lambda a: np.exp(a) @ np.tanh(a), fuser.spec(x.shape), device="cpu", fusion=False
    )
    assert np.isfinite(compiled(x)).all()
    executor = compiled.plan.executor
    assert isinstance(executor, CpuExecutor)
    (context,) = executor._free
    assert context.arena.size
    monkeypatch.setattr(executor, "_run", lambda *_: None)  # kernels that write nothing
    assert np.isnan(compiled(x)).all()
    words = context.arena[: context.arena.size // 4 * 4].view(np.float32)
    assert np.isnan(words).all()
