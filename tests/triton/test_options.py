"""Options of a launch: what each changes, in the code for GPUs and in results."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import fuser
import fuser.language as fl
import fuser.triton as triton
import fuser.triton.language as tl
from fuser.backend.nvptx import lower_to_gpu
from fuser.backend.nvptx.ir.verify import verify
from fuser.backend.nvptx.simulate import simulate
from fuser.backend.nvptx.simulate.protocol import verify_protocol
from fuser.base.target import SM_80, SM_90A
from fuser.dtypes import f32
from fuser.errors import DeviceAssertionError
from fuser.graph.sizes import Sizes
from fuser.language import variants
from fuser.language.arguments import classify
from tests.language.launching import DEVICES, launch
from tests.numerics import assert_close


def ptx_of(kernel: Any, target: Any, grid: Sequence[int], *args: Any, **named: Any) -> str:
    """The PTX of a launch."""
    bound, options = kernel.bind(args, dict(named))
    found = classify(bound, kernel.constexprs, kernel.plain, kernel.annotated)
    code = variants.code_for(kernel, found, grid, options, target).compiled.code
    return code.decode() if isinstance(code, bytes) else code


@triton.jit
def softmax(x, out, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    row = tl.load(x + at)
    e = tl.exp(row - tl.max(row, 0))
    tl.store(out + at, e / tl.sum(e, 0))


@triton.jit
def product(x, y, out, N: tl.constexpr):
    at = tl.arange(0, N)
    square = at[:, None] * N + at[None, :]
    tl.store(out + square, tl.dot(tl.load(x + square), tl.load(y + square)))


ROWS = np.zeros((64, 4096), np.float32), np.zeros((64, 4096), np.float32)
SQUARES = tuple(np.zeros((64, 64), np.float16) for _ in range(3))
CASES = [(softmax, ROWS, 4096), (product, SQUARES, 64)]


@pytest.mark.parametrize("target", [SM_80, SM_90A], ids=lambda target: target.arch)
@pytest.mark.parametrize(("kernel", "arrays", "n"), CASES)
def test_maxnreg_bounds_registers(kernel: Any, arrays: Any, n: int, target: Any) -> None:
    plain = ptx_of(kernel, target, (64,), *arrays, N=n)
    bounded = ptx_of(kernel, target, (64,), *arrays, N=n, maxnreg=96)
    assert ".maxnreg" not in plain
    if "setmaxnreg" not in plain:
        assert re.search(r"\.maxnreg 96\b", bounded) and ".minnctapersm" not in bounded
    else:
        assert bounded == plain


@pytest.mark.parametrize(("kernel", "arrays", "n"), CASES)
def test_launch_pdl_waits_for_the_kernel_before(kernel: Any, arrays: Any, n: int) -> None:
    plain = ptx_of(kernel, SM_90A, (64,), *arrays, N=n)
    early = ptx_of(kernel, SM_90A, (64,), *arrays, N=n, launch_pdl=True)
    old = ptx_of(kernel, SM_80, (64,), *arrays, N=n, launch_pdl=True)
    assert "griddepcontrol" not in plain and "griddepcontrol" not in old
    body = early[early.index(".entry") :]
    waits = body.index("griddepcontrol.wait")
    memory = re.search(r"\b(ld|st|cp\.async\S*|red|atom)\.(global|bulk)", body)
    assert memory is not None and waits < memory.start()


@pytest.mark.parametrize("ctas", [1, 2, 4])
def test_num_ctas_share_a_row(ctas: int) -> None:
    bound, options = softmax.bind(ROWS, {"N": 4096, "num_ctas": ctas})
    found = classify(bound, softmax.constexprs, softmax.plain, softmax.annotated)
    code = variants.code_for(softmax, found, (64,), options, SM_90A).compiled
    assert code.cluster == ctas
    assert (".cluster" in code.code.decode() or "mapa" in code.code.decode()) == (ctas > 1)
    old = variants.code_for(softmax, found, (64,), options, SM_80).compiled
    assert old.cluster == 1


@pytest.mark.parametrize(
    "given", [{"num_ctas": 2}, {"num_ctas": 4}, {"num_ctas": 8, "num_warps": 2},
              {"launch_pdl": True}, {"launch_pdl": True, "num_ctas": 2, "maxnreg": 64}], ids=str
)  # fmt: skip
@pytest.mark.parametrize("n", [1024])
def test_results_of_the_simulator(n: int, given: dict[str, Any], rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, n)).astype(np.float32)
    out = np.full_like(x, np.nan)
    bound, options = softmax.bind((x, out), {"N": n, **given})
    found = classify(bound, softmax.constexprs, softmax.plain, softmax.annotated)
    code = variants.code_for(softmax, found, (3,), options, SM_90A)
    with Sizes(code.examples):
        program = lower_to_gpu(code.program.kernel, SM_90A)
        verify(program)
        verify_protocol(program)
        simulate(program, {"x": x.reshape(-1), "out": out.reshape(-1)}, seed=3, late=True)
    e = np.exp(x.astype(float) - x.max(1, keepdims=True))
    assert_close(out, e / e.sum(1, keepdims=True), f32, n)


@pytest.mark.parametrize(
    "given", [{"maxnreg": 64}, {"launch_pdl": True}, {"num_ctas": 2}, {"enable_fp_fusion": True}]
)
@pytest.mark.parametrize("device", DEVICES)
def test_results_are_the_same(given: dict[str, Any], device: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((8, 2048)).astype(np.float32)
    out, want = np.zeros_like(x), np.zeros_like(x)
    launch(softmax, device, x, want, grid=(8,), N=2048)
    for _ in range(3):
        launch(softmax, device, x, out, grid=(8,), N=2048, **given)
        np.testing.assert_allclose(out, want, rtol=1e-5)


# overflow -----------------------------------------------------------------------------------------

OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
}  # fmt: skip


@triton.jit
def operated(x, y, out, OP: tl.constexpr, NAMED: tl.constexpr, CHECK: tl.constexpr):
    at = tl.arange(0, 4)
    a, b = tl.load(x + at), tl.load(y + at)
    if NAMED:
        if OP == "+":
            found = tl.add(a, b, sanitize_overflow=CHECK)
        elif OP == "-":
            found = tl.sub(a, b, sanitize_overflow=CHECK)
        else:
            found = tl.mul(a, b, sanitize_overflow=CHECK)
    elif OP == "+":
        found = a + b
    elif OP == "-":
        found = a - b
    else:
        found = a * b
    tl.store(out + at, found)


KINDS = ["int8", "int16", "int32", "uint8", "uint16", "uint32"]


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("op", OPERATIONS)
def test_overflow_is_an_error_of_a_debug_launch(op: str, dtype: str) -> None:
    ends = np.iinfo(dtype)
    pairs = {
        "+": [(ends.max, 0, True), (ends.max, 1, False), (ends.min, ends.min, ends.min == 0)],
        "-": [(ends.min, 0, True), (ends.min, 1, False), (0, ends.max, ends.min < 0)],
        "*": [(ends.max, 1, True), (ends.max, 2, False), (ends.max, ends.max, False)],
    }[op]
    for first, second, fits in pairs:
        x, y = np.zeros(4, dtype), np.zeros(4, dtype)
        x[2], y[2] = first, second
        with np.errstate(over="ignore"):
            want = OPERATIONS[op](x, y)
        out = np.zeros(4, dtype)
        for given in ({}, {"debug": True, "sanitize_overflow": False}):
            operated[(1,)](x, y, out, op, False, True, **given)
            np.testing.assert_array_equal(out, want)
        for named, check in ((False, True), (True, True), (True, False)):
            out[:] = 0
            if fits or not check:
                operated[(1,)](x, y, out, op, named, check, debug=True)
                np.testing.assert_array_equal(out, want)
            else:
                with pytest.raises(DeviceAssertionError, match="overflow detected") as caught:
                    operated[(1,)](x, y, out, op, named, check, debug=True)
                assert f"found = {'tl.' if named else 'a ' + op}" in str(caught.value)


@triton.jit
def single(x, y, out, OP: tl.constexpr):
    if OP == "+":
        tl.store(out, tl.load(x) + tl.load(y))
    elif OP == "-":
        tl.store(out, tl.load(x) - tl.load(y))
    elif OP == "*":
        tl.store(out, tl.load(x) * tl.load(y))
    elif OP == "twice":
        a = tl.load(x)
        tl.store(out, a + a)
    elif OP == "constant":
        tl.store(out, tl.load(x) * 3)
    elif OP == "after":
        tl.store(out, tl.load(x) * tl.load(y) // 2 + tl.load(x))
    else:
        total = tl.load(x)
        for _ in range(4):
            total += tl.load(y)
        tl.store(out, total)


@pytest.mark.parametrize(
    ("op", "first", "second", "fits"),
    [("+", -(2**31), -1, False), ("+", 2**31 - 1, 1, False), ("+", -(2**31), 2, True),
     ("-", -(2**31), 1, False), ("-", 2**31 - 1, 1, True), ("*", 2**30, 4, False),
     ("*", -(2**30), 2, True), ("*", -(2**30), -2, False), ("twice", 2**30, 0, False),
     ("twice", -(2**30), 0, True), ("constant", 2**30, 0, False), ("constant", 2**29, 0, True),
     ("after", 2**20, 2**11, False), ("after", 3, 4, True), ("loop", 2**30, 2**28, False),
     ("loop", 2**30, 2**27, True)],
)  # fmt: skip
def test_single_numbers_overflow_too(op: str, first: int, second: int, fits: bool) -> None:
    x, y, out = (np.array([item], np.int32) for item in (first, second, 0))
    if fits:
        single[(1,)](x, y, out, op, debug=True)
    else:
        single[(1,)](x, y, out, op)  # wraps
        with pytest.raises(RuntimeError, match="device-side assert"):
            single[(1,)](x, y, out, op, debug=True)
        with pytest.raises(DeviceAssertionError, match="int32 overflow detected"):
            single[(1,)](x, y, out, op, debug=True)


@triton.jit
def places(x, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    rows = at // 4
    total = tl.sum(tl.load(x + at, at < n, 0) + rows * 0, 0)
    for k in range(0, n, B):
        total += k - k
    tl.atomic_add(out, total)


def test_addresses_need_no_check() -> None:
    arrays = np.zeros(64, np.int32), np.zeros(1, np.int32)
    assert places.bind((*arrays, 60), {"B": 16, "debug": True})[1].overflow
    x, out = np.arange(64, dtype=np.int32), np.zeros(1, np.int32)
    made = places[(4,)](x, out, 60, B=16, debug=True)
    assert out[0] == x[:60].sum()
    assert len(made.variant.program.reports.asserts) <= 3


@fuser.kernel
def wrapping(x, out):
    at = fl.arange(0, 4)
    fl.store(out + at, fl.load(x + at) * 65599 + 1)


def test_the_other_spelling_asks_for_it() -> None:
    x, out = np.array([1 << 20, 1, 2, 3], np.int32), np.zeros(4, np.int32)
    wrapping[(1,)](x, out, debug=True)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(out, x * np.int32(65599) + np.int32(1))
    with pytest.raises(DeviceAssertionError, match=r"int32 overflow detected for operation \*"):
        wrapping[(1,)](x, out, debug=True, sanitize_overflow=True)


@pytest.mark.parametrize(
    "option",
    [{"num_warps": 2}, {"num_stages": 5}, {"enable_fp_fusion": False}, {"num_ctas": 2},
     {"maxnreg": 64}, {"launch_pdl": True}, {"debug": True}],
    ids=str,
)  # fmt: skip
def test_options_are_told_of_a_compile(option: dict[str, Any]) -> None:
    """In the metadata, and to hooks what Triton tells them."""
    told: list[dict[str, Any]] = []
    kernel = triton.jit(places.fn)
    x, out = np.arange(60, dtype=np.int32), np.zeros(60, np.int32)
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.jit_post_compile_hook = lambda **given: told.append(given["compile"])
        kernel[(4,)](x, out, 60, B=16)
        made = kernel[(4,)](x, out, 60, B=16, **option)
    ((name, value),) = option.items()
    assert getattr(made.metadata, name) == value and len(told) == 2
    if name in ("num_warps", "num_stages", "num_ctas", "enable_fp_fusion"):
        assert told[1][name] == value != told[0][name]


@triton.jit
def failing(out):
    tl.device_assert(tl.load(out) == 1, "no 1")


@pytest.mark.parametrize("decorated", [True, False, None])
@pytest.mark.parametrize("asked", [True, False, None])
@pytest.mark.parametrize("everywhere", [True, False])
def test_debug_of_a_launch_goes_before_that_of_the_kernel(
    decorated: bool | None, asked: bool | None, everywhere: bool
) -> None:
    kernel = triton.jit(failing.fn, debug=decorated)
    named = {} if asked is None else {"debug": asked}
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.debug = everywhere
        if everywhere or (decorated if asked is None else asked):
            with pytest.raises(DeviceAssertionError, match="no 1"):
                kernel[(1,)](np.zeros(1, np.int32), **named)
        else:
            kernel[(1,)](np.zeros(1, np.int32), **named)
