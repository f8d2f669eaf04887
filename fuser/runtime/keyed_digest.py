"""A digest of bytes under a secret key, several times as fast as SHA-256.

Each block of 4 KiB becomes 32 bytes by four passes of NH, the hash of UMAC (Black, Halevi,
Krawczyk, Krovetz, Rogaway, CRYPTO 1999; RFC 4418), each with the key shifted by a pair of vectors.
Of two blocks that differ, whatever they are, the 32 bytes agree for one key in 2**128; so nobody
who does not know the key can make two that agree. Digests of one key say nothing to another.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import numpy as np

from fuser.runtime.jit import link_native
from fuser.runtime.memory import address

BLOCK_BYTES = 4096
DIGEST_BYTES = 32
"""Of a block."""
_PASSES, _STEP = 4, 32
"""Bytes of a step: a vector of four words, and the one whose words it is multiplied by."""
KEY_BYTES = BLOCK_BYTES + (_PASSES - 1) * _STEP

_NAME = "fuser_digest"
_WORDS, _PAIR = "<4 x i32>", "<2 x i64>"


def digest_blocks(data: np.ndarray, key: np.ndarray) -> np.ndarray:
    """The digests of the blocks of `data`, uint8 of a multiple of BLOCK_BYTES: uint8 [blocks,
    DIGEST_BYTES]. key: uint8 [KEY_BYTES]. Other threads run meanwhile. Raises CompileError, or
    DeviceError where there is no LLVM."""
    blocks = data.size // BLOCK_BYTES
    if data.dtype != np.uint8 or key.dtype != np.uint8 or key.size != KEY_BYTES:
        raise ValueError("the data and the key are bytes, the key KEY_BYTES of them")
    if blocks * BLOCK_BYTES != data.size or not (
        data.flags.c_contiguous and key.flags.c_contiguous
    ):
        raise ValueError("the data are whole blocks, in order")
    found = np.empty((blocks, DIGEST_BYTES), np.uint8)
    _native()(address(data), blocks, address(key), address(found))
    return found


def prepare() -> None:
    """Make the code now, once for all threads. Raises as `digest_blocks` does."""
    _native()


@functools.lru_cache(maxsize=1)
def _native() -> Callable[[int, int, int, int], None]:
    linked = link_native(native_ir(), {}, [_NAME])
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    call = ctypes.CFUNCTYPE(None, pointer, count, pointer, pointer)(linked[_NAME])

    def digest(data: int, blocks: int, key: int, found: int) -> None:
        assert linked is not None  # the code lives as long as who calls it
        call(data, blocks, key, found)

    return digest


def native_ir() -> str:
    """LLVM IR text. Of the 64-bit lanes of vectors, low words and high ones are multiplied."""
    passes = range(_PASSES)
    carried = "\n".join(
        f"  %sum{i} = phi {_PAIR} [ zeroinitializer, %begin ], [ %more{i}, %step ]" for i in passes
    )
    keys = "\n".join(
        f"  %at.key{i} = getelementptr i8, ptr %shifted, i64 {16 * i}\n"
        f"  %key{i} = load {_WORDS}, ptr %at.key{i}, align 1"
        for i in range(2 * _PASSES)
    )
    low = "<i64 4294967295, i64 4294967295>"
    sums = "\n".join(
        f"""  %x{i} = add {_WORDS} %one, %key{2 * i}
  %y{i} = add {_WORDS} %other, %key{2 * i + 1}
  %xs{i} = bitcast {_WORDS} %x{i} to {_PAIR}
  %ys{i} = bitcast {_WORDS} %y{i} to {_PAIR}
  %x.low{i} = and {_PAIR} %xs{i}, {low}
  %y.low{i} = and {_PAIR} %ys{i}, {low}
  %x.high{i} = lshr {_PAIR} %xs{i}, <i64 32, i64 32>
  %y.high{i} = lshr {_PAIR} %ys{i}, <i64 32, i64 32>
  %low{i} = mul {_PAIR} %x.low{i}, %y.low{i}
  %high{i} = mul {_PAIR} %x.high{i}, %y.high{i}
  %both{i} = add {_PAIR} %low{i}, %high{i}
  %more{i} = add {_PAIR} %sum{i}, %both{i}"""
        for i in passes
    )
    stores = "\n".join(
        f"""  %a{i} = extractelement {_PAIR} %more{i}, i64 0
  %b{i} = extractelement {_PAIR} %more{i}, i64 1
  %all{i} = add i64 %a{i}, %b{i}
  %at.all{i} = getelementptr i8, ptr %to, i64 {8 * i}
  store i64 %all{i}, ptr %at.all{i}, align 1"""
        for i in passes
    )
    return f"""
define void @{_NAME}(ptr %data, i64 %blocks, ptr %key, ptr %found) {{
entry:
  br label %head
head:
  %n = phi i64 [ 0, %entry ], [ %n.next, %end ]
  %finished = icmp uge i64 %n, %blocks
  br i1 %finished, label %out, label %begin
begin:
  %skip = mul i64 %n, {BLOCK_BYTES}
  %from = getelementptr i8, ptr %data, i64 %skip
  br label %step
step:
  %i = phi i64 [ 0, %begin ], [ %i.next, %step ]
{carried}
  %at.one = getelementptr i8, ptr %from, i64 %i
  %one = load {_WORDS}, ptr %at.one, align 1
  %at.other = getelementptr i8, ptr %at.one, i64 16
  %other = load {_WORDS}, ptr %at.other, align 1
  %shifted = getelementptr i8, ptr %key, i64 %i
{keys}
{sums}
  %i.next = add i64 %i, {_STEP}
  %again = icmp ult i64 %i.next, {BLOCK_BYTES}
  br i1 %again, label %step, label %end
end:
  %skip.to = mul i64 %n, {DIGEST_BYTES}
  %to = getelementptr i8, ptr %found, i64 %skip.to
{stores}
  %n.next = add i64 %n, 1
  br label %head
out:
  ret void
}}
"""
