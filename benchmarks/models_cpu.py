"""CPU: fuser beside ONNX Runtime and OpenVINO, the same ONNX files, as many threads each, in turns.

    python -m benchmarks.models_cpu                       # 1 and 2 threads
    python -m benchmarks.models_cpu --models bert vit --threads 2 --rounds 10
    python -m benchmarks.models_cpu --threads 1 --clock cpu
    python -m benchmarks.models_cpu --precision bf16      # beside fuser's f32 and OpenVINO's bf16
    python -m benchmarks.models_cpu --threads 1 4 8 0     # 0: what each chooses by itself
    python -m benchmarks.models_cpu --threads 0 --busy 1  # while another process keeps a core busy

On a machine that does other work as well, compare minima (`--statistic min`), and with one thread
the processor time instead of the time on the wall (`--clock cpu`). OpenVINO runs with the
inference-precision hint f32, or bf16 with `--precision bf16`; without the package its column stays
away. The exports of PyTorch (`bert torchscript`, `gpt2 dynamo`, ...) run where they are asked for:
they need torch, transformers and onnxscript.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import fuser
from benchmarks.models import Row, print_table
from fuser.pipeline.precision import Precision, rounding
from models import build, example_feeds
from models.exports import Exporter, export, export_feeds

# two float32 implementations, each within 1e-5 or so of the truth; of bfloat16 operands, roundings
# of 2**-9 through tens of layers
TOLERANCE = {"model": 1e-4, "bf16": 0.03}
OWN = "fuser f32"
Feeds = Mapping[str, np.ndarray[Any, Any]]
Side = Callable[[], list[np.ndarray[Any, Any]]]

# name: (builder, its keywords, sizes of symbolic dims)
CASES: Mapping[str, tuple[str, Mapping[str, int], Mapping[str, int]]] = {
    "minilm": ("minilm", {}, {"batch": 1, "sequence": 128}),
    "resnet50": ("resnet50", {}, {"batch": 1}),
    "resnet50 x8": ("resnet50", {}, {"batch": 8}),
    "mobilenet": ("mobilenet", {}, {"batch": 1}),
    "bert": ("bert", {}, {"batch": 1, "sequence": 128}),
    "bert 384": ("bert", {}, {"batch": 1, "sequence": 384}),
    "bert x8": ("bert", {}, {"batch": 8, "sequence": 128}),
    "gpt2": ("gpt2", {}, {"batch": 1, "sequence": 128}),
    "vit": ("vit", {}, {"batch": 1}),
    "tiny_llama": ("tiny_llama", {}, {"batch": 1, "sequence": 64}),
    "mlp": ("mlp", {}, {"batch": 32}),
    "conv_block": ("conv_block", {}, {"batch": 1}),
    "attention": ("attention", {}, {"batch": 1, "sequence": 128}),
}
EXPORTS: Mapping[str, tuple[str, Exporter]] = {
    "bert torchscript": ("bert", "torchscript"),
    "gpt2 dynamo": ("gpt2", "dynamo"),
    "vit torchscript": ("vit", "torchscript"),
    "resnet dynamo": ("resnet", "dynamo"),
}
"""What PyTorch's exporters write for transformers models of the usual size, batch 1."""
SECONDS = 0.3  # of one side in one round
PAUSE = 0.1  # between sides: either may keep its threads spinning for a while


def peers(options: Namespace) -> list[str]:
    if options.skip_peers:
        return []
    narrow = _precision(options) != "model"
    found = ["openvino"] if narrow else ["onnxruntime", "openvino"]
    present = [name for name in found if importlib.util.find_spec(name) is not None]
    return [OWN, *present] if narrow else present


def _precision(options: Namespace) -> Precision:
    return getattr(options, "precision", "model")


def describe_machine(options: Namespace) -> str:
    from fuser.backend.cpu import host_target

    target = host_target()
    threads = options.threads or f"{target.units} (by default)"
    how = getattr(options, "statistic", "median")
    clock = "processor time" if getattr(options, "clock", "wall") == "cpu" else "time"
    precision = rounding(_precision(options), target).text
    numbers = "float32" if precision == "model" else f"products in {precision}"
    text = f"{target.arch}, {target.vector_bits}-bit vectors, {threads} threads, {numbers}"
    return f"{text}, Python {platform.python_version()}; {how} {clock} of whole runs"


def run(names: Sequence[str], options: Namespace) -> list[Row]:
    rows = []
    for name in names:
        print(f"{name} ...", flush=True, file=sys.stderr)
        try:
            rows.append(_measure(name, options))
        except fuser.FuserError as error:
            rows.append(Row(name, problem=str(error)))
    return rows


def _measure(name: str, options: Namespace) -> Row:
    model, feeds, sizes = _case(name)
    threads = options.threads
    started = time.perf_counter()
    precision = _precision(options)
    settings: dict[str, Any] = {"device": "cpu", "dims": dict(sizes), "threads": threads}
    plan = fuser.compile(model, precision=precision, **settings)
    row = Row(name, kernels=plan.launches, compile_s=time.perf_counter() - started, error=0.0)
    outputs = plan.run(feeds)
    names = list(outputs)
    sides: dict[str, Side] = {"fuser": lambda: list(plan.run(feeds).values())}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        wanted = peers(options)
        if wanted:
            onnx.save(model, path)
        makers: dict[str, Callable[[], Side]] = {
            OWN: lambda: _whole(fuser.compile(model, **settings), feeds),
            "onnxruntime": lambda: _onnxruntime(path, names, feeds, threads),
            "openvino": lambda: _openvino(path, names, feeds, threads, precision),
        }
        for peer in wanted:
            sides[peer] = makers[peer]()
            expected = sides[peer]()
            errors = [_error(outputs[key], e) for key, e in zip(names, expected, strict=True)]
            row.error = max(row.error, *errors)
        row.peers = _interleave(sides, options)
        row.fuser = row.peers.pop("fuser")
    return row


