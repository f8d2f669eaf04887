"""Kernels of users (language_kernels.py): what their PTX has in it, that it assembles for any block
and any number of warps, and on a GPU that they compute what the interpreter does."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fuser.backend.module import CompiledKernel
from fuser.backend.nvptx import compile_kernel
from fuser.base.target import SM_80, SM_90A, Target
from fuser.dtypes import DType, bf16, bool_, f16, f32, f64, i8, i32, u8
from fuser.errors import LoweringError
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import axis, index
from fuser.tilegen.interpret import run
from fuser.tilegen.ir import Kernel
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.value import Value
from fuser.tilegen.verify import verify
from tests.backend.cuda_launch import Loaded, check, context, cuda, run_on_device
from tests.backend.nvptx import language_kernels as kernels

PTXAS = shutil.which("ptxas")
Dot = tuple[DType, str, str]
DOTS: dict[str, Dot] = {
    "f16": (f16, "exact", ""),
    "bf16": (bf16, "exact", ""),
    "tf32": (f32, "tf32", ""),
    "f32": (f32, "exact", ""),
    "f64": (f64, "exact", ""),
    "i8": (i8, "exact", ""),
    "f8": (u8, "exact", "f8e4m3fn"),
}
KERNELS: dict[str, Callable[[], Kernel]] = {
    "add": kernels.add,
    "add_wide": lambda: kernels.add(multiple=16),
    "add_one_warp": lambda: kernels.add(block=1, warps=1),
    "add_large": lambda: kernels.add(block=1 << 15, warps=32),
    "dropping": kernels.dropping,
    "matmul_bounded_aligned": lambda: kernels.bounded_matmul(200, 160, 136, (64, 64, 32)),
    "matmul_bounded_odd": lambda: kernels.bounded_matmul(100, 99, 77, (64, 64, 32)),
    "attention": lambda: kernels.attention(64, 64, 64),
    "attention_small": lambda: kernels.attention(16, 16, 16, warps=2),
    "attention_many_warps": lambda: kernels.attention(64, 32, 64, warps=16),
    "attention_128": lambda: kernels.attention(128, 64, 128, warps=8),
    "attention_backward": lambda: kernels.attention_backward(64, 64, 64),
    "attention_backward_small": lambda: kernels.attention_backward(16, 32, 16, warps=1),
    "attention_backward_128": lambda: kernels.attention_backward(64, 128, 128, warps=8),
    "rows_in_place": lambda: kernels.rows_in_place(1000, 256),
    "locked_sum": kernels.locked_sum,
    "handed_on": kernels.handed_on,
    **{
        f"published_{dtype}": lambda dtype=dtype: kernels.published(dtype)  # type: ignore[misc]
        for dtype in (i8, u8, f16, bf16, i32, f32, f64)
    },
    "histogram": kernels.histogram,
    "large_32": lambda: kernels.large(1 << 15, 32),
    **{
        f"matmul_{style}_{name}": lambda style=style, dot=dot: kernels.matmul(  # type: ignore[misc]
            64, 64, 32, dot[0], style=style, precision=dot[1], codes=dot[2]
        )
        for style in ("plain", "masked", "computed", "turned", "while")
        for name, dot in DOTS.items()
        if name != "f8" or style != "computed"
    },
    **{
        f"matmul_{m}_{n}_{k}_{warps}": lambda m=m, n=n, k=k, warps=warps: kernels.matmul(  # type: ignore[misc]
            m, n, k, f16, warps=warps
        )
        for m, n, k, warps in (
            (16, 16, 16, 32), (16, 128, 64, 1), (128, 16, 64, 2), (128, 256, 64, 8),
            (32, 32, 128, 16), (256, 64, 32, 4),
        )
    },
    "matmul_f32_in_slices": lambda: kernels.matmul(16, 256, 256, f32, warps=8, style="computed"),
    "matmul_f64_in_slices": lambda: kernels.matmul(128, 128, 128, f64, warps=8),
}  # fmt: skip
SCALARS = {"n": 777, "K": 96, "count": 128}


def needs_newer(name: str, target: Target) -> bool:
    return name.endswith("f8") and target.sm < 89


def assemble(compiled: CompiledKernel, target: Target, folder: Path) -> None:
    file = folder / "kernel.ptx"
    file.write_bytes(compiled.code)
    command = ["ptxas", "-O1", f"-arch={target.arch}", file, "-o", folder / "cubin"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(PTXAS is None, reason="there is no ptxas")
@pytest.mark.parametrize("target", [SM_80, SM_90A], ids=lambda target: target.arch)
@pytest.mark.parametrize("name", KERNELS)
def test_assembles(name: str, target: Target, tmp_path: Path) -> None:
    kernel = KERNELS[name]()
    verify(kernel)
    if needs_newer(name, target):
        with pytest.raises(LoweringError):
            compile_kernel(kernel, target)
        return
    assemble(compile_kernel(kernel, target), target, tmp_path)


def ptx(kernel: Kernel, target: Target = SM_90A) -> str:
    return compile_kernel(kernel, target).code.decode()


def test_vectors_are_as_wide_as_alignment_and_masks_allow() -> None:
    assert re.search(r"ld\.global(\.nc)?\.v4", ptx(kernels.add(multiple=16)))
    assert "v4" not in ptx(kernels.add(multiple=2))
    assert "v2" in ptx(kernels.add(multiple=2))
    assert not re.search(r"\.v[24]", ptx(kernels.add()))
    assert not re.search(r"\.v[24]", ptx(kernels.add(multiple=16, align=0)))
    assert "v4" not in ptx(kernels.add(multiple=16, align=8))


def test_parameters_of_callers() -> None:
    compiled = compile_kernel(kernels.add(), SM_90A)
    assert compiled.facts["scalars"] == ["n"]
    assert not compiled.pdl
    assert "griddepcontrol" not in compiled.code.decode()


def test_masked_loads_are_copied_ahead() -> None:
    compiled = compile_kernel(kernels.matmul(64, 64, 32, f16, style="masked"), SM_90A)
    text = compiled.code.decode()
    assert compiled.facts["copies"] == "cp.async" and "wgmma" in text
    assert text.count("cp.async.commit_group") > 1


def test_boxes_of_pointers_are_fetched_by_the_copy_engine() -> None:
    aligned, odd = (KERNELS[f"matmul_bounded_{name}"]() for name in ("aligned", "odd"))
    assert compile_kernel(aligned, SM_90A).facts["copies"] == "tma"
    assert compile_kernel(odd, SM_90A).facts["copies"] != "tma"
    aligned.buffers[0].align = 8
    assert compile_kernel(aligned, SM_90A).facts["copies"] != "tma"


def test_large_blocks_fall_back() -> None:
    compiled = compile_kernel(KERNELS["matmul_f32_in_slices"](), SM_90A)
    assert any("slices" in note for note in compiled.facts["fallback"])
    assert compiled.shared_bytes <= SM_90A.shared_bytes


def barriers(build: Callable[[Builder], None]) -> int:
    b = Builder("order", Schedule(warps=4))
    build(b)
    return ptx(b.build()).count("bar.sync")


def test_barriers_stand_between_threads_only() -> None:
    """None where each thread meets its own elements; one where it meets those of others."""

    def move(shift: int, alias: bool = False) -> Callable[[Builder], None]:
        def build(b: Builder) -> None:
            x = kernels.pointer(b, "x", f32, "output")
            y = kernels.pointer(b, "y", f32, "output")
            x.buffer.alias = y.buffer.alias = int(alias)
            at = axis(0, 512)
            b.store(x, (at,), b.map("add", b.load(x, (at,), (512,)), b.full(1, (512,), f32)))
            b.store(y, (at,), b.load(x, (at + shift,), (512,)))

        return build

    assert barriers(move(0)) == 0
    assert barriers(move(1)) == 1
    assert barriers(move(0, alias=True)) == 1


def test_barriers_of_loops() -> None:
    """None where no two iterations meet; else one in each."""

    def walk(step: int, shift: int, loads: bool = True) -> Callable[[Builder], None]:
        def build(b: Builder) -> None:
            x = kernels.pointer(b, "x", f32, "output")
            n = b.scalar("n", i32)

            def body(i: Value) -> list[Value]:
                at = index(i) * step + axis(0, 512)
                tile = b.full(1, (512,), f32)
                if loads:
                    tile = b.map("add", b.load(x, (at + shift,), (512,)), tile)
                b.store(x, (at,), tile)
                return []

            b.loop(0, index(n), 1, [], body)

        return build

    assert barriers(walk(512, 0)) == 0
    assert barriers(walk(512, 0, loads=False)) == 0
    assert barriers(walk(511, 0, loads=False)) == 1
    assert barriers(walk(511, 0)) == 1
    assert barriers(walk(512, 1)) == 2


def test_a_branch_does_not_hide_a_store() -> None:
    def build(b: Builder) -> None:
        x, y = (kernels.pointer(b, name, f32, "output") for name in "xy")
        flag = b.scalar("flag", bool_)
        at = axis(0, 512)

        def write() -> list[Value]:
            b.store(x, (at,), b.full(1, (512,), f32))
            return []

        b.branch(flag, write, lambda: [])
        b.store(y, (at,), b.load(x, (at + 1,), (512,)))

    assert barriers(build) == 1


def test_rows_beyond_bounds_are_zeros() -> None:
    """A caller may store them: they are fetched although there are fewer."""
    kernel = kernels.bounded_matmul(24, 160, 136, (64, 64, 32))
    boxes = [item.box for item in compile_kernel(kernel, SM_90A).tensor_maps]
    assert boxes and boxes[0][1] == 64


def test_any_number_of_warps() -> None:
    compiled = compile_kernel(kernels.matmul(64, 64, 32, f16, warps=12), SM_90A)
    assert compiled.threads == 256 and "8 of 12 warps" in compiled.facts["fallback"]
    compiled = compile_kernel(kernels.bounded_matmul(512, 160, 256, (256, 256, 32)), SM_90A)
    assert compiled.facts["copies"] == "tma"
    kernel = kernels.bounded_matmul(512, 160, 256, (256, 256, 32))
    kernel.schedule = replace(kernel.schedule, warps=32)
    assert compile_kernel(kernel, SM_90A).threads == 1024


def test_aliases_may_overlap() -> None:
    b = Builder("alias", Schedule(warps=4))
    x, y = kernels.pointer(b, "x", f32), kernels.pointer(b, "y", f32, "output")
    x.buffer.alias = y.buffer.alias = 3
    b.store(y, (axis(0, 128),), b.load(x, (axis(0, 128),), (128,)))
    text = ptx(b.build())
    assert "ld.global.nc" not in text
    x.buffer.alias = y.buffer.alias = 0


def test_atomics_are_ordered_where_somebody_looks() -> None:
    assert "red.relaxed.gpu" in ptx(kernels.histogram())
    text = ptx(kernels.locked_sum())
    assert "atom.acq_rel.gpu.global.cas.b32" in text and not re.search(r"\bred\.", text)


def test_loads_acquire_and_stores_release() -> None:
    text = ptx(kernels.published())
    assert "ld.acquire.gpu.global.b32" in text and "st.release.gpu.global.b32" in text
    assert "st.release.sys.global.b32" in text and "ld.acquire.sys" not in text
    assert not re.search(r"\b(red|atom)\.", text)


def test_what_other_programs_change_is_loaded_by_one_thread() -> None:
    text = ptx(kernels.handed_on())
    assert "ld.volatile.global" in text or "ld.relaxed" in text
    assert "fence.acq_rel.gpu" in text and "ld.shared" in text


def test_what_cannot_be_done_is_refused() -> None:
    b = Builder("bytes", Schedule(warps=4))
    x = kernels.pointer(b, "x", i8, "output")
    b.atomic("add", x, (axis(0, 128),), b.full(1, (128,), i8))
    with pytest.raises(LoweringError):
        compile_kernel(b.build(), SM_90A)


# on a GPU -----------------------------------------------------------------------------------------


def given(kernel: Kernel, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    found = {}
    for buffer in kernel.buffers:
        if buffer.name in ("lock", "counts", "total", "dq"):
            array = np.zeros(buffer.size, buffer.dtype.numpy)
        elif buffer.dtype.is_integer:
            top = 100 if buffer.dtype is i32 else 60
            array = rng.integers(0, top, buffer.size).astype(buffer.dtype.numpy)
        else:
            array = rng.uniform(-1, 1, buffer.size).astype(buffer.dtype.numpy)
        if kernel.name == "dropping" and buffer.name == "x":
            array[rng.random(array.size) < 0.3] = np.nan
            array[:64] = np.nan
        found[buffer.name] = array
    return found


@pytest.mark.cuda
def test_places_beyond_32_bits() -> None:
    if context() is None:
        pytest.skip("no NVIDIA GPU")
    compiled = compile_kernel(kernels.far(), SM_90A)
    loaded, start = Loaded(compiled), (1 << 31) + 4096
    values = np.arange(257, dtype=np.float32)
    x = int(check(cuda.cuMemAlloc((start + 512) * 4)))
    y = int(check(cuda.cuMemAlloc(512 * 4)))
    try:
        check(cuda.cuMemcpyHtoD(x + start * 4, values.ctypes.data, values.nbytes))
        loaded.launch([x, y], scalars=[start])
        found = np.empty(512, np.float32)
        check(cuda.cuMemcpyDtoH(found.ctypes.data, y, found.nbytes))
    finally:
        cuda.cuMemFree(x)
        cuda.cuMemFree(y)
    np.testing.assert_array_equal(found[:256], values[:256])
    np.testing.assert_array_equal(found[256:], values[1:])


@pytest.mark.cuda
@pytest.mark.parametrize("target", [SM_80, SM_90A], ids=lambda target: target.arch)
@pytest.mark.parametrize("name", KERNELS)
def test_results(name: str, target: Target) -> None:
    if context() is None:
        pytest.skip("no NVIDIA GPU")
    if needs_newer(name, target):
        pytest.skip("a newer GPU's instruction")
    kernel = KERNELS[name]()
    arrays, expected = given(kernel, 1), given(kernel, 1)
    scalars = {
        value.name: SCALARS[value.name] // value.multiple * value.multiple
        for value in kernel.scalars
    }
    with np.errstate(all="ignore"):
        run(kernel, expected, scalars=scalars, races=False)
    found = run_on_device(kernel, compile_kernel(kernel, target), arrays, scalars=scalars)
    # sums of 8-bit floats keep 14 bits
    narrow = any(buffer.dtype.bits == 16 for buffer in kernel.buffers) or "tf32" in name
    narrow = narrow or name.endswith("f8")
    limit = 4e-3 if narrow else 2e-5
    for buffer in kernel.buffers:
        want, have = expected[buffer.name], found[buffer.name]
        if not buffer.dtype.is_float:
            np.testing.assert_array_equal(have, want, err_msg=buffer.name)
            continue
        scale = float(np.nanmax(np.abs(want.astype(np.float64))))
        np.testing.assert_allclose(
            have.astype(np.float64), want.astype(np.float64), rtol=limit, atol=limit * scale,
            err_msg=buffer.name,
        )  # fmt: skip
