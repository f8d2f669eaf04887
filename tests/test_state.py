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

SCATTERED = """
<ir_version: 10, opset_import: ["": 24]>
scattered (float[b, s, 16] x, int64[b] at, int64[b] valid, float[b, 2, m, 8] key_cache,
           float[b, 2, m, 8] value_cache)
    => (float[b, s, 32] y, float[b, 2, m, 8] keys, float[b, 2, m, 8] values)
    <float[16, 32] wq, float[16, 16] wk, float[16, 16] wv>
{
    q = MatMul(x, wq)
    k = MatMul(x, wk)
    v = MatMul(x, wv)
    parts = Constant<value_ints = [0, 0, 2, 8]>()
    k_parts = Reshape(k, parts)
    v_parts = Reshape(v, parts)
    k_heads = Transpose<perm = [0, 2, 1, 3]>(k_parts)
    v_heads = Transpose<perm = [0, 2, 1, 3]>(v_parts)
    q_sizes = Constant<value_ints = [0, 0, 4, 8]>()
    q_parts = Reshape(q, q_sizes)
    q_heads = Transpose<perm = [0, 2, 1, 3]>(q_parts)
    keys = TensorScatter<axis = 2>(key_cache, k_heads, at)
    values = TensorScatter<axis = 2>(value_cache, v_heads, at)
    y_heads = Attention<is_causal = 1>(q_heads, keys, values, "", "", "", valid)
    y_parts = Transpose<perm = [0, 2, 1, 3]>(y_heads)
    flat = Constant<value_ints = [0, 0, 32]>()
    y = Reshape(y_parts, flat)
}"""

GROUPED = """
<ir_version: 10, opset_import: ["": 18, "com.microsoft": 1]>
grouped (float[batch, s, 16] x, int64[batch, total] attention_mask,
         float[batch, 2, past, 8] past_key, float[batch, 2, past, 8] past_value)
    => (float[batch, s, 32] y, float[batch, 2, total, 8] present_key,
        float[batch, 2, total, 8] present_value)
    <float[16, 32] wq, float[16, 16] wk, float[16, 16] wv, float[32, 4] cos, float[32, 4] sin>
{
    q = MatMul(x, wq)
    k = MatMul(x, wk)
    v = MatMul(x, wv)
    one = Constant<value_ints = [1]>()
    counts = ReduceSum<keepdims = 0>(attention_mask, one)
    before = Sub(counts, one)
    lengths = Cast<to = 6>(before)
    sizes = Shape(attention_mask)
    which = Constant<value_int = 1>()
    longest = Gather(sizes, which)
    all = Cast<to = 6>(longest)
    y, present_key, present_value = com.microsoft.GroupQueryAttention
        <num_heads = 4, kv_num_heads = 2, do_rotary = 1>
        (q, k, v, past_key, past_value, lengths, all, cos, sin)
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
    fixed = fuser.compile(attention, state="auto", device="cpu", dims={"b": 2})
    assert fixed.state(batch=2).arrays["past_key"].shape[0] == 2
    with pytest.raises(UsageError, match="batch=3"):
        fixed.state(batch=3)
    scattered = model_of(SCATTERED, wq=(16, 32), wk=(16, 16), wv=(16, 16))
    with pytest.raises(UsageError, match="needs a size of m"):
        fuser.compile(scattered, state="auto", device="cpu", dims={"b": 3}).state()
    with pytest.raises(UsageError, match="at least 1 row"):
        fuser.compile(attention, state="auto", device="cpu").state(capacity=0)


def test_rows_at_places_of_their_own_are_written_in_place() -> None:
    """Sequences of one batch that are at other lengths, in caches of a fixed size."""
    model = model_of(SCATTERED, wq=(16, 32), wk=(16, 16), wv=(16, 16))
    plan = fuser.compile(model, state="auto", device="cpu", threads=1)
    state = plan.state(batch=3, m=9)
    state.reset()
    memory = {name: array.ctypes.data for name, array in state.arrays.items()}
    assert not any(place % 64 for place in memory.values())  # kernels store whole vectors there
    follow_scattered(model, plan, state)
    state.reset()
    assert not any(array.any() for array in state.arrays.values())
    assert memory == {name: array.ctypes.data for name, array in state.arrays.items()}


def follow_scattered(model: Model, plan: fuser.StatefulPlan, state: fuser.State) -> None:
    kept = {n: np.zeros((3, 2, 9, 8), np.float32) for n in ("key_cache", "value_cache")}
    at = np.array([0, 2, 1])
    for count in (2, 1, 1, 1, 1, 1):
        feeds = {"x": tokens(count, 3), "at": at, "valid": at + count}
        outputs = state.run(feeds)
        expected = reference(model, {**feeds, **kept}, {"b": 3, "s": count, "m": 9})
        assert list(outputs) == ["y"]
        assert_close(outputs["y"], expected["y"], f32, 64)
        results = zip(kept, ("keys", "values"), strict=True)
        kept = {name: expected[result].astype(np.float32) for name, result in results}
        for name, array in state.kept().items():
            assert_close(array, kept[name], f32, 64)
        at = at + count
    lines = plan.explain().splitlines()[:2]
    assert lines == ["key_cache -> keys: in place", "value_cache -> values: in place"]


def test_a_shared_cache_of_grouped_queries_grows_in_place() -> None:
    """As ONNX Runtime's model builder writes it: lengths from a mask. Of one sequence nothing is
    padding, so that rows are appended; several are copied, and right."""
    weights = {"wq": (16, 32), "wk": (16, 16), "wv": (16, 16), "cos": (32, 4), "sin": (32, 4)}
    model = model_of(GROUPED, **weights)
    for batch, way in ((1, "in place"), (2, "copied: it is not the input and rows behind it")):
        plan = fuser.compile(model, state="auto", device="cpu", threads=1)
        x, mask = tokens(12, batch), np.ones((batch, 12), np.int64)
        state = plan.state(batch=batch, capacity=12)
        wanted = state.run({"x": x, "attention_mask": mask})["y"]  # all at once, from no cache
        kept = state.kept()
        state.reset()
        found = []
        for begin, end in ((0, 3), (3, 4), (4, 5), (5, 7), (7, 8), (8, 12)):
            feeds = {"x": x[:, begin:end], "attention_mask": mask[:, :end]}
            found.append(state.run(feeds)["y"])
        assert_close(np.concatenate(found, axis=1), wanted.astype(np.float64), f32, 64)
        for name, array in state.kept().items():
            assert_close(array, kept[name].astype(np.float64), f32, 64)
        lines = plan.explain().splitlines()[:2]
        assert lines == [f"past_{name} -> present_{name}: {way}" for name in ("key", "value")]
