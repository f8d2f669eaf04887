"""Mutants of kernels written for Triton, of a package that is made here.

`python -m tests.equivalence.packages` takes those of installed packages.
"""

from __future__ import annotations

import ast
import importlib
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import fuser.triton as triton
from tests.equivalence.kernels import mutate
from tests.equivalence.kernels.check import Failure
from tests.equivalence.kernels.kinds import Info
from tests.equivalence.kernels.mutate import Subject, statements
from tests.equivalence.packages.check import (
    check,
    expected,
    mutant,
    reduced,
    same,
    source_of,
    subject_of,
)
from tests.equivalence.packages.launches import Launch, copied, launches_of, memories

NAME = "package_of_two_kernels"
TEXT = """
import torch
import triton
import triton.language as tl
from triton.language import exp

SCALED: tl.constexpr = tl.constexpr(1)


@triton.heuristics({"HAS_BIAS": lambda args: args["bias"] is not None})
@triton.jit
def softmax_kernel(x, y, bias, width, scale, mode: tl.constexpr, HAS_BIAS: tl.constexpr,
                   BLOCK: tl.constexpr = 16):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    values = tl.load(x + row * width + at, mask=inside, other=-float("inf"))
    dtype = values.dtype
    if mode == SCALED:
        values = values.to(tl.float32) * scale
    if HAS_BIAS:
        values += tl.load(bias + at, mask=inside, other=0.0)
    values = exp(values - tl.max(values, axis=0))
    values = values / tl.sum(values, axis=0)
    tl.store(y + row * width + at, values.to(dtype), mask=inside)


@triton.jit
def product_kernel(a, b, c, M, N, K, B: tl.constexpr):
    m, n = tl.program_id(0), tl.program_id(1)
    total = tl.zeros([B, B], dtype=tl.float32)
    for k in range(0, tl.cdiv(K, B)):
        rows = tl.make_block_ptr(a, (M, K), (K, 1), (m * B, k * B), (B, B), (1, 0))
        columns = tl.make_block_ptr(b, (K, N), (N, 1), (k * B, n * B), (B, B), (1, 0))
        left = tl.load(rows, boundary_check=(0, 1), padding_option="zero")
        total += tl.dot(left, tl.load(columns, boundary_check=(0, 1), padding_option="zero"))
    out = tl.make_block_ptr(c, (M, N), (N, 1), (m * B, n * B), (B, B), (1, 0))
    tl.store(out, total.to(c.dtype.element_ty), boundary_check=(0, 1))


def softmax(x, bias=None):
    y = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, y, bias, x.shape[1], 0.5, 1)
    return y


def product(a, b):
    c = torch.empty(a.shape[0], b.shape[1])
    grid = lambda meta: (triton.cdiv(c.shape[0], meta["B"]), triton.cdiv(c.shape[1], meta["B"]))
    product_kernel[grid](a, b, c, *c.shape, a.shape[1], B=16)
    return c
"""


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[Launch]]:
    folder: Path = tmp_path_factory.mktemp("site")
    (folder / f"{NAME}.py").write_text(TEXT)
    sys.path.append(str(folder))
    with triton.imports(NAME):
        made = importlib.import_module(NAME)
    source = torch.Generator().manual_seed(1)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=source)

    def call() -> None:
        made.softmax(some(5, 13))
        made.softmax(some(3, 13))  # of the same classes
        made.softmax(some(5, 13).bfloat16(), some(13))
        made.product(some(20, 23), some(23, 17))

    yield launches_of(call)
    sys.path.remove(str(folder))
    del sys.modules[NAME]


def test_launches_are_kept_as_they_were(launches: Sequence[Launch]) -> None:
    names = [launch.kernel.fn.__name__ for launch in launches]
    assert names == ["softmax_kernel", "softmax_kernel", "product_kernel"]
    assert [launch.grid for launch in launches] == [(5,), (5,), (2, 2)]
    for launch, out in zip(launches, ("y", "y", "c"), strict=True):
        got, given = expected(launch), dict(memories(launch.bound))
        assert [name for name in got if not same(got[name], given[name]).all()] in ([], [out])
    one = launches[0].bound
    want = torch.softmax(one["x"] * 0.5, 1)
    torch.testing.assert_close(expected(launches[0])["y"].reshape(5, 13), want)


def test_copies_share_what_was_shared() -> None:
    memory = torch.arange(12.0)
    made = copied({"a": memory[2:8], "b": memory.reshape(3, 4).T, "n": 3})
    made["a"][0] = 50
    assert made["b"][2, 0] == 50 and memory[2] == 2 and made["n"] == 3
    assert [name for name, _ in memories(made)] == ["a"]


@pytest.mark.parametrize("number", range(9))
def test_mutants(launches: Sequence[Launch], number: int) -> None:
    made = mutant(number, launches)
    found = check(made)
    assert isinstance(found, bool) or found.kind == "refused", (found, made.text)


def test_changes_reach_every_statement_that_runs(launches: Sequence[Launch]) -> None:
    applied: set[str] = set()
    for number in range(90):
        made = mutant(number, launches)
        ast.parse(made.text)
        applied |= set(made.applied)
        assert number > 5 or source_of(made) == (made.text, made.applied)
    assert applied == set(mutate.MUTATIONS)


def test_what_the_compiler_decides_is_one_branch(launches: Sequence[Launch]) -> None:
    """And what other branches hold is not changed, as it may not compile."""
    plain, biased, _ = (
        {ast.unparse(place.statement): place.names for place in subject_of(launch).places()}
        for launch in launches
    )
    added = "values += fl.load(bias + at, inside, other=0.0)"
    assert added not in plain and added in biased
    stored = next(text for text in plain if text.startswith("fl.store"))
    for names in (plain[stored], biased[stored]):
        assert names["values"] == Info("float", 1) and names["inside"] == Info("bool", 1)
        assert names["row"].kind == "int" and "dtype" not in names


def _wrong(s: Subject) -> bool:
    places = [p for p in s.assigned("float") if p.target in ("values", "total") and p.info.rank]
    place = s.random.choice(places)
    place.after(statements(f"{place.target} = {place.target} * (one_f + 0.001)"))
    return True


@pytest.mark.parametrize("at", [0, 2])
def test_a_change_of_meaning_is_found_and_made_small(
    launches: Sequence[Launch], at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table: dict[str, Any] = {"wrong": _wrong, "dead_store": mutate.dead_store}
    monkeypatch.setattr(mutate, "MUTATIONS", table)
    failures = []
    for number in range(3):
        made = mutant(random.Random(number).getrandbits(20), launches[at : at + 1])
        failure = check(made)
        if isinstance(failure, Failure):
            assert failure.kind == "wrong", failure
            assert "_wrong" in reduced(made, failure).applied
            failures.append(failure)
    assert failures
