"""Native launches: each launches what its guards allow, and nothing else."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from fuser.backend.cpu import compile_kernel as compile_for_cpu
from fuser.backend.cpu import host_target
from fuser.backend.module import CompiledKernel
from fuser.dtypes import DType, bf16, bool_, f16, f32, f64, i8, i32, i64
from fuser.graph.dims import parse
from fuser.graph.sizes import Guard, evaluate
from fuser.runtime import door, launch_cost, torch_layout
from fuser.runtime.arrays import describe
from fuser.runtime.cpu_launch import CpuKernel
from fuser.runtime.fast_launch import (
    Constant,
    FastLaunch,
    Integer,
    Parameter,
    Pointer,
    Real,
    Signature,
    Truth,
    make_fast_launcher,
    why_not,
)
from fuser.runtime.geometry import scalar_bits
from fuser.runtime.memory import aligned_array
from fuser.runtime.native_words import Door
from fuser.runtime.threads import get_pool
from tests.runtime.clocks import moved_clock
from tests.runtime.pools import interrupted_everywhere, taken

from .language_kernels import BLOCK, add_columns, vector_add

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(bool(door.problem()), reason=door.problem())

Array = Any
ADD: tuple[Parameter, ...] = (
    Pointer(writes=False), Pointer(writes=False), Pointer(),
    Integer(low=2, high=(1 << 31) - 1), Constant(BLOCK),
)  # fmt: skip
LENGTH = {"n": (3, 1)}


@pytest.fixture(scope="module")
def add() -> CompiledKernel:
    return vector_add(lambda kernel: compile_for_cpu(kernel, host_target()))


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    made = aligned_array(shape, np.dtype(np.float32))
    made[...] = np.random.default_rng(seed).random(shape)
    return made


def measured(kernel: CpuKernel, program_seconds: float = 1e-8) -> CpuKernel:
    """As after launches that took that long."""
    kernel.estimate[0] = launch_cost.first_estimate(program_seconds)
    kernel._arm(get_pool(kernel.threads))
    return kernel


def launcher(
    kernel: CpuKernel,
    args: Sequence[Any],
    parameters: Sequence[Parameter] = ADD,
    symbols: Any = LENGTH,
    **more: Any,
) -> FastLaunch:
    buffers = [i for i, item in enumerate(parameters) if isinstance(item, Pointer)]
    signature = Signature(parameters, buffers, symbols, **more)
    assert why_not(kernel, signature, args) == ""
    made = make_fast_launcher(kernel, signature, args)
    assert made is not None
    return made


def blocks(n: int) -> tuple[int]:
    return (max(2, -(-n // BLOCK)),)


@pytest.fixture(scope="module")
def idle() -> CompiledKernel:
    """Takes the arguments of `add`, and does nothing with them."""
    return copies_numbers((), ()).kernel


LIBRARIES: dict[str, Callable[[np.ndarray], Array]] = {
    "numpy": lambda array: array,
    "torch": torch.from_numpy,
    "parameters": lambda array: torch.nn.Parameter(torch.from_numpy(array), requires_grad=False),
}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("program_seconds", [1e-8, 1.0])
def test_other_sizes_and_arrays(
    add: CompiledKernel, library: str, threads: int, program_seconds: float
) -> None:
    """program_seconds: so that the pool has all launches, or none."""
    wrap = LIBRARIES[library]
    kernel = measured(CpuKernel(add, threads), program_seconds)
    fast = launcher(kernel, (*[wrap(drawn(8)) for _ in range(3)], 8, BLOCK))
    for n in (1000, 2, 128, 129, 100_000):
        x, y, out = drawn(n), drawn(n, seed=1), drawn(n, seed=2)
        assert fast((wrap(x), wrap(y), wrap(out), n, BLOCK), blocks(n)) is True
        np.testing.assert_array_equal(out, x + y)
    out[...] = 0
    for few in (0, 1):  # the code takes it for granted that a symbol is not below 2
        assert fast((wrap(x), wrap(y), wrap(out), n, BLOCK), (few,)) is False
    assert not out.any()


class Sub(np.ndarray):
    pass


def frozen(array: np.ndarray) -> np.ndarray:
    made = array.copy()
    made.flags.writeable = False
    return made


N = 1000
X, Y, OUT = drawn(N), drawn(N, seed=1), drawn(N, seed=2)
TX, TY, TOUT = (torch.from_numpy(array.copy()) for array in (X, Y, OUT))
ARGS = TX, TY, TOUT, N, BLOCK
WHOLE = drawn(3 * N)


class Two(int):
    pass


@pytest.mark.parametrize(
    ("change", "value"),
    [
        (0, X.astype(np.float64)), (0, X.astype(">f4")), (0, X.view(np.int32)), (0, X.view(Sub)),
        (0, TX), (0, None), (0, X.tolist()), (2, frozen(OUT)), (2, X), (2, X[10:]), (3, 1),
        (3, 0), (3, -5), (3, 1 << 31), (3, 1 << 70), (3, -(1 << 70)), (3, True), (3, 1000.0),
        (3, np.int64(5)), (3, Two(2)), (3, None), (4, 64), (4, 128.0), (4, None), (4, "128"),
    ],
)  # fmt: skip
def test_other_arguments_are_not_launched(add: CompiledKernel, change: int, value: Any) -> None:
    fast = launcher(measured(CpuKernel(add, 1)), (X, Y, OUT, N, BLOCK))
    args: list[Any] = [X, Y, OUT.copy(), N, BLOCK]
    args[2] = aligned_array((N,), np.dtype(np.float32))
    assert fast(tuple(args), blocks(N)) is True
    args[2][...] = -1
    given = args[2]
    args[change] = value
    assert fast(tuple(args), blocks(N)) is False
    assert (given == -1).all()


@pytest.mark.parametrize(
    "value",
    [
        TX.double(), TX.view(torch.int32), torch._neg_view(TX), TX.to("meta"), X,
        TX.to_sparse(), TX.detach().as_subclass(torch.nn.Parameter),
    ],
)  # fmt: skip
def test_other_tensors_are_not_launched(add: CompiledKernel, value: Any) -> None:
    fast = launcher(measured(CpuKernel(add, 1)), (TX, TY, TOUT, N, BLOCK))
    out = torch.from_numpy(drawn(N))
    assert fast((TX, TY, out, N, BLOCK), blocks(N)) is True
    out[:] = -1
    assert fast((value, TY, out, N, BLOCK), blocks(N)) is False
    assert (out == -1).all()


@pytest.mark.parametrize(
    ("args", "grid"),
    [
        ((X, Y, OUT, N), (8,)),
        ((X, Y, OUT, N, BLOCK, 3), (8,)),
        ([X, Y, OUT, N, BLOCK], (8,)),
        ((X, Y, OUT, N, BLOCK), [8]),
        ((X, Y, OUT, N, BLOCK), 8),
        ((X, Y, OUT, N, BLOCK), (8, 2)),
        ((X, Y, OUT, N, BLOCK), (8, 1, 1, 1)),
        ((X, Y, OUT, N, BLOCK), (-1,)),
        ((X, Y, OUT, N, BLOCK), (8.0,)),
        ((X, Y, OUT, N, BLOCK), (1 << 70,)),
    ],
)
def test_other_forms_are_not_launched(add: CompiledKernel, args: Any, grid: Any) -> None:
    fast = launcher(measured(CpuKernel(add, 1)), (X, Y, OUT, N, BLOCK))
    assert fast((X, Y, OUT, N, BLOCK), (8, 1, 1)) is True
    assert fast(args, grid) is False


@pytest.mark.parametrize("wrap", [lambda array: array, torch.from_numpy], ids=["numpy", "torch"])
def test_overlap_is_that_of_the_example(idle: CompiledKernel, wrap: Any) -> None:
    """By storage: parts of one array overlap although they have no element in common."""
    apart = (wrap(X), wrap(Y), wrap(OUT), N, BLOCK)
    whole = wrap(WHOLE)
    parts = (whole[:N], wrap(Y), whole[N : 2 * N], N, BLOCK)
    twice = (wrap(X), wrap(X), wrap(OUT), N, BLOCK)
    calls = (apart, parts, twice)
    kernel = measured(CpuKernel(idle, 1))
    parameters = [
        replace(item, align=4) if isinstance(item, Pointer) else item for item in ADD
    ]  # fmt: skip
    for i, example in enumerate(calls):
        fast = launcher(kernel, example, parameters)
        assert [fast(call, (2,)) for call in calls] == [i == j for j in range(3)]


def test_storages_of_views_through_other_types(idle: CompiledKernel) -> None:
    """Memory of bytes seen as floats, twice: overlap is found where a base has another dtype, and
    where it is of a subclass."""
    for raw in (np.zeros(4000, np.uint8), np.zeros(4000, np.uint8).view(Sub)):
        a, b = (np.asarray(raw[i : i + 1600]).view(np.float32) for i in (0, 1600))
        kernel = measured(CpuKernel(idle, 1))
        fast = launcher(kernel, (X, Y, OUT, N, BLOCK))
        assert fast((a, Y, OUT, 400, BLOCK), (2,)) is True
        assert fast((a, Y, b, 400, BLOCK), (2,)) is False
        assert launcher(kernel, (a, Y, b, N, BLOCK))((b, Y, a, 400, BLOCK), (2,)) is True


def test_memory_that_comes_again(idle: CompiledKernel) -> None:
    """Two arrays at addresses seen before, which are now parts of one storage."""
    kernel = measured(CpuKernel(idle, 1))
    raw = torch.from_numpy(WHOLE)
    x, out = (torch.frombuffer(WHOLE, dtype=torch.float32, count=N, offset=4 * N * i)
              for i in (0, 1))  # fmt: skip
    fast = launcher(kernel, (x, TY, out, N, BLOCK))
    assert fast((x, TY, out, N, BLOCK), (2,)) is True
    again = raw[:N], TY, raw[N : 2 * N], N, BLOCK
    assert again[0].data_ptr() == x.data_ptr() and again[2].data_ptr() == out.data_ptr()
    assert fast(again, (2,)) is False


def test_alignment(idle: CompiledKernel) -> None:
    kernel = measured(CpuKernel(idle, 1))
    whole = drawn(N + 4)
    odd, even = whole[1:], whole[4:]
    for aligned, expected in ((True, [True, False]), (False, [False, True]), (None, [True, True])):
        parameters = [Pointer(False, 16, aligned), *ADD[1:]]
        example = even if aligned else odd
        fast = launcher(kernel, (example, Y, OUT, N, BLOCK), parameters)
        have = [fast((array, Y, OUT, N, BLOCK), (2,)) for array in (even, odd)]
        assert have == expected


def test_multiples_of_integers(idle: CompiledKernel) -> None:
    kernel = measured(CpuKernel(idle, 1))
    for multiple, expected in ((True, [True, False]), (False, [False, True]), (None, [True] * 2)):
        parameters = [*ADD[:3], Integer(2, 5000, multiple), ADD[4]]
        fast = launcher(kernel, (X, Y, OUT, 1008 if multiple else N, BLOCK), parameters)
        assert [fast((X, Y, OUT, n, BLOCK), (2,)) for n in (960, 967)] == expected


def test_large_storages(idle: CompiledKernel) -> None:
    parameters = [Pointer(False, most_bytes=4 * N + 64), *ADD[1:]]
    fast = launcher(measured(CpuKernel(idle, 1)), (X, Y, OUT, N, BLOCK), parameters)
    assert fast((X, Y, OUT, N, BLOCK), (2,)) is True
    assert fast((WHOLE[:N], Y, OUT, N, BLOCK), (2,)) is False


def test_constants(idle: CompiledKernel) -> None:
    thing = object()
    for value, same, other in (
        ("fast", "".join(["fa", "st"]), "slow"), (1 << 40, int("1099511627776"), 5),
        (None, None, 0), (thing, thing, object()), (True, True, 1), (f32, f32, f64),
        (0.5, 1 / 2, 0.25), (0.0, 0.0, -0.0), (float("nan"), float("nan"), 0.5), (2.0, 2.0, 2),
    ):  # fmt: skip
        parameters = [*ADD[:4], Constant(value)]
        kernel = measured(CpuKernel(idle, 1))
        fast = launcher(kernel, (X, Y, OUT, N, value), parameters)
        assert fast((X, Y, OUT, N, value), (2,)) is True
        assert fast((X, Y, OUT, N, same), (2,)) is True
        assert fast((X, Y, OUT, N, other), (2,)) is False


def test_empty_arrays(idle: CompiledKernel) -> None:
    kernel = measured(CpuKernel(idle, 1))
    none, empty = torch.zeros(0), np.zeros(0, np.float32)
    assert launcher(kernel, (TX, TY, TOUT, N, BLOCK))((none, TY, TOUT, N, BLOCK), (2,)) is True
    assert launcher(kernel, (X, Y, OUT, N, BLOCK))((empty, Y, OUT, N, BLOCK), (2,)) is True
    shape = (np.zeros((3, 0), np.float32), Y, OUT, N, BLOCK)
    assert launcher(kernel, shape)(shape, (2,)) is True


def test_guards_of_sizes(idle: CompiledKernel) -> None:
    guards = [
        Guard(parse("512 - n"), ">="), Guard(parse("n % 4"), "=="), Guard(parse("n - 100"), "!="),
        Guard(parse("3*grid0*n - 60"), ">="),
    ]  # fmt: skip
    fast = launcher(measured(CpuKernel(idle, 1)), (X, Y, OUT, N, BLOCK), guards=guards)
    for n in (2, 4, 100, 104, 510, 512, 516):
        for grid in (1, 2, 5):
            sizes = {"n": n, "grid0": grid}
            expected = grid >= 2 and all(guard.holds(sizes) for guard in guards)
            assert fast((X, Y, OUT, n, BLOCK), (grid,)) is expected, (n, grid)


def test_grids_that_are_computed() -> None:
    compiled = add_columns(lambda kernel: compile_for_cpu(kernel, host_target()))
    parameters = [*ADD[:3], Integer(2), Integer(2)]
    symbols = {"rows": (3, 1), "columns": (4, 1)}
    arrays = [drawn(7, 1000) for _ in range(3)]
    fast = launcher(measured(CpuKernel(compiled, 2)), (*arrays, 7, 1000), parameters, symbols)
    x, y, out = arrays
    out[...] = 0
    assert fast((x, y, out, 7, 1000), (7, 8)) is True
    np.testing.assert_array_equal(out, x + y)
    for grid in ((7, 7), (6, 8), (7,), (7, 8, 2), (0, 8)):
        assert fast((x, y, out, 7, 1000), grid) is False


# numbers ----------------------------------------------------------------------------------------

_COPY = """
define void @copy(ptr %buffers, i64 %first, i64 %last, ptr %scratch) {{
  %out = load ptr, ptr %buffers
  %at = getelementptr ptr, ptr %buffers, i64 1
  %numbers = load ptr, ptr %at
  call void @llvm.memcpy.p0.p0.i64(ptr %out, ptr %numbers, i64 {bytes}, i1 false)
  {more}
  ret void
}}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""


