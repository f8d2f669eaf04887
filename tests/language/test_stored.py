"""Kernels on disk: what a new process takes from there, and what it compiles again."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fuser.errors import CheckError, LanguageError
from fuser.language import variants
from fuser.language.outside import ChangedError

SOURCE = """
import math
import numpy
import fuser
import fuser.language as fl
import fuser.triton as triton
import fuser.triton.language as tl

FACTOR = tl.constexpr(2)
DEFAULT = 1
TABLE = {"a": 1}
X = numpy.zeros(3)


@triton.constexpr_function
def bias(n):
    return n + 10


@triton.jit
def helper(x, by: tl.constexpr = DEFAULT):
    return x * FACTOR + by + bias(0)


@triton.jit
def scale(x, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + at, helper(tl.load(x + at, at < n)), at < n)


@fuser.kernel
def rows(x: fl.tensor, out: fl.tensor):
    row = fl.program_id(0)
    out[row, :8] = x[row, :8] + 1
"""
numbers = itertools.count()


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """Loads the module as a new process would, with a text in place of another."""
    monkeypatch.setenv("FUSER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("FUSER_CACHE", raising=False)

    def made(old: str = "", new: str = "", source: str = SOURCE) -> ModuleType:
        assert old in source
        file = tmp_path / "stored_kernels.py"
        # of another length each time, which is what tells Python that the file has changed
        file.write_text(source.replace(old, new, 1) + "#" * next(numbers))
        spec = importlib.util.spec_from_file_location("stored_kernels", file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return made


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels whose source was walked."""
    found: list[str] = []
    before = variants.trace

    def trace(function: Any, *args: Any, **named: Any) -> Any:
        found.append(function.fn.__name__)
        return before(function, *args, **named)

    monkeypatch.setattr(variants, "trace", trace)
    return found


