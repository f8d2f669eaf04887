"""States in memory of a GPU: a pretended one (tests/runtime/pretend_gpu.py) and a real one."""

import gc
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fuser
from fuser.dtypes import f32
from fuser.errors import FeedError, UsageError
from fuser.frontends.onnx.model import Model, reference
from fuser.runtime.cuda import CudaExecutor
from models.generate import decoder, generate
from tests.numerics import assert_close
from tests.runtime.pretend_gpu import ATTRIBUTES, Driver, pretend_gpu
from tests.test_state import (
    ATTENTION,
    RECURRENT,
    SCATTERED,
    empty,
    follow_scattered,
    functional,
    grown,
    model_of,
    tokens,
)

__all__ = ["pretend_gpu"]

MASKED = """
<ir_version: 10, opset_import: ["": 23]>
masked (float[b, s, 4] x, float[b, t] mask, float[b, p, 4] past)
    => (float[b, s, t] y, float[b, t] seen, float[b, t, 4] present)
{
    present = Concat<axis = 1>(past, x)
    turned = Transpose<perm = [0, 2, 1]>(present)
    scores = MatMul(x, turned)
    one = Constant<value_ints = [1]>()
    wide = Unsqueeze(mask, one)
    y = Add(scores, wide)
    seen = Exp(mask)
}"""
"""What is as long as past and present together is fed, and comes out."""


@pytest.fixture(params=["pretended", pytest.param("real", marks=pytest.mark.cuda)])
def gpu(request: pytest.FixtureRequest) -> Iterator[Driver | None]:
    """device="cuda" is there; the driver, where it is pretended."""
    yield request.getfixturevalue("pretend_gpu") if request.param == "pretended" else None


@pytest.fixture
def attention() -> Model:
    return model_of(ATTENTION, wq=(16, 32), wk=(16, 16), wv=(16, 16))


def test_steps_write_in_place(attention: Model, gpu: Driver | None) -> None:
    """From every length at which kernels differ, and by one CUDA graph for each set of results;
    nobody reads what is not there yet."""
    plan = fuser.compile(attention, state="auto", device="cuda")
    state, kept = plan.state(batch=2, capacity=32), empty()
    memory = {name: array.pointer for name, array in state.arrays.items()}
    for array in state.arrays.values():
        array.write(np.full(array.shape, np.nan, np.float32))
    counts = (1, 1, 1, 4, *(1,) * 7, 3)
    for count in counts:
        x = tokens(count)
        outputs = state.run({"x": x})
        expected = functional(attention, x, kept)
        kept = grown(expected)
        assert list(outputs) == ["y"]
        assert_close(outputs["y"], expected["y"], f32, 64)
    for name, array in state.kept().items():
        assert_close(array, kept[name], f32, 64)
        assert np.isnan(state.arrays[name].numpy()[:, :, state.length :]).all()
    assert memory == {name: array.pointer for name, array in state.arrays.items()}
    assert plan.explain().splitlines()[0] == "past_key -> present_key: in place"
    if gpu is not None:  # of 8 runs of one row from length 2 on, the first of each was none
        assert gpu.calls.count("cuStreamBeginCapture") == 2
        assert gpu.calls.count("cuGraphLaunch") == 6
        assert not [name for name in gpu.calls if name == "cuMemcpy2DAsync"][2:]  # kept()


def test_results_stay_on_the_gpu(gpu: Driver | None) -> None:
    """Tokens go from run to run without a copy to the host, and are those of host runs."""
    plan = fuser.compile(decoder("small_llama"), state="auto", device="cuda")
    prompt = np.random.default_rng(5).integers(1, 1000, (1, 6))
    how = {"temperature": np.float32(0), "seed": np.int64(0)}
    state = plan.state(capacity=16)
    found = state.run_device({"input_ids": prompt, **how})
    drawn = []
    for _ in range(3):
        following = state.run_device({"input_ids": found["next_ids"], **how})
        drawn.append(found["next_ids"].numpy())  # of the run before
        found = following
    with pytest.raises(FeedError, match="input_ids"):
        state.run_device({"input_ids": found["logits"], **how})
    on_host = fuser.compile(decoder("small_llama"), state="auto", device="cpu", threads=1)
    np.testing.assert_array_equal(np.concatenate(drawn, axis=1),
                                  generate(on_host, prompt, 3).tokens)  # fmt: skip
    with pytest.raises(UsageError, match="CPU"):
        on_host.state().run_device({"input_ids": prompt, **how})


