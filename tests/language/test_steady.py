"""Calls like earlier ones are launched natively, and do what the slow way does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fuser
import fuser.language as fl
import fuser.triton as triton
import fuser.triton.language as tl
from fuser.errors import FeedError
from fuser.language.arguments import integer_class
from fuser.language.compile import IntegerClass
from fuser.language.jit import KernelFunction
from fuser.language.steady import MOST_LAUNCHERS, MOST_MADE, _integer
from fuser.runtime import door
from fuser.triton import knobs

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(bool(door.problem()), reason=door.problem())


@pytest.fixture
def axpy() -> KernelFunction:
    @triton.jit
    def axpy(x, y, out, n, alpha, shift, BLOCK: tl.constexpr, negate: tl.constexpr = False):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = at < n
        value = alpha * tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside) + shift
        tl.store(out + at, -value if negate else value, mask=inside)

    assert isinstance(axpy, KernelFunction)
    return axpy


class Counted:
    """How many launches went the slow way."""

    def __init__(self, kernel: KernelFunction, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        slow = kernel.bind

        def bind(*args: Any) -> Any:
            self.count += 1
            return slow(*args)

        monkeypatch.setattr(kernel, "bind", bind)


def drawn(n: int, seed: int, wrap: Any) -> Any:
    return wrap(np.random.default_rng(seed).random(n).astype(np.float32))


WRAPS = {"numpy": lambda array: array, "torch": torch.from_numpy}


@pytest.mark.parametrize("library", WRAPS)
def test_results_are_those_of_each_call(
    axpy: KernelFunction, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the same is launched natively; sizes, scalars, grids and constants may then differ."""
    wrap, slow = WRAPS[library], Counted(axpy, monkeypatch)
    calls: list[tuple[int, float, int, int, dict[str, Any]]] = [
        (1000, 2.0, -3, 8, {}), (1000, 2.0, -3, 8, {}), (1007, 0.5, -7, 9, {}),
        (1008, 0.5, -7, 9, {}), (992, 0.25, -1, 9, {}), (300, -1.5, 5, 3, {}),
        (300, -1.5, 6, 3, {"negate": True}), (300, 1.5, 7, 3, {"negate": True}),
        (100, 1.0, 7, 1, {}), (100, 3.0, 9, 1, {}), (16, 3.0, 9, 1, {}), (16, 3.0, 9, 1, {}),
        (1, 3.0, 9, 1, {}), (1, 3.0, 9, 1, {}), (500, 3.0, 0, 4, {"num_warps": 8}),
        (501, 3.0, 0, 4, {"num_warps": 8}), (501, 3.0, 1, 4, {"num_warps": 4}),
    ]  # fmt: skip
    for repeat in range(2):
        for n, alpha, shift, blocks, more in calls:
            x, y, out = (drawn(1100, seed, wrap) for seed in range(3))
            before = np.asarray(out).copy()
            axpy[(blocks,)](x, y, out, n, alpha, shift, BLOCK=128, **more)
            expected = np.float32(alpha) * np.asarray(x)[:n] + np.asarray(y)[:n] + np.float32(shift)
            if more.get("negate"):
                expected = -expected
            np.testing.assert_allclose(np.asarray(out)[:n], expected, rtol=1e-6)
            np.testing.assert_array_equal(np.asarray(out)[n:], before[n:])
        if not repeat:
            first, slow.count = slow.count, 0
    assert 0 < first < len(calls)
    assert slow.count == 0


