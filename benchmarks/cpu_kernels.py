"""CPU: products, GEMV and rows on one core, beside what the core and its memory can do.

    python -m benchmarks.cpu_kernels
    python -m benchmarks.cpu_kernels --only 128x768x768 softmax --rounds 20

The roofs are measured in the same run, in turns with the cases: multiply-adds of registers for
products; reading a large array for matrix-vector products, whose bytes are those of the weights;
copying one for softmax and layer normalisation, whose bytes are those read and written. Processor
time of one thread, minima over the rounds; results are checked against NumPy. ONNX Runtime takes
turns where it is installed.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import fuser
from fuser.backend import llvm
from fuser.backend.cpu.host import host_target
from fuser.runtime.jit import link_objects
from fuser.runtime.memory import aligned_empty

Array = np.ndarray[Any, Any]
PRODUCTS = (
    (128, 768, 768), (128, 768, 3072), (128, 3072, 768), (512, 512, 512), (1024, 1024, 1024),
    (2048, 2048, 2048),
)  # fmt: skip
VECTORS = ((1, 4096, 4096), (1, 4096, 11008))
ROWS = (("softmax", 8192, 4096), ("layernorm", 8192, 4096))
STREAM_BYTES = 256 << 20
TARGETS = {"product": 0.92, "small product": 0.80, "vector": 0.85, "rows": 0.85}
"""The share of its roof that each kind of case should reach."""


@dataclass
class Case:
    """work: operations of a product, bytes of the others. roof: which one it is held against."""

    name: str
    kind: str
    roof: str
    work: float
    call: Callable[[], object]
    peer: Callable[[], object] | None
    error: float
    seconds: list[float] = field(default_factory=list)
    peer_seconds: list[float] = field(default_factory=list)


def roofs() -> tuple[dict[str, Callable[[], float]], object]:
    """Calls that measure "flops", "read" and "copy" once, per second; and what keeps their code."""
    target = host_target()
    lanes, accumulators = target.lanes(32), target.vector_registers - 4
    text = _roof_text(lanes, accumulators)
    features = target.features if not target.arch.startswith("aarch64") else ""
    code = llvm.emit_object(text, llvm.Machine("", target.arch, features))
    linked = link_objects({"roofs_fma": code})
    whole = link_objects({"roofs_read": code})
    copied = link_objects({"roofs_copy": code})
    source, result = aligned_empty(STREAM_BYTES), aligned_empty(STREAM_BYTES)
    source[:], result[:] = 1, 0
    kept = linked, whole, copied, source, result
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
    trips = 1 << 20
    fma, read, copy = (kind(library[name]) for library, name in (
        (linked, "roofs_fma"), (whole, "roofs_read"), (copied, "roofs_copy")))  # fmt: skip
    at, to = source.ctypes.data, result.ctypes.data

    def rate(call: Callable[[], None], work: float) -> float:
        start = time.thread_time()
        call()
        return work / (time.thread_time() - start)

    vectors = STREAM_BYTES // (lanes * 4)
    return {
        "flops": lambda: rate(lambda: fma(trips, at, to), 2.0 * lanes * accumulators * trips),
        "read": lambda: rate(lambda: read(vectors, at, to), STREAM_BYTES),
        "copy": lambda: rate(lambda: copy(vectors, at, to), 2.0 * STREAM_BYTES),
    }, kept


def _roof_text(lanes: int, accumulators: int) -> str:
    """Three loops over %n, in vectors of `lanes` floats: multiply-adds, a sum, a copy."""
    v = f"<{lanes} x float>"
    args = "i64 %n, ptr %a, ptr %b"
    head = "  %i = phi i64 [ 0, %entry ], [ %i.next, %loop ]\n"
    back = "  %i.next = add i64 %i, {step}\n  %more = icmp ult i64 %i.next, %n\n" \
           "  br i1 %more, label %loop, label %out\n"  # fmt: skip
    fma = [f"define void @roofs_fma({args}) {{\nentry:\n  %x = load {v}, ptr %a, align 64\n"
           f"  %y = load {v}, ptr %b, align 64\n  br label %loop\nloop:\n{head}"]  # fmt: skip
    fma += [f"  %s{r} = phi {v} [ %x, %entry ], [ %t{r}, %loop ]\n" for r in range(accumulators)]
    fma += [f"  %t{r} = call {v} @llvm.fma.v{lanes}f32({v} %s{r}, {v} %y, {v} %x)\n"
            for r in range(accumulators)]  # fmt: skip
    fma += [back.format(step=1), "out:\n"]
    fma += [f"  store volatile {v} %t{r}, ptr %b, align 64\n" for r in range(accumulators)]
    at = "".join(
        f"  %i{u} = add i64 %i, {u}\n  %p{u} = getelementptr {v}, ptr %a, i64 %i{u}\n"
        f"  %v{u} = load {v}, ptr %p{u}, align 64\n"
        for u in range(8)
    )
    sums = "".join(f"  %s{u} = phi {v} [ zeroinitializer, %entry ], [ %t{u}, %loop ]\n"
                   for u in range(8))  # fmt: skip
    adds = "".join(f"  %t{u} = fadd {v} %s{u}, %v{u}\n" for u in range(8))
    ends = "".join(f"  store volatile {v} %t{u}, ptr %b, align 64\n" for u in range(8))
    read = (f"define void @roofs_read({args}) {{\nentry:\n  br label %loop\nloop:\n{head}{sums}{at}"
            f"{adds}{back.format(step=8)}out:\n{ends}  ret void\n}}\n")  # fmt: skip
    puts = "".join(
        f"  %q{u} = getelementptr {v}, ptr %b, i64 %i{u}\n  store {v} %v{u}, ptr %q{u}, align 64\n"
        for u in range(8)
    )
    copy = (f"define void @roofs_copy({args}) {{\nentry:\n  br label %loop\nloop:\n{head}{at}{puts}"
            f"{back.format(step=8)}out:\n  ret void\n}}\n")  # fmt: skip
    declare = f"declare {v} @llvm.fma.v{lanes}f32({v}, {v}, {v})\n"
    return "".join([*fma, "  ret void\n}\n", read, copy, declare])


def _model(nodes: list[Any], shape: list[int], result: list[int], *weights: Any) -> Any:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
            for name, dims in (("x", shape), ("y", result)))  # fmt: skip
    graph = helper.make_graph(nodes, "case", [x], [y], list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _case(
    name: str, kind: str, roof: str, work: float, model: Any, x: Array, wanted: Array
) -> Case:
    plan = fuser.compile(model, device="cpu", threads=1)
    found = plan.run({"x": x})["y"]
    error = float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))
    peer = None
    if importlib.util.find_spec("onnxruntime") is not None:
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1
        data = model.SerializeToString()
        session = onnxruntime.InferenceSession(data, settings, providers=["CPUExecutionProvider"])
        peer = lambda: session.run(None, {"x": x})  # noqa: E731
    return Case(name, kind, roof, work, lambda: plan.run({"x": x}), peer, error)


def product_case(m: int, k: int, n: int) -> Case:
    """x [m, k] times constant weights [k, n]."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((m, k)).astype(np.float32)
    w = (rng.standard_normal((k, n)) / np.sqrt(k)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = _model(nodes, [m, k], [m, n], numpy_helper.from_array(w, "w"))
    if m == 1:
        return _case(f"gemv {k}x{n}", "vector", "read", 4.0 * k * n, model, x, x @ w)
    kind = "product" if m * n * k > 1 << 28 else "small product"
    return _case(f"{m}x{k}x{n}", kind, "flops", 2.0 * m * n * k, model, x, x @ w)


def row_case(what: str, rows: int, columns: int) -> Case:
    """softmax or layer normalisation of the rows of x [rows, columns]."""
    x = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
    if what == "softmax":
        model = _model([helper.make_node("Softmax", ["x"], ["y"])], [rows, columns],
                       [rows, columns])  # fmt: skip
        e = np.exp(x - x.max(-1, keepdims=True))
        wanted = e / e.sum(-1, keepdims=True)
    else:
        gain = numpy_helper.from_array(np.full(columns, 1.5, np.float32), "g")
        model = _model([helper.make_node("LayerNormalization", ["x", "g"], ["y"])],
                       [rows, columns], [rows, columns], gain)  # fmt: skip
        d = x - x.mean(-1, keepdims=True)
        wanted = d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5) * 1.5
    name = f"{what} {rows}x{columns}"
    return _case(name, "rows", "copy", 8.0 * rows * columns, model, x, wanted)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=[], metavar="TEXT", help="names with a text")
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    makers: list[tuple[str, Callable[[], Case]]] = []
    for m, k, n in (*PRODUCTS, *VECTORS):
        name = f"gemv {k}x{n}" if m == 1 else f"{m}x{k}x{n}"
        makers.append((name, lambda m=m, k=k, n=n: product_case(m, k, n)))  # type: ignore[misc]
    for what, rows, columns in ROWS:
        makers.append((f"{what} {rows}x{columns}",
                       lambda w=what, r=rows, c=columns: row_case(w, r, c)))  # type: ignore[misc]  # fmt: skip
    wanted = [make for name, make in makers
              if not options.only or any(part in name for part in options.only)]  # fmt: skip
    cases = [make() for make in wanted]
    measures, kept = roofs()
    best = dict.fromkeys(measures, 0.0)
    for _ in range(options.rounds):
        for name, measure in measures.items():
            best[name] = max(best[name], measure())
        for case in cases:
            _turn(case.call, case.seconds)
            if case.peer is not None:
                _turn(case.peer, case.peer_seconds)
    del kept
    return _report(cases, best)


def _turn(call: Callable[[], object], seconds: list[float]) -> None:
    call()
    end = time.perf_counter() + 0.1
    while time.perf_counter() < end:
        start = time.thread_time()
        call()
        seconds.append(time.thread_time() - start)


def _report(cases: list[Case], best: dict[str, float]) -> int:
    print(f"peak {best['flops'] / 1e9:.0f} GFLOP/s, read {best['read'] / 1e9:.1f} GB/s, "
          f"copy {best['copy'] / 1e9:.1f} GB/s\n")  # fmt: skip
    print("| case | fuser | rate | of its roof | wanted | ONNX Runtime / fuser | error |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    wrong = 0
    for case in cases:
        seconds = min(case.seconds)
        rate = case.work / seconds
        unit = "GFLOP/s" if case.roof == "flops" else "GB/s"
        ratio = f"{min(case.peer_seconds) / seconds:.2f}" if case.peer_seconds else ""
        print(f"| {case.name} | {seconds * 1e6:.0f} us | {rate / 1e9:.1f} {unit} | "
              f"{rate / best[case.roof]:.0%} | {TARGETS[case.kind]:.0%} | {ratio} | "
              f"{case.error:.1e} |")  # fmt: skip
        wrong += case.error > 1e-5
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
