"""NH against its definition in NumPy, and what a digest is there for."""

import numpy as np
import pytest

from fuser.runtime.keyed_digest import BLOCK_BYTES, DIGEST_BYTES, KEY_BYTES, digest_blocks


def by_definition(data: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Sums modulo 2**64 of products of sums modulo 2**32: word i of a vector with word i of the
    next; a pass later with keys two vectors on."""
    words = data.view(np.uint32).reshape(-1, BLOCK_BYTES // 32, 2, 4).astype(np.uint64)
    keys = key.view(np.uint32).reshape(-1, 4).astype(np.uint64)
    found = []
    for first in range(0, 8, 2):
        of_pass = keys[first : first + BLOCK_BYTES // 16].reshape(-1, 2, 4)
        sums = (words + of_pass) & 0xFFFFFFFF
        found.append((sums[:, :, 0] * sums[:, :, 1]).sum((1, 2), dtype=np.uint64))
    return np.stack(found, 1).view(np.uint8)


def test_digests_are_those_of_the_definition(rng: np.random.Generator) -> None:
    key = rng.integers(0, 256, KEY_BYTES, np.uint8)
    data = rng.integers(0, 256, 5 * BLOCK_BYTES, np.uint8)
    data[BLOCK_BYTES : 2 * BLOCK_BYTES] = 255  # sums that overflow
    assert np.array_equal(digest_blocks(data, key), by_definition(data, key))


def test_each_byte_counts_in_each_pass(rng: np.random.Generator) -> None:
    key = rng.integers(0, 256, KEY_BYTES, np.uint8)
    data = rng.integers(0, 256, BLOCK_BYTES, np.uint8)
    others = np.repeat(data[None], BLOCK_BYTES, 0)
    others[np.arange(BLOCK_BYTES), np.arange(BLOCK_BYTES)] ^= 1
    before = digest_blocks(data, key).view(np.uint64)
    after = digest_blocks(others.reshape(-1), key).view(np.uint64)
    assert after.shape == (BLOCK_BYTES, DIGEST_BYTES // 8) and (before != after).all()


def test_what_is_no_whole_block_is_refused() -> None:
    key = np.zeros(KEY_BYTES, np.uint8)
    with pytest.raises(ValueError, match="whole blocks"):
        digest_blocks(np.zeros(BLOCK_BYTES - 1, np.uint8), key)
    with pytest.raises(ValueError, match="KEY_BYTES"):
        digest_blocks(np.zeros(BLOCK_BYTES, np.uint8), key[1:])
