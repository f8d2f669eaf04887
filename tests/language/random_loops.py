"""Random kernels with loops around loops that multiply: source text, and what it should compute.

kernel = random_loops(7)
kernel.source       # a function `kernel` of the block language
kernel.launch(...)
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass, field
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np

_HEAD = """import fuser.triton as triton
import fuser.triton.language as tl


@triton.jit
def kernel(
    a, b, c, bias, M, N, K, a_row, b_row, c_row,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):
    tiles_n = tl.cdiv(N, BN)
    tiles = tl.cdiv(M, BM) * tiles_n
"""


@dataclass
class RandomLoops:
    """A drawn kernel. turned: b lies as [N, K]. programs: of the grid."""

    seed: int
    source: str = ""
    shape: tuple[int, int, int] = (0, 0, 0)
    turned: bool = False
    programs: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    relu: bool = False
    added: str = ""
    every_other: bool = False

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Operands and results by the names of arguments; bias: [N] or [M]."""
        rng, (m, n, k) = np.random.default_rng(self.seed), self.shape
        return {
            "a": rng.standard_normal((m, k)).astype("float16"),
            "b": rng.standard_normal((n, k) if self.turned else (k, n)).astype("float16"),
            "c": np.zeros((m, n), "float32"),
            "bias": rng.standard_normal(max(m, n)).astype("float32"),
        }

    def expected(self, arrays: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        """c in float64."""
        a, b = arrays["a"].astype("float64"), arrays["b"].astype("float64")
        m, n, k = self.shape
        if self.every_other:  # whole blocks of k, every other one
            step = self.options["BK"]
            kept = np.arange(k) // step % 2 == 0
            a = a * kept
        found = a @ (b.T if self.turned else b)
        if self.added == "column":
            found = found + arrays["bias"][:n]
        elif self.added == "row":
            found = found + arrays["bias"][:m, None]
        return np.maximum(found, 0.0) if self.relu else found

    def launch(self, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
        """Run it on the CPU."""
        m, n, k = self.shape
        steps = (k, k if self.turned else n, n)
        self.function[(self.programs,)](
            *(arrays[name] for name in ("a", "b", "c", "bias")), m, n, k, *steps, **self.options
        )

    @property
    def function(self) -> Any:
        """The kernel, compiled from its text anew."""
        folder = Path(tempfile.mkdtemp(prefix="loops"))
        path = folder / f"loops_{self.seed}.py"
        path.write_text(self.source)
        spec = util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.kernel


def _inner(rng: random.Random, made: RandomLoops, first: str, last: str, step: str) -> list[str]:
    """A loop over k."""
    b = "b + n * b_row + k[:, None]" if made.turned else "b + k[:, None] * b_row + n"
    return [
        f"for start in range({first}, {last}, {step}):",
        "    k = start + tl.arange(0, BK)",
        "    left = tl.load(a + m * a_row + k[None, :], "
        "mask=(m < M) & (k[None, :] < K), other=0.0)",
        f"    right = tl.load({b}, mask=(k[:, None] < K) & (n < N), other=0.0)",
        "    total = tl.dot(left, right, total)",
    ]


def random_loops(seed: int) -> RandomLoops:
    """The kernel of a number."""
    rng = random.Random(seed)
    made = RandomLoops(seed)
    bm, bn, bk = rng.choice((64, 128)), rng.choice((32, 64, 128)), rng.choice((16, 32, 64))
    made.options = {
        "BM": bm, "BN": bn, "BK": bk, "num_warps": rng.choice((4, 4, 8)),
        "num_stages": rng.choice((2, 3, 4)),
    }  # fmt: skip
    odd = rng.choice((8, 16, 16, 16))
    made.shape = (
        rng.randint(1, 3 * bm), odd * rng.randint(1, 3 * bn // odd), odd * rng.randint(1, 12)
    )  # fmt: skip
    made.turned, made.programs = rng.random() < 0.4, rng.choice((1, 2, 2, 3))
    made.relu, made.added = rng.random() < 0.3, rng.choice(("", "", "column", "row"))
    outer = rng.choice(("range", "range", "counter", "columns", "while"))
    kind = rng.choice(("one", "one", "two", "every other"))
    made.every_other = kind == "every other"
    body = ["total = tl.zeros((BM, BN), dtype=tl.float32)"]
    if kind == "two":
        body += ["half = K // 2 // BK * BK"]
        body += _inner(rng, made, "0", "half", "BK") + _inner(rng, made, "half", "K", "BK")
    else:
        body += _inner(rng, made, "0", "K", "2 * BK" if made.every_other else "BK")
    if made.added:
        at, axis = ("n", "N") if made.added == "column" else ("m", "M")
        body += [f"total += tl.load(bias + {at}, mask={at} < {axis}, other=0.0)"]
    if made.relu:
        body += ["total = tl.maximum(total, 0.0)"]
    body += ["tl.store(c + m * c_row + n, total, mask=(m < M) & (n < N))"]
    place = [
        "m = (tile // tiles_n * BM + tl.arange(0, BM))[:, None]",
        "n = (tile % tiles_n * BN + tl.arange(0, BN))[None, :]",
    ]
    start, step = "tl.program_id(0)", "tl.num_programs(0)"
    match outer:
        case "range":
            lines = [f"for tile in range({start}, tiles, {step}):", *_in(place + body)]
        case "counter":
            counted = [*place, *body, f"tile += {step}"]
            lines = [f"tile = {start}", f"for _ in range({start}, tiles, {step}):", *_in(counted)]
        case "columns":
            rows = f"for row in range({start}, tl.cdiv(M, BM), {step}):"
            inner = ["tile = row * tiles_n + column", *place, *body]
            lines = [rows, *_in(["for column in range(0, tiles_n):", *_in(inner)])]
        case _:
            lines = [
                f"tile = {start}",
                "while tile < tiles:",
                *_in([*place, *body, f"tile += {step}"]),
            ]
    made.source = _HEAD + "".join(f"    {line}\n" for line in lines)
    return made


def _in(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]
