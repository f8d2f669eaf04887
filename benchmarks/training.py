"""Training steps through torch.compile: fuser beside Inductor and eager PyTorch.

    python -m benchmarks.training                    # where there is a GPU: bfloat16, whole models
    python -m benchmarks.training --device cpu       # float32, two layers and short inputs
    python -m benchmarks.training --models gpt2 --sides fuser eager

A step is the forward pass to the loss and the backward pass to the gradients of all parameters.
Models are transformers configurations with random weights. Memory is the peak of a step above what
was taken before the model was there: of PyTorch's allocator, and beside it what the device lost
meanwhile, whoever took it; on the CPU that of the process. Gradients are compared with those of
float32 (float64 on the CPU): the errors of all sides are in the table, and one beyond twice that
of eager PyTorch, and the rounding of sums over a vocabulary, ends the program with 1.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SIDES = ("eager", "inductor", "fuser")
DEVICE_SIZES = {
    "gpt2": (8, 512),
    "bert": (32, 128),
    "llama": (8, 512),
    "vit": (32, 224),
    "resnet50": (64, 224),
}
HOST_SIZES = {
    "gpt2": (2, 64),
    "bert": (2, 64),
    "llama": (2, 64),
    "vit": (2, 64),
    "resnet50": (2, 64),
}


@dataclass
class Row:
    model: str
    side: str
    milliseconds: float
    peak_bytes: int
    beside_bytes: int  # of the peak, what is not PyTorch's
    error: float
    first_seconds: float
    left: list[str] = field(default_factory=list)  # what fuser left to PyTorch


def make(name: str, options: Namespace) -> tuple[Any, Mapping[str, Any]]:
    """The module in float32 on the host, and the arguments of a step; the same every time."""
    import torch
    import transformers

    torch.manual_seed(0)
    small = options.device == "cpu"
    batch, size = (HOST_SIZES if small else DEVICE_SIZES)[name]
    drop = options.dropout
    layers = options.layers or (2 if small else 12)
    if name == "resnet50":
        depths = [min(layers, depth) for depth in (3, 4, 6, 3)]
        config: Any = transformers.ResNetConfig(depths=depths, num_labels=1000)
        labels = torch.randint(1000, (batch,))
        feeds = {"pixel_values": torch.randn(batch, 3, size, size), "labels": labels}
        return transformers.ResNetForImageClassification(config), feeds
    if name == "vit":
        config = transformers.ViTConfig(
            num_hidden_layers=layers, image_size=size, num_labels=1000, hidden_dropout_prob=drop,
            attention_probs_dropout_prob=drop,
        )  # fmt: skip
        labels = torch.randint(1000, (batch,))
        feeds = {"pixel_values": torch.randn(batch, 3, size, size), "labels": labels}
        return transformers.ViTForImageClassification(config), feeds
    if name == "gpt2":
        config = transformers.GPT2Config(
            n_layer=layers, resid_pdrop=drop, embd_pdrop=drop, attn_pdrop=drop, use_cache=False
        )
        module: Any = transformers.GPT2LMHeadModel(config)
    elif name == "llama":
        config = transformers.LlamaConfig(
            num_hidden_layers=layers, hidden_size=768, intermediate_size=2048, use_cache=False,
            num_attention_heads=12, num_key_value_heads=4, attention_dropout=drop,
        )  # fmt: skip
        module = transformers.LlamaForCausalLM(config)
    else:
        config = transformers.BertConfig(
            num_hidden_layers=layers, hidden_dropout_prob=drop, attention_probs_dropout_prob=drop
        )
        module = transformers.BertForMaskedLM(config)
    words = torch.randint(config.vocab_size, (batch, size))
    return module, {"input_ids": words, "labels": words}


def compile_for(side: str, module: Any) -> Callable[..., Any]:
    import torch

    if side == "eager":
        return module  # type: ignore[no-any-return]
    compiled: Callable[..., Any] = torch.compile(module, backend=side)
    return compiled


def step(module: Any, call: Callable[..., Any], feeds: Mapping[str, Any]) -> None:
    module.zero_grad(set_to_none=True)
    call(**feeds).loss.backward()


def measure(name: str, side: str, exact: Sequence[Any], options: Namespace) -> Row:
    import torch

    torch._dynamo.reset()
    meter = HostMeter() if options.device == "cpu" else DeviceMeter()
    module, feeds = make(name, options)
    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    module = module.to(options.device, dtype).train()
    feeds = {
        key: x.to(options.device, dtype if x.is_floating_point() else None)
        for key, x in feeds.items()
    }
    call = compile_for(side, module)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        begin = time.perf_counter()
        for _ in range(3):
            step(module, call, feeds)
        meter.wait()
        first = time.perf_counter() - begin
    left = [str(w.message) for w in told if "fuser leaves" in str(w.message)]
    error = distance([p.grad for p in module.parameters()], exact)
    meter.reset()
    step(module, call, feeds)
    meter.wait()
    peak, beside = meter.peak()
    times = [meter.time(lambda: step(module, call, feeds)) for _ in range(options.iterations)]
    return Row(name, side, statistics.median(times), peak, beside, error, first, left)


def exact_gradients(name: str, options: Namespace) -> list[Any]:
    """On the host, of the same weights: those that the other sides round to."""
    import torch

    module, feeds = make(name, options)
    low, high = (torch.float32, torch.float64)
    if options.device != "cpu":
        low, high = torch.bfloat16, torch.float32
    module = module.to(low).to(options.device, high).train()
    feeds = {
        key: x.to(low).to(options.device, high) if x.is_floating_point() else x.to(options.device)
        for key, x in feeds.items()
    }
    step(module, module, feeds)
    return [p.grad.cpu() for p in module.parameters()]


def distance(found: Sequence[Any], exact: Sequence[Any]) -> float:
    """The norm of the difference over that of the gradients, all parameters together."""
    pairs = [(a.detach().cpu().double(), b.double()) for a, b in zip(found, exact, strict=True)]
    gap = sum(float((a - b).square().sum()) for a, b in pairs)
    return float((gap / sum(float(b.square().sum()) for _, b in pairs)) ** 0.5)


class DeviceMeter:
    """Begins with nothing of the model on the GPU."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        gc.collect()
        torch.cuda.empty_cache()
        self.start = torch.cuda.memory_allocated()
        self.others = self._others()

    def _others(self) -> int:
        """Bytes taken beside PyTorch's allocator."""
        free, total = self.torch.cuda.mem_get_info()
        return total - free - self.torch.cuda.memory_reserved()

    def wait(self) -> None:
        self.torch.cuda.synchronize()

    def reset(self) -> None:
        self.torch.cuda.reset_peak_memory_stats()

    def peak(self) -> tuple[int, int]:
        beside = self._others() - self.others
        return self.torch.cuda.max_memory_allocated() - self.start + beside, beside

    def time(self, call: Callable[[], Any]) -> float:
        """Milliseconds from the call to the end of its work."""
        self.wait()
        begin = time.perf_counter()
        call()
        self.wait()
        return (time.perf_counter() - begin) * 1e3


