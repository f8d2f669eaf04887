"""CPU: matmuls of two arrays of the run, beside NumPy, PyTorch and ONNX Runtime.

    python -m benchmarks.cpu_runtime_matmul
    python -m benchmarks.cpu_runtime_matmul --threads 2 --doors plan jit --only 512x512x512 1000
    python -m benchmarks.cpu_runtime_matmul --blocks 64,64,32 128,128,32

Shapes are m x k x n, with "a'" and "b'" where an operand is stored transposed, and a batch in
front. Both sides take turns in one run; a time is the least of many calls, in processor time where
there is one thread, as others may use the machine. Results are held against float64. A ratio is the
best peer's time over ours. --blocks: a matmul written in the block language, with masks, in blocks
of m, n and k, where operands are in order and there is no batch.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto, helper

Array = np.ndarray[Any, Any]
SHAPES = (
    "64x64x64", "96x96x96", "128x128x128", "192x192x192", "256x256x256", "257x257x257",
    "384x384x384", "512x512x512", "768x768x768", "1000x1000x1000", "1024x1024x1024",
    "1536x1536x1536", "2048x2048x2048", "4096x4096x4096", "12x1024x1024", "33x1000x257",
    "128x768x3072", "1000x257x1000", "4096x64x64", "64x4096x64", "512x512x512 b'", "512x512x512 a'",
    "512x512x512 a' b'", "8x256x256x256", "12x197x64x197 b'",
    "1x4096x4096", "4x4096x4096", "1x1000x1000", "1x4096x4096 b'", "1x1001x1001 b'",
)  # fmt: skip
DTYPES = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE,
          "float16": TensorProto.FLOAT16}  # fmt: skip
DOORS = ("plan", "jit")
LARGEST = 1 << 31
"""Multiply-adds of a matmul, more of which are checked by some of their rows."""


@dataclass(frozen=True)
class Shape:
    """batch: 0 for none. turned: whether the operands are stored transposed."""

    name: str
    batch: int
    m: int
    k: int
    n: int
    turned: tuple[bool, bool]

    @property
    def flops(self) -> float:
        return 2.0 * max(1, self.batch) * self.m * self.k * self.n


def shape_of(name: str) -> Shape:
    sizes, *marks = name.split()
    *batch, m, k, n = map(int, sizes.split("x"))
    return Shape(name, batch[0] if batch else 0, m, k, n, ("a'" in marks, "b'" in marks))


def operands(shape: Shape, dtype: str) -> tuple[Array, Array]:
    """a and b as they are stored."""
    rng = np.random.default_rng(0)
    lead = (shape.batch,) if shape.batch else ()
    sides = (shape.m, shape.k), (shape.k, shape.n)
    a, b = (
        rng.standard_normal((*lead, *(side[::-1] if turn else side))).astype(dtype)
        for side, turn in zip(sides, shape.turned, strict=True)
    )
    return a, b


def seen(shape: Shape, a: Any, b: Any) -> tuple[Any, Any]:
    """The operands as the matmul takes them, of NumPy or PyTorch."""
    turn_a, turn_b = shape.turned
    return a.swapaxes(-1, -2) if turn_a else a, b.swapaxes(-1, -2) if turn_b else b


def model_of(shape: Shape, a: Array, b: Array) -> Any:
    kind = helper.np_dtype_to_tensor_dtype(a.dtype)
    lead = [shape.batch] if shape.batch else []
    order = [*range(len(lead)), len(lead) + 1, len(lead)]
    nodes, names = [], ["a", "b"]
    for side, turn in enumerate(shape.turned):
        if turn:
            nodes.append(helper.make_node("Transpose", [names[side]], [f"t{side}"], perm=order))
            names[side] = f"t{side}"
    nodes.append(helper.make_node("MatMul", names, ["y"]))
    inputs = [helper.make_tensor_value_info(name, kind, list(x.shape))
              for name, x in (("a", a), ("b", b))]  # fmt: skip
    result = helper.make_tensor_value_info("y", kind, [*lead, shape.m, shape.n])
    graph = helper.make_graph(nodes, "matmul", inputs, [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


Call = Callable[[], Any]


def doors(shape: Shape, a: Array, b: Array, threads: int, wanted: list[str]) -> dict[str, Call]:
    import fuser

    found: dict[str, Call] = {}
    if "plan" in wanted:
        plan = fuser.compile(model_of(shape, a, b), device="cpu", threads=threads)
        feeds = {"a": a, "b": b}
        found["plan"] = lambda: plan.run(feeds)["y"]
    if "jit" in wanted:

        @fuser.jit(device="cpu", threads=threads)  # type: ignore[untyped-decorator]
        def multiply(x: Any, y: Any) -> Any:
            x, y = seen(shape, x, y)
            return x @ y

        found["jit"] = lambda: multiply(a, b)
    return found


def peers(shape: Shape, a: Array, b: Array, threads: int) -> dict[str, Call]:
    one, other = seen(shape, a, b)
    found: dict[str, Call] = {}
    if a.dtype != np.float16:
        found["numpy"] = lambda: one @ other
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.set_num_threads(threads)
        left, right = seen(shape, torch.from_numpy(a), torch.from_numpy(b))
        found["torch"] = lambda: left @ right
    if importlib.util.find_spec("onnxruntime") is not None:
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        data = model_of(shape, a, b).SerializeToString()
        session = onnxruntime.InferenceSession(data, settings, providers=["CPUExecutionProvider"])
        feeds = {"a": a, "b": b}
        found["onnxruntime"] = lambda: session.run(None, feeds)[0]
    return found


def blocked(shape: Shape, a: Array, b: Array, blocks: list[str]) -> dict[str, Call]:
    """The matmul of the block language, in each of the blocks."""
    from benchmarks.cpu_matmul_kernel import launch

    plain = not shape.batch and not any(shape.turned) and a.dtype == np.float32
    return {text: launch(a, b, text) for text in blocks} if plain else {}


def error_of(call: Call, shape: Shape, a: Array, b: Array) -> float:
    """The greatest difference from float64, over the greatest result."""
    found = np.asarray(call()).astype(np.float64)
    one, other = (x.astype(np.float64) for x in seen(shape, a, b))
    if shape.flops > LARGEST and not shape.batch:
        one, found = one[:: max(1, shape.m // 16)], found[:: max(1, shape.m // 16)]
    right = one @ other
    return float(np.abs(found - right).max() / np.abs(right).max())


def measure(calls: dict[str, Call], threads: int, seconds: float) -> dict[str, float]:
    clock = time.thread_time if threads == 1 else time.perf_counter
    best = dict.fromkeys(calls, math.inf)
    end, rounds = time.monotonic() + seconds, 0
    while rounds < 3 or time.monotonic() < end:
        for name, call in calls.items():
            start = clock()
            call()
            best[name] = min(best[name], clock() - start)
        rounds += 1
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--doors", nargs="*", default=["plan"], choices=DOORS)
    parser.add_argument("--blocks", nargs="*", default=[], metavar="M,N,K")
    parser.add_argument("--dtype", default="float32", choices=list(DTYPES))
    parser.add_argument("--only", nargs="*", default=[], metavar="TEXT", help="names with a text")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a shape's measurement")
    options = parser.parse_args()
    wanted = [name for name in SHAPES
              if not options.only or any(text in name for text in options.only)]  # fmt: skip
    ratios: dict[str, list[float]] = {}
    failed = False
    for name in wanted:
        shape = shape_of(name)
        a, b = operands(shape, options.dtype)
        ours = doors(shape, a, b, options.threads, options.doors)
        ours |= blocked(shape, a, b, options.blocks)
        others = peers(shape, a, b, options.threads)
        errors = {door: error_of(call, shape, a, b) for door, call in ours.items()}
        limit = np.finfo(options.dtype).eps * (4 + math.sqrt(shape.k))
        best = measure(ours | others, options.threads, options.seconds)
        least = min(best[peer] for peer in others)
        words = []
        for door in ours:
            ratio = least / best[door]
            ratios.setdefault(door, []).append(ratio)
            wrong = not errors[door] <= limit
            failed |= wrong
            rate = shape.flops / best[door] / 1e9
            words.append(f"{door} {best[door] * 1e3:9.3f} ms {rate:6.1f} GFLOP/s {ratio:5.2f}"
                         f"{f'  WRONG: {errors[door]:.1e}' if wrong else ''}")  # fmt: skip
        words += [f"{peer} {best[peer] * 1e3:9.3f} ms" for peer in others]
        print(f"{name:20} " + "  ".join(words), flush=True)
    for door, values in ratios.items():
        mean = math.exp(sum(map(math.log, values)) / len(values))
        at_least = sum(value >= 1 for value in values)
        print(f"{door}: mean {mean:.2f}, at least 1: {at_least} of {len(values)}")
    return 1 if failed else 0


def _limit_threads() -> None:
    """OpenBLAS reads its threads when NumPy is loaded, kernels of the language take all cores: the
    process begins again with as many as threads are asked for."""
    flags = [word for i, word in enumerate(sys.argv) if sys.argv[i - 1 : i] == ["--threads"]]
    threads = flags[-1] if flags else "1"
    if os.environ.get("OPENBLAS_NUM_THREADS") != threads:
        os.environ["OPENBLAS_NUM_THREADS"] = threads
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-int(threads) :])
        module = [sys.executable, "-m", "benchmarks.cpu_runtime_matmul"]
        os.execv(sys.executable, [*module, *sys.argv[1:]])


if __name__ == "__main__":
    _limit_threads()
    sys.exit(main())
