"""Atomic loads, stores and waits of kernels, in every type, with their orders and scopes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fuser
import fuser.language as fl
import fuser.triton as triton
import fuser.triton.language as tl
from fuser.base.target import SM_80, SM_90A
from fuser.errors import CheckError, FeedError, LanguageError
from fuser.language.order import depends_on_order
from fuser.language.variants import code_for
from tests.language.launching import DEVICES, launch

RNG = np.random.default_rng(7)
KINDS = [
    np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int8, np.int16, np.int32, np.int64,
    np.uint8, np.uint64, np.bool_,
]  # fmt: skip


def numbers(size: int, dtype: Any) -> Any:
    return (RNG.standard_normal(size) * 30).astype(dtype)


@triton.jit
def copied(x, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_store(out + at, tl.atomic_load(x + at, at < n), at < n + 3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("n", [40, 61])
def test_masked_loads_and_stores(n: int, dtype: Any, device: str) -> None:
    x, out = numbers(64, dtype), np.full(64, 1, dtype)
    launch(copied, device, x, out, n, B=16, grid=(4,))
    want = np.full(64, 1, dtype)
    want[:n], want[n : n + 3] = x[:n], 0
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("device", DEVICES)
def test_scalars_scattered_places_and_methods(device: str) -> None:
    @triton.jit
    def kernel(x, places, out, count):
        at = tl.load(places + tl.arange(0, 8))
        (out + at).atomic_store((x + tl.arange(0, 8)).atomic_load() * 2.0)
        tl.atomic_store(count, tl.atomic_load(count) + 1, scope="cta")

    x, out = numbers(8, np.float32), np.zeros(32, np.float32)
    places, count = np.array([3, 1, 31, 0, 8, 9, 17, 20], np.int32), np.array([41], np.int64)
    launch(kernel, device, x, places, out, count)
    want = np.zeros(32, np.float32)
    want[places] = 2 * x
    np.testing.assert_array_equal(out, want)
    assert count[0] == 42


@pytest.mark.parametrize("check", [False, True])
def test_what_is_only_looked_at_may_be_read_only(check: bool) -> None:
    x, out = numbers(16, np.float32), np.zeros(16, np.float32)
    x.flags.writeable = False
    for _ in range(2):  # the second launch may be native
        copied[(1,)](x, out, 16, B=16, check=check)
    np.testing.assert_array_equal(out, x)
    out.flags.writeable = False
    with pytest.raises(FeedError, match="out is read-only"):
        copied[(1,)](x, out, 16, B=16, check=check)


def test_a_constant_pointer_may_be_looked_at_and_not_written() -> None:
    @triton.jit
    def kernel(x: tl.const, out, BACK: tl.constexpr):
        tl.atomic_store(out, tl.atomic_load(x))
        if BACK:
            tl.atomic_store(x, 1.0)

    x, out = np.ones(1, np.float32), np.zeros(1, np.float32)
    kernel[(1,)](x, out, BACK=False)
    assert out[0] == 1
    with pytest.raises(LanguageError, match="constant pointer"):
        kernel[(1,)](x, out, BACK=True)


# waiting ------------------------------------------------------------------------------------------


@triton.jit
def handed_on(data, flags, out, B: tl.constexpr):
    """Each program waits for the one in front of it, and adds to what that has left."""
    pid = tl.program_id(0)
    at = tl.arange(0, B)
    here = tl.zeros((B,), tl.float32)
    if pid > 0:
        tl.atomic_poll(flags + pid - 1, 1)
        here = tl.load(out + (pid - 1) * B + at)
    tl.store(out + pid * B + at, here + tl.load(data + pid * B + at))
    tl.atomic_store(flags + pid, 1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64, np.uint32])
def test_what_was_stored_before_is_seen(dtype: Any, device: str) -> None:
    programs, block = 24, 64
    data = RNG.integers(-9, 9, (programs, block)).astype(np.float32)
    flags, out = np.zeros(programs, dtype), np.zeros_like(data)
    launch(handed_on, device, data, flags, out, B=block, grid=(programs,))
    np.testing.assert_array_equal(out, np.cumsum(data, 0))
    assert flags.all()


def test_programs_in_order_by_what_they_wait_for_do_not_race() -> None:
    data = np.ones((4, 16), np.float32)
    flags, out = np.zeros(4, np.int32), np.zeros_like(data)
    handed_on[(4,)](data, flags, out, B=16, check=True)
    np.testing.assert_array_equal(out, np.cumsum(data, 0))


def test_a_wait_without_an_end_is_found() -> None:
    flags, out = np.zeros(4, np.int32), np.zeros(64, np.float32)

    @triton.jit
    def kernel(flags, out):
        tl.atomic_poll(flags + 1, 1)
        tl.store(out, 1.0)

    with pytest.raises(CheckError, match="waits for ever") as caught:
        kernel[(1,)](flags, out, check=True)
    assert "tl.atomic_poll(flags + 1, 1)" in str(caught.value)


def test_a_lock_without_an_end_is_found() -> None:
    @fuser.kernel
    def kernel(lock, out):
        while fl.atomic_cas(lock, 0, 1) == 1:
            pass
        fl.store(out, 1.0)

    with pytest.raises(CheckError, match="waits for ever"):
        kernel[(1,)](np.ones(1, np.int32), np.zeros(1, np.float32), check=True)
    kernel[(1,)](np.zeros(1, np.int32), np.zeros(1, np.float32), check=True)


def test_a_plain_store_meets_an_atomic_load() -> None:
    @fuser.kernel
    def kernel(x, out):
        if fl.program_id(0) == 0:
            fl.store(x, 1)
        else:
            fl.store(out, fl.atomic_load(x))

    with pytest.raises(CheckError, match="a race"):
        kernel[(2,)](np.zeros(1, np.int32), np.zeros(1, np.int32), check=True)


def test_atomic_loads_of_programs_meet_without_a_race() -> None:
    @fuser.kernel
    def kernel(x, out):
        pid = fl.program_id(0)
        fl.store(out + pid, fl.atomic_load(x) + fl.load(x))

    x, out = np.full(1, 3, np.int32), np.zeros(4, np.int32)
    kernel[(4,)](x, out, check=True)
    assert out.tolist() == [6] * 4


@triton.jit
def looked(x, out, wanted, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(out + at, tl.atomic_poll(x + at, wanted, sem="relaxed", scope="sys", timeout_ns=0))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [1, 8, 32, 128])
def test_a_wait_of_no_time_looks_once(size: int, device: str) -> None:
    x = RNG.integers(0, 3, size).astype(np.int32)
    out = np.zeros(size, np.bool_)
    launch(looked, device, x, out, 2, B=size)
    np.testing.assert_array_equal(out, x == 2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(8,), (4, 8)])
def test_a_tile_waits_for_all_of_it(shape: tuple[int, ...], device: str) -> None:
    @triton.jit
    def kernel(x, out, ROWS: tl.constexpr, N: tl.constexpr):
        at = tl.arange(0, N)
        if ROWS > 1:
            at = tl.arange(0, ROWS)[:, None] * N + at[None, :]
        tl.store(out + at, tl.where(tl.atomic_poll(x + at, 5), 1.0, 2.0))

    x, out = np.full(shape, 5, np.int32), np.zeros(shape, np.float32)
    rows = shape[0] if len(shape) > 1 else 1
    launch(kernel, device, x, out, ROWS=rows, N=shape[-1])
    assert (out == 1).all()


# what is refused ----------------------------------------------------------------------------------

WRONG = {
    "order of a load": ("tl.atomic_load(x, sem='release')", "sem='release'"),
    "order of a store": ("tl.atomic_store(x, 1, sem='acquire')", "sem='acquire'"),
    "order of a wait": ("tl.atomic_poll(x, 1, sem='acq_rel')", "sem='acq_rel'"),
    "order of a sum": ("tl.atomic_add(x, 1, sem='seq_cst')", "sem='seq_cst'"),
    "scope": ("tl.atomic_load(x, scope='warp')", "scope='warp'"),
    "scope of an exchange": ("tl.atomic_cas(x, 1, 2, scope='block')", "scope='block'"),
    "no pointer": ("tl.atomic_load(n)", "an atomic load on int32"),
    "wait for a float": ("tl.atomic_poll(y, 1)", "an atomic poll of pointer<fp32>"),
    "wait for a byte": ("tl.atomic_poll(b, 1)", "an atomic poll of pointer<int8>"),
    "a time limit": ("tl.atomic_poll(x, 1, timeout_ns=100)", "with a time limit"),
    "wait for a tile": ("tl.atomic_poll(x, tl.arange(0, 4))", "must broadcast"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_refused(name: str, tmp_path: Path) -> None:
    from tests.language.test_errors import module_of

    call, what = WRONG[name]
    text = "import fuser.triton as triton, fuser.triton.language as tl\n"
    text += f"@triton.jit\ndef k(x, y, b, n):\n    {call}\n"
    module = module_of(tmp_path, text)
    arrays = np.zeros(4, np.int32), np.zeros(4, np.float32), np.zeros(4, np.int8)
    with pytest.raises(LanguageError) as caught:
        module.k[(1,)](*arrays, 5)
    assert what in str(caught.value)
    assert call in caught.value.excerpt


def test_what_is_looked_at_depends_on_the_order() -> None:
    x, out = np.zeros(16, np.float32), np.zeros(16, np.float32)
    assert depends_on_order(copied.warmup(x, out, 16, B=16, grid=(2,)).variant.program.kernel)


# code for GPUs ------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="there is no ptxas")
@pytest.mark.parametrize("target", [SM_80, SM_90A], ids=lambda target: target.arch)
def test_code_for_gpus(target: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fuser.language import variants

    texts: list[str] = []

    def make(function: Any, arguments: Any, grid: Any, options: Any) -> Any:
        code = code_for(function, arguments, grid, options, target).compiled.code
        texts.append(code if isinstance(code, str) else code.decode())
        return real(function, arguments, grid, options)

    real = variants.make_variant
    monkeypatch.setattr(variants, "make_variant", make)
    for kernel in (copied, looked, handed_on):
        kernel.forget()
    for dtype in KINDS:
        copied[(1,)](numbers(48, dtype), np.zeros(48, dtype), 31, B=16)
    looked[(1,)](np.zeros(32, np.int16), np.zeros(32, np.bool_), 4, B=32)
    data, flags = np.ones((2, 32), np.float32), np.zeros(2, np.int64)
    handed_on[(2,)](data, flags, np.zeros_like(data), B=32)
    assert len(texts) >= len(KINDS) + 2
    for text in texts:
        assert "ld.acquire.gpu.global" in text or "ld.acquire.sys.global" in text
        (tmp_path / "kernel.ptx").write_text(text)
        command = ["ptxas", "-O1", f"-arch={target.arch}", "kernel.ptx", "-o", "cubin"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
