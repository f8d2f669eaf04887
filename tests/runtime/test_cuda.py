"""The CUDA executor: its pure parts everywhere, its device parts where there is a GPU."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from fuser.backend.module import CompiledKernel, TensorMap
from fuser.base.target import SM_75, SM_80, SM_90A
from fuser.dtypes import bf16, f32
from fuser.errors import CompileError, DeviceError, FeedError, OutOfMemoryError, UsageError
from fuser.runtime import cuda, driver
from fuser.runtime.device_code import map_arguments, read_log
from fuser.runtime.device_layout import lay_out
from fuser.runtime.device_state import DeviceMemory
from fuser.runtime.device_tensors import DeviceArray, Event, check_tensors
from fuser.runtime.plan import Plan
from fuser.runtime.program import Launch, Program, Step, TensorSpec, assemble

PTX = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry {entry}(.param .u64 x, .param .u64 y, .param .u64 z)
{{
  .reg .b64 %a<8>;
  .reg .b32 %i<5>;
  .reg .f32 %v<4>;
  .reg .pred %p;
  mov.u32 %i1, %ctaid.x;
  mov.u32 %i2, %ntid.x;
  mov.u32 %i3, %tid.x;
  mad.lo.u32 %i4, %i1, %i2, %i3;
  setp.ge.u32 %p, %i4, {size};
  @%p bra DONE;
  ld.param.u64 %a1, [x];
  ld.param.u64 %a2, [y];
  ld.param.u64 %a3, [z];
  mul.wide.u32 %a4, %i4, 4;
  add.s64 %a5, %a1, %a4;
  add.s64 %a6, %a2, %a4;
  add.s64 %a7, %a3, %a4;
  ld.global.f32 %v1, [%a5];
  ld.global.f32 %v2, [%a6];
  {operation}.f32 %v3, %v1, %v2;
  st.global.f32 [%a7], %v3;
DONE:
  ret;
}}
"""


