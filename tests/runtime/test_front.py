"""Kernels as builtin functions: which calls a native launch takes, and what becomes of the rest."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fuser.backend.cpu import compile_kernel, host_target
from fuser.runtime import door, launch_cost
from fuser.runtime.cpu_launch import CpuKernel
from fuser.runtime.fast_launch import (
    Constant,
    FastLaunch,
    Integer,
    Pointer,
    Signature,
    make_fast_launcher,
)
from fuser.runtime.front import Form, Front, Watch, bind_slowly
from fuser.runtime.memory import aligned_array

from .language_kernels import BLOCK, vector_add

pytestmark = pytest.mark.skipif(bool(door.problem()), reason=door.problem())

N = 2 * BLOCK
NAMES = ("x", "y", "out", "n", "BLOCK")


def drawn(seed: int) -> np.ndarray:
    made = aligned_array((N,), np.dtype(np.float32))
    made[...] = np.random.default_rng(seed).random(N)
    return made


X, Y, OUT = (drawn(seed) for seed in range(3))
SLOW, FAST = object(), object()


class Slow:
    """Keeps the calls that came to it."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __call__(self, grid: Any, /, *args: Any, **named: Any) -> Any:
        self.calls.append((grid, args, named))
        return SLOW


@pytest.fixture(scope="module")
def fast() -> FastLaunch:
    """out = x + y, for the block size of the kernel."""
    kernel = CpuKernel(vector_add(lambda kernel: compile_kernel(kernel, host_target())), 1)
    kernel.estimate[0] = launch_cost.first_estimate(1e-8)
    parameters = (
        Pointer(writes=False), Pointer(writes=False), Pointer(),
        Integer(low=2, high=(1 << 31) - 1), Constant(BLOCK),
    )  # fmt: skip
    made = make_fast_launcher(
        kernel, Signature(parameters, (0, 1, 2), {"n": (3, 1)}), (X, Y, OUT, N, BLOCK)
    )
    assert made is not None
    return made


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
def front(fast: FastLaunch, slow: Slow) -> Front:
    made = Front(slow)
    made.set_forms([form_of(fast, 4, ("BLOCK",)), form_of(fast, 5, ())])
    return made


def form_of(
    fast: FastLaunch, positional: int, keywords: tuple[str, ...], extra: tuple[Any, ...] = ()
) -> Form:
    given = NAMES[: positional + len(keywords)]
    made = Form(positional, keywords, given, dict.fromkeys(NAMES), extra)
    made.set_doors([(fast, FAST)])
    return made


def launched(call: Callable[[], Any]) -> bool:
    """Whether the kernel ran; what it gives agrees."""
    OUT[...] = 0
    answer = call()
    ran = bool((X + Y == OUT).all())
    assert ran or not OUT.any()
    assert (answer is FAST) == ran and answer in (FAST, SLOW)
    return ran


def test_calls_that_fit_a_form(front: Front, slow: Slow) -> None:
    assert launched(lambda: front.bind((2,))(X, Y, OUT, N, BLOCK=BLOCK))
    assert launched(lambda: front.bind((2, 1, 1))(X, Y, OUT, N, BLOCK))
    assert launched(lambda: front.bind(2)(X, Y, OUT, N, BLOCK))
    bound = front.bind((2,))
    assert all(launched(lambda: bound(X, Y, OUT, N, BLOCK)) for _ in range(3))
    assert not slow.calls


@pytest.mark.parametrize(
    ("grid", "args", "named"),
    [
        ((2,), (X, Y, OUT), {"n": N, "BLOCK": BLOCK}),
        ((2,), (X, Y, OUT, N), {"block": BLOCK}),
        ((2,), (X, Y, OUT, N), {"BLOCK": BLOCK, "num_warps": 4}),
        ((2,), (X, Y, OUT, N), {}),
        ((2,), (X, Y, OUT, N, BLOCK, 1), {}),
        ((2,), (), {}),
        ((2,), (X, Y, OUT, N, BLOCK + 1), {}),
        ((2,), (X, Y, OUT, 1, BLOCK), {}),
        ((2,), (X, Y, OUT, None, BLOCK), {}),
        ([2], (X, Y, OUT, N, BLOCK), {}),
        ((), (X, Y, OUT, N, BLOCK), {}),
        ((2, 1, 1, 1), (X, Y, OUT, N, BLOCK), {}),
        ((-2,), (X, Y, OUT, N, BLOCK), {}),
        ((2.0,), (X, Y, OUT, N, BLOCK), {}),
        (np.int64(2), (X, Y, OUT, N, BLOCK), {}),
        (None, (X, Y, OUT, N, BLOCK), {}),
        ((2,), tuple(range(200)), {f"name{i}": i for i in range(200)}),
    ],
)
def test_other_calls_are_the_slow_ones(
    front: Front, slow: Slow, grid: Any, args: tuple[Any, ...], named: dict[str, Any]
) -> None:
    assert not launched(lambda: front.bind(grid)(*args, **named))
    ((seen, given, names),) = slow.calls
    assert seen is grid and list(names) == list(named)
    values = zip((*given, *names.values()), (*args, *named.values()), strict=True)
    assert all(a is b for a, b in values)


