"""Whole models: fuser and its peers in one run, checked against each other.

    python -m benchmarks.models                      # CPU, beside ONNX Runtime
    python -m benchmarks.models --device cuda        # GPU, beside PyTorch in three modes
    python -m benchmarks.models --models minilm resnet50 --rounds 20

Prints a table, the ratios peer / fuser (above 1: fuser is faster) and their geometric mean.
Exit code 1 if an output is wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass
class Row:
    """One model. Times in milliseconds; error is ||fuser - reference|| / ||reference||."""

    model: str
    fuser: float = math.nan
    kernels: int = 0
    compile_s: float = 0.0
    error: float = math.nan
    peers: dict[str, float] = field(default_factory=dict)
    problem: str = ""

    def ratio(self, peer: str) -> float:
        """Time of a peer, or of the "best peer", in times of fuser."""
        if peer == "best peer":
            return min(self.peers.values(), default=math.nan) / self.fuser
        return self.peers.get(peer, math.nan) / self.fuser


def print_table(rows: Sequence[Row], peers: Sequence[str]) -> None:
    """A Markdown table, so that it can go into a page as it is."""
    heads = ["model", "fuser ms", "kernels", "compile s", "error", *(f"{p} ms" for p in peers)]
    heads += [f"{peer} / fuser" for peer in peers]
    print("| " + " | ".join(heads) + " |")
    print("| --- " * len(heads) + "|")
    for row in rows:
        cells = [row.model]
        if row.problem:
            cells += [row.problem]
        else:
            cells += [f"{row.fuser:.3f}", str(row.kernels), f"{row.compile_s:.1f}"]
            cells += [f"{row.error:.1e}", *(f"{row.peers.get(p, math.nan):.3f}" for p in peers)]
            cells += [f"{row.ratio(peer):.2f}" for peer in peers]
        print("| " + " | ".join(cells) + " |")
    best = ["best peer"] if len(peers) > 1 else []
    for peer in (*peers, *best):
        ratios = [row.ratio(peer) for row in rows if not math.isnan(row.ratio(peer))]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            wins = sum(ratio >= 1 for ratio in ratios)
            print(
                f"{peer} / fuser: geometric mean {mean:.2f}, least {min(ratios):.2f},"
                f" fuser at least as fast on {wins} of {len(ratios)}"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--models", nargs="*", metavar="NAME", help="only these")
    parser.add_argument("--rounds", type=int, default=7, help="CPU: alternations with the peer")
    parser.add_argument("--threads", type=int, default=0, help="CPU: default one a core")
    parser.add_argument("--iterations", type=int, default=100, help="GPU: timed runs of each mode")
    parser.add_argument("--skip-compile", action="store_true", help="GPU: without torch.compile")
    parser.add_argument("--skip-peers", action="store_true", help="time fuser alone")
    parser.add_argument("--json", type=Path, help="write the rows to this file too")
    options = parser.parse_args()
    if options.device == "cpu":
        from benchmarks import models_cpu as runner
    else:
        from benchmarks import cuda as runner  # type: ignore[no-redef]
    unknown = set(options.models or ()) - set(runner.CASES)
    if unknown:
        known = ", ".join(runner.CASES)
        parser.error(f"unknown {', '.join(sorted(unknown))}; choose among {known}")
    rows = runner.run(options.models or list(runner.CASES), options)
    print(f"\n{runner.describe_machine(options)}\n")
    print_table(rows, runner.peers(options))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    wrong = [row for row in rows if row.problem or not row.error < runner.TOLERANCE]
    for row in wrong:
        print(f"WRONG {row.model}: {row.problem or f'error {row.error:.1e}'}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
