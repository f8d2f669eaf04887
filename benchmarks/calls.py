"""Time of a call by each door: what the caller pays beside the device.

    python -m benchmarks.calls                          # CPU: beside eager PyTorch and ONNX Runtime
    python -m benchmarks.calls --device cuda            # GPU: beside eager PyTorch and Inductor
    python -m benchmarks.calls --models stack:10 stack:1000 --skip-inductor

`issue` is the time until the call returns, with nothing waiting on a GPU: calls are put on an empty
stream, a few at a time, and each is timed. `wall` is the time of a call and of waiting for it. Both
are medians, in microseconds, inputs in the memory of the device. `device` is what the work of one
call takes on the GPU, measured for each door: the call is put behind a kernel that only waits, so
that all its work is there before the first of it begins. On a CPU every call is its own device:
`issue` is left out there, and `device` is that of the plan.
`torch.compile` costs what PyTorch compares before each call, module by module, whoever compiles:
`nothing` is a back end that returns results of before, and `unguarded` leaves the modules out of
what is compared (`options={"guard_filter_fn": ...}`).
`stack:N` is a module of N parameters (small linear layers behind one another), for what grows with
their number. Models are random weights from transformers' configurations, or those of models/, in
float16 on a GPU and float32 on a CPU. Results are compared with eager PyTorch in the same run.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import fuser

MODELS = ("minilm", "bert", "resnet50", "stack:10", "stack:200", "stack:1000")
AT_ONCE = 10
"""Calls that are put on a stream before it is emptied."""
DEVICE_ROUNDS = 30
CYCLES = 2000
"""Of a GPU in a microsecond, at most."""
TOLERANCES = {"cuda": 2e-2, "cpu": 1e-3}


@dataclass
class Row:
    """A door of a model; microseconds."""

    model: str
    door: str
    issue: float = math.nan
    wall: float = math.nan
    device: float = math.nan
    error: float = math.nan
    problem: str = ""


def module_of(name: str) -> tuple[Any, tuple[Any, ...]]:
    """A module with random weights, and its inputs at batch 1, on the CPU in float32."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    if name.startswith("stack:"):
        count = int(name.partition(":")[2]) // 2
        return nn.Sequential(*(nn.Linear(16, 16) for _ in range(count))), (torch.randn(1, 16),)
    import transformers

    if name == "resnet50":
        made = transformers.ResNetModel(transformers.ResNetConfig())
        return _First(made, "pixel_values"), (torch.randn(1, 3, 224, 224),)
    sizes = {"minilm": (384, 6, 12, 1536), "bert": (768, 12, 12, 3072)}[name]
    keys = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    config = transformers.BertConfig(**dict(zip(keys, sizes, strict=True)))
    ids = torch.randint(0, config.vocab_size, (1, 128))
    return _First(transformers.BertModel(config, add_pooling_layer=False), "input_ids"), (ids,)


def _First(model: Any, name: str) -> Any:
    """The first result of a model of transformers, called with one tensor."""
    from torch import nn

    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Any) -> Any:
            return self.model(**{name: x}, return_dict=False)[0]

    return First()


def doors(module: Any, inputs: Sequence[Any], options: argparse.Namespace) -> Iterator[Any]:
    """(name, call, device microseconds or None: to be measured) of each, compiled one after the
    other."""

    yield "eager", lambda: module(*inputs), None
    compiled = fuser.compile(module, threads=options.threads)
    compiled(*inputs)
    plan = compiled.plan(*inputs)
    yield "fuser: compiled(x)", lambda: compiled(*inputs), None
    yield from _plan_doors(plan, inputs)
    if not options.skip_dynamo:
        yield from _dynamo_doors(module, inputs, options)
    if options.device == "cpu":
        yield from _onnx_doors(module, inputs, options.threads)


def _dynamo_doors(module: Any, inputs: Sequence[Any], options: argparse.Namespace) -> Iterator[Any]:
    import torch

    torch._dynamo.reset()
    fast = torch.compile(module, backend="fuser", options={"threads": options.threads})
    yield "fuser: torch.compile", lambda: fast(*inputs), None
    torch._dynamo.reset()
    skip = getattr(torch.compiler, "skip_guard_on_all_nn_modules_unsafe", None)
    if skip is not None:  # newer than PyTorch 2.7
        settings = {"threads": options.threads, "guard_filter_fn": skip}
        unguarded = torch.compile(module, backend="fuser", options=settings)
        yield "fuser: torch.compile, unguarded", lambda: unguarded(*inputs), None
        torch._dynamo.reset()
    floor = torch.compile(module, backend=_nothing())
    yield "nothing: torch.compile", lambda: floor(*inputs), None
    if options.device == "cuda" and not options.skip_inductor:
        torch._dynamo.reset()
        inductor = torch.compile(module, mode="reduce-overhead")
        yield "Inductor, reduce-overhead", lambda: inductor(*inputs), None


def _nothing() -> Any:
    """A back end of torch.compile whose code returns what it returned first."""
    from torch._dynamo.backends.common import aot_autograd

    def compiler(graph: Any, _: Any) -> Any:
        results: list[Any] = []

        def run(arguments: list[Any]) -> list[Any]:
            if not results:
                results.extend(graph.forward(*arguments))
            return list(results)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    return aot_autograd(fw_compiler=compiler)