def test_names_that_are_other_objects_are_left_to_python(front: Front, slow: Slow) -> None:
    name = "".join(["BLO", "CK"])
    assert name == "BLOCK" and not launched(lambda: front.bind(2)(X, Y, OUT, N, **{name: BLOCK}))
    assert slow.calls[0][2] == {"BLOCK": BLOCK}


def test_grids_are_computed_once(front: Front, slow: Slow) -> None:
    seen: list[dict[str, Any]] = []

    def grid(meta: dict[str, Any]) -> Any:
        seen.append(meta)
        return (meta["n"] // meta["BLOCK"],)

    assert launched(lambda: front.bind(grid)(X, Y, OUT, N, BLOCK=BLOCK))
    assert list(seen[0]) == list(NAMES) and seen[0]["x"] is X and seen[0]["BLOCK"] == BLOCK
    assert launched(lambda: front.bind(grid)(X, Y, OUT, N, BLOCK=BLOCK))
    assert seen[0] is not seen[1]
    assert launched(lambda: front.bind(lambda meta: 2)(X, Y, OUT, N, BLOCK))
    # what no door takes comes with the grid that was computed
    assert not launched(lambda: front.bind(grid)(X, Y, OUT, N, BLOCK=2 * BLOCK))
    assert len(seen) == 3 and slow.calls.pop()[0] == (1,)
    assert not launched(lambda: front.bind(lambda meta: [2])(X, Y, OUT, N, BLOCK=BLOCK))
    assert slow.calls.pop()[0] == [2]
    # a function that gives a function is asked again: what it gives is no grid
    odd = lambda meta: print  # noqa: E731
    assert not launched(lambda: front.bind(odd)(X, Y, OUT, N, BLOCK=BLOCK))
    assert slow.calls.pop()[0] is odd


def test_what_a_grid_raises_is_raised(front: Front, slow: Slow) -> None:
    with pytest.raises(KeyError, match="missing"):
        front.bind(lambda meta: (meta["missing"],))(X, Y, OUT, N, BLOCK=BLOCK)
    assert not slow.calls


def test_what_the_slow_way_raises_is_raised() -> None:
    def refuse(grid: Any, *args: Any) -> None:
        raise ValueError(f"{grid} {args}")

    with pytest.raises(ValueError, match=r"3 \(1, 2\)"):
        Front(refuse).bind(3)(1, 2)
    with pytest.raises(ValueError, match=r"3 \(1, 2\)"):
        bind_slowly(refuse)(3)(1, 2)


def test_what_is_left_to_its_default(fast: FastLaunch, slow: Slow) -> None:
    front = Front(slow)
    front.set_forms([form_of(fast, 3, (), (N, BLOCK))])
    assert launched(lambda: front.bind((2,))(X, Y, OUT))
    assert not launched(lambda: front.bind((2,))(X, Y, OUT, N))
    front.set_forms([form_of(fast, 3, (), (N, BLOCK + 1))])
    assert not launched(lambda: front.bind((2,))(X, Y, OUT))


def test_options_are_no_arguments_to_grids(fast: FastLaunch, slow: Slow) -> None:
    front = Front(slow)
    form = Form(4, ("num_warps",), (*NAMES[:4], None), {**dict.fromkeys(NAMES), "BLOCK": 7}, ())
    form.set_doors([(fast, FAST)])
    front.set_forms([form])
    seen: list[dict[str, Any]] = []
    grid = lambda meta: seen.append(meta) or 2  # type: ignore[func-returns-value]  # noqa: E731
    assert launched(lambda: front.bind(grid)(X, Y, OUT, N, num_warps=BLOCK))
    assert list(seen[0]) == list(NAMES) and seen[0]["BLOCK"] == 7


def test_watches(fast: FastLaunch, slow: Slow) -> None:
    hooks: list[int] = []
    table: dict[Any, Any] = {"hooks": hooks, "one": slow}
    front = Front(
        slow,
        [Watch.empty(table, "hooks"), Watch.absent(table, b"debug"), Watch.same(table, "one")],
    )
    front.set_forms([form_of(fast, 5, ())])

    def native() -> bool:
        return launched(lambda: front.bind((2,))(X, Y, OUT, N, BLOCK))

    assert native()
    hooks.append(3)
    assert not native()
    hooks.clear()
    assert native()
    for key, value in (("hooks", [1]), ("hooks", ()), (b"debug", None), ("one", Slow())):
        before = dict(table)
        table[key] = value
        assert not native()
        table.clear()
        table.update(before)
        assert native()
    constant = 3
    function = lambda: constant  # noqa: E731
    assert function.__closure__ is not None
    front.set_watches([Watch.cell(function.__closure__[0])])
    assert native()
    constant = 4
    assert not native()
    constant = 3
    assert native()
    front.set_watches([Watch.empty(table, "hooks"), Watch.same(table, "one")])
    for key in ("hooks", "one"):
        value = table.pop(key)
        assert not native()
        table[key] = value


def test_the_door_that_took_the_last_call_is_first(fast: FastLaunch, slow: Slow) -> None:
    kernel = CpuKernel(vector_add(lambda kernel: compile_kernel(kernel, host_target())), 1)
    kernel.estimate[0] = launch_cost.first_estimate(1e-8)
    fixed = [
        make_fast_launcher(
            kernel,
            Signature(
                (Pointer(False), Pointer(False), Pointer(), Integer(low=2, high=1 << 30),
                 Constant(value)),
                (0, 1, 2), {"n": (3, 1)},
            ),
            (X, Y, OUT, N, value),
        )
        for value in (1, 2, 3)
    ]  # fmt: skip
    form = form_of(fast, 5, ())
    form.set_doors([(item, (number,)) for number, item in enumerate(fixed)])
    front = Front(slow)
    front.set_forms([form])
    for value in (3, 3, 1, 2, 3, 2, 1, 1):
        OUT[...] = 0
        assert front.bind((2,))(X, Y, OUT, N, value) == (value - 1,)
        np.testing.assert_array_equal(OUT, X + Y)
    assert front.bind((2,))(X, Y, OUT, N, 3) == (2,)
    form.set_doors([(fixed[0], FAST)])  # fewer than the place of the last one
    assert launched(lambda: front.bind((2,))(X, Y, OUT, N, 1))


def test_forms_that_go_while_a_grid_is_computed(front: Front, fast: FastLaunch) -> None:
    """They serve the call that is under way."""

    def grid(meta: dict[str, Any]) -> int:
        front.set_forms([])
        gc.collect()
        return 2

    assert launched(lambda: front.bind(grid)(X, Y, OUT, N, BLOCK=BLOCK))
    assert not launched(lambda: front.bind(grid)(X, Y, OUT, N, BLOCK=BLOCK))


def test_nothing_is_kept_of_a_call(front: Front) -> None:
    grid = (2,)
    computed = lambda meta: grid  # noqa: E731
    held = (X, Y, OUT, grid, computed, FAST, SLOW)
    calls: list[Callable[[], Any]] = [
        lambda: front.bind(grid)(X, Y, OUT, N, BLOCK=BLOCK),
        lambda: front.bind(computed)(X, Y, OUT, N, BLOCK=BLOCK),
        lambda: front.bind(computed)(X, Y, OUT, N, BLOCK=7),
        lambda: front.bind(grid)(X, Y),
    ]
    front._words.keep[0].calls = _Forgets()
    for call in calls:
        call()
    before = [sys.getrefcount(item) for item in held]
    for call in calls:
        for _ in range(50):
            call()
    assert [sys.getrefcount(item) for item in held] == before


class _Forgets(list[Any]):
    def append(self, item: Any) -> None: ...


def test_a_kernel_can_be_collected(fast: FastLaunch) -> None:
    class Kernel:
        def __init__(self) -> None:
            self.front = Front(self.slow)
            self.front.set_forms([form_of(fast, 5, ())])

        def slow(self, *args: Any) -> None: ...

    kernel = Kernel()
    kernel.front.bind((2,))(X, Y, OUT, N, BLOCK)
    seen = weakref.ref(kernel)
    del kernel
    gc.collect()
    assert seen() is None
