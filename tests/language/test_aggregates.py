"""Objects of classes under @aggregate: made, handed on, carried and chosen in kernels."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fuser
import fuser.language as fl
import fuser.triton as triton
import fuser.triton.language as tl
from fuser.errors import FuserError, LanguageError, UsageError
from fuser.language.outside import ChangedError
from tests.language.launching import DEVICES, launch


@triton.aggregate
class Sums:
    total: tl.tensor
    count: tl.tensor
    scale: tl.constexpr

    @triton.jit
    def add(self, x):
        return Sums(self.total + x * self.scale, self.count + 1, self.scale)

    @triton.jit
    def mean(self):
        return self.total / self.count

    @staticmethod
    @triton.jit
    def empty(B: tl.constexpr, scale: tl.constexpr):
        return Sums(tl.zeros((B,), tl.float32), 0, scale)

    @triton.constexpr_function
    def is_scaled(self):
        return self.scale != 1


@triton.jit
def two_steps(state, x):
    state = state.add(x)
    return state.add(x + 1)


@triton.jit
def means(x, out, n, B: tl.constexpr, SCALE: tl.constexpr):
    at = tl.arange(0, B)
    state = Sums.empty(B, SCALE)
    for i in range(n):
        state = two_steps(state, tl.load(x + i * B + at))
    if state.is_scaled():
        tl.store(out + B, 1.0)
    tl.store(out + at, state.mean())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("n", "size"), [(1, 16), (3, 16), (5, 64), (2, 1)])
@pytest.mark.parametrize("scale", [1, 3])
def test_objects_in_loops_functions_and_methods(n: int, size: int, scale: int, device: str) -> None:
    x = np.random.default_rng(n).integers(-9, 9, (n, size)).astype(np.float32)
    out = np.zeros(size + 1, np.float32)
    launch(means, device, x, out, n, B=size, SCALE=scale)
    np.testing.assert_allclose(out[:size], scale * (2 * x + 1).sum(0) / (2 * n), rtol=1e-6)
    assert out[size] == (scale != 1)


@fl.aggregate
class Pair:
    first: fl.tensor
    second: fl.tensor


@fl.aggregate
class Nested:
    pair: Pair
    parts: tuple
    place: fl.tensor
    width: fl.constexpr = 4

    @fuser.kernel
    def moved(self, by):
        return Nested(self.pair, self.parts, self.place + by)


@fuser.kernel
def branched(x, out, n, most):
    pair = Pair(n, second=2.0)
    if n > most:
        pair = Pair(most, pair.second + 1)
    seven, eight = 7, 8
    nested = Nested(pair, (n, seven), x)
    if n > 3:
        nested = nested.moved(nested.width)
    else:
        nested = fl.aggregate_replace(nested, parts=(n + 1, eight))
    fl.store(out, nested.pair.first)
    fl.store(out + 1, nested.pair.second)
    fl.store(out + 2, nested.parts[0] + nested.parts[1])
    fl.store(out + 3, fl.load(nested.place))
    chosen = pair if n > 4 else Pair(100, 50.0)
    fl.store(out + 4, chosen.first + chosen.second)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", [2, 3, 5, 70])
@pytest.mark.parametrize("most", [2, 4, 90])
def test_objects_in_branches(n: int, most: int, device: str) -> None:
    x, out = np.arange(16, dtype=np.float32), np.zeros(5, np.float32)
    launch(branched, device, x, out, n, most)
    first, second = (most, 3) if n > most else (n, 2)
    parts, place = ((n, 7), 4) if n > 3 else ((n + 1, 8), 0)
    chosen = (first + second) if n > 4 else 150
    assert out.tolist() == [first, second, sum(parts), place, chosen]


@pytest.mark.parametrize("device", DEVICES)
def test_a_while_loop_and_an_early_end(device: str) -> None:
    @fuser.kernel
    def kernel(out, n):
        state = Pair(0, 1)
        while state.first < n:
            state = Pair(state.first + 1, state.second * 2)
        for k in range(n):
            if state.second > 1000:
                break
            state = Pair(k, state.second * 3)
        fl.store(out, state.first)
        fl.store(out + 1, state.second)

    for n in (2, 5, 12):
        out = np.zeros(2, np.int32)
        launch(kernel, device, out, n)
        first, second = n, 2**n
        for k in range(n):
            if second > 1000:
                break
            first, second = k, second * 3
        assert out.tolist() == [first, second]


def test_a_function_that_returns_one_from_a_branch() -> None:
    @fuser.kernel
    def made(n):
        if n > 4:
            return Pair(n, 1)
        return Pair(0, 2)

    @fuser.kernel
    def kernel(out, n):
        found = made(n)
        fl.store(out, found.first * 10 + found.second)

    for n, want in ((3, 2), (7, 71)):
        out = np.zeros(1, np.int32)
        kernel[(1,)](out, n)
        assert out[0] == want


@triton.aggregate
class Vector:
    x: tl.tensor
    y: tl.tensor

    @triton.jit
    def __add__(self, other):
        return Vector(self.x + other.x, self.y + other.y)

    @triton.jit
    def __mul__(self, scale):
        return Vector(self.x * scale, self.y * scale)

    @triton.jit
    def __rmul__(self, scale):
        return self * scale

    @triton.jit
    def __neg__(self):
        return Vector(-self.x, -self.y)

    @triton.jit
    def __lt__(self, other):
        return self.x * self.x + self.y * self.y < other.x * other.x + other.y * other.y

    @triton.jit
    def __getitem__(self, n: tl.constexpr):
        return self.x if n == 0 else self.y


@pytest.mark.parametrize("device", DEVICES)
def test_operators(device: str) -> None:
    @triton.jit
    def kernel(out, n):
        a = Vector(n, 2)
        b = -(a + Vector(1, 1)) * 2
        b += 3 * a
        tl.store(out, b[0])
        tl.store(out + 1, b[1])
        tl.store(out + 2, tl.where(a < b, 1, 0))
        tl.store(out + 3, tl.where(a > b, 1, 0))

    out = np.zeros(4, np.int32)
    launch(kernel, device, out, 5)
    a = np.array([5, 2])
    b = -(a + 1) * 2 + 3 * a
    assert out.tolist() == [*b, (a @ a) < (b @ b), (a @ a) > (b @ b)]


@triton.aggregate
class Config:
    size: tl.constexpr
    dtype: tl.constexpr
    steps: tl.constexpr

    def __init__(self, size, dtype=tl.float32):
        """Python, which runs while the kernel is compiled."""
        table = {2: 5, 4: 9}
        self.size = tl.constexpr(size * 2)
        self.dtype = tl.constexpr(dtype)
        self.steps = tl.constexpr(sum(table.values()) if size == 4 else 1)

    def doubled(self, n):
        return self.size * 2 + n


@triton.aggregate
class Unwrapped:
    size: tl.constexpr
    tile: tl.tensor

    @triton.constexpr_function
    def __init__(self, size, tile):
        self.size = tl.constexpr(1 << size.bit_length())
        self.tile = tile


@pytest.mark.parametrize("size", [2, 4, 8, 16, 32])
def test_constructors_are_python(size: int) -> None:
    @triton.jit
    def kernel(out, SIZE: tl.constexpr):
        config = Config(SIZE)
        tl.static_assert(config.dtype == tl.float32)
        more = Unwrapped(SIZE, tl.arange(0, SIZE))
        tl.store(out + tl.arange(0, config.size), 1.0 * config.steps)
        tl.store(out + more.tile, more.size + config.doubled(1))

    out = np.zeros(64, np.float32)
    kernel[(1,)](out, SIZE=size)
    steps = 14 if size == 4 else 1
    want = np.zeros(64)
    want[: 2 * size], want[:size] = steps, (1 << size.bit_length()) + 4 * size + 1
    np.testing.assert_array_equal(out, want)


@triton.aggregate
class Filled:
    tile: tl.tensor

    def __init__(self, size, value, _semantic=None):
        self.tile = tl.full((size,), value, tl.float32, _semantic=_semantic)


def test_python_that_calls_functions_of_the_language() -> None:
    @triton.jit
    def kernel(out, B: tl.constexpr):
        tl.store(out + tl.arange(0, B), Filled(B, 2.5).tile)

    out = np.zeros(8, np.float32)
    kernel[(1,)](out, B=8)
    assert (out == 2.5).all()


@tl.core._aggregate
class Base:
    a: tl.tensor
    b: tl.constexpr = 3

    @triton.jit
    def sum(self):
        return self.a + self.b


@tl.core._aggregate
class Derived(Base):
    c: tl.tensor

    @triton.jit
    def all(self):
        return self.sum() + self.c


@pytest.mark.parametrize(("n", "c"), [(2, 3), (5, -1), (100, 0), (7, 9), (2, 2)])
def test_inheritance_and_defaults(n: int, c: int) -> None:
    @triton.jit
    def kernel(out, n, C: tl.constexpr):
        tl.static_assert(isinstance(Derived(n, c=C), Base))
        tl.store(out, Derived(n, c=C).all())
        tl.store(out + 1, Derived(n, 5, C).sum())

    out = np.zeros(2, np.int32)
    kernel[(1,)](out, n, C=c)
    assert out.tolist() == [n + 3 + c, n + 5]


def test_objects_are_arguments_where_all_of_them_is_known() -> None:
    @triton.jit
    def kernel(out, CONFIG: tl.constexpr):
        tl.store(out, CONFIG.size + CONFIG.steps)

    out = np.zeros(1, np.int32)
    for size in (2, 4, 2):
        kernel[(1,)](out, CONFIG=Config(size))
        assert out[0] == 2 * size + (14 if size == 4 else 1)
    assert sum(map(len, kernel.variants.values())) == 2


GLOBAL: Any = Config(8)


def test_a_changed_object_around_a_kernel_is_noticed() -> None:
    global GLOBAL

    @triton.jit
    def kernel(out):
        tl.store(out, GLOBAL.size)

    GLOBAL = tl.constexpr(Config(8))
    out = np.zeros(1, np.int32)
    kernel[(1,)](out)
    GLOBAL = tl.constexpr(Config(8))
    kernel[(1,)](out)
    assert out[0] == 16
    GLOBAL = tl.constexpr(Config(4))
    with pytest.raises(ChangedError, match="GLOBAL"):
        kernel[(1,)](out)


# outside of kernels -------------------------------------------------------------------------------


def test_objects_in_python() -> None:
    config = Config(4)
    assert config.size == 8 and config.size.value == 8 and config.steps == 14
    assert config == Config(4) and config != Config(2) and hash(config) == hash(Config(4))
    base = Derived(1, c=2)
    changed = tl.aggregate_replace(base, b=9)
    assert (changed.b, base.b) == (9, 3) and "b=constexpr[9]" in repr(changed)
    assert Derived.__aggregate_fields__ == ("a", "b", "c")
    with pytest.raises(UsageError, match="no field 'x'"):
        tl.aggregate_replace(base, x=1)
    with pytest.raises(UsageError, match="aggregate_replace of a int"):
        tl.aggregate_replace(3, x=1)
    with pytest.raises(AttributeError, match="an assignment to the field a"):
        base.a = 3
    with pytest.raises(AttributeError, match="no field 'z'"):
        base.z = 3


@pytest.mark.parametrize(
    ("left", "right", "want"),
    [(lambda c: c + 2, None, 7), (lambda c: 2 * c, None, 10), (lambda c: c // 2, None, 2),
     (lambda c: 12 % c, None, 2), (lambda c: -c, None, -5), (lambda c: c < 6, None, True),
     (lambda c: c == 5, None, True), (lambda c: c << tl.constexpr(1), None, 10),
     (lambda c: [0, 1, 2, 3, 4, 9][c], None, 9), (lambda c: tl.constexpr((4, 6))[1], None, 6)],
)  # fmt: skip
def test_operators_of_constexprs(left: Any, right: Any, want: Any) -> None:
    found = left(tl.constexpr(5))
    assert getattr(found, "value", found) == want


# what is refused ----------------------------------------------------------------------------------

PROGRAM = """\
import fuser.triton as triton
import fuser.triton.language as tl

