"""CPU: fuser beside ONNX Runtime, float32, as many threads each, in turns."""

from __future__ import annotations

import platform
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import fuser
from benchmarks.models import Row
from models import build, example_feeds

TOLERANCE = 1e-4  # two float32 implementations, each within 1e-5 or so of the truth

# name: (builder, its keywords, sizes of symbolic dims)
CASES: Mapping[str, tuple[str, Mapping[str, int], Mapping[str, int]]] = {
    "minilm": ("minilm", {}, {"batch": 1, "sequence": 128}),
    "resnet50": ("resnet50", {}, {"batch": 1}),
    "bert": ("bert", {}, {"batch": 1, "sequence": 128}),
    "gpt2": ("gpt2", {}, {"batch": 1, "sequence": 128}),
    "vit": ("vit", {}, {"batch": 1}),
    "tiny_llama": ("tiny_llama", {}, {"batch": 1, "sequence": 64}),
    "mlp": ("mlp", {}, {"batch": 32}),
    "conv_block": ("conv_block", {}, {"batch": 1}),
    "attention": ("attention", {}, {"batch": 1, "sequence": 128}),
}
SECONDS = 0.3  # of one side in one round


def peers(options: Namespace) -> list[str]:
    return [] if options.skip_peers else ["onnxruntime"]


def describe_machine(options: Namespace) -> str:
    from fuser.backend.cpu import host_target

    target = host_target()
    threads = options.threads or target.units
    text = f"{target.arch}, {target.vector_bits}-bit vectors, {threads} threads, float32"
    return f"{text}, Python {platform.python_version()}; medians of whole runs"


def run(names: Sequence[str], options: Namespace) -> list[Row]:
    rows = []
    for name in names:
        print(f"{name} ...", flush=True)
        try:
            rows.append(_measure(name, options))
        except fuser.FuserError as error:
            rows.append(Row(name, problem=str(error)))
    return rows


def _measure(name: str, options: Namespace) -> Row:
    builder, keywords, sizes = CASES[name]
    model = build(builder, **keywords)
    feeds = example_feeds(model, sizes)
    started = time.perf_counter()
    plan = fuser.compile(
        model, device="cpu", dims=dict(sizes), threads=options.threads or None
    )
    row = Row(name, kernels=plan.launches, compile_s=time.perf_counter() - started)
    outputs = plan.run(feeds)
    sides: dict[str, Callable[[], Any]] = {"fuser": lambda: plan.run(feeds)}
    if not options.skip_peers:
        session = _session(model, options)
        sides["onnxruntime"] = lambda: session.run(None, feeds)
        expected = dict(zip(outputs, session.run(list(outputs), feeds), strict=True))
        row.error = max(_error(outputs[key], expected[key]) for key in outputs)
    else:
        row.error = 0.0
    times = _interleave(sides, options.rounds)
    row.fuser = times.pop("fuser")
    row.peers = times
    return row


def _session(model: Any, options: Namespace) -> Any:
    import onnxruntime

    from fuser.backend.cpu import host_target

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads or host_target().units
    settings.inter_op_num_threads = 1
    settings.log_severity_level = 3
    return onnxruntime.InferenceSession(
        model.SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )


def _error(output: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    left, right = output.astype(np.float64), expected.astype(np.float64)
    return float(np.linalg.norm(left - right) / np.linalg.norm(right))


def _interleave(sides: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median milliseconds of each side. They take turns, so that a slow minute of the machine hits
    both, with a pause between: either may keep its threads spinning for a while."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, call in sides.items():
            time.sleep(0.1)
            call()
            call()
            end = time.perf_counter() + SECONDS
            while True:
                start = time.perf_counter()
                call()
                stop = time.perf_counter()
                times[name].append((stop - start) * 1e3)
                if stop > end:
                    break
    return {name: float(np.median(values)) for name, values in times.items()}
