"""The first cases of benchmarks.language: those with rows or sums. The others: language_more.py."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from fuser.runtime.memory import aligned_array

Arrays = Mapping[str, Any]
EPSILON = {"float32": 2.0**-23, "float16": 2.0**-10}


@dataclass
class Case:
    """One tutorial at one size.

    shapes: of the inputs. result: the shape of the output, which is called "out". work: bytes or
    flops of a run, as `unit` says. call: the tutorial's function on arrays by name, with a config.
    peers: other ways to write "out", or to return it. reference takes float64 arrays (of PyTorch on
    a GPU, of NumPy on a CPU). terms: how many numbers its longest sum has. graph: the same for
    fuser.trace, where it is a peer. preferred: the config that the tutorial chooses for this size,
    the first of `table` by default,
    which the tutorial has by device.
    """

    tutorial: str
    name: str
    dtype: str
    shapes: Mapping[str, tuple[int, ...]]
    result: tuple[int, ...]
    work: float
    unit: str
    call: Callable[[ModuleType, Any, Any], None]
    reference: Callable[..., Any]
    peers: Mapping[str, Callable[[Arrays], Any]] = field(default_factory=dict)
    terms: int = 1
    graph: Callable[..., Any] | None = None
    preferred: Callable[[ModuleType], Any] = lambda module: None
    table: str = "CONFIGS"

    @property
    def tolerance(self) -> float:
        """Of ||out - reference|| / ||reference||: a rounding to the type, and those of the sums."""
        return EPSILON[self.dtype] + EPSILON["float32"] * self.terms**0.5

    @property
    def bytes(self) -> int:
        """Of the arrays."""
        count = sum(int(np.prod(shape)) for shape in (*self.shapes.values(), self.result))
        return count * np.dtype(self.dtype).itemsize

    def draw(self, seed: int, device: str) -> dict[str, Any]:
        """Inputs of random numbers, and an output of NaN."""
        if device == "cpu":
            rng = np.random.default_rng(seed)
            found: dict[str, Any] = {}
            for name, shape in (*self.shapes.items(), ("out", self.result)):
                found[name] = aligned_array(shape, np.dtype(self.dtype))  # graph kernels want it
                found[name][...] = np.nan if name == "out" else rng.standard_normal(shape)
            return found
        import torch

        generator = torch.Generator("cuda").manual_seed(seed)
        kind = getattr(torch, self.dtype)
        made: dict[str, Any] = {
            name: torch.randn(shape, device="cuda", generator=generator).to(kind)
            for name, shape in self.shapes.items()
        }
        return made | {"out": torch.full(self.result, float("nan"), device="cuda", dtype=kind)}

    def error(self, arrays: Arrays, out: Any) -> float:
        """||out - reference|| / ||reference||, in float64."""
        if isinstance(out, np.ndarray):
            wide = {name: arrays[name].astype(np.float64) for name in self.shapes}
            expected = self.reference(**wide)
            norm = np.linalg.norm
            return float(norm(out.astype(np.float64) - expected) / norm(expected))
        inputs = {name: arrays[name].double() for name in self.shapes}
        wanted = self.reference(**inputs)
        return float((out.double() - wanted).norm() / wanted.norm())


def library(array: Any) -> Any:
    """NumPy, or PyTorch for its tensors."""
    if isinstance(array, np.ndarray):
        return np
    import torch

    return torch


# vector add, softmax, matmul ----------------------------------------------------------------------


def vector_add(device: str, quick: bool) -> Iterator[Case]:
    powers: Sequence[int] = range(20, 28) if device == "cuda" else (20, 24)
    for power in (powers[-1],) if quick else powers:
        n = 1 << power
        yield Case(
            "01_vector_add", f"add 2^{power}", "float32", {"x": (n,), "y": (n,)}, (n,),
            12.0 * n, "GB/s",
            lambda m, t, config: m.add(t["x"], t["y"], t["out"], config),
            lambda x, y: x + y,
            {"PyTorch" if device == "cuda" else "NumPy":
             lambda t: library(t["x"]).add(t["x"], t["y"], out=t["out"])},
            graph=lambda x, y: x + y,
        )  # fmt: skip


def softmax_of(x: Any) -> Any:
    if isinstance(x, np.ndarray) or not hasattr(x, "softmax"):
        e = np.exp(x - x.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)
    return x.softmax(-1)


def softmax(device: str, quick: bool) -> Iterator[Case]:
    rows = 4096 if device == "cuda" else 2048
    for columns in (781, 4096) if quick else (781, 1024, 4096, 12672):
        yield Case(
            "02_fused_softmax", f"softmax {rows}x{columns}", "float32", {"x": (rows, columns)},
            (rows, columns), 8.0 * rows * columns, "GB/s",
            lambda m, t, config: m.softmax(t["x"], t["out"], config),
            softmax_of, {"PyTorch": _torch_softmax} if device == "cuda" else {}, columns,
            graph=softmax_of,
            preferred=functools.partial(
                lambda m, columns: m.choose(columns, device), columns=columns
            ),
        )  # fmt: skip


def _torch_softmax(t: Arrays) -> None:
    library(t["x"]).softmax(t["x"], -1, out=t["out"])


def matmul(device: str, quick: bool) -> Iterator[Case]:
    dtype = "float16" if device == "cuda" else "float32"
    sizes = (1024, 2048, 4096, 8192) if device == "cuda" else (512, 1024)
    peer = "cuBLAS" if device == "cuda" else "NumPy"
    for n in sizes[1:2] if quick else sizes:
        yield Case(
            "03_matmul", f"matmul {n}", dtype, {"a": (n, n), "b": (n, n)}, (n, n),
            2.0 * n**3, "TFLOP/s" if device == "cuda" else "GFLOP/s",
            lambda m, t, config: m.matmul(t["a"], t["b"], t["out"], config=config),
            lambda a, b: a @ b,
            {peer: lambda t: library(t["a"]).matmul(t["a"], t["b"], out=t["out"])},
            n, lambda a, b: a @ b,
            functools.partial(lambda m, n: m.choose(n, n, device), n=n),
        )  # fmt: skip


# layer norm ---------------------------------------------------------------------------------------


def _layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    mean = x.mean(-1)[..., None]
    centred = x - mean
    variance = (centred * centred).mean(-1)[..., None]
    return centred / (variance + 1e-5) ** 0.5 * weight + bias


def layer_norm(device: str, quick: bool) -> Iterator[Case]:
    dtype = "float16" if device == "cuda" else "float32"
    rows = 4096 if device == "cuda" else 2048
    sizes = (1024, 4096, 8192, 15872) if device == "cuda" else (1024, 4096)
    for columns in sizes[1:2] if quick else sizes:
        yield Case(
            "05_layer_norm", f"layer norm {rows}x{columns}", dtype,
            {"x": (rows, columns), "weight": (columns,), "bias": (columns,)}, (rows, columns),
            2.0 * rows * columns * np.dtype(dtype).itemsize, "GB/s",
            functools.partial(_run_layer_norm, rows=rows), _layer_norm,
            {"PyTorch": _torch_layer_norm} if device == "cuda" else {}, columns,
            graph=_layer_norm,
            preferred=functools.partial(
                lambda m, columns: m.choose(columns, device), columns=columns
            ),
        )  # fmt: skip


@functools.cache
def beside(device: str, number: int, shape: tuple[int, ...]) -> Any:
    """A float32 array for what a tutorial keeps beside its result."""
    return sys.modules["workbench"].empty(shape, device=device)


def _run_layer_norm(m: ModuleType, t: Arrays, config: Any, rows: int) -> None:
    device = sys.modules["workbench"].device_of(t["x"])
    kept = (beside(device, number, (rows,)) for number in range(2))
    m.forward(t["x"], t["weight"], t["bias"], t["out"], *kept, config=config)


def _torch_layer_norm(t: Arrays) -> Any:
    import torch

    return torch.nn.functional.layer_norm(t["x"], t["x"].shape[1:], t["weight"], t["bias"])


# attention ----------------------------------------------------------------------------------------


def attention(device: str, quick: bool) -> Iterator[Case]:
    """16,384 tokens of 2,048 features in all on a GPU."""
    dtype = "float16" if device == "cuda" else "float32"
    sizes = [(t, d) for d in (64, 128) for t in (4096, 8192, 16384)]
    if device == "cpu":
        sizes = [(512, 64), (512, 128)]
    for tokens, d in sizes[-1:] if quick else sizes:
        heads = 2048 // d * 16384 // tokens if device == "cuda" else 4
        shape = (heads, tokens, d)
        for causal in (False, True):
            yield Case(
                "06_attention", f"attention {heads}x{tokens}x{d}{' causal' * causal}", dtype,
                {"q": shape, "k": shape, "v": shape}, shape,
                4.0 * heads * tokens**2 * d / (2 if causal else 1),
                "TFLOP/s" if device == "cuda" else "GFLOP/s",
                functools.partial(_run_attention, causal=causal),
                functools.partial(_attention, causal=causal),
                _attention_peers(causal) if device == "cuda" else {}, tokens,
                preferred=functools.partial(lambda m, d: m.choose(d, device), d=d),
            )  # fmt: skip


def _run_attention(m: ModuleType, t: Arrays, config: Any, causal: bool) -> None:
    device = sys.modules["workbench"].device_of(t["q"])
    levels = beside(device, 0, tuple(t["q"].shape[:2]))
    m.forward(t["q"], t["k"], t["v"], t["out"], levels, causal, config)


def _attention(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """Head by head: the scores of one are large enough."""
    lib, found = library(q), []
    for one, keys, values in zip(q, k, v, strict=True):
        score = one @ keys.T * one.shape[-1] ** -0.5
        if causal:
            score = score + lib.triu(lib.full_like(score, -float("inf")), 1)
        found.append(softmax_of(score) @ values)
    return lib.stack(found)


def _attention_peers(causal: bool) -> Mapping[str, Callable[[Arrays], Any]]:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def run(t: Arrays, backend: Any) -> Any:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(
                t["q"][None], t["k"][None], t["v"][None], is_causal=causal
            )[0]

    return {
        "flash": functools.partial(run, backend=SDPBackend.FLASH_ATTENTION),
        "cuDNN": functools.partial(run, backend=SDPBackend.CUDNN_ATTENTION),
    }
