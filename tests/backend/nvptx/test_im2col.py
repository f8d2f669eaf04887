"""Windows on images as walks of the copy engine: the walk, element by element, against the load."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from fuser.backend.nvptx import compile_kernel
from fuser.backend.nvptx.analysis.access import access_of
from fuser.backend.nvptx.memory.im2col import Im2colWalk, im2col_walk_of
from fuser.base.target import SM_90A
from fuser.dtypes import f16
from fuser.errors import CompileError
from fuser.frontends.onnx.model import open_model
from fuser.partition import partition
from fuser.runtime.device_code import map_arguments
from fuser.tilegen import ops
from fuser.tilegen.builder import Builder
from fuser.tilegen.emit import emit
from fuser.tilegen.index import Index, axis, index
from fuser.tilegen.interpret import evaluate_index, run
from fuser.tilegen.ir import Kernel
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.value import Value
from tests.backend.cuda_launch import context, run_on_device

HALF = TensorProto.FLOAT16


def convolution(
    batch: int, channels: int, size: tuple[int, ...], kernel: tuple[int, ...] = (3, 3),
    stride: tuple[int, ...] = (1, 1), pads: tuple[int, ...] = (1, 1, 1, 1),
    dilation: tuple[int, ...] = (1, 1), groups: int = 1, filters: int = 256,
    schedule: Schedule | None = None,
) -> Kernel:  # fmt: skip
    """The kernel of a float16 convolution of images whose channels are last."""
    rank = len(size)
    out = [
        (size[i] + pads[i] + pads[i + rank] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        for i in range(rank)
    ]
    rng = np.random.default_rng(0)
    w = rng.standard_normal((filters, channels // groups, *kernel)).astype(np.float16)
    attributes: dict[str, Any] = {"pads": pads, "strides": stride, "dilations": dilation}
    first, last = [0, rank + 1, *range(1, rank + 1)], [0, *range(2, rank + 2), 1]
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=first),
        helper.make_node("Conv", ["t", "w"], ["c"], group=groups, **attributes),
        helper.make_node("Transpose", ["c"], ["y"], perm=last),
    ]
    x = helper.make_tensor_value_info("x", HALF, (batch, *size, channels))
    y = helper.make_tensor_value_info("y", HALF, (batch, *out, filters))
    graph = helper.make_graph(nodes, "conv", [x], [y], [numpy_helper.from_array(w, "w")])
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    cut = partition(open_model(source).graph({}), SM_90A)
    (region,) = (r for r in cut.regions if any(node.op == "conv" for node in r.nodes))
    (program,) = emit(region, cut, SM_90A, schedule)
    return program.kernel


def images(kernel: Kernel) -> list[ops.Load]:
    """Loads of two dims, of what is no constant."""
    found = (op for op in kernel.walk() if isinstance(op, ops.Load) and len(op.shape) == 2)
    return [op for op in found if op.view.buffer.role == "input"]


def evaluate(at: Index, env: dict[Value, int]) -> int:
    """The value of an expression without tile coordinates."""
    scalars = {value: np.asarray(number) for value, number in env.items()}
    return int(evaluate_index(at, (), scalars))


def loaded(op: ops.Load, env: dict[Value, int]) -> np.ndarray:
    """The address of each element of a load, -1 where it is out of bounds."""
    scalars = {value: np.asarray(number) for value, number in env.items()}
    address, inside = np.full(op.shape, op.view.offset), np.ones(op.shape, bool)
    for at, extent, stride in zip(op.indices, op.view.shape, op.view.strides, strict=True):
        value = np.broadcast_to(evaluate_index(at, op.shape, scalars), op.shape)
        address = address + value * stride
        inside &= (value >= 0) & (value < extent)
    return np.where(inside, address, -1)


def walked(op: ops.Load, windows: Im2colWalk, inner: int, env: dict[Value, int]) -> np.ndarray:
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


def check(op: ops.Load) -> Im2colWalk | None:
    """The windows of a load, walked wherever it may be, near the ends at least."""
    access = access_of(op)
    windows = im2col_walk_of(op, access)
    if windows is None:
        return None
    scalars = list(dict.fromkeys(op.operands()))
    ranges = []
    for value in scalars:
        every = range(value.range[0], value.range[1] + 1)
        ranges.append(sorted({*every[:20], *every[len(every) // 2 :][:2], *every[-2:]}))
    for values in itertools.product(*ranges):
        env = dict(zip(scalars, values, strict=True))
        found = walked(op, windows, access.axis, env)
        np.testing.assert_array_equal(found, loaded(op, env), err_msg=str(values))
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
    "one line": dict(batch=3, channels=64, size=(40,), kernel=(3,), stride=(1,), pads=(1, 1),
                     dilation=(1,)),
    "one line, strides": dict(batch=3, channels=64, size=(41,), kernel=(4,), stride=(2,),
                              pads=(3, 0), dilation=(3,)),
    "volume": dict(batch=3, channels=64, size=(5, 6, 7), kernel=(3, 3, 3), stride=(1, 2, 1),
                   pads=(1, 0, 1, 1, 1, 1), dilation=(1, 1, 2)),
    "one column": dict(batch=9, channels=64, size=(9, 1)),
    "two lines": dict(batch=5, channels=64, size=(2, 3)),
    "groups": dict(batch=3, channels=256, size=(14, 14), groups=4),
    "odd channels": dict(batch=3, channels=72, size=(14, 14)),
    "large": dict(batch=2, channels=64, size=(300, 200)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_walks_are_what_is_loaded(case: dict[str, Any]) -> None:
    (op,) = images(convolution(**case))
    assert check(op) is not None


def one_load(shape: tuple[int, ...], at: Callable[[Index], tuple[Index, ...]]) -> ops.Load:
    """A load of 64 rows and 64 columns of a float16 view; at: its indices, from the program."""
    b = Builder("load", Schedule())
    x = b.buffer("x", f16, int(np.prod(shape)))
    b.load(b.view(x, shape), at(index(b.program_id(0, 8))), (64, 64))
    (op,) = (op for op in b.build().walk() if isinstance(op, ops.Load))
    return op


def test_windows_are_of_any_indices() -> None:
    def rows(pid: Index) -> Index:
        return pid * 64 + axis(0, 64)

    shape = (4, 9, 10, 64)
    found = {
        "a crop": lambda p: (
            rows(p) // 35, rows(p) // 7 % 5 + 3, rows(p) % 7 + p % 3, axis(1, 64)
        ),
        "steps": lambda p: (rows(p) // 15, rows(p) // 5 % 3 * 3, rows(p) % 5 * 2, axis(1, 64)),
        "one line": lambda p: (index(0), p, rows(p) % 5 + rows(p) // 5 * 0, axis(1, 64)),
        "rows before columns": lambda p: (
            rows(p) // 90, rows(p) % 9, rows(p) // 9 % 10, axis(1, 64)
        ),
        "out of step": lambda p: (
            rows(p) // 35, (rows(p) + 1) // 7 % 5, rows(p) % 7, axis(1, 64)
        ),
        "backwards": lambda p: (rows(p) // 35, rows(p) // 7 % 5, rows(p) % 7 * -1 + 9, axis(1, 64)),
        "gaps": lambda p: (rows(p) // 70, rows(p) // 14 % 5, rows(p) % 7, axis(1, 64)),
        "columns twice": lambda p: (rows(p) // 70, axis(1, 64), rows(p) % 7, axis(1, 64)),
    }  # fmt: skip
    fits = {name: check(one_load(shape, at)) is not None for name, at in found.items()}
    assert fits == {
        "a crop": True, "steps": True, "one line": False, "rows before columns": True,
        "out of step": False, "backwards": False, "gaps": False, "columns twice": False,
    }  # fmt: skip


def test_windows_can_be_forbidden() -> None:
    case: dict[str, Any] = {"batch": 32, "channels": 64, "size": (14, 14)}
    blocks = (("m", 64), ("n", 64), ("k", 64))
    for im2col, copies in ((True, "tma"), (False, "cp.async")):
        kernel = convolution(**case, schedule=Schedule(blocks, stages=3, im2col=im2col))
        assert compile_kernel(kernel, SM_90A).facts["copies"] == copies


def test_maps_of_windows() -> None:
    kernel = convolution(32, 128, (14, 15), stride=(2, 2), schedule=PLAIN)
    (record, _) = compile_kernel(kernel, SM_90A).tensor_maps
    assert record.box == (64, 64) and record.steps == (2, 2)
    assert record.shape == (128, 15, 14, 32) and record.lower == (-1, -1)
    assert record.upper == (-1, -2)  # eight columns from -1 on, seven lines
    plain = map_arguments(record, 1 << 20)
    assert plain["steps"] == (1, 2, 2, 1) and plain["corners"] == ((-1, -1), (-1, -2))
    bad = [{"steps": (2, 9)}, {"lower": (-1, -200)}, {"upper": (-20, 0)}, {"box": (64, 2048)}]
    for change in bad:
        with pytest.raises(CompileError, match="no tensor map"):
            map_arguments(dataclasses.replace(record, **change), 1 << 20)


PLAIN = Schedule((("m", 64), ("n", 64), ("k", 64)), stages=3)
SMALL = [name for name in CASES if name != "large"]
TEAMS = Schedule(
    (("m", 64), ("n", 64), ("k", 64)), stages=3, persistent=True, consumer_groups=2
)  # fmt: skip
OTHERS = {
    "cluster": dataclasses.replace(PLAIN, cluster=2),
    "neighbours along m": dataclasses.replace(PLAIN, neighbours=(2, 1)),
    "neighbours along n": dataclasses.replace(PLAIN, neighbours=(1, 2)),
    "neighbours": dataclasses.replace(PLAIN, neighbours=(2, 2)),
    "teams": TEAMS,
    "twelve warps": Schedule((("m", 192), ("n", 64), ("k", 64)), warps=12, stages=3),
}


def run_both(kernel: Kernel) -> None:
    """On a GPU as by the interpreter."""
    if context() is None:
        pytest.skip("no NVIDIA GPU")
    compiled = compile_kernel(kernel, SM_90A)
    assert compiled.facts["copies"] == "tma"
    rng = np.random.default_rng(0)
    arrays = {
        buffer.name: np.full(buffer.size, np.nan, np.float16)
        if buffer.role == "output"
        else rng.uniform(-1, 1, buffer.size).astype(np.float16)
        for buffer in kernel.buffers
    }
    expected = {name: array.copy() for name, array in arrays.items()}
    run(kernel, expected)
    found = run_on_device(kernel, compiled, arrays)
    (output,) = (buffer.name for buffer in kernel.buffers if buffer.role == "output")
    np.testing.assert_allclose(found[output], expected[output], rtol=2e-3, atol=2e-3)


@pytest.mark.cuda
@pytest.mark.parametrize("name", SMALL)
def test_windows_on_a_gpu(name: str) -> None:
    run_both(convolution(**CASES[name], schedule=PLAIN))


@pytest.mark.cuda
@pytest.mark.parametrize("schedule", OTHERS.values(), ids=OTHERS)
def test_schedules_with_windows_on_a_gpu(schedule: Schedule) -> None:
    batch = 181 if schedule is TEAMS else 13  # 139 tiles of pixels, or 10
    run_both(convolution(batch, 128, (7, 7), schedule=schedule))