def copies_numbers(sizes: Sequence[str], scalars: Sequence[str], scratch: int = 0) -> CpuKernel:
    """A kernel that stores its numbers; with scratch memory, what it left there last time, too."""
    count = len(sizes) + len(scalars)
    more = ""
    if scratch:
        more = f"""%end = getelementptr i64, ptr %out, i64 {count}
  %old = load i64, ptr %scratch
  store i64 %old, ptr %end
  store i64 77, ptr %scratch"""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(_COPY.format(bytes=8 * count, more=more))
    machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic")
    facts = {"grid": ["grid0"], "sizes": list(sizes), "scalars": list(scalars)}
    code = machine.emit_object(module)
    return CpuKernel(
        CompiledKernel("copy", "cpu", "copy", code, (1,), scratch_bytes=scratch, facts=facts), 1
    )


FORMULAS = (
    "a", "7", "a + 3*b - 5", "a*b*b", "a // 7", "-((-a) // 128)", "a % b", "min(a, b)",
    "max(a - b, 3) * (a // b)", "grid0*b + a", "(a - 1000) // 7", "(a - 1000) % 7",
)  # fmt: skip


def test_sizes_are_computed() -> None:
    kernel = measured(copies_numbers(FORMULAS, ()))
    out = np.zeros(len(FORMULAS), np.int64)
    symbols = {"a": (1, 1), "b": (2, 1)}
    fast = launcher(kernel, (out, 2, 3), [Pointer(), Integer(), Integer()], symbols)
    for a, b, grid in ((2, 3, 2), (1000, 7, 4), (999, 1 << 20, 2), (5, 5, 3)):
        assert fast((out, a, b), (grid,)) is True
        sizes = {"a": a, "b": b, "grid0": grid}
        assert out.tolist() == [evaluate(parse(text), sizes) for text in FORMULAS]
        slow = np.zeros_like(out)
        kernel.launch([describe(slow).address], (grid,), {"a": a, "b": b})
        assert slow.tolist() == out.tolist()
    assert fast((out, 1 << 40, 1 << 40), (2,)) is False  # a*b*b
    assert fast((out, 5, 0), (2,)) is False  # a % b