def test_forms_of_a_call(axpy: KernelFunction, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Counted(axpy, monkeypatch)
    x, y, out = (drawn(256, seed, WRAPS["numpy"]) for seed in range(3))
    seen: list[dict[str, Any]] = []

    def grid(meta: dict[str, Any]) -> tuple[int]:
        seen.append(meta)
        return (triton.cdiv(meta["n"], meta["BLOCK"]),)

    forms = [
        lambda: axpy[(2,)](x, y, out, 256, 1.0, 2, 128),
        lambda: axpy[2](x, y, out, 256, 1.0, 2, 128),
        lambda: axpy[[2]](x, y, out, 256, 1.0, 2, 128),
        lambda: axpy[grid](x, y, out, 256, 1.0, 2, BLOCK=128, num_warps=2),
        lambda: axpy[(2, 1, 1)](BLOCK=128, n=256, x=x, y=y, out=out, shift=2, alpha=1.0),
        lambda: axpy.run(x, y, out, 256, 1.0, 2, 128, grid=(2,)),
    ]
    for form in forms:
        form()
        slow.count = 0
        out[...] = 0
        form()
        assert slow.count == 0
        np.testing.assert_array_equal(out, x + y + 2)
    assert seen[-1].keys() == seen[0].keys()
    assert all(seen[-1][name] is seen[0][name] for name in ("x", "out", "BLOCK", "negate"))
    axpy.warmup(x, y, out, 256, 1.0, 2, 128, grid=(2,))
    assert slow.count == 1


def test_hooks_are_called_and_other_source_is_compiled(axpy: Any) -> None:
    x, y, out = (drawn(256, seed, WRAPS["numpy"]) for seed in range(3))
    seen: list[int] = []
    for _ in range(3):
        axpy[(2,)](x, y, out, 256, 1.0, 2, 128)
    axpy.add_pre_run_hook(lambda *args, **named: seen.append(args[3]))
    for _ in range(3):
        axpy[(2,)](x, y, out, 256, 1.0, 2, 128)
    assert seen == [256] * 3
    axpy.pre_run_hooks.clear()
    axpy._unsafe_update_src(axpy.src.replace("+ shift", "- shift"))
    for _ in range(3):
        axpy[(2,)](x, y, out, 256, 1.0, 2, 128)
        np.testing.assert_array_equal(out, x + y - 2)


def test_hooks_of_all_kernels_are_called(axpy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, out = (drawn(256, seed, WRAPS["numpy"]) for seed in range(3))
    told: list[Any] = []

    def launch_is_told() -> bool:
        told.clear()
        out[...] = 0
        axpy[(2,)](x, y, out, 256, 1.0, 2, 128)
        np.testing.assert_array_equal(out, x + y + 2)
        return bool(told)

    assert not launch_is_told() and not launch_is_told()
    knobs.runtime.launch_exit_hook.add(told.append)
    knobs.runtime.launch_enter_hook.add(told.append)
    try:
        assert launch_is_told()
    finally:
        knobs.runtime.launch_exit_hook.remove(told.append)
        knobs.runtime.launch_enter_hook.remove(told.append)
    assert not launch_is_told()
    with knobs.runtime.scope():
        knobs.runtime.launch_enter_hook = told.append
        assert launch_is_told()
    assert not launch_is_told()
    other = knobs.runtime.copy()
    other.launch_enter_hook = told.append
    with monkeypatch.context() as patch:
        patch.setattr(knobs, "runtime", other)
        assert launch_is_told()
    assert not launch_is_told()
    axpy.pre_run_hooks = [lambda *args, **named: told.append(args)]
    assert launch_is_told()


FACTOR = tl.constexpr(3)


def test_constants_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the module, of a function around, and what a constexpr holds."""
    offset = tl.constexpr(5)

    @triton.jit
    def scaled(x, out, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at) * FACTOR + offset)

    slow = Counted(scaled, monkeypatch)
    x, out = drawn(128, 0, WRAPS["numpy"]), np.zeros(128, np.float32)

    def launch() -> None:
        scaled[(1,)](x, out, BLOCK=128)

    for _ in range(2):
        slow.count = 0
        launch()
    assert slow.count == 0
    assert scaled._steady._front is not None
    monkeypatch.setitem(globals(), "FACTOR", tl.constexpr(4))
    with pytest.raises(RuntimeError, match="FACTOR has changed"):
        launch()
    monkeypatch.undo()
    launch()
    np.testing.assert_array_equal(out, x * 3 + 5)
    offset.value = 6
    with pytest.raises(RuntimeError, match="offset has changed"):
        launch()
    offset.value = 5
    launch()
    before, offset = offset, tl.constexpr(7)
    with pytest.raises(RuntimeError, match="offset has changed"):
        launch()
    offset = before
    launch()


def test_constants_that_changed_are_compiled_again() -> None:
    @fuser.kernel
    def shifted(x, out, BLOCK: fl.constexpr):  # type: ignore[no-untyped-def]
        at = fl.arange(0, BLOCK)
        fl.store(out + at, fl.load(x + at) + shift)

    shift = 2
    x, out = drawn(128, 0, WRAPS["numpy"]), np.zeros(128, np.float32)
    for shift in (2, 2, 2, 3, 3, 2):
        shifted[(1,)](x, out, BLOCK=128)
        np.testing.assert_array_equal(out, x + np.float32(shift))


def test_numbers_left_to_their_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    @triton.jit
    def shifted(x, out, n, shift=5, scale=0.5, BLOCK: tl.constexpr = 128):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = at < n
        tl.store(out + at, tl.load(x + at, mask=inside) * scale + shift, mask=inside)

    slow, seen = Counted(shifted, monkeypatch), []
    x, out = drawn(256, 0, WRAPS["numpy"]), np.zeros(256, np.float32)

    def grid(meta: dict[str, Any]) -> int:
        seen.append(meta)
        return triton.cdiv(meta["n"], meta["BLOCK"])  # type: ignore[no-any-return]

    calls: list[tuple[dict[str, Any], Any]] = [
        ({}, x * 0.5 + 5), ({"shift": 9}, x * 0.5 + 9), ({"scale": 2.0}, x * 2 + 5)
    ]  # fmt: skip
    for repeat in range(3):
        slow.count = 0
        for named, expected in calls:
            out[...] = 0
            shifted[grid](x, out, 256, **named)
            np.testing.assert_array_equal(out, expected.astype(np.float32))
        assert slow.count == (0 if repeat else 3)
    assert seen[-2]["shift"] == 9 and seen[-1]["shift"] == 5 and seen[-1]["scale"] == 2.0


def test_the_debug_knob_is_asked_at_each_launch(axpy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, out = (drawn(256, seed, WRAPS["numpy"]) for seed in range(3))
    for _ in range(2):
        plain = axpy[(2,)](x, y, out, 256, 1.0, 2, 128)
    monkeypatch.setenv("TRITON_DEBUG", "1")
    checked = axpy[(2,)](x, y, out, 256, 1.0, 2, 128)
    assert checked is not plain
    monkeypatch.delenv("TRITON_DEBUG")
    assert axpy[(2,)](x, y, out, 256, 1.0, 2, 128) is plain


def test_overlap_has_launches_of_its_own(axpy: KernelFunction) -> None:
    x, y = (drawn(256, seed, WRAPS["numpy"]) for seed in range(2))
    out = np.zeros(256, np.float32)
    for _ in range(3):
        axpy[(2,)](x, y, out, 256, 1.0, 2, 128)
        np.testing.assert_array_equal(out, x + y + 2)
        same = x.copy()
        axpy[(2,)](same, y, same, 256, 1.0, 2, 128)
        np.testing.assert_array_equal(same, out)


def test_read_only_arrays(axpy: KernelFunction) -> None:
    """That a variant exists does not make an array writeable."""
    x, y = (drawn(256, seed, WRAPS["numpy"]) for seed in range(2))
    out, frozen = np.zeros(256, np.float32), np.zeros(256, np.float32)
    frozen.flags.writeable = False
    x.flags.writeable = False
    for _ in range(2):
        axpy[(2,)](x, y, out, 256, 1.0, 2, 128)
        with pytest.raises(FeedError, match="read-only"):
            axpy[(2,)](x, y, frozen, 256, 1.0, 2, 128)
    np.testing.assert_array_equal(out, x + y + 2)


def test_launchers_are_not_made_without_end(axpy: KernelFunction) -> None:
    x, y, out = (drawn(256, seed, WRAPS["numpy"]) for seed in range(3))
    for i in range(MOST_MADE + 5):
        axpy[(2,)](x, y, out, 256, 1.0, np.int64(2 + i), 128)
        np.testing.assert_array_equal(out, x + y + np.float32(2 + i))
    (form,) = axpy._steady._forms.values()
    assert form.made == MOST_MADE and len(form.launchers) <= MOST_LAUNCHERS


@pytest.mark.parametrize(
    "value",
    [2, 15, 16, 17, 31, 32, 33, 48, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, -1, -16, -(1 << 31),
     -(1 << 31) - 1, -(1 << 63)],
)  # fmt: skip
@pytest.mark.parametrize("plain", [True, False])
def test_integers_of_a_class(value: int, plain: bool) -> None:
    """Every integer that a launcher takes is of the class that it was made for."""
    kind = integer_class("n", value, plain)
    assert isinstance(kind, IntegerClass)
    found = _integer(kind, "n", value, plain)

    def takes(item: int) -> bool:
        fits = found.multiple in (None, item % 16 == 0)
        return found.low <= item <= found.high and fits

    assert takes(value)
    others = {found.low, found.high, *range(-40, 100), *(value + step for step in range(-20, 20))}
    for other in others:
        if takes(other):
            assert integer_class("n", other, plain) == kind
