"""Launches in Triton's spelling: grids, keywords, hooks, what they give back."""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import fuser
import fuser.triton as triton
import fuser.triton.language as tl
from fuser.base import recording
from fuser.errors import LanguageError, UsageError
from fuser.triton.compiled import NoStageError


@triton.jit
def scale(x, out, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, inside) * factor, inside)


def arrays(n: int) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(n, dtype=np.float32), np.zeros(n, np.float32)


def test_a_grid_of_the_bound_arguments() -> None:
    x, out = arrays(100)
    seen: list[dict[str, Any]] = []

    def grid(meta: dict[str, Any]) -> tuple[int]:
        seen.append(dict(meta))
        return (triton.cdiv(meta["n"], meta["BLOCK"]),)

    made = scale[grid](x, out, 100, 2.0, BLOCK=32, num_warps=8)
    np.testing.assert_array_equal(out, 2 * x)
    assert seen[0]["BLOCK"] == 32 and seen[0]["n"] == 100
    assert made.metadata.num_warps == 8 and made.metadata.name == "scale"
    assert made.n_regs == made.n_spills == 0 and "kernel @scale" in made.asm["tile"]


def test_a_compiled_kernel_is_launched_again() -> None:
    x, out = arrays(64)
    made = scale[(2,)](x, np.zeros_like(x), 64, 3.0, BLOCK=32)
    made[(2,)](x, out, 64, 3.0, 32)
    np.testing.assert_array_equal(out, 3 * x)


def test_warmup_compiles_only() -> None:
    x, out = arrays(64)
    made = scale.warmup(x, out, 64, 3.0, BLOCK=32, grid=(1,))
    assert not out.any() and made.asm["tile"]
    with pytest.raises(NoStageError, match="ttgir"):
        made.asm["ttgir"]


def test_types_stand_for_arrays_in_warmup() -> None:
    mock = triton.MockTensor(tl.float32)
    assert scale.warmup(mock, mock, 64, 3.0, BLOCK=32, grid=(1,)).asm["tile"]


def test_unknown_keywords_raise() -> None:
    x, out = arrays(64)
    with pytest.raises(KeyError, match="BLOK"):
        scale[(2,)](x, out, 64, 3.0, BLOCK=32, BLOK=1)
    with pytest.raises(UsageError, match="missing"):
        scale[(2,)](x, out, 64, BLOCK=32)


def test_an_empty_grid_launches_nothing() -> None:
    x, out = arrays(64)
    scale[(0,)](x, out, 64, 3.0, BLOCK=32)
    assert not out.any()


def test_hooks_before_runs_and_around_launches() -> None:
    x, out = arrays(64)

    def told(grid: Any, metadata: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"grid": grid, "n": arguments["n"]}

    kernel = triton.jit(scale.fn, launch_metadata=told)
    events: list[Any] = []
    kernel.add_pre_run_hook(lambda *args, **named: events.append(("before", args[2])))
    enter = lambda metadata: events.append(("enter", metadata.get()["n"]))  # noqa: E731
    leave = lambda metadata: events.append(("leave", metadata.get()["grid"]))  # noqa: E731
    triton.knobs.runtime.launch_enter_hook.add(enter)
    triton.knobs.runtime.launch_exit_hook.add(leave)
    try:
        kernel[(2,)](x, out, 64, 3.0, BLOCK=32)
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(enter)
        triton.knobs.runtime.launch_exit_hook.remove(leave)
    assert events == [("before", 64), ("enter", 64), ("leave", (2,))]


def test_hooks_of_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    x, out = arrays(64)
    kernel, compiles = triton.jit(scale.fn), []
    monkeypatch.setattr(
        triton.knobs.runtime, "jit_cache_hook", lambda **told: compiles.append(told)
    )
    for n in (64, 64, 48):
        kernel[(2,)](x, out, n, 3.0, BLOCK=32)
    assert len(compiles) == 1 and compiles[0]["fn"].jit_function is kernel
    kernel[(2,)](x, out, 63, 3.0, BLOCK=32)  # no multiple of 16
    assert len(compiles) == 2


def test_parameters_as_triton_describes_them() -> None:
    assert scale.arg_names == ["x", "out", "n", "factor", "BLOCK"]
    assert [param.is_constexpr for param in scale.params] == [False] * 4 + [True]
    assert scale.src.startswith("def scale(")
    assert scale.fn.__name__ == "scale" and "scale" in repr(scale)


def test_cache_keys_follow_the_source() -> None:
    kernel = triton.jit(scale.fn)
    before = kernel.cache_key
    kernel._unsafe_update_src(kernel.src.replace("* factor", "+ factor"))
    assert kernel.cache_key != before
    x, out = arrays(64)
    kernel[(2,)](x, out, 64, 3.0, BLOCK=32)
    np.testing.assert_array_equal(out, x + 3)


