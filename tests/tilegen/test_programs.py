"""Programs of the corpus verify, print and parse back, and the passes keep what they do."""

from __future__ import annotations

import numpy as np
import pytest

from fuser.dtypes import f32
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import Index
from fuser.tilegen.interpret import run
from fuser.tilegen.ir import Kernel
from fuser.tilegen.parse import parse_kernel
from fuser.tilegen.passes import PASSES, run_passes
from fuser.tilegen.text import canonical_text, print_kernel, renumber
from fuser.tilegen.verify import verify
from tests.tilegen.programs import CORPUS, Array, random_arrays

EVERY = pytest.mark.parametrize("name", CORPUS)


def results(kernel: Kernel, arrays: dict[str, Array]) -> dict[str, Array]:
    copies = {name: array.copy() for name, array in arrays.items()}
    run(kernel, copies)
    return copies


def same(a: dict[str, Array], b: dict[str, Array]) -> None:
    for name, array in a.items():
        np.testing.assert_array_equal(array, b[name], err_msg=name)


@EVERY
def test_text_parses_back(name: str, rng: np.random.Generator) -> None:
    kernel = CORPUS[name]()
    verify(kernel)
    text = print_kernel(kernel)
    parsed = parse_kernel(text)
    verify(parsed)
    assert print_kernel(parsed) == text
    assert canonical_text(parsed) == canonical_text(kernel)
    arrays = random_arrays(kernel, rng)
    same(results(kernel, arrays), results(parsed, arrays))


@EVERY
def test_canonical_text_ignores_names(name: str) -> None:
    kernel = CORPUS[name]()
    expected = canonical_text(kernel)
    assert canonical_text(parse_kernel(expected)) == expected
    kernel.name = "another"
    for number, buffer in enumerate(kernel.buffers):
        buffer.name = f"some other/{number}"
    for op in kernel.walk():
        op.origin = ()
        for value in op.results:
            value.name = "same"
    assert canonical_text(kernel) == expected
    assert print_kernel(parse_kernel(print_kernel(kernel))) == print_kernel(kernel)


@EVERY
@pytest.mark.parametrize("step", PASSES, ids=lambda step: step.name)
def test_each_pass_keeps_the_meaning(name: str, step: object, rng: np.random.Generator) -> None:
    kernel = CORPUS[name]()
    arrays = random_arrays(kernel, rng)
    before = results(kernel, arrays)
    step.run(kernel)  # type: ignore[attr-defined]
    verify(kernel)
    same(before, results(kernel, arrays))


@EVERY
def test_all_passes_keep_the_meaning(name: str, rng: np.random.Generator) -> None:
    kernel = CORPUS[name]()
    arrays = random_arrays(kernel, rng)
    before = results(kernel, arrays)
    run_passes(kernel, verify=True)
    same(before, results(kernel, arrays))
    parsed = parse_kernel(print_kernel(kernel))
    assert print_kernel(parsed) == print_kernel(kernel)
    same(before, results(parsed, arrays))


@EVERY
def test_passes_reach_a_fixed_point(name: str) -> None:
    kernel = CORPUS[name]()
    run_passes(kernel)
    once = print_kernel(kernel)
    run_passes(kernel)
    assert print_kernel(kernel) == once


def test_renumber_keeps_words() -> None:
    kernel = CORPUS["matmul"]()
    renumber(kernel)
    names = [value.name for op in kernel.walk() for value in op.results]
    assert names[:3] == ["pid0", "pid1", "c2"]


def test_views_without_dims_have_text() -> None:
    b = Builder("count")
    total = b.view(b.buffer("total", f32, 1, role="output"), ())
    at: tuple[Index, ...] = ()
    b.store(total, at, b.full(1.0, (), f32))
    b.atomic("add", total, at, b.load(total, at, ()))
    kernel = b.build()
    text = print_kernel(kernel)
    assert "atomic.add &total0, []," in text
    assert print_kernel(parse_kernel(text)) == text
