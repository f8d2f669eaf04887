"""Decoding with a state: a step of a 1.1B Llama beside what its bytes take.

    python -m benchmarks.decode                      # GPU: 1,024 and 4,096 tokens cached
    python -m benchmarks.decode --batches 1 --lengths 1024 --kernels
    python -m benchmarks.decode --device cpu --bits 4 --lengths 256 --against onnxruntime

A prompt of random tokens fills the cache; then each step takes one token a sequence and draws the
next one, on the device. Bytes are those that a step cannot avoid: weights once (of the embedding a
row a token), keys and values of the tokens before. The logits of a step are compared with those of
a run over all tokens at once, from an empty state, and two runs of the steps must draw the same
tokens. GPU: "ms" is between events around the steps, "tokens/s" by the clock on the wall, each
token read. CPU: ONNX Runtime runs the same file, its cache bound to itself from step to step; of
weights of 4 or 8 bits (MatMulNBits) with accuracy_level 0 and 4, which multiplies whole numbers.
Exit code 1 if a result is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

import fuser
from fuser.report.bench import PAUSE
from models.generate import decoder, generate

GPU_RATE = 4.28e12
"""Bytes a second that copies of an H200 reach."""
TOLERANCE = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}
"""Of ||logits - all at once|| / ||all at once||: other orders of sums, rounded 22 layers deep."""
MARGIN = 8
BURST = 4
"""Steps of a side in a row, beside another one."""
HOW = {"temperature": np.float32(0), "seed": np.int64(0)}

Array = np.ndarray[Any, Any]


@dataclass
class Row:
    """One batch at one length. ms: of a step; rate: tokens a second of all sequences together."""

    side: str
    batch: int
    length: int
    bytes: int
    ms: float
    rate: float
    error: float
    same: bool = True
    kernels: list[tuple[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Sizes:
    """What a step reads, by the model."""

    weights: int
    row: int
    """Bytes of keys and values of a token."""

    @staticmethod
    def of(model: onnx.ModelProto) -> Sizes:
        sizes = {item.name: _bytes(item) for item in model.graph.initializer}
        gathered = {node.input[0] for node in model.graph.node if node.op_type == "Gather"}
        weights = sum(size for name, size in sizes.items() if name not in gathered)
        row = 0
        for item in model.graph.input:
            if item.name.startswith("past"):
                type = item.type.tensor_type
                width = onnx.helper.tensor_dtype_to_np_dtype(type.elem_type).itemsize
                row += type.shape.dim[1].dim_value * type.shape.dim[3].dim_value * width
        return Sizes(weights, row)

    def step(self, batch: int, length: float) -> int:
        return int(self.weights + batch * length * self.row)


def _bytes(item: onnx.TensorProto) -> int:
    width = onnx.helper.tensor_dtype_to_np_dtype(item.data_type).itemsize
    return int(np.prod(item.dims, dtype=np.int64)) * width


def ids_of(batch: int, length: int, vocabulary: int) -> Array:
    return np.random.default_rng(length).integers(1, vocabulary, (batch, length))


def error_of(logits: Array, wanted: Array) -> float:
    a, b = logits.astype(np.float64), wanted.astype(np.float64)
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


class Fuser:
    """A decoder with its cache in a state."""

    def __init__(self, model: onnx.ModelProto, options: argparse.Namespace) -> None:
        self.sizes = Sizes.of(model)
        self.vocabulary = model.graph.output[-2].type.tensor_type.shape.dim[2].dim_value
        self.plan = fuser.compile(
            model, state="auto", device=options.device, threads=options.threads,
            fusion=fuser.Fusion(fold_norms=options.fold_norms),
        )  # fmt: skip
        self.steps = options.steps
        self.with_kernels = options.kernels

    def measure(self, batch: int, length: int) -> Row:
        """Fill the cache, check a step, time the following ones."""
        ids = ids_of(batch, length + 1, self.vocabulary)
        state = self.plan.state(batch=batch, capacity=length + self.steps + MARGIN)
        wanted = state.run({"input_ids": ids, **HOW})["logits"]
        state.truncate(length)
        found = state.run({"input_ids": ids[:, -1:], **HOW})
        error = error_of(found["logits"], wanted)
        ids = found["next_ids"]
        warm = generate(self.plan, ids, 6, state=state).tokens
        state.truncate(length + 1)
        again = generate(self.plan, ids, 6, state=state).tokens
        state.truncate(length + 1)
        started = time.perf_counter()
        tokens = generate(self.plan, ids, self.steps, state=state)
        seconds = (time.perf_counter() - started) / self.steps
        same = bool((warm == again).all() and (warm == tokens.tokens[:, :6]).all())
        ms = float(np.median(tokens.steps_s)) * 1e3
        if self.plan.on_gpu:
            state.truncate(length + 1)
            ms = self._device_ms(state, ids)
        middle = length + 1 + self.steps / 2
        row = Row("fuser", batch, length, self.sizes.step(batch, middle), ms, batch / seconds,
                  error, same)  # fmt: skip
        if self.with_kernels and self.plan.on_gpu:
            row.kernels = state.memo[0].time_kernels(state, 20) if state.memo else []
        return row

    def _device_ms(self, state: fuser.State, ids: Array) -> float:
        """Of a step, between events on the state's stream."""
        from fuser.runtime import driver

        memory: Any = state.memory
        drawn: Any = ids
        with driver.current(memory.ordinal):
            events = [driver.call("cuEventCreate", 0) for _ in range(2)]
            driver.call("cuEventRecord", events[0], memory.stream)
            for _ in range(self.steps):
                drawn = state.run_device({"input_ids": drawn, **HOW})["next_ids"]
            driver.call("cuEventRecord", events[1], memory.stream)
            driver.call("cuStreamSynchronize", memory.stream)
            found = float(driver.call("cuEventElapsedTime", *events))
            for event in events:
                driver.api().cuEventDestroy(event)
        return found / self.steps