def test_arrays_read_as_another_type() -> None:
    torch = pytest.importorskip("torch")
    x = torch.tensor([-1, 2, 3, 4], dtype=torch.int32)
    out = torch.zeros(4, dtype=torch.int64)

    @triton.jit
    def widen(x, out):
        at = tl.arange(0, 4)
        tl.store(out + at, tl.load(x + at).to(tl.int64))

    widen[(1,)](triton.reinterpret(x, tl.uint32), out)
    assert out.tolist() == [2**32 - 1, 2, 3, 4]
    again = triton.reinterpret(triton.reinterpret(x, tl.uint32), torch.int32)
    assert again is x
    with pytest.raises(UsageError, match="as many bytes"):
        widen[(1,)](triton.reinterpret(x, tl.uint8), out)


def test_errors_are_compilation_errors() -> None:
    @triton.jit
    def wrong(x):
        tl.store(x, undefined_name)  # noqa: F821

    with pytest.raises(triton.CompilationError, match="undefined_name") as caught:
        wrong[(1,)](np.zeros(1, np.float32))
    assert isinstance(caught.value, LanguageError) and isinstance(caught.value, triton.TritonError)
    assert "test_launch.py:" in str(caught.value) and "^^^" in str(caught.value)


def test_a_kernel_compiled_from_types() -> None:
    source = triton.compiler.ASTSource(
        scale, {"x": "*fp32", "out": "*fp32", "n": "i32", "factor": "fp32"}, {"BLOCK": 64}
    )
    made = triton.compile(source, options={"num_warps": 2})
    assert made.metadata.num_warps == 2 and "kernel @scale" in made.asm["tile"]
    assert made.src.fn is scale and made.src.constants == {"BLOCK": 64}


SIGNATURE = {"x": "*fp32", "out": "*fp32", "n": "i32", "factor": "fp32", "BLOCK": "constexpr"}


def test_a_compiled_kernel_is_launched_as_by_triton() -> None:
    """Its `run` is told the grid, the stream and what the launch is told of the kernel; constants
    are those that it was compiled with. What was compiled for many programs serves the launch."""
    compiles: list[dict[str, Any]] = []
    kernel = triton.jit(scale.fn)
    attrs = {(0,): [["tt.divisibility", 16]], (2,): [["tt.divisibility", 16]]}
    source = triton.compiler.ASTSource(kernel, SIGNATURE, {"BLOCK": 32}, attrs)
    made = triton.compile(source, options={"num_warps": 2, "enable_fp_fusion": False})
    x, out = arrays(64)
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.jit_cache_hook = lambda **told: compiles.append(told)
        about = (0, made.function, made.packed_metadata, None, None, None)
        made.run(2, 1, 1, *about, x, out, 64, 3.0, None)
        np.testing.assert_array_equal(out, x * 3)
        out[:] = 0
        made[2,](x, out, 64, 5.0, 32)
        np.testing.assert_array_equal(out, x * 5)
        made[2,](x, out, 64, 6.0)
    np.testing.assert_array_equal(out, x * 6)
    assert not compiles


def test_what_a_launch_was_compiled_from() -> None:
    x, out = arrays(64)
    made = triton.jit(scale.fn)[(2,)](x, out, 64, 3.0, BLOCK=32)
    assert made.src.signature == SIGNATURE and made.src.constants == {"BLOCK": 32}
    assert made.src.fn.arg_names == scale.arg_names
    out[:] = 0
    made[2, 1, 1](x, out, 64, 4.0)
    np.testing.assert_array_equal(out, x * 4)


def test_constexpr_functions_run_while_compiling() -> None:
    @triton.constexpr_function
    def twice(n: int) -> int:
        return 2 * n

    @triton.jit
    def kernel(out, N: tl.constexpr):
        at = tl.arange(0, twice(N))
        tl.store(out + at, at)

    out = np.zeros(16, np.int32)
    kernel[(1,)](out, 4)
    assert out.tolist() == [*range(8), *[0] * 8]
    assert twice(tl.constexpr(4)) == 8


def test_constexpr_and_do_not_specialize_exclude_each_other() -> None:
    kernel = triton.jit(scale.fn, do_not_specialize=["BLOCK"])
    with pytest.raises(triton.CompilationError, match="BLOCK marked as constexpr"):
        kernel[(1,)](*arrays(4), 4, 1.0, BLOCK=4)


@tl.constexpr
def twice_as_wide(n: int) -> int:
    return 2 * n


@triton.jit
def wide(out, N: tl.constexpr):
    at = tl.arange(0, twice_as_wide(N))
    tl.store(out + at, at)