def test_scalars_are_passed_as_bits() -> None:
    scalars: dict[str, tuple[Parameter, Any, Any]] = {
        "i8": (Integer(-128, 127), i8, (-1, 127, -128)),
        "i32": (Integer(-(1 << 31), (1 << 31) - 1), i32, (-7, 5, 1 << 30)),
        "i64": (Integer(), i64, (-1, 1 << 62, 3)),
        "f32": (Real(), f32, (0.1, -1e300, 1e-42)),
        "f64": (Real(), f64, (0.1, float("inf"), -0.0)),
        "truth": (Truth(), bool_, (True, False, True)),
    }
    kernel = measured(copies_numbers(("n",), tuple(scalars)))
    parameters = [Pointer(), Integer(), *(item for item, _, _ in scalars.values())]
    out = np.zeros(1 + len(scalars), np.int64)
    examples = [values[0] for _, _, values in scalars.values()]
    types = [(i + 2, dtype) for i, (_, dtype, _) in enumerate(scalars.values())]
    fast = launcher(kernel, (out, 9, *examples), parameters, {"n": (1, 1)}, scalars=types)
    for i in range(3):
        values = [values[i] for _, _, values in scalars.values()]
        assert fast((out, 9, *values), (2,)) is True
        bits = [
            scalar_bits(value, dtype)
            for value, (_, dtype, _) in zip(values, scalars.values(), strict=True)
        ]
        assert out.tolist() == [9, *bits]
        slow = np.zeros_like(out)
        kernel.launch([describe(slow).address], (2,), {"n": 9}, bits)
        assert slow.tolist() == out.tolist()
    for position, wrong in ((2, 128), (3, 1 << 31), (5, 1), (5, "x"), (7, 1), (7, None)):
        args = [out, 9, *values]
        args[position] = wrong
        assert fast(tuple(args), (2,)) is False