@triton.aggregate
class Point:
    x: tl.tensor
    n: tl.constexpr
    @triton.jit
    def moved(self, by):
        self.x = self.x + by
        return self
    def broken(self):
        raise ValueError("no such thing")

@triton.aggregate
class Half:
    x: tl.tensor
    y: tl.tensor
    def __init__(self, x):
        self.x = x

@triton.jit
def k(out, n, B: tl.constexpr):
    p = Point(n, 4)
    {line}
"""
WRONG = {
    "an unknown field": ("a = p.y", "a Point has no 'y'"),
    "too many": ("Point(n, 4, 5)", "Point takes 2 fields, and 3 are given"),
    "too few": ("Point(n)", "Point is made without its field n"),
    "twice": ("Point(n, 4, x=n)", "Point is given its field x twice"),
    "an unknown name": ("Point(n, m=4)", "Point has no field 'm'"),
    "a run-time constexpr": ("Point(n, n)", "Point.n is a constexpr, and given a int32"),
    "text for a tensor": ("Point('a', 1)", "Point.x is a tensor, and given"),
    "an assignment": ("p.x = 3", "an assignment to p.x"),
    "an assignment in a method": ("p.moved(3)", "an assignment to self.x"),
    "python that raises": ("p.broken()", "broken: ValueError: no such thing"),
    "half a constructor": ("Half(n)", "the constructor of Half did not set the field y"),
    "no such operator": ("a = p + p", "a Point + a Point"),
    "no such comparison": ("a = p < 3", "a Point < 3"),
    "no such sign": ("a = -p", "- of a Point"),
    "no items": ("a = p[0]", "a Point has no [...]"),
    "other constants in a branch": (
        "q = p\n    if n > 3:\n        q = Point(n, 5)\n    tl.store(out, q.x)", "Point(x: int32"),
    "other constants in a loop": (
        "for i in range(n):\n        p = Point(p.x, p.n + 1)", "before the loop and Point("),
    "as a number": ("tl.store(out, p)", "a Point is not a number or a tile"),
    "replaced by what there is not": ("tl.aggregate_replace(p, y=1)", "Point has no field 'y'"),
}  # fmt: skip


def load(folder: Path, text: str) -> Any:
    path = folder / "points.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(f"points_{abs(hash(text))}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", WRONG)
def test_errors_point_at_the_line(name: str, tmp_path: Path) -> None:
    line, what = WRONG[name]
    module = load(tmp_path, PROGRAM.format(line=line))
    with pytest.raises(LanguageError) as caught:
        module.k[(1,)](np.zeros(4, np.float32), 5, B=4)
    assert what in str(caught.value)
    assert "points.py:" in str(caught.value)


def test_classes_that_are_none() -> None:
    with pytest.raises(FuserError, match="inherits from dict"):
        triton.aggregate(type("Bad", (dict,), {}))
    with pytest.raises(FuserError, match="is a kernel's function"):

        @triton.aggregate
        class Jitted:
            x: tl.tensor

            @triton.jit
            def __init__(self, x):
                self.x = x

        Jitted(3)


def test_a_constructor_that_calls_another() -> None:
    @triton.aggregate
    class More(Base):
        d: tl.tensor

        def __init__(self, a):
            Base.__init__(self, a)

    with pytest.raises(FuserError, match="calls another one"):
        More(3)