def test_a_function_that_is_a_constant_is_called_while_compiling() -> None:
    out = np.zeros(20, np.int32)
    wide[(1,)](out, N=8)
    assert out.tolist() == [*range(16), 0, 0, 0, 0]
    assert twice_as_wide(tl.constexpr(8)) == 16


@triton.jit
def least(kind: tl.constexpr):
    held = kind.value  # of a constexpr: what it is
    return tl.full((), -1 if held.is_int() else 2, held)


@triton.jit
def leasts(out, KIND: tl.constexpr):
    tl.store(out, least(KIND))


def test_a_constexpr_has_a_value_and_a_kernel_the_names_of_its_function() -> None:
    out = np.zeros(1, np.int16)
    leasts[(1,)](out, KIND=tl.int16)
    assert out[0] == -1
    assert leasts.__globals__ is leasts.fn.__globals__
    assert (leasts.__name__, leasts.__qualname__) == ("leasts", "leasts")
    assert leasts.__doc__ == leasts.fn.__doc__ and leasts.__module__ == __name__


@triton.jit
def wide_number(VALUE, out):
    tl.store(out, VALUE.to(tl.float64))


@pytest.mark.parametrize("value", [2**64 - 1, 2**63, 2**63 - 1, -(2**63)])
def test_integers_of_64_bits(value: int) -> None:
    out = np.zeros(1)
    for _ in range(3):  # the second and third time as natively as can be
        wide_number[(1,)](value, out)
        assert out[0] == float(value)


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1])
def test_integers_of_more_bits(value: int) -> None:
    with pytest.raises(OverflowError, match="64 bits"):
        wide_number[(1,)](value, np.zeros(1))


@triton.jit
def sums_of_bits(out, N: tl.constexpr):
    bits = tl.full((N,), 1, dtype=tl.int1)
    at = out[None, :]  # all of a scalar, and an axis
    tl.store(at + tl.arange(0, 1), tl.sum(bits).expand_dims(0))
    tl.store(out + 1, tl.sum(bits, dtype=tl.int1).to(tl.int32))


@pytest.mark.parametrize("n", [32, 1])
def test_sums_of_bits(n: int) -> None:
    out = np.full(2, -1, np.int32)
    sums_of_bits[(1,)](out, N=n)
    assert out.tolist() == [n, n % 2]


@triton.must_use_result("It has no other effect.")
@triton.jit
def cube(x):
    return x * x * x


@triton.aggregate
class Square:
    x: tl.tensor

    def __init__(self, x):
        self.x = x

    @triton.must_use_result
    @triton.jit
    def power(self):
        return self.x * self.x

    @triton.must_use_result
    @triton.constexpr_function
    def order(self):
        return 2


@triton.jit
def statement(out):
    x = tl.load(out)
    s = Square(x)  # noqa: F841
    EXPRESSION  # noqa: B018, F821
    tl.store(out, x)


@pytest.mark.parametrize("text", ["cube(x)", "s.power()", "s.order()"])
def test_results_that_must_be_used(text: str) -> None:
    kernel = triton.jit(statement.fn)
    kernel._unsafe_update_src(statement.src.replace("EXPRESSION  #", f"{text}  #"))
    with pytest.raises(triton.CompilationError) as caught:
        kernel[(1,)](np.ones(1, np.float32))
    assert f"The result of {text.partition('(')[0]} is not being used" in str(caught.value)
    assert ("It has no other effect." in str(caught.value)) == (text == "cube(x)")
    kernel._unsafe_update_src(statement.src.replace("EXPRESSION  #", f"x += {text}  #"))
    out = np.full(1, 3, np.float32)
    kernel[(1,)](out)
    assert out[0] == 3 + {"cube(x)": 27, "s.power()": 9, "s.order()": 2}[text]


@triton.jit
def private(out, N: tl.constexpr):
    steps: tl.constexpr = tl.standard._log2(N)
    for i in tl.static_range(steps):
        tl.store(out + i, tl.core._unwrap_if_constexpr(N) >> i)
    tl.store(out + steps, tl.standard._is_power_of_two(N))


@pytest.mark.parametrize("n", [1, 2, 12, 32])
def test_private_names_that_packages_use(n: int) -> None:
    """Of Triton's modules, functions whose names begin with `_`."""
    steps = n.bit_length() - 1
    out = np.full(steps + 1, -1, np.int32)
    private[(1,)](out, n)
    assert out.tolist() == [*(n >> i for i in range(steps)), n & (n - 1) == 0]


@triton.jit
def typed(out, strides, NAME: tl.constexpr, FLAG: tl.constexpr = None):
    known = tl.constexpr_type
    tl.static_assert(isinstance(strides[1].type, known) and not isinstance(strides[0].type, known))
    tl.static_assert(isinstance(NAME.type, known) and isinstance(FLAG.type, known))
    tl.static_assert(NAME.type == known("a") and FLAG.type != known(0))
    tl.static_assert((3, "a").type == known((3, "a")))
    tl.store(out, strides[0] + strides[1])


