"""Modules of Triton that packages import: their names resolve, and each does what it says or raises
an error that says why not."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fuser.triton as triton
import fuser.triton.language as tl
from fuser.errors import DeviceError, FuserError, LanguageError, UnsupportedError, UsageError
from fuser.triton import _utils, testing
from fuser.triton.driver import Driver, driver
from fuser.triton.runtime import cache
from tests.language.launching import DEVICES, launch

NAMES = {
    "testing": "get_dram_gbps get_max_tensorcore_tflops get_max_simd_tflops nvsmi set_gpu_clock",
    "backends": "backends BaseBackend DriverBase",
    "backends.compiler": "BaseBackend GPUTarget Language",
    "backends.driver": "DriverBase GPUDriver",
    "backends.nvidia": "",
    "backends.nvidia.compiler": "CUDABackend CUDAOptions get_ptxas PTXASError",
    "backends.nvidia.driver": "CudaDriver CudaUtils library_dirs",
    "runtime.cache": "CacheManager FileCacheManager get_cache_manager get_dump_manager "
    "get_override_manager triton_key RemoteCacheManager",
    "runtime.build": "compile_module_from_src compile_so_from_src platform_key",
    "compiler.compiler": "make_backend triton_key",
    "compiler.code_generator": "CodeGenerator ast_to_ttir flatten_values_to_ir mangle_fn",
    "language.semantic": "TritonSemantic IncompatibleTypeErrorImpl",
    "language.extra.cuda": "gdc_wait libdevice smid",
    "language.extra.cuda.gdc": "gdc_wait gdc_launch_dependents",
    "language.extra.cuda.libdevice": "rsqrt log1p",
    "language.extra.cuda.utils": "globaltimer num_warps",
    "tools.mxfp": "MXFP4Tensor MXScaleTensor fp8e8m0_to_float32",
    "tools.ragged_tma": "create_ragged_descriptor load_ragged store_ragged atomic_add_ragged",
    "profiler": "start finalize scope profile enter_scope exit_scope",
    "_utils": "find_paths_if get_iterable_path apply_with_path validate_block_shape",
}


@pytest.mark.parametrize("module", NAMES)
def test_names_resolve(module: str) -> None:
    found = importlib.import_module(f"fuser.triton.{module}")
    for name in NAMES[module].split():
        assert hasattr(found, name), name


REFUSED = {
    "compiler.code_generator": ["ast_to_ttir", "CodeGenerator", "flatten_values_to_ir"],
    "runtime.build": ["compile_module_from_src", "compile_so_from_file"],
    "runtime.cache": ["RemoteCacheManager", "get_cache_key"],
    "backends.nvidia.compiler": ["get_ptxas"],
    "backends.nvidia.driver": ["library_dirs"],
    "language.semantic": ["TritonSemantic"],
    "profiler": ["start", "profile"],
    "testing": ["set_gpu_clock"],
}


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module in REFUSED for name in REFUSED[module]]
)
def test_what_means_nothing_here_says_so_when_it_is_used(module: str, name: str) -> None:
    found = getattr(importlib.import_module(f"fuser.triton.{module}"), name)
    with pytest.raises(UnsupportedError, match=name):
        found("x", y=1)


# what devices can do ------------------------------------------------------------------------------


def test_rates_of_the_cpu_are_those_of_the_cost_model() -> None:
    before = driver.active
    driver.set_active(Driver("cpu"))
    try:
        from fuser.pipeline.devices import choose_target

        target = choose_target("cpu")
        assert testing.get_dram_gbps() == target.bandwidth / 1e9
        assert testing.get_max_tensorcore_tflops(tl.float32, 1e6) == target.flops_f32 / 1e12
        assert testing.get_max_simd_tflops("float16", 1e6) == target.flops_f16 / 1e12
        with pytest.raises(UsageError, match="fp64"):
            testing.get_max_simd_tflops(tl.float64, 1e6)
    finally:
        driver.set_active(before)


class Gpu:
    """A driver of a GPU with 100 multiprocessors."""

    on_gpu = True

    def __init__(self, major: int, memory_clock: int = 2_000_000) -> None:
        self.major = major
        facts = {"multiprocessor_count": 100, "mem_clock_rate": memory_clock, "mem_bus_width": 4096}
        self.utils = SimpleNamespace(get_device_properties=lambda device: facts)

    def get_current_device(self) -> int:
        return 0

    def get_device_capability(self, device: int) -> tuple[int, int]:
        return self.major, 0


@pytest.mark.parametrize(
    ("function", "major", "dtype", "want"),
    [
        ("get_max_tensorcore_tflops", 8, "torch.float16", 204.8),
        ("get_max_tensorcore_tflops", 9, tl.bfloat16, 204.8),
        ("get_max_tensorcore_tflops", 8, "torch.float32", 102.4),
        ("get_max_tensorcore_tflops", 9, tl.float8e5, 409.6),
        ("get_max_tensorcore_tflops", 7, "torch.float16", 102.4),
        ("get_max_simd_tflops", 8, "torch.float32", 12.8),
        ("get_max_simd_tflops", 9, "torch.bfloat16", 25.6),
    ],
)
def test_rates_of_a_gpu(
    function: str, major: int, dtype: Any, want: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "_active", Gpu(major))
    assert getattr(testing, function)(dtype, 1e6) == pytest.approx(want)
    assert testing.get_dram_gbps() == pytest.approx(2048)
    with pytest.raises(UsageError):
        getattr(testing, function)(tl.float64, 1e6)


def test_a_gpu_without_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DeviceError, match=r"clocks\.sm"):
        testing.nvsmi(["clocks.sm", "clocks.mem"])


def test_what_smi_tells(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 1980, 2619\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert testing.nvsmi(["clocks.sm", "clocks.mem"]) == [1980, 2619]


# back ends and caches -----------------------------------------------------------------------------


def test_the_back_end_of_a_target() -> None:
    from fuser.triton.backends import backends
    from fuser.triton.backends.compiler import BaseBackend, GPUTarget, Language
    from fuser.triton.backends.nvidia.compiler import CUDABackend
    from fuser.triton.compiler.compiler import make_backend, triton_key

    made = make_backend(GPUTarget("cuda", 90, 32))
    assert made.hash() == f"{triton_key()}-cuda-90" and len(triton_key()) == 64
    assert made.parse_options({"num_warps": 8}).num_warps == 8
    assert CUDABackend(made.target).parse_options({"num_warps": 8, "other": 1}).num_warps == 8
    assert issubclass(backends["nvidia"].compiler, BaseBackend)
    with pytest.raises(UsageError, match="no back end"):
        make_backend(GPUTarget("hip", "gfx942", 64))
    with pytest.raises(TypeError, match="abstract"):
        BaseBackend(made.target)  # type: ignore[abstract]
    with pytest.raises(UnsupportedError):
        made.add_stages({}, None, Language.TRITON)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "files"))
    monkeypatch.setenv("TRITON_DUMP_DIR", str(tmp_path / "dumps"))
    return tmp_path


def test_files_of_a_key(folder: Path) -> None:
    files = cache.get_cache_manager("abc")
    assert files.get_file("a.json") is None
    path = files.put(b"\x00\x01", "a.bin")
    assert Path(path).read_bytes() == b"\x00\x01" and path == files.get_file("a.bin")
    assert Path(path) == folder / "files" / "abc" / "a.bin"
    text = files.put("text", "b.txt", binary=False)
    files.put("other", "b.txt")
    assert Path(text).read_text() == "other"
    assert sorted(p.name for p in Path(path).parent.iterdir()) == ["a.bin", "b.txt"]
    files.put_group("both", {"a.bin": path, "b.txt": text})
    assert cache.get_cache_manager("abc").get_group("both") == {"a.bin": path, "b.txt": text}
    Path(text).unlink()
    assert files.get_group("both") is None
    assert files.get_group("none") is None
    dumped = cache.get_dump_manager("abc").put("text", "c.txt")
    assert Path(dumped) == folder / "dumps" / "abc" / "c.txt"


def test_damaged_groups_are_not_there(folder: Path) -> None:
    files = cache.get_cache_manager("abc")
    for content in ("{", "[]", '{"child_paths": 3}', "\ufffd", "null"):
        files.put(content, "__grp__x")
        assert files.get_group("x") is None


@pytest.mark.parametrize("name", ["../up", "a/b", "", "..", "a\0b", "/etc"])
def test_keys_and_names_stay_in_the_folder(name: str, folder: Path) -> None:
    with pytest.raises(UsageError):
        cache.get_cache_manager(name)
    with pytest.raises(UsageError):
        cache.get_cache_manager("abc").put("x", name)


def test_a_folder_that_is_not_set() -> None:
    with pytest.raises(UsageError, match="override_dir"):
        cache.get_override_manager("abc")


class Own(cache.FileCacheManager):
    pass


def test_a_manager_of_the_users(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.knobs.cache, "manager_class", f"{__name__}:Own", raising=False)
    assert type(cache.get_cache_manager("abc")).__name__ == "Own"


# nested tuples ------------------------------------------------------------------------------------


def test_paths() -> None:
    nested = [1, (2, [3, "a"]), "b"]
    assert _utils.find_paths_if(nested, lambda path, item: isinstance(item, str)) == [
        (1, 1, 1), (2,),
    ]  # fmt: skip
    assert _utils.get_iterable_path(nested, (1, 1, 0)) == 3
    _utils.set_iterable_path(nested, (1, 1, 0), 9)
    assert nested[1][1] == [9, "a"]
    with pytest.raises(UsageError, match="tuple"):
        _utils.set_iterable_path(nested, (1, 0), 9)


@pytest.mark.parametrize(
    ("given", "short", "bits"),
    [("torch.float32", "fp32", 32), (np.dtype("int64"), "i64", 64), (tl.bfloat16, "bf16", 16),
     ("bool", "u1", 1), ("float8_e4m3fn", "fp8e4nv", 8), ("half", "fp16", 16), ("u8", "u8", 8)],
)  # fmt: skip
def test_names_of_types(given: Any, short: str, bits: int) -> None:
    assert _utils.canonicalize_dtype(given) == short
    assert _utils.canonicalize_ptr_dtype(given, True) == f"*k{short}"
    assert _utils.get_primitive_bitwidth(short) == bits


@pytest.mark.parametrize("shape", [(3,), (4, 0), (1 << 20, 2), (2.0,), (True,)])
def test_shapes_that_are_no_blocks(shape: tuple[Any, ...]) -> None:
    assert _utils.validate_block_shape((4, 8)) == 32
    with pytest.raises(FuserError):
        _utils.validate_block_shape(shape)


# profiling ----------------------------------------------------------------------------------------


def test_scopes_are_for_nobody() -> None:
    profiler = importlib.import_module("fuser.triton.profiler")

    @profiler.scope("a function")
    def function(x: int) -> int:
        with profiler.scope("a part", {"flops": 3}):
            return x + 1

    profiler.enter_scope("x")
    assert function(2) == 3
    profiler.exit_scope("x")
    profiler.finalize()


# microscaling -------------------------------------------------------------------------------------


def test_numbers_of_4_bits() -> None:
    torch = pytest.importorskip("torch")
    import ml_dtypes

    mxfp = importlib.import_module("fuser.triton.tools.mxfp")
    rng = np.random.default_rng(2)
    x = np.concatenate([
        np.linspace(-7, 7, 113), rng.standard_normal(500) * 3, [0.25, 0.75, 1.25, 2.5, 3.5, 5, -5],
        [0.0, -0.0, 1e30, -1e30, np.inf, -np.inf, np.nan],
    ]).astype(np.float32)  # fmt: skip
    made = mxfp.MXFP4Tensor(torch.from_numpy(x))
    want = np.clip(np.nan_to_num(x, nan=6.0), -6, 6).astype(ml_dtypes.float4_e2m1fn)
    np.testing.assert_array_equal(made.to(torch.float32).numpy(), want.astype(np.float32))
    np.testing.assert_array_equal(np.signbit(made.to(torch.float32).numpy()), np.signbit(x))
    drawn = mxfp.MXFP4Tensor(size=(64, 33)).random()
    assert set(drawn.data.unique().tolist()) == set(range(16))
    for dim in (0, 1):
        packed = drawn.to_packed_tensor(dim)
        assert packed.shape[dim] == (drawn.data.shape[dim] + 1) // 2
        back = drawn.unpack_packed_tensor(packed, dim, drawn.data.shape)
        assert torch.equal(back, drawn.data)
    first = mxfp.MXFP4Tensor(torch.tensor([1.0, 6.0])).to_packed_tensor(0)
    assert first.tolist() == [0x72]


def test_scales_of_8_bits() -> None:
    torch = pytest.importorskip("torch")
    mxfp = importlib.import_module("fuser.triton.tools.mxfp")
    x = torch.tensor([1.0, 1.99, 2.0, 0.75, 2.0**-127, 2.0**-140, 3e38, 0.0, -1.0, torch.inf,
                      torch.nan])  # fmt: skip
    made = mxfp.MXScaleTensor(x)
    assert made.data.tolist() == [127, 127, 128, 126, 0, 0, 254, 255, 255, 255, 255]
    found = made.to(torch.float32)
    assert found[:5].tolist() == [1, 1, 2, 0.5, 2.0**-127]
    assert bool(found[7:].isnan().all())
    codes = torch.arange(255, dtype=torch.uint8)
    exact = torch.ldexp(torch.ones(255, dtype=torch.float64), torch.arange(255) - 127)
    assert torch.equal(mxfp.fp8e8m0_to_float32(codes).double(), exact)
    drawn = mxfp.MXScaleTensor(size=(1000,)).random(0.5, 4.0)
    assert set(drawn.data.unique().tolist()) == {126, 127, 128, 129}


@pytest.mark.parametrize("name", ["MXFP4Tensor", "MXScaleTensor"])
def test_what_is_no_data(name: str) -> None:
    torch = pytest.importorskip("torch")
    kind = getattr(importlib.import_module("fuser.triton.tools.mxfp"), name)
    for wrong in ({}, {"data": [1.0]}):
        with pytest.raises(UsageError):
            kind(**wrong)
    with pytest.raises(UsageError, match="float32"):
        kind(size=4).random().to(torch.float16)


# rows in groups -----------------------------------------------------------------------------------

ragged = importlib.import_module("fuser.triton.tools.ragged_tma")


@triton.jit
def moved(source, target, starts, sizes, ROWS: tl.constexpr, ADD: tl.constexpr):
    group = tl.program_id(0)
    start, size = tl.load(starts + group), tl.load(sizes + group)
    for row in range(0, 2 * ROWS, ROWS):
        tile = ragged.load_ragged(source, start, size, [row, 0])
        if ADD:
            ragged.atomic_add_ragged(target, start, size, [row, 0], tile)
        else:
            ragged.store_ragged(target, start, size, [row, 0], tile + 1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("sizes", [[3, 8, 5], [16, 0, 1], [1, 1, 1], [9, 10, 4], [0, 0, 16]])
def test_groups_of_rows(sizes: list[int], add: bool, device: str) -> None:
    if device == "cuda":
        torch = pytest.importorskip("torch")
        make = lambda x: torch.from_numpy(x).cuda()  # noqa: E731
    else:
        make = lambda x: x  # noqa: E731
    starts = np.array([2, 2 + sizes[0] + 1, 2 + sizes[0] + sizes[1] + 3], np.int32)
    rows = int(starts[2] + sizes[2] + 4)
    x = np.random.default_rng(0).integers(1, 9, (rows, 16)).astype(np.float32)
    source, target = make(x), make(np.full_like(x, -7))
    arguments = [ragged.create_ragged_descriptor(item, [8, 16]) for item in (source, target)]
    moved[(3,)](*arguments, make(starts), make(np.array(sizes, np.int32)), ROWS=8, ADD=add)
    want = np.full_like(x, -7)
    for start, size in zip(starts, sizes, strict=True):
        part = slice(start, start + min(size, 16))
        want[part] = x[part] - 7 if add else x[part] + 1
    found = target if device == "cpu" else target.cpu().numpy()
    np.testing.assert_array_equal(found, want)


def test_what_is_beyond_a_group_is_padding() -> None:
    @triton.jit
    def kernel(source, out, DIM: tl.constexpr):
        tile = ragged.load_ragged(source, 2, 3, [0, 1, 0], DIM)
        at = tl.reshape(tl.arange(0, 64), (2, 2, 16))
        tl.store(out + at, tile)

    x = np.random.default_rng(1).standard_normal((6, 5, 16)).astype(np.float32)
    desc = ragged.create_ragged_descriptor(x, [2, 2, 16], 1)
    out = np.ones((2, 2, 16), np.float32)
    launch(kernel, "cpu", desc, out, DIM=1)
    np.testing.assert_array_equal(out, x[:2, 3:5])
    desc.padding = "nan"
    launch(kernel, "cpu", desc, out, DIM=0)
    np.testing.assert_array_equal(out, x[2:4, 1:3])


@pytest.mark.parametrize(
    ("shape", "dim"), [((4, 8), 1), ((4, 8), -1), ((4, 8), 2), ((4,), 0), ((2, 2, 2, 8), 0)]
)
def test_dims_that_are_not_ragged(shape: tuple[int, ...], dim: int) -> None:
    with pytest.raises(UsageError, match="ragged"):
        ragged.create_ragged_descriptor(np.zeros(shape, np.float32), [2] * len(shape), dim)


def test_what_is_no_descriptor() -> None:
    @triton.jit
    def kernel(x):
        ragged.load_ragged(x, 0, 4, [0, 0])

    with pytest.raises(LanguageError, match="no tensor descriptor"):
        kernel[(1,)](np.zeros((4, 4), np.float32))


# kernels ------------------------------------------------------------------------------------------


def test_waits_of_launches_do_nothing() -> None:
    gdc = importlib.import_module("fuser.triton.language.extra.cuda.gdc")

    @triton.jit
    def kernel(x):
        gdc.gdc_wait()
        tl.store(x, 3.0)
        gdc.gdc_launch_dependents()

    x = np.zeros(1, np.float32)
    kernel[(1,)](x)
    assert x[0] == 3


def test_events_of_a_cpu_tell_the_time() -> None:
    """As packages measure that ask the driver for events, as on a GPU."""
    pytest.importorskip("torch")
    interface = Driver("cpu").get_device_interface()
    start, end = interface.Event(enable_timing=True), interface.Event(enable_timing=True)
    with pytest.raises(UsageError, match="not recorded"):
        start.elapsed_time(end)
    start.record()
    end.record()
    end.synchronize()
    assert end.query() and start.elapsed_time(end) >= 0 >= end.elapsed_time(start)
    assert interface.is_available() and interface.synchronize() is None
