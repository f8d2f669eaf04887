"""The Plan: feeds, results, timing, closing."""

from __future__ import annotations

import copy
import multiprocessing
import pickle

import ml_dtypes
import numpy as np
import pytest

from fuser.base.target import cpu_target
from fuser.dtypes import bf16, bool_, f16, f32, i8, i64
from fuser.errors import FeedError, InvalidModelError, UsageError
from fuser.runtime.feeds import check_feeds
from fuser.runtime.plan import Plan, _restore
from fuser.runtime.program import Step, TensorSpec, assemble

from .handmade import binary

X, Y = TensorSpec("x", f32, (2, 3)), TensorSpec("y", f32, (2, 3))


@pytest.fixture(scope="module")
def plan() -> Plan:
    """z = x - y, twice."""
    step = Step(binary("subtract", "fsub", 6), ("x", "y", "z"), label="map_0")
    outputs = [("z", TensorSpec(name, f32, (2, 3))) for name in ("z", "again")]
    target = cpu_target("x86-64-v3", "")
    return Plan(assemble(target, [step], [("x", X), ("y", Y)], outputs, {}, {}), threads=2)


def test_run_and_call_agree(plan: Plan) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    y = np.ones((2, 3), np.float32)
    outputs = plan.run({"y": y, "x": x})
    assert list(outputs) == ["z", "again"]
    for array in (*outputs.values(), *plan(x, y), *plan(x, y=y)):
        np.testing.assert_array_equal(array, x - y)


def test_results_are_new_arrays(plan: Plan) -> None:
    ones = np.ones((2, 3), np.float32)
    first = plan(ones, ones)[0]
    second = plan(ones * 5, ones)[0]
    assert (first == 0).all() and (second == 4).all()


def test_profile(plan: Plan) -> None:
    latency = plan.profile(iterations=9, warmup=1)
    assert 0 < latency.median <= latency.p90 <= latency.p99 and latency.iterations == 9
    [(name, milliseconds)] = plan.profile_kernels(iterations=3)
    assert name == "map_0" and milliseconds > 0
    with pytest.raises(UsageError):
        plan.profile(iterations=0)


def test_call_mistakes(plan: Plan) -> None:
    x = np.ones((2, 3), np.float32)
    with pytest.raises(UsageError, match="3 arrays for 2 inputs"):
        plan(x, x, x)
    with pytest.raises(UsageError, match="by position and by name"):
        plan(x, x=x)
    with pytest.raises(UsageError, match="no report"):
        plan.report()


def test_a_closed_plan_refuses() -> None:
    step = Step(binary("subtract", "fsub", 6), ("x", "x", "z"))
    program = assemble(cpu_target("x86-64-v3", ""), [step], [("x", X)], [("z", Y)], {}, {})
    with Plan(program, threads=1) as plan:
        plan(np.ones((2, 3), np.float32))
    with pytest.raises(UsageError, match="closed"):
        plan(np.ones((2, 3), np.float32))
    plan.close()


def test_a_spawned_process_gets_the_plan(plan: Plan) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(plan, (x, x / 3))
    for array in found:
        np.testing.assert_array_equal(array, x - x / 3)


def test_pickles_and_copies(plan: Plan) -> None:
    again: Plan = pickle.loads(pickle.dumps(plan))
    ones = np.ones((2, 3), np.float32)
    assert (again(ones * 3, ones)[0] == 2).all() and again.inputs == plan.inputs
    assert again.device_name == plan.device_name  # the threads as well
    with pytest.raises(UsageError, match="no report"):
        again.report()
    assert copy.copy(plan) is plan and copy.deepcopy({"a": plan})["a"] is plan
    with pytest.raises(InvalidModelError, match="bytes in memory"):
        _restore(b"no plan", None, 0, {})


def test_a_plan_for_a_cpu_binds_nothing(plan: Plan) -> None:
    with pytest.raises(UsageError, match="for a CPU"):
        plan.bind({}, {})


GOOD = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    "feed",
    [
        GOOD.astype(">f4"),
        np.asfortranarray(GOOD),
        GOOD[::-1][::-1],
        np.repeat(GOOD, 2, axis=1)[:, ::2],
        [[0, 1, 2], [3, 4, 5]],
        [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]],
        tuple(map(tuple, GOOD.tolist())),
        memoryview(GOOD),
    ],
)
def test_feeds_are_put_right(feed: object) -> None:
    (array,) = check_feeds([X], {"x": feed})
    assert array.flags.c_contiguous and array.dtype == np.float32 and array.dtype.isnative
    np.testing.assert_array_equal(array, GOOD)


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, r"missing feeds: x: f32\[2, 3\]"),
        ({"X": GOOD}, "unknown input 'X'"),
        ({"x": GOOD, "xx": GOOD}, "did you mean 'x'"),
        ({"x": GOOD.astype(np.float64)}, "dtype float64.*astype"),
        ({"x": GOOD.astype(">f8")}, "dtype >f8"),
        ({"x": GOOD.T}, r"shape \[3, 2\].*transpose\(1, 0\)"),
        ({"x": GOOD[0]}, "needs 2 axes, not 1"),
        ({"x": GOOD[:1]}, "axis 0 differs"),
        ({"x": None}, "no array"),
        ({"x": "text"}, "no array of numbers"),
        ({"x": [[1, 2], [3]]}, "no array"),
        ({"x": np.array([[None] * 3] * 2)}, "dtype object"),
        ([GOOD], "pass a dict"),
    ],
)
def test_bad_feeds_are_named(feeds: object, message: str) -> None:
    with pytest.raises(FeedError, match=message) as caught:
        check_feeds([X], feeds)  # type: ignore[arg-type]
    assert caught.value.hint and "\n" not in str(caught.value)


def test_python_scalars_fit_their_dtype() -> None:
    specs = [
        TensorSpec("i", i64, ()),
        TensorSpec("h", f16, ()),
        TensorSpec("b", bool_, (2,)),
        TensorSpec("s", i8, ()),
        TensorSpec("w", bf16, (1,)),
    ]
    good = {"i": 7, "h": 0.5, "b": [True, False], "s": -3, "w": [1.5]}
    arrays = check_feeds(specs, good)
    assert [array.dtype for array in arrays] == [spec.dtype.numpy for spec in specs]
    assert arrays[4].dtype == ml_dtypes.bfloat16 and float(arrays[4][0]) == 1.5
    for name, bad in (("i", 1.5), ("s", 300), ("b", [1, 0]), ("h", "x"), ("i", 2**70)):
        with pytest.raises(FeedError):
            check_feeds(specs, {**good, name: bad})
