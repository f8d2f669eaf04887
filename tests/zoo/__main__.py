"""python -m tests.zoo: models of the transformers library on every route, as a table."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers

from models.zoo import CACHED, ZOO
from tests.conformance.document import MODELS_BEGIN
from tests.foreign_sections import SECTIONS_BEGIN
from tests.zoo.routes import EXPORTERS, ROUTES, Outcome, run_route

_INTRODUCTION = """
## Models: {title}

Models of transformers {transformers} with random weights, and an LSTM tagger (`models/zoo.py`),
from PyTorch {torch} by both ONNX exporters and both traces, beside PyTorch in float64: the greatest
relative error of the outputs, and kernels launched. Nothing is computed outside of kernels.
`python -m tests.zoo` prints this table (`--help`); `tests/zoo` has the tests.
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    parser.add_argument("names", nargs="*", help="models; all by default")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "float16"), default="float32")
    parser.add_argument("--routes", nargs="*", default=ROUTES, choices=ROUTES)
    parser.add_argument("--tensors", action="store_true", help="traces: CUDA tensors in and out")
    parser.add_argument("--doc", type=Path, help="write the table into this page")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    cases = [(name, 4) for name in arguments.names or ZOO]
    cases += [(name, 0) for name, _ in cases if name in CACHED]
    limit = 1e-2 if arguments.dtype == "float16" else {"cpu": 1e-5, "cuda": 1e-4}[arguments.device]
    lines, good, started = [], True, time.perf_counter()
    for name, past in cases:
        cells = []
        for route in arguments.routes:
            try:
                outcome = run_route(
                    name, route, device=arguments.device, dtype=arguments.dtype, past=past,
                    on_device=arguments.tensors and route not in EXPORTERS,
                )  # fmt: skip
            except Exception as error:  # a table of what works: one row may fail
                print(f"{name} {route}: {type(error).__name__}: {error}", file=sys.stderr)
                cells.append(type(error).__name__)
                good = False
                continue
            good = good and outcome.error < limit and not outcome.fallbacks
            cells.append(_cell(outcome, limit))
        label = f"{name}, {past} tokens" if name in CACHED else name
        lines.append(f"| {label} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    print(f"{time.perf_counter() - started:.0f} s")
    if arguments.doc:
        _write(arguments.doc, f"{arguments.device}, {arguments.dtype}", arguments.routes, lines)
    return 0 if good else 1


def _cell(outcome: Outcome, limit: float) -> str:
    wrong = "" if outcome.error < limit else " WRONG"
    outside = f" outside kernels: {len(outcome.fallbacks)}" if outcome.fallbacks else ""
    return f"{outcome.error:.0e}{wrong}, {outcome.after}{outside}"


def _write(path: Path, title: str, routes: Sequence[str], lines: list[str]) -> None:
    """Put the table under its title, after what the page says of the ONNX suite."""
    versions = {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0]}
    text = _INTRODUCTION.format(title=title, **versions)
    text += "\n".join(["", f"| model | {' | '.join(routes)} |", "|---|" + "---|" * len(routes)])
    text += "\n" + "\n".join(lines) + "\n"
    page, _, models = path.read_text().partition(MODELS_BEGIN)
    models, mark, others = models.partition(SECTIONS_BEGIN)
    parts = models.split("\n## Models: ")[1:] + text.split("\n## Models: ")[1:]
    tables = {part.splitlines()[0]: part.rstrip() for part in parts}  # the new one replaces
    sections = "".join(f"\n## Models: {tables[key]}\n" for key in sorted(tables))
    text = page.rstrip() + "\n\n" + MODELS_BEGIN + "\n" + sections
    path.write_text(text + (f"\n{mark}{others}" if mark else ""))


if __name__ == "__main__":
    sys.exit(main())
