"""DLPack: what capsules of ours say, who keeps the memory, who reads it, and what is read."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fuser.base.target import X86_64_V3
from fuser.dtypes import ALL, BY_NAME, NARROW, bf16, f32
from fuser.errors import ExportError, FeedError, UsageError
from fuser.runtime import cuda, driver
from fuser.runtime.arrays import describe
from fuser.runtime.device_tensors import DeviceArray, Event, HostArray, check_tensors
from fuser.runtime.dlpack import from_dlpack, host_view
from fuser.runtime.feeds import check_feeds
from fuser.runtime.plan import Plan
from fuser.runtime.program import BufferRef, Copy, Program, TensorSpec
from tests.runtime.test_cuda import expected
from tests.runtime.test_cuda import program as cuda_program

torch = pytest.importorskip("torch")

VERSIONS: list[Any] = [None, (1, 0), (1, 1), (9, 0)]


def words(capsule: Any) -> tuple[str, dict[str, Any]]:
    """The name of a capsule, and the fields of the C header's structs by their offsets."""
    python = ctypes.pythonapi
    name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", python))
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", python)
    )
    label = name(capsule)
    at = get(capsule, label)
    found: dict[str, Any] = {}
    if label == b"dltensor_versioned":
        found["version"] = tuple((ctypes.c_uint32 * 2).from_address(at))
        found["flags"] = ctypes.c_uint64.from_address(at + 24).value
        at += 32
    found["data"] = ctypes.c_uint64.from_address(at).value or 0
    found["device"] = tuple((ctypes.c_int32 * 2).from_address(at + 8))
    rank = ctypes.c_int32.from_address(at + 16).value
    code, bits = (ctypes.c_uint8 * 2).from_address(at + 20)
    found["dtype"] = (code, bits, ctypes.c_uint16.from_address(at + 22).value)
    shape, strides, offset = (ctypes.c_uint64 * 3).from_address(at + 24)
    found["shape"] = tuple((ctypes.c_int64 * rank).from_address(shape)) if rank else ()
    found["strides"] = tuple((ctypes.c_int64 * rank).from_address(strides)) if rank else ()
    found["data"] += offset
    return label.decode(), found


class Calls(list[tuple[Any, ...]]):
    """What a GPU that is not there was asked to do."""

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self if call[0] == name]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """A driver that hands out addresses and events, and notes what is called."""
    calls = Calls()

    def call(name: str, *arguments: Any) -> Any:
        calls.append((name, *arguments))
        return {"cuMemAlloc": 4096 * len(calls), "cuEventCreate": len(calls)}.get(name)

    @contextlib.contextmanager
    def current(ordinal: int = 0) -> Iterator[None]:
        yield

    class Api:
        class CUevent_flags:
            class CU_EVENT_DISABLE_TIMING:
                value = 2

        @staticmethod
        def cuEventDestroy(event: Any) -> None:
            calls.append(("cuEventDestroy", event))

    monkeypatch.setattr(driver, "call", call)
    monkeypatch.setattr(driver, "current", current)
    monkeypatch.setattr(driver, "freeing", current)
    monkeypatch.setattr(driver, "api", Api)
    return calls


# what capsules say ------------------------------------------------------------------------------

CODES = {"f32": (2, 32), "f64": (2, 64), "f16": (2, 16), "bf16": (4, 16), "i64": (0, 64),
         "u8": (1, 8), "bool": (6, 8), "f8e4m3fn": (10, 8), "f8e4m3fnuz": (11, 8),
         "f8e5m2": (12, 8), "f8e5m2fnuz": (13, 8)}  # fmt: skip
"""DLDataTypeCode of the header, and bits."""


@pytest.mark.parametrize("version", VERSIONS)
def test_capsules_of_the_gpu(gpu: Calls, version: Any) -> None:
    for name, (code, bits) in CODES.items():
        array = DeviceArray((2, 0, 3) if name == "u8" else (2, 5, 3), BY_NAME[name], 3)
        label, found = words(array.__dlpack__(max_version=version, stream=-1))
        assert array.__dlpack_device__() == found["device"] == (2, 3)
        assert (found["data"], found["shape"]) == (array.pointer, array.shape)
        assert found["dtype"] == (code, bits, 1)
        if name != "u8":
            assert found["strides"] == (15, 3, 1)
        if version is None:
            assert label == "dltensor"
        else:
            assert label == "dltensor_versioned"
            assert found["version"][0] == 1 and found["flags"] == 0