class Runtime:
    """The same model in ONNX Runtime on the CPU."""

    def __init__(self, model: onnx.ModelProto, threads: int, level: int) -> None:
        import onnxruntime

        for node in model.graph.node:
            if node.op_type == "MatMulNBits":
                kept = [item for item in node.attribute if item.name != "accuracy_level"]
                del node.attribute[:]
                node.attribute.extend(
                    [*kept, onnx.helper.make_attribute("accuracy_level", level)]
                )  # fmt: skip
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        data = model.SerializeToString()
        self.session = onnxruntime.InferenceSession(
            data, settings, providers=["CPUExecutionProvider"]
        )
        self.value = onnxruntime.OrtValue.ortvalue_from_numpy
        self.pairs = {
            item.name: item.name.replace("past_key_values", "present")
            for item in self.session.get_inputs() if item.name.startswith("past")
        }  # fmt: skip
        self.shapes = {item.name: item.shape for item in self.session.get_inputs()}
        self.kept: dict[str, Any] = {}

    def fill(self, ids: Array) -> Array:
        """Run a prompt from an empty cache; its logits."""
        for name in self.pairs:
            _, heads, _, width = self.shapes[name]
            self.kept[name] = self.value(np.zeros((len(ids), heads, 0, width), np.float32))
        return self.step(ids)[0]

    def step(self, ids: Array) -> tuple[Array, Array]:
        """(logits, next tokens)."""
        binding = self.session.io_binding()
        binding.bind_cpu_input("input_ids", ids)
        for name, number in HOW.items():
            binding.bind_cpu_input(name, np.asarray(number))
        for name, array in self.kept.items():
            binding.bind_ortvalue_input(name, array)
        names = ["logits", "next_ids", *self.pairs.values()]
        for name in names:
            binding.bind_output(name, "cpu")
        self.session.run_with_iobinding(binding)
        outputs = dict(zip(names, binding.get_outputs(), strict=True))
        self.kept = {name: outputs[present] for name, present in self.pairs.items()}
        return outputs["logits"].numpy(), outputs["next_ids"].numpy()


