"""A Llama decoder on one device and divided over several: prefill of 512 tokens, and one token
behind 512 others, with random weights in float16.

    python -m benchmarks.sharded                       # 1.1B and the shape of 7B, on 1 and 2 GPUs
    python -m benchmarks.sharded --shapes 1.1b --devices 1 2 4
    python -m benchmarks.sharded --device cpu --shapes tiny --tokens 32

A row is a shape and a phase: milliseconds of a run by the device's clock, data in place, the median
of the slowest rank; times as fast as one device; what a rank exchanges. Results of the ranks are
compared with those of one device in the same run: the relative error of all outputs together.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fuser
from fuser.dtypes import BY_NAME
from fuser.runtime.sharded import ShardedPlan
from models.llama import llama
from models.writer import save

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 2, "hidden": 256, "heads": 8, "kv_heads": 4, "intermediate": 704,
             "vocabulary": 4096, "dtype": "float32"},
    "1.1b": {"dtype": "float16"},
    "7b": {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 32, "intermediate": 11008,
           "dtype": "float16"},
}  # fmt: skip
PHASES = ("prefill", "decode")
Row = dict[str, Any]


def exchanged(plan: ShardedPlan) -> int:
    """Bytes that a rank gives to collectives in a run."""
    return sum(item.size * BY_NAME[item.dtype].bytes for item in plan.collectives)


def error(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    """The norm of the difference over that of the expected outputs."""
    wide = {name: array.astype(np.float64) for name, array in expected.items()}
    difference = sum(float(((found[n].astype(np.float64) - a) ** 2).sum()) for n, a in wide.items())
    return (difference / sum(float((a**2).sum()) for a in wide.values())) ** 0.5


def rows(
    shape: str, phase: str, devices: Sequence[int], device: str, tokens: int, iterations: int
) -> Iterator[Row]:
    """One for each number of devices."""
    decodes = phase == "decode"
    model = llama(batch=1, sequence=1 if decodes else tokens, cache=decodes, **SHAPES[shape])
    dims = {"past": tokens} if decodes else {}
    with tempfile.TemporaryDirectory(prefix="fuser-sharded-") as folder:
        path = Path(folder) / "llama.onnx"
        save(model, path)
        del model
        expected: dict[str, np.ndarray] | None = None
        alone = 0.0
        for count in devices:
            plan: Any
            if count == 1:
                plan = fuser.compile(path, device=device, dims=dims)
            else:
                plan = fuser.compile(path, device=device, dims=dims, devices=count)
            with plan:
                feeds = plan.random_feeds()
                outputs = plan.run(feeds)
                timed = plan.profile_device if count == 1 else plan.profile
                latency = timed(feeds, iterations=iterations, warmup=5)
                sharded = isinstance(plan, ShardedPlan)
                row = {
                    "shape": shape, "phase": phase, "devices": count, "device": plan.device_name,
                    "ms": latency.median, "collectives": len(plan.collectives) if sharded else 0,
                    "exchanged": exchanged(plan) if sharded else 0,
                    "gigabytes": plan.peak_memory_bytes / 1e9,
                }  # fmt: skip
            if count == 1:
                expected, alone = outputs, latency.median
            row["speedup"] = alone / latency.median if alone else None
            row["error"] = error(outputs, expected) if expected is not None else None
            yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["1.1b", "7b"])
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=list(PHASES))
    parser.add_argument("--devices", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--json", type=Path, help="write the rows there, too")
    chosen = parser.parse_args()
    found = []
    print("shape  phase    devices        ms  times  collectives   kB a rank  GB a rank    error")
    for shape in chosen.shapes:
        for phase in chosen.phases:
            for row in rows(
                shape, phase, chosen.devices, chosen.device, chosen.tokens, chosen.iterations
            ):
                found.append(row)
                speedup = f"{row['speedup']:.2f}" if row["speedup"] else "-"
                off = f"{row['error']:.1e}" if row["error"] is not None else "-"
                print(
                    f"{shape:6} {phase:8} {row['devices']:7} {row['ms']:9.3f} {speedup:>6}"
                    f" {row['collectives']:12} {row['exchanged'] / 1e3:11.1f}"
                    f" {row['gigabytes']:10.2f} {off:>8}", flush=True,
                )  # fmt: skip
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
