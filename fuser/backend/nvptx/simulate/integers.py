"""Integers in LLVM's words, for the 32 lanes of a warp at once."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from fuser.backend.nvptx.simulate.clocks import Array, SimulationError

_BINARY = re.compile(r"(\w+)(?: nsw| nuw| exact| disjoint)* (i\d+) ([^,]+), (\S+)")
_COMPARE = re.compile(r"icmp (\w+) (i\d+) ([^,]+), (\S+)")
_SELECT = re.compile(r"select i1 ([^,]+), (i\d+) ([^,]+), i\d+ (\S+)")
_CONVERT = re.compile(r"(zext|sext|trunc) (i\d+) (\S+) to (i\d+)")
_EXTREME = re.compile(
    r"call (i\d+) @llvm\.(smin|smax|umin|umax)\.i\d+\(i\d+ ([^,]+), i\d+ ([^)]+)\)"
)
_LANE = re.compile(
    r"call i32 @llvm\.nvvm\.shfl\.sync\.idx\.i32\(i32 -1, i32 ([^,]+), i32 (\d+), i32 31\)"
)
_REGISTER = re.compile(r"call i\d+ @llvm\.nvvm\.read\.ptx\.sreg\.([\w.]+)\(\)")

Lookup = Callable[[str], Array]

_SIMPLE: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip
_TESTS: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal,
}  # fmt: skip


def compute(text: str, value: Lookup, register: Lookup) -> Array:
    """The 32 values of an integer. value: of an operand; register: of a special one. Integers are
    kept as signed numbers of 64 bits, cut to the width of their type."""
    if match := _REGISTER.match(text):
        return register(match[1])
    if match := _LANE.match(text):
        return np.full(32, value(match[1])[int(match[2])], np.int64)
    if match := _SELECT.match(text):
        return np.where(value(match[1]) != 0, value(match[3]), value(match[4]))
    if match := _CONVERT.match(text):
        bits = int(match[2][1:])
        found = value(match[3])
        if match[1] == "zext":
            return unsigned(found, bits)
        return cut(found, int(match[4][1:])) if match[1] == "trunc" else _signed_bit(found, bits)
    if match := _EXTREME.match(text):
        a, b, bits = value(match[3]), value(match[4]), int(match[1][1:])
        if match[2][0] == "u":
            a, b = unsigned(a, bits), unsigned(b, bits)
        return cut(np.minimum(a, b) if match[2][1:] == "min" else np.maximum(a, b), bits)
    if match := _COMPARE.match(text):
        test, bits = match[1], int(match[2][1:])
        a, b = value(match[3]), value(match[4])
        if test[0] == "u":
            a, b = unsigned(a, bits), unsigned(b, bits)
        return _TESTS[test if test in _TESTS else test[1:]](a, b).astype(np.int64)
    if match := _BINARY.match(text):
        return _binary(match[1], int(match[2][1:]), value(match[3]), value(match[4]))
    raise SimulationError(f"an integer that the simulator does not know: {text}")


def _binary(fn: str, bits: int, a: Array, b: Array) -> Array:
    if fn in _SIMPLE:
        return cut(_SIMPLE[fn](a, b), bits)
    if fn in ("shl", "ashr"):
        return cut(a << b if fn == "shl" else a >> b, bits)
    if fn in ("sdiv", "srem"):
        safe = np.where(b == 0, 1, b)
        whole = np.sign(a) * np.sign(safe) * (np.abs(a) // np.abs(safe))
        return cut(whole if fn == "sdiv" else a - whole * safe, bits)
    a, b = unsigned(a, bits), unsigned(b, bits)
    if fn == "lshr":
        return cut(a >> b, bits)
    safe = np.where(b == 0, 1, b)
    if fn in ("udiv", "urem"):
        return cut(a // safe if fn == "udiv" else a % safe, bits)
    raise SimulationError(f"an integer operation that the simulator does not know: {fn}")


def unsigned(a: Array, bits: int) -> Array:
    """The number as an unsigned one; of 64 bits it is taken not to be negative."""
    return a if bits == 64 else a & ((1 << bits) - 1)


def cut(a: Array, bits: int) -> Array:
    """A signed number of so many bits; a condition is 0 or 1."""
    if bits == 64:
        return a
    if bits == 1:
        return a & 1
    return ((a & ((1 << bits) - 1)) ^ (1 << (bits - 1))) - (1 << (bits - 1))


def _signed_bit(a: Array, bits: int) -> Array:
    return -a if bits == 1 else a
