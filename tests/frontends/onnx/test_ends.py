"""ONNX operators at the ends of their dtypes, and interpolation of what is not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import fuser

Array = np.ndarray[Any, Any]
DTYPES = [np.float16, np.float32, np.float64]


def ends(dtype: Any) -> Array:
    kind = np.finfo(dtype)
    most, least, step = float(kind.max), float(kind.tiny), float(kind.eps)
    sizes = [most, most / 3, most**0.5 * 1.5, 88.5, 20.0, 10.5, 3.0, 1.0, 0.5, step, step / 4,
             least**0.5, least, least / 3, float(kind.smallest_subnormal), 0.0, np.inf]  # fmt: skip
    return np.array([x for size in sizes for x in (size, -size)] + [np.nan], dtype)


def model_of(op: str, shape: tuple[int, ...], dtype: Any, **attrs: Any) -> onnx.ModelProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"], **attrs)], "g",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, None)],
    )  # fmt: skip
    opset = helper.make_opsetid("", 18 if op == "Mish" else 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=9)


def run(model: onnx.ModelProto, x: Array) -> Array:
    found: Array = fuser.compile(model, device="cpu").run({"x": x})["y"]
    return found


def exact(op: str, x: Array) -> Array:
    """In float64, by formulas that keep their digits."""
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        soft = np.logaddexp(wide, 0)
        below = np.expm1(np.minimum(wide, 0))
        table = {
            "Elu": np.where(wide > 0, wide, below),
            "Celu": np.maximum(wide, 0) + below,
            "Softplus": soft,
            "Mish": wide * np.tanh(soft),
            "Sigmoid": 1 / (1 + np.exp(-wide)),
            "Sinh": np.sinh(wide),
            "Tanh": np.tanh(wide),
            "Asinh": np.arcsinh(wide),
            "Exp": np.exp(wide),
            "Sqrt": np.sqrt(wide),
        }
        return table[op]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "op", ["Elu", "Celu", "Softplus", "Mish", "Sigmoid", "Sinh", "Tanh", "Asinh", "Exp", "Sqrt"]
)
def test_functions_keep_their_digits(op: str, dtype: Any) -> None:
    """Each element by its own size, not by that of the largest."""
    x = ends(dtype)
    if op == "Mish":
        x = x[~np.isneginf(x)]  # -inf * 0
    found, kind = run(model_of(op, x.shape, dtype), x), np.finfo(dtype)
    wanted = exact(op, x)
    with np.errstate(all="ignore"):
        rounded = wanted.astype(dtype).astype(np.float64)
        units = 16 * float(kind.eps) * np.abs(wanted) + 4 * float(kind.smallest_subnormal)
        wide = found.astype(np.float64)
        right = (wide == rounded) | (np.isnan(wide) & np.isnan(wanted))
        right |= np.abs(wide - wanted) <= units
    assert found.dtype == dtype
    assert right.all(), (x[~right], found[~right], wanted[~right])


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_exponentials_of_infinities(dtype: Any) -> None:
    """No difference of infinities is taken."""
    inf, nan = np.inf, np.nan
    rows = [[inf] * 3, [-inf] * 3, [inf, -inf, 0], [-inf, 0, 0], [nan, 0, 0], [1e4, 1e4, 1e4]]
    x = np.array(rows, dtype)
    found = run(model_of("ReduceLogSumExp", x.shape, dtype, axes=[1], keepdims=0), x)
    wanted = [inf, -inf, inf, np.log(2), nan, 1e4 + np.log(3)]
    np.testing.assert_allclose(found.astype(float), wanted, rtol=4 * float(np.finfo(dtype).eps))


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize(
    ("shape", "result"), [((1, 2, 9, 11), (1, 2, 4, 3)), ((1, 1, 40, 7), (1, 1, 5, 20)),
                          ((1, 1, 12, 12), (1, 1, 3, 5)), ((2, 1, 7, 30), (2, 1, 7, 4))]
)  # fmt: skip
def test_antialiased_images_where_some_pixels_are_nan(
    mode: str, shape: tuple[int, ...], result: tuple[int, ...]
) -> None:
    """NaN reach what reads them alone; other results are as they are without them."""
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode=mode, antialias=1)], "g",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(np.array(result, np.int64), "sizes")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x[0, 0, 0, 0], x[-1, -1, -1, 3] = np.nan, np.nan
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    found = run(model, x)
    assert not np.isnan(found).all()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
