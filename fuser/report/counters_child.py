"""What runs under ncu: python -m fuser.report.counters_child FOLDER ORDINAL

FOLDER has the files `plan` (Plan.save) and `feeds.npz` (arrays in the order of the inputs). The
plan runs twice unseen, then once between cuProfilerStart and cuProfilerStop.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from fuser.runtime import driver
from fuser.runtime.plan import Plan


def run(folder: Path, ordinal: int) -> None:
    plan = Plan.load(folder / "plan", device=ordinal)
    with np.load(folder / "feeds.npz") as arrays:
        feeds = {
            spec.name: arrays[f"arr_{place}"] for place, spec in enumerate(plan.program.inputs)
        }
    for _ in range(2):
        plan.run(feeds)
    with driver.current(ordinal):
        driver.call("cuProfilerStart")
        plan.run(feeds)
        driver.call("cuProfilerStop")


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]))
