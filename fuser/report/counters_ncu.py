"""Counters of an NVIDIA GPU: the plan runs in a child under Nsight Compute.

The child (counters_child.py) loads the saved plan, runs it twice, and then once between
cuProfilerStart and cuProfilerStop. Caches are not flushed before kernels and what a kernel wrote is
not put back (each pass of the counters is a run of the whole child), so that a kernel finds in the
L2 what it finds there in a run. Clocks are left alone.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from fuser.report.counters import Counted, MissingCountersError
from fuser.runtime.plan import Plan

METRICS = {
    "dram__bytes_read.sum": "dram_read_bytes",
    "dram__bytes_write.sum": "dram_written_bytes",
    "lts__t_bytes.sum": "l2_bytes",
    "gpu__time_duration.sum": "profiler_time_us",
}
"""Metrics of ncu, and their names in the report."""

_UNITS = {
    **{f"{prefix}byte": 10**power
       for prefix, power in (("", 0), ("K", 3), ("M", 6), ("G", 9), ("T", 12))},
    **{name: 10**power
       for names, power in (("ns nsecond", 0), ("us usecond", 3), ("ms msecond", 6),
                            ("s second", 9))
       for name in names.split()},
}  # fmt: skip
"""Bytes and nanoseconds in ncu's units."""

_PLACES = ("/usr/local/cuda*/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")
SECONDS = 300
_CAPABILITIES = {"CAP_SYS_ADMIN": 21, "CAP_PERFMON": 38}


def find_ncu() -> str:
    """The newest ncu. Raises MissingCountersError."""
    found = shutil.which("ncu")
    if found:
        return found
    for pattern in _PLACES:
        files = sorted(Path("/").glob(pattern[1:]))
        if files:
            return str(files[-1])
    raise MissingCountersError(
        "Nsight Compute is not here: no ncu on the PATH or in a CUDA toolkit"
    )


def count_under_ncu(plan: Plan, inputs: Sequence[np.ndarray], ordinal: int) -> Counted:
    """Counters of each launch of one run. Raises MissingCountersError."""
    ncu = find_ncu()
    with tempfile.TemporaryDirectory() as folder:
        plan.save(Path(folder) / "plan")
        np.savez(Path(folder) / "feeds.npz", *inputs)
        command = [
            ncu, "--csv", "--page", "raw", "--print-units", "base",
            "--metrics", ",".join(METRICS), "--replay-mode", "application",
            "--clock-control", "none", "--cache-control", "none", "--graph-profiling", "node",
            "--profile-from-start", "off",
            sys.executable, "-m", "fuser.report.counters_child", folder, str(ordinal),
        ]  # fmt: skip
        # the child finds the packages that this process found
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=SECONDS,
                env={**os.environ, "PYTHONPATH": paths},
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise MissingCountersError(f"{ncu} does not run: {error}") from error
    rows = parse_raw(done.stdout)
    if done.returncode or not rows:
        raise MissingCountersError(why_none(done.stdout + "\n" + done.stderr, done.returncode))
    launched = [launch.kernel.entry for launch in plan.program.launches if launch.kernel.programs]
    counts = iter(_of_launches(rows, launched))
    return Counted(
        _version(ncu),
        [next(counts) if launch.kernel.programs else {} for launch in plan.program.launches],
    )


def parse_raw(text: str) -> list[tuple[str, dict[str, float]]]:
    """(kernel, values by the report's names) of each kernel of ncu's raw page as CSV, in order.
    Other lines of the text (ncu's own, the child's) are skipped; values that are not there (n/a)
    are left out."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    table = list(csv.reader(line for line in lines[start:] if line.startswith('"')))
    if len(table) < 2:
        return []
    header, units, *rows = table
    found = []
    for row in rows:
        if len(row) != len(header):
            continue
        cells = dict(zip(header, zip(row, units, strict=True), strict=True))
        values = {}
        for metric, name in METRICS.items():
            number, unit = cells.get(metric, ("", ""))
            with_point = number.replace(",", "")
            if re.fullmatch(r"-?\d+(\.\d*)?([eE][-+]?\d+)?", with_point) and unit in _UNITS:
                whole = float(with_point) * _UNITS[unit]
                values[name] = whole / 1e3 if name.endswith("_us") else whole
        found.append((cells["Kernel Name"][0].split("(")[0].strip(), values))
    return found


def _of_launches(
    rows: Iterable[tuple[str, dict[str, float]]], launched: Sequence[str]
) -> list[dict[str, float]]:
    """The values of a run's launches, in order. Raises MissingCountersError if ncu saw others."""
    known = set(launched)
    found = [(name, values) for name, values in rows if name in known]
    if [name for name, _ in found] != list(launched):
        raise MissingCountersError(
            f"ncu saw {len(found)} kernels of the plan's {len(launched)}, or in another order"
        )
    return [values for _, values in found]


def why_none(output: str, code: int) -> str:
    """One line of what ncu printed where it counted nothing."""
    if "ERR_NVGPUCTRPERM" in output:
        return f"GPU counters are not permitted: {_rights()}"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("==ERROR==", "==WARNING=="))]
    last = (errors or lines or [f"it ended with code {code}"])[0 if errors else -1]
    return (
        f"ncu counted nothing: {last.removeprefix('==ERROR==').removeprefix('==WARNING==').strip()}"
    )


def _rights() -> str:
    """What would permit the counters, where this process may not read them."""
    status, driver = _read("/proc/self/status"), _read("/proc/driver/nvidia/params")
    held = re.search(r"CapEff:\s*([0-9a-f]+)", status)
    bits = int(held[1], 16) if held else 0
    lacks = [name for name, bit in _CAPABILITIES.items() if not bits >> bit & 1]
    text = f"it needs {' or '.join(_CAPABILITIES)} (missing here: {', '.join(lacks) or 'none'})"
    if admin := re.search(r"RmProfilingAdminOnly:\s*(\d)", driver):
        text += f", or a driver without RmProfilingAdminOnly (it is {admin[1]})"
    else:
        text += ", or NVreg_RestrictProfilingToAdminUsers=0 for the driver"
    return text


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _version(ncu: str) -> str:
    done = subprocess.run([ncu, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"Version (\S+)", done.stdout)
    return f"ncu {found[1]}" if found else "ncu"
