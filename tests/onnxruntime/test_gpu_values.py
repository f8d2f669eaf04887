"""Values and bindings in GPU memory: on a GPU that lies in the host's memory, and on a real one."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections import Counter
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fuser.onnxruntime as ort
from fuser.errors import DeviceError, UsageError
from fuser.runtime import driver

from .test_members import ADD, Array, model

COPIES = ("cuMemcpyHtoD", "cuMemcpyDtoH")


class Memory:
    """A GPU's memory, on the host. live: what is allocated; calls: how often each was called."""

    def __init__(self) -> None:
        self.live: dict[int, Array] = {}
        self.calls: Counter[str] = Counter()

    def call(self, name: str, *arguments: Any) -> Any:
        self.calls[name] += 1
        if name == "cuMemAlloc":
            block = np.zeros(arguments[0] + 64, np.uint8)
            address = -(-block.ctypes.data // 64) * 64
            self.live[address] = block
            return address
        if name == "cuMemFree":
            del self.live[arguments[0]]
        elif name in COPIES:
            ctypes.memmove(*arguments)
        return None


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Memory:
    @contextlib.contextmanager
    def current(ordinal: int = 0) -> Iterator[None]:
        yield

    memory = Memory()
    monkeypatch.setattr(driver, "call", memory.call)
    monkeypatch.setattr(driver, "current", current)
    monkeypatch.setattr(driver, "freeing", current)
    return memory


@pytest.fixture(scope="module")
def session() -> ort.InferenceSession:
    return ort.InferenceSession(model(ADD), providers=["CPUExecutionProvider"])


@pytest.fixture
def feeds(rng: np.random.Generator) -> dict[str, Array]:
    return {name: rng.standard_normal((2, 4)).astype(np.float32) for name in ("x", "w")}


def test_values_in_gpu_memory(gpu: Memory) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    value = ort.OrtValue.ortvalue_from_numpy(x, "cuda", 0)
    assert (value.device_name(), value.shape(), value.data_type()) == (
        "cuda",
        [2, 3],
        "tensor(float)",
    )
    assert value.data_ptr() in gpu.live and value.tensor_size_in_bytes() == 24
    assert value.is_tensor() and value.has_value()
    value.update_inplace(x + 1)
    x[...] = 0
    found = value.numpy()
    assert found.tolist() == [[1, 2, 3], [4, 5, 6]]
    found[...] = 9
    assert value.numpy()[0, 0] == 1, "numpy() is a copy"
    with pytest.raises(UsageError, match=r"the value is float32\[2, 3\], the array float32\[3\]"):
        value.update_inplace(x[0])
    empty = ort.OrtValue.ortvalue_from_shape_and_type([2, 5], 16, "cuda", 0)
    assert (empty.data_type(), empty.tensor_size_in_bytes()) == ("tensor(bfloat16)", 20)
    assert empty.numpy().dtype == ml_dtypes.bfloat16
    del value, empty
    gc.collect()
    assert not gpu.live


def test_values_in_gpu_memory_speak_dlpack(gpu: Memory) -> None:
    value = ort.OrtValue.ortvalue_from_numpy(np.arange(4, dtype=np.int64), "cuda", 3)
    assert value.__dlpack_device__() == (2, 3)
    shared = ort.OrtValue.from_dlpack(value)
    assert shared.data_ptr() == value.data_ptr() and shared.__dlpack_device__() == (2, 3)
    del value
    gc.collect()
    assert shared.numpy().tolist() == [0, 1, 2, 3], "it keeps the memory"
    capsule = shared.to_dlpack()
    with pytest.raises(UsageError, match="no __dlpack_device__"):
        ort.OrtValue.from_dlpack(capsule)


def test_values_of_the_host_speak_dlpack_in_every_dtype() -> None:
    torch = pytest.importorskip("torch")
    bits = np.array([1.5, -2], ml_dtypes.bfloat16)
    value = ort.OrtValue.ortvalue_from_numpy(bits)
    tensor = torch.from_dlpack(value)
    assert tensor.dtype == torch.bfloat16 and tensor.tolist() == [1.5, -2]
    assert tensor.data_ptr() == value.data_ptr()


@pytest.mark.parametrize("ends", ["values", "addresses", "new"])
def test_a_session_of_the_host_copies(
    gpu: Memory, session: ort.InferenceSession, feeds: dict[str, Array], ends: str
) -> None:
    """What is bound on the GPU is copied both ways, and nothing else is."""
    x = ort.OrtValue.ortvalue_from_numpy(feeds["x"], "cuda", 0)
    room = ort.OrtValue.ortvalue_from_shape_and_type([2, 4], np.float32, "cuda", 0)
    binding = session.io_binding()
    binding.bind_cpu_input("w", feeds["w"])
    at = (np.float32, [2, 4])
    if ends == "addresses":
        binding.bind_input("x", "cuda", 0, *at, x.data_ptr())
        binding.bind_output("y", "cuda", 0, *at, room.data_ptr())
    else:
        binding.bind_ortvalue_input("x", x)
        binding.bind_ortvalue_output("y", room) if ends == "values" else binding.bind_output(
            "y", "cuda"
        )
    binding.bind_output("z")
    gpu.calls.clear()
    binding.synchronize_inputs()
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    assert (gpu.calls["cuCtxSynchronize"], *(gpu.calls[name] for name in COPIES)) == (1, 1, 1)
    y, z = binding.get_outputs()
    assert (y.device_name(), z.device_name()) == ("cuda", "cpu")
    assert (y.data_ptr() == room.data_ptr()) == (ends != "new")
    for found, wanted in zip(binding.copy_outputs_to_cpu(), session.run(None, feeds), strict=True):
        np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(session.run(["y"], {**feeds, "x": x})[0], y.numpy())
    (value,) = session.run_with_ort_values(["y"], {"x": x, "w": y})
    assert value.device_name() == "cpu"


def test_what_does_not_fit_on_the_gpu(gpu: Memory, feeds: dict[str, Array]) -> None:
    binding = ort.InferenceSession(model(ADD), providers=["CPUExecutionProvider"]).io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    small = ort.OrtValue.ortvalue_from_shape_and_type([1, 4], np.float32, "cuda", 0)
    binding.bind_ortvalue_output("y", small)
    with pytest.raises(
        UsageError, match=r"output 'y' is float32\[1, 4\], the array float32\[2, 4\]"
    ):
        binding.run()
    with pytest.raises(UsageError, match="no memory to bind"):
        binding.bind_input("x", "cuda", 0, np.float32, [2, 4], 0)
    for call in (binding.bind_output, lambda _, where: ort.OrtDevice.make(where)):
        with pytest.raises(DeviceError, match="no values on 'dml'"):
            call("y", "dml")


# on a GPU ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def on_gpu() -> ort.InferenceSession:
    return ort.InferenceSession(model(ADD), providers=["CUDAExecutionProvider"])


@pytest.mark.cuda
def test_tensors_of_pytorch_are_read_and_written_where_they_are(
    on_gpu: ort.InferenceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At two sizes: what the default stream computes is waited for, and nothing is copied."""
    import torch

    original, seen = driver.call, Counter[str]()

    def noted(name: str, *arguments: Any) -> Any:
        seen[name] += 1
        return original(name, *arguments)

    for rows in (64, 3, 64):
        binding = on_gpu.io_binding()
        x, w = (torch.randn(rows, 4, device="cuda") for _ in "xw")
        y = torch.zeros(rows, 4, device="cuda")
        for name, tensor in (("x", x), ("w", w)):
            binding.bind_input(name, "cuda", 0, np.float32, tensor.shape, tensor.data_ptr())
        binding.bind_output("y", "cuda", 0, np.float32, y.shape, y.data_ptr())
        binding.bind_output("z", "cuda")
        on_gpu.run_with_iobinding(binding)  # compiles
        monkeypatch.setattr(driver, "call", noted)
        seen.clear()
        for _ in range(3):
            torch.cuda._sleep(20_000_000)
            x.mul_(0.5).add_(1)
            on_gpu.run_with_iobinding(binding)
            assert torch.equal(y, x + w)
            assert torch.equal(torch.from_dlpack(binding.get_outputs()[1]), x * w)
        assert not [name for name in seen if "HtoD" in name or "DtoH" in name]
        monkeypatch.undo()
        for found, wanted in zip(binding.copy_outputs_to_cpu(), (x + w, x * w), strict=True):
            np.testing.assert_array_equal(found, wanted.cpu().numpy())


@pytest.mark.cuda
def test_an_output_where_an_input_is(on_gpu: ort.InferenceSession) -> None:
    x = ort.OrtValue.ortvalue_from_numpy(np.arange(8, dtype=np.float32).reshape(2, 4), "cuda", 0)
    binding = on_gpu.io_binding()
    binding.bind_ortvalue_input("x", x)
    binding.bind_cpu_input("w", np.ones((2, 4), np.float32))
    binding.bind_ortvalue_output("y", x)
    for _ in range(3):
        on_gpu.run_with_iobinding(binding)
    assert x.numpy().ravel().tolist() == [3 + i for i in range(8)]


@pytest.mark.cuda
@pytest.mark.parametrize("provider", ["CUDAExecutionProvider", "CPUExecutionProvider"])
def test_hosts_and_gpus_mixed(provider: str, feeds: dict[str, Array]) -> None:
    session = ort.InferenceSession(model(ADD), providers=[provider])
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(feeds["x"], "cuda", 0))
    binding.bind_cpu_input("w", feeds["w"])
    binding.bind_output("z", "cuda")
    binding.bind_output("y", "cpu")
    session.run_with_iobinding(binding)
    z, y = binding.get_outputs()
    assert (z.device_name(), y.device_name()) == ("cuda", "cpu")
    np.testing.assert_array_equal(z.numpy(), feeds["x"] * feeds["w"])
    np.testing.assert_array_equal(y.numpy(), feeds["x"] + feeds["w"])


@pytest.mark.cuda
def test_an_input_on_the_gpu_may_decide_a_shape() -> None:
    text = "m (float[6] x, int64[2] s) => (float[a, b] y) { y = Reshape(x, s) }"
    session = ort.InferenceSession(model(text), providers=["CUDAExecutionProvider"])
    x = np.arange(6, dtype=np.float32)
    for shape in ([2, 3], [3, 2], [2, 3]):
        binding = session.io_binding()
        for name, array in (("x", x), ("s", np.array(shape))):
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0))
        binding.bind_output("y", "cuda")
        session.run_with_iobinding(binding)
        assert binding.get_outputs()[0].numpy().tolist() == x.reshape(shape).tolist()
