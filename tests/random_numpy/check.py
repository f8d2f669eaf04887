"""A random NumPy program through `fuser.jit`, against NumPy."""

from __future__ import annotations

import argparse
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import fuser
from fuser.errors import FuserError, UnsupportedError
from tests.fuzzing.draw import Drawing
from tests.fuzzing.freedom import Freedom, run
from tests.fuzzing.jobs import REFUSED, RIGHT, SKIPPED, Finding, save
from tests.fuzzing.judge import EPSILON, Seen, Verdict, judged
from tests.fuzzing.program import Array, Input, Program, literal, signature
from tests.fuzzing.shrink import shrunk
from tests.random_numpy.operators import DTYPES, MOVES

SIZES = (0, 1, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 13, 16, 17, 33, 65)
TRIALS, MORE_TRIALS = 4, 40
"""Evaluations that use freedom: for every program, and again for one that fails."""


class NumPy:
    """The library's side of `tests.fuzzing.freedom`."""

    names = {"np": np, "nan": np.nan, "inf": np.inf}  # noqa: RUF012

    def dtype(self, value: Any) -> str | None:
        return str(value.dtype) if isinstance(value, np.ndarray | np.generic) else None

    def wide(self, value: Any) -> Array:
        return np.asarray(value, np.float64)

    def stored(self, value: Any, wide: Array) -> Any:
        with np.errstate(all="ignore"):
            new = wide.astype(value.dtype)
        if isinstance(value, np.generic):
            return new[()]
        value[...] = new
        return value

    def shifted(self, value: Any, change: Array) -> Any:
        with np.errstate(all="ignore"):
            return (np.asarray(value) + change.astype(value.dtype)).astype(value.dtype)


LIBRARY = NumPy()


def make(given: Input, array: Array) -> Any:
    return array.astype(given.dtype)


def draw(seed: int) -> Program:
    """The program of a seed."""
    source = random.Random(seed)
    d = Drawing(source, LIBRARY, DTYPES)
    shapes: list[tuple[int, ...]] = []
    inputs: list[Input] = []
    for place in range(source.randint(1, 3)):
        if shapes and source.random() < 0.7:
            base = source.choice(shapes)
            shape = tuple(1 if source.random() < 0.15 else n for n in base)
            shape = shape[1:] if shape and source.random() < 0.15 else shape
        else:
            rank = source.choice((0, 1, 1, 2, 2, 2, 3, 3, 4))
            shape = tuple(source.choice(SIZES[:13] if rank > 2 else SIZES) for _ in range(rank))
            while np.prod(shape) > 1500:
                shape = shape[1:]
        shapes.append(shape)
        dtype = source.choice(DTYPES)
        if inputs and source.random() < 0.5:
            dtype = inputs[0].dtype
        inputs.append(Input(f"x{place}", d.array(dtype, shape), dtype))
    d.begin(inputs, make)
    wanted = source.choice((1, 2, 3, 3, 4, 5, 6, 8, 10))
    moves, weights = list(MOVES), list(MOVES.values())
    for _ in range(6 * wanted):
        if len(d.statements) >= wanted:
            break
        try:
            source.choices(moves, weights)[0](d)
        except (LookupError, ValueError, TypeError):
            continue
    return d.program()


def seen(results: Sequence[Any]) -> list[Seen]:
    found = []
    for place, value in enumerate(results):
        array = np.asarray(value)
        dtype = str(array.dtype)
        wide = array.astype(np.float64) if dtype in EPSILON else array
        found.append(Seen(f"result {place}", wide, dtype))
    return found


def evaluated(program: Program, freedom: Freedom | None = None, double: bool = False) -> list[Seen]:
    values = [make(given, given.array) for given in program.inputs]
    rewrite: Callable[[str], str] = str
    if double:
        values = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in values]
        rewrite = doubled
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scope = run(program, LIBRARY, values, freedom, rewrite)
    return seen([scope[name] for name in program.outputs])


def doubled(line: str) -> str:
    """A line in float64; what is rounded on purpose stays so."""
    for name in ("float16", "float32"):
        line = line.replace(f".astype(np.{name})", f".astype(np.{name}).astype(np.float64)")
        line = line.replace(f"dtype=np.{name}", "dtype=np.float64")
    return line


def compiled(program: Program) -> list[Seen]:
    function = program.function(LIBRARY.names)
    values = [make(given, given.array) for given in program.inputs]
    kept = [value.copy() for value in values]
    results = fuser.jit(function, device="cpu")(*values)
    for value, before in zip(values, kept, strict=True):
        if not np.array_equal(value, before, equal_nan=value.dtype.kind == "f"):
            raise AssertionError("an argument was changed")
    return seen(results)


