"""Plans that keep tensors between runs, beside runs that are handed all of it anew."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper, parser

import fuser
from fuser.dtypes import f32
from fuser.errors import FeedError, FuserError, KeywordError, UsageError
from fuser.frontends.onnx.model import Model, open_model, reference
from tests.numerics import assert_close

Arrays = dict[str, np.ndarray]

ATTENTION = """
<ir_version: 10, opset_import: ["": 23]>
attention (float[b, s, 16] x, float[b, 2, p, 8] past_key, float[b, 2, p, 8] past_value)
    => (float[b, s, 32] y, float[b, 2, t, 8] present_key, float[b, 2, t, 8] present_value)
    <float[16, 32] wq, float[16, 16] wk, float[16, 16] wv>
{
    q = MatMul(x, wq)
    k = MatMul(x, wk)
    v = MatMul(x, wv)
    y, present_key, present_value = Attention<is_causal = 1, q_num_heads = 4, kv_num_heads = 2>(
        q, k, v, "", past_key, past_value)
}"""

RECURRENT = """
<ir_version: 10, opset_import: ["": 22]>
recurrent (float[b, 8] x, float[b, 8] h, float[p, b, 4] old, float[n] scale)
    => (float[b, 8] y, float[b, 8] next, float[q, b, 4] all, float[n] scaled) <float[8, 8] w>
{
    mixed = MatMul(h, w)
    both = Add(x, mixed)
    next = Tanh(both)
    scaled = Mul(scale, scale)
    y = Add(next, h)
    first, second = Split<axis = 1, num_outputs = 2>(next)
    zero = Constant<value_ints = [0]>()
    row = Unsqueeze(first, zero)
    all = Concat<axis = 0>(row, old)
}"""


def model_of(text: str, **weights: tuple[int, ...]) -> Model:
    proto = parser.parse_model(text)
    rng = np.random.default_rng(7)
    for name, shape in weights.items():
        array = rng.standard_normal(shape, np.float32) / 4
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return open_model(proto)


@pytest.fixture(scope="module")
def attention() -> Model:
    return model_of(ATTENTION, wq=(16, 32), wk=(16, 16), wv=(16, 16))


@pytest.fixture(scope="module")
def plan(attention: Model) -> fuser.StatefulPlan:
    return fuser.compile(attention, state="auto", device="cpu", threads=1)


def tokens(count: int, batch: int = 2, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, count)).standard_normal((batch, count, 16), np.float32)


def functional(model: Model, x: np.ndarray, kept: Arrays) -> Arrays:
    """A run that is handed what is kept, by the oracle."""
    length = kept["past_key"].shape[2]
    return reference(model, {"x": x, **kept}, {"b": len(x), "s": x.shape[1], "p": length})


def empty(batch: int = 2) -> Arrays:
    return {name: np.zeros((batch, 2, 0, 8), np.float32) for name in ("past_key", "past_value")}


def grown(outputs: Arrays) -> Arrays:
    return {f"past_{n}": outputs[f"present_{n}"].astype(np.float32) for n in ("key", "value")}


def test_appended_rows_are_what_a_concat_makes(attention: Model, plan: fuser.StatefulPlan) -> None:
    """From every length at which kernels differ: 0, 1, more; by one row, by several."""
    state, kept = plan.state(batch=2, capacity=16), empty()
    memory = {name: array.ctypes.data for name, array in state.arrays.items()}
    for count in (1, 1, 1, 4, 1, 3):
        for array in state.arrays.values():  # nobody reads what is not there yet
            array[:, :, state.length :] = np.nan
        x = tokens(count)
        outputs = state.run({"x": x})
        expected = functional(attention, x, kept)
        kept = grown(expected)
        assert list(outputs) == ["y"]
        assert_close(outputs["y"], expected["y"], f32, 64)
        for name, array in state.kept().items():
            assert_close(array, kept[name], f32, 64)
            assert np.isnan(state.arrays[name][:, :, state.length :]).all()
    assert state.length == 11
    assert memory == {name: array.ctypes.data for name, array in state.arrays.items()}
    assert plan.explain().splitlines()[:2] == [
        "past_key -> present_key: in place", "past_value -> present_value: in place"
    ]  # fmt: skip


def test_states_of_threads_do_not_meet(attention: Model, plan: fuser.StatefulPlan) -> None:
    """Eight sequences of other lengths at once give what each gives alone."""

    def follow(seed: int) -> list[np.ndarray]:
        state = plan.state(capacity=12 + seed)
        runs = [tokens(1 + seed % 3, 1, seed), *(tokens(1, 1, seed + i) for i in range(seed, 9))]
        return [state.run({"x": x})["y"] for x in runs]

    alone = [follow(seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(follow, range(8)))
    for one, other in zip(alone, together, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_state_is_reset_truncated_saved_and_loaded(
    plan: fuser.StatefulPlan, tmp_path: Path
) -> None:
    state = plan.state(batch=2, capacity=8)
    state.run({"x": tokens(3)})
    bytes = state.bytes
    state.save(tmp_path / "kept.npz")
    following = state.run({"x": tokens(1)})["y"]
    other = plan.state(batch=2, capacity=20)
    other.load(tmp_path / "kept.npz")
    assert other.length == 3
    np.testing.assert_array_equal(other.run({"x": tokens(1)})["y"], following)
    state.truncate(3)
    np.testing.assert_array_equal(state.run({"x": tokens(1)})["y"], following)
    state.reset()
    assert (state.length, state.bytes) == (0, bytes)
    state.run({"x": tokens(3)})
    np.testing.assert_array_equal(state.run({"x": tokens(1)})["y"], following)
    with pytest.raises(UsageError, match="no first 9 rows"):
        state.truncate(9)
    with pytest.raises(FeedError, match="room for 2"):
        plan.state(batch=2, capacity=2).load(tmp_path / "kept.npz")
    with pytest.raises(FeedError, match="past_key"):
        plan.state(batch=1, capacity=8).load(tmp_path / "kept.npz")
    (tmp_path / "kept.npz").write_bytes(b"no archive")
    with pytest.raises(FuserError):
        state.load(tmp_path / "kept.npz")


def test_a_full_state_takes_no_more(plan: fuser.StatefulPlan) -> None:
    state = plan.state(batch=2, capacity=4)
    state.run({"x": tokens(3)})
    kept = state.kept()
    with pytest.raises(FeedError, match="3 of 4 rows: no room for 2"):
        state.run({"x": tokens(2)})
    with pytest.raises(FeedError):
        state.run({"x": tokens(1, 3)})  # another batch
    assert state.length == 3
    for name, array in state.kept().items():
        np.testing.assert_array_equal(array, kept[name])
    state.run({"x": tokens(1)})


def test_what_is_not_appended_is_handed_on() -> None:
    """A tensor that is replaced is the next input without a copy; one that grows at its front is
    copied, and right."""
    model = model_of(RECURRENT, w=(8, 8))
    pairs = {"h": "next", "old": "all"}
    plan = fuser.compile(model, state=pairs, device="cpu", threads=1)
    state = plan.state(batch=3, capacity=8)
    rng = np.random.default_rng(3)
    kept = {"h": np.zeros((3, 8), np.float32), "old": np.zeros((0, 3, 4), np.float32)}
    for step in range(4):
        x = {"x": rng.standard_normal((3, 8), np.float32), "scale": np.ones(5, np.float32)}
        outputs = state.run(x)
        expected = reference(model, {**x, **kept}, {"b": 3, "p": step, "n": 5})
        assert sorted(outputs) == ["scaled", "y"]
        assert_close(outputs["y"], expected["y"], f32, 64)
        kept = {name: expected[output].astype(np.float32) for name, output in pairs.items()}
        for name, array in state.kept().items():
            assert_close(array, kept[name], f32, 64)
    state.reset()
    assert not state.kept()["h"].any()
    lines = plan.explain().splitlines()
    assert lines[0] == "h -> next: handed on"
    assert lines[1].startswith("old -> all: copied")


def test_pairs_that_are_none_are_refused(attention: Model) -> None:
    def compile(state: Any, **options: Any) -> None:
        fuser.compile(attention, state=state, device="cpu", **options)

    with pytest.raises(UsageError, match="no input 'past'"):
        compile({"past": "present_key"})
    with pytest.raises(UsageError, match="no output 'present'"):
        compile({"past_key": "present"})
    with pytest.raises(UsageError, match="'y' is f32"):
        compile({"past_key": "y"})
    with pytest.raises(KeywordError, match="state"):
        compile("auto", dynamic=True)
    with pytest.raises(UsageError, match="no output is known"):
        fuser.compile(model_of(RECURRENT, w=(8, 8)), state="auto", device="cpu")
    with pytest.raises(UsageError, match="at least 1 row"):
        fuser.compile(attention, state="auto", device="cpu").state(capacity=0)
