"""Codes of weights that were found before: a model that meets new sizes is imported again.

Weights are known by what they are computed from and how, constants by their bytes. Codes of 4 bits
are kept two to a byte, so that a model's take no more than the file's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

import numpy as np

from fuser.graph.ir import Value
from fuser.graph.ops.primitive import Array
from fuser.graph.ops.quantised import bits_of


@dataclass(frozen=True)
class Codes:
    """Weights in parts: see the primitive dequantize."""

    codes: Array
    factors: tuple[Array, ...]
    numbers: str
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class Kept:
    """Codes as they are kept. shape: of those of 4 bits, which are pairs, the first one lower."""

    parts: Codes
    shape: tuple[int, ...] | None

    @staticmethod
    def of(parts: Codes) -> Kept:
        if bits_of(parts.numbers) != 4:
            return Kept(parts, None)
        flat = parts.codes.reshape(-1)
        pairs = flat[::2].copy()
        pairs[: flat.size // 2] |= flat[1::2] << 4
        return Kept(replace(parts, codes=pairs), parts.codes.shape)

    def codes(self) -> Codes:
        if self.shape is None:
            return self.parts
        pairs, size = self.parts.codes, int(np.prod(self.shape))
        flat = np.empty(size, np.uint8)
        np.bitwise_and(pairs, 15, out=flat[::2])
        np.right_shift(pairs[: size // 2], 4, out=flat[1::2])
        return replace(self.parts, codes=flat.reshape(self.shape))


Store = MutableMapping[bytes, Kept | None]
"""What was found, by `fingerprint`; None: there are no such codes."""

STORE: ContextVar[Store | None] = ContextVar("known codes", default=None)


@contextmanager
def remembered(store: Store) -> Iterator[None]:
    """Within, `keep_quantised` looks weights up there first, and leaves there what it finds."""
    token = STORE.set(store)
    try:
        yield
    finally:
        STORE.reset(token)


def fingerprint(value: Value) -> bytes:
    """Of a static value: the same for the same constants in the same steps."""
    known: dict[Value, bytes] = {}
    stack = [value]
    while stack:
        node = stack[-1].node
        assert node is not None
        missing = [operand for operand in node.inputs if operand not in known]
        if stack[-1] in known or missing:
            stack += missing
            if not missing:
                stack.pop()
            continue
        stack.pop()
        found = hashlib.blake2b(node.op.encode(), digest_size=16)
        for name, content in sorted(node.attrs.items()):
            found.update(name.encode())
            if isinstance(content, np.ndarray):
                found.update(f"{content.dtype} {content.shape}".encode())
                found.update(np.ascontiguousarray(content).reshape(-1).view(np.uint8).data)
            else:
                found.update(repr(content).encode())
        for operand in node.inputs:
            found.update(known[operand])
        for number, output in enumerate(node.outputs):
            known[output] = found.digest() + bytes([number]) + str(output.type).encode()
    return known[value]


__all__ = ["STORE", "Codes", "Kept", "Store", "fingerprint", "remembered"]