def test_capsules_of_less_than_a_byte(gpu: Calls) -> None:
    for name, bits in (("i4", 4), ("u2", 2), ("f4e2m1", 4)):
        array = DeviceArray((6,), BY_NAME[name])
        _, found = words(array.__dlpack__(max_version=(1, 1)))
        assert found["dtype"][1:] == (bits, 1) and found["flags"] == 4
        with pytest.raises(ExportError, match="without versions"):
            array.__dlpack__()
        assert from_dlpack(array.__dlpack__(max_version=(1, 1))).dtype == name


def test_capsules_of_the_host_and_their_flags() -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4).T
    array = HostArray(values, f32)
    _, found = words(array.__dlpack__(max_version=(1, 0)))
    assert (found["device"], found["data"]) == ((1, 0), values.ctypes.data)
    assert (found["shape"], found["strides"], found["flags"]) == ((4, 3), (1, 4), 0)
    _, found = words(array.__dlpack__(max_version=(1, 0), copy=True))
    assert found["flags"] == 2 and found["data"] != values.ctypes.data
    values.flags.writeable = False
    assert words(array.__dlpack__(max_version=(1, 0)))[1]["flags"] == 1
    with pytest.raises(BufferError):  # as a consumer expects it
        array.__dlpack__()
    with pytest.raises(ExportError, match="stream"):
        array.__dlpack__(stream=1)
    with pytest.raises(ExportError, match="device"):
        array.__dlpack__(dl_device=(2, 0))
    assert array.__dlpack__(dl_device=(1, 0), max_version=(1, 0)) is not None


def test_every_dtype_comes_back(gpu: Calls) -> None:
    for dtype in (*ALL, *NARROW):
        array = DeviceArray((3,), dtype)
        tensor = from_dlpack(array.__dlpack__(max_version=(1, 1)))
        assert (tensor.address, tensor.dtype) == (array.pointer, dtype.name)


# streams ----------------------------------------------------------------------------------------


def test_the_consumers_stream_waits(gpu: Calls) -> None:
    array = DeviceArray((4,), f32)
    array.__dlpack__(stream=77)
    assert not gpu.named("cuStreamWaitEvent")  # it is complete
    assert "stream" not in array.__cuda_array_interface__
    array.ready = Event(0, 55)
    ((event, stream),) = gpu.named("cuEventRecord")
    assert stream == 55
    for asked, waits in ((77, 77), (1, 1), (2, 2), (None, 1)):
        array.__dlpack__(stream=asked)
        assert gpu.named("cuStreamWaitEvent")[-1] == (waits, event, 0)
    count = len(gpu.named("cuStreamWaitEvent"))
    array.__dlpack__(stream=-1)
    assert len(gpu.named("cuStreamWaitEvent")) == count
    for wrong in (0, -2):
        with pytest.raises(ExportError, match=f"no stream {wrong}"):
            array.__dlpack__(stream=wrong)
    assert array.__cuda_array_interface__["stream"] == 55
    array.numpy()
    names = [call[0] for call in gpu]
    assert names.index("cuEventSynchronize") < names.index("cuMemcpyDtoH")
    assert Event(0, 0).stream == 1  # the protocols know no stream 0


def test_copies_and_other_devices(gpu: Calls) -> None:
    array = DeviceArray((4,), bf16, 1)
    array.ready = Event(1, 55)
    _, found = words(array.__dlpack__(stream=77, copy=True, max_version=(1, 0)))
    ((target, source, size, stream),) = gpu.named("cuMemcpyDtoDAsync")
    assert (source, size, stream) == (array.pointer, 8, 77)
    assert (found["data"], found["flags"], found["device"]) == (target, 2, (2, 1))
    waits = [call[0] for call in gpu].index("cuStreamWaitEvent")
    assert waits < [call[0] for call in gpu].index("cuMemcpyDtoDAsync")
    _, found = words(array.__dlpack__(dl_device=(1, 0), max_version=(1, 0)))
    assert (found["device"], found["flags"], found["dtype"]) == ((1, 0), 2, (4, 16, 1))
    for how in ({"copy": False}, {"stream": 1}):
        with pytest.raises(ExportError, match="by a copy"):
            array.__dlpack__(dl_device=(1, 0), **how)
    with pytest.raises(ExportError, match="device"):
        array.__dlpack__(dl_device=(2, 0))


