"""Counts, epsilons and sums that the 16-bit floats do not hold, met by graphs of those."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import ModelProto, parser

import fuser
from fuser import dtypes
from fuser.base.target import SM_90A
from fuser.dtypes import DType, bf16, f16, f32, i32, u8
from fuser.frontends.onnx.importer import import_onnx
from fuser.graph.builder import Builder, dtype_for
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph, TensorType
from fuser.graph.passes import run_passes
from fuser.partition.partition import partition
from tests.interpreted import run_partition
from tests.numerics import assert_close

Array = np.ndarray[Any, Any]

MANY = (256, 257)
"""More elements than float16 can count, 65,504."""


def model(dtype: str, shape: tuple[int, ...], body: str) -> ModelProto:
    dims = ",".join(map(str, shape))
    return parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 22]> g ({dtype}[{dims}] x)'
        f" => ({dtype}[a, b, c, d] y) {{ {body} }}"
    )


def wide_mean(x: Array) -> Array:
    return x.mean((2, 3), keepdims=True)


BODIES: dict[str, tuple[str, Any]] = {
    "mean": ("y = ReduceMean (x, ax)", wide_mean),
    "global pool": ("y = GlobalAveragePool (x)", wide_mean),
    "pool": ("y = AveragePool <kernel_shape = [256, 257]> (x)", wide_mean),
    "padded pool": (
        "y = AveragePool <kernel_shape = [260, 261], pads = [2, 2, 2, 2]> (x)", wide_mean,
    ),
    "L2": (
        "y = ReduceL2 (x, ax)",
        lambda x: np.sqrt((x * x).sum((2, 3), keepdims=True)),
    ),
    "global Lp": (
        "y = GlobalLpPool <p = 2> (x)", lambda x: np.sqrt((x * x).sum((2, 3), keepdims=True)),
    ),
    "log of sum": (
        "y = ReduceLogSum (x, ax)", lambda x: np.log(x.sum((2, 3), keepdims=True)),
    ),
    "log of sum of powers": (
        "y = ReduceLogSumExp (x, ax)",
        lambda x: np.log(np.exp(x).sum((2, 3), keepdims=True)),
    ),
    "variance": (
        "y = MeanVarianceNormalization <axes = [2, 3]> (x)",
        lambda x: (x - wide_mean(x)) / (x.std((2, 3), keepdims=True) + 1e-9),
    ),
}  # fmt: skip


@pytest.mark.parametrize("fusion", [True, False], ids=["fused", "apart"])
@pytest.mark.parametrize("name", BODIES)
def test_more_elements_than_float16_counts(
    name: str, fusion: bool, rng: np.random.Generator
) -> None:
    body, meaning = BODIES[name]
    body = "ax = Constant <value_ints = [2, 3]> () " + body
    x = (rng.random((1, 2, *MANY)) + 1).astype(np.float16)
    made = fuser.compile(model("float16", x.shape, body), device="cpu", fusion=fusion)
    assert_close(made.run({"x": x})["y"], meaning(x.astype(np.float64)), f16, x[0, 0].size)


NORMS = {
    "instances": ("InstanceNormalization (x, one, zero)", (2, 3)),
    "groups": ("GroupNormalization <num_groups = 1> (x, one, zero)", (1, 2, 3)),
    "layer": ("LayerNormalization <axis = 1> (x, weight)", (1, 2, 3)),
}


@pytest.mark.parametrize("fusion", [True, False], ids=["fused", "apart"])
@pytest.mark.parametrize("name", NORMS)
def test_norms_of_more_elements_than_float16_counts(
    name: str, fusion: bool, rng: np.random.Generator
) -> None:
    node, axes = NORMS[name]
    shape = ", ".join(map(str, (2, *MANY)))
    body = (
        "o = Constant <value_floats = [1.0, 1.0]> () one = Cast <to = 10> (o) zero = Sub (one, one)"
        " n = Constant <value_float = 1.0> () number = Cast <to = 10> (n)"
        f" d = Constant <value_ints = [{shape}]> () weight = Expand (number, d) y = {node}"
    )
    x = (rng.random((1, 2, *MANY)) * 2 + 0.5).astype(np.float16)
    wide = x.astype(np.float64)
    spread = np.sqrt(wide.var(axes, keepdims=True) + 1e-5)
    made = fuser.compile(model("float16", x.shape, body), device="cpu", fusion=fusion)
    want = (wide - wide.mean(axes, keepdims=True)) / spread
    assert_close(made.run({"x": x})["y"], want, f16, x.size)


@pytest.mark.parametrize("fusion", [True, False], ids=["fused", "apart"])
def test_sums_beyond_float16_on_the_way_to_a_mean(fusion: bool, rng: np.random.Generator) -> None:
    x = (rng.random((1, 2, 8, 9)) * 1e4 + 4e4).astype(np.float16)
    for body in (
        "y = GlobalAveragePool (x)",
        "y = AveragePool <kernel_shape = [8, 9]> (x)",
        "m = Max (x, x) y = GlobalAveragePool (m)",
    ):
        made = fuser.compile(model("float16", x.shape, body), device="cpu", fusion=fusion)
        assert_close(made.run({"x": x})["y"], wide_mean(x.astype(np.float64)), f16, 72)
    made = fuser.compile(model("float16", x.shape, "y = Mean (x, x, x)"), device="cpu")
    np.testing.assert_array_equal(made.run({"x": x})["y"], x)


@pytest.mark.parametrize("fusion", [True, False], ids=["fused", "apart"])
def test_bfloat16_divides_by_counts_that_it_does_not_hold(fusion: bool) -> None:
    """1.5 * 257 / 256 would be the next bfloat16 above 1.5."""
    x = np.full((1, 2, 1, 257), 1.5, ml_dtypes.bfloat16)
    for body in ("y = GlobalAveragePool (x)", "y = AveragePool <kernel_shape = [1, 257]> (x)"):
        made = fuser.compile(model("bfloat16", x.shape, body), device="cpu", fusion=fusion)
        assert (made.run({"x": x})["y"].astype(float) == 1.5).all()


def test_the_graph_itself_and_gpu_programs_have_the_mean(rng: np.random.Generator) -> None:
    x = (rng.random((1, 2, *MANY)) + 1).astype(np.float16)
    graph = run_passes(import_onnx(model("float16", x.shape, "y = GlobalAveragePool (x)")))
    want = wide_mean(x.astype(np.float64))
    assert_close(evaluate(graph, {"x": x})["y"], want, f16, x[0, 0].size)
    found = run_partition(partition(graph, SM_90A), {"x": x}, SM_90A)["y"]
    assert_close(found.reshape(want.shape), want, f16, x[0, 0].size)


def test_numpy_and_torch_functions(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    from fuser.frontends.torch import backend as torch_backend

    x = (rng.random((1, 2, *MANY)) + 1).astype(np.float16)
    wide = x.astype(np.float64)
    for fn in (np.mean, np.var):
        traced = fuser.jit(lambda a, fn=fn: fn(a, axis=(2, 3)), device="cpu")
        assert_close(traced(x), fn(wide, axis=(2, 3)), f16, x[0, 0].size)
    pooled = torch.compile(
        lambda t: torch.nn.functional.avg_pool2d(t, MANY), backend=torch_backend.backend
    )
    assert_close(pooled(torch.from_numpy(x)).numpy(), wide_mean(wide), f16, x[0, 0].size)
    scaled = torch.compile(lambda t: t * 1e-8, backend=torch_backend.backend)
    big = torch.full((8,), 60000, dtype=torch.float16)
    torch.testing.assert_close(scaled(big), big * 1e-8)
    above = torch.compile(lambda t: t < 70000, backend=torch_backend.backend)
    assert above(big).all()


@pytest.mark.parametrize(
    ("dtype", "number", "wanted"),
    [
        (f16, 2048, f16),
        (f16, 2049, f32),
        (f16, 65536, f32),
        (f16, 0.1, f16),
        (f16, 1e-5, f32),  # a subnormal: 0.1 % off
        (f16, 1e-12, f32),
        (f16, 1e30, f32),
        (f16, float("inf"), f16),
        (bf16, 256, bf16),
        (bf16, 257, f32),
        (bf16, 1e-12, bf16),
        (f32, 2**24 + 1, f32),
        (u8, 255, u8),
        (u8, 300, dtypes.i64),
        (i32, -1, i32),
    ],
)
def test_the_dtype_that_a_number_asks_for(dtype: DType, number: float, wanted: DType) -> None:
    assert dtype_for(dtype, [number]) is wanted


def test_maps_with_numbers_that_their_dtype_does_not_hold() -> None:
    graph = Graph("numbers")
    b = Builder(graph)
    x = graph.add_input("x", TensorType(f16, (3,)))
    small = graph.add_input("small", TensorType(u8, (2,)))
    graph.outputs = [b.map("mul", x, 1e-8), b.map("lt", x, 1e6), b.map("lt", small, 300)]
    graph.output_names = ["scaled", "far", "below"]
    feeds = {"x": np.float16([60000, 1, np.inf]), "small": np.uint8([40, 255])}
    found = evaluate(graph, feeds)
    assert found["scaled"].dtype == np.float16
    np.testing.assert_array_equal(found["scaled"], np.float16([6e-4, 0, np.inf]))
    np.testing.assert_array_equal(found["far"], [True, True, False])
    np.testing.assert_array_equal(found["below"], [True, True])
