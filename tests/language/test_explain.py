"""What a kernel's compile says of itself, its stages, and why it was compiled again."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fuser
import fuser.language as fl
from fuser.errors import CompileError, LoweringError, UnsupportedError, UsageError, VerifyError
from fuser.language import variants
from fuser.language.internal import line_of
from fuser.tilegen.work import count

HERE = Path(__file__)


def line_of_mark(text: str) -> int:
    (found,) = (
        n for n, line in enumerate(HERE.read_text().splitlines(), 1) if line.endswith(f"  # {text}")
    )
    return found


@fuser.kernel
def gathered(
    x: Any,
    ids: Any,
    out: Any,
    n: Any,
    BLOCK: fl.constexpr = fl.block(default=64),  # noqa: B008
) -> Any:
    at = fl.program_id(0) * BLOCK + fl.arange(0, BLOCK)
    rows = fl.load(ids + at, at < n, 0)  # ids
    value = fl.load(x + rows, at < n)  # x
    fl.store(out + at, value * 2.0, at < n)  # out


def arrays(n: int = 200) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.ones(n, np.float32), np.zeros(n, np.int32), np.zeros(n, np.float32)


def test_explain() -> None:
    text = gathered.explain(*arrays(), 200, grid=(4,))
    lines = text.splitlines()
    assert lines[0].startswith("kernel gathered, ")
    assert f"{HERE}:" in lines[0]
    assert lines[1].startswith("grid: (4,), 4 programs")
    assert "  BLOCK: 64, compiled in, the default" in lines
    assert "  x: an array of fp32 at a multiple of 16 bytes" in lines
    ids = f"  line {line_of_mark('ids')}: load of ids[n] strides(1), affine, bounds in dims 0"
    assert ids in lines
    (x,) = (line for line in lines if f"line {line_of_mark('x')}: load of x" in line)
    assert "a gather" in x
    (note,) = (line for line in lines if "the load of x:" in line)
    assert note.strip().startswith(f"line {line_of_mark('x')}:")
    assert "loaded or computed element by element" in note
    assert " µs on this target: memory decides" in text


def test_stages() -> None:
    variant = gathered.warmup(*arrays(), 200, grid=(4,))
    assert list(variant.asm) == ["source", "tile", "passes", "optimised", "cpu", "llvm", "asm"]
    assert "def gathered(" in variant.asm["source"]
    assert f"# {HERE}:{line_of_mark('x')}" in variant.asm["tile"]
    assert variant.asm["optimised"] == variant.tile
    assert "# after dce" in variant.asm["passes"]
    assert "define" in variant.asm["llvm"]
    assert ".text" in variant.asm["asm"] or "section" in variant.asm["asm"]
    with pytest.raises(UnsupportedError, match="ptx"):
        variant.asm["ptx"]


@pytest.mark.cuda
def test_stages_and_counters_on_a_gpu() -> None:
    torch = pytest.importorskip("torch")
    moved = [torch.from_numpy(array).cuda() for array in arrays()]
    variant = gathered.warmup(*moved, 200, grid=(4,))
    assert list(variant.asm)[-1] == "ptx"
    assert ".visible .entry" in variant.asm["ptx"]
    assert "registers a thread" in variant.explain()
    assert "? registers" not in variant.explain()


@fuser.kernel
def product(a: Any, b: Any, c: Any, k: Any, B: fl.constexpr) -> Any:
    rows, cols = fl.arange(0, B), fl.arange(0, B)
    total = fl.zeros((B, B), fl.float32)
    for i in range(0, k, B):
        x = fl.load(a + rows[:, None] * k + (i + cols))
        y = fl.load(b + (i + rows[:, None]) * B + cols)
        total = fl.dot(x, y, total)
    fl.store(c + rows[:, None] * B + cols, total)


def test_work_is_counted_from_the_program() -> None:
    a, b, c = np.zeros((16, 64), np.float32), np.zeros((64, 16), np.float32), np.zeros((16, 16))
    variant = product.warmup(a, b, c.astype(np.float32), 64, B=16, grid=(1,))
    work = count(variant.program.kernel, lambda dim: 64 if not isinstance(dim, int) else dim)
    assert work.flops == 2 * 16 * 16 * 64
    assert work.accessed == 4 * (2 * 16 * 64 + 16 * 16)
    assert work.exact


def test_each_element_counts_once_where_extents_are_known() -> None:
    variant = gathered.warmup(*arrays(), 200, grid=(4,))
    sizes = {"n": 200, "grid0": 4}
    from fuser.graph.sizes import evaluate

    work = count(variant.program.kernel, lambda dim: evaluate(dim, sizes))
    assert work.accessed == 3 * 256 * 4
    assert work.moved == 200 * 4 + 256 * 4 + 200 * 4  # ids and out have bounds, a gather has none


Change = Callable[[], Any]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("aligned", "x is at a multiple of 4 bytes (was of 16)"),
        ("divisible", "n is an int32 that is a multiple of 16, from 32 on (was an int32 of 2 and"),
        ("one", "n is 1, compiled in (was an int32 of 2 and more"),
        ("dtype", "x is an array of fp64 (was of fp32)"),
        ("constexpr", "BLOCK is 32, compiled in (was 64, compiled in)"),
        ("debug", "debug is True (was False)"),
        ("overlap", "x is in memory that others share (was in memory of its own)"),
        ("grid", "the grid (2: two and more programs) is (1,) (was (2,))"),
    ],
)
def test_recompiles_are_explained(
    change: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = fuser.kernel(gathered.fn)
    x, ids, out = arrays()
    with caplog.at_level(logging.INFO, "fuser.recompiles"):
        kernel[(4,)](x, ids, out, 200)
        kernel[(4,)](x, ids, out, 199)
        assert not caplog.messages  # the first compile is no second, and 199 is like 200
        calls: dict[str, Change] = {
            "aligned": lambda: kernel[(4,)](x[1:], ids, out, 199),
            "divisible": lambda: kernel[(4,)](x, ids, out, 192),
            "one": lambda: kernel[(4,)](x, ids, out, 1),
            "dtype": lambda: kernel[(4,)](x.astype(np.float64), ids, out, 199),
            "constexpr": lambda: kernel[(8,)](x, ids, out, 199, BLOCK=32),
            "debug": lambda: kernel[(4,)](x, ids, out, 199, debug=True),
            "overlap": lambda: kernel[(4,)](x, ids, x, 199),
            "grid": lambda: kernel[(1,)](x, ids, out, 50),
        }
        calls[change]()
    (message,) = caplog.messages
    assert message.startswith("gathered is compiled again: ")
    assert reason in message


@fuser.kernel
def doubled(x: Any) -> Any:
    x[fl.arange(0, 16), :] = x[fl.arange(0, 16), :] * 2


def test_recompiles_for_the_shape_of_an_array(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fuser.recompiles"):
        doubled[(1,)](np.ones((10, 20), np.float32))
        doubled[(1,)](np.ones((32, 20), np.float32))
        doubled[(1,)](np.ones((10, 21), np.float32))
    first, second = caplog.messages
    assert "x.shape[0] is 32 (was compiled where x.shape[0] is 2 or more and no multiple" in first
    assert "x.shape[1] == 20 does not hold at x.shape[1] = 21" in second


def test_fuser_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import numpy as np, fuser, fuser.language as fl\n"
        "@fuser.kernel\n"
        "def put(out, n):\n"
        "    fl.store(out, n)\n"
        "for n in (7, 9, 32):\n"
        "    put[(1,)](np.zeros(2, np.int32), n)\n"
    )

    def run(log: str) -> str:
        environment = os.environ | {"FUSER_LOG": log}
        done = subprocess.run(
            [sys.executable, program], env=environment, capture_output=True, text=True, check=False
        )
        return done.stderr

    told = run("recompiles").splitlines()
    assert len(told) == 1
    assert told[0].startswith("fuser recompiles: put is compiled again: n is an int32 that is a")
    assert run("") == ""
    monkeypatch.setenv("FUSER_LOG", "nonsense")
    with pytest.raises(UsageError, match="FUSER_LOG=nonsense is unknown"):
        fuser.kernel(gathered.fn)


@pytest.mark.parametrize("kind", [VerifyError, LoweringError, CompileError])
def test_errors_of_later_stages_name_the_line(
    kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise kind("map.mul has no lowering", where="somewhere")

    monkeypatch.setenv("FUSER_CACHE", "0")
    monkeypatch.setattr(variants, "compile_all", broken)
    with pytest.raises(kind) as caught:
        fuser.kernel(gathered.fn).warmup(*arrays(), 200, grid=(4,))
    assert caught.value.where == f"{HERE}:{line_of_mark('out')}, somewhere"


def test_errors_without_an_op_name_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise LoweringError("it is too large")

    whole = gathered.warmup(*arrays(), 200, grid=(4,)).program.kernel
    monkeypatch.setenv("FUSER_CACHE", "0")
    monkeypatch.setattr(variants, "compile_all", broken)
    kernel = fuser.kernel(gathered.fn)
    with pytest.raises(LoweringError) as caught:
        kernel.warmup(*arrays(), 200, grid=(4,))
    assert caught.value.where == kernel.source.place(kernel.source.tree)
    assert not line_of("load and load", whole)
