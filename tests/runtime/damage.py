"""Plan files with flipped bits and cut short: loaded and run where that is possible.

    python -m tests.runtime.damage FILE FEEDS.npz --flips 3000 --cuts 300 --seed 0

Each flip is tried as it is, and with every checksum of the container mended. Prints the outcomes as
JSON; a crash of this process is for the caller to see.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

import fuser
from fuser.errors import FuserError
from fuser.runtime import container
from fuser.runtime.container import _HEAD, _SEALED, PAGE, _check
from fuser.runtime.memory import align


def whole(data: bytes, manifest: Any) -> bytes:
    """A file with another manifest, its checksum mended."""
    head = list(_HEAD.unpack(data[: _HEAD.size]))
    code = data[_HEAD.size + head[3] :][: head[4]]
    arrays = data[align(_HEAD.size + head[3] + head[4], PAGE) :]
    text = json.dumps(manifest).encode()
    text += b" " * (-(_HEAD.size + len(text)) % 64)
    head[3] = len(text)
    sealed = _HEAD.pack(*head)[:_SEALED]
    body = sealed + hashlib.sha256(sealed + text + code).digest() + text + code
    return body + bytes(-len(body) % PAGE) + arrays


def mended(data: bytes) -> bytes:
    """A file with the checksums that its bytes should have, as far as it can be read."""
    if len(data) < _HEAD.size:
        return data
    head = _HEAD.unpack(data[: _HEAD.size])
    start, end = _HEAD.size, _HEAD.size + head[3]
    try:
        manifest = json.loads(data[start:end])
        held = np.frombuffer(data, np.uint8)[align(end + head[4], PAGE) :]
        for record in manifest["arrays"]:
            size = int(np.prod(record["shape"])) * container.BY_NAME[record["dtype"]].bytes
            record["check"] = _check(held[record["start"] : record["start"] + size].copy())
        return whole(data, manifest)
    except (*container.MALFORMED, MemoryError):
        digest = hashlib.sha256(data[:_SEALED] + data[start : end + head[4]]).digest()
        return data[:_SEALED] + digest + data[start:]


def outcome(path: Path, data: bytes, feeds: dict[str, np.ndarray]) -> str:
    """ "refused", "ran", or what was raised that should not."""
    path.write_bytes(data)
    try:
        plan = fuser.load(path, threads=1)
        assert isinstance(plan, fuser.Plan | fuser.DynamicPlan)
        plan.run(feeds)
        plan.close()
        return "ran"
    except FuserError:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("feeds", type=Path)
    for name in ("flips", "cuts", "seed"):
        parser.add_argument(f"--{name}", type=int, default=0)
    given = parser.parse_args()
    good, random = given.file.read_bytes(), np.random.default_rng(given.seed)
    feeds = dict(np.load(given.feeds))
    path = given.file.with_suffix(".damaged")
    found: dict[str, collections.Counter[str]] = {
        kind: collections.Counter() for kind in ("flipped", "mended", "cut", "cut mended")
    }
    assert outcome(path, good, feeds) == outcome(path, mended(good), feeds) == "ran"
    used = min(
        len(good.rstrip(b"\0")) + 64, len(good)
    )  # half of the flips where the file is not just zeros
    for number in range(given.flips):
        bad = bytearray(good)
        place = int(random.integers(used if number % 2 else len(good)))
        bad[place] ^= 1 << int(random.integers(8))
        found["flipped"][outcome(path, bytes(bad), feeds)] += 1
        found["mended"][outcome(path, mended(bytes(bad)), feeds)] += 1
    for _ in range(given.cuts):
        cut = good[: int(random.integers(len(good)))]
        found["cut"][outcome(path, cut, feeds)] += 1
        found["cut mended"][outcome(path, mended(cut), feeds)] += 1
    print(json.dumps(found))


if __name__ == "__main__":
    main()
