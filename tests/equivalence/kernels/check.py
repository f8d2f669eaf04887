"""Mutants by their numbers, and how they compare with the kernels that they come from."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import linecache
import random
import textwrap
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import fuser
import fuser.language as fl
from fuser.errors import LanguageError
from tests.equivalence.kernels.corpus import CASES, Arrays, Case
from tests.equivalence.kernels.kinds import Info, Kind, Names
from tests.equivalence.kernels.mutate import AREA, EXTRA, Subject, draw
from tests.poison import poisoned

MAX_MUTATIONS = 10
"""Of one mutant."""
INPUTS = 3
"""Sets of inputs of each kernel."""
ROUTES = ("cpu", "interpreter")
_numbers = itertools.count()


@dataclass(frozen=True)
class Mutant:
    """A kernel and what is changed in it, in order: each change is drawn from a number of its
    own, so that a mutant can be made with fewer of them. inputs: the number of its inputs."""

    case: Case
    changes: tuple[int, ...]
    inputs: int

    @property
    def text(self) -> str:
        return source_of(self)[0]

    @property
    def applied(self) -> tuple[str, ...]:
        """The names of its changes."""
        return source_of(self)[1]


@dataclass(frozen=True)
class Failure:
    """What is wrong with a mutant. kind: wrong, differs (the routes from each other), error or
    refused (the language says that it has no such thing)."""

    kind: str
    what: str
    trace: str = ""


def mutant(number: int, cases: Sequence[Case] = CASES) -> Mutant:
    """Mutant `number` of all that there are."""
    source = random.Random(number)
    case = cases[number % len(cases)]
    changes = tuple(source.getrandbits(32) for _ in range(source.randint(1, MAX_MUTATIONS)))
    return Mutant(case, changes, source.randrange(INPUTS))


@functools.lru_cache(maxsize=4)
def source_of(made: Mutant) -> tuple[str, tuple[str, ...]]:
    """The text of a mutant, and the names of its changes."""
    arguments = inputs_of(made.case, 0)
    dtypes: dict[str, Kind] = {}
    names: Names = {}
    for name, value in arguments.items():
        if isinstance(value, np.ndarray):
            dtypes[name] = "float" if value.dtype.kind == "f" else "int"
            names[name] = Info("pointer")
        else:
            names[name] = Info("static" if name.isupper() else "int")
    text = textwrap.dedent(inspect.getsource(made.case.kernel))
    (tree,) = ast.parse(text).body
    assert isinstance(tree, ast.FunctionDef)
    tree.args.args += [ast.arg(name) for name in EXTRA]
    return changed(Subject(tree, dtypes, names, random.Random(0)), made.changes)


def changed(subject: Subject, changes: Sequence[int]) -> tuple[str, tuple[str, ...]]:
    """The text of a kernel after changes, and the names of those that could be made."""
    applied = []
    for change in changes:
        subject.random = random.Random(change)
        mutation = draw(subject.random)
        if mutation(subject):
            applied.append(mutation.__name__)
    return ast.unparse(ast.fix_missing_locations(subject.tree)) + "\n", tuple(applied)


def compiled(text: str, name: str) -> Any:
    """The kernel of a text, whose lines errors can show."""
    file = f"<mutant {next(_numbers)} of {name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space: dict[str, Any] = {"fl": fl, "Any": Any}
    exec(compile(text, file, "exec"), space)
    return fuser.kernel(space[name])


def inputs_of(case: Case, number: int) -> Arrays:
    return case.make(np.random.default_rng((number, len(case.name))))


def launched(kernel: Any, case: Case, number: int, route: str, extra: bool) -> list[np.ndarray]:
    """The outputs of a launch."""
    arguments = inputs_of(case, number)
    given = dict(arguments)
    if extra:
        programs = int(np.prod(case.grid))
        # What a mutant reads there it has written.
        given |= {"memory_f": np.full(programs * AREA, np.nan), "zero": 0, "one": 1, "one_f": 1.0,
                  "memory_i": np.full(programs * AREA, 1 << 40)}  # fmt: skip
    with poisoned():
        kernel[case.grid](**given, check=route == "interpreter")
    return [arguments[name] for name in case.outputs]


@functools.cache
def expected(case: Case, number: int, route: str) -> list[np.ndarray]:
    """The outputs of the kernel itself."""
    return launched(_original(case), case, number, route, extra=False)


@functools.cache
def _original(case: Case) -> Any:
    return fuser.kernel(case.kernel)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether elements are equal, signs of zeros included; every NaN is one."""
    if a.dtype.kind != "f":
        return bool((a == b).all())
    equal = (a == b) & (np.signbit(a) == np.signbit(b))
    return bool((equal | (np.isnan(a) & np.isnan(b))).all())


def _shown(case: Case, got: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> str:
    for name, a, b in zip(case.outputs, got, want, strict=True):
        if not same_bits(a, b):
            wrong = np.flatnonzero(~((a == b) | ((a != a) & (b != b))))
            at = int(wrong[0]) if wrong.size else 0
            counted = f"{wrong.size} of {a.size} elements of {name}"
            return f"{counted}, the first at {at}: {a.flat[at]!r}, not {b.flat[at]!r}"
    return ""


def check(made: Mutant) -> Failure | None:
    """Run a mutant by both routes; None where all is as it should be."""
    case = made.case
    text = made.text
    results: dict[str, list[np.ndarray]] = {}
    try:
        kernel = compiled(text, case.kernel.__name__)
        for route in ROUTES:
            results[route] = launched(kernel, case, made.inputs, route, extra=True)
    except LanguageError as error:
        return Failure("refused", error.what, traceback.format_exc())
    except Exception as error:
        return Failure("error", f"{type(error).__name__}: {error}", traceback.format_exc())
    for route, got in results.items():
        want = expected(case, made.inputs, route)
        if wrong := _shown(case, got, want):
            return Failure("wrong", f"{route}: {wrong}")
    for a, b in zip(*results.values(), strict=True):
        apart = np.abs(a.astype(np.float64) - b.astype(np.float64))
        if not (apart <= case.quantum).all():
            return Failure("differs", _shown(case, *results.values()))
    return None


def reduced(made: Mutant, failure: Failure) -> Mutant:
    """The mutant with as few changes as fail in the same way."""
    changes = list(made.changes)
    for change in made.changes:
        fewer = replace(made, changes=tuple(item for item in changes if item != change))
        found = check(fewer)
        if found is not None and found.kind == failure.kind:
            changes.remove(change)
    return replace(made, changes=tuple(changes))
