"""Plans whose results are carried to the next iteration, as arrays of the host or of a device."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import fuser
from fuser.errors import FeedError
from fuser.runtime import driver, plan_loop
from fuser.runtime.cuda import CudaExecutor
from fuser.runtime.device_space import DeviceSpace
from fuser.runtime.plan import Plan
from fuser.runtime.plan_loop import HostSpace, PlanLoop
from fuser.runtime.program import TensorSpec

F32 = np.dtype("float32")


class DeviceLike(HostSpace):
    """A device in host memory: whatever crosses is copied, and buffers stay where they are."""

    shares = False

    def __init__(self, executor: Any) -> None:
        super().__init__(executor)
        self.pairs: list[tuple[int, ...]] = []
        self.crossed = 0

    def place(self, spec: TensorSpec, array: np.ndarray) -> np.ndarray:
        return self.write(self.allocate(spec), array)

    def write(self, buffer: np.ndarray, array: np.ndarray) -> np.ndarray:
        self.crossed += array.nbytes
        buffer[...] = array
        return buffer

    def run(self, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> None:
        self.pairs.append(tuple(a.ctypes.data for a in (*sources, *targets)))
        super().run(sources, targets)

    def fetch(self, buffers: Sequence[np.ndarray]) -> list[np.ndarray]:
        self.crossed += sum(array.nbytes for array in buffers)
        return [array.copy() for array in buffers]


def body(i: Any, x: Any, old: Any, at: Any, step: Any) -> Any:
    """The next x, the last x as it was, the number of the iteration, and two results to look at."""
    new = x * 0.5 + step
    return new, x, i, new.sum() > 3, new + old


def wanted(x: np.ndarray, step: np.ndarray, iterations: int) -> Any:
    old, rows = np.zeros_like(x), []
    for _ in range(iterations):
        rows.append(x * 0.5 + step + old)
        x, old = x * 0.5 + step, x
    return x, old, rows


def make(n: int, device: Any = "cpu") -> tuple[Plan, dict[str, np.ndarray], dict[str, str]]:
    specs = [fuser.spec((), np.int64), *[fuser.spec((3, n))] * 2, fuser.spec((), np.int64)]
    plan = fuser.trace(body, *specs, fuser.spec((3, n)), device=device).plan
    rng = np.random.default_rng(n)
    x, step = rng.normal(size=(2, 3, n)).astype(F32)
    names = [spec.name for spec in plan.outputs]
    values = (np.array(0), x, np.zeros_like(x), np.array(-1), step)
    feeds = dict(zip(("i", "x", "old", "at", "step"), values, strict=True))
    return plan, feeds, dict(zip(("x", "old", "at"), names, strict=False))


WAYS = ["shared", "as on a device", pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("n", [1, 7, 129])
@pytest.mark.parametrize("iterations", [1, 2, 5, 8])
def test_as_iterations_one_by_one(
    way: str, n: int, iterations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, feeds, carried = make(n, "cuda" if way == "cuda" else "cpu")
    if way == "as on a device":
        monkeypatch.setattr(plan_loop, "_space", lambda plan: DeviceLike(plan.executor))
    begin = {name: array.copy() for name, array in feeds.items()}
    names = [spec.name for spec in plan.outputs]
    rows = []
    with PlanLoop(plan, feeds, carried, [names[3], names[4], names[0]]) as running:
        for iteration in range(iterations):
            going, row, new = running.iterate({"i": np.array(iteration)})
            assert going.item() == (new.sum() > 3)
            rows.append(row)
        state = running.state()
    x, old, all_rows = wanted(feeds["x"], feeds["step"], iterations)
    np.testing.assert_allclose(state["x"], x, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state["old"], old, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(state["at"], iterations - 1)
    np.testing.assert_allclose(rows, all_rows, rtol=1e-5, atol=1e-5)
    for array in state.values():  # nobody else's memory: neither feeds nor one another
        array[...] = 0
    for name, array in feeds.items():
        np.testing.assert_array_equal(array, begin[name])
    np.testing.assert_allclose(rows, all_rows, rtol=1e-5, atol=1e-5)


def test_the_same_buffers_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few sets of addresses for any number of iterations; carried values do not cross."""
    plan, feeds, carried = make(33)
    spaces: list[DeviceLike] = []

    def space(plan: Plan) -> DeviceLike:
        spaces.append(DeviceLike(plan.executor))
        return spaces[-1]

    monkeypatch.setattr(plan_loop, "_space", space)
    with PlanLoop(plan, feeds, carried, [plan.outputs[3].name]) as running:
        begun = spaces[0].crossed
        for iteration in range(30):
            running.iterate({"i": np.array(iteration)})
    assert len(set(spaces[0].pairs)) <= 6
    assert spaces[0].crossed - begun == 30 * (8 + 1)  # the iteration's number, the condition