# who keeps the memory ---------------------------------------------------------------------------


def freed(gpu: Calls) -> int:
    return len(gpu.named("cuMemFree"))


@pytest.mark.parametrize("version", VERSIONS[:2])
def test_an_unconsumed_capsule_frees_once(gpu: Calls, version: Any) -> None:
    array = DeviceArray((4,), f32)
    pointer, gone = array.pointer, weakref.ref(array)
    first, second = (array.__dlpack__(max_version=version) for _ in range(2))
    del array
    assert gone() is not None and freed(gpu) == 0
    del first
    assert gone() is not None and freed(gpu) == 0
    del second
    assert gone() is None
    assert freed(gpu) == 1 and gpu.named("cuMemFree") == [(pointer,)]


def test_capsules_die_beside_an_exception(gpu: Calls) -> None:
    """The collector of a frame that is left by an exception runs destructors with that set."""

    def fail() -> None:
        capsule = DeviceArray((4,), f32).__dlpack__()
        raise KeyError(str(capsule))

    with pytest.raises(KeyError, match="dltensor"):
        fail()
    gc.collect()  # the traceback holds the frame
    assert freed(gpu) == 1


@pytest.mark.parametrize("version", VERSIONS[:2])
def test_a_consumed_capsule_is_its_consumers(version: Any) -> None:
    values = np.arange(6, dtype=np.float32)
    array, memory, held = HostArray(values, f32), weakref.ref(values), []
    held.append(sys.getrefcount(values))
    capsule = array.__dlpack__(max_version=version)
    tensor = torch.from_dlpack(capsule)
    held.append(sys.getrefcount(values))
    with pytest.raises((RuntimeError, ValueError)):
        torch.from_dlpack(capsule)
    with pytest.raises(FeedError, match="once"):
        from_dlpack(capsule)
    del capsule
    held.append(sys.getrefcount(values))
    assert held[1:] == [held[0] + 1] * 2
    view = tensor[2:]
    del array, tensor, values
    assert memory() is not None and view.tolist() == [2, 3, 4, 5]
    del view
    assert memory() is None


# results ----------------------------------------------------------------------------------------


def passing(name: str, size: int = 8) -> Program:
    """A program whose output is its input."""
    spec = TensorSpec("x", BY_NAME[name], (size,))
    out = TensorSpec("y", BY_NAME[name], (size,))
    return Program(X86_64_V3, (spec,), (out,), (), (), 0, (Copy(BufferRef("input", 0), 0),), "p")


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "f8e4m3fn", "f8e5m2", "i32", "bool"])
def test_results_of_the_cpu(name: str) -> None:
    x = np.arange(8).astype(BY_NAME[name].numpy)
    with Plan(passing(name)) as plan:
        y = plan.run_device({"x": x})["y"]
    got = torch.from_dlpack(y)  # outlives the plan
    again = check_feeds([TensorSpec("y", BY_NAME[name], (8,))], {"y": got})[0]
    assert again.tobytes() == x.tobytes() and again.dtype == x.dtype
    assert got.data_ptr() == y.numpy().__array_interface__["data"][0]
    if name not in ("bf16", "f8e4m3fn", "f8e5m2"):
        assert np.from_dlpack(y).ctypes.data == got.data_ptr()
    assert np.asarray(y).tobytes() == x.tobytes()
    with pytest.raises(UsageError, match="streams"):
        Plan(passing(name)).run_device({"x": x}, stream=0)


# feeds ------------------------------------------------------------------------------------------


class Foreign:
    """An array that speaks DLPack alone. versions: whether it knows of them."""

    def __init__(self, inner: Any, versions: bool = True) -> None:
        self.inner, self.versions = inner, versions

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, ordinal = self.inner.__dlpack_device__()
        return int(kind), ordinal

    def __dlpack__(self, *, stream: int | None = None, **how: Any) -> Any:
        if how and not self.versions:
            raise TypeError("unexpected keyword")
        return self.inner.__dlpack__(stream=stream, **how)


