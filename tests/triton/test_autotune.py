"""autotune and heuristics: which config wins, when it is looked for again, what is put back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fuser.triton as triton
import fuser.triton.language as tl
from fuser.backend.workers import CompileStats
from fuser.language import variants
from fuser.triton.driver import Driver
from fuser.triton.timing import measure

torch = pytest.importorskip("torch")


def slow_of(sizes: dict[int, float]) -> Callable[..., Sequence[float]]:
    """A stand-in for timing: runs a config, and gives the milliseconds of its BLOCK."""

    def bench(call: Callable[[], None], quantiles: Any) -> list[float]:
        call()
        return [sizes[RUNS[-1]]] * 3

    return bench


RUNS: list[int] = []


@triton.jit
def increment(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, at < n) + 1, at < n)


def configs(*blocks: int) -> list[triton.Config]:
    def note(block: int) -> Callable[[Any], None]:
        return lambda named: RUNS.append(named["BLOCK"])

    return [triton.Config({"BLOCK": block}, pre_hook=note(block)) for block in blocks]


def grid(meta: dict[str, Any]) -> tuple[int]:
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def test_the_fastest_wins_and_is_kept_by_key() -> None:
    tuned = triton.autotune(
        configs(16, 32, 64), key=["n"], do_bench=slow_of({16: 3.0, 32: 1.0, 64: 2.0})
    )(increment)
    x = torch.zeros(100)
    tuned[grid](x, 100)
    assert tuned.best_config.kwargs == {"BLOCK": 32}
    assert [times[0] for times in tuned.configs_timings.values()] == [3.0, 1.0, 2.0]
    count = len(RUNS)
    tuned[grid](x, 100)
    assert RUNS[count:] == [32]
    tuned[grid](x, 99)
    assert len(RUNS) == count + 1 + 4 and len(tuned.cache) == 2


def test_arrays_are_put_back_and_cleared() -> None:
    times = slow_of({16: 2.0, 32: 1.0})
    for option in ({"restore_value": ["x"]}, {"reset_to_zero": ["x"]}):
        x = torch.zeros(64)
        tuned = triton.autotune(configs(16, 32), key=["n"], do_bench=times, **option)(increment)
        tuned[grid](x, 64)
        assert x.tolist() == [1.0] * 64


def test_what_cannot_be_compiled_loses() -> None:
    @triton.jit
    def picky(x, n, BLOCK: tl.constexpr):
        tl.static_assert(BLOCK < 32)
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x + at, at, at < n)

    x = torch.zeros(64)
    tuned = triton.autotune(configs(64, 16), key=["n"], do_bench=slow_of({16: 9.0}))(picky)
    tuned[grid](x, 64)
    assert tuned.best_config.kwargs == {"BLOCK": 16} and x[5] == 5
    hopeless = triton.autotune(configs(64, 128), key=["n"])(picky)
    with pytest.raises(triton.CompilationError, match="static_assert"):
        hopeless[grid](x, 64)


def test_pruning() -> None:
    x, seen = torch.zeros(64), []

    def keep(found: list[triton.Config], named: dict[str, Any], **rest: Any) -> list[triton.Config]:
        seen.append((set(named), rest["n"]))
        return found[1:]

    times = slow_of({16: 1.0, 32: 2.0, 64: 3.0})
    tuned = triton.autotune(
        configs(16, 32, 64),
        key=["n"],
        do_bench=times,
        prune_configs_by={"early_config_prune": keep},
    )(increment)
    tuned[grid](x, n=64)
    assert tuned.best_config.kwargs == {"BLOCK": 32} and seen == [({"x"}, 64)]
    model = {"perf_model": lambda BLOCK, **_: -BLOCK, "top_k": 1}
    tuned = triton.autotune(configs(16, 32, 64), key=["n"], do_bench=times, prune_configs_by=model)(
        increment
    )
    tuned[grid](x, 64)
    assert tuned.best_config.kwargs == {"BLOCK": 64}
    none = triton.autotune(
        configs(16, 32), key=["n"], prune_configs_by={"early_config_prune": lambda *a, **k: []}
    )(increment)
    with pytest.raises(triton.TritonError, match="No valid autotuner configs"):
        none[grid](x, 64)


def test_a_tuned_name_is_not_passed() -> None:
    tuned = triton.autotune(configs(16, 32), key=["n"])(increment)
    with pytest.raises(ValueError, match="Conflicting meta-parameters: BLOCK"):
        tuned[grid](torch.zeros(64), 64, BLOCK=16)


def test_timing_on_this_device_decides() -> None:
    tuned = triton.autotune(
        [triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 64})], key=["n"], warmup=1, rep=2
    )(increment)
    tuned[grid](torch.zeros(64), 64)
    assert len(tuned.configs_timings) == 2
    assert all(0 < times[0] < 1e4 for times in tuned.configs_timings.values())


def test_heuristics_compute_arguments() -> None:
    @triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"])})
    @triton.jit
    def fill(x, n, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(x + at, BLOCK, at < n)

    x = np.zeros(8, np.int32)
    fill[(1,)](x, 5)
    assert x.tolist() == [8] * 5 + [0] * 3
    fill[(1,)](x, n=3)
    assert x.tolist() == [4] * 3 + [8] * 2 + [0] * 3


def test_configs_compare_by_what_they_are() -> None:
    assert triton.Config({"A": 1}) == triton.Config({"A": 1})
    assert triton.Config({"A": 1}) != triton.Config({"A": 1}, num_warps=8)
    assert triton.Config({"A": 1}).all_kwargs() == {
        "A": 1, "num_warps": 4, "num_ctas": 1, "num_stages": 3
    }  # fmt: skip


def test_warps_and_stages_are_not_timed_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[dict[str, Any]] = []

    def bench(self: Any, *args: Any, config: triton.Config, **named: Any) -> list[float]:
        timed.append(config.all_kwargs())
        return [1.0 if config.kwargs["BLOCK"] == 32 else 2.0] * 3

    ways = [
        triton.Config({"BLOCK": block}, num_warps=warps, num_stages=stages)
        for block in (16, 32) for warps in (4, 8) for stages in (1, 2)
    ]  # fmt: skip
    tuned = triton.autotune(ways, key=["n"])(increment)
    monkeypatch.setattr(type(tuned), "_bench", bench)
    monkeypatch.setattr(triton.runtime.driver, "_active", Driver("cpu"))
    x = torch.zeros(100)
    tuned[grid](x, 100)
    assert [item["BLOCK"] for item in timed] == [16, 32]
    assert len(tuned.configs_timings) == 8 and tuned.best_config.kwargs == {"BLOCK": 32}
    assert x.tolist() == [1] * 100


@triton.jit
def shifted(x, n, by, BLOCK: tl.constexpr, UNUSED: tl.constexpr = 0, WARPS: tl.constexpr = 0):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    more = tl.extra.cuda.num_warps() if WARPS else 0
    tl.store(x + at, tl.load(x + at, at < n) + by + more, at < n)


@pytest.mark.parametrize(
    ("ways", "timed", "compiled"),
    [([({"by": 5, "UNUSED": n}, 4) for n in range(4)], 1, 1),
     ([({"by": n}, 4) for n in (5, 6, 5)], 2, 1),  # numbers that are known at the launch
     ([({"by": 5}, n) for n in (1, 2, 4)], 1, 1),
     ([({"by": 5, "WARPS": 1}, n) for n in (1, 2, 4)], 3, 3)],
)  # fmt: skip
def test_configs_that_lead_to_one_kernel(
    monkeypatch: pytest.MonkeyPatch, ways: Any, timed: int, compiled: int
) -> None:
    made: list[int] = []
    runs: list[triton.Config] = []
    together = variants.compile_each

    def counted(jobs: Any, *args: Any) -> Any:
        stats = CompileStats()
        found = together(jobs, *args, stats=stats)
        made.append(stats.distinct)
        return found

    def bench(self: Any, *args: Any, config: triton.Config, **named: Any) -> list[float]:
        runs.append(config)
        return [float(len(runs))] * 3

    found = [triton.Config({"BLOCK": 32, **given}, num_warps=warps) for given, warps in ways]
    kernel = triton.jit(shifted.fn)
    tuned = triton.autotune(found, key=["n"])(kernel)
    monkeypatch.setattr(variants, "compile_each", counted)
    monkeypatch.setattr(type(tuned), "_bench", bench)
    monkeypatch.setenv("FUSER_CACHE", "0")
    x = torch.zeros(100)
    tuned[grid](x, 100)
    assert len(runs) == timed and len(tuned.configs_timings) == len(set(found))
    assert sum(made) == compiled
    assert x.tolist() == [5 + (ways[0][1] if "WARPS" in ways[0][0] else 0)] * 100


def test_what_cannot_win_is_measured_three_times() -> None:
    calls: list[int] = []
    for limit, expected in ((math.inf, range(5, 1000)), (1e-9, range(4, 5))):
        calls.clear()
        measure(Driver("cpu"), lambda: calls.append(time.sleep(1e-3)), 1, 200, limit=limit)
        assert len(calls) in expected


def test_measuring_ends_in_time() -> None:
    class Slow(Driver):
        def clear_cache(self, cache: Any) -> None:
            cleared.append(time.sleep(0.02))

    cleared: list[None] = []
    measure(Slow("cpu"), lambda: None, warmup=1, rep=100)
    assert 3 < len(cleared) <= 3 + 5


def test_what_subclasses_of_packages_rely_on() -> None:
    made = triton.autotune(configs(16), key=[], reset_to_zero=["x"], restore_value=["y"])(increment)
    assert not made.user_defined_pre_hook and not made.user_defined_post_hook
    x = torch.ones(3)
    made.pre_hook({"x": x, "y": None})  # an optional array that is not there
    assert x.tolist() == [0, 0, 0] and made.restore_copies == {}
    made.pre_hook({"x": None, "y": x})
    x += 1
    made.post_hook({"x": None, "y": x}, exception=None)
    assert x.tolist() == [0, 0, 0] and made.restore_copies == {}
    hooked = triton.autotune(configs(16), key=[], pre_hook=lambda named: None)(increment)
    assert hooked.user_defined_pre_hook and tl.core.CONSTEXPR_0.value == 0


# timings that last ------------------------------------------------------------------------------


def lasting(times: dict[int, float], kernel: Any = increment, **named: Any) -> Any:
    """A tuner as a new process has it."""
    found = [triton.Config({"BLOCK": block}, **named) for block in times]
    ran: list[int] = []

    def bench(call: Callable[[], None], quantiles: Any) -> list[float]:
        call()
        ran.append(len(ran))
        return [list(times.values())[ran[-1]]] * 3

    made = triton.autotune(found, key=["n"], do_bench=bench, cache_results=True)(kernel)
    made.ran = ran
    return made


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_timings_last_on_disk(kept: Path) -> None:
    x = torch.zeros(100)
    first = lasting({16: 3.0, 32: 1.0, 64: 2.0})
    first[grid](x, 100)
    assert len(first.ran) == 3 and len(list(kept.rglob("increment.autotune.json"))) == 1
    x.zero_()
    again = lasting({16: 0.0, 32: 9.0, 64: 9.0})
    again[grid](x, 100)
    assert not again.ran and again.best_config.kwargs == {"BLOCK": 32} and bool((x == 1).all())
    assert again.configs_timings == first.configs_timings
    again[grid](x, 90)  # another key
    assert len(again.ran) == 3 and again.best_config.kwargs == {"BLOCK": 16}


@triton.jit
def decrement(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, at < n) - 1, at < n)


def test_timings_are_those_of_the_kernel_its_configs_and_the_device(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.zeros(100)
    times = {16: 3.0, 32: 1.0}
    lasting(times)[grid](x, 100)
    others = (
        lasting(times, decrement), lasting({16: 3.0, 64: 1.0}), lasting(times, num_stages=2),
        lasting(times | {64: 4.0}),
    )  # fmt: skip
    for other in others:
        other[grid](x, 100)
        assert other.ran
    same = lasting(times)
    same[grid](x, 100)
    assert not same.ran
    monkeypatch.setattr("fuser.triton.autotuner._device", lambda: "another")
    other = lasting(times)
    other[grid](x, 100)
    assert other.ran


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"timings": [[1]]}', '{"timings": [[1, 1, 1]]}',
             '{"timings": 3}', '{"timings": [[1, 1, "a"], [1, 1, 1]]}',
             '{"timings": [[Infinity, 1, 1], [Infinity, 1, 1]]}'],
)  # fmt: skip
def test_damaged_timings_are_taken_again(text: str, kept: Path) -> None:
    x = torch.zeros(100)
    lasting({16: 3.0, 32: 1.0})[grid](x, 100)
    (file,) = kept.rglob("*.autotune.json")
    whole = file.read_text()
    file.write_text(text)
    again = lasting({16: 3.0, 32: 1.0})
    again[grid](x, 100)
    assert len(again.ran) == 2 and file.read_text() == whole


def test_the_listener_is_told(kept: Path) -> None:
    told: list[dict[str, Any]] = []
    with triton.knobs.autotuning.scope():
        triton.knobs.autotuning.listener = lambda **facts: told.append(facts)
        for _ in range(2):
            lasting({16: 3.0, 32: 1.0})[grid](torch.zeros(100), 100)
    assert [facts["cache_hit"] for facts in told] == [False, True]
    assert told[0]["fn"] is increment.fn and told[1]["best_config"].kwargs == {"BLOCK": 32}
    assert told[1]["duration"] is None and told[0]["duration"] > 0


def test_all_kernels_keep_their_timings_where_the_knob_says_so(kept: Path) -> None:
    with triton.knobs.autotuning.scope():
        triton.knobs.autotuning.cache = True
        tuned = triton.autotune(configs(16, 32), key=["n"], do_bench=slow_of({16: 2.0, 32: 1.0}))
        tuned(increment)[grid](torch.zeros(100), 100)
    assert len(list(kept.rglob("*.autotune.json"))) == 1
