"""Mutants of launches by their numbers, and how they compare with the kernels they come from."""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
import random
import textwrap
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import fuser.triton.language as tl
from fuser.errors import LanguageError
from fuser.language.tensors import Constexpr
from fuser.triton.jit import JITFunction
from tests.equivalence.kernels.check import MAX_MUTATIONS, Failure, changed
from tests.equivalence.kernels.kinds import LANGUAGE, Info, Kind, Names, argument
from tests.equivalence.kernels.mutate import AREA, EXTRA, Subject, given_by
from tests.equivalence.packages.launches import Launch, memories
from tests.poison import poisoned

FEW = 64
"""Programs of a grid whose scratch memory is larger."""
POSITIONS = {"load": ["mask"], "store": ["value", "mask"], "atomic_add": ["val", "mask"],
             "atomic_max": ["val", "mask"]}  # fmt: skip
"""What mutations look for by position, after the pointer."""
NOISE = 4
"""Units in the last place."""
_numbers = itertools.count()


@dataclass(frozen=True, eq=False)
class Mutant:
    """A launch and what is changed in its kernel, in order (see kernels/check.py)."""

    launch: Launch
    changes: tuple[int, ...]

    @functools.cached_property
    def made(self) -> tuple[str, tuple[str, ...]]:
        return source_of(self)

    @property
    def text(self) -> str:
        return self.made[0]

    @property
    def applied(self) -> tuple[str, ...]:
        """The names of its changes."""
        return self.made[1]


def mutant(number: int, launches: Sequence[Launch]) -> Mutant:
    """Mutant `number` of some launches."""
    source = random.Random(number)
    launch = launches[number % len(launches)]
    changes = tuple(source.getrandbits(32) for _ in range(source.randint(1, MAX_MUTATIONS)))
    return Mutant(launch, changes)


def area_of(launch: Launch) -> int:
    return AREA * 4 if int(np.prod(launch.grid)) <= FEW else AREA


@functools.cache
def _named() -> dict[int, str]:
    """Functions of the language by their identities."""
    return {id(value): name for name, value in vars(tl).items() if callable(value)}


class _Spelled(ast.NodeTransformer):
    """Names of the language as `mutate.py` spells them, and masks by position."""

    def __init__(self, space: dict[str, Any]) -> None:
        self.space = space

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = self.space.get(node.id)
        if value is tl:
            return ast.Name(LANGUAGE, node.ctx)
        named = _named().get(id(value), "")
        if named:
            return ast.Attribute(ast.Name(LANGUAGE, ast.Load()), named, node.ctx)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        named = ast.unparse(node.func).removeprefix(f"{LANGUAGE}.")
        for position, name in enumerate(POSITIONS.get(named, ()), 1):
            value = argument(node, position, name)
            if value is None or len(node.args) > position:
                continue
            node.args.append(value)
            node.keywords = [item for item in node.keywords if item.arg != name]
        if named == "load" and len(node.args) == 3:
            node.keywords.append(ast.keyword("other", node.args.pop()))
        return node


def kinds_of(launch: Launch) -> tuple[Names, dict[str, Kind]]:
    """What a launch's arguments are, and the kinds of its arrays."""
    names: Names = {}
    dtypes: dict[str, Kind] = {}
    for name, given in launch.bound.items():
        item = given.value if isinstance(given, Constexpr) else given
        if isinstance(item, torch.Tensor):
            real = item.dtype.is_floating_point
            dtypes[name] = "float" if real else "bool" if item.dtype is torch.bool else "int"
            names[name] = Info("pointer")
        elif name in launch.kernel.constexprs:
            if isinstance(item, bool | int | float):
                names[name] = Info("static", real=isinstance(item, float))
        elif isinstance(item, int | float) and not isinstance(item, bool):
            # 1 is a constant to the compiler
            kind: Kind = "static" if item == 1 else "float" if isinstance(item, float) else "int"
            names[name] = Info(kind, real=isinstance(item, float))
    return names, dtypes


def space_of(launch: Launch) -> dict[str, Any]:
    """All names that mean something to the compiler, as numbers where they are that."""
    space: dict[str, Any] = {}
    for name, value in launch.kernel.fn.__globals__.items():
        space[name] = value.value if isinstance(value, Constexpr) else value
    for name, value in launch.bound.items():
        space.pop(name, None)
        if name in launch.kernel.constexprs or value is None:
            space[name] = value.value if isinstance(value, Constexpr) else value
    return space | {LANGUAGE: tl}


def subject_of(launch: Launch) -> Subject:
    """A kernel, ready to be changed."""
    space, constexprs = space_of(launch), launch.kernel.constexprs
    (tree,) = ast.parse(textwrap.dedent(launch.kernel.src)).body
    assert isinstance(tree, ast.FunctionDef)
    tree.decorator_list = []
    local = given_by(tree) | {arg.arg for arg in ast.walk(tree) if isinstance(arg, ast.arg)}
    seen = {name: value for name, value in space.items() if name not in local}
    tree.body = [_Spelled(seen).visit(item) for item in tree.body]
    tree.args.args[:0] = [ast.arg(name) for name in EXTRA]
    fixed = {n: value for n, value in space.items() if n in constexprs or value is None}
    names, dtypes = kinds_of(launch)
    return Subject(
        tree, dtypes, names, random.Random(0), space=seen | fixed, area=area_of(launch)
    )  # fmt: skip


