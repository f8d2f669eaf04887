"""What a native launch hands to the CUDA driver: on a driver made of Python functions, and on a
GPU."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fuser.backend.module import CompiledKernel, TensorMap
from fuser.dtypes import f32
from fuser.errors import DeviceError
from fuser.runtime import cuda_door, cuda_maps, door, driver, native_maps
from fuser.runtime.arrays import ArrayRecord, describe
from fuser.runtime.cuda_launch import CudaKernel
from fuser.runtime.fast_launch import (
    Integer,
    Pointer,
    Real,
    Signature,
    make_fast_launcher,
    why_not,
)
from fuser.runtime.geometry import Geometry
from fuser.runtime.native_words import Door

from .language_kernels import BLOCK, vector_add

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(bool(door.problem()), reason=door.problem())

FUNCTION, CONTEXT, OTHER, STREAM = 0x1111, 0x2222, 0x3333, 0x4444
FACTS = {
    "grid": ["grid0", "2"], "sizes": ["n", "n // 8"], "scalars": ["alpha"],
    "launch": ["2*grid0", "1", "n"],
}  # fmt: skip
SIGNATURE = Signature(
    (Pointer(), Integer(low=2), Pointer(), Real()), (2, 0), {"n": (1, 1)}, [(3, f32)]
)  # fmt: skip


class Driver:
    """Answers calls, and keeps what it was called with."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.current, self.status, self.push_status = CONTEXT, 0, 0
        self.words = 5
        self.maps: range | None = None
        pointer = ctypes.c_void_p
        one = ctypes.CFUNCTYPE(ctypes.c_int32, pointer)
        four = ctypes.CFUNCTYPE(ctypes.c_int32, pointer, pointer, pointer, pointer)
        self.kept = {
            Door.LAUNCH: four(self.launch), Door.GET_CONTEXT: one(self.get),
            Door.PUSH_CONTEXT: one(self.push), Door.POP_CONTEXT: one(self.pop),
        }  # fmt: skip

    def functions(self) -> dict[Door, int]:
        return {
            word: ctypes.cast(function, ctypes.c_void_p).value or 0
            for word, function in self.kept.items()
        }

    def get(self, to: int) -> int:
        ctypes.c_void_p.from_address(to).value = self.current
        return 0

    def push(self, context: int) -> int:
        self.calls.append(("push", context))
        return self.push_status

    def pop(self, to: int) -> int:
        self.calls.append(("pop",))
        return 0

    def launch(self, config: int, function: int, params: int, extra: int | None) -> int:
        numbers = tuple((ctypes.c_uint32 * 7).from_address(config))
        stream, attributes = (ctypes.c_void_p.from_address(config + at).value for at in (32, 40))
        count = ctypes.c_uint32.from_address(config + 48).value
        pointers = (ctypes.c_void_p * self.words).from_address(params)
        words = [ctypes.c_int64.from_address(pointer).value for pointer in pointers]
        cluster = None
        for place in range(count):
            at = (attributes or 0) + 72 * place
            cluster = (*(cluster or ()), *(ctypes.c_uint32 * 5).from_address(at))
        self.calls.append((function, numbers, stream, words, cluster, extra))
        if self.maps:
            self.encoded = [ctypes.string_at(pointers[at], 128) for at in self.maps]
            assert not any(pointers[at] % 64 for at in self.maps)
        return self.status