def binary(operation: str, size: int) -> CompiledKernel:
    """z = operation(x, y) over `size` f32."""
    entry = operation.split(".")[0]
    code = PTX.format(entry=entry, size=size, operation=operation).encode()
    blocks = -(-size // 256)
    return CompiledKernel(
        entry, "sm_80", entry, code, (blocks,), launch=(blocks, 1, 1), threads=256
    )


def program(size: int = 1000, steps: int = 3) -> Program:
    """t0 = x + c; t_i = t_(i-1) * x; outputs the last twice and x."""
    spec = TensorSpec("x", f32, (size,))
    add, mul = binary("add", size), binary("mul", size)
    work = [Step(add, ("x", "c", 0))] + [Step(mul, (i, "x", i + 1)) for i in range(steps)]
    outputs = [
        (key, TensorSpec(f"o{i}", f32, (size,))) for i, key in enumerate((steps, steps, "x"))
    ]
    constant = {"c": np.linspace(0, 1, size, dtype=np.float32)}
    sizes = {i: size * 4 for i in range(steps)}
    return assemble(SM_80, work, [("x", spec)], outputs, constant, sizes)


def expected(x: np.ndarray, steps: int = 3) -> np.ndarray:
    value = x + np.linspace(0, 1, x.size, dtype=np.float32)
    for _ in range(steps):
        value = value * x
    return value


# everywhere -------------------------------------------------------------------------------------


def test_layout_places_do_not_overlap() -> None:
    made = program()
    layout = lay_out(made)
    places = [(made.launches[0].arguments[2].index, made.arena_bytes)]
    places += [(place, 4000) for place in (*layout.inputs, *layout.outputs, *layout.constants)]
    places.sort()
    assert len(places) == 6 and all(start % 256 == 0 for start, _ in places)
    for (a, size), (b, _) in itertools.pairwise(places):
        assert a + size <= b
    assert places[-1][0] + 4000 <= layout.total
    assert lay_out(assemble(SM_80, [], [], [], {}, {})).total > 0


def test_targets_by_capability() -> None:
    hopper = cuda.describe(90, 132, 232448, 50 << 20)
    assert hopper.arch == "sm_90a" and hopper.flops_f16 == SM_90A.flops_f16
    half = cuda.describe(90, 66, 232448, 50 << 20)
    assert half.flops_f16 * 2 == hopper.flops_f16 and half.units == 66
    assert cuda.describe(89, 128, 101376, 72 << 20).arch == "sm_89"
    assert cuda.describe(100, 148, 232448, 126 << 20).arch == "sm_80"
    turing = cuda.describe(75, 80, 65536, 6 << 20)
    assert turing.arch == "sm_75" and turing.flops_f16 == 2 * SM_75.flops_f16


@pytest.mark.parametrize(("minor", "arch"), [(0, ""), (5, "sm_75")])
def test_the_floor_is_turing(minor: int, arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA 13 ended 7.0: a Volta is refused by its number."""
    found = {"COMPUTE_CAPABILITY_MAJOR": 7, "COMPUTE_CAPABILITY_MINOR": minor}
    monkeypatch.setattr(driver, "attribute", lambda name, ordinal: found.get(name, 65536))
    monkeypatch.setattr(driver, "name", lambda ordinal: "a GPU")
    cuda.device_target.cache_clear()
    try:
        if arch:
            assert cuda.device_target().arch == arch
            return
        with pytest.raises(DeviceError, match=r"compute capability 7\.0") as told:
            cuda.device_target()
        assert "7.5" in (told.value.hint or "")
    finally:
        cuda.device_target.cache_clear()


def test_tensor_maps() -> None:
    record = TensorMap(1, "bf16", (768, 128), (768,), (64, 128), 128, offset=8)
    plain = map_arguments(record, 1 << 20)
    assert plain["address"] == (1 << 20) + 16 and plain["strides"] == (1536,)
    assert plain["type"].endswith("BFLOAT16") and plain["swizzle"].endswith("128B")
    bad = [
        TensorMap(0, "bf16", (768, 128), (767,), (64, 128), 128),
        TensorMap(0, "bf16", (768, 128), (768,), (128, 128), 128),
        TensorMap(0, "bf16", (768, 512), (768,), (64, 512), 128),
        TensorMap(0, "f32", (8,), (8,), (8,), 0),
        TensorMap(0, "f32", (8, 8), (8,), (8, 8), 0, offset=1),
    ]
    for record in bad:
        with pytest.raises(CompileError, match="no tensor map"):
            map_arguments(record, 1 << 20)


def test_logs_are_read() -> None:
    log = (
        "info    : 0 bytes gmem\ninfo    : (C7510) Potential Performance Loss: wgmma.mma_async\n"
        "ptxas info: Used 168 registers, 8 bytes spill stores, 12 bytes spill loads"
    )
    facts = read_log(log)
    assert facts["warnings"] == ["C7510"] and facts["spill_bytes"] == 20
    assert read_log("")["warnings"] == []


@dataclass
class Foreign:
    """An array of another framework."""

    typestr: str = "<f4"
    shape: tuple[int, ...] = (2, 3)
    strides: tuple[int, ...] | None = None

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {
            "typestr": self.typestr,
            "shape": self.shape,
            "strides": self.strides,
            "data": (4096, False),
            "version": 3,
            "stream": 7,
        }


def test_foreign_arrays_are_checked() -> None:
    spec = TensorSpec("x", f32, (2, 3))

    def read(feed: object, spec: TensorSpec = spec) -> tuple[int, int | None]:
        (found,) = check_tensors([spec], {"x": feed}, 0, "input")
        return found.address, found.stream

    assert read(Foreign()) == (4096, 7)
    assert read(Foreign(strides=(12, 4))) == (4096, 7)
    bad = [Foreign("<f8"), Foreign(shape=(3, 2)), Foreign(strides=(4, 8)), np.zeros((2, 3))]
    for feed in bad:
        with pytest.raises(FeedError, match="input 'x'"):
            read(feed)
    assert read(Foreign("|V2"), TensorSpec("x", bf16, (2, 3))) == (4096, 7)


def test_without_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    driver.api.cache_clear()
    for name in ("cuda", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DeviceError, match="cuda-python is missing") as caught:
        driver.api()
    assert caught.value.exit_code == 5 and "cpu" in caught.value.hint
    driver.api.cache_clear()


# on a GPU ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plan() -> Plan:
    return Plan(program())


@pytest.mark.cuda
def test_run(plan: Plan) -> None:
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal(1000, np.float32)
        first, second, same = plan(x)
        np.testing.assert_array_equal(first, expected(x))
        np.testing.assert_array_equal(second, first)
        np.testing.assert_array_equal(same, x)


@pytest.mark.cuda
def test_arrays_of_the_host_are_staged_in_page_locked_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both ways: what a graph copies from pageable memory the driver stages again, and waits."""
    original, ends = driver.call, list[int]()

    def noted(name: str, *arguments: Any) -> Any:
        if name in ("cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"):
            ends.append(int(arguments[name == "cuMemcpyHtoDAsync"]))
        return original(name, *arguments)

    plan = Plan(program())
    monkeypatch.setattr(driver, "call", noted)
    plan.run({"x": np.arange(1000, dtype=np.float32)})
    monkeypatch.undo()
    assert len(ends) == len(plan.inputs) + len(plan.outputs)
    with driver.current(0):
        kind = driver.api().CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        kinds = [int(driver.call("cuPointerGetAttribute", kind, end)) for end in ends]
    assert kinds == [int(driver.api().CUmemorytype.CU_MEMORYTYPE_HOST)] * len(ends)
    plan.close()


@pytest.mark.cuda
def test_threads_take_turns(plan: Plan) -> None:
    wrong: list[int] = []

    def use(seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal(1000, np.float32)
        for _ in range(20):
            if not np.array_equal(plan(x)[0], expected(x)):
                wrong.append(seed)

    callers = [threading.Thread(target=use, args=(seed,)) for seed in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


@pytest.mark.cuda
def test_a_capture_leaves_the_stream_of_runs_alone() -> None:
    """`run_device` waits for its run without the lock that captures hold."""
    with Plan(program()) as plan:
        executor = plan.executor
        assert isinstance(executor, cuda.CudaExecutor)
        waited: list[bool] = []
        with executor.lock:
            addresses = executor.host.addresses

        def wait() -> None:
            with driver.current():
                driver.call("cuStreamSynchronize", executor.stream)
                waited.append(True)

        def body(stream: object) -> None:
            executor.enqueue(stream, executor.prepare(addresses), addresses)
            other = threading.Thread(target=wait)
            other.start()
            other.join()

        with executor.lock, driver.current():
            driver.api().cuGraphExecDestroy(executor.capture(body))
        assert waited == [True]
        x = np.arange(1000, dtype=np.float32)
        np.testing.assert_array_equal(plan(x)[0], expected(x))


@pytest.mark.cuda
@pytest.mark.parametrize("mode", ["THREAD_LOCAL", "GLOBAL"])
def test_what_the_collector_finds_is_freed_during_a_capture(mode: str) -> None:
    """It may be in the midst of a capture, of a plan's or of the program around it."""
    found = Plan(program())
    with Plan(program()) as plan:
        executor = plan.executor
        assert isinstance(executor, cuda.CudaExecutor)
        with executor.lock:
            addresses = executor.host.addresses
        capture = getattr(driver.api().CUstreamCaptureMode, f"CU_STREAM_CAPTURE_MODE_{mode}")
        array = DeviceArray((1 << 24,), f32)
        array.ready = Event(0, 0)
        bound = found.bind(
            {spec.name: DeviceArray(spec.shape, spec.dtype) for spec in found.inputs},
            {spec.name: DeviceArray(spec.shape, spec.dtype) for spec in found.outputs},
        )
        for _ in range(3):  # the second run makes the graph
            bound.run()
        memory = DeviceMemory(())
        garbage: list[Any] = [found, array, bound, memory]
        garbage.append(garbage)  # a circle: for the collector alone
        gone = [weakref.ref(item) for item in garbage[:4]]
        del found, array, bound, memory, garbage
        with driver.current():
            driver.call("cuCtxSynchronize")
            driver.call("cuStreamBeginCapture", executor.stream, capture)
            assert all(item() is not None for item in gone)
            gc.collect()
            assert all(item() is None for item in gone)
            executor.enqueue(executor.stream, executor.prepare(addresses), addresses)
            graph = driver.call("cuStreamEndCapture", executor.stream)
            driver.api().cuGraphDestroy(graph)
        x = np.arange(1000, dtype=np.float32)
        np.testing.assert_array_equal(plan(x)[0], expected(x))


@pytest.mark.cuda
def test_timing_and_facts(plan: Plan) -> None:
    assert plan.profile(iterations=5).median > 0
    assert 0 < plan.profile_device(iterations=5).median < 10
    assert [name for name, _ in plan.profile_kernels(iterations=2)] == ["add", "mul", "mul", "mul"]
    executor = plan.executor
    assert isinstance(executor, cuda.CudaExecutor)
    for facts in executor.facts():
        assert 0 < facts["registers"] < 64 and facts["local_bytes"] == 0


@pytest.mark.cuda
def test_zeroed_buffers() -> None:
    spec = TensorSpec("x", f32, (500,))
    step = Step(binary("add", 500), ("x", "w", "w"), zeroed=("w",))
    last = Step(binary("mul", 500), ("w", "x", "y"))
    with Plan(assemble(SM_80, [step, last], [("x", spec)], [("y", spec)], {}, {"w": 2000})) as plan:
        x = np.arange(500, dtype=np.float32)
        for _ in range(3):
            np.testing.assert_array_equal(plan(x), x * x)


@pytest.mark.cuda
def test_device_arrays(plan: Plan) -> None:
    x = np.arange(1000, dtype=np.float32)
    feed = DeviceArray((1000,), f32)
    with driver.current():
        driver.call("cuMemcpyHtoD", feed.pointer, x.ctypes.data, 4000)
    outputs = plan.run_device({"x": feed})
    np.testing.assert_array_equal(outputs["o1"].numpy(), expected(x))
    np.testing.assert_array_equal(outputs["o2"].numpy(), x)
    again = plan.run_device({"x": outputs["o2"]})
    np.testing.assert_array_equal(again["o0"].numpy(), expected(x))


@pytest.mark.cuda
def test_tensors_of_torch(plan: Plan) -> None:
    torch = pytest.importorskip("torch")
    x = torch.linspace(0, 1, 1000, device="cuda") * 3
    outputs = plan.run_device({"x": x})
    got = torch.as_tensor(outputs["o0"], device="cuda")
    assert got.data_ptr() == outputs["o0"].pointer
    np.testing.assert_array_equal(got.cpu().numpy(), expected(x.cpu().numpy()))


@pytest.mark.cuda
def test_bad_code_is_named() -> None:
    kernel = CompiledKernel("bad", "sm_80", "bad", b".version 7.0\n.target sm_80\n?", (1,))
    with pytest.raises(CompileError, match="kernel bad"):
        Plan(Program(SM_80, (), (), (Launch(kernel, ()),)))


@pytest.mark.cuda
def test_out_of_memory_is_refused_before_launching() -> None:
    big = Program(SM_80, (), (), (), arena_bytes=1 << 50)
    with pytest.raises(OutOfMemoryError, match="needs 1,126 TB"):
        Plan(big)


@pytest.mark.cuda
def test_the_many_kernels_of_a_plan_overlap_nothing() -> None:
    with Plan(program(100_000, 100)) as plan:
        x = np.random.default_rng(0).uniform(0.9, 1.1, 100_000).astype(np.float32)
        np.testing.assert_array_equal(plan(x)[0], expected(x, 100))
        assert plan.launches == 101


@pytest.mark.cuda
def test_bound_tensors_are_read_and_written_in_place(plan: Plan) -> None:
    torch = pytest.importorskip("torch")
    stream = torch.cuda.current_stream().cuda_stream
    x = torch.linspace(0, 1, 1000, device="cuda") * 3
    y = {spec.name: torch.empty(spec.shape, device="cuda") for spec in plan.outputs}
    bound = plan.bind({"x": x}, y)
    for scale in (1.0, 2.0):  # the same memory, other values
        x.mul_(scale)
        bound.run(stream)
        np.testing.assert_array_equal(y["o0"].cpu().numpy(), expected(x.cpu().numpy()))
    with pytest.raises(FeedError, match="share memory"):
        plan.bind({"x": x}, {**y, "o0": x})


@pytest.mark.cuda
def test_bound_runs_join_a_capture(plan: Plan) -> None:
    torch = pytest.importorskip("torch")
    first = torch.linspace(0, 1, 1000, device="cuda")
    x = torch.empty_like(first)
    y = {spec.name: torch.empty(spec.shape, device="cuda") for spec in plan.outputs}
    bound = plan.bind({"x": x}, y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.mul(first, 2, out=x)
        bound.run(torch.cuda.current_stream().cuda_stream)
    for value in (y["o0"], x):
        value.zero_()
    graph.replay()
    np.testing.assert_array_equal(y["o0"].cpu().numpy(), expected((first * 2).cpu().numpy()))


@pytest.mark.cuda
def test_a_closed_plan_ends_its_bindings() -> None:
    torch = pytest.importorskip("torch")
    made = Plan(program(1000, 2))
    x = torch.ones(1000, device="cuda")
    y = {spec.name: torch.empty(spec.shape, device="cuda") for spec in made.outputs}
    bound = made.bind({"x": x}, y)
    bound.run()
    made.close()
    with pytest.raises(UsageError, match="closed"):
        bound.run()