@pytest.mark.parametrize("dtype", [f16, bf16])
def test_floats_of_16_bits_are_rounded_as_the_slow_way_rounds(dtype: DType) -> None:
    kernel = measured(copies_numbers(("n",), ("alpha",)))
    out = np.zeros(2, np.int64)
    parameters = [Pointer(), Integer(), Real()]
    fast = launcher(kernel, (out, 9, 0.5), parameters, {"n": (1, 1)}, scalars=[(2, dtype)])
    random = np.random.default_rng(0)
    with np.errstate(invalid="ignore"):  # NaNs that signal
        raw = np.arange(0, 1 << 16, 37, np.uint16).view(dtype.numpy).astype(np.float64)
    exact = raw[np.isfinite(raw)]
    ties = (exact[1:] + exact[:-1]) / 2
    values = [
        *exact, *ties, *np.nextafter(ties, 0), *np.nextafter(ties, np.inf),
        *(random.standard_normal(500) * 2.0 ** random.integers(-30, 20, 500)),
        0.0, -0.0, float("inf"), -float("inf"), 65504.0, 65519.99, 65520.0, -65536.0, 1e300, 5e-324,
        2.0**-24, 2.0**-25, 1.5 * 2.0**-25, 2.0**-14, 2.0**-14 - 2.0**-26, 3.5e38,
    ]  # fmt: skip
    for value in map(float, values):
        assert fast((out, 9, value), (2,)) is True
        assert out.tolist() == [9, scalar_bits(value, dtype)], value
    assert fast((out, 9, float("nan")), (2,)) is False


