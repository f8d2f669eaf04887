"""The rewrites of passes, emitters and back ends: each is of its class, and runs where it may.

Every entry of fuser/graph/rewrites.py has a check here, by its name. A check of "order" holds each
element against its own terms: the error is a small multiple of the sum of their sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fuser
from fuser import dtypes
from fuser.backend.nvptx import compile_kernel
from fuser.base.target import SM_80, SM_90A, X86_64_V3, Target
from fuser.dtypes import DType
from fuser.frontends.onnx.model import open_model
from fuser.graph import compose
from fuser.graph.builder import Builder
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph, TensorType, Value
from fuser.graph.numerics import Mode, using
from fuser.graph.passes import run_passes
from fuser.graph.rewrites import BY_NAME, REWRITES
from fuser.partition import Options, partition
from fuser.partition.passes import PASSES
from fuser.pipeline.kernels import emit_programs
from tests.interpreted import run_partition
from tests.test_packed_weights import n_bits
from tests.tilegen_emit.test_digits import VNNI, weights_of

Array = np.ndarray[Any, Any]
CPU = X86_64_V3
CHECKS: dict[str, Callable[[np.random.Generator], None]] = {}


def of(*names: str) -> Callable[[Any], Any]:
    def register(check: Any) -> Any:
        CHECKS.update(dict.fromkeys(names, check))
        return check

    return register


class Case:
    """A graph under construction, its feeds, and what it gives."""

    def __init__(self, mode: Mode) -> None:
        with using(mode):
            self.graph = Graph("case")
        self.b = Builder(self.graph, ("node",))
        self.feeds: dict[str, Array] = {}

    def input(self, array: Array, dtype: DType = dtypes.f32) -> Value:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = array.astype(dtype.numpy)
        return self.graph.add_input(name, TensorType(dtype, array.shape))

    def run(self, y: Value, target: Target = CPU, **options: Any) -> tuple[Array, Array, set[str]]:
        """(what kernels give, what the operators give in float64, the rewrites in the plan)."""
        self.graph.outputs, self.graph.output_names = [y], ["y"]
        want = evaluate(self.graph, self.feeds, float64=True)["y"]
        cut = partition(run_passes(self.graph), target, Options(**options))
        programs = emit_programs(cut, target)
        found = {item.rule for item in cut.graph.rewritten}
        found |= {name for program in programs for name in program.rewrites}
        return run_partition(cut, self.feeds, target)["y"], want, found


def test_every_rewrite_has_a_check() -> None:
    assert set(CHECKS) == {item.name for item in REWRITES}


@pytest.mark.parametrize("name", CHECKS)
def test_rewrite(name: str, rng: np.random.Generator) -> None:
    CHECKS[name](rng)


def _ptx(graph: Graph, y: Value, target: Target) -> str:
    graph.outputs, graph.output_names = [y], ["y"]
    programs = emit_programs(partition(run_passes(graph), target), target)
    return "".join(compile_kernel(p.kernel, target).code.decode() for p in programs)


def close(have: Array, want: Array, terms: Array, units: float = 64, bits: int = 23) -> bool:
    """Whether errors are small beside the sums of the sizes of each element's own terms."""
    return bool((np.abs(have - want) <= units * 2.0**-bits * terms).all())


@of("fold_affine")
def _fold_affine(rng: np.random.Generator) -> None:
    mean = np.array([1e6, 2e6, 3e6], np.float32)
    x = (mean + rng.standard_normal((5, 3))).astype(np.float32)

    def made(mode: Mode) -> tuple[Array, Array, set[str]]:
        case = Case(mode)
        spread = case.b.constant(np.array([0.3, 0.7, 0.03], np.float32))
        y = case.b.map("div", case.b.map("sub", case.input(x), case.b.constant(mean)), spread)
        return case.run(case.b.map("add", y, case.b.constant(np.ones(3, np.float32))))

    have, want, found = made("model")
    assert "fold_affine" not in found and np.abs(have - want).max() < 1e-5
    have, want, found = made("fast")
    assert "fold_affine" in found and np.abs(have - want).max() > 1e-3


def _scaled(mode: Mode, dtype: DType, x: Array, y: Array, s: float) -> tuple[Any, ...]:
    case = Case(mode)
    left = case.b.map("mul", case.input(x, dtype), s)
    return case.run(case.b.dot(left, case.input(y, dtype), ((1,), (0,))))


@of("hoist_scales")
def _hoist(rng: np.random.Generator) -> None:
    x, y = np.full((4, 8), 1e30, np.float32), np.full((8, 4), 1e20, np.float32)
    have, want, found = _scaled("model", dtypes.f32, x, y, 1e-25)
    assert not found and np.allclose(have, want, 1e-5)
    have, _, found = _scaled("fast", dtypes.f32, x, y, 1e-25)
    assert found == {"hoist_scales"} and np.isinf(have).all()


