"""Tuning: which schedules are tried, when one replaces the rules', and what is remembered."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import fuser
from fuser.backend.cpu import host_target
from fuser.backend.nvptx import compile_kernel
from fuser.base.target import SM_80, SM_90A, X86_64_V4, Target
from fuser.cli.main import run as run_command
from fuser.errors import UsageError
from fuser.frontends.onnx import model as onnx_models
from fuser.partition import partition
from fuser.pipeline import tuning
from fuser.pipeline.kernels import emit_programs
from fuser.pipeline.plan_cache import SCHEDULES
from fuser.runtime.cache import KernelCache
from fuser.runtime.plan import Plan
from fuser.tilegen.candidates import MAX_CANDIDATES, candidates
from fuser.tilegen.emit.contraction import matmul_of
from fuser.tilegen.program import TileProgram
from fuser.tilegen.rules import RULES
from fuser.tilegen.rules.common import blocks_of
from fuser.tilegen.rules.cpu import CPU_RULES
from fuser.tilegen.rules.problem import Problem
from fuser.tilegen.schedule import Schedule


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / "cache"
    monkeypatch.setenv("FUSER_CACHE_DIR", str(path))
    return path


def product(m: int = 48, n: int = 256, k: int = 128, dtype: type = np.float32) -> ModelProto:
    """y = x @ w, w constant."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    weights = np.random.default_rng(1).standard_normal((k, n)).astype(dtype)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "product",
        [helper.make_tensor_value_info("x", kind, (m, k))],
        [helper.make_tensor_value_info("y", kind, (m, n))], [numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def lookup() -> ModelProto:
    """y = exp of rows of a table of 3, by index."""
    table = np.random.default_rng(2).standard_normal((3, 64)).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "i"], ["x"]), helper.make_node("Exp", ["x"], ["y"])
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "lookup", [helper.make_tensor_value_info("i", TensorProto.INT64, (500,))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (500, 64))],
        [numpy_helper.from_array(table, "table")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def program_of(model: ModelProto, target: Target) -> TileProgram:
    graph = onnx_models.open_model(model).graph({})
    (program,) = emit_programs(partition(graph, target), target)
    return program


def with_bad_rule(monkeypatch: pytest.MonkeyPatch, measured: bool = False) -> None:
    """Products on CPUs by register tiles of one row and one vector, in no order for caches."""

    def bad(target: Target, problem: Problem) -> Schedule:
        return blocks_of(m=1, n=16, k=problem.k, reason="bad on purpose")

    monkeypatch.setitem(RULES, "cpu", replace(CPU_RULES, matmul=bad))
    race_by_rows(monkeypatch, measured)


def race_by_rows(monkeypatch: pytest.MonkeyPatch, measured: bool = False) -> None:
    """A kernel takes as long as it has tiles along the rows, whatever a clock says of it. measured:
    the race, which takes seconds, is run nevertheless."""
    rows: list[float] = []
    program, race = tuning.timed_program, tuning.race

    def noted(one: Any, *rest: Any) -> Any:
        rows.append(dict(one.kernel.schedule.blocks)["m"])
        return program(one, *rest)

    def raced(plans: Any, feeds: Any) -> list[list[float]]:
        assert not measured or len(race(plans, feeds)) == len(plans)
        assert len(plans) == len(rows)
        found = [[1 / size] * 6 for size in rows]
        rows.clear()
        return found

    monkeypatch.setattr(tuning, "timed_program", noted)
    monkeypatch.setattr(tuning, "race", raced)


def feeds_of(model: ModelProto) -> dict[str, np.ndarray]:
    return onnx_models.random_feeds(onnx_models.open_model(model))


# candidates ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [SM_90A, SM_80, X86_64_V4], ids=lambda t: t.arch)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_candidates_of_products(target: Target, dtype: type) -> None:
    """A few, all different, none the rules' own, of several tiles."""
    program = program_of(product(2048, 2048, 2048, dtype), target)
    own = program.kernel.schedule
    found = candidates(program, target, matmul_of(program.region, target))
    assert 3 <= len(found) <= MAX_CANDIDATES
    shown = [str(schedule.to_dict()) for schedule in found]
    assert len(set(shown)) == len(shown) and str(own.to_dict()) not in shown
    tiles = {(s.block("m"), s.block("n")) for s in found}
    assert len(tiles) >= 3 and all(s.block("k") == own.block("k") for s in found)
    if target is SM_90A and dtype is np.float16:
        assert any(s.persistent for s in found) and any(
            s.consumer_groups == 2 for s in [own, *found]
        )


@pytest.mark.parametrize("m, n, k", [(2304, 1024, 256), (320, 512, 1024)])
def test_cut_tiles_and_whole_ones_are_candidates(m: int, n: int, k: int) -> None:
    """Of a product whose tiles are no whole turns, or few; each is one of the candidates, or the
    rules' own schedule."""
    program = program_of(product(m, n, k, np.float16), SM_90A)
    found = candidates(program, SM_90A, matmul_of(program.region, SM_90A))
    shared = {s.stream_k for s in (program.kernel.schedule, *found)}
    assert shared == {0, 1}


@pytest.mark.parametrize("target", [SM_90A, SM_80], ids=lambda t: t.arch)
def test_candidates_compile_for_gpus(target: Target) -> None:
    model = product(1024, 1024, 1024, np.float16)
    program = program_of(model, target)
    cut = partition(onnx_models.open_model(model).graph({}), target)
    compiled = 0
    for schedule in candidates(program, target, matmul_of(program.region, target)):
        twin = replace(program, region=cut.regions[0])
        other = tuning.emitted(cut, twin, target, schedule, verify=True)
        if other is not None:
            assert other.kernel.schedule == schedule
            assert compile_kernel(other.kernel, target).code
            compiled += 1
    assert compiled >= 4


def test_neighbours_of_other_kernels() -> None:
    program = program_of(lookup(), SM_90A)
    found = candidates(program, SM_90A)
    assert found and all(schedule != program.kernel.schedule for schedule in found)
    blocks = dict(program.kernel.schedule.blocks)
    for schedule in found:
        moved = [n for n, size in schedule.blocks if blocks[n] != size]
        assert len(moved) + (schedule.warps != program.kernel.schedule.warps) == 1


# decisions ----------------------------------------------------------------------------------------


def test_ties_keep_the_rules() -> None:
    rule = [1.0, 1.01, 1.0, 1.02, 1.0, 1.0]
    assert tuning.decide([rule]) == (0, 1.0)
    assert tuning.decide([rule, [t * 0.98 for t in rule]]) == (0, 1.0)
    assert tuning.decide([rule, [0.5, 1.5, 0.5, 1.5, 0.5, 0.5]]) == (0, 1.0)  # not in every turn
    assert tuning.decide([rule, [0.5]])[0] == 0  # given up after one turn
    best, gain = tuning.decide([rule, [0.8] * 6, [0.5] * 5 + [3.0], [0.6] * 6])
    assert best == 2 and gain == pytest.approx(2.0)


def test_a_bad_choice_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tile of a row costs several times what the candidates do."""
    with_bad_rule(monkeypatch, measured=True)
    model = product()
    plain = fuser.compile(model, device="cpu", threads=1)
    assert plain.report().tuned == ()
    tuned = fuser.compile(model, device="cpu", threads=1, tune=True)
    (found,) = tuned.report().tuned
    assert found.changed and not found.remembered and found.gain > 1.5 and found.candidates >= 3
    assert found.rule["block_m"] == 1 < found.chosen["block_m"]
    assert tuned.report().regions[0].schedule == found.chosen
    assert "block_m 1 -> " in str(found) and "times as fast" in str(found)
    feeds = feeds_of(model)
    expected = onnx_models.reference(onnx_models.open_model(model), feeds)["y"]
    np.testing.assert_allclose(tuned.run(feeds)["y"], expected, rtol=1e-4, atol=1e-3)


def test_what_is_remembered_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    with_bad_rule(monkeypatch)
    model = product()
    (first,) = fuser.compile(model, device="cpu", threads=1, tune=True).report().tuned

    def refuse(*_: Any) -> Any:
        raise AssertionError("measured again")

    monkeypatch.setattr(tuning, "measured_choice", refuse)
    for tune in (False, True):  # later compiles use the winner, asked to tune or not
        (again,) = fuser.compile(model, device="cpu", tune=tune).report().tuned
        assert again == replace(first, remembered=True)
    monkeypatch.setenv("FUSER_CACHE", "0")
    assert fuser.compile(model, device="cpu").report().tuned == ()


def test_kept_choices_are_remembered_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is said of them by compiles that do not tune."""
    monkeypatch.setattr(tuning, "race", lambda plans, feeds: [[1.0] * 6 for _ in plans])
    model = product(64, 64, 64)
    (kept,) = fuser.compile(model, device="cpu", tune=True).report().tuned
    assert not kept.changed and kept.candidates > 0 and kept.gain == 1
    assert "the rules' schedule is kept" in str(kept)
    assert fuser.compile(model, device="cpu").report().tuned == ()
    (again,) = fuser.compile(model, device="cpu", tune=True).report().tuned
    assert again.remembered


def test_wrong_candidates_are_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tuning, "agrees", lambda *_: False)
    with caplog.at_level(logging.WARNING, "fuser"):
        plan = fuser.compile(product(64, 64, 64), device="cpu", tune=True)
    (found,) = plan.report().tuned
    assert not found.changed and found.candidates == 0
    assert "is wrong and is not used" in caplog.text