def test_what_has_no_native_launch() -> None:
    kernel = copies_numbers(("n", "other"), ("alpha",))
    out = np.zeros(3, np.int64)
    right = Signature([Pointer(), Integer(), Real()], [0], {"n": (1, 1)}, [(2, f32)])
    args = out, 5, 0.5
    cases: list[tuple[Signature, Sequence[Any], str]] = [
        (right, args, "no value for other"),
        (right, (out.view(Sub), 5, 0.5), "Sub are described"),
        (right, (out, 5, 3), "what was a float is of type int"),
        (right, (out, 5), "2 arguments for 3"),
        (replace(right, scalars=[(2, i32)]), args, "argument 2 is no i32"),
        (replace(right, scalars=[(1, i8)]), args, "argument 1 may not fit i8"),
        (replace(right, scalars=[(1, f32)]), args, "argument 1 is no f32"),
        (replace(right, scalars=()), args, "0 scalars for 1"),
        (replace(right, symbols={"n": (2, 1)}), args, "n is no integer"),
        (replace(right, axes=(0, 1)), args, "a grid of 1 axes"),
        (replace(right, buffers=(0, 1)), args, "a buffer is no array"),
    ]
    for signature, given, words in cases:
        assert words in why_not(kernel, signature, given)
        assert make_fast_launcher(kernel, signature, given) is None