@pytest.mark.parametrize("versions", [True, False])
def test_feeds_are_read_in_place(versions: bool) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.bool):
        tensor = torch.arange(8).to(dtype)
        view = host_view(Foreign(tensor, versions))
        assert view.__array_interface__["data"][0] == tensor.data_ptr()
        assert describe(Foreign(tensor, versions)).dtype.numpy == view.dtype
    tensor = torch.arange(8).to(torch.bfloat16)
    with Plan(passing("bf16")) as plan:
        found = plan.run({"x": Foreign(tensor, versions)})["y"]
        assert found.astype(np.float32).tolist() == tensor.tolist()
        with pytest.raises(FeedError, match="dtype float32"):
            plan.run({"x": Foreign(torch.zeros(8), versions)})
        shared = weakref.ref(tensor)
        view = host_view(Foreign(tensor, versions))
        del tensor
        assert view.astype(np.float32).tolist() == list(range(8)) and shared() is not None


def test_strided_feeds_are_copied_right() -> None:
    tensor = torch.arange(16, dtype=torch.float32)[::2]
    with Plan(passing("f32")) as plan:
        assert plan.run({"x": Foreign(tensor)})["y"].tolist() == tensor.tolist()


def test_read_only_memory_stays_so() -> None:
    values = np.arange(8, dtype=np.float32)
    values.flags.writeable = False
    given = Foreign(values)
    assert not host_view(given).flags.writeable
    assert not describe(given).writeable


def test_fusers_own_arrays_are_described(gpu: Calls) -> None:
    array = DeviceArray((2, 3), bf16, 1)
    record = describe(array)
    assert (record.dtype, record.device, record.ordinal) == (bf16, "cuda", 1)
    values = np.zeros((2, 3), ml_dtypes.bfloat16)
    record = describe(HostArray(values, bf16))
    assert (record.address, record.dtype) == (values.__array_interface__["data"][0], bf16)


def test_feeds_that_do_not_fit(gpu: Calls) -> None:
    on_gpu = DeviceArray((8,), f32)
    with Plan(passing("f32")) as plan, pytest.raises(FeedError, match="GPU memory"):
        plan.run({"x": on_gpu})
    with pytest.raises(FeedError, match="complex64"):
        host_view(Foreign(torch.zeros(2, dtype=torch.complex64)))

    class ReadOnly:
        __cuda_array_interface__ = on_gpu.__cuda_array_interface__ | {"data": (4096, True)}

    spec = TensorSpec("y", f32, (8,))
    check_tensors([spec], {"y": ReadOnly()}, 0, "input")
    with pytest.raises(FeedError, match="read-only"):
        check_tensors([spec], {"y": ReadOnly()}, 0, "output")


# streams of runs --------------------------------------------------------------------------------


def test_a_run_goes_on_the_callers_stream(gpu: Calls) -> None:
    executor = cuda.CudaExecutor.__new__(cuda.CudaExecutor)
    executor.program, executor.ordinal, executor.stream = passing("bf16"), 0, 9
    executor._release = []

    def run_at(sources: Any, targets: Any, stream: int) -> None:
        gpu.append(("run", list(sources), list(targets), stream))

    executor.run_at = run_at  # type: ignore[method-assign]
    x = DeviceArray((8,), bf16)
    y = executor.run_device({"x": x})["y"]
    assert gpu.named("run") == [([x.pointer], [y.pointer], 9)]
    assert gpu[-1] == ("cuStreamSynchronize", 9) and y.ready is None
    x.ready = Event(0, 33)
    ((event, _),) = gpu.named("cuEventRecord")
    for stream, order in ((55, 55), (0, 1)):
        gpu.clear()
        y = executor.run_device({"x": x}, stream)["y"]
        names = [call[0] for call in gpu]
        assert gpu.named("cuStreamWaitEvent") == [(order, event, 0)]  # for what computes x
        assert names.index("cuStreamWaitEvent") < names.index("run") < names.index("cuEventRecord")
        assert gpu.named("run")[0][2] == order == gpu.named("cuEventRecord")[0][1]
        assert "cuStreamSynchronize" not in names
        assert y.ready is not None and y.ready.stream == order

    class Interface:
        __cuda_array_interface__ = x.__cuda_array_interface__ | {"typestr": "<V2"}

    gpu.clear()
    executor.run_device({"x": Interface()}, 55)
    assert gpu.named("cuEventRecord")[0][1] == 33 and gpu.named("cuStreamWaitEvent")[0][0] == 55