def test_a_state_is_saved_and_loaded_by_any_device(
    attention: Model, gpu: Driver | None, tmp_path: Path
) -> None:
    plan = fuser.compile(attention, state="auto", device="cuda")
    on_host = fuser.compile(attention, state="auto", device="cpu", threads=1)
    state = plan.state(batch=2, capacity=8)
    state.run({"x": tokens(3)})
    state.save(tmp_path / "kept.npz")
    following = state.run({"x": tokens(1)})["y"]
    for other in (plan.state(batch=2, capacity=5), on_host.state(batch=2, capacity=20)):
        other.load(tmp_path / "kept.npz")
        assert_close(other.run({"x": tokens(1)})["y"], following.astype(np.float64), f32, 64)
    assert isinstance(state.memo, tuple)
    times = state.memo[0].time_kernels(state, 2)  # runs the last step again
    assert len(times) > 2 and all(seconds >= 0 for _, seconds in times)
    before = state.kept()
    state.truncate(3)
    np.testing.assert_array_equal(state.run({"x": tokens(1)})["y"], following)
    for name, array in state.kept().items():
        np.testing.assert_array_equal(array, before[name])
    state.reset()
    state.run({"x": tokens(3)})
    np.testing.assert_array_equal(state.run({"x": tokens(1)})["y"], following)