class HostMeter(DeviceMeter):
    """The same of the process, by what Linux tells."""

    def __init__(self) -> None:
        from fuser.runtime.memory import trim_heap

        gc.collect()
        trim_heap()
        self.start = self._read("VmRSS")

    @staticmethod
    def _read(key: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(key)) << 10

    def wait(self) -> None:
        pass

    def reset(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is what is resident now

    def peak(self) -> tuple[int, int]:
        return self._read("VmHWM") - self.start, 0


def table(rows: Sequence[Row]) -> str:
    lines = [
        "| model | side | ms a step | peak MB | beside PyTorch's | error | 3 first steps, s |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        lines.append(
            f"| {row.model} | {row.side} | {row.milliseconds:.2f} | {row.peak_bytes / 1e6:.0f} "
            f"| {row.beside_bytes / 1e6:.0f} | {row.error:.2e} | {row.first_seconds:.0f} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    import torch

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cpu", "cuda"), default=device)
    parser.add_argument(
        "--models", nargs="+", choices=DEVICE_SIZES, default=["gpt2", "bert", "llama"]
    )
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--layers", type=int, help="12 on a GPU, 2 on the CPU")
    parser.add_argument("--dropout", type=float, default=0.0)
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    for name in options.models:
        exact = exact_gradients(name, options)
        for side in options.sides:
            row = measure(name, side, exact, options)
            rows.append(row)
            for text in row.left:
                print(f"{name}: {text}", file=sys.stderr)
            print(table([row]).splitlines()[-1], file=sys.stderr, flush=True)
    print(table(rows))
    eager = {row.model: row.error for row in rows if row.side == "eager"}
    rounding = 2.0 ** (-24 if options.device == "cpu" else -9) * 50_000**0.5
    limits = {name: max(2 * error, rounding) for name, error in eager.items()}
    bad = [r for r in rows if not options.dropout and r.error > limits.get(r.model, r.error)]
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
