"""GPU: fuser as one CUDA graph beside PyTorch in three modes, float16, one process.

Models come from transformers configurations with random weights. The same weights are exported to
ONNX for fuser, in processes beside each other, so outputs are compared with PyTorch's own.
Every figure is time on the device between events around runs, inputs already there.
"""

from __future__ import annotations

import copy
import functools
import itertools
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import fuser
from benchmarks.models import Row
from models.exports import export_feeds, export_module, torch_module
from models.writer import save

TOLERANCE = 1e-2  # two float16 implementations
LLAMA = {
    "hidden_size": 2048,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "intermediate_size": 5632,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}


@dataclass(frozen=True)
class Case:
    """A model of models/exports.py at one shape."""

    name: str
    batch: int = 1
    length: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[str, ...]:
        """No mask: one of ones would only slow PyTorch down."""
        return ("input_ids",) if self.length else ("pixel_values",)

    def feeds(self) -> dict[str, np.ndarray[Any, Any]]:
        feeds = export_feeds(
            self.name, "base", "float16", batch=self.batch, length=self.length or None
        )
        return {key: feeds[key] for key in self.inputs}

    def module(self) -> Any:
        """The same weights every time, on the CPU."""
        return torch_module(self.name, "base", "float16", inputs=self.inputs, config=self.config)


CASES: Mapping[str, Case] = {
    "bert": Case("bert", 1, 128),
    "bert-32": Case("bert", 32, 128),
    "gpt2": Case("gpt2", 1, 512),
    "vit": Case("vit", 1),
    "vit-32": Case("vit", 32),
    "resnet50": Case("resnet", 1),
    "resnet50-32": Case("resnet", 32),
    "llama": Case("llama", 1, 512, LLAMA),
}
MODES = ("eager", "eager graph", "torch.compile")


def peers(options: Namespace) -> list[str]:
    if options.skip_peers:
        return []
    return list(MODES[:2] if options.skip_compile else MODES)


def describe_machine(options: Namespace) -> str:
    import torch
    import transformers

    name = torch.cuda.get_device_name()
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return f"{name}, float16, {versions}; medians of {options.iterations} runs, on the device"


def run(names: Sequence[str], options: Namespace) -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        with ProcessPoolExecutor(6, mp_context=get_context("spawn")) as exporters:
            paths = {name: exporters.submit(write_model, name, folder) for name in names}
        # All exports end before the first timing: eager runs need the processor to themselves.
        for name in names:
            started = time.perf_counter()
            try:
                rows.append(_measure(name, paths[name], options))
            except Exception as error:  # one model must not cost the table
                message = f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"
                rows.append(Row(name, problem=message))
                print(f"{name}: {message}", file=sys.stderr)
            print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)
    return rows


def write_model(name: str, folder: str) -> Path:
    """Export a case; runs in a process of its own."""
    case = CASES[name]
    path = Path(folder, f"{name}.onnx")
    save(export_module(case.name, case.module(), case.feeds()), path)
    return path


def _measure(name: str, exported: Future[Path], options: Namespace) -> Row:
    import torch

    case, row = CASES[name], Row(name)
    module, feeds = case.module().cuda(), case.feeds()
    arguments = [torch.from_numpy(feed).cuda() for feed in feeds.values()]
    with torch.no_grad():
        expected = _float32_outputs(module, arguments)
        started = time.perf_counter()
        plan = fuser.compile(exported.result(), device="cuda")
        row.compile_s, row.kernels = time.perf_counter() - started, plan.launches
        with plan:
            outputs = plan.run(feeds).values()
            row.error = max(_error(a, b) for a, b in zip(outputs, expected, strict=True))
            sides: dict[str, Callable[[], float]] = {
                "fuser": lambda: (
                    plan.profile_device(feeds, iterations=options.iterations, warmup=10).median
                )
            }
            if not options.skip_peers:
                if case.inputs == ("pixel_values",):  # how PyTorch is fastest with convolutions
                    module = module.to(memory_format=torch.channels_last)
                    arguments = [a.to(memory_format=torch.channels_last) for a in arguments]
                peer_error = max(
                    _error(a.float().cpu().numpy(), b)
                    for a, b in zip(module(*arguments), expected, strict=True)
                )
                print(f"{name}: error of fuser {row.error:.1e}, of PyTorch {peer_error:.1e}")
                for mode, call in _torch(module, arguments, options).items():
                    sides[mode] = functools.partial(_time, call, options.iterations)
            # Twice in turns; the lower figure of each side counts.
            rounds = [{side: measure() for side, measure in sides.items()} for _ in range(2)]
        for side in sides:
            low, high = sorted(times[side] for times in rounds)
            print(f"{name}: {side} {low:.3f} to {high:.3f} ms", flush=True)
            row.peers[side] = low
    row.fuser = row.peers.pop("fuser")
    del module, arguments, sides
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    return row


def _float32_outputs(module: Any, arguments: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """The outputs of the float16 weights by float32 arithmetic."""
    wide = copy.deepcopy(module).float()
    widened = [a.float() if a.is_floating_point() else a for a in arguments]
    return [output.cpu().numpy() for output in wide(*widened)]


def _torch(
    module: Any, arguments: Sequence[Any], options: Namespace
) -> dict[str, Callable[[], Any]]:
    """What to call for one run in each mode of PyTorch."""
    import torch

    _attend_without_mask(module)

    def eager() -> Any:
        return module(*arguments)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            eager()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        eager()
    modes = {"eager": eager, "eager graph": graph.replay}
    if not options.skip_compile:
        compiled = torch.compile(module, mode="reduce-overhead")
        modes["torch.compile"] = lambda: compiled(*arguments)
    return modes


def _attend_without_mask(module: Any) -> None:
    """Let transformers leave the attention mask away, which these inputs do not need.

    Under graph capture it would build one, in a form that PyTorch's fused attention refuses: the
    captured model would be several times slower than the eager one.
    """
    from transformers import AttentionInterface, PreTrainedModel
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register("maskless", sdpa_attention_forward)
    AttentionMaskInterface.register("maskless", lambda *arguments, **options: None)
    for part in module.modules():
        if isinstance(part, PreTrainedModel) and hasattr(part.config, "_attn_implementation"):
            part.config._attn_implementation = "maskless"


def _time(call: Callable[[], Any], iterations: int) -> float:
    """Median milliseconds between events around single calls, back to back."""
    import torch

    for _ in range(10):
        call()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(iterations + 1)]
    torch.cuda.synchronize()
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize()
    return float(np.median([a.elapsed_time(b) for a, b in itertools.pairwise(events)]))


def _error(output: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    left, right = output.astype(np.float64), expected.astype(np.float64)
    return float(np.linalg.norm(left - right) / np.linalg.norm(right))