def test_what_is_known_has_a_type() -> None:
    """A constexpr, and an element of a tuple that is compiled in."""
    out = np.zeros(1, np.int32)
    typed[(1,)](out, (4, 1), "a")
    assert out[0] == 5


@triton.jit
def offset(x):
    return x + 1


@triton.jit
def through(x):
    return offset(x)


@triton.jit
def calling(out, FUNCTION: tl.constexpr):
    tl.store(out, FUNCTION(tl.load(out)))


@pytest.mark.parametrize("called", [offset, through], ids=["called", "called by what is called"])
def test_other_text_of_a_function_reaches_its_callers(called: Any) -> None:
    kernel, out = triton.jit(calling.fn), np.zeros(1, np.int32)
    text = offset.src
    for _ in range(3):  # the later ones are launched natively
        kernel[(1,)](out, called)
    try:
        offset._unsafe_update_src(text.replace("+ 1", "+ 10"))
        kernel[(1,)](out, called)
        assert out[0] == 13
    finally:
        offset._unsafe_update_src(text)
    kernel[(1,)](out, called)
    assert out[0] == 14


def test_biases_of_exponents() -> None:
    """A float is a power of 2 where its exponent is its bias and its other bits are 0."""
    names = ["fp16", "bf16", "fp32", "fp64", "fp8e5", "fp8e4nv", "fp8e4b8", "fp8e5b16", "fp8e4b15"]
    found = [tl.core.dtype(name).exponent_bias for name in names]
    assert found == [15, 127, 127, 1023, 15, 7, 8, 16, 15]


@triton.jit
def loose(out, n, B: tl.constexpr):
    whole: tl.constexpr = B * n
    tl.store(out + tl.arange(0, B), whole)


@pytest.mark.parametrize("n", [1, 5])
def test_a_constexpr_of_what_is_known_at_run_time_is_that(n: int) -> None:
    """As in Triton, where an integer is compiled in if it is 1."""
    out = np.zeros(4, np.int32)
    loose[(1,)](out, n, B=4)
    assert out.tolist() == [4 * n] * 4
    with pytest.raises(LanguageError, match="a constexpr of a value that is known at run time"):
        fuser.kernel(loose.fn)[(1,)](out, 5, B=4)


@triton.jit
def rows_of(x, out, INDEX: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, 4)
    if INDEX == 0:
        place = row[:, None] * 4 + at[None, :]
    elif INDEX == 1:
        place = row[None, :] * 4 + at[None, :]
    elif INDEX == 2:
        place = row[:, None, None] * 4 + at[None, None, :]
    elif INDEX == 3:
        place = row[:, None, :, None] * 4 + at[None, :]
    else:
        place = row[None:, None] * 4 + at[None, None:None:None]
    tl.store(out + place, tl.load(x + place) + 1)


@pytest.mark.parametrize("index", range(5))
def test_axes_added_to_a_scalar(index: int) -> None:
    """All of a scalar is itself, wherever it stands among the axes that are added."""
    x, out = np.arange(12, dtype=np.float32), np.zeros(12, np.float32)
    rows_of[(3,)](x, out, index)
    np.testing.assert_array_equal(out, x + 1)


settings = ModuleType("settings")


@triton.jit
def configured(out):
    if settings.backend is None:
        tl.store(out, settings.step)
    else:
        tl.store(out, -settings.step)


def test_constants_of_modules_are_compiled_in() -> None:
    """As in Triton, where a global of the kernel's own module must be a constexpr, and an attribute
    of another module need not be. A kernel that read one does not run with another."""
    vars(settings).update(backend=None, step=3)
    kernel, out = triton.jit(configured.fn), np.zeros(1, np.int32)
    for _ in range(3):
        kernel[(1,)](out)
        assert out[0] == 3
    vars(settings).update(step=4)
    with pytest.raises(RuntimeError, match="step has changed"):
        kernel[(1,)](out)
    triton.jit(configured.fn)[(1,)](out)
    assert out[0] == 4


def test_a_copy_of_a_kernel_is_launched_under_a_number_of_its_own() -> None:
    """By which a compiler that reads code finds it (`fuser.base.recording.LAUNCHABLE`)."""
    kernel = triton.jit(scale.fn)
    for other in (copy.copy(kernel), triton.jit(scale.fn)):
        assert other.launch_number != kernel.launch_number
        assert recording.LAUNCHABLE[other.launch_number] is other
    assert recording.LAUNCHABLE[kernel.launch_number] is kernel
