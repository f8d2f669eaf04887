"""`precision=`: what it rounds, where, and what the report says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import fuser
from fuser import dtypes
from fuser.backend.cpu import host_target
from fuser.base.target import AARCH64, SM_90A, X86_64_V3
from fuser.errors import UsageError
from fuser.frontends.onnx import model as onnx_models
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Value
from fuser.graph.ops.registry import primitive
from fuser.graph.precision import grid, quantise_weights, round_operands
from fuser.partition import Options, partition
from fuser.partition.region import Partition
from fuser.pipeline import compiler
from fuser.pipeline.options import CompileOptions
from fuser.pipeline.precision import rounding
from models import TINY, build, example_feeds
from tests.tilegen_emit.graphs import Model

HOST = host_target()
HAS_UNIT = pytest.mark.skipif(
    HOST.dot_unit("bf16") is None, reason="this processor does not multiply bfloat16"
)
TOLERANCE = 0.03
"""Of a whole model beside float32: a rounding of 2**-9 an operand, through tens of layers."""


def test_what_is_rounded_where() -> None:
    assert rounding("model", HOST) == rounding("model", SM_90A)
    for target in (X86_64_V3, AARCH64):
        found = rounding("bf16", target)
        assert found.operands is None and "does not multiply bfloat16" in found.text
    capable = replace(HOST, features="+avx512bf16,+avx512vl")
    assert rounding("bf16", capable).operands is dtypes.bf16
    assert rounding("bf16", capable).text == "bf16 (avx512_bf16)"
    with pytest.raises(UsageError, match="for the CPU"):
        rounding("bf16", SM_90A)
    with pytest.raises(UsageError, match="no precision"):
        rounding("int3", HOST)  # type: ignore[arg-type]


@HAS_UNIT
@pytest.mark.parametrize(
    "name,sizes",
    [("mlp", {"batch": 5}), ("attention", {"batch": 2, "sequence": 33}),
     ("conv_block", {"batch": 1}), ("tiny_llama", {"batch": 1, "sequence": 20})],
)  # fmt: skip
def test_models(name: str, sizes: dict[str, int]) -> None:
    """Near the definition (the graph with rounded operands), and not too far from float32."""
    model = onnx_models.open_model(build(name))
    feeds = example_feeds(build(name), sizes)
    plan = fuser.compile(model, device="cpu", dims=sizes, precision="bf16")
    exact = fuser.compile(model, device="cpu", dims=sizes)
    assert plan.report().precision.startswith("bf16")
    assert exact.report().precision == "model"
    have, plain = plan.run(feeds), exact.run(feeds)
    want = evaluate(round_operands(model.graph(sizes), dtypes.bf16), feeds, float64=True)
    for key, array in have.items():
        assert array.dtype == plain[key].dtype
        size = np.linalg.norm(plain[key])
        rounded = np.linalg.norm(array - plain[key]) / size
        # Values near the middle of two bfloat16 numbers may go either way, and in a deep model
        # nearly all go their own: two roundings of one size, independent at worst.
        limit = 1e-4 if name == "conv_block" else 1.5 * rounded
        assert np.linalg.norm(array - want[key]) / size < limit
        assert 1e-5 < rounded < TOLERANCE


@HAS_UNIT
@pytest.mark.parametrize(
    ("name", "sizes"), [("mlp", {"batch": 70}), ("attention", {"batch": 1, "sequence": 300})]
)
def test_the_same_bits_from_any_number_of_threads(name: str, sizes: dict[str, int]) -> None:
    model = build(name, **({} if name == "mlp" else TINY[name]))
    feeds = example_feeds(model, sizes)
    runs = [
        fuser.compile(model, device="cpu", dims=sizes, threads=n, precision="bf16").run(feeds)
        for n in (1, 2, 16)
    ]
    for run in runs[1:]:
        for key in run:
            np.testing.assert_array_equal(run[key], runs[0][key])


@HAS_UNIT
def test_convolutions_give_the_same_bits_from_any_number_of_threads() -> None:
    m = residual_network()
    runs = [
        compiler.compile_graph(
            m.graph, CompileOptions(device="cpu", threads=n, precision="bf16")
        ).run(m.feeds)
        for n in (1, 2, 16)
    ]
    for run in runs[1:]:
        np.testing.assert_array_equal(run["y0"], runs[0]["y0"])


@HAS_UNIT
@pytest.mark.parametrize("front", ["jit", "trace", "session"])
def test_front_ends(front: str) -> None:
    """Every front end hands the choice on: the results are those of rounded operands."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape, np.float32) for shape in ((9, 40), (40, 12)))
    run: Callable[..., np.ndarray]
    if front == "session":
        model = build("mlp")
        feeds = example_feeds(model, {"batch": 3})
        (have,) = fuser.InferenceSession(model, device="cpu", precision="bf16").run(None, feeds)
        (plain,) = fuser.InferenceSession(model, device="cpu").run(None, feeds)
        assert 1e-5 < np.linalg.norm(have - plain) / np.linalg.norm(plain) < TOLERANCE
        return
    if front == "jit":
        run = fuser.jit(lambda a, b: a @ b, device="cpu", precision="bf16")
    else:
        run = fuser.trace(lambda a, b: a @ b, x, w, device="cpu", precision="bf16")
    left, right = (a.astype(dtypes.bf16.numpy).astype(np.float64) for a in (x, w))
    np.testing.assert_allclose(run(x, w), left @ right, 1e-5, 1e-5)