def test_symbols_that_are_parts_and_axes_in_another_order() -> None:
    """As the language has them: n // 16 where n is a multiple, and the first axis last."""
    kernel = measured(copies_numbers(("n16", "across", "down", "n16*across"), ()))
    kernel.geometry.grid = (parse("down"), parse("across"))
    out = np.zeros(4, np.int64)
    symbols = {"n16": (1, 16), "across": (-1, 1), "down": (-2, 1)}
    parameters = [Pointer(), Integer(multiple=True)]
    fast = launcher(kernel, (out, 48), parameters, symbols, axes=(1, 0))
    assert fast((out, 160), (5, 7)) is True
    assert out.tolist() == [10, 5, 7, 50]
    assert fast((out, 160), (5, 7, 2)) is False


def test_no_native_launch_before_the_cost_is_known(add: CompiledKernel) -> None:
    """The first launch goes the slow way, which measures it; so does the first on the pool."""
    kernel = CpuKernel(add, 2)
    fast = launcher(kernel, (X, Y, OUT, N, BLOCK))

    def slow() -> None:
        kernel.launch([describe(array).address for array in (X, Y, OUT)], blocks(N), {"n": N})

    assert fast((X, Y, OUT, N, BLOCK), blocks(N)) is False
    slow()
    kernel.estimate[0] = 1
    assert fast((X, Y, OUT, N, BLOCK), blocks(N)) is True
    kernel._arm(None)  # as where the first launch was too cheap for the pool
    kernel.estimate[0] = launch_cost.MOST
    assert fast((X, Y, OUT, N, BLOCK), blocks(N)) is False
    slow()
    kernel.estimate[0] = launch_cost.MOST
    assert fast((X, Y, OUT, N, BLOCK), blocks(N)) is True


