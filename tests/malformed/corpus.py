"""The corpus: every operator spoilt in every way, drawn by a seed.

    python -m tests.malformed --seed 1 --count 500

takes models of the corpus through the command line, a session and the host, under a limit on bytes,
and lists each that ended in something else than a result or an error of fuser's own, went over the
limit or took too long.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto

from tests.malformed.corruptions import CORRUPTIONS


@dataclass(frozen=True)
class Spoilt:
    """A model of the corpus; name: the operator and what is wrong with it."""

    name: str
    data: bytes


def spoil(bases: Mapping[str, ModelProto], op: str, corruption: str, seed: int) -> Spoilt | None:
    """One operator spoilt in one way; None where it has nothing of that sort."""
    rng = np.random.default_rng([seed, zlib.crc32(f"{op} {corruption}".encode())])
    model = ModelProto()
    model.CopyFrom(bases[op])
    try:
        found = CORRUPTIONS[corruption](model, rng)
    except (TypeError, ValueError):  # protobuf takes no such value
        return None
    if found is False:
        return None
    data = found if isinstance(found, bytes) else model.SerializeToString()
    return Spoilt(f"{op} {corruption} {seed}", data)


def corpus(bases: Mapping[str, ModelProto], seed: int, count: int) -> Iterator[Spoilt]:
    """`count` kinds in an order that the seed draws; beyond their number, with other numbers."""
    pairs = [(op, corruption) for op in bases for corruption in CORRUPTIONS]
    made = 0
    for turn in range(1000):
        for index in np.random.default_rng([seed, turn]).permutation(len(pairs)):
            if made >= count:
                return
            spoilt = spoil(bases, *pairs[index], seed * 1000 + turn)
            if spoilt is not None:
                made += 1
                yield spoilt