class Encoder:
    """Keeps what maps are encoded of, and numbers the maps."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.status, self.held = 0, True
        pointer, word = ctypes.c_void_p, ctypes.c_int32
        where = (pointer, word, word, pointer, pointer, pointer)
        how = (pointer, word, word, word, word)
        self.kept = (
            ctypes.CFUNCTYPE(word, *where, pointer, *how)(self.tiled),
            ctypes.CFUNCTYPE(word, *where, pointer, pointer, word, word, *how)(self.walk),
        )

    def functions(self) -> dict[Door, int]:
        words = (Door.ENCODE_TILED, Door.ENCODE_WALK)
        return {
            word: ctypes.cast(function, ctypes.c_void_p).value or 0
            for word, function in zip(words, self.kept, strict=True)
        }

    def tiled(self, to: int, *rest: Any) -> int:
        where, (box, *how) = self._where(*rest[:5]), rest[5:]
        rank = where[1]
        return self._add(to, (*where, _list(box, rank), *self._how(rank, *how)))

    def walk(self, to: int, *rest: Any) -> int:
        where, (lower, upper, columns, rows, *how) = self._where(*rest[:5]), rest[5:]
        rank = where[1]
        corners = _list(lower, rank - 2), _list(upper, rank - 2)
        return self._add(to, (*where, *corners, (columns, rows), *self._how(rank, *how)))

    def _where(self, kind: int, rank: int, start: int, shape: int, strides: int) -> Any:
        long = ctypes.c_uint64
        return kind, rank, start, _list(shape, rank, long), _list(strides, rank - 1, long)

    def _how(self, rank: int, steps: int, *rest: int) -> Any:
        return _list(steps, rank), *rest

    def _add(self, to: int, call: Any) -> int:
        self.calls.append(call)
        ctypes.memset(to, len(self.calls), 128)
        return self.status


def _list(at: int, count: int, kind: Any = ctypes.c_int32) -> tuple[int, ...]:
    return tuple((kind * count).from_address(at))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    made = Driver()

    def on_gpu(array: Any) -> ArrayRecord:
        return replace(describe(array), device="cuda")

    monkeypatch.setattr(cuda_door, "_driver", made.functions)
    monkeypatch.setattr(cuda_door, "describe", on_gpu)
    monkeypatch.setattr(driver, "context", lambda ordinal: CONTEXT)
    monkeypatch.setattr(
        torch._C, "_cuda_getCurrentRawStream", lambda ordinal: STREAM + ordinal, raising=False
    )
    yield made


def kernel_of(**changes: Any) -> CudaKernel:
    """One that no driver has loaded."""
    compiled = CompiledKernel(
        "k", "sm_90a", "k", b"", (8, 2), launch=(16, 1, 5), threads=128, shared_bytes=1 << 16,
        facts=FACTS,
    )  # fmt: skip
    kernel = object.__new__(CudaKernel)
    kernel.kernel, kernel.ordinal = replace(compiled, **changes), 3
    kernel.geometry, kernel.function = Geometry(kernel.kernel), FUNCTION
    return kernel


def arrays(wrap: Any = lambda array: array) -> tuple[Any, Any]:
    return wrap(np.zeros(9, np.float32)), wrap(np.zeros(7, np.float32))


@pytest.mark.parametrize(
    ("wrap", "stream"), [(lambda array: array, None), (torch.from_numpy, STREAM + 3)]
)
def test_a_launch(fake: Driver, wrap: Any, stream: int | None) -> None:
    x, y = arrays(wrap)
    fast = make_fast_launcher(kernel_of(), SIGNATURE, (x, 17, y, 1.0))
    assert fast is not None
    for n, blocks, alpha in ((17, 8, 1.0), (40, 3, -2.0)):
        assert fast((x, n, y, alpha), (blocks, 2)) is True
        bits = int(np.float32(alpha).view(np.uint32))
        pointers = [describe(y).address, describe(x).address]
        assert fake.calls.pop() == (
            FUNCTION, (2 * blocks, 1, n, 128, 1, 1, 1 << 16), stream,
            [*pointers, n, n // 8, bits], None, None,
        )  # fmt: skip
    assert not fake.calls
    for n, grid in ((17, (0, 2)), (17, (1, 2)), (1 << 16, (8, 2)), (17, (1 << 30, 2)), (17, (8,))):
        assert fast((x, n, y, 1.0), grid) is False
    assert not fake.calls


MAPS = (
    TensorMap(1, "bf16", (16, 5), (32,), (8, 4), 64, 2),
    TensorMap(0, "f32", (8, 9, 9, 2), (8, 72, 648), (8, 32), 32, 4, (-1, 0), (0, 1), (1, 2)),
)  # fmt: skip
MAP_FACTS = [
    {"shape": ["n", "5"], "strides": ["8*grid0"], "offset": "n // 8"},
    {"shape": ["8", "9", "9", "2"], "strides": ["8", "72", "648"], "offset": "4"},
]


@pytest.mark.parametrize("open_sizes", [True, False])
def test_tensor_maps(fake: Driver, monkeypatch: pytest.MonkeyPatch, open_sizes: bool) -> None:
    encoder = Encoder()
    monkeypatch.setattr(cuda_maps, "_encoders", encoder.functions)
    facts = {**FACTS, "maps": MAP_FACTS} if open_sizes else FACTS
    kernel = kernel_of(tensor_maps=MAPS, facts=facts)
    fake.words, fake.maps, fake.current = 7, range(2, 4), OTHER
    x, y = arrays()
    fast = make_fast_launcher(kernel, SIGNATURE, (x, 17, y, 1.0))
    assert fast is not None
    start, other = x.ctypes.data, y.ctypes.data
    for n, blocks in ((17, 8), (40, 4)):
        fake.calls.clear()
        encoder.calls.clear()
        assert fast((x, n, y, 1.0), (blocks, 2)) is True
        size = (n, 8 * blocks, n // 8) if open_sizes else (16, 32, 2)
        assert encoder.calls == [
            (9, 2, start + 2 * size[2], (size[0], 5), (2 * size[1],), (8, 4), (1, 1), 0, 2, 2, 0),
            (7, 4, other + 16, (8, 9, 9, 2), (32, 288, 2592), (-1, 0), (0, 1), (8, 32),
             (1, 1, 2, 1), 0, 1, 2, 0),
        ]  # fmt: skip
        push, launch, pop = fake.calls
        assert push == ("push", CONTEXT) and pop == ("pop",)
        words = launch[3]
        assert words[:2] == [other, start] and words[4:6] == [n, n // 8]
        assert fake.encoded == [bytes([1]) * 128, bytes([2]) * 128]
    # what the driver does not encode goes the slow way, which says why
    fake.calls.clear()
    encoder.status = 1
    assert fast((x, 17, y, 1.0), (8, 2)) is False
    assert fake.calls == [("push", CONTEXT), ("pop",)]
    assert len(encoder.calls) == 3


def test_maps_are_those_of_the_slow_way() -> None:
    bindings = pytest.importorskip("cuda.bindings.driver")
    for name, number in cuda_maps.TYPES.items():
        kind = bindings.CUtensorMapDataType
        assert int(getattr(kind, f"CU_TENSOR_MAP_DATA_TYPE_{name}")) == number
    for bytes, number in cuda_maps.SWIZZLES.items():
        name = f"{bytes}B" if bytes else "NONE"
        assert int(getattr(bindings.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{name}")) == number
    promotion = bindings.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B
    assert int(promotion) == native_maps.PROMOTION


def test_too_many_maps(fake: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_maps, "_encoders", Encoder().functions)
    kernel = kernel_of(tensor_maps=MAPS[:1] * 9)
    x, y = arrays()
    assert "more than 8 tensor maps" in why_not(kernel, SIGNATURE, (x, 17, y, 1.0))


def test_a_stride_of_0_is_left_to_the_slow_way(
    fake: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Encoder()
    monkeypatch.setattr(cuda_maps, "_encoders", encoder.functions)
    facts = {**FACTS, "maps": [{**MAP_FACTS[0], "strides": ["n - 17"]}]}
    fake.words = 6
    x, y = arrays()
    fast = make_fast_launcher(
        kernel_of(tensor_maps=MAPS[:1], facts=facts), SIGNATURE, (x, 18, y, 1.0)
    )
    assert fast is not None
    assert fast((x, 18, y, 1.0), (8, 2)) is True
    assert fast((x, 17, y, 1.0), (8, 2)) is False
    assert len(encoder.calls) == len(fake.calls) == 1


@pytest.mark.parametrize("told", [STREAM + 3, 0])
def test_the_stream_by_the_c_interface(
    fake: Driver, monkeypatch: pytest.MonkeyPatch, told: int
) -> None:
    """Where it tells what Python tells."""
    asked: list[int] = []

    def stream(ordinal: int, to: int) -> int:
        asked.append(ordinal)
        ctypes.c_void_p.from_address(to).value = told
        return status

    function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)(stream)
    address = ctypes.cast(function, ctypes.c_void_p).value
    monkeypatch.setattr(cuda_door, "_current_stream", lambda: address)
    status = 0
    x, y = arrays(torch.from_numpy)
    fast = make_fast_launcher(kernel_of(), SIGNATURE, (x, 17, y, 1.0))
    assert fast is not None and fast((x, 17, y, 1.0), (8, 2)) is True
    assert fake.calls.pop()[2] == STREAM + 3
    assert asked == ([3, 3] if told else [3])
    status = 1
    assert fast((x, 17, y, 1.0), (8, 2)) is (told == 0)


def test_clusters_and_workspaces(fake: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = kernel_of(cluster=4, workspace_bytes=1000)
    kernel._workspaces = {STREAM + 3: 0x5000}
    monkeypatch.setattr(kernel, "workspace", kernel._workspaces.__getitem__, raising=False)
    monkeypatch.setattr(cuda_door, "stream_for", lambda records, ordinal: STREAM + 3)
    fake.words = 6
    x, y = arrays(torch.from_numpy)
    fast = make_fast_launcher(kernel, SIGNATURE, (x, 17, y, 1.0))
    assert fast is not None and fast((x, 17, y, 1.0), (8, 2)) is True
    _, _, stream, words, cluster, _ = fake.calls.pop()
    assert (stream, cluster) == (STREAM + 3, (4, 0, 4, 1, 1))
    assert words == [y.data_ptr(), x.data_ptr(), 0x5000, 17, 2, 0x3F800000]
    # the memory of one stream is not for launches on another
    monkeypatch.setitem(kernel._workspaces, 0, 0x6000)
    monkeypatch.setattr(cuda_door, "stream_for", lambda records, ordinal: 0)
    other = make_fast_launcher(kernel, SIGNATURE, (x, 17, y, 1.0))
    assert other is not None and other((x, 17, y, 1.0), (8, 2)) is False
    assert not fake.calls


@pytest.mark.parametrize(
    ("changes", "attributes"),
    [({}, None), ({"pdl": True}, (6, 0, 1, 0, 0)), ({"cluster": 2}, (4, 0, 2, 1, 1)),
     ({"cluster": 2, "pdl": True}, (4, 0, 2, 1, 1, 6, 0, 1, 0, 0))],
)  # fmt: skip
def test_what_a_launch_asks_of_the_driver(
    fake: Driver, changes: dict[str, Any], attributes: Any
) -> None:
    x, y = arrays(torch.from_numpy)
    fast = make_fast_launcher(kernel_of(**changes), SIGNATURE, (x, 17, y, 1.0))
    assert fast is not None and fast((x, 17, y, 1.0), (8, 2)) is True
    assert fake.calls.pop()[4] == attributes


def test_the_context_of_another_library(fake: Driver) -> None:
    fake.current = OTHER
    x, y = arrays()
    fast = make_fast_launcher(kernel_of(), SIGNATURE, (x, 17, y, 1.0))
    assert fast is not None and fast((x, 17, y, 1.0), (8, 2)) is True
    assert [call[0] for call in fake.calls] == ["push", FUNCTION, "pop"]
    assert fake.calls[0] == ("push", CONTEXT)


def test_failures_are_errors(fake: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    class Api:
        @staticmethod
        def CUresult(status: int) -> Any:
            if status != 701:
                raise ValueError

            class Status(int):
                name = "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"

            return Status(status)

    monkeypatch.setattr(driver, "api", lambda: Api)
    monkeypatch.setattr(driver, "_lost", "")
    x, y = arrays()
    fast = make_fast_launcher(kernel_of(), SIGNATURE, (x, 17, y, 1.0))
    assert fast is not None
    fake.status = 701
    with pytest.raises(DeviceError, match="cuLaunchKernelEx failed: CUDA_ERROR_LAUNCH_OUT_OF"):
        fast((x, 17, y, 1.0), (8, 2))
    fake.status = 12345
    with pytest.raises(DeviceError, match="12345"):
        fast((x, 17, y, 1.0), (8, 2))
    fake.status, fake.current, fake.push_status = 0, OTHER, 701
    fake.calls.clear()
    with pytest.raises(DeviceError, match="701"):
        fast((x, 17, y, 1.0), (8, 2))
    assert fake.calls == [("push", CONTEXT)]
    fake.push_status = 0
    assert fast((x, 17, y, 1.0), (8, 2)) is True


def test_arrays_of_the_host_are_refused(fake: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_door, "describe", describe)
    x, y = arrays()
    assert "not on the GPU" in why_not(kernel_of(), SIGNATURE, (x, 17, y, 1.0))


@pytest.mark.cuda
def test_native_launches_on_the_gpu() -> None:
    from fuser.backend.nvptx import compile_kernel
    from fuser.runtime.cuda import device_target

    compiled = vector_add(lambda kernel: compile_kernel(kernel, device_target()))
    kernel = CudaKernel(compiled)
    pointers = [Pointer(False), Pointer(False), Pointer()]
    signature = Signature([*pointers, Integer(low=2, high=1 << 30)], (0, 1, 2), {"n": (3, 1)})

    def new(n: int) -> Any:
        return torch.rand(n, device="cuda")

    example = (new(8), new(8), new(8), 8)
    assert not re.search(".", why_not(kernel, signature, example))
    fast = make_fast_launcher(kernel, signature, example)
    assert fast is not None
    for n in (1000, 2, 100_000):
        for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
            x, y, out = new(n), new(n), new(n)
            stream.wait_stream(torch.cuda.default_stream())
            with torch.cuda.stream(stream):
                assert fast((x, y, out, n), (max(2, -(-n // BLOCK)),)) is True
            torch.cuda.synchronize()
            assert torch.equal(out, x + y)
    host = torch.zeros(1000)
    assert fast((host, y, out, 1000), (8,)) is False
    graph = torch.cuda.CUDAGraph()
    x, y, out = new(1000), new(1000), new(1000)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        assert fast((x, y, out, 1000), (8,)) is True
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, x + y)
