"""python -m tests.ort_operators.child: reads the cases of a file, or runs a stored one."""

from __future__ import annotations

import pickle
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.ort_operators.cases import Case
from tests.ort_operators.interpret import Reader
from tests.ort_operators.run import run_case
from tests.worker_pool import serve


def read_file(path: Path, folder: Path) -> dict[str, Any]:
    """Store the cases of a file; how many, and why tests were not read to their end."""
    try:
        reader = Reader(path)
    except ValueError as error:
        return {"tests": 0, "cases": [], "why": [str(error)]}
    stored: list[str] = []
    why: list[str] = []
    seen: set[bytes] = set()
    tests = set()
    for name, cases, reason in reader.read():
        tests.add(name)
        why += [f"{name}: {reason}"] if reason else []
        for case in cases:
            data = pickle.dumps(case)
            if data in seen:
                continue
            seen.add(data)
            target = folder / f"{path.stem}-{len(stored):04d}.case"
            target.write_bytes(data)
            stored.append(str(target))
    return {"tests": len(tests), "cases": stored, "why": why}


def run_stored(path: Path, device: str, fusion: bool, peer: bool) -> dict[str, Any]:
    case: Case = pickle.loads(path.read_bytes())  # written by read_file
    return asdict(run_case(case, device, fusion, peer))


def main() -> None:
    """Arguments: "read" and the folder, or "run", the device, "fused" and "peer" or not."""
    what, *rest = sys.argv[1:]
    if what == "read":
        serve(lambda item: read_file(Path(item), Path(rest[0])))
    else:
        serve(lambda item: run_stored(Path(item), rest[0], "fused" in rest, "peer" in rest))


if __name__ == "__main__":
    main()