def test_native_launches_learn_as_others_do(
    add: CompiledKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What took longer than expected at most doubles the estimate, what took less lowers it."""
    clock = moved_clock(monkeypatch)
    fast = launcher(kernel := measured(CpuKernel(add, 1)), (X, Y, OUT, N, BLOCK))
    programs = blocks(N)[0]

    def step(nanoseconds: int) -> int:
        """The estimate after a launch that lasts so long."""
        clock.step, before = nanoseconds, clock.looks
        assert fast((X, Y, OUT, N, BLOCK), blocks(N)) is True
        assert clock.looks == before + 2
        return int(kernel.estimate[0])

    kernel.estimate[0] = launch_cost.MOST
    assert step(8000) == (8000 << launch_cost.SHIFT) // programs
    assert step(80) == (80 << launch_cost.SHIFT) // programs
    assert step(1 << 30) == 2 * (80 << launch_cost.SHIFT) // programs
    assert step(0) == 1
    assert [step(1 << 40) for _ in range(3)] == [2, 4, 8]
    for spent in (3, 16, 40, 4000, 1 << 20, 1 << 40):
        for old in (1, 77, 50_000, launch_cost.MOST // 3, launch_cost.MOST):
            kernel.estimate[0] = old
            assert step(spent) == launch_cost.learned(old, programs, spent * 1e-9, True)


def test_native_launches_on_the_pool_learn(
    add: CompiledKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch that was over before a thread would have woken lowers the estimate by an eighth,
    until launches are not worth the pool; a longer one leaves it."""
    clock = moved_clock(monkeypatch)
    fast = launcher(kernel := measured(CpuKernel(add, 2), 1.0), (X, Y, OUT, N, BLOCK))
    programs = blocks(N)[0]
    assert kernel.estimate[0] == launch_cost.MOST
    seen = []
    for _ in range(200):
        old = int(kernel.estimate[0])
        alone = not launch_cost.chunks(old, programs, 2)
        clock.step = 1000
        assert fast((X, Y, OUT, N, BLOCK), blocks(N)) is True
        seen.append(int(kernel.estimate[0]))
        assert seen[-1] == launch_cost.learned(old, programs, 1e-6, alone)
        if not alone:
            kernel.estimate[0], clock.step = old, 1_000_000
            assert fast((X, Y, OUT, N, BLOCK), blocks(N)) is True
            assert kernel.estimate[0] == old
            kernel.estimate[0] = seen[-1]
    assert seen[0] == launch_cost.MOST - (launch_cost.MOST >> launch_cost.DECAY)
    assert seen[-1] == (1000 << launch_cost.SHIFT) // programs


def test_scratch_belongs_to_one_launch() -> None:
    kernel = measured(copies_numbers((), (), scratch=64))
    out = np.zeros(1, np.int64)
    parameters = [Pointer()]
    fast = launcher(kernel, (out,), parameters, {})
    assert fast((out,), (2,)) is True
    out[0] = 0
    assert fast((out,), (2,)) is True
    assert out[0] == 77
    record = fast.__self__  # type: ignore[attr-defined]
    record[Door.BUSY] = 1
    assert fast((out,), (2,)) is False
    record[Door.BUSY] = 0
    assert fast((out,), (2,)) is True
    assert record[Door.BUSY] == 0


def test_threads_launch_at_the_same_time(add: CompiledKernel) -> None:
    kernel = measured(CpuKernel(add, 2), 1.0)  # worth the pool, at first
    fast = launcher(kernel, (X, Y, OUT, N, BLOCK))
    failed = []

    def work(n: int) -> None:
        x, y, out = drawn(n), drawn(n, seed=1), drawn(n, seed=2)
        for _ in range(500):
            out[...] = 0
            if not fast((x, y, out, n, BLOCK), blocks(n)) or not (out == x + y).all():
                failed.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in (700, 9000, 20_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    with taken(get_pool(2)):
        assert fast((X, Y, OUT, N, BLOCK), blocks(N)) is True


def test_an_interrupt_anywhere_leaves_the_pool_free(add: CompiledKernel) -> None:
    kernel, pool = measured(CpuKernel(add, 2), 1.0), get_pool(2)
    places = [describe(array).address for array in (X, Y, OUT)]

    def work() -> None:
        kernel.launch(places, blocks(N), {"n": N})

    for _ in interrupted_everywhere(work, CpuKernel._run_rest):
        with taken(pool):
            pass
        measured(kernel, 1.0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_makes_its_own_pool(add: CompiledKernel) -> None:
    kernel = measured(CpuKernel(add, 2), 1.0)
    fast = launcher(kernel, (X, Y, OUT, N, BLOCK))
    assert fast((X, Y, OUT, N, BLOCK), blocks(N)) is True
    child = os.fork()
    if not child:
        status = 1
        try:
            kernel.estimate[0] = launch_cost.MOST
            before = fast((X, Y, OUT, N, BLOCK), blocks(N))
            kernel.launch([describe(array).address for array in (X, Y, OUT)], blocks(N), {"n": N})
            OUT[...] = 0
            kernel.estimate[0] = launch_cost.MOST
            after = fast((X, Y, OUT, N, BLOCK), blocks(N))
            status = 0 if (before, after) == (False, True) and (OUT == X + Y).all() else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert fast((X, Y, OUT, N, BLOCK), blocks(N)) is True


def test_a_launcher_keeps_what_it_needs(add: CompiledKernel) -> None:
    x, y, out = drawn(N), drawn(N, seed=1), drawn(N, seed=2)
    fast = launcher(measured(CpuKernel(add, 1)), (x, y, out, N, BLOCK))
    for _ in range(100):
        np.zeros(1 << 12, np.int64).fill(-1)
    assert fast((x, y, out, N, BLOCK), blocks(N)) is True
    np.testing.assert_array_equal(out, x + y)


def test_launches_leave_no_references(add: CompiledKernel) -> None:
    x, n = drawn(N), 123_456
    fast = launcher(measured(CpuKernel(add, 1)), (x, Y, OUT, N, BLOCK))
    args, grid = (x, Y, OUT, n, BLOCK), (0,)
    before = [sys.getrefcount(item) for item in (*args, args, grid, True, False)]
    for _ in range(1000):
        fast(args, grid)
        fast(args, (8, 8))
    after = [sys.getrefcount(item) for item in (*args, args, grid, True, False)]
    assert max(abs(a - b) for a, b in zip(before, after, strict=True)) < 100


def test_a_torch_that_differs_is_not_read(
    add: CompiledKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert torch_layout._look(torch).problem == ""
    monkeypatch.setattr(torch_layout, "key_set", lambda tensor: 1)
    with pytest.raises(ValueError, match="key set may be at"):
        torch_layout._look(torch)
    layout = torch_layout.TorchLayout(problem="it differs")
    monkeypatch.setattr("fuser.runtime.fast_launch.torch_layout", lambda: layout)
    assert why_not(CpuKernel(add, 1), Signature(ADD, (0, 1, 2), LENGTH), ARGS) == "it differs"