def _plan_doors(plan: Any, inputs: Sequence[Any]) -> Iterator[Any]:
    import torch

    names = [spec.name for spec in plan.inputs]
    host = {name: x.cpu().numpy() for name, x in zip(names, inputs, strict=True)}
    device = plan.profile_device(iterations=50).median * 1e3  # on a stream of the plan's own
    yield "fuser: plan.run", lambda: next(iter(plan.run(host).values())), device
    if plan.target.is_cuda:
        tensors = dict(zip(names, inputs, strict=True))
        outputs = {
            spec.name: torch.empty(spec.shape, dtype=getattr(torch, spec.dtype.numpy.name)).cuda()
            for spec in plan.outputs
        }
        bound, stream = plan.bind(tensors, outputs), torch.cuda.current_stream().cuda_stream

        def run() -> Any:
            bound.run(stream)
            return next(iter(outputs.values()))

        yield "fuser: bind().run", run, None


def _onnx_doors(module: Any, inputs: Sequence[Any], threads: int | None) -> Iterator[Any]:
    import io

    import onnxruntime
    import torch

    buffer = io.BytesIO()
    program = torch.onnx.export(module, tuple(inputs), dynamo=True, verbose=False)
    assert program is not None
    program.save(buffer)
    session = fuser.InferenceSession(buffer.getvalue(), device="cpu", threads=threads)
    feeds = {session.get_inputs()[0].name: inputs[0].numpy()}
    yield "fuser: InferenceSession.run", lambda: session.run(None, feeds)[0], None
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads or 0
    peer = onnxruntime.InferenceSession(
        buffer.getvalue(), settings, providers=["CPUExecutionProvider"]
    )
    yield "ONNX Runtime", lambda: peer.run(None, feeds)[0], None


def time_calls(call: Callable[[], Any], wait: Callable[[], Any], options: Any) -> tuple[float, ...]:
    """Medians of the time until a call returns, and until its work is done; microseconds."""
    until = time.perf_counter() + options.warmup
    while time.perf_counter() < until:  # clocks fall while something is compiled
        call()
    wait()
    issued, walls = [], []
    for _ in range(options.rounds):
        for _ in range(AT_ONCE):
            start = time.perf_counter()
            call()
            issued.append(time.perf_counter() - start)
        wait()
        start = time.perf_counter()
        call()
        wait()
        walls.append(time.perf_counter() - start)
    return statistics.median(issued) * 1e6, statistics.median(walls) * 1e6


def time_device(call: Callable[[], Any], issue: float) -> float:
    """The median time that the work of one call takes on the GPU; microseconds. issue: the time
    that a call takes to be put on the stream."""
    import torch

    times = []
    for _ in range(DEVICE_ROUNDS):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(int((2 * issue + 100) * CYCLES))
        before.record()
        call()
        after.record()
        torch.cuda.synchronize()
        times.append(before.elapsed_time(after) * 1e3)
    return statistics.median(times)


def error_of(found: Any, wanted: Any) -> float:
    """|| found - wanted || / || wanted ||."""
    import torch

    a = torch.as_tensor(found).double().cpu().reshape(-1)
    b = wanted.double().cpu().reshape(-1)
    return float((a - b).norm() / b.norm()) if a.shape == b.shape else math.inf


def measure(name: str, options: argparse.Namespace) -> list[Row]:
    import torch

    module, inputs = module_of(name)
    wait: Callable[[], Any] = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    rows = []
    with torch.no_grad():
        module = module.eval()
        if options.device == "cuda":
            module = module.half().cuda()
            inputs = tuple((x.half() if x.is_floating_point() else x).cuda() for x in inputs)
        wanted = module(*inputs)
        made = doors(module, inputs, options)
        while True:
            try:
                door, call, device = next(made)
            except StopIteration:
                return rows
            except Exception as error:  # a peer that does not compile must not cost the table
                rows.append(Row(name, "?", problem=f"{type(error).__name__}: {error}"[:200]))
                return rows
            row = Row(name, door, device=math.nan if device is None else device)
            for _ in range(3):
                row.error = error_of(call(), wanted)
            issue, row.wall = time_calls(call, wait, options)
            if options.device == "cuda":
                row.issue = issue
                row.device = time_device(call, issue) if device is None else device
            rows.append(row)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=None, help="of the CPU")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--warmup", type=float, default=0.3, help="seconds")
    parser.add_argument("--skip-inductor", action="store_true")
    parser.add_argument("--skip-dynamo", action="store_true", help="nothing by torch.compile")
    options = parser.parse_args()
    heads = ("model", "door", "issue us", "wall us", "device us", "wall - device us", "error")
    print("| " + " | ".join(heads) + " |")
    print("| --- " * len(heads) + "|")
    wrong = False
    for name in options.models:
        for row in measure(name, options):
            figures = (row.issue, row.wall, row.device, row.wall - row.device)
            cells = ["" if math.isnan(x) else f"{x:.1f}" for x in figures]
            cells += [row.problem or f"{row.error:.1e}"]
            print("| " + " | ".join((row.model, row.door, *cells)) + " |", flush=True)
            wrong |= bool(row.problem) or not row.error <= TOLERANCES[options.device]
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
