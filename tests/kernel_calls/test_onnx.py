"""Operators of ONNX models that are kernels of the caller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import fuser
import fuser.triton as triton
from fuser.dtypes import f32
from fuser.errors import InvalidModelError, UsageError
from tests.kernel_calls.kernels import (
    Array,
    add_in_place,
    attention,
    attention_of,
    blocks,
    int8_matmul,
    int8_matmul_of,
    rms_norm,
    rms_norm_of,
)
from tests.numerics import assert_close
from tests.report.walk import report_of, wrong

DOMAIN = "tests.kernels"


def register() -> None:
    fuser.register_kernel(
        f"{DOMAIN}::RmsNorm", rms_norm, lambda meta: (meta["x"].shape[0],),
        lambda x, w, eps: [x.shape, x.shape[:1]],
        lambda x, w, eps: {"columns": x.shape[1], "BLOCK": triton.next_power_of_2(x.shape[1])},
    )  # fmt: skip

    def numbers(q: Any, k: Any, v: Any) -> dict[str, Any]:
        _, rows, depth = q.shape
        return {
            "rows": rows, "keys": k.shape[1], "scale": depth**-0.5, "stride_h": rows * depth,
            "stride_m": depth, "stride_kh": k.shape[1] * depth, "stride_n": depth,
            "stride_oh": rows * depth, "stride_om": depth, "D": depth, "M": 16, "N": 32,
        }  # fmt: skip

    fuser.register_kernel(
        f"{DOMAIN}::Attention", attention,
        lambda meta: (triton.cdiv(meta["rows"], meta["M"]), meta["q"].shape[0]),
        lambda q, k, v: [q.shape], numbers,
    )  # fmt: skip
    fuser.register_kernel(
        f"{DOMAIN}::MatMulInt8", int8_matmul,
        lambda meta: (triton.cdiv(meta["rows"], 16), triton.cdiv(meta["columns"], 32)),
        lambda x, codes, scale: [(x.shape[0], codes.shape[1])],
        lambda x, codes, scale: {
            "rows": x.shape[0], "columns": codes.shape[1], "depth": x.shape[1],
            "M": 16, "N": 32, "K": 32, "TRANSPOSED": False,
        },
    )  # fmt: skip
    fuser.register_kernel(
        f"{DOMAIN}::Increment", add_in_place, lambda meta: blocks(meta["n"], 32),
        lambda x, amount: [x], lambda x, amount: {"n": x.size, "BLOCK": 32},
    )  # fmt: skip


register()


def model(nodes: list[Any], inputs: dict[str, list[Any]], output: str, weights: Any = ()) -> Any:
    graph = helper.make_graph(
        nodes, "kernels",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in dict(weights).items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def floats(*shape: int) -> Array:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def three_kernels(weights: dict[str, Array]) -> Any:
    """A norm, an attention and a matmul of int8 weights, of x [2, 23, 16]."""
    shapes = {"flat": np.array([-1, 16]), "heads": np.array([2, 23, 16])}
    nodes = [
        helper.make_node("Reshape", ["x", "flat"], ["rows"]),
        helper.make_node("RmsNorm", ["rows", "w"], ["norm", ""], domain=DOMAIN, eps=1e-5),
        helper.make_node("Reshape", ["norm", "heads"], ["q0"]),
        helper.make_node("Tanh", ["q0"], ["q"]),
        helper.make_node("Attention", ["q", "k", "v"], ["a"], domain=DOMAIN),
        helper.make_node("Add", ["a", "x"], ["s"]),
        helper.make_node("Reshape", ["s", "flat"], ["s2"]),
        helper.make_node("MatMulInt8", ["s2", "codes", "scale"], ["y"], domain=DOMAIN),
    ]
    return model(nodes, {"x": [2, 23, 16]}, "y", {**weights, **shapes})


def test_three_kernels_in_a_model(tmp_path: Path) -> None:
    w, k, v, scale = floats(16), floats(2, 29, 16), floats(2, 29, 16), floats(33)
    codes = np.random.default_rng(4).integers(-127, 128, (16, 33)).astype(np.int8)
    proto = three_kernels({"w": w, "k": k, "v": v, "scale": scale, "codes": codes})
    x = floats(2, 23, 16)
    q = np.tanh(rms_norm_of(x, w, 1e-5))
    want = attention_of(q, k, v, 0.25) + x.astype(np.float64)
    want = int8_matmul_of(want.reshape(46, 16), codes, scale)
    assert_close(fuser.compile(proto).run({"x": x})["y"], want, f32, 16 * 29)
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    for _ in range(2):
        assert_close(fuser.compile(path).run({"x": x})["y"], want, f32, 16 * 29)
    plan = fuser.compile(path)
    plan.save(tmp_path / "m.plan")
    assert_close(fuser.load(tmp_path / "m.plan").run({"x": x})["y"], want, f32, 16 * 29)


def test_another_kernel_of_the_same_name_is_compiled_anew(tmp_path: Path) -> None:
    path, x = tmp_path / "m.onnx", floats(40)
    node = helper.make_node("Change", ["x"], ["y"], domain=DOMAIN)
    onnx.save(model([node], {"x": [40]}, "y"), path)
    for amount in (1.0, 2.0):
        fuser.register_kernel(
            f"{DOMAIN}::Change", add_in_place, (1,), lambda x: [x],
            lambda x, amount=amount: {"n": 40, "amount": amount, "BLOCK": 64},
        )  # fmt: skip
        np.testing.assert_array_equal(fuser.compile(path).run({"x": x})["y"], x + amount)


def test_an_input_that_is_changed() -> None:
    nodes = [
        helper.make_node("Increment", ["x"], ["y"], domain=DOMAIN, amount=2.0),
        helper.make_node("Add", ["x", "y"], ["z"]),
    ]
    x = floats(7, 9)
    found = fuser.compile(model(nodes, {"x": [7, 9]}, "z")).run({"x": x})["z"]
    np.testing.assert_array_equal(found, x + (x + 2))


def test_sizes_that_are_not_fixed() -> None:
    nodes = [helper.make_node("RmsNorm", ["x", "w"], ["y", ""], domain=DOMAIN, eps=1e-5)]
    proto, w = model(nodes, {"x": ["rows", 45], "w": [45]}, "y"), floats(45)
    plan = fuser.compile(proto, dynamic=True)
    for rows in (3, 5, 8):
        x = floats(rows, 45)
        assert_close(plan.run({"x": x, "w": w})["y"], rms_norm_of(x, w, 1e-5), f32, 45)


def test_what_is_wrong_is_told() -> None:
    with pytest.raises(UsageError, match="not a name of an operator"):
        fuser.register_kernel("Gelu", rms_norm, (1,), lambda x: [x.shape])
    with pytest.raises(UsageError, match="one of fuser's operators"):
        fuser.register_kernel("com.microsoft::Gelu", rms_norm, (1,), lambda x: [x.shape])
    with pytest.raises(UsageError, match="not a kernel"):
        fuser.register_kernel("a::B", len, (1,), lambda x: [x.shape])
    fuser.register_kernel(f"{DOMAIN}::Bad", add_in_place, (1,), lambda x: [x.shape])
    bad = [helper.make_node("Bad", ["x"], ["y"], domain=DOMAIN)]
    with pytest.raises(InvalidModelError, match="nothing gives the parameter"):
        fuser.compile(model(bad, {"x": [4]}, "y"))
    fuser.register_kernel(
        f"{DOMAIN}::Bad", add_in_place, (1,), lambda x: [x.shape],
        lambda x: {"n": 4, "amount": 1.0, "BLOCK": 4},
    )  # fmt: skip
    with pytest.raises(InvalidModelError, match="parameters for 1 tensors"):
        fuser.compile(model(bad, {"x": [4]}, "y"))


def test_the_command_line(tmp_path: Path) -> None:
    """What a report says of kernels of users, held against itself and a run without fusion."""
    nodes = [
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("RmsNorm", ["e", "w"], ["n", ""], domain=DOMAIN, eps=1e-5),
        helper.make_node("Increment", ["n"], ["i"], domain=DOMAIN, amount=1.0),
        helper.make_node("Tanh", ["i"], ["y"]),
    ]
    path, file = tmp_path / "m.onnx", tmp_path / "kernels.py"
    onnx.save(model(nodes, {"x": [7, 45]}, "y", {"w": floats(45)}), path)
    file.write_text("from tests.kernel_calls import test_onnx\ntest_onnx.register()\n")
    fused, alone = (
        report_of(path, "cpu", 2, "--kernels", str(file), *more) for more in ((), ("--no-fusion",))
    )
    assert list(wrong(fused, alone)) == []
    found = [launch["kind"] for launch in fused.data["launches"]]
    assert found == ["kernel", "kernel", "map"]
    first, second, _ = (launch["boundary_bytes"] for launch in fused.data["launches"])
    size = 4 * 7 * 45
    assert first == {"read": size + 4 * 45, "written": size}
    assert second == {"read": size, "written": size}
