"""One sample of an operator through torch.compile with fuser, judged."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tests.opinfo.cases import UNINITIALISED, call_of, leaves, mapped
from tests.opinfo.judge import (
    ANY_OF_EQUALS,
    allowance,
    conditioned,
    gradient_scale,
    problem,
    with_indices_of,
)

LEAVES = re.compile("fuser leaves (a graph|operators) to PyTorch: ")
"""How the warning of what runs in PyTorch begins."""

SEEDS = (2, 3, 4, 5)
"""An operator whose result is another one with one of these draws random numbers."""

DEFECT = "a defect of fuser"
"""What the warning says of graphs that should have been compiled."""

KINDS = ("right", "conditioned", "fell back", "not captured", "skipped", "trace", "wrong", "error",
         "stopped")  # fmt: skip
"""What became of a sample; `document._INTRODUCTION` explains them."""


@dataclass(frozen=True)
class Outcome:
    operator: str
    sample: int
    kind: str
    reason: str = ""
    seconds: float = 0.0

    def line(self) -> str:
        return f"{self.kind}: {self.operator} [{self.sample}]: {self.reason}"


def _fresh(x: Any) -> Any:
    return x.detach().clone().requires_grad_(x.requires_grad)


def _double(x: Any) -> Any:
    if not x.dtype.is_floating_point:
        return x.detach().clone()
    return x.detach().double().requires_grad_(x.requires_grad)


def _gradients(function: Any, operands: Sequence[Any]) -> Any:
    """The results, and the gradients of a weighted sum of them."""
    results = function(*operands)
    generator = torch.Generator().manual_seed(1)
    ends, weights = [], []
    for y in leaves(results):
        if isinstance(y, torch.Tensor) and y.requires_grad and y.dtype.is_floating_point:
            ends.append(y)
            weight = torch.rand(y.shape, generator=generator, dtype=torch.float64) + 0.5
            weights.append(weight.to(y.dtype))
    starts = [x for x in leaves(operands) if isinstance(x, torch.Tensor) and x.requires_grad]
    if not ends:
        raise _NoGradient("no result has a gradient")
    found = torch.autograd.grad(ends, starts, weights, allow_unused=True)
    return list(leaves(mapped(results, lambda y: y.detach()))), list(found)


class _NoGradient(Exception):
    pass


def check(name: str, place: int, sample: Any, dtype: str, direction: str) -> Outcome:
    kind, reason = _check(name, sample, dtype, direction)
    return Outcome(name, place, kind, reason)


def _check(name: str, sample: Any, dtype: str, direction: str) -> tuple[str, str]:
    if name in UNINITIALISED:
        return "skipped", "the result is uninitialised memory"
    call = call_of(name, sample.kwargs)
    operands = (sample.input, *sample.args)
    backward = direction == "backward"

    def compute(function: Any, given: Sequence[Any]) -> Any:
        if backward:
            return _gradients(function, given)
        with torch.no_grad():
            return function(*given)

    try:
        torch.manual_seed(1)
        eager = mapped(compute(call, mapped(operands, _fresh)), torch.clone)
        others = []
        for seed in SEEDS:
            torch.manual_seed(seed)
            others.append(compute(call, mapped(operands, _fresh)))
    except Exception as error:
        return "skipped", f"eager PyTorch raises {type(error).__name__}"
    given = (*leaves(operands), *leaves(eager))
    if any(isinstance(x, torch.Tensor) and x.layout != torch.strided for x in given):
        return "skipped", "sparse tensors"
    if any(problem(other, eager, None, 0.0) for other in others):
        return "skipped", "random numbers"
    try:
        exact = compute(call, mapped(operands, _double))
    except Exception:
        exact = None
    allowed = allowance(dtype, operands)
    try:
        found, graphs, left = _compiled(call, compute, mapped(operands, _fresh), "fuser")
    except Exception as error:
        text = f"{type(error).__name__}: {str(error).strip()[:300]}"
        return ("trace" if _traced_problem(call, compute, operands, eager, exact, allowed)
                else "error"), text  # fmt: skip
    if name in ANY_OF_EQUALS and not sample.kwargs.get("stable"):
        found = with_indices_of(found, eager, operands[0])
    floor = gradient_scale(eager, operands, allowed) if backward else None
    text = problem(found, eager, exact, allowed, floor)
    if text:
        slack = conditioned(lambda given: compute(call, given), mapped(operands, _double), dtype)
        if slack and not problem(found, eager, exact, allowed, slack, floor):
            return "conditioned", text
        if _traced_problem(call, compute, operands, eager, exact, allowed):
            return "trace", text
        return "wrong", text + (f" [after {left[0]}]" if left else "")
    defects = [reason for reason in left if DEFECT in reason]
    if defects:
        return "error", defects[0]
    if left:
        return "fell back", left[0]
    return ("right", "") if graphs else ("not captured", "")


def _compiled(call: Any, compute: Any, operands: Any, route: str) -> tuple[Any, int, list[str]]:
    """The results through torch.compile, the graphs that were captured, and why some were left to
    PyTorch. route: "fuser", or "trace" for the same trace run by PyTorch."""
    from fuser.frontends.torch import backend as torch_backend

    graphs = 0

    def counted(module: Any, inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return (
            torch_backend.backend(module, inputs) if route == "fuser" else _eagerly(module, inputs)
        )

    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = compute(torch.compile(call, backend=counted, dynamic=False), operands)
    texts = [str(item.message) for item in caught]
    return found, graphs, [plain(text) for text in texts if LEAVES.match(text)]


def _eagerly(module: Any, inputs: Any) -> Any:
    """The trace that fuser would read, run by PyTorch."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    from fuser.frontends.torch.decompositions import decompositions

    def compiler(graph: Any, _: Any) -> Any:
        return make_boxed_func(graph.forward)

    return aot_autograd(
        fw_compiler=compiler, bw_compiler=compiler, decompositions=decompositions()
    )(module, inputs)


def _traced_problem(
    call: Any, compute: Any, operands: Any, eager: Any, exact: Any, allowed: float
) -> bool:
    """Whether PyTorch's own trace fails, too."""
    try:
        found, _, _ = _compiled(call, compute, mapped(operands, _fresh), "trace")
    except Exception:
        return True
    return bool(problem(found, eager, exact, allowed))


def plain(text: str) -> str:
    """A reason without what differs from sample to sample."""
    text = re.sub(r"\. (It has little else|What is around).*", "", LEAVES.sub("", text))
    missing = re.findall(r"(\S+)(?: \(\d+ times\))? is not supported(?: \(|;|\.|$)", text)
    if missing:
        return ", ".join(sorted(set(missing)))
    text = text.partition("is not supported here: ")[2] or text
    return re.sub(r"\d+(, \d+)*", "n", text.split(" (", 1)[0])
