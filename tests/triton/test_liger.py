"""Kernels of Liger-Kernel, which nobody here wrote, forward and backward against float64.

They are loaded through fuser.triton and launched by their own torch functions.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import fuser.triton as triton
from fuser.dtypes import bf16, f32
from tests.language.launching import DEVICES
from tests.numerics import assert_close

torch = pytest.importorskip("torch")
# a look alone: it is to be loaded with our triton
MISSING = importlib.util.find_spec("liger_kernel") is None
pytestmark = pytest.mark.skipif(
    MISSING, reason="liger_kernel is not installed: scripts/environment"
)
functional = torch.nn.functional

TYPES = {"f32": (torch.float32, f32), "bf16": (torch.bfloat16, bf16)}
Tensors = Mapping[str, Any]


@pytest.fixture(scope="module")
def function() -> Callable[[str, str], Any]:
    """(module, name) -> a torch function of the package, on fuser.triton."""

    def find(module: str, name: str) -> Any:
        with triton.imports("liger_kernel"):
            return getattr(importlib.import_module(f"liger_kernel.ops.{module}"), name).apply

    return find


class Case:
    """The tensors of one case: what the kernels get, and the same numbers in float64."""

    def __init__(self, device: str, dtype: str, rng: np.random.Generator) -> None:
        self.device, self.rng = device, rng
        self.torch_type, self.dtype = TYPES[dtype]
        self.theirs: dict[str, Any] = {}
        self.exact: dict[str, Any] = {}

    def normal(self, *shape: int, scale: float = 1) -> Any:
        values = torch.from_numpy(np.asarray(scale * self.rng.standard_normal(shape)))
        return self.moved(values.to(self.torch_type))

    def moved(self, value: Any) -> Any:
        return value.to(self.device)

    def labels(self, rows: int, count: int) -> Any:
        return self.moved(torch.from_numpy(self.rng.integers(0, count, rows)))

    def learn(self, **tensors: Any) -> None:
        """Tensors whose gradients are compared."""
        for name, value in tensors.items():
            self.theirs[name] = value.detach().clone().requires_grad_()
            self.exact[name] = value.detach().double().requires_grad_()

    def check(
        self, run: Callable[..., Any], reference: Callable[..., Any], terms: int, **grown: int
    ) -> None:
        """Compare results and gradients. terms: that a result sums up; grown: those of gradients
        that sum up more of them."""
        wanted = _several(reference(**self.exact))
        slopes = [self.normal(*item.shape) for item in wanted]
        torch.autograd.backward(wanted, [slope.double() for slope in slopes])
        # kernels that work in place must find copies, not the leaves
        found = _several(run(*(item.clone() for item in self.theirs.values())))
        have = [item.detach().clone() for item in found]
        torch.autograd.backward(found, [s.to(f.dtype) for s, f in zip(slopes, found, strict=True)])
        for ours, want in zip(have, wanted, strict=True):
            self.close(ours, want, terms)
        for name, leaf in self.theirs.items():
            self.close(leaf.grad, self.exact[name].grad, grown.get(name, terms))

    def close(self, have: Any, want: Any, terms: int) -> None:
        assert_close(_array(have), _array(want), self.dtype, terms)


def _several(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple | list) else [found]


def _array(tensor: Any) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = tensor.detach().double().cpu().numpy()
    return array


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=list(TYPES))
def case(request: pytest.FixtureRequest, device: str, rng: np.random.Generator) -> Case:
    return Case(device, request.param, rng)


def rms(x: Any, eps: float) -> Any:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


# normalisation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("casting", ["llama", "gemma", "none"])
@pytest.mark.parametrize("rows, columns", [((3, 5), 1000), ((1,), 77)])
def test_rms_norm(
    case: Case, function: Any, casting: str, rows: tuple[int, ...], columns: int
) -> None:
    run = function("rms_norm", "LigerRMSNormFunction")
    case.learn(x=case.normal(*rows, columns), w=case.normal(columns))
    offset = 1.0 if casting == "gemma" else 0.0
    case.check(
        lambda x, w: run(x, w, 1e-6, offset, casting, False),
        lambda x, w: rms(x, 1e-6) * (w + offset),
        columns,
    )


def test_fused_add_rms_norm(case: Case, function: Any) -> None:
    run = function("fused_add_rms_norm", "LigerFusedAddRMSNormFunction")
    case.learn(x=case.normal(9, 333), r=case.normal(9, 333), w=case.normal(333))
    case.check(
        lambda x, r, w: run(x, r, w, 1e-6, 0.0, "llama", False),
        lambda x, r, w: (rms(x + r, 1e-6) * w, x + r),
        333,
    )


@pytest.mark.parametrize("rows, columns", [(13, 777), (40, 64)])
def test_layer_norm(case: Case, function: Any, rows: int, columns: int) -> None:
    run = function("layer_norm", "LigerLayerNormFunction")
    case.learn(x=case.normal(rows, columns), w=case.normal(columns), b=case.normal(columns))
    case.check(
        lambda x, w, b: run(x, w, b, 1e-5),
        lambda x, w, b: functional.layer_norm(x, (columns,), w, b, 1e-5),
        columns,
    )


def test_group_norm(case: Case, function: Any) -> None:
    run = function("group_norm", "LigerGroupNormFunction")
    case.learn(x=case.normal(3, 12, 50), w=case.normal(12), b=case.normal(12))
    case.check(
        lambda x, w, b: run(x, w, b, 12, 4, 1e-5),
        lambda x, w, b: functional.group_norm(x, 4, w, b, 1e-5),
        150,
    )


def test_dynamic_tanh(case: Case, function: Any) -> None:
    run = function("dyt", "LigerDyTFunction")
    rows = 7

    def reference(x: Any, a: Any, w: Any, b: Any) -> Any:
        return w * torch.tanh(a * x) + b

    if case.device == "cpu":  # its backward asks for the multiprocessors of a GPU
        x, a, w, b = (case.normal(*shape) for shape in ((rows, 300), (1,), (300,), (300,)))
        wide = reference(*(item.double() for item in (x, a, w, b)))
        case.close(run(x, a, w, b), wide, 1)
        return
    case.learn(x=case.normal(rows, 300), a=case.normal(1), w=case.normal(300), b=case.normal(300))
    case.check(run, reference, 1, a=300 * rows, w=rows, b=rows)


def test_poly_norm(case: Case, function: Any) -> None:
    run = function("poly_norm", "LigerPolyNormFunction")
    case.learn(x=case.normal(11, 130), w=case.normal(3), b=case.normal())
    case.check(
        lambda x, w, b: run(x, w, b, 1e-6, False),
        lambda x, w, b: w[0] * rms(x**3, 1e-6) + w[1] * rms(x**2, 1e-6) + w[2] * rms(x, 1e-6) + b,
        130, w=1430, b=1430,
    )  # fmt: skip


# elementwise -------------------------------------------------------------------------------------


@pytest.mark.parametrize("module, name, act", [
    ("swiglu", "LigerSiLUMulFunction", functional.silu),
    ("geglu", "LigerGELUMulFunction", lambda x: functional.gelu(x, approximate="tanh")),
])  # fmt: skip
@pytest.mark.parametrize("shape", [(5, 300), (2, 3, 1025)])
def test_gated(
    case: Case, function: Any, module: str, name: str, act: Any, shape: tuple[int, ...]
) -> None:
    case.learn(a=case.normal(*shape), b=case.normal(*shape))
    case.check(function(module, name), lambda a, b: act(a) * b, 1)


def test_relu_squared(case: Case, function: Any) -> None:
    case.learn(x=case.normal(6, 213))
    run = function("relu_squared", "LigerReLUSquaredFunction")
    case.check(run, lambda x: torch.relu(x) ** 2, 1)


@pytest.mark.parametrize("heads, shared, length", [(8, 4, 33), (3, 3, 1)])
def test_rope(case: Case, function: Any, heads: int, shared: int, length: int) -> None:
    run = function("rope", "LigerRopeFunction")
    case.learn(q=case.normal(2, heads, length, 64), k=case.normal(2, shared, length, 64))
    angles = torch.arange(length)[:, None] * 10000.0 ** -(torch.arange(0, 64, 2) / 64)
    angles = case.moved(torch.cat([angles, angles], -1)[None])
    cos, sin = angles.cos().to(case.torch_type), angles.sin().to(case.torch_type)

    def turned(x: Any) -> Any:
        half = torch.cat([-x[..., 32:], x[..., :32]], -1)
        return x * cos.double()[:, None] + half * sin.double()[:, None]

    case.check(lambda q, k: run(q, k, cos, sin), lambda q, k: (turned(q), turned(k)), 2)


# rows of probabilities ---------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [500, 3001])
def test_softmax(case: Case, function: Any, columns: int) -> None:
    case.learn(x=case.normal(9, columns))
    case.check(function("softmax", "LigerSoftmaxFunction"), lambda x: x.softmax(-1), columns)


def sparsemax(x: Any) -> Any:
    """The projection onto the simplex of probabilities."""
    ordered = x.sort(-1, descending=True).values
    sums = ordered.cumsum(-1) - 1
    count = torch.arange(1, x.shape[-1] + 1, device=x.device)
    support = (count * ordered > sums).sum(-1, keepdim=True)
    return torch.relu(x - sums.gather(-1, support - 1) / support)


def test_sparsemax(case: Case, function: Any) -> None:
    case.learn(x=case.normal(10, 100))
    run = function("sparsemax", "LigerSparsemaxFunction")
    case.check(lambda x: run(x, -1), sparsemax, 100)


# losses ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [
    {}, {"label_smoothing": 0.1}, {"reduction": "sum"}, {"softcap": 3.0},
], ids=["plain", "smooth", "sum", "capped"])  # fmt: skip
def test_cross_entropy(case: Case, function: Any, options: dict[str, Any]) -> None:
    run = function("cross_entropy", "LigerCrossEntropyFunction")
    case.learn(x=case.normal(21, 1003))
    labels = case.labels(21, 1003)
    labels[3] = -100
    chosen = {"label_smoothing": 0.0, "reduction": "mean", "softcap": None} | options
    cap = chosen["softcap"]

    def reference(x: Any) -> Any:
        x = x if cap is None else cap * torch.tanh(x / cap)
        rest = {name: chosen[name] for name in ("label_smoothing", "reduction")}
        return functional.cross_entropy(x, labels, **rest)

    case.check(
        lambda x: run(x, labels, None, -100, 0.0, *chosen.values(), False)[0], reference, 1003
    )


def test_fused_linear_cross_entropy(case: Case, function: Any) -> None:
    run = function("fused_linear_cross_entropy", "LigerFusedLinearCrossEntropyFunction")
    # logits of about 1: the kernels round them to the type, and exp multiplies their errors
    case.learn(x=case.normal(19, 64), w=case.normal(555, 64, scale=64**-0.5))
    labels = case.labels(19, 555)
    case.check(
        lambda x, w: run(x, w, labels)[0],
        lambda x, w: functional.cross_entropy(x @ w.T, labels),
        64 + 555,
    )


@pytest.mark.parametrize("reduction", ["batchmean", "sum", "mean", "none"])
@pytest.mark.parametrize("log_target", [False, True])
def test_kl_divergence(case: Case, function: Any, reduction: str, log_target: bool) -> None:
    run = function("kl_div", "LigerKLDivLossFunction")
    case.learn(x=case.normal(10, 333).log_softmax(-1))
    target = case.normal(10, 333)
    target = target.log_softmax(-1) if log_target else target.softmax(-1)
    case.check(
        lambda x: run(x, target, reduction, log_target, 1e-10),
        lambda x: functional.kl_div(x, target.double(), reduction=reduction, log_target=log_target),
        333 if reduction == "none" else 3330,
    )


def jensen_shannon(x: Any, y: Any, beta: float) -> Any:
    p, q = y.exp(), x.exp()
    mixed = (beta * p + (1 - beta) * q).log()
    if beta in (0, 1):  # then it is the one or the other divergence
        return functional.kl_div(*((x, y) if beta == 0 else (y, x)), log_target=True,
                                 reduction="batchmean")  # fmt: skip
    return (beta * p * (y - mixed) + (1 - beta) * q * (x - mixed)).sum() / x.shape[0]


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 1.0])
def test_jensen_shannon_divergence(case: Case, function: Any, beta: float) -> None:
    run = function("jsd", "LigerJSDFunction")
    case.learn(x=case.normal(10, 333).log_softmax(-1))
    y = case.normal(10, 333).log_softmax(-1)
    case.check(lambda x: run(x, y, None, beta), lambda x: jensen_shannon(x, y.double(), beta), 3330)


def test_fused_linear_jsd(case: Case, function: Any) -> None:
    run = function("fused_linear_jsd", "LigerFusedLinearJSDFunction")
    case.learn(x=case.normal(12, 32), w=case.normal(200, 32, scale=32**-0.5))
    y, v = case.normal(12, 40), case.normal(200, 40, scale=40**-0.5)
    teacher = (y.double() @ v.double().T).log_softmax(-1)
    case.check(
        lambda x, w: run(x, w, y, v, None, 0.5),
        lambda x, w: jensen_shannon((x @ w.T).log_softmax(-1), teacher, 0.5),
        2400,
    )


@pytest.mark.parametrize("reduction", ["batchmean", "sum", "none"])
def test_total_variation(case: Case, function: Any, reduction: str) -> None:
    run = function("tvd", "LigerTVDLossFunction")
    case.learn(p=case.normal(10, 333).softmax(-1))
    q = case.normal(10, 333).softmax(-1)

    def reference(p: Any) -> Any:
        apart = (p - q.double()).abs() / 2
        return {"batchmean": apart.sum() / 10, "sum": apart.sum(), "none": apart}[reduction]

    case.check(lambda p: run(p, q, None, reduction), reference, 3330)


def test_grpo_loss(case: Case, function: Any) -> None:
    run = function("grpo_loss", "GrpoLossFunction")
    case.learn(x=case.normal(3, 8, 333))
    tokens = case.labels(21, 333).reshape(3, 7)
    known = case.normal(3, 7).float() / 4
    gains = case.normal(3).float()
    mask = case.moved(torch.tensor([[1] * 7, [1] * 4 + [0] * 3, [1] * 6 + [0]]))

    def logs(x: Any) -> Any:
        rows = (x[:, :-1] / 0.9).log_softmax(-1)
        return rows.gather(-1, tokens[..., None])[..., 0]

    start = logs(case.exact["x"]).detach()
    old, other = (start + known.double()).float(), (start - known.double()).float()

    def reference(x: Any) -> Any:
        now = logs(x)
        ratio = torch.exp(now - old.double())
        gain = gains.double()[:, None]
        loss = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
        away = other.double() - now
        loss = loss + 0.04 * (away.exp() - away - 1)
        return ((loss * mask).sum(1) / mask.sum(1)).mean()

    case.check(
        lambda x: run(x, old, other, tokens, gains, mask, 0.9, 0.04, 0.2, 0.2, False)[0],
        reference,
        333,
    )
