"""python -m tests.mutations --jobs 8

Puts each fault of faults.py into a copy of the tree and runs random graphs until one fails, at most
`--count`. Prints a table: the fault, what found it, after how many graphs. A proof is an error of
the compiler, the interpreter's is a promise that a program breaks as it runs, numbers are results
outside of their bounds. Exits with 1 if a fault is not found.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutations.faults import EMITTERS, FAULTS, Fault
from tests.mutations.trial import Find, search


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="faults whose name contains this")
    arguments = parser.parse_args()
    chosen = [fault for fault in FAULTS if arguments.only in fault.name]

    def work(fault: Fault) -> Find:
        with tempfile.TemporaryDirectory() as folder:
            found = search(fault, Path(folder), arguments.seed, arguments.count)
        print(f"{fault.name}: {found.by}, {found.graphs}: {found.what}", file=sys.stderr)
        return found

    with ThreadPoolExecutor(arguments.jobs) as pool:
        finds = list(pool.map(work, chosen))
    print("| fault | in | found by | after graphs |\n| --- | --- | --- | ---: |")
    for fault, find in zip(chosen, finds, strict=True):
        part = "emitters" if fault in EMITTERS else "partition"
        print(f"| {fault.name} | {part} | {find.by} | {find.graphs} |")
    missed = sum(find.by == "nothing" for find in finds)
    print(f"\n{len(finds)} faults, {missed} not found")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