def scaled(module: ModuleType, n: int = 100, dtype: Any = np.float32, **named: Any) -> np.ndarray:
    x = np.arange(n).astype(dtype)
    out = np.full(n, -1).astype(dtype)
    module.scale[(-(-n // 16),)](x, out, n, B=16, **named)
    return out - 2 * x


def test_a_new_process_walks_no_source(load: Any, walks: list[str]) -> None:
    for _ in range(3):
        assert (scaled(load()) == 11).all()
        assert (scaled(load(), 90) == 11).all()
    assert walks == ["scale"]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [("x * FACTOR + by", "x * FACTOR - by", 9), ("constexpr(2)", "constexpr(3)", None),
     ("DEFAULT = 1", "DEFAULT = 4", 14), ("n + 10", "n + 30", 31),
     ("tl.load(x + at, at < n)", "tl.load(x + at, at < n) + 1", 13),
     ("FACTOR = tl.constexpr(2)", "FACTOR = tl.constexpr(2.0)", 11),
     ("def bias(n):\n", "def bias(n, m=math.pi):\n    n += m > 3\n", 12)],
)  # fmt: skip
def test_what_a_kernel_is_made_of_decides(
    load: Any, walks: list[str], old: str, new: str, expected: int | None
) -> None:
    scaled(load())
    found = scaled(load(old, new))
    assert walks == ["scale", "scale"]
    assert (found == (np.arange(100) + 11 if expected is None else expected)).all()
    assert (scaled(load()) == 11).all()
    scaled(load(old, new))
    assert len(walks) == 2


def test_functions_of_libdevice_are_known(load: Any, walks: list[str]) -> None:
    source = SOURCE.replace("+ by +", "+ by + tl.extra.libdevice.log1p(x) * 0 +")
    for _ in range(2):
        assert (scaled(load(source=source)) == 11).all()
    assert walks == ["scale"]


@pytest.mark.parametrize("given", [{"n": 16}, {"dtype": np.int32}, {"debug": True}], ids=str)
def test_classes_of_arguments_decide(load: Any, walks: list[str], given: Any) -> None:
    scaled(load())
    for _ in range(2):
        assert (scaled(load(), **given) == 11).all()
    assert walks == ["scale", "scale"]


@pytest.mark.parametrize("given", [{"num_warps": 8}, {"num_stages": 1}, {"num_ctas": 2}], ids=str)
def test_what_only_gpus_have_decides_nothing_on_a_cpu(
    load: Any, walks: list[str], given: Any
) -> None:
    module = load()
    scaled(module)
    scaled(module, **given)
    scaled(load(), **given)
    assert walks == ["scale"] and sum(map(len, module.scale.variants.values())) == 1


def test_a_kernel_that_asks_for_its_warps_gets_them(load: Any, walks: list[str]) -> None:
    source = SOURCE.replace("+ by +", "+ by * tl.extra.cuda.num_warps() +")
    for warps in (4, 8, 4, 8):
        assert (scaled(load(source=source), num_warps=warps) == warps + 10).all()
    assert walks == ["scale", "scale"]
    module = load(source=source)
    assert [scaled(module, num_warps=n)[0] for n in (4, 8, 2)] == [14, 18, 12]


@pytest.mark.parametrize(
    "body",
    ['if by == 2: return x * TABLE["a"]', "if by == 2: return x + X", "tl.static_print(by)",
     "if by == 2: return numpy"],
)  # fmt: skip
def test_what_nobody_can_tell_apart_is_not_kept(load: Any, walks: list[str], body: str) -> None:
    source = SOURCE.replace("    return x * FACTOR", f"    {body}\n    return x * FACTOR")
    for _ in range(2):
        assert (scaled(load(source=source)) == 11).all()
    assert walks == ["scale", "scale"]


def test_a_function_that_asks_the_world_is_not_kept(load: Any, walks: list[str]) -> None:
    source = SOURCE.replace("return n + 10", "import os\n    return len(os.sep) + 9")
    for _ in range(2):
        assert (scaled(load(source=source)) == 11).all()
    assert walks == ["scale", "scale"]


def test_constants_are_watched_as_if_compiled_here(load: Any, walks: list[str]) -> None:
    scaled(load())
    module = load()
    scaled(module)
    module.FACTOR = type(module.FACTOR)(5)
    with pytest.raises(ChangedError, match="FACTOR"):
        scaled(module)
    assert walks == ["scale"]


def test_shapes_and_strides_of_arrays_are_asked(load: Any, walks: list[str]) -> None:
    def run(width: int, dtype: Any = np.float32) -> None:
        x = np.arange(5 * width).reshape(5, width).astype(dtype)
        out = np.zeros_like(x)
        load().rows[(5,)](x, out)
        assert (out[:, :8] == x[:, :8] + 1).all() and not out[:, 8:].any()

    run(17)
    run(19)
    assert walks == ["rows"]
    run(32)
    run(48)
    assert len(walks) == 2
    run(18)
    run(64)
    assert len(walks) == 2


def test_texts_of_a_kernel_from_the_disk_are_the_same(load: Any, walks: list[str]) -> None:
    x, out = np.zeros(100, np.float32), np.zeros(100, np.float32)

    def made() -> Any:
        return load().scale.warmup(x, out, 100, B=16, grid=(7,)).variant

    first, second = made(), made()
    assert walks == ["scale"]
    assert first.explain() == second.explain() and "stored_kernels.py" in first.explain()
    for stage in ("source", "tile", "optimised", "cpu"):
        assert first.asm[stage].rstrip("#") == second.asm[stage].rstrip("#")
    assert first.writes == second.writes == {1}


def test_damaged_entries_are_made_again(load: Any, walks: list[str], tmp_path: Path) -> None:
    scaled(load())
    for path in (tmp_path / "cache").glob("??/*"):
        path.write_bytes(path.read_bytes()[:-7])
    assert (scaled(load()) == 11).all()
    assert (scaled(load()) == 11).all()
    assert walks == ["scale", "scale"]


def test_what_a_launch_touches_is_known_as_well(load: Any, walks: list[str]) -> None:
    x, short = np.zeros(100, np.float32), np.zeros(99, np.float32)
    for _ in range(2):
        module = load()
        module.scale[(7,)](x, x.copy(), 100, B=16)
        with pytest.raises(CheckError, match="reads element 99 of x"):
            module.scale[(7,)](short, x, 100, B=16)
    assert walks == ["scale"]


def test_errors_are_those_of_the_walk(load: Any) -> None:
    for _ in range(2):
        with pytest.raises(LanguageError, match="no name 'nothing'"):
            scaled(load("+ by +", "+ nothing +"))
