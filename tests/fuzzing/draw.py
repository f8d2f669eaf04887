"""Draw a program: a line is kept if eager runs it and its result is worth comparing."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.fuzzing.freedom import HALVES, Freedom, Library, run, step
from tests.fuzzing.judge import EPSILON, same_bits
from tests.fuzzing.program import EXACT, Input, Program, Statement

Array = np.ndarray[Any, Any]

MOST_ELEMENTS = 3000
GREATEST = {"float16": 2e4, "bfloat16": 1e30}
"""A result of 16 bits that is larger is not kept: whether it overflows depends on when it is
rounded."""
SETTLED_TRIALS = 12
"""Evaluations that agree on all bits of a value: of one that is rounded to 16 bits after all, two
in three differ."""
INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


class Drawing:
    """A program in the making, and what its names hold for each set of inputs."""

    def __init__(self, source: random.Random, library: Library, dtypes: Sequence[str]):
        self.random = source
        self.library = library
        self.dtypes = dtypes
        self.inputs: list[Input] = []
        self.statements: list[Statement] = []
        self.scopes: list[dict[str, Any]] = []
        self.names: list[str] = []
        self.special = source.random() < 0.12

    # what there is --------------------------------------------------------------------------------

    def begin(self, inputs: Sequence[Input], make: Callable[[Input, Array], Any]) -> None:
        self.inputs = list(inputs)
        self.names = [given.name for given in inputs]
        self.make = make
        self.scopes = [self._fresh(0)]
        if any(given.other is not None for given in inputs):
            self.scopes.append(self._fresh(1))

    def _fresh(self, which: int) -> dict[str, Any]:
        scope = dict(self.library.names)
        for given in self.inputs:
            other = given.other if which and given.other is not None else given.array
            scope[given.name] = self.make(given, other)
        return scope

    def value(self, name: str) -> Any:
        return self.scopes[0][name]

    def dtype(self, name: str) -> str:
        return str(self.library.dtype(self.value(name)))

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.value(name).shape)

    def rank(self, name: str) -> int:
        return len(self.shape(name))

    def is_float(self, name: str) -> bool:
        return self.dtype(name) in EPSILON

    def is_whole(self, name: str) -> bool:
        return self.dtype(name) in INTS

    def is_bool(self, name: str) -> bool:
        return self.dtype(name) == "bool"

    def pick(self, test: Callable[[str], bool] = lambda name: True) -> str:
        """A name, mostly one of the latest. Raises LookupError."""
        fits = [name for name in self.names if test(name)]
        if not fits:
            raise LookupError
        if self.random.random() < 0.6:
            fits = fits[-3:]
        return self.random.choice(fits)

    def axis(self, name: str) -> int:
        if not self.rank(name):
            raise LookupError
        return self.random.randrange(-self.rank(name), self.rank(name))

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def is_settled(self, name: str) -> bool:
        """Whether a value has one right answer, to the last bit: no freedom of the lines so far
        changes it, and there is no NaN, which has many."""
        program = Program(tuple(self.inputs), tuple(self.statements), (name,))
        for which, known in enumerate(self.scopes):
            wanted = self.library.wide(known[name])
            if np.isnan(wanted).any():
                return False
            for trial in range(SETTLED_TRIALS):
                fresh = self._fresh(which)
                freedom = Freedom(self.library, trial, 1.0 + trial % 2, trial % 4 == 1)
                values = [fresh[given.name] for given in self.inputs]
                with warnings.catch_warnings(), np.errstate(all="ignore"):
                    warnings.simplefilter("ignore")
                    scope = run(program, self.library, values, freedom)
                if not same_bits(self.library.wide(scope[name]), wanted).all():
                    return False
        return True

    # lines ----------------------------------------------------------------------------------------

    def attempt(self, text: str, freedom: str = EXACT, changes: str = "") -> bool:
        """Add a line if it runs and its result may be compared. changes: the name it changes."""
        target = changes or f"v{len(self.statements)}"
        statement = Statement(target, text, freedom, bool(changes))
        fine = True
        try:
            for scope in self.scopes:
                with warnings.catch_warnings(), np.errstate(all="ignore"):
                    warnings.simplefilter("ignore")
                    step(statement, scope)
                fine = fine and self._is_telling(scope, target, bool(changes))
        except Exception:
            fine = False
        if fine:
            self.statements.append(statement)
            if not changes:
                self.names.append(target)
        elif changes:
            self._again()
        return fine

    def _again(self) -> None:
        """What was changed by a line that is not kept is computed anew."""
        for which, scope in enumerate(self.scopes):
            scope.clear()
            scope.update(self._fresh(which))
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                for statement in self.statements:
                    step(statement, scope)

    def _is_telling(self, scope: dict[str, Any], target: str, changed: bool) -> bool:
        names = [*self.names, target] if changed else [target]
        return all(self._worth(scope[name]) for name in dict.fromkeys(names))

    def _worth(self, value: Any) -> bool:
        dtype = self.library.dtype(value)
        if dtype not in (*EPSILON, *INTS, "bool") or np.prod(value.shape) > MOST_ELEMENTS:
            return False
        if len(value.shape) > 6:
            return False
        if dtype not in EPSILON:
            return True
        wide = self.library.wide(value)
        finite = np.isfinite(wide)
        if wide.size and not finite.any():
            return False
        if not self.special and not finite.all():
            return False
        return bool((np.abs(wide[finite]) <= GREATEST.get(str(dtype), 1e30)).all())

    def program(self, most_results: int = 4) -> Program:
        """What was drawn; it returns what nothing reads, and now and then more."""
        read = {name for statement in self.statements for name in statement.names}
        made = [name for name in self.names if name.startswith("v")]
        ends = [name for name in made if name not in read] or made[-1:] or self.names[-1:]
        ends = ends[-most_results:]
        more = self.random.sample(made, min(len(made), self.random.choice((0, 0, 0, 1, 2))))
        return Program(
            tuple(self.inputs), tuple(self.statements), tuple(dict.fromkeys([*ends, *more]))
        )

    def has_halves(self) -> bool:
        return any(self.dtype(name) in HALVES for name in self.names)

    # data -----------------------------------------------------------------------------------------

    def array(self, dtype: str, shape: Sequence[int]) -> Array:
        """Floats are made as float64 that the dtype holds; few digits, so that they are short."""
        rng = np.random.default_rng(self.random.getrandbits(32))
        found: Array
        if dtype == "bool":
            return np.asarray(rng.random(shape) < 0.5)
        if dtype in INTS:
            low = 0 if dtype.startswith("u") else -6
            found = rng.integers(low, 8, shape)
            if self.random.random() < 0.1:
                info = np.iinfo(dtype)
                extremes = np.array([info.min, info.max, info.max - 1, 0, 1], dtype)
                return np.where(rng.random(shape) < 0.2, rng.choice(extremes, shape),
                                found.astype(dtype)).astype(dtype)  # fmt: skip
            return found.astype(dtype)
        scale = self.random.choice((0.1, 1.0, 1.0, 1.0, 4.0))
        found = rng.standard_normal(shape) * scale
        pick = self.random.random()
        if pick < 0.2:
            found = np.round(found * 2) / 2
        elif pick < 0.27:
            found = np.round(found * 20)
        elif pick < 0.3 and dtype != "float16":
            found = found * 1e3 + 1e4
        if self.special:
            odd = rng.random(shape) < 0.08
            found = np.where(odd, rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0], shape), found)
        elif self.random.random() < 0.1:
            found = np.where(rng.random(shape) < 0.2, rng.choice([0.0, -0.0], shape), found)
        return np.asarray(rounded(found, dtype))


def rounded(array: Array, dtype: str) -> Array:
    """A float64 array of values that the dtype holds."""
    if dtype == "bfloat16":
        import ml_dtypes

        return np.asarray(array).astype(ml_dtypes.bfloat16).astype(np.float64)
    return np.asarray(array).astype(dtype).astype(np.float64)


def copies(values: Sequence[Any]) -> list[Any]:
    return [copy.deepcopy(value) for value in values]
