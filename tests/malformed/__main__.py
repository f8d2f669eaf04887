"""python -m tests.malformed: see corpus.py."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.malformed.bases import few, many
from tests.malformed.corpus import corpus
from tests.malformed.entries import ENTRIES, Child

LIMIT = 50_000_000
BEYOND = 100
"""Megabytes over the limit that are none of a model's: compiled code, and what is made of it."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.malformed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=400, help="models")
    parser.add_argument("--few", action="store_true", help="operators of bases.few only")
    parser.add_argument(
        "--entries", default=",".join(ENTRIES), help="which of " + ", ".join(ENTRIES)
    )
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--bytes", type=int, default=LIMIT)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--keep", type=Path, help="a folder for the models that failed")
    parser.add_argument(
        "--vague", action="store_true", help="list messages that name an error of Python"
    )
    options = parser.parse_args()
    bases = few() if options.few else many()
    child, tally, bad = Child(), Counter[str](), 0
    most = options.bytes / (1 << 20) + BEYOND
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        for spoilt in corpus(bases, options.seed, options.count):
            if options.only not in spoilt.name:
                continue
            path.write_bytes(spoilt.data)
            for entry in options.entries.split(","):
                result = child.ask(entry, path, options.bytes, options.seconds)
                tally[f"{entry} {result.outcome[:60]}"] += 1
                if options.vague and "node is malformed" in result.text:
                    print(f"vague: {spoilt.name} [{entry}]: {result.text}", flush=True)
                slow = result.outcome == "slow" or result.seconds > options.seconds
                if result.is_raw or slow or result.megabytes > most:
                    bad += 1
                    print(f"{spoilt.name} [{entry}]: {result}", flush=True)
                    if options.keep:
                        options.keep.mkdir(parents=True, exist_ok=True)
                        name = f"{spoilt.name} {entry}.onnx".replace(" ", "_").replace("/", "_")
                        name = name[-200:]
                        (options.keep / name).write_bytes(spoilt.data)
    child.close()
    for key, number in sorted(tally.items()):
        print(f"{number:6} {key}")
    print(f"{bad} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