@of("hoist_half_scales")
def _hoist_half(rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((4, 8)) * 1e3, rng.standard_normal((8, 4)) * 1e-3
    have, want, found = _scaled("model", dtypes.f16, x, y, 0.3)
    assert found == {"hoist_half_scales"}
    terms = np.abs(x * 0.3) @ np.abs(y)
    assert close(have.astype(float), want, terms, 4, 10)
    assert _scaled("strict", dtypes.f16, x, y, 0.3)[2] == set()


def _images(mode: Mode, x: Array, w: Array) -> tuple[Array, Array, set[str]]:
    case = Case(mode)
    y = case.b.emit(
        "conv", case.input(x), case.b.constant(w), strides=(1, 1), dilation=(1, 1), groups=1,
        padding=((1, 1), (1, 1)),
    )  # fmt: skip
    return case.run(y)


@of("winograd")
def _winograd(rng: np.random.Generator) -> None:
    x = rng.standard_normal((1, 32, 12, 12)).astype(np.float32)
    w = rng.standard_normal((64, 32, 3, 3)).astype(np.float32)
    x[0, 3, 5, 5] = np.inf
    away = np.ones((12, 12), bool)
    away[4:7, 4:7] = False
    have, want, found = _images("model", x, w)
    terms = np.abs(x[np.isfinite(x)]).max() * np.abs(w).sum((1, 2, 3)).max()
    assert "winograd" not in found and close(have[0][:, away], want[0][:, away], terms)
    have, _, found = _images("fast", x, w)
    assert "winograd" in found and np.isnan(have[0][:, away]).any()


@of("contraction")
def _contraction(rng: np.random.Generator) -> None:
    a, x = rng.standard_normal((2, 96)).astype(np.float32)
    for numerics, exact in (("model", True), ("fast", False)):
        function = fuser.jit(lambda a, x: a * x + (-a) * x, device="cpu", numerics=numerics)
        assert (not np.any(function(a, x))) is exact


@of("approximate_division")
def _division(rng: np.random.Generator) -> None:
    for mode, approximate in (("model", False), ("fast", True)):
        case = Case(mode)
        x, y = (case.input(np.ones(1024)) for _ in range(2))
        text = _ptx(case.graph, case.b.map("div", x, y), SM_90A)
        assert ("div.full.f32" in text) is approximate and ("div.rn.f32" in text) is not approximate


@of("wide_halves", "unrounded_casts")
def _halves(rng: np.random.Generator) -> None:
    x = rng.standard_normal(64).astype(np.float32) * 1e5

    def made(mode: Mode, cast: bool) -> tuple[Array, Array]:
        case = Case(mode)
        y = case.input(x) if cast else case.input(x / 1e5, dtypes.f16)
        y = case.b.cast(y, dtypes.f16) if cast else case.b.map("mul", y, y)
        y = case.b.map("sub", case.b.cast(y, dtypes.f32), 1.0)
        have, *_ = case.run(y)
        with np.errstate(over="ignore"):
            return have, evaluate(case.graph, case.feeds)["y"]

    for mode in ("model", "strict"):
        assert np.array_equal(*made(mode, cast=True))
    assert np.isfinite(made("fast", cast=True)[0]).all()
    assert np.array_equal(*made("strict", cast=False))
    have, rounded = made("model", cast=False)
    exact = (x / np.float32(1e5)).astype(np.float16).astype(float) ** 2 - 1
    assert np.abs(have - exact).max() < np.abs(rounded - exact).max()

    def inside(mode: Mode) -> tuple[Array, Array]:
        """A cast that is no operator of the model, but gives a result its dtype."""
        case = Case(mode)
        y = case.b.narrowed(case.b.map("add", case.input(x), 1.0), dtypes.f16)
        have, *_ = case.run(case.b.cast(y, dtypes.f32))
        with np.errstate(over="ignore"):
            return have, evaluate(case.graph, case.feeds)["y"]

    assert np.array_equal(*inside("strict"))
    assert np.array_equal(inside("model")[0], x + 1)


@of("short_functions")
def _short(rng: np.random.Generator) -> None:
    """Errors of these forms are measured in tests/backend/nvptx; here: who gets them."""
    for dtype, short in ((dtypes.f16, True), (dtypes.f32, False)):
        case = Case("model")
        x = case.input(np.ones((64, 256)), dtype)
        text = _ptx(case.graph, compose.softmax(case.b, x, [1]), SM_90A)
        assert ("div.rn.f32" in text) is not short
    for jump, short in ((False, True), (True, False)):
        case = Case("model")
        y = case.b.map("reciprocal", case.input(np.ones((64, 256)), dtypes.f16))
        text = _ptx(case.graph, case.b.map("floor", y) if jump else y, SM_90A)
        assert ("rcp.rn.f32" in text) is not short


def _attention(mode: Mode, arrays: tuple[Array, ...]) -> tuple[Array, Array, set[str]]:
    case = Case(mode)
    q, k, v = (case.input(array) for array in arrays)
    scores = case.b.dot(q, k, ((2,), (2,)), ((0,), (0,)))
    weights = compose.softmax(case.b, scores, [2])
    return case.run(case.b.dot(weights, v, ((2,), (1,)), ((0,), (0,))))


@of("online_softmax")
def _online(rng: np.random.Generator) -> None:
    arrays = tuple(rng.standard_normal((2, 96, 16)).astype(np.float32) for _ in range(3))
    have, want, found = _attention("model", arrays)
    scores = np.einsum("bqd,bkd->bqk", *(a.astype(float) for a in arrays[:2]))
    weights = np.exp(scores - scores.max(2, keepdims=True))
    weights /= weights.sum(2, keepdims=True)
    assert "online_softmax" in found and close(have, want, weights @ np.abs(arrays[2]))
    assert "online_softmax" not in _attention("strict", arrays)[2]


@of("hidden_keys")
def _hidden(rng: np.random.Generator) -> None:
    """Finite values: as without. An infinite value of a hidden key is NaN in the model's sum."""
    q, k, v = (rng.standard_normal((1, 300, 16)).astype(np.float32) for _ in range(3))
    for last in (1.0, np.inf):
        v[0, 299] = last
        for mode, hides in (("model", True), ("strict", False)):
            case = Case(mode)
            operands = [case.input(array) for array in (q, k, v)]
            scores = case.b.dot(operands[0], operands[1], ((2,), (2,)), ((0,), (0,)))
            row, column = (case.b.iota((1, 300, 300), axis) for axis in (1, 2))
            scores = case.b.map("select", case.b.map("gt", column, row), -np.inf, scores)
            weights = compose.softmax(case.b, scores, [2])
            have, want, found = case.run(
                case.b.dot(weights, operands[2], ((2,), (1,)), ((0,), (0,)))
            )
            assert ("hidden_keys" in found) is hides
            if last == 1:
                assert close(have, want, np.full_like(want, np.abs(v).max()))
            else:
                assert np.isnan(want[0, :299]).all()
                assert np.isnan(have[0, 0]).all() != hides


@of("split_k", "split_contractions", "split_sums")
def _split_k(rng: np.random.Generator) -> None:
    x = rng.standard_normal((4096, 64))
    for mode, splits in (("model", True), ("strict", False)):
        case = Case(mode)
        have, want, found = case.run(case.b.reduce("reduce_sum", case.input(x), [0]), SM_80)
        assert ("split_sums" in found) is splits
        assert close(have, want, np.abs(x).sum(0))


@of("integer_matmuls")
def _integers(rng: np.random.Generator) -> None:
    codes = rng.integers(0, 255, (4, 64)).astype(np.uint8)
    weights = rng.integers(-127, 127, (64, 32)).astype(np.int8)
    for mode, whole in (("model", True), ("strict", False)):
        case = Case(mode)
        x = case.b.cast(case.input(codes, dtypes.u8), dtypes.f32)
        x = case.b.map("mul", case.b.map("sub", x, 128.0), 0.03)
        w = case.b.map("mul", case.b.cast(case.b.constant(weights), dtypes.f32), 0.01)
        have, want, found = case.run(case.b.dot(x, w, ((1,), (0,))), SM_80)
        assert ("integer_matmuls" in found) is whole
        terms = np.abs((codes.astype(float) - 128) * 0.03) @ np.abs(weights * 0.01)
        assert close(have, want, terms)


@of("store_grids")
def _grids(rng: np.random.Generator) -> None:
    numbers = rng.integers(-127, 128, (96, 64)).astype(np.float32)
    numbers[0] = 1
    weights = numbers * np.float32(0.013)
    x = rng.standard_normal((1, 96)).astype(np.float32)
    for mode, moved in (("model", True), ("strict", False)):
        case = Case(mode)
        dot = case.b.dot(case.input(x), case.b.constant(weights), ((1,), (0,)))
        have, want, found = case.run(dot)
        assert ("store_grids" in found) is moved
        assert close(have, want, np.abs(x) @ np.abs(weights))


@of("digits")
def _digits(rng: np.random.Generator) -> None:
    """A small element beside a large one counts."""
    model = n_bits(1, 64, 48, 32, 4, False)
    x = np.full((1, 64), 0.3, np.float32)
    x[0, 5] = 1e9
    weights = weights_of(model)
    want = x.astype(float) @ weights
    alone = weights[5] == 0  # columns that do not see the large one
    for mode, split in (("model", False), ("fast", True)):
        with using(mode):
            cut = partition(open_model(model).graph({}), VNNI)
            programs = emit_programs(cut, VNNI)
        assert any("digits" in program.rewrites for program in programs) is split
        have = run_partition(cut, {"x": x}, VNNI)["y"]
        assert np.allclose(have[0, alone], want[0, alone], rtol=1e-5) is not split


@of("fp8_matmuls", "norms_in_epilogues", "fold_norms")
def _of_gpus(rng: np.random.Generator) -> None:
    """Their numbers are checked where they are tested (tests/partition, tests/tilegen_emit); here:
    that the passes have the class that the table says."""
    for item in PASSES:
        if item.name in BY_NAME:
            assert item.kind == BY_NAME[item.name].kind or item.name in (
                "hoist_scales",
                "fold_norms",
            )
