"""Windows on images as walks of the copy engine: the walk, element by element, against the load."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from fuser.backend.nvptx.access import access_of
from fuser.backend.nvptx.windows import Windows, windows_of
from fuser.compiler import emit_programs, open_model
from fuser.partition import partition
from fuser.target import SM_90A
from fuser.tilegen import ops
from fuser.tilegen.builder import Builder
from fuser.tilegen.index import Axis, FloorDiv, Index, Mod, Scalar, axis, index
from fuser.tilegen.ir import Kernel, Value

HALF = TensorProto.FLOAT16


def convolution(
    batch: int, channels: int, size: tuple[int, int], kernel: tuple[int, int] = (3, 3),
    stride: tuple[int, int] = (1, 1), pads: tuple[int, ...] = (1, 1, 1, 1),
    dilation: tuple[int, int] = (1, 1), groups: int = 1, filters: int = 256,
) -> Kernel:  # fmt: skip
    """The kernel of a float16 convolution of images whose channels are last."""
    out = [
        (size[i] + pads[i] + pads[i + 2] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        for i in range(2)
    ]
    rng = np.random.default_rng(0)
    w = rng.standard_normal((filters, channels // groups, *kernel)).astype(np.float16)
    attributes: dict[str, Any] = {"pads": pads, "strides": stride, "dilations": dilation}
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["t", "w"], ["c"], group=groups, **attributes),
        helper.make_node("Transpose", ["c"], ["y"], perm=[0, 2, 3, 1]),
    ]
    x = helper.make_tensor_value_info("x", HALF, (batch, *size, channels))
    y = helper.make_tensor_value_info("y", HALF, (batch, *out, filters))
    graph = helper.make_graph(nodes, "conv", [x], [y], [numpy_helper.from_array(w, "w")])
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    cut = partition(open_model(source).graph({}), SM_90A)
    (program,) = emit_programs(cut, SM_90A)
    return program.kernel


def images(kernel: Kernel) -> list[ops.Load]:
    """Loads of two dims, of what is no constant."""
    found = (op for op in kernel.walk() if isinstance(op, ops.Load) and len(op.shape) == 2)
    return [op for op in found if op.view.buffer.role == "input"]


def evaluate(at: Index, env: dict[Value, int], where: tuple[Any, ...] = ()) -> Any:
    """The value of an expression at tile coordinates."""
    total: Any = at.constant
    for atom, factor in at.terms:
        match atom:
            case Axis():
                value = where[atom.axis]
            case Scalar():
                value = env[atom.value]
            case FloorDiv():
                value = evaluate(atom.base, env, where) // atom.divisor
            case Mod():
                value = evaluate(atom.base, env, where) % atom.divisor
            case _:
                raise AssertionError(atom)
        total = total + factor * value
    return total


def loaded(op: ops.Load, env: dict[Value, int]) -> np.ndarray:
    """The address of each element of a load, -1 where it is out of bounds."""
    where = np.meshgrid(*map(np.arange, op.shape), indexing="ij", sparse=True)
    address, inside = np.full(op.shape, op.view.offset), np.ones(op.shape, bool)
    for at, extent, stride in zip(op.indices, op.view.shape, op.view.strides, strict=True):
        value = np.broadcast_to(evaluate(at, env, tuple(where)), op.shape)
        address = address + value * stride
        inside &= (value >= 0) & (value < extent)
    return np.where(inside, address, -1)


def walked(op: ops.Load, windows: Windows, inner: int, env: dict[Value, int]) -> np.ndarray:
    """The same as the engine finds them: position by position through the bounding boxes."""
    columns = evaluate(windows.columns[1], env) + np.arange(op.shape[inner])
    dims = windows.dims
    place = [evaluate(dim.position(0), env) for dim in dims]
    offsets = [evaluate(dim.offset, env) for dim in dims]
    rows = []
    for _ in range(op.shape[1 - inner]):
        at = [a + b for a, b in zip(place, offsets, strict=True)]
        inside = all(0 <= a < dim.extent for a, dim in zip(at, dims, strict=True))
        address = op.view.offset + sum(a * dim.stride for a, dim in zip(at, dims, strict=True))
        seen = inside & (columns >= 0) & (columns < windows.columns[0])
        rows.append(np.where(seen, address + columns, -1))
        for number, dim in enumerate(dims):
            if number == len(dims) - 1:
                place[number] += 1
                break
            assert dim.lower <= place[number] <= dim.extent - 1 + dim.upper
            place[number] += dim.step
            if place[number] <= dim.extent - 1 + dim.upper:
                break
            place[number] = dim.lower
    found = np.stack(rows)
    return found if inner == 1 else found.T


def check(kernel: Kernel, op: ops.Load) -> Windows | None:
    """Walk everywhere where a load may be, near the ends at least."""
    access = access_of(op)
    windows = windows_of(op, access)
    if windows is None:
        return None
    scalars = list(dict.fromkeys(op.operands()))
    ranges = []
    for value in scalars:
        low, high = value.range
        every = range(low, high + 1)
        ranges.append(sorted({*every[:20], *every[len(every) // 2 :][:2], *every[-2:]}))
    for values in itertools.product(*ranges):
        env = dict(zip(scalars, values, strict=True))
        np.testing.assert_array_equal(
            walked(op, windows, access.axis, env), loaded(op, env), err_msg=str(values)
        )
    return windows


CASES: dict[str, dict[str, Any]] = {
    "7x7": dict(batch=32, channels=512, size=(7, 7)),
    "one image": dict(batch=1, channels=128, size=(28, 28)),
    "stride": dict(batch=3, channels=128, size=(56, 56), stride=(2, 2)),
    "stride, odd": dict(batch=3, channels=128, size=(15, 13), stride=(2, 2)),
    "stride, one image": dict(batch=1, channels=128, size=(57, 57), stride=(2, 2)),
    "strides": dict(batch=3, channels=64, size=(17, 20), stride=(3, 1)),
    "powers of two": dict(batch=4, channels=64, size=(16, 16)),
    "a line a tile": dict(batch=2, channels=64, size=(64, 128)),
    "8x7": dict(batch=5, channels=64, size=(7, 8)),
    "no padding": dict(batch=3, channels=64, size=(14, 11), pads=(0, 0, 0, 0)),
    "padding": dict(batch=3, channels=64, size=(9, 14), pads=(0, 2, 3, 1)),
    "dilation": dict(batch=3, channels=64, size=(14, 15), pads=(2, 2, 2, 2), dilation=(2, 2)),
    "dilations": dict(
        batch=3, channels=64, size=(20, 15), pads=(3, 1, 3, 1), dilation=(3, 1), stride=(1, 2)
    ),
    "5x1": dict(batch=3, channels=64, size=(14, 14), kernel=(5, 1), pads=(2, 0, 2, 0)),
    "1x5": dict(batch=3, channels=64, size=(14, 14), kernel=(1, 5), pads=(0, 2, 0, 2)),
    "1x1 of stride 2": dict(
        batch=3, channels=256, size=(28, 28), kernel=(1, 1), stride=(2, 2), pads=(0, 0, 0, 0)
    ),
    "1x1 of stride 2, odd": dict(
        batch=3, channels=256, size=(7, 9), kernel=(1, 1), stride=(2, 2), pads=(0, 0, 0, 0)
    ),
    "groups": dict(batch=3, channels=256, size=(14, 14), groups=4),
    "odd channels": dict(batch=3, channels=72, size=(14, 14)),
    "large": dict(batch=2, channels=64, size=(300, 200)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_walks_are_what_is_loaded(case: dict[str, Any]) -> None:
    kernel = convolution(**case)
    (op,) = images(kernel)
    assert check(kernel, op) is not None