def read_rate(threads: int) -> float:
    """Bytes a second that so many threads read together, each memory of its own."""
    from benchmarks.cpu_kernels import roofs

    measures = [roofs() for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        rounds = [list(pool.map(lambda item: item[0]["read"](), measures)) for _ in range(5)]
    return max(map(sum, rounds))


def warm(times: Sequence[float]) -> list[float]:
    """All but the first of each burst."""
    return [spent for number, spent in enumerate(times) if number % BURST]


def against_runtime(
    ours: Fuser, options: argparse.Namespace, make: Callable[[], onnx.ModelProto]
) -> list[Row]:
    """fuser and ONNX Runtime in turns, a few steps at a time, on the same tokens. Threads of either
    spin for a while behind a run, and caches are cold: a pause; first steps are not counted."""
    rows: list[Row] = []
    peers = {f"ONNX Runtime, level {level}": Runtime(make(), options.threads, level)
             for level in ((0, 4) if options.bits else (0,))}  # fmt: skip
    for batch in options.batches:
        for length in options.lengths:
            row = ours.measure(batch, length)
            ids = ids_of(batch, length + 1, ours.vocabulary)
            state = ours.plan.state(batch=batch, capacity=length + options.steps + MARGIN)
            state.run({"input_ids": ids[:, :-1], **HOW})
            for peer in peers.values():
                peer.fill(ids[:, :-1])
            spent: dict[str, list[float]] = {name: [] for name in ("fuser", *peers)}
            errors = dict.fromkeys(peers, 0.0)
            drawn = ids[:, -1:]
            for _ in range(-(-options.steps // BURST)):
                given, logits = [], []
                time.sleep(PAUSE)
                for _ in range(BURST):
                    given.append(drawn)
                    started = time.perf_counter()
                    found = state.run({"input_ids": drawn, **HOW})
                    spent["fuser"].append(time.perf_counter() - started)
                    drawn = found["next_ids"]
                    logits.append(found["logits"])
                for name, peer in peers.items():
                    time.sleep(PAUSE)
                    for token, ours_then in zip(given, logits, strict=True):
                        started = time.perf_counter()
                        theirs, _ = peer.step(token)
                        spent[name].append(time.perf_counter() - started)
                        errors[name] = max(errors[name], error_of(ours_then, theirs))
            spent = {name: warm(found) for name, found in spent.items()}
            times = {name: float(np.median(found)) for name, found in spent.items()}
            row.ms, row.rate = times["fuser"] * 1e3, batch / times["fuser"]
            rows.append(row)
            for name in peers:
                rows.append(Row(name, batch, length, row.bytes, times[name] * 1e3,
                                batch / times[name], errors[name]))  # fmt: skip
    return rows


def print_table(rows: Sequence[Row], rate: float) -> None:
    """A Markdown table. Of ONNX Runtime the error is fuser's beside it."""
    print("| side | batch | cached | ms a step | tokens/s | MB | share of the stream | error |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        share = row.bytes / rate / (row.ms * 1e-3)
        print(f"| {row.side} | {row.batch} | {row.length} | {row.ms:.3f} | {row.rate:,.1f} | "
              f"{row.bytes / 1e6:,.0f} | {share:.0%} | {row.error:.1e} |")  # fmt: skip
    for row in rows:
        total = sum(seconds for _, seconds in row.kernels)
        if row.kernels:
            print(f"\nbatch {row.batch}, {row.length} cached: {len(row.kernels)} kernels, "
                  f"{total * 1e6:.0f} us with events between them")  # fmt: skip
        groups: dict[str, list[float]] = {}
        for name, seconds in row.kernels:
            groups.setdefault(name.rstrip("0123456789").rstrip("_"), []).append(seconds)
        for name, times in sorted(groups.items(), key=lambda item: -sum(item[1])):
            print(f"  {sum(times) * 1e6:8.1f} us in {len(times):3d}  {name}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="llama", help="llama, tiny_llama or small_llama")
    parser.add_argument("--dtype", help="default: float16 on a GPU, float32 on a CPU")
    parser.add_argument("--bits", type=int, choices=(0, 4, 8), default=0,
                        help="of the weights (MatMulNBits); 0: as dtype says")  # fmt: skip
    parser.add_argument("--layers", type=int, help="of the model, if not its own number")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2, help="of a CPU")
    parser.add_argument("--kernels", action="store_true", help="time of each kernel of a GPU")
    parser.add_argument("--fold-norms", action="store_true", help="norms as part of matmuls")
    parser.add_argument("--against", choices=["onnxruntime"], help="on the CPU")
    options = parser.parse_args(arguments)
    on_cpu = options.device == "cpu"
    dtype = options.dtype or ("float32" if on_cpu else "float16")
    if options.against and (not on_cpu or dtype != "float32"):
        parser.error("--against is for --device cpu in float32")
    sizes = {} if options.layers is None else {"layers": options.layers}

    def make() -> onnx.ModelProto:
        return decoder(options.model, dtype, bits=options.bits, **sizes)

    ours = Fuser(make(), options)
    rate = read_rate(options.threads) if on_cpu else GPU_RATE
    print(f"{options.model}, {dtype}{f', {options.bits} bits' if options.bits else ''}, stream "
          f"{rate / 1e9:,.1f} GB/s", flush=True)  # fmt: skip
    if options.against:
        rows = against_runtime(ours, options, make)
    else:
        rows = []
        for batch in options.batches:
            for length in options.lengths:
                started = time.perf_counter()
                rows.append(ours.measure(batch, length))
                print(f"batch {batch}, {length} cached: {time.perf_counter() - started:.1f} s with "
                      f"compiling, {rows[-1].ms:.3f} ms a step", flush=True)  # fmt: skip
    print_table(rows, rate)
    ours_only = [row for row in rows if row.side == "fuser"]
    wrong = [row for row in ours_only if not row.same or not row.error < TOLERANCE[dtype]]
    for row in wrong:
        print(f"WRONG: batch {row.batch}, {row.length} cached: error {row.error:.1e}, "
              f"{'same' if row.same else 'other'} tokens again")  # fmt: skip
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