def source_of(made: Mutant) -> tuple[str, tuple[str, ...]]:
    """The text of a mutant, and the names of its changes."""
    return changed(subject_of(made.launch), made.changes)


def compiled(text: str, kernel: JITFunction) -> JITFunction:
    """The kernel of a text, with the names around another one."""
    name = kernel.fn.__name__
    file = f"<mutant {next(_numbers)} of {name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space = kernel.fn.__globals__ | {LANGUAGE: tl}
    exec(compile(text, file, "exec"), space)
    return JITFunction(space[name], do_not_specialize=[*kernel.plain, *EXTRA])


def launched(
    kernel: JITFunction, launch: Launch, extra: bool, noise: bool = False
) -> dict[str, torch.Tensor]:
    """The memory of the arguments after a launch. noise: floats are NOISE away, up or down."""
    bound = launch.copied()
    found = dict(memories(bound))
    if noise:
        source = torch.Generator().manual_seed(0)
        for memory in found.values():
            if memory.is_floating_point():
                way = torch.randint(0, 2, memory.shape, generator=source) * 2 - 1
                step = way * NOISE * torch.finfo(memory.dtype).eps
                memory.copy_(memory.double() * (1 + step))
    given: dict[str, Any] = {}
    if extra:
        count = int(np.prod(launch.grid)) * area_of(launch)
        # What a mutant reads there it has written.
        given = {"memory_f": torch.full((count,), float("nan"), dtype=torch.float64), "zero": 0,
                 "memory_i": torch.full((count,), 1 << 40), "one": 1, "one_f": 1.0}  # fmt: skip
    # a product that is added in one rounding is so only where nothing is between the two
    options = launch.options | {"enable_fp_fusion": False}
    with poisoned():
        kernel[launch.grid](**given, **bound, **options)
    return found


@functools.lru_cache(maxsize=256)
def expected(launch: Launch) -> dict[str, torch.Tensor]:
    """What the kernel itself leaves in memory."""
    return launched(launch.kernel, launch, extra=False)


@functools.lru_cache(maxsize=256)
def moved(launch: Launch) -> dict[str, float]:
    """How far rounding may move floats: what NOISE in the arguments does at most, and as much of
    the largest result, by memory."""
    noisy = launched(launch.kernel, launch, extra=False, noise=True)
    return {
        name: _apart(noisy[name], b) + NOISE * torch.finfo(b.dtype).eps * _apart(b, b * 0)
        for name, b in expected(launch).items() if b.is_floating_point()
    }  # fmt: skip


def _apart(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference of finite elements."""
    both = a.isfinite() & b.isfinite()
    return float((a.double() - b.double())[both].abs().max()) if bool(both.any()) else 0.0


def same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Where elements have the same bits; every NaN is one."""
    if not a.is_floating_point():
        return a == b
    return (a == b) & (torch.signbit(a) == torch.signbit(b)) | (a.isnan() & b.isnan())


def rounded(launch: Launch, name: str, a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether floats differ by no more than another order of sums makes them."""
    if not a.is_floating_point() or bool((a.isfinite() != b.isfinite()).any()):
        return False
    odd = ~b.isfinite()
    return bool(same(a[odd], b[odd]).all()) and _apart(a, b) <= moved(launch)[name]


def difference(launch: Launch, got: dict[str, torch.Tensor]) -> tuple[str, bool]:
    """What is wrong in a memory, or nothing, and whether all bits are the same."""
    exact = True
    for name, b in expected(launch).items():
        a = got[name]
        wrong = (~same(a, b)).nonzero().flatten()
        exact = exact and not len(wrong)
        if len(wrong) and not rounded(launch, name, a, b):
            at = int(wrong[0])
            return (
                f"{len(wrong)} of {len(a)} elements of {name}, the first at {at}: "
                f"{a[at].item()!r}, not {b[at].item()!r}; at most "
                f"{_apart(a, b):.3g} apart, where rounding gives {moved(launch)[name]:.3g}"
            ), False
    return "", exact


def check(made: Mutant) -> Failure | bool:
    """Launch a mutant. Where all is as it should be, whether all bits are the same."""
    expected(made.launch)
    try:
        got = launched(compiled(made.text, made.launch.kernel), made.launch, extra=True)
    except LanguageError as error:
        return Failure("refused", error.what, traceback.format_exc())
    except Exception as error:
        return Failure("error", f"{type(error).__name__}: {error}", traceback.format_exc())
    wrong, exact = difference(made.launch, got)
    return Failure("wrong", wrong) if wrong else exact


def reduced(made: Mutant, failure: Failure) -> Mutant:
    """The mutant with as few changes as fail in the same way."""
    changes = list(made.changes)
    for change in made.changes:
        fewer = replace(made, changes=tuple(item for item in changes if item != change))
        found = check(fewer)
        if isinstance(found, Failure) and found.kind == failure.kind:
            changes.remove(change)
    return replace(made, changes=tuple(changes))
