"""The other cases of benchmarks.language: dropout, external functions, grouped and persistent
products, and gradients."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.language_cases import (
    Arrays,
    Case,
    attention,
    beside,
    layer_norm,
    library,
    matmul,
    softmax,
    softmax_of,
    vector_add,
)

P, SEED = 0.5, 1234
"""Of the dropout."""


def _workbench() -> ModuleType:
    return sys.modules["workbench"]


# elements -----------------------------------------------------------------------------------------


def dropout(device: str, quick: bool) -> Iterator[Case]:
    """The reference has the same numbers, from NumPy."""
    power = 24 if device == "cuda" else 22
    n = 1 << power
    yield Case(
        "04_dropout", f"dropout 2^{power}", "float32", {"x": (n,)}, (n,), 8.0 * n, "GB/s",
        lambda m, t, config: m.dropout(t["x"], t["out"], P, SEED, config),
        functools.partial(_dropped, n=n),
        {"PyTorch": _torch_dropout_time} if device == "cuda" else {},
    )  # fmt: skip


@functools.cache
def _kept(n: int) -> Any:
    from benchmarks.tutorial_modules import load

    return load("04_dropout").uniform(SEED, n) > np.float32(P)


def _dropped(x: Any, n: int) -> Any:
    kept = _kept(n)
    if not isinstance(x, np.ndarray):
        import torch

        kept = torch.from_numpy(kept).to(x.device)
    return x * kept / (1 - P)


def _torch_dropout_time(t: Arrays) -> Any:
    """Other random numbers, so that its result counts as wrong: here for its time."""
    import torch

    return torch.native_dropout(t["x"], P, True)[0]


def mish(device: str, quick: bool) -> Iterator[Case]:
    power = 26 if device == "cuda" else 22
    n = 1 << power
    yield Case(
        "07_external_functions", f"mish 2^{power}", "float32", {"x": (n,)}, (n,), 8.0 * n, "GB/s",
        lambda m, t, config: m.mish(t["x"], t["out"], config),
        lambda x: x * library(x).tanh(library(x).log1p(library(x).exp(x))),
        {"PyTorch": _torch_mish} if device == "cuda" else {}, 4,
    )  # fmt: skip


def _torch_mish(t: Arrays) -> Any:
    import torch

    return torch.nn.functional.mish(t["x"])


# products -----------------------------------------------------------------------------------------


def grouped(device: str, quick: bool) -> Iterator[Case]:
    """Groups of 1 to 4 parts of n rows, by n x n matrices; a and b are the common buffers."""
    n, count, dtype = (1024, 32, "float16") if device == "cuda" else (128, 16, "float32")
    shapes = [(n // 4 * (1 + i % 4), n, n) for i in range(count)]
    rows = sum(m for m, _, _ in shapes)
    yield Case(
        "08_grouped_matmul", f"{count} products {n}", dtype,
        {"a": (rows * n,), "b": (count * n * n,)}, (rows * n,), 2.0 * rows * n * n,
        "TFLOP/s" if device == "cuda" else "GFLOP/s",
        functools.partial(_run_grouped, shapes=tuple(shapes)),
        functools.partial(_products, shapes=shapes),
        {"one by one": functools.partial(_one_by_one, shapes=shapes)}, n,
    )  # fmt: skip


@functools.cache
def _table(m: ModuleType, shapes: tuple[tuple[int, int, int], ...], device: str) -> Any:
    return m.describe(shapes, device)


def _run_grouped(m: ModuleType, t: Arrays, config: Any, shapes: Any) -> None:
    table, _, aligned = _table(m, shapes, _workbench().device_of(t["a"]))
    m.grouped_matmul(t["a"], t["b"], t["out"], table, aligned, config)


def _products(a: Any, b: Any, shapes: Any) -> Any:
    found, i, j = [], 0, 0
    for m, n, k in shapes:
        found.append((a[i : i + m * k].reshape(m, k) @ b[j : j + k * n].reshape(k, n)).reshape(-1))
        i, j = i + m * k, j + k * n
    return np.concatenate(found) if isinstance(a, np.ndarray) else library(a).cat(found)


def _one_by_one(t: Arrays, shapes: Any) -> None:
    i = j = at = 0
    for m, n, k in shapes:
        left, right = t["a"][i : i + m * k], t["b"][j : j + k * n]
        out = t["out"][at : at + m * n].reshape(m, n)
        library(left).matmul(left.reshape(m, k), right.reshape(k, n), out=out)
        i, j, at = i + m * k, j + k * n, at + m * n


def persistent(device: str, quick: bool) -> Iterator[Case]:
    """The kernels of tutorial 9, with pointers and with descriptors."""
    for case in matmul(device, quick):
        n = case.result[0]
        for described in (False, True):
            yield Case(
                "09_persistent_matmul", f"{'descriptors' if described else 'pointers'} {n}",
                case.dtype, case.shapes, case.result, case.work, case.unit,
                functools.partial(_run_persistent, described=described), case.reference,
                case.peers, case.terms, None, case.preferred,
            )  # fmt: skip


def _run_persistent(m: ModuleType, t: Arrays, config: Any, described: bool) -> None:
    m.matmul(t["a"], t["b"], t["out"], described, config)


# gradients ----------------------------------------------------------------------------------------


def layer_norm_gradients(device: str, quick: bool) -> Iterator[Case]:
    """That of x is checked; those of weight and bias are in the same launches."""
    for case in layer_norm(device, quick):
        rows, columns = case.result
        shapes = {"dy": case.result, **case.shapes}
        yield Case(
            "05_layer_norm", f"gradients of {case.name}", case.dtype, shapes, case.result,
            3.0 * rows * columns * np.dtype(case.dtype).itemsize, case.unit,
            functools.partial(_run_layer_norm_gradients, rows=rows, columns=columns),
            _layer_norm_gradient, {}, columns, None, case.preferred,
        )  # fmt: skip


def _statistics(x: Any) -> tuple[Any, Any]:
    mean = x.mean(-1)
    centred = x - mean[..., None]
    return mean, ((centred * centred).mean(-1) + 1e-5) ** -0.5


def _run_layer_norm_gradients(
    m: ModuleType, t: dict[str, Any], config: Any, rows: int, columns: int
) -> None:
    """Means and inverses are computed once, and kept with the inputs."""
    device = _workbench().device_of(t["x"])
    if "means" not in t:
        wide = t["x"].astype("float64") if device == "cpu" else t["x"].double()
        for name, item in zip(("means", "inverses"), _statistics(wide), strict=True):
            t[name] = item.astype("float32") if device == "cpu" else item.float()
    sums = (beside(device, number, (columns,)) for number in range(2))
    m.backward(
        t["dy"], t["x"], t["weight"], t["means"], t["inverses"], t["out"], *sums, config=config
    )


def _layer_norm_gradient(dy: Any, x: Any, weight: Any, bias: Any) -> Any:
    mean, inverse = (item[..., None] for item in _statistics(x))
    h, g = (x - mean) * inverse, dy * weight
    return (g - g.mean(-1)[..., None] - h * (g * h).mean(-1)[..., None]) * inverse


def attention_gradients(device: str, quick: bool) -> Iterator[Case]:
    """That of q is checked; those of k and v are in the same launches."""
    for case in attention(device, quick):
        causal = case.name.endswith("causal")
        yield Case(
            "06_attention", f"gradients of {case.name}", case.dtype,
            {**case.shapes, "slopes": case.result}, case.result, 2.5 * case.work, case.unit,
            functools.partial(_run_attention_gradients, causal=causal),
            functools.partial(_query_gradient, causal=causal), {}, case.terms, table="GRADIENTS",
        )  # fmt: skip


def _run_attention_gradients(m: ModuleType, t: dict[str, Any], config: Any, causal: bool) -> None:
    """The forward kernel runs once; what it gives is kept with the inputs."""
    device, inputs = _workbench().device_of(t["q"]), (t["q"], t["k"], t["v"])
    if "levels" not in t:
        shape = tuple(t["q"].shape)
        dtype = str(t["q"].dtype).removeprefix("torch.")
        for name in ("result", "dk", "dv"):
            t[name] = _workbench().scratch(shape, dtype, device)
        t["levels"] = _workbench().scratch(shape[:2], device=device)
        m.forward(*inputs, t["result"], t["levels"], causal)
    m.backward(
        *inputs, t["result"], t["levels"], t["slopes"], t["out"], t["dk"], t["dv"], causal, config
    )


def _query_gradient(q: Any, k: Any, v: Any, slopes: Any, causal: bool) -> Any:
    lib, found = library(q), []
    for one, keys, values, slope in zip(q, k, v, slopes, strict=True):
        score = one @ keys.T * one.shape[-1] ** -0.5
        if causal:
            score = score + lib.triu(lib.full_like(score, -float("inf")), 1)
        p = softmax_of(score)
        ds = slope @ values.T
        ds = p * (ds - (p * ds).sum(-1)[..., None])
        found.append(ds @ keys * one.shape[-1] ** -0.5)
    return lib.stack(found)


GROUPS: Mapping[str, Callable[[str, bool], Iterator[Case]]] = {
    "add": vector_add,
    "softmax": softmax,
    "matmul": matmul,
    "layer-norm": layer_norm,
    "attention": attention,
    "dropout": dropout,
    "mish": mish,
    "grouped": grouped,
    "persistent": persistent,
    "layer-norm-gradients": layer_norm_gradients,
    "attention-gradients": attention_gradients,
}
