"""Whether the results of an operator are right.

An element is right if it is near the result of float64, or near the eager result of the same dtype;
near is `tests.numerics.tolerance` of the dtype, for reductions as long as the largest operand,
relative to the element and the root mean square of its tensor. The second chance is for what is
decided by rounding (the floor of a quotient, the place of a maximum). Integers and bools must be
equal to the eager result or to that of float64, as must infinities and NaNs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fuser import dtypes
from fuser.frontends.torch.importer.registry import dtype_of
from tests.numerics import EPSILON, tolerance
from tests.opinfo.cases import leaves

CONDITION_TRIALS = 4

ANY_OF_EQUALS = ("sort", "argsort", "topk", "kthvalue", "median", "nanmedian", "mode")
"""Operators of which PyTorch says that the index may be that of any of several equal elements."""


def allowance(dtype: str, operands: Any) -> float:
    """The relative error allowed of results of operands, whose dtype is the coarsest of them."""
    length = max((x.numel() for x in leaves(operands) if isinstance(x, torch.Tensor)), default=1)
    own = dtype_of(dtype)
    return tolerance(own if own.is_float else dtypes.f32, max(length, 1))


Slack = Callable[[int], Any]
"""By place of a result: an error that is allowed in addition, a number or an array, or None."""


def problem(found: Any, eager: Any, exact: Any, allowed: float, *slacks: Slack | None) -> str:
    """What is wrong with results, or "". exact: those in float64, or None."""
    got, wanted = leaves(found), leaves(eager)
    if len(got) != len(wanted):
        return f"{len(got)} results, not {len(wanted)}"
    others = leaves(exact) if exact is not None else [None] * len(wanted)
    if len(others) != len(wanted):
        others = [None] * len(wanted)
    for place, (a, b, c) in enumerate(zip(got, wanted, others, strict=True)):
        given = [slack(place) for slack in slacks if slack is not None]
        more: Any = sum(extra for extra in given if extra is not None)
        text = _tensor(a, b, c, allowed, more) if isinstance(b, torch.Tensor) else _other(a, b)
        if text:
            return f"result {place}: {text}"
    return ""


def _other(found: Any, wanted: Any) -> str:
    same = found == wanted or (found != found and wanted != wanted)
    near = isinstance(wanted, float) and abs(found - wanted) <= 1e-5 * abs(wanted)
    return "" if same or near else f"{found!r}, not {wanted!r}"


def _tensor(found: Any, eager: Any, exact: Any, allowed: float, slack: Any) -> str:
    if not isinstance(found, torch.Tensor):
        return f"a {type(found).__name__}, not a tensor"
    if found.dtype != eager.dtype:
        return f"dtype {found.dtype}, not {eager.dtype}"
    if found.shape != eager.shape:
        return f"shape {tuple(found.shape)}, not {tuple(eager.shape)}"
    if eager.layout != torch.strided or eager.is_quantized:
        found, eager, exact = found.to_dense(), eager.to_dense(), None
    usable = isinstance(exact, torch.Tensor) and exact.shape == eager.shape
    if eager.is_complex():
        found, eager = (
            torch.view_as_real(found.resolve_conj()),
            torch.view_as_real(eager.resolve_conj()),
        )
        usable = usable and exact.is_complex()
        exact = torch.view_as_real(exact.resolve_conj()) if usable else None
    off = _far(found, eager, allowed, slack)
    if usable and off.any():
        off &= _far(found, exact, allowed, slack)
    if not off.any():
        return ""
    at = tuple(torch.nonzero(off)[0].tolist())
    text = f"element {at} is {found[at].item()}, not {eager[at].item()}"
    text += f" (float64: {exact[at].item()})" if usable else ""
    return f"{text}; {int(off.sum())} of {off.numel()} elements are off"


def _far(found: Any, wanted: Any, allowed: float, slack: Any) -> Any:
    """Where elements differ by more than what is allowed."""
    if not found.dtype.is_floating_point:
        return found != wanted
    a, b = found.detach().double(), wanted.detach().double()
    if not found.numel():
        return torch.zeros(found.shape, dtype=torch.bool)
    finite = torch.isfinite(b)
    scale = b[finite].square().mean().sqrt() if finite.any() else 0.0
    # What float64 holds and the dtype does not is an infinity there.
    rounded = wanted.detach().to(found.dtype).double()
    same = (a == b) | (a == rounded) | (torch.isnan(a) & torch.isnan(b))
    limit = allowed * (b.abs() + scale) + slack
    near = (a - b).abs() <= limit
    return ~(same | (near & finite))


def with_indices_of(found: Any, wanted: Any, x: Any) -> Any:
    """Results in which indices that name the same elements of x as the wanted ones, each once, are
    replaced by those."""
    listed, others = list(leaves(found)), leaves(wanted)
    for place, (a, b) in enumerate(zip(listed, others, strict=False)):
        if isinstance(b, torch.Tensor) and b.dtype == torch.int64 and _same_elements(a, b, x):
            listed[place] = b
    return listed


def _same_elements(found: Any, wanted: Any, x: Any) -> bool:
    if not x.ndim or found.shape != wanted.shape or not found.numel():
        return False
    for axis in range(x.ndim):
        if found.ndim == x.ndim:
            a, b = found, wanted
        elif found.ndim == x.ndim - 1:
            a, b = found.unsqueeze(axis), wanted.unsqueeze(axis)
        else:
            return False
        others = [i for i in range(x.ndim) if i != axis]
        if any(a.shape[i] != x.shape[i] for i in others) or a.min() < 0 or a.max() >= x.shape[axis]:
            continue
        ordered = a.sort(axis).values
        once = bool((ordered.diff(dim=axis) > 0).all())
        values, others_ = x.detach().gather(axis, a), x.detach().gather(axis, b)
        if once and torch.equal(torch.nan_to_num(values), torch.nan_to_num(others_)):
            return True
    return False


def gradient_scale(eager: Any, operands: Any, allowed: float) -> Slack:
    """The error allowed of gradients that cancel: relative to the size of gradients that do not, by
    which all operands together move the sum of the results as much as it is.

    The derivative of x / |x| over one element is 0 whatever x is, as a difference of two terms."""
    results, _ = eager
    total = sum(
        float(y.double().abs().nansum())
        for y in results
        if isinstance(y, torch.Tensor) and y.dtype.is_floating_point and y.layout == torch.strided
    )
    starts = [x for x in leaves(operands) if isinstance(x, torch.Tensor) and x.requires_grad]

    def slack(place: int) -> Any:
        if place < len(results):
            return None
        x = starts[place - len(results)].detach().double()
        size = float(x.square().nanmean().sqrt()) * x.numel()
        return allowed * total / size if size and total < float("inf") else None

    return slack


def conditioned(
    compute: Callable[[Sequence[Any]], Any], operands: Sequence[Any], dtype: str
) -> Slack | None:
    """By place of a result, how far it moves when the operands change by a rounding of the dtype:
    no computation in that dtype can be expected to be nearer. None if it cannot be said."""
    own = dtype_of(dtype)
    if not own.is_float:
        return None
    unit = EPSILON[own.name]
    generator = torch.Generator().manual_seed(0)

    def moved(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not x.dtype.is_floating_point:
            return x
        sign = torch.randint(0, 2, x.shape, generator=generator) * 2 - 1
        return (x.detach() * (1 + unit * sign)).requires_grad_(x.requires_grad)

    from torch.utils import _pytree

    try:
        centre = leaves(compute(operands))
        trials = [
            leaves(compute(_pytree.tree_map(moved, operands))) for _ in range(CONDITION_TRIALS)
        ]
    except Exception:  # some operands may not be changed: then nothing is excused
        return None

    def slack(place: int) -> Any:
        base = centre[place]
        if not isinstance(base, torch.Tensor) or not base.dtype.is_floating_point:
            return None
        gaps = [(trial[place].detach() - base.detach()).abs() for trial in trials]
        widest = torch.stack(gaps).amax(0)
        return 4 * torch.nan_to_num(widest, nan=0.0, posinf=0.0)

    return slack