def verdict(program: Program, found: Sequence[Seen] | None = None) -> Verdict | None:
    """What is wrong with what fuser computes. Raises what fuser raises."""
    found = compiled(program) if found is None else found
    eager = evaluated(program)
    lenient = has_halves(program)
    exact: list[Seen] | None
    try:
        exact = evaluated(program, double=True)
        if [x.array.shape for x in exact] != [x.array.shape for x in eager]:
            exact = None
    except Exception:
        exact = None
    wrong: Verdict | None = None
    for trials in (TRIALS, MORE_TRIALS):
        others = [
            evaluated(program, Freedom(LIBRARY, n, 1.0 if n % 3 else 2.0, n % 4 == 1))
            for n in range(trials)
        ]
        wrong = judged(found, eager, others, exact)
        if wrong is None or (lenient and wrong.kind == "bits"):
            return None
    return wrong


def has_halves(program: Program) -> bool:
    """Whether values of 16 bits are among what is computed."""
    values = [make(given, given.array) for given in program.inputs]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scope = run(program, LIBRARY, values)
    names = [*(x.name for x in program.inputs), *(s.target for s in program.statements)]
    return "float16" in program.text() or any(
        LIBRARY.dtype(scope[name]) == "float16" for name in names
    )


def kind_of(program: Program) -> tuple[str, str]:
    """(kind, reason) of a program."""
    try:
        evaluated(program)
    except Exception as error:  # none that NumPy runs: made small too far
        return SKIPPED, str(error)[:100]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = compiled(program)
    except UnsupportedError as error:
        return REFUSED, plain(error)
    except FuserError as error:
        return f"error {type(error).__name__}", str(error)[:600]
    except Exception as error:
        return f"raw {type(error).__name__}", str(error)[:600]
    wrong = verdict(program, found)
    return (wrong.kind, wrong.what) if wrong else (RIGHT, "")


def plain(error: Exception) -> str:
    """A reason without what differs from program to program."""
    import re

    text = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    text = text.split(" (at ")[0].split("; ")[0]
    text = re.sub(r"\b(bool|[iuf]\d+|bf16)\[[^\]]*\]", "array", text)
    return re.sub(r"-?\d+(, -?\d+)*", "n", text)[:140]


def values_of(program: Program) -> Mapping[str, Input]:
    """What a program computes, as inputs."""
    scope = run(program, LIBRARY, [make(given, given.array) for given in program.inputs])
    found = {}
    for statement in program.statements:
        array = np.asarray(scope[statement.target])
        dtype = str(array.dtype)
        wide = array.astype(np.float64) if dtype in EPSILON else array
        found[statement.target] = Input(statement.target, wide.copy(), dtype)
    return found


def script(program: Program, what: str) -> str:
    """A program that shows what fuser does."""
    names = ", ".join(given.name for given in program.inputs)
    equal = "np.allclose(a, b, 1e-5, 0, equal_nan=True)"
    if what.startswith("bits"):
        equal = "np.array_equal(a, b, equal_nan=True)"
    elif what.startswith("sign"):
        equal = "np.array_equal(np.signbit(a), np.signbit(b))"
    lines = [
        f'"""{what}"""'.replace("\n", " "),
        "import numpy as np, fuser",
        "from numpy import inf, nan",
    ]
    lines += [
        f"{x.name} = np.array({literal(x.array)}, np.dtype({x.dtype!r})).reshape({x.array.shape})"
        for x in program.inputs
    ]
    lines += [program.text(), "with np.errstate(all='ignore'):", f"    want = f({names})",
              f"got = fuser.jit(f, device='cpu')({names})",
              "bad = 0", "for a, b in zip(got, want):", "    a, b = np.asarray(a), np.asarray(b)",
              "    print(a.dtype, a, 'want', b.dtype, b)",
              f"    bad += a.dtype != b.dtype or not {equal}",
              "raise SystemExit(bool(bad))"]  # fmt: skip
    return "\n".join(lines)


def check(seed: int, options: argparse.Namespace) -> list[Finding]:
    """The finding of a program; what fails is made small."""
    program = draw(seed)
    if not program.statements:
        return [Finding(SKIPPED)]
    kind, reason = kind_of(program)
    finding = Finding(kind, reason)
    if not finding.failed or kind in options.left_out:
        return [finding]
    if not options.whole:
        program = shrunk(program, lambda trial: kind_of(trial)[0] == kind, values_of)
        reason = kind_of(program)[1]
    text = script(program, f"{kind}: {reason}")
    save(options, "numpy", kind, seed, text)
    return [Finding(kind, reason, text, signature(program))]
