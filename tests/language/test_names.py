"""Every name of triton.language 3.6 is there, and every function that tensors have as a method."""

from __future__ import annotations

import numpy as np
import pytest

import fuser
import fuser.language as fl
import fuser.triton.language as tl
from fuser.errors import LanguageError
from fuser.language.builtins import METHODS, TABLE

_NAMES = """
PropagateNan TRITON_MAX_TENSOR_NUMEL abs add advance arange argmax argmin associative_scan assume
atomic_add atomic_and atomic_cas atomic_max atomic_min atomic_or atomic_xchg atomic_xor bfloat16
bitonic_merge block_type broadcast broadcast_to cast cat cdiv ceil clamp condition const constexpr
constexpr_type cos cumprod cumsum debug_barrier device_assert device_print div_rn dot dot_scaled
dtype erf exp exp2 expand_dims extra fdiv flip float16 float32 float64 float8e4b15 float8e4b8
float8e4nv float8e5 float8e5b16 floor fma full gather histogram inline_asm_elementwise int1 int16
int32 int64 int8 interleave join load load_tensor_descriptor log log2 make_block_ptr
make_tensor_descriptor map_elementwise math max max_constancy max_contiguous maximum min minimum
multiple_of num_programs pair_uniform_to_normal permute philox philox_impl pi32_t pointer_type
program_id rand rand4x randint randint4x randn randn4x range ravel reduce reduce_or reshape rsqrt
sigmoid sin slice softmax sort split sqrt sqrt_rn static_assert static_print static_range store
store_tensor_descriptor sum swizzle2d tensor tensor_descriptor topk trans tuple uint16 uint32
uint64 uint8 uint_to_uniform_float umulhi view void where xor_sum zeros zeros_like
"""
NAMES = _NAMES.split()
_MEMBERS = """
abs advance argmax argmin associative_scan atomic_add atomic_and atomic_cas atomic_max atomic_min
atomic_or atomic_xchg atomic_xor broadcast_to cast cdiv ceil cos cumprod cumsum erf exp exp2
expand_dims flip floor gather histogram log log2 logical_and logical_or max min permute ravel
reduce reduce_or reshape rsqrt sigmoid sin softmax split sqrt sqrt_rn store sum to trans view
xor_sum
"""
MEMBERS = _MEMBERS.split()


@pytest.mark.parametrize("module", [fl, tl])
def test_every_name_of_triton_is_there(module: object) -> None:
    missing = [name for name in NAMES if not hasattr(module, name)]
    assert not missing
    assert set(NAMES) <= set(module.__all__)  # type: ignore[attr-defined]


@pytest.mark.parametrize("module", [fl, tl])
def test_a_function_is_no_module_of_its_name(module: object) -> None:
    assert [name for name in TABLE if getattr(module, name) is not TABLE[name]] == []


def test_triton_alone_has_target_info() -> None:
    assert tl.target_info.is_hip() is False


def test_methods() -> None:
    assert not set(MEMBERS) - set(METHODS)


def test_functions_are_for_kernels() -> None:
    for function in TABLE.values():
        if function.host is not None:  # a number is a number outside of kernels, too
            continue
        with pytest.raises(LanguageError, match="outside of a kernel"):
            function()


@fuser.kernel
def methods(x, out, N: fl.constexpr):
    at = fl.arange(0, N)
    data = fl.load(x + at)
    size = data.abs().sqrt().to(fl.float32)
    both = (data > 0).logical_and(size < 1)
    (out + at).store(fl.math.exp2(size), both)
    (out + N).atomic_add(data.sum())
    fl.store(out + N + 1, data.max(0).item() + fl.extra.num_warps())


def test_methods_are_functions() -> None:
    x = np.linspace(-2, 2, 32).astype(np.float32)
    out = np.full(34, 9, np.float32)
    out[32] = 0
    methods[(1,)](x, out, N=32)
    inside = (x > 0) & (np.sqrt(np.abs(x)) < 1)
    np.testing.assert_allclose(out[:32], np.where(inside, np.exp2(np.sqrt(np.abs(x))), 9), 1e-6)
    assert abs(out[32]) < 1e-5 and out[33] == 2 + 4


@fuser.kernel
def assembled(x):
    fl.store(
        x, fl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [fl.load(x)], fl.int32, True, 1)
    )


def test_assembly_is_refused() -> None:
    with pytest.raises(LanguageError, match="inline assembly"):
        assembled[(1,)](np.zeros(1, np.int32))
