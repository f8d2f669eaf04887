"""A row by weights of 4 bits, in whole numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import fuser
from fuser.backend.cpu import lower_to_llvm
from fuser.base.target import TARGETS, X86_64_V3, X86_64_V4, Target
from fuser.frontends.onnx.model import open_model
from fuser.graph.numerics import using
from fuser.partition import partition
from fuser.pipeline.kernels import emit_programs
from fuser.tilegen.emit.digits import MOST
from tests.interpreted import run_partition
from tests.test_packed_weights import model_of, n_bits, product

VNNI: Target = TARGETS["avx512_vnni"]


@pytest.fixture(autouse=True)
def fast() -> Iterator[None]:
    """The numerics that allow it."""
    with using("fast"):
        yield


def weights_of(model: onnx.ModelProto) -> np.ndarray:
    """The decoded weights of `n_bits`, [k, n], float64."""
    (node,) = model.graph.node
    attrs = {a.name: a.i for a in node.attribute}
    k, n, block = attrs["K"], attrs["N"], attrs["block_size"]
    arrays = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    blocks = -(-k // block)

    def nibbles(packed: np.ndarray, count: int) -> np.ndarray:
        halves = np.stack([packed & 15, packed >> 4], -1).reshape(n, -1)
        return halves[:, :count].astype(np.float64)

    codes = nibbles(arrays["codes"].reshape(n, -1), k)
    zero = np.full((n, blocks), 8.0)
    if "zero" in arrays:
        zero = nibbles(arrays["zero"].reshape(n, -1), blocks)
    scale = arrays["scale"].reshape(n, blocks).astype(np.float64)
    spread = [np.repeat(item, block, 1)[:, :k] for item in (zero, scale)]
    return ((codes - spread[0]) * spread[1]).T


def row(k: int, kind: str) -> np.ndarray:
    draw = np.random.default_rng(3)
    x = draw.standard_normal((1, k)).astype(np.float32)
    if kind == "outlier":
        x[0, k // 3] = 3e4
    elif kind == "small":
        x *= np.float32(1e-30)
    elif kind == "one sign":
        x = np.abs(x) + 5
    elif kind == "zeros":
        x[0, : k // 2] = 0
    elif kind == "nothing":
        x *= np.float32(1e-37)
    return x


def bound(x: np.ndarray, model: onnx.ModelProto) -> np.ndarray:
    """The error of rounding each element to float32 as if it were the largest of its block, and
    that of some roundings of float32: of codes, before zero points are taken off."""
    (node,) = model.graph.node
    block = {a.name: a.i for a in node.attribute}["block_size"]
    wide, weights = np.abs(x.astype(np.float64))[0], np.abs(weights_of(model))
    starts = np.arange(0, len(wide), block)
    largest = np.maximum(np.maximum.reduceat(wide, starts), 2.0**-100)
    added = np.add.reduceat(wide, starts)
    sums = np.add.reduceat(weights, starts, axis=0)
    most = np.maximum.reduceat(weights, starts, axis=0) * 4
    return 2.0**-23 * (largest @ sums) + 4e-7 * (added @ most)


def programs_of(model: onnx.ModelProto, target: Target) -> list[Any]:
    return list(emit_programs(partition(open_model(model).graph({}), target), target))


def is_split(model: onnx.ModelProto, target: Target) -> bool:
    found = programs_of(model, target)
    return any(p.kernel.schedule.digits for p in found)


CASES = [
    (64, 64, 32, False), (200, 33, 32, False), (200, 33, 32, True), (2048, 131, 32, False),
    (96, 17, 16, True), (300, 70, 128, False), (640, 5, 256, True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("k", "n", "block", "zeros", "kind"),
    [
        (*case, kind)
        for case in CASES
        for kind in ("normal", "outlier", "small", "one sign", "zeros")
        if case[0] <= 640 or kind not in ("outlier", "small")  # the interpreter takes its time
    ],
)
def test_error_is_that_of_float32(k: int, n: int, block: int, zeros: bool, kind: str) -> None:
    """Against float64."""
    model = n_bits(1, k, n, block, 4, zeros)
    assert is_split(model, VNNI)
    x, weights = row(k, kind), weights_of(model)
    cut = partition(open_model(model).graph({}), VNNI)
    found = run_partition(cut, {"x": x}, VNNI)["y"]
    assert (np.abs(found - x.astype(np.float64) @ weights) <= bound(x, model)).all()


@pytest.mark.parametrize(
    ("k", "n", "block", "zeros"), [(2048, 300, 32, False), (640, 70, 64, True)]
)
@pytest.mark.parametrize("kind", ["normal", "outlier", "small", "one sign", "zeros", "nothing"])
def test_on_this_machine(k: int, n: int, block: int, zeros: bool, kind: str) -> None:
    model = n_bits(1, k, n, block, 4, zeros)
    x, weights = row(k, kind), weights_of(model)
    with fuser.compile(model, device="cpu", threads=2) as plan:
        found = plan.run({"x": x})["y"]
        again = plan.run({"x": x})["y"]
    assert (np.abs(found - x.astype(np.float64) @ weights) <= bound(x, model)).all()
    assert found.tobytes() == again.tobytes()
    if kind == "normal":
        wide = x.astype(np.float64) @ weights
        assert np.linalg.norm(found - wide) < 3e-7 * np.linalg.norm(wide)


def test_a_row_that_is_no_number_gives_none() -> None:
    """NaN or an infinity in a block leaves none behind."""
    model = n_bits(1, 256, 40, 32, 4, False)
    with fuser.compile(model, device="cpu") as plan:
        for value in (np.nan, np.inf):
            x = row(256, "normal")
            x[0, 100] = value
            assert not np.isfinite(plan.run({"x": x})["y"]).any()


def test_the_largest_elements_have_room() -> None:
    """Rounding and the lower digits never carry the uppermost one beyond a byte."""
    q = np.array([MOST + 2, MOST, -MOST - 2, -MOST, 0, 127, 128, -129])
    digits = []
    for _ in range(2):
        low = (q + 128 & 255) - 128
        digits.append(low)
        q = q - low >> 8
    digits.append(q)
    assert all(d.min() >= -128 and d.max() <= 127 for d in digits)


def test_two_weights_of_one_row_share_its_digits() -> None:
    """A gate: one program that splits, one that multiplies both."""
    draw = np.random.default_rng(2)
    arrays = {
        name: draw.integers(0, 256, (96, 4, 16), dtype=np.uint8) for name in ("left", "right")
    } | {"scale": (draw.random(96 * 4) / 50).astype(np.float32)}
    attrs: dict[str, Any] = {"domain": "com.microsoft", "K": 128, "N": 96, "bits": 4}
    nodes = [
        helper.make_node("MatMulNBits", ["x", name, "scale"], [f"{name}_y"], block_size=32, **attrs)
        for name in ("left", "right")
    ]
    nodes += [
        helper.make_node("Sigmoid", ["left_y"], ["gate"]),
        helper.make_node("Mul", ["gate", "right_y"], ["y"]),
    ]
    model = model_of(nodes, {"x": [1, 128]}, arrays)
    assert len(programs_of(model, VNNI)) == 2
    x = row(128, "normal")
    cut = partition(open_model(model).graph({}), VNNI)
    found = run_partition(cut, {"x": x}, VNNI)["y"]
    products = []
    for name in ("left", "right"):
        codes = np.stack([arrays[name] & 15, arrays[name] >> 4], -1).reshape(96, -1) - 8.0
        weights = codes * np.repeat(arrays["scale"].reshape(96, 4).astype(np.float64), 32, 1)
        products.append(x.astype(np.float64) @ weights.T)
    expected = products[1] / (1 + np.exp(-products[0]))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "split"),
    [
        (n_bits(1, 256, 64, 32, 4, False), True),
        (n_bits(2, 256, 64, 32, 4, False), False),  # more rows
        (n_bits(1, 256, 64, 32, 8, False), False),  # codes of a byte
        (n_bits(1, 2048, 64, 512, 4, False), False),  # long blocks
        (product(1, "i4", (200, 131), 0, 32), True),
        (product(1, "u4", (203, 131), 0, 25, True), False),  # blocks that are no words
        (product(1, "u4", (201, 131), 1, 0, True), False),  # a scale a column
        (product(1, "f4", (200, 131), 0, 20), False),  # codes that are no whole numbers
    ],
)
def test_which_rows_are_split(model: onnx.ModelProto, split: bool) -> None:
    assert is_split(model, VNNI) == split
    assert not is_split(model, X86_64_V4) and not is_split(model, X86_64_V3)


def test_one_instruction_multiplies_a_word() -> None:
    """Of 16 columns: with VNNI; other processors take it apart, to the same bits."""
    _, multiplying = programs_of(n_bits(1, 256, 64, 32, 4, False), VNNI)
    found = {
        name: lower_to_llvm(multiplying.kernel, target).count("vpdpbusd")
        for name, target in (("vnni", VNNI), ("plain", X86_64_V4))
    }
    assert found["vnni"] > 0 and found["plain"] == 0
