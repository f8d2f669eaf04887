"""Mutants of small kernels compute what the kernels do.

A sample of `python -m tests.equivalence.kernels`.
To see a mutant that fails here: `python -m tests.equivalence.kernels --seed NUMBER --programs 1`.
"""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest

from tests.equivalence.kernels import mutate
from tests.equivalence.kernels.check import (
    INPUTS,
    ROUTES,
    check,
    expected,
    mutant,
    reduced,
    same_bits,
    source_of,
)
from tests.equivalence.kernels.corpus import BY_NAME, CASES
from tests.equivalence.kernels.mutate import MUTATIONS, Subject, statements


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])
def test_mutants(number: int) -> None:
    """One of each kernel."""
    failure = check(mutant(number))
    assert failure is None or failure.kind == "refused", failure


@pytest.mark.parametrize("name", BY_NAME)
def test_both_routes_agree_on_the_kernels(name: str) -> None:
    """With inputs of which sums are exact, bit by bit, and so for every set of them."""
    case = BY_NAME[name]
    for number in range(INPUTS):
        cpu, interpreter = (expected(case, number, route) for route in ROUTES)
        for a, b in zip(cpu, interpreter, strict=True):
            assert same_bits(a, b) or case.quantum
            np.testing.assert_allclose(a, b, rtol=0, atol=case.quantum)
            assert len(np.unique(a)) > 1  # a kernel that computes one number shows nothing


def test_every_change_is_drawn() -> None:
    applied: set[str] = set()
    for number in range(200):
        made = mutant(number)
        text, names = source_of(made)
        applied |= set(names)
        plain = textwrap.dedent(inspect.getsource(made.case.kernel))
        body = ast.unparse(ast.parse(plain)).split("\n", 1)[1]
        assert (text.split("\n", 1)[1].strip() == body.strip()) == (not names), text
        assert text == source_of(mutant(number))[0]
    assert applied == set(MUTATIONS)


def _wrong(s: Subject) -> bool:
    """A branch that is taken."""
    place = s.random.choice([p for p in s.assigned("float", "int") if not p.loops])
    place.after(statements(f"if zero == 0:\n    {place.target} = {place.target} + 1"))
    return True


def _unknown(s: Subject) -> bool:
    s.tree.body += statements("fl.no_such_function(zero)")
    return True


@pytest.mark.parametrize("name", ["row_sums", "flags"])
def test_a_change_of_meaning_is_found_and_made_small(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Beside a change that is right, so that there is something to leave out.
    for table in ({"wrong": _wrong}, {"wrong": _wrong, "dead_store": mutate.dead_store}):
        monkeypatch.setattr(mutate, "MUTATIONS", table)
        source_of.cache_clear()
        failures = []
        for number in range(3):
            made = replace(mutant(number, [BY_NAME[name]]), inputs=1)
            failure = check(made)
            failures.append(failure is not None and failure.kind == "wrong")
            if failure is not None:
                assert reduced(made, failure).applied == ("_wrong",)
        assert any(failures)
    source_of.cache_clear()


def test_what_the_language_does_not_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutate, "MUTATIONS", {"unknown": _unknown})
    source_of.cache_clear()
    failure = check(mutant(0))
    source_of.cache_clear()
    assert failure is not None and failure.kind == "refused" and "no_such_function" in failure.what


def test_the_command() -> None:
    command = [sys.executable, "-m", "tests.equivalence.kernels", "--programs", "2", "--names",
               "scaled_sum,flags"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["right"] == told["programs"] == 2 and not told["failures"]