def _case(name: str) -> tuple[onnx.ModelProto, Feeds, Mapping[str, int]]:
    """The model, its inputs, and the sizes of its symbolic dims."""
    if name in EXPORTS:
        which, exporter = EXPORTS[name]
        return export(which, exporter, "base"), export_feeds(which, "base"), {}
    builder, keywords, sizes = CASES[name] if name in CASES else _at_batch(name)
    model = build(builder, **keywords)
    return model, example_feeds(model, sizes), sizes


def _at_batch(name: str) -> tuple[str, Mapping[str, int], Mapping[str, int]]:
    """A case at another batch size, as in "vit x16". Raises KeyError if there is none."""
    base, _, batch = name.rpartition(" x")
    builder, keywords, sizes = CASES[base]
    if not batch.isdecimal():
        raise KeyError(name)
    return builder, keywords, {**sizes, "batch": int(batch)}


def _is_known(name: str) -> bool:
    with suppress(KeyError):
        return name in CASES or name in EXPORTS or bool(_at_batch(name))
    return False


def _onnxruntime(path: Path, names: list[str], feeds: Feeds, threads: int) -> Side:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads  # 0: its own choice
    settings.inter_op_num_threads = 1
    settings.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    return lambda: list(session.run(names, dict(feeds)))


def _whole(plan: fuser.Plan, feeds: Feeds) -> Side:
    return lambda: list(plan.run(feeds).values())


def _openvino(
    path: Path, names: list[str], feeds: Feeds, threads: int, precision: Precision
) -> Side:
    import openvino

    core = openvino.Core()
    model = core.read_model(path)
    # Static shapes, as the plan has: what the model's author would do for speed.
    model.reshape({key: list(array.shape) for key, array in feeds.items()})
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32" if precision == "model" else "bf16",
        "NUM_STREAMS": 1,
    }
    if threads:
        settings["INFERENCE_NUM_THREADS"] = threads
    request = core.compile_model(model, "CPU", settings).create_infer_request()

    def call() -> list[np.ndarray[Any, Any]]:
        found = request.infer(dict(feeds), share_inputs=True)
        return [np.array(found[name]) for name in names]

    return call


def _error(output: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    left, right = output.astype(np.float64), expected.astype(np.float64)
    return float(np.linalg.norm(left - right) / np.linalg.norm(right))


def _interleave(sides: Mapping[str, Side], options: Namespace) -> dict[str, float]:
    """Milliseconds of each side. They take turns, so that a slow minute of the machine hits all."""
    cpu = getattr(options, "clock", "wall") == "cpu"
    clock = time.process_time if cpu else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, call in sides.items():
            time.sleep(PAUSE)
            call()
            call()
            end = time.perf_counter() + SECONDS
            while time.perf_counter() < end:
                start = clock()
                call()
                times[name].append((clock() - start) * 1e3)
    fold = np.min if getattr(options, "statistic", "median") == "min" else np.median
    return {name: float(fold(values)) for name, values in times.items()}


def print_counts(everything: Mapping[int, Sequence[Row]]) -> None:
    """fuser's time by count of threads, and how far the default is from the best count."""
    counts = list(everything)
    print("\n| model | " + " | ".join(f"{n or 'default'}" for n in counts) + " | default / best |")
    print("| --- " * (len(counts) + 2) + "|")
    for rows in zip(*everything.values(), strict=True):
        times = dict(zip(counts, (row.fuser for row in rows), strict=True))
        loss = f"{times[0] / min(times.values()):.2f}" if 0 in times else ""
        cells = [f"{time:.2f}" for time in times.values()]
        print("| " + " | ".join([rows[0].model, *cells, loss]) + " |")


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Keep `count` cores busy with other processes."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="*", metavar="NAME", help="only these")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="0: the default")
    parser.add_argument("--busy", type=int, default=0, help="cores that others keep busy meanwhile")
    parser.add_argument("--rounds", type=int, default=7, help="turns of every side")
    parser.add_argument("--statistic", choices=("median", "min"), default="median")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--precision", choices=tuple(TOLERANCE), default="model")
    parser.add_argument("--skip-peers", action="store_true", help="time fuser alone")
    parser.add_argument("--json", type=Path, help="write the rows to this file too")
    options = parser.parse_args()
    unknown = [name for name in options.models or () if not _is_known(name)]
    if unknown:
        known = ", ".join((*CASES, *EXPORTS))
        parser.error(
            f"unknown {', '.join(unknown)}; choose among {known}, or add a batch: 'vit x4'"
        )
    everything: dict[int, list[Row]] = {}
    for threads in options.threads:
        here = argparse.Namespace(**{**vars(options), "threads": threads})
        with busy_cores(options.busy):
            rows = everything[threads] = run(options.models or list(CASES), here)
        print(f"\n{describe_machine(here)}\n")
        print_table(rows, peers(here))
    if len(everything) > 1:
        print_counts(everything)
    if options.json:
        plain = {threads: [asdict(row) for row in rows] for threads, rows in everything.items()}
        options.json.write_text(json.dumps(plain, indent=2) + "\n")
    every = [row for rows in everything.values() for row in rows]
    limit = TOLERANCE[options.precision]
    wrong = [row for row in every if row.problem or not row.error < limit]
    for row in wrong:
        print(f"WRONG {row.model}: {row.problem or f'error {row.error:.1e}'}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
