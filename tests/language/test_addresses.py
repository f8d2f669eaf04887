"""Addresses that are loaded or passed as numbers, cast to pointers."""

from __future__ import annotations

import numpy as np
import pytest

import fuser
import fuser.language as fl
from fuser.errors import LanguageError, UsageError


@fuser.kernel
def gather_rows(addresses, lengths, out, B: fl.constexpr):
    """Row p of out is the array at addresses[p], as long as it is."""
    row = fl.program_id(0)
    at = fl.arange(0, B)
    start = fl.load(addresses + row).to(fl.pointer_type(fl.float32))
    values = fl.load(start + at, at < fl.load(lengths + row), -1.0)
    fl.store(out + row * B + at, values)


def test_loaded_addresses() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(n).astype(np.float32) for n in (5, 32, 1, 17)]
    addresses = np.array([a.ctypes.data for a in arrays], np.int64)
    addresses.flags.writeable = False  # what is only read may be read-only
    lengths = np.array([a.size for a in arrays], np.int32)
    out = np.zeros((4, 32), np.float32)
    gather_rows[(4,)](addresses, lengths, out, B=32)
    for row, array in zip(out, arrays, strict=True):
        np.testing.assert_array_equal(row[: array.size], array)
        assert (row[array.size :] == -1).all()


@pytest.mark.cuda
def test_loaded_addresses_on_a_gpu() -> None:
    import torch

    arrays = [torch.randn(n, device="cuda") for n in (5, 32, 1, 17)]
    addresses = torch.tensor([a.data_ptr() for a in arrays], device="cuda")
    lengths = torch.tensor([a.numel() for a in arrays], device="cuda", dtype=torch.int32)
    out = torch.zeros((4, 32), device="cuda")
    gather_rows[(4,)](addresses, lengths, out, B=32)
    for row, array in zip(out, arrays, strict=True):
        assert torch.equal(row[: array.numel()], array) and (row[array.numel() :] == -1).all()


@fuser.kernel
def shift_in_place(x, address, n, B: fl.constexpr):
    """Reads x, writes it by its address, and reads it again."""
    at = fl.arange(0, B)
    whole = fl.cast(address, fl.pointer_type(fl.float16))
    before = fl.load(x + at, at < n)
    fl.store(whole + at, before + 1, at < n)
    fl.store(x + at, fl.load(x + at, at < n) * 2, at < n)


def test_an_address_may_be_an_argument() -> None:
    x = np.arange(20, dtype=np.float16)
    shift_in_place[(1,)](x, x.ctypes.data, 20, B=32)
    np.testing.assert_array_equal(x, (np.arange(20) + 1) * 2)


def test_what_is_no_address() -> None:
    @fuser.kernel
    def narrow(x, out):
        fl.store(out, fl.load(fl.load(x).to(fl.pointer_type(fl.float32))))

    with pytest.raises(LanguageError, match="addresses are integers of 64 bits"):
        narrow[(1,)](np.zeros(1, np.int32), np.zeros(1, np.float32))


def test_addresses_are_not_checked() -> None:
    one = np.ones(1, np.float32)
    args = (np.array([one.ctypes.data]), np.array([1], np.int32), np.zeros(32, np.float32))
    with pytest.raises(UsageError, match="by addresses"):
        gather_rows[(1,)](*args, B=32, check=True)


def test_a_passed_address_may_be_small() -> None:
    """Of 32 bits: nothing is there, and nothing is loaded or stored."""
    x = np.arange(20, dtype=np.float16)
    shift_in_place[(1,)](x, 1 << 20, 0, B=32)
    np.testing.assert_array_equal(x, np.arange(20))