def test_feeds_in_host_memory_are_copied_to_the_gpu(gpu: Calls) -> None:
    executor = cuda.CudaExecutor.__new__(cuda.CudaExecutor)
    executor.program, executor.ordinal, executor.stream = passing("bf16"), 0, 9
    executor._release = []
    executor.run_at = lambda sources, targets, stream: gpu.append(("run", *sources))  # type: ignore[method-assign]
    values = np.arange(8).astype(ml_dtypes.bfloat16)
    for feed in (values, torch.arange(8).to(torch.bfloat16), Foreign(torch.zeros(8).bfloat16())):
        gpu.clear()
        y = executor.run_device({"x": feed}, 55)["y"]
        ((target, _, size, stream),) = gpu.named("cuMemcpyHtoDAsync")
        assert (size, stream) == (16, 55) and gpu.named("run") == [(target,)]
        assert not gpu.named("cuMemFree")  # the run may not be over
        del y
        assert (target,) in gpu.named("cuMemFree")
    gpu.clear()
    executor.run_device({"x": values})
    names = [call[0] for call in gpu]
    assert names.index("cuStreamSynchronize") < names.index("cuMemFree")
    with pytest.raises(FeedError, match="dtype float32"):
        executor.run_device({"x": values.astype(np.float32)})
    with pytest.raises(FeedError, match="missing inputs"):
        executor.run_device({})


# on a GPU ---------------------------------------------------------------------------------------


@pytest.mark.cuda
@pytest.mark.parametrize("wrapped", [False, True])
def test_torch_reads_results_in_place(wrapped: bool) -> None:
    x = torch.linspace(0, 1, 1000, device="cuda") * 3
    with Plan(cuda_program()) as plan:
        outputs = plan.run_device({"x": Foreign(x) if wrapped else x})
        again = plan.run_device({"x": Foreign(outputs["o0"])})
        same = plan.run_device({"x": x.cpu().numpy()}, stream=0)
    tensors = {name: torch.from_dlpack(array) for name, array in outputs.items()}
    for name, array in outputs.items():
        assert isinstance(array, DeviceArray)
        assert tensors[name].data_ptr() == array.pointer and tensors[name].device == x.device
    wanted = expected(x.cpu().numpy())
    np.testing.assert_array_equal(tensors["o0"].cpu().numpy(), wanted)
    assert torch.equal(torch.from_dlpack(same["o0"]), tensors["o0"])
    np.testing.assert_array_equal(torch.from_dlpack(again["o0"]).cpu().numpy(), expected(wanted))
    gone = weakref.ref(outputs["o2"])
    del outputs, array
    gc.collect()
    assert gone() is not None and torch.equal(tensors["o2"], x)
    del tensors
    gc.collect()
    assert gone() is None


@pytest.mark.cuda
def test_readers_wait_for_the_stream_of_the_run() -> None:
    x = torch.zeros(1000, device="cuda")
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    with Plan(cuda_program()) as plan:
        plan.run_device({"x": x})  # what loads, loads now
        x.clone().add_(1)
        torch.cuda.synchronize()
        with torch.cuda.stream(first):
            torch.cuda._sleep(500_000_000)
            x.add_(2)
            outputs = plan.run_device({"x": x}, stream=first.cuda_stream)
        assert not first.query()  # the run is only put there
        with torch.cuda.stream(second):
            got = torch.from_dlpack(outputs["o0"]).clone()
        second.synchronize()
        np.testing.assert_array_equal(got.cpu().numpy(), expected(np.full(1000, 2, np.float32)))
        np.testing.assert_array_equal(outputs["o2"].numpy(), np.full(1000, 2, np.float32))


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["bf16", "f8e4m3fn", "f8e5m2", "f16", "i64", "bool"])
def test_torch_reads_every_dtype_of_the_gpu(name: str) -> None:
    dtype = BY_NAME[name]
    values = (np.arange(16) % 2 if name == "bool" else np.arange(16)).astype(dtype.numpy)
    array = DeviceArray((4, 4), dtype)
    with driver.current():
        source = values.__array_interface__["data"][0]
        driver.call("cuMemcpyHtoD", array.pointer, source, array.bytes)
    for how in ({}, {"copy": True}):
        got = torch.from_dlpack(array, **how)
        assert str(got.dtype).removeprefix("torch.") == values.dtype.name
        assert (got.data_ptr() == array.pointer) == (not how)
        assert got.view(torch.uint8).cpu().numpy().tobytes() == values.tobytes()
    on_host = torch.from_dlpack(array.__dlpack__(dl_device=(1, 0), max_version=(1, 0)))
    assert on_host.device.type == "cpu"
    assert on_host.view(torch.uint8).numpy().tobytes() == values.tobytes()
