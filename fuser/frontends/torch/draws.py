"""Random numbers of a program that is compiled: from a counter and a seed of PyTorch's generator.

    native_dropout(%x, 0.1, True)    =>    %seed = fuser.seed(device)
                                           %u = fuser.random_uniform(%seed, 0, shape, 24)
                                           %x * (%u < 0.9) * (1 / 0.9), %u < 0.9

An element is a function of the seed, of the number of the draw in its graph and of its index
(Philox 4x32-10; see `fuser/frontends/torch/importer/random.py`), so kernels compute it where it is
read. PyTorch draws one seed in each call of a graph: `torch.manual_seed` makes a call the same
again. The graphs of a training step have the mask between them, or what it follows from. The
numbers are not those of eager PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fuser.frontends.torch.importer.random import KEY_STEPS, MULTIPLIERS, ROUNDS

_WORD = 0xFFFFFFFF

_library: Any = torch.library.Library("fuser", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(
    "seed(Device device) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded, torch.Tag.pt2_compliant_tag),
)


def _seed(device: torch.device) -> torch.Tensor:
    return torch.randint(2**63 - 1, (), dtype=torch.int64, device=device)


_library.impl("seed", _seed, "BackendSelect")


def _seed_like(device: torch.device) -> torch.Tensor:
    return torch.empty((), dtype=torch.int64, device=device)


torch.library.register_fake("fuser::seed", _seed_like, lib=_library)


@torch.library.custom_op("fuser::random_uniform", mutates_args=())
def _uniform(seed: torch.Tensor, number: int, shape: list[int], bits: int) -> torch.Tensor:
    """Floats in [0, 1) of so many bits, float32 or, of more than 24, float64. This runs where a
    graph is left to PyTorch; kernels of fuser have the handler of this name in the importer."""
    first, second = _words(seed, number, shape)
    if bits > 24:
        whole = (first >> 5) * 2**26 + (second >> 6)
        return whole.to(torch.float64) * 2.0**-53
    return (first >> (32 - bits)).to(torch.float32) * 2.0**-bits


@_uniform.register_fake
def _(seed: Any, number: int, shape: list[int], bits: int) -> Any:
    return seed.new_empty(shape, dtype=torch.float64 if bits > 24 else torch.float32)


@torch.library.custom_op("fuser::random_normal", mutates_args=())
def _normal(seed: torch.Tensor, number: int, shape: list[int]) -> torch.Tensor:
    """Floats of the normal distribution (Box and Muller), float32. As above."""
    first, second = _words(seed, number, shape)
    size = ((first >> 8) + 1).to(torch.float32) * 2.0**-24
    angle = (second >> 8).to(torch.float32) * (2.0**-24 * 6.283185307179586)
    return (size.log() * -2.0).sqrt() * angle.cos()


@_normal.register_fake
def _(seed: Any, number: int, shape: list[int]) -> Any:
    return seed.new_empty(shape, dtype=torch.float32)


def _words(seed: torch.Tensor, number: int, shape: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Two words of 32 bits for each element, as int64."""
    count = 1
    for size in shape:
        count *= size
    index = torch.arange(count, device=seed.device).reshape(shape)
    zero = torch.zeros_like(index)
    c0, c1, c2, c3 = index & _WORD, index >> 32, zero + number, zero
    k0, k1 = seed & _WORD, (seed >> 32) & _WORD
    for at in range(ROUNDS):
        if at:
            k0, k1 = (k0 + KEY_STEPS[0]) & _WORD, (k1 + KEY_STEPS[1]) & _WORD
        one, two = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((two >> 32) & _WORD) ^ c1 ^ k0, two & _WORD,
            ((one >> 32) & _WORD) ^ c3 ^ k1, one & _WORD,
        )  # fmt: skip
    return c0, c1


# What PyTorch's operators become -----------------------------------------------------------------

_BITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}
"""Bits of the significand: no number is rounded up to 1."""


def _drawn(shape: Any, device: Any, dtype: Any) -> Any:
    seed = torch.ops.fuser.seed(torch.device(device))
    return torch.ops.fuser.random_uniform(seed, 0, list(shape), _BITS[dtype]).to(dtype)


def _chances(x: Any) -> Any:
    return _drawn(x.shape, x.device, torch.float32)


def _dropout(x: Any, p: float, train: bool | None) -> Any:
    if train is False or p == 0 or x.dtype not in _BITS:
        return NotImplemented
    if p == 1:
        return x * 0, torch.zeros_like(x, dtype=torch.bool)
    kept = _chances(x) < 1 - p
    return x * kept * (1 / (1 - p)), kept


def _bernoulli(x: Any, *, generator: Any = None) -> Any:
    return NotImplemented if generator is not None else (_chances(x) < x).to(x.dtype)


def _bernoulli_of(x: Any, p: float = 0.5, *, generator: Any = None) -> Any:
    return NotImplemented if generator is not None else (_chances(x) < p).to(x.dtype)


def _rand(shape: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    kind = dtype or torch.get_default_dtype()
    return _drawn(shape, device or "cpu", kind) if kind in _BITS else NotImplemented


def _rand_like(x: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return _rand(x.shape, dtype=dtype or x.dtype, device=device or x.device)


def _randn(shape: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    kind = dtype or torch.get_default_dtype()
    if kind not in _BITS or kind == torch.float64:
        return NotImplemented
    seed = torch.ops.fuser.seed(torch.device(device or "cpu"))
    return torch.ops.fuser.random_normal(seed, 0, list(shape)).to(kind)


def _randn_like(x: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return _randn(x.shape, dtype=dtype or x.dtype, device=device or x.device)


def _uniform_between(x: Any, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> Any:
    if generator is not None or x.dtype not in _BITS:
        return NotImplemented
    return _drawn(x.shape, x.device, x.dtype) * (high - low) + low


def _normal_like(x: Any, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Any:
    found = NotImplemented if generator is not None else _randn_like(x)
    return found if found is NotImplemented else found * std + mean


def drawing_decompositions() -> dict[Any, Callable[..., Any]]:
    """What PyTorch's random operators are taken apart into; others run in PyTorch."""
    aten = torch.ops.aten
    return {
        aten.native_dropout.default: _dropout,
        aten.bernoulli.default: _bernoulli,
        aten.bernoulli.p: _bernoulli_of,
        aten.rand.default: _rand,
        aten.rand_like.default: _rand_like,
        aten.randn.default: _randn,
        aten.randn_like.default: _randn_like,
        aten.uniform.default: _uniform_between,
        aten.normal_functional.default: _normal_like,
    }


def number_draws(module: Any) -> None:
    """One seed a device for all draws of a graph, first in it: numbers tell draws apart."""
    ops = torch.ops.fuser
    graph = module.graph
    seeds = [node for node in graph.nodes if node.target is ops.seed.default]
    if not seeds:
        return
    first: dict[str, Any] = {}
    draws = (ops.random_uniform.default, ops.random_normal.default)
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    start = inputs[-1].next if inputs else next(iter(graph.nodes))
    for node in seeds:
        kept = first.get(str(node.args))
        if kept is None:
            with graph.inserting_before(start):
                kept = first[str(node.args)] = graph.node_copy(node)
            kept.meta.pop("recompute", None)  # what is drawn again is drawn from the same seed
        node.replace_all_uses_with(kept)
        graph.erase_node(node)
    for number, node in enumerate(node for node in graph.nodes if node.target in draws):
        node.args = (node.args[0], number, *node.args[2:])
    module.recompile()