@pytest.mark.cuda
def test_captured_graphs_serve_the_iterations() -> None:
    """As few bindings as sets of addresses: later iterations replay what earlier ones captured."""
    plan, feeds, carried = make(33, "cuda")
    executor = plan.executor
    assert isinstance(executor, CudaExecutor)
    with PlanLoop(plan, feeds, carried, [plan.outputs[3].name]) as running:
        for iteration in range(40):
            running.iterate({"i": np.array(iteration)})
        state = running.state()
    assert 1 < len(executor.bindings) <= 6
    x, old, _ = wanted(feeds["x"], feeds["step"], 40)
    np.testing.assert_allclose(state["x"], x, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state["old"], old, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_handed_on(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that become others, or stay, are written by nobody: only their names move on."""

    def newest(x: Any, y: Any, z: Any, same: Any) -> Any:
        return x + y + z + same

    device: Any = "cuda" if way == "cuda" else "cpu"
    plan = fuser.trace(newest, *[fuser.spec(7)] * 4, device=device).plan
    if way == "as on a device":
        monkeypatch.setattr(plan_loop, "_space", lambda plan: DeviceLike(plan.executor))
    x, y, z, same = np.random.default_rng(3).normal(size=(4, 7)).astype(F32)
    feeds = {"x": x, "y": y, "z": z, "same": same}
    (name,) = [spec.name for spec in plan.outputs]
    handed = {"y": "x", "z": "y", "same": "same"}
    with PlanLoop(plan, feeds, {"x": name}, (), handed) as running:
        for _ in range(9):
            running.iterate()
        state = running.state()
    for _ in range(9):
        x, y, z = x + y + z + same, x, y
    for found, expected in zip(state.values(), (x, y, z, same), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert not any(np.shares_memory(array, feeds["same"]) for array in state.values())
    state["y"][...] = 0
    np.testing.assert_allclose(state["x"], x, rtol=1e-4)


def test_what_cannot_be_carried() -> None:
    plan, feeds, carried = make(5)
    other = plan.outputs[3].name
    assert plan_loop.can_carry(plan, carried)
    assert plan_loop.can_carry(plan, {}, {"x": "old", "old": "x"})
    assert not plan_loop.can_carry(plan, {}, {"x": "step"})  # not of the state
    for wrong in ({"x": other}, {"x": "nothing"}, {"nothing": other}):
        assert not plan_loop.can_carry(plan, wrong)
        with pytest.raises(FeedError, match="change their type"):
            PlanLoop(plan, feeds, wrong, [other])


class MemoryDriver:
    """A driver whose device memory is the host's, and whose streams do all at once."""

    def __init__(self) -> None:
        self.alive: dict[int, Any] = {}
        self.calls: list[str] = []

    class CUstream_flags:
        class CU_STREAM_NON_BLOCKING:
            value = 1

    def cuStreamSynchronize(self, stream: int) -> None:
        self.calls.append("cuStreamSynchronize")

    def cuStreamDestroy(self, stream: int) -> None:
        self.calls.append("cuStreamDestroy")

    def call(self, name: str, *given: Any) -> Any:
        self.calls.append(name)
        if name == "cuMemAlloc":
            buffer = np.empty(given[0], np.uint8)
            self.alive[buffer.ctypes.data] = buffer
            return buffer.ctypes.data
        if name == "cuMemFree":
            del self.alive[given[0]]
        elif name.startswith("cuMemcpy"):
            assert given[3] == 77
            ctypes.memmove(*given[:3])
        return 77 if name == "cuStreamCreate" else None


def test_buffers_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """What crosses to a device and back, and that all its memory is given back."""
    plan, feeds, carried = make(3)
    fake = MemoryDriver()
    monkeypatch.setattr(driver, "call", fake.call)
    monkeypatch.setattr(driver, "api", lambda: fake)
    monkeypatch.setattr(driver, "current", lambda ordinal: contextlib.nullcontext())
    monkeypatch.setattr(driver, "freeing", lambda ordinal: contextlib.nullcontext())

    class Executor(CudaExecutor):
        def __init__(self) -> None:
            self.ordinal, self._release = 0, []

        def run_at(self, sources: Sequence[int], targets: Sequence[int], stream: int) -> None:
            specs = (*plan.inputs, *plan.outputs)
            arrays = [
                np.frombuffer(fake.alive[place], spec.dtype.numpy, spec.size).reshape(spec.shape)
                for place, spec in zip((*sources, *targets), specs, strict=True)
            ]
            inputs, outputs = arrays[: len(sources)], arrays[len(sources) :]
            for target, found in zip(
                outputs, plan.run(dict(zip(feeds, inputs, strict=True))).values(), strict=True
            ):
                target[...] = found

    monkeypatch.setattr(plan_loop, "_space", lambda plan: DeviceSpace(Executor()))
    running = PlanLoop(plan, feeds, carried, [plan.outputs[3].name])
    with running:
        for iteration in range(4):
            fake.calls.clear()
            running.iterate({"i": np.array(iteration)})
        copies = [name for name in fake.calls if name.startswith("cuMem")]
        assert copies == ["cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"]  # iteration's number, condition
        state = running.state()
    assert fake.calls[-1] == "cuStreamDestroy"
    x, old, _ = wanted(feeds["x"], feeds["step"], 4)
    np.testing.assert_allclose(state["x"], x, rtol=1e-5)
    np.testing.assert_allclose(state["old"], old, rtol=1e-5)
    assert state["at"] == 3
    del running
    gc.collect()
    assert not fake.alive