def test_schedules_are_stored_whole() -> None:
    schedule = Schedule(
        (("m", 128), ("k", 64)), warps=8, stages=4, group=8, persistent=True, cluster=1,
        neighbours=(2, 1), stream_k=1, reason="tuned", consumer_groups=2,
    )  # fmt: skip
    record = json.loads(json.dumps(asdict(schedule)))
    assert tuning.schedule_of(record) == schedule
    for broken in ({"warps": 0}, {"neighbours": [2, -1]}, {"group": "8"}, {"consumer_groups": 0},
                   {"stream_k": -1}, {"stream_k": 9}):  # fmt: skip
        with pytest.raises((ValueError, TypeError)):
            tuning.schedule_of({**record, **broken})


def test_agreement() -> None:
    target, expected = host_target(), {"y": np.ones(100, np.float32)}
    assert tuning.agrees({"y": expected["y"] * np.float32(1 + 1e-6)}, expected, target)
    assert not tuning.agrees({"y": expected["y"] * np.float32(1.01)}, expected, target)
    assert not tuning.agrees({"y": np.array([1, 2])}, {"y": np.array([1, 3])}, target)


# the cache ----------------------------------------------------------------------------------------


def test_damaged_entries_are_reported_and_ignored(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with_bad_rule(monkeypatch)
    model, target = product(64, 64, 64), host_target()
    material = tuning.tuning_material(program_of(model, target).kernel, target)
    cache = KernelCache(folder)
    good = Schedule((("m", 4), ("n", 16), ("k", 64)))
    tuning.remember(cache, material, tuning.Choice(good, 2.0, 3, measured=True))
    (found,) = fuser.compile(model, device="cpu").report().tuned
    assert found.chosen["block_m"] == 4 and found.remembered
    nonsense: Sequence[dict[str, Any]] = [
        {}, {"schedule": 7}, {"schedule": {"blocks": [["m", 4]], "warps": -1}, "gain": 1},
        {"schedule": {"no": 1}, "gain": 1, "candidates": 0},
    ]  # fmt: skip
    for header in nonsense:
        caplog.clear()
        cache.put_bytes(material, header, b"")
        with caplog.at_level(logging.WARNING, "fuser"):
            assert fuser.compile(model, device="cpu").report().tuned == ()
        assert "a remembered schedule is ignored" in caplog.text
    caplog.clear()
    cache.put_bytes(material, {"schedule": None, "gain": 1, "candidates": 0}, b"")
    cache._path(material).write_bytes(b"FUSERK1\nnot what it was")
    with caplog.at_level(logging.WARNING, "fuser"):
        assert fuser.compile(model, device="cpu").report().tuned == ()
    assert "a remembered schedule is ignored: it is damaged" in caplog.text


def test_schedules_that_no_longer_fit(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, target = product(64, 64, 64), host_target()
    material = tuning.tuning_material(program_of(model, target).kernel, target)
    choice = tuning.Choice(Schedule((("m", 4), ("n", 16))), 2.0, 3, measured=True)
    tuning.remember(KernelCache(folder), material, choice)
    monkeypatch.setattr(tuning, "emitted", lambda *_, **__: None)
    with caplog.at_level(logging.WARNING, "fuser"):
        assert fuser.compile(model, device="cpu").report().tuned == ()
    assert "does not fit" in caplog.text


def test_without_entries_no_kernel_is_looked_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(tuning, "tuning_material", lambda *_: pytest.fail("looked up"))
        assert fuser.compile(product(64, 64, 64), device="cpu").report().tuned == ()
    with_bad_rule(monkeypatch)
    (first,) = fuser.compile(product(), device="cpu", threads=1, tune=True).report().tuned
    mark = KernelCache(folder)._path(SCHEDULES)
    mark.write_bytes(b"damaged")  # what it stands for is still there
    (again,) = fuser.compile(product(), device="cpu").report().tuned
    assert again.chosen == first.chosen and mark.read_bytes() != b"damaged"


@pytest.mark.filterwarnings("ignore:.*treespec.*")
def test_pytorch_modules() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(64, 64).eval()
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    compiled = fuser.compile(module, example_inputs=[x], tune=True)
    (found,) = compiled.report(x).tuned
    assert found.candidates > 0 and not found.remembered
    torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-5)


def test_other_targets_and_kernels_have_entries_of_their_own() -> None:
    target = host_target()
    kernel = program_of(product(64, 64, 64), target).kernel
    other = program_of(product(64, 64, 128), target).kernel
    found = {
        tuning.tuning_material(kernel, target), tuning.tuning_material(other, target),
        tuning.tuning_material(kernel, replace(target, units=target.units + 1)),
    }  # fmt: skip
    assert len(found) == 3
    assert tuning.tuning_material(program_of(product(64, 64, 64), target).kernel, target) in found


# ends ---------------------------------------------------------------------------------------------


def test_plans_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stored plan of a file gives way to the tuned one, which says that it is."""
    with_bad_rule(monkeypatch)
    path = tmp_path / "product.onnx"
    path.write_bytes(product().SerializeToString())
    assert fuser.compile(path, device="cpu", threads=1).report().tuned == ()
    (first,) = fuser.compile(path, device="cpu", threads=1, tune=True).report().tuned
    assert first.changed
    (stored,) = fuser.compile(path, device="cpu").report().tuned
    assert (stored.chosen, stored.gain) == (first.chosen, first.gain)


def test_the_command_line_says_what_was_tuned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with_bad_rule(monkeypatch)
    path = tmp_path / "product.onnx"
    path.write_bytes(product().SerializeToString())
    arguments = ["run", str(path), "--device", "cpu", "--threads", "1", "--compare", "reference"]
    assert run_command([*arguments, "--tune"]) == 0
    out = " ".join(capfd.readouterr().out.split())
    assert "tuned" in out and "block_m 1 -> " in out and "times as fast (of " in out
    assert run_command(["explain", str(path), "--device", "cpu"]) == 0
    out = " ".join(capfd.readouterr().out.split())
    assert "kernels with measured schedules" in out and "(remembered)" in out
    assert run_command(["explain", str(path), "--device", "cpu", "--kernel", "0"]) == 0
    assert "times as fast as the rules' (" in capfd.readouterr().out
    assert run_command(["dump", str(path), "--device", "cpu"]) == 0
    assert "reason = tuned" in " ".join(capfd.readouterr().out.split())


def test_open_sizes_are_not_tuned() -> None:
    with pytest.raises(UsageError, match="kernels for many sizes are not tuned"):
        fuser.compile(product(), device="cpu", dynamic=True, tune=True)


def test_indices_stay_in_their_tables() -> None:
    """Inputs of kernels whose indices are data are zeros: the table has three rows."""
    program = program_of(lookup(), host_target())
    assert tuning.has_lookups(program.kernel)
    assert not tuning.has_lookups(program_of(product(64, 64, 64), host_target()).kernel)
    plan = fuser.compile(lookup(), device="cpu", tune=True)
    assert len(plan.report().tuned) == 1
    feeds = {"i": np.arange(500) % 3}
    expected = onnx_models.reference(onnx_models.open_model(lookup()), feeds)["y"]
    np.testing.assert_allclose(plan.run(feeds)["y"], expected, rtol=1e-5)


def test_launches_have_memory_of_their_own(folder: Path) -> None:
    """Rotated inputs: as many sets as exceed the caches, within reason."""
    target = host_target()
    program = program_of(product(64, 64, 64), target)
    assert tuning.launches(program, target) == tuning.MOST_LAUNCHES
    arrays = tuning.Arrays(3)
    (kernel,) = tuning._compiled([program], target, KernelCache(folder), None)
    assert kernel is not None
    timed = tuning.timed_program(program, kernel, target, arrays, 3)
    assert len(timed.launches) == 3 and len(timed.constants) == 3
    places = [launch.arguments for launch in timed.launches]
    assert len({ref for refs in places for ref in refs}) == sum(map(len, places))
    with Plan(timed, threads=1) as plan:
        names = [spec.name for spec in plan.inputs]
        outputs = plan.run(dict(zip(names, arrays.feeds, strict=True)))
    first, *others = outputs.values()
    assert np.abs(first).max() > 0 and all(np.array_equal(first, other) for other in others)