def test_states_of_threads_do_not_meet(attention: Model, gpu: Driver | None) -> None:
    """Eight sequences at once, each from a thread, give what each gives alone."""
    plan = fuser.compile(attention, state="auto", device="cuda")

    def follow(seed: int) -> list[np.ndarray]:
        state = plan.state(capacity=10 + seed)
        runs = [tokens(1 + seed % 3, 1, seed), *(tokens(1, 1, seed + i) for i in range(3))]
        return [state.run({"x": x})["y"] for x in runs]

    alone = [follow(seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(follow, range(8)))
    for one, other in zip(alone, together, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_capture_goes_on_while_another_plan_is_closed(
    attention: Model, gpu: Driver | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who closes one waits for all that the device does, and first for the end of the capture: to
    wait for a stream that is captured ends that with an error."""
    plan, *others = (fuser.compile(attention, state="auto", device="cuda") for _ in range(3))
    for other in others:
        other.state(capacity=4).run({"x": tokens(1, 1, 0)})
    waits: list[bool] = []
    threads: list[threading.Thread] = []
    enqueue = CudaExecutor.enqueue

    def meanwhile(self: CudaExecutor, *args: Any, **more: Any) -> None:
        if others and int(args[0]) == int(self.shared.capture_stream):
            threads.append(threading.Thread(target=others.pop().close))
            threads[-1].start()
            threads[-1].join(0.2)
            waits.append(threads[-1].is_alive())
        enqueue(self, *args, **more)

    state, alone = plan.state(capacity=8), plan.state(capacity=8)
    feeds = [{"x": tokens(1, 1, seed)} for seed in range(6)]
    with monkeypatch.context() as patch:
        patch.setattr(CudaExecutor, "enqueue", meanwhile)
        found = [state.run(item)["y"] for item in feeds]
    for thread in threads:
        thread.join()
    assert waits and all(waits)
    for a, item in zip(found, feeds, strict=True):
        np.testing.assert_array_equal(a, alone.run(item)["y"])


def test_what_is_not_appended_is_handed_on(gpu: Driver | None) -> None:
    model = model_of(RECURRENT, w=(8, 8))
    pairs = {"h": "next", "old": "all"}
    plan = fuser.compile(model, state=pairs, device="cuda")
    state = plan.state(batch=3, capacity=12)
    rng = np.random.default_rng(3)
    kept = {"h": np.zeros((3, 8), np.float32), "old": np.zeros((0, 3, 4), np.float32)}
    for step in range(8):
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


def test_feeds_and_results_grow_with_what_is_kept(gpu: Driver | None) -> None:
    """Kernels whose blocks depend on the length are launched for the longest."""
    model = model_of(MASKED)
    plan = fuser.compile(model, state={"past": "present"}, device="cuda")
    state = plan.state(batch=2, capacity=300)
    rng = np.random.default_rng(8)
    past = np.zeros((2, 0, 4), np.float32)
    for count in (37, 60, *(1,) * 9):
        x = rng.standard_normal((2, count, 4), np.float32)
        mask = rng.standard_normal((2, state.length + count), np.float32)
        outputs = state.run({"x": x, "mask": mask})
        past = np.concatenate([past, x], axis=1)
        np.testing.assert_allclose(outputs["seen"], np.exp(mask), rtol=1e-5)
        scores = x.astype(np.float64) @ past.transpose(0, 2, 1)
        assert_close(outputs["y"], scores + mask[:, None], f32, 8)
    np.testing.assert_array_equal(state.kept()["past"], past)
    if gpu is not None:
        blocks = [max(kernel.launch) for kernel in gpu.launched if kernel.facts.get("moving")]
        assert blocks and gpu.calls.count("cuStreamBeginCapture") == 2


def test_rows_at_places_of_their_own_are_written_in_place(gpu: Driver | None) -> None:
    model = model_of(SCATTERED, wq=(16, 32), wk=(16, 16), wv=(16, 16))
    plan = fuser.compile(model, state="auto", device="cuda")
    state = plan.state(batch=3, m=9)
    memory = {name: array.pointer for name, array in state.arrays.items()}
    follow_scattered(model, plan, state)
    assert memory == {name: array.pointer for name, array in state.arrays.items()}


def test_weights_are_on_the_gpu_once(pretend_gpu: Driver) -> None:
    """Kernels for the prompt and for a token share them."""
    plan = fuser.compile(decoder("small_llama"), state="auto", device="cuda")
    state = plan.state(capacity=16)
    how = {"temperature": np.float32(0), "seed": np.int64(0)}
    for count in (6, 1, 1):
        state.run_device({"input_ids": np.ones((1, count), np.int64), **how})
    assert len(plan.variants) == 2
    vectors = 1000 * 64 * 4  # of the tokens, going in and coming out
    assert [raw.nbytes - 256 for raw in pretend_gpu.memory.values()].count(vectors) == 2


def test_memory_is_given_back(attention: Model, pretend_gpu: Driver) -> None:
    plan = fuser.compile(attention, state="auto", device="cuda")
    state: Any = plan.state(batch=2, capacity=16)
    state.run({"x": tokens(2)})
    held = len(pretend_gpu.memory)
    other = plan.state(batch=2, capacity=16)
    other.run({"x": tokens(2)})
    assert len(pretend_gpu.memory) > held
    del other
    gc.collect()
    assert len(pretend_gpu.memory) == held
    plan.close()
    del state, plan
    gc.collect()
    assert not pretend_gpu.memory and not pretend_gpu.graphs


def test_memory_is_freed_while_a_stream_is_captured(attention: Model, pretend_gpu: Driver) -> None:
    """The collector may find it then: the capture goes on, and nothing is left."""
    plan = fuser.compile(attention, state="auto", device="cuda")
    before = len(pretend_gpu.memory)
    state: Any = plan.state(batch=2, capacity=16)
    assert len(pretend_gpu.memory) > before
    pretend_gpu.captured[55] = []
    del state
    gc.collect()
    del pretend_gpu.captured[55]
    assert len(pretend_gpu.memory) == before
    plan.close()


def test_steps_apply_norms_in_their_matmuls(
    gpu: Driver | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every norm but the first is no kernel; steps and prompt are as exact."""
    monkeypatch.setitem(ATTRIBUTES, "COMPUTE_CAPABILITY_MAJOR", 8)  # there are no tensor maps
    prompt = np.random.default_rng(5).integers(1, 1000, (1, 6))
    how = {"temperature": np.float32(0), "seed": np.int64(0)}
    wanted = fuser.compile(decoder("small_llama", "float32"), state="auto", device="cpu", threads=1)
    counts, errors = [], []
    for fusion in (fuser.Fusion(), fuser.Fusion(fold_norms=True)):
        plan = fuser.compile(
            decoder("small_llama", "float16"), state="auto", device="cuda", fusion=fusion
        )
        states = [plan.state(capacity=16), wanted.state(capacity=16)]
        for ids in (prompt, prompt[:, 2:3]):
            before = 0 if gpu is None else len(gpu.calls)
            found, expected = (
                state.run({"input_ids": ids, **how})["logits"].astype(np.float64)
                for state in states
            )
        errors.append(float(np.linalg.norm(found - expected) / np.linalg.norm(expected)))
        if gpu is not None:
            counts.append(gpu.calls[before:].count("cuLaunchKernelEx"))
    assert errors[1] < 1.5 * errors[0] < 2e-2
    assert not counts or counts[1] == counts[0] - 4, counts