@pytest.mark.parametrize(
    "name,sizes", [("mlp", {"batch": 1}), ("tiny_llama", {"batch": 1, "sequence": 5})]
)
def test_weights_of_8_bits(name: str, sizes: dict[str, int]) -> None:
    model = onnx_models.open_model(build(name))
    feeds = example_feeds(build(name), sizes)
    plan = fuser.compile(model, device="cpu", dims=sizes, precision="int8w")
    exact = fuser.compile(model, device="cpu", dims=sizes)
    assert plan.report().precision.startswith("int8w")
    assert plan.launches == exact.launches
    have, plain = plan.run(feeds), exact.run(feeds)
    want = evaluate(quantise_weights(model.graph(sizes)), feeds, float64=True)
    for key, array in have.items():
        size = np.linalg.norm(plain[key])
        assert np.linalg.norm(array - want[key]) / size < 1e-5
        assert 1e-4 < np.linalg.norm(array - plain[key]) / size < TOLERANCE


def dequantised(rng: np.random.Generator, scales: str) -> np.ndarray:
    numbers = rng.integers(-127, 128, (96, 80)).astype(np.float32)
    numbers[0] = 1
    scale = rng.uniform(1e-3, 1e-2, 80 if scales == "columns" else 1).astype(np.float32)
    weights = numbers * scale
    weights[:, 3] = 0
    return weights


@pytest.mark.parametrize("scales", ["columns", "one"])
@pytest.mark.parametrize("turned", [False, True])
def test_weights_on_a_grid(scales: str, turned: bool, rng: np.random.Generator) -> None:
    """They are stored as bytes without a loss, where few rows are multiplied with them."""
    weights = dequantised(rng, scales)
    for rows, stored in ((2, True), (100, False)):
        m = Model()
        w = m.b.constant(np.ascontiguousarray(weights.T) if turned else weights)
        m.output(m.b.map("max", m.dot(m.input(rows, 96), w, (1, 1 if turned else 0)), 0.0))
        plan = compiler.compile_graph(m.graph, CompileOptions(device="cpu"))
        buffers = [a.dtype for a in plan._executor.program.constants if a.size >= weights.size]
        assert buffers == [np.int8 if stored else np.float32]
        have, want = plan.run(m.feeds)["y0"], evaluate(m.graph, m.feeds, float64=True)["y0"]
        np.testing.assert_allclose(have, want, 1e-5, 1e-5 * np.abs(want).max())


def test_grids() -> None:
    rng = np.random.default_rng(0)
    weights = dequantised(rng, "columns")
    numbers, scale = grid(weights, (0,)) or (None, None)
    assert numbers is not None and scale is not None and scale.shape == (80,)
    np.testing.assert_array_equal(numbers * scale, weights)
    assert np.abs(numbers).max() <= 127 and (numbers == np.rint(numbers)).all()
    weights[5, 7] *= 1 + 2.0**-20
    assert grid(weights, (0,)) is None
    assert grid(rng.standard_normal((300, 20)).astype(np.float32), (0,)) is None
    assert grid(rng.standard_normal((20, 300)).astype(np.float32), (0,)) is None
    assert grid(np.full((8, 8), 1e-38, np.float32), (0,)) is None


