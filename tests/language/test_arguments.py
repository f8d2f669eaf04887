"""Types of parameters, constants around kernels, and tuples of numbers."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

import fuser
import fuser.language as fl
import fuser.triton as triton
import fuser.triton.language as tl
import fuser.triton.tools.tensor_descriptor
from fuser.base.target import TARGETS
from fuser.errors import FeedError, LanguageError, UnsupportedDTypeError, UsageError
from fuser.language.compile import Options
from fuser.language.outside import ChangedError
from tests.language.launching import DEVICES, launch


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("dtype", "given", "stored"),
    [
        ("int8", 200, -56), ("uint8", -1, 255), ("int16", 40000, -25536), ("int32", 1, 1),
        ("uint32", -1, 2**32 - 1), ("int64", 5, 5), ("int64", 1, 1), ("int1", 3, 1),
        ("float16", 1 / 3, float(np.float16(1 / 3))), ("float64", 0.1, 0.1), ("float32", 7, 7.0),
    ],
)  # fmt: skip
def test_numbers_have_the_type_of_their_parameter(
    dtype: str, given: Any, stored: Any, device: str
) -> None:
    def kernel(out, value):
        fl.static_assert(value.dtype == DTYPE)
        fl.store(out, value)

    wanted = getattr(fl, dtype)
    kernel.__annotations__ = {"value": wanted}
    kernel.__globals__["DTYPE"] = wanted
    out = np.zeros(1, np.float64 if wanted.is_floating() else np.int64)
    for _ in range(2):  # the second launch may be native
        launch(fuser.kernel(kernel), device, out, given)
        assert out[0] == stored


DTYPE: Any = None


def test_a_whole_number_is_wanted() -> None:
    @fuser.kernel
    def kernel(out, n: fl.int32):
        fl.store(out, n)

    with pytest.raises(UsageError, match=r"n is 1\.5"):
        kernel[(1,)](np.zeros(1, np.int32), 1.5)


def test_constant_pointers_are_not_written() -> None:
    @triton.jit
    def copy(x: tl.const, out, n: tl.constexpr, back: tl.constexpr):
        at = tl.arange(0, n)
        tl.store(out + at, tl.load(x + at))
        if back:
            tl.store(x + at, at)

    x, out = np.arange(4), np.zeros(4, np.int64)
    copy[(1,)](x, out, 4, False)
    assert out.tolist() == [0, 1, 2, 3]
    with pytest.raises(LanguageError, match="Cannot store to a constant pointer"):
        copy[(1,)](x, out, 4, True)


FACTOR: Any = tl.constexpr(2)


@triton.jit
def scaled(out):
    tl.store(out, FACTOR)


def test_constants_that_change_are_errors_in_tritons_spelling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = np.zeros(1, np.int32)
    for _ in range(3):
        scaled[(1,)](out)
    assert out[0] == 2 and [name for name, _ in scaled.used_global_vals] == ["FACTOR"]
    monkeypatch.setitem(globals(), "FACTOR", tl.constexpr(3))
    with pytest.raises(RuntimeError, match="Global variable FACTOR has changed"):
        scaled[(1,)](out)
    monkeypatch.setitem(globals(), "FACTOR", tl.constexpr(2))
    scaled[(1,)](out)
    cell = tl.constexpr(5)

    @triton.jit
    def closed(out):
        tl.store(out, cell)

    closed[(1,)](out)
    cell.value = 6
    with pytest.raises(ChangedError, match=r"from constexpr\[5\] to constexpr\[6\]"):
        closed[(1,)](out)


def test_constants_that_change_are_compiled_in_anew() -> None:
    place = ModuleType("place")
    place.FACTOR = fl.constexpr(2)  # type: ignore[attr-defined]
    count = 3

    @fuser.kernel
    def kernel(out):
        fl.store(out, place.FACTOR * count)

    out = np.zeros(1, np.int32)
    for factor, number in ((2, 3), (4, 3), (4, 5), (4, 5), (2, 3)):
        place.FACTOR, count = fl.constexpr(factor), number  # type: ignore[attr-defined]
        kernel[(1,)](out)
        assert out[0] == factor * number


def test_tuples_written_out() -> None:
    @triton.jit
    def kernel(out, values, more: tl.constexpr):
        grown = tl.tuple([value + 1 for value in values]) + (10, 20)
        kept = tuple(item for item in more if item > 1)
        pairs = [a * b for a, b in ((2, 3), (4, 5))]
        tl.static_assert((1, 2) == (1, 2))
        tl.static_assert(isinstance(grown, tl.tuple) and len(kept) == 2)
        for at in tl.static_range(len(grown)):
            tl.store(out + at, grown[at])
        tl.store(out + 5, kept[0] + kept[1])
        tl.store(out + 6, pairs[0] + pairs[1])

    out = np.zeros(7, np.int32)
    kernel[(1,)](out, (1, 5, 7), (1, 2, 3))
    assert out.tolist() == [2, 6, 8, 10, 20, 5, 26]


@pytest.mark.parametrize("device", DEVICES)
def test_a_signed_number_shifted_by_an_unsigned_one(device: str) -> None:
    @triton.jit
    def kernel(x, y, out):
        at = tl.arange(0, 4)
        tl.store(out + at, tl.load(x + at) >> tl.load(y + at))

    x, y = np.array([-8, 8, -1, 100], np.int8), np.array([1, 2, 5, 3], np.uint32)
    out = np.zeros(4, np.uint32)
    launch(kernel, device, x, y, out)
    np.testing.assert_array_equal(out.view(np.int32), x.astype(np.int32) >> y.astype(np.int32))


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("x & 1.5", "invalid operands of type"), ("x // tl.load(u)", "different signedness"),
        ("x + 0xFFFFFFFFFF", "out of range"),
    ],
)  # fmt: skip
def test_operands_that_do_not_go_together(expression: str, message: str) -> None:
    @triton.jit
    def kernel(p, u):
        x = tl.load(p)  # noqa: F841
        tl.store(p, EXPRESSION)  # noqa: F821

    kernel._unsafe_update_src(kernel.src.replace("EXPRESSION", expression))
    with pytest.raises(LanguageError, match=message):
        kernel[(1,)](np.zeros(1, np.int32), np.zeros(1, np.uint32))


@pytest.mark.parametrize("spelling", [fuser.kernel, triton.jit])
def test_values_that_do_not_fit_the_pointer_are_refused(spelling: Any) -> None:
    """More values than places would be stored beyond the array, or over each other."""

    def kernel(out, WIDE: fl.constexpr):
        at = fl.arange(0, 4)
        if WIDE:
            fl.store(out + at, at[:, None] + at[None, :])
        else:
            fl.store(out, at)

    for wide in (True, False):
        with pytest.raises(LanguageError, match="must broadcast to the shape of the pointer"):
            spelling(kernel)[(1,)](np.zeros(4, np.int32), wide)


def test_ranks_are_equal_in_tritons_spelling() -> None:
    def kernel(out):
        at = fl.arange(0, 4)
        fl.store(out + at[:, None] * 4 + at[None, :], at)

    with pytest.raises(LanguageError, match="must broadcast"):
        triton.jit(kernel)[(1,)](np.zeros(16, np.int32))
    out = np.zeros((4, 4), np.int32)
    fuser.kernel(kernel)[(1,)](out)
    np.testing.assert_array_equal(out, np.broadcast_to(np.arange(4), (4, 4)))


@pytest.mark.parametrize("name", ["atomic_and", "atomic_or", "atomic_xor"])
def test_bits_of_floats_are_no_atomics(name: str) -> None:
    @triton.jit
    def kernel(out):
        tl.NAME(out, tl.load(out))

    kernel._unsafe_update_src(kernel.src.replace("NAME", name))
    with pytest.raises(LanguageError, match="bits are those of integers") as caught:
        kernel[(1,)](np.zeros(1, np.float32))
    assert caught.value.error_message.startswith("an atomic")


def test_a_descriptor_of_an_array_read_as_another_type() -> None:
    torch = pytest.importorskip("torch")

    @triton.jit
    def kernel(x, out):
        at = tl.arange(0, 4)[:, None] * 16 + tl.arange(0, 16)[None, :]
        tl.store(out + at, x.load([0, 0]).to(tl.int64))

    x = -torch.arange(1, 65, dtype=torch.int16).reshape(4, 16)
    out = torch.zeros(4, 16, dtype=torch.int64)
    words = triton.reinterpret(x, tl.uint16)
    kernel[(1,)](triton.tools.tensor_descriptor.TensorDescriptor.from_tensor(words, [4, 16]), out)
    assert torch.equal(out, x.to(torch.int64) % 65536)


def test_pointer_types_are_made_in_kernels() -> None:
    @triton.jit
    def kernel(out, value):
        tl.store(out.to(tl.pointer_type(value.dtype)), value)

    out = np.zeros(1, np.float32)
    kernel[(1,)](out, 7)
    assert out.view(np.int32)[0] == 7


# numbers of NumPy ---------------------------------------------------------------------------------

NUMPY_INTEGERS = [np.int64, np.int32, np.int16, np.int8, np.uint8, np.uint64]
WIDTH = tl.constexpr(np.int64(4))
EIGHT, HALF, TRUE = np.int32(8), np.float32(0.5), np.bool_(True)


@triton.jit
def filled(x, B: tl.constexpr, SIZES: tl.constexpr):
    rows: tl.constexpr = SIZES[0]
    if B > 2:
        tl.store(x + tl.arange(0, B), 1.0 + rows * WIDTH)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", NUMPY_INTEGERS)
def test_numpy_integers_are_constexprs(kind: Any, device: str) -> None:
    for extent in (16, 8, 16, 4):
        x = np.zeros(16, np.float32)
        for _ in range(2):  # the second launch may be native
            launch(filled, device, x, B=kind(extent), SIZES=(kind(3), kind(1)))
        np.testing.assert_array_equal(x, np.where(np.arange(16) < extent, 13, 0))


def test_a_numpy_integer_is_compiled_like_the_number() -> None:
    @triton.jit
    def kernel(x, B: tl.constexpr):
        tl.store(x + tl.arange(0, B), 2.0)

    for extent in (16, np.int64(16), np.int8(16)):
        kernel[(1,)](np.zeros(16, np.float32), B=extent)
    assert sum(map(len, kernel.variants.values())) == 1


def test_numpy_numbers_as_defaults_results_and_globals() -> None:
    @triton.constexpr_function
    def doubled(n):
        return np.int64(2 * n)

    @triton.jit
    def part(x, B: tl.constexpr = EIGHT, FACTOR: tl.constexpr = HALF):
        tl.static_assert(B == 8)
        return tl.load(x + tl.arange(0, B)) * FACTOR

    @triton.jit
    def kernel(x, out, ROUND: tl.constexpr = TRUE):
        if ROUND:
            tl.store(out + tl.arange(0, doubled(WIDTH)), part(x))

    x, out = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    kernel[(1,)](x, out)
    np.testing.assert_array_equal(out, x / 2)


@pytest.mark.parametrize(
    ("given", "shown"),
    [(np.float32(4), "4.0"), (np.array(16), "a ndarray"), ("a", "'a'"), (16.0, "16.0"),
     (np.bool_(True), "True"), (np.ones(3), "a ndarray")],
)  # fmt: skip
def test_a_constexpr_that_is_no_whole_number(given: Any, shown: str) -> None:
    with pytest.raises(LanguageError, match=f"an end of arange is {shown}, which is no whole"):
        _plain[(1,)](np.zeros(16, np.float32), B=given)


@triton.jit
def _plain(x, B: tl.constexpr):
    tl.store(x + tl.arange(0, B), 1.0)


# arrays that cannot be written --------------------------------------------------------------------


@triton.jit
def copied(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n), at < n)


def frozen(x: Any) -> Any:
    x = x.copy()
    x.flags.writeable = False
    return x


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.float64])
@pytest.mark.parametrize("check", [False, True])
def test_a_read_only_array_is_named(dtype: Any, check: bool) -> None:
    x = np.ones(16, dtype)
    out = np.zeros_like(x)
    for _ in range(3):
        copied[(1,)](frozen(x), out, 16, BLOCK=16, check=check)
    np.testing.assert_array_equal(out, x)
    with pytest.raises(FeedError, match=r"^out is read-only, and the kernel writes it") as caught:
        copied[(1,)](x, frozen(out), 16, BLOCK=16, check=check)
    assert caught.value.where == "copied"


class Pair(NamedTuple):
    first: Any
    second: Any


def test_a_read_only_part_of_an_argument_is_named() -> None:
    @fuser.kernel
    def kernel(pair, rest):
        fl.store(pair[0], 1.0)
        fl.store(pair[1], 2.0)
        fl.store(rest[1], 3.0)

    def arrays() -> list[Any]:
        return [np.zeros(4, np.float32) for _ in range(4)]

    a, b, c, d = arrays()
    kernel[(1,)](Pair(a, b), (c, d))
    assert [x[0] for x in (a, b, c, d)] == [1, 2, 0, 3]
    with pytest.raises(FeedError, match=r"^pair\.second is read-only"):
        kernel[(1,)](Pair(a, frozen(b)), (c, d))
    with pytest.raises(FeedError, match=r"^rest\.1 is read-only"):
        kernel[(1,)](Pair(a, b), (c, frozen(d)))


def test_a_read_only_array_of_a_descriptor_is_named() -> None:
    @triton.jit
    def kernel(desc):
        desc.store([0, 0], tl.zeros((8, 8), tl.float32))

    make = triton.tools.tensor_descriptor.TensorDescriptor.from_tensor
    with pytest.raises(FeedError, match=r"^desc\.base is read-only"):
        kernel[(1,)](make(frozen(np.zeros((8, 8), np.float32)), [8, 8]))


# options and grids --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "option",
    [{"num_warps": n} for n in (3, 5, 33, 2048, -1, -4, "8", 2.0)]
    + [{"num_stages": n} for n in (-1, "3", 1.5)],
    ids=str,
)
@pytest.mark.parametrize("decorate", [fuser.kernel, triton.jit])
def test_options_that_are_none(decorate: Any, option: dict[str, Any]) -> None:
    kernel = decorate(counted)
    x = np.zeros(4, np.float32)
    (name, value) = next(iter(option.items()))
    what = "power of 2 up to 1024" if name == "num_warps" else "whole number from 0 on"
    with pytest.raises(UsageError, match=f"{name}={value!r}; it is a {what}"):
        kernel[(1,)](x, 4, B=4, **option)
    assert not x.any()


def test_warps_of_gpus() -> None:
    """A CPU's warps have one thread, a GPU's 32."""
    cpu, gpu = TARGETS["avx2"], TARGETS["sm_90a"]
    assert Options(num_warps=1024).on(cpu).num_warps == Options(num_warps=32).on(gpu).num_warps
    with pytest.raises(UsageError, match="num_warps=64; on a GPU it is a power of 2 up to 32"):
        Options(num_warps=64).on(gpu)


def counted(x, n, B: fl.constexpr):
    at = fl.arange(0, B)
    fl.store(x + at, fl.load(x + at) + 1, at < n)


@pytest.mark.parametrize("decorate", [fuser.kernel, triton.jit])
@pytest.mark.parametrize("number", [None, 0, 1, np.int64(2), 32, 1024, fl.constexpr(4)])
def test_options_that_are_numbers(decorate: Any, number: Any) -> None:
    kernel = decorate(counted)
    x = np.zeros(4, np.float32)
    kernel[(1,)](x, 4, B=4, num_warps=number, num_stages=number)
    assert x.all()


@pytest.mark.parametrize("decorate", [fuser.kernel, triton.jit])
@pytest.mark.parametrize("name", ["N", "BLOCK", "num_warps"])
def test_grids_of_names_that_are_none(decorate: Any, name: str) -> None:
    kernel = decorate(counted)
    x = np.zeros(4, np.float32)
    with pytest.raises(UsageError, match=rf"asks for '{name}'.*its arguments: x, n, B"):
        kernel[lambda meta: (meta[name],)](x, 4, B=4)

    def other(meta: dict[str, Any]) -> tuple[int]:
        return ({"a": 1}["n"],)  # of a dictionary of its own

    with pytest.raises(KeyError, match="n"):
        kernel[other](x, 4, B=4)


class Address:
    """What packages make of a tensor to go through it otherwise: an address and a type alone."""

    def __init__(self, base: Any, offset: int = 0, device: str = "cpu") -> None:
        self.base, self.offset, self.device = base, offset, device

    @property
    def dtype(self) -> str:
        return f"torch.{self.base.dtype.name}"

    def data_ptr(self) -> int:
        return int(self.base.ctypes.data) + self.offset * self.base.itemsize


@triton.jit
def moved(x, out, n, step, B: tl.constexpr):
    taken = tl.make_block_ptr(x, (n,), (step,), (tl.program_id(0) * B,), (B,), (0,))
    put = tl.make_block_ptr(out, (n,), (1,), (tl.program_id(0) * B,), (B,), (0,))
    tl.store(put, tl.load(taken, boundary_check=(0,)) + 1, boundary_check=(0,))


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8])
def test_objects_that_have_an_address(dtype: Any) -> None:
    """Also one that begins at the end of its memory, and goes through it backwards."""
    x, out = np.arange(70, dtype=dtype), np.zeros(70, dtype)
    for _ in range(3):
        moved[(5,)](Address(x, 69), Address(out), 70, -1, B=16)
        np.testing.assert_array_equal(out, x[::-1] + 1)
        out[:] = 0


def test_an_address_may_be_in_the_memory_of_another_argument() -> None:
    @triton.jit
    def kernel(x, y, out):
        tl.store(x, 5.0)
        tl.store(out, tl.load(y))

    x, out = np.zeros(4, np.float32), np.zeros(1, np.float32)
    kernel[(1,)](x, Address(x), out)
    assert out[0] == 5


def test_addresses_that_no_kernel_can_use() -> None:
    x = np.zeros(4, np.float32)
    with pytest.raises(FeedError, match="x is on the device xpu:0"):
        moved[(1,)](Address(x, 0, "xpu:0"), x, 4, 1, B=4)
    with pytest.raises(UnsupportedDTypeError, match="complex64"):
        moved[(1,)](Address(x.astype(np.complex64)), x, 4, 1, B=4)