def residual_network() -> Model:
    """Two blocks of 3x3 and 1x1 convolutions with a sum around the second, a pool before them and a
    depthwise convolution behind, all reading what others read as well."""
    m = Model()

    def conv(x: Value, outputs: int, kernel: int, groups: int = 1) -> Value:
        w = m.weight(outputs, x.shape[1] // groups, kernel, kernel)
        w = m.b.map("mul", w, (kernel * kernel * x.shape[1] / groups) ** -0.5)
        return m.b.emit(
            "conv", x, w, strides=(1, 1), dilation=(1, 1), padding=((kernel // 2,) * 2,) * 2,
            groups=groups,
        )  # fmt: skip

    stem = m.b.map("max", conv(m.input(2, 8, 20, 18), 32, 3), 0.0)
    pooled = m.b.emit(
        "reduce_window", stem, fn="max", window=(1, 1, 3, 3), strides=(1, 1, 2, 2),
        padding=((0, 0), (0, 0), (1, 1), (1, 1)), dilation=(1, 1, 1, 1),
    )  # fmt: skip
    wide = m.b.map("tanh", conv(pooled, 64, 1))
    total = m.b.map("add", conv(m.b.map("max", conv(wide, 32, 3), 0.0), 64, 1), wide)
    total = m.b.map("tanh", total)
    deep = m.b.map("tanh", conv(total, 64, 3, groups=64))
    m.output(m.b.map("add", conv(deep, 16, 1), conv(total, 16, 1)))
    return m


@HAS_UNIT
def test_images_are_stored_rounded() -> None:
    """What convolutions and pools hand on is bfloat16 for all who read it, but inputs of grouped
    convolutions are not; results are those of the graph with these values rounded."""
    m = residual_network()
    cut = partition(m.graph, HOST, Options(operands=dtypes.bf16))
    stored = {v for region in cut.regions for v in region.outputs} - set(cut.graph.outputs)
    grouped = {
        v for region in cut.regions for v in region.inputs
        if any(n.op == "conv" and n.attrs["groups"] > 1 for n in region.nodes)
    }  # fmt: skip
    assert len(stored) >= 6 and stored & grouped
    assert {v for v in stored if v not in cut.narrow} == stored & grouped
    (have,) = (
        compiler.compile_graph(m.graph, CompileOptions(device="cpu", precision="bf16"))
        .run(m.feeds)
        .values()
    )
    (exact,) = evaluate(m.graph, m.feeds, float64=True).values()
    want = evaluate_stored(cut, m.feeds)
    rounding = np.linalg.norm(have - exact) / np.linalg.norm(exact)
    assert np.linalg.norm(have - want) / np.linalg.norm(exact) < 0.25 * rounding
    assert 1e-4 < rounding < TOLERANCE


def evaluate_stored(cut: Partition, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """The output of a partition in float64, with what it stores as bfloat16 alone rounded."""
    arrays = {value: feeds[value.name].astype(np.float64) for value in cut.graph.inputs}
    for node in cut.graph.nodes:
        attrs = {
            key: item.astype(np.float64) if isinstance(item, np.ndarray) else item
            for key, item in node.attrs.items()
        }
        results = primitive(node.op).evaluate([arrays[v] for v in node.inputs], attrs)
        for value, array in zip(node.outputs, results, strict=True):
            narrow = array.astype(np.float32).astype(dtypes.bf16.numpy)
            arrays[value] = narrow.astype(np.float64) if value in cut.narrow else array
    return arrays[cut.graph.outputs[0]]


def test_copies_are_rounded_once() -> None:
    """What only products read is stored as bfloat16 alone, what is read else as both; a value that
    is a result of the model stays whole."""
    m = Model()
    x = m.b.map("tanh", m.dot(m.input(20, 32), m.weight(32, 48), (1, 0)))
    y = m.b.map("add", m.dot(x, m.weight(48, 32), (1, 0)), m.weight(32))
    both = m.b.map("exp", y)
    z = m.b.map("add", m.dot(both, m.weight(32, 32), (1, 0)), both)
    last = m.dot(z, m.weight(32, 8), (1, 0))
    m.output(last, z)
    cut = partition(m.graph, HOST, Options(operands=dtypes.bf16))
    shapes = {(value.shape, value in cut.narrow) for value in cut.copies}
    assert shapes == {((20, 48), True), ((20, 32), False)}
    assert set(cut.copies.values()) == {dtypes.bf16} and len(cut.copies) == 3
    assert not partition(m.graph, HOST).copies
