"""Kernels that take too long, or that no back end has: their regions are taken apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

import fuser
from fuser.backend import workers
from fuser.base import limits
from fuser.base.config import Config
from fuser.base.limits import Limits, check_time, kernel_time, limited
from fuser.base.target import X86_64_V3
from fuser.cli.main import run
from fuser.errors import CompileError, CompileTimeoutError, LoweringError
from fuser.partition import partition
from fuser.partition.region import Region
from fuser.partition.ungroup import is_divisible
from fuser.pipeline import kernels
from fuser.pipeline.kernels import emit_programs
from fuser.report.partition_text import explain
from fuser.runtime.plan import Plan
from fuser.tilegen import emit as emitters
from fuser.tilegen.ir import Kernel
from tests.runtime import fake_compiler
from tests.test_growth import chain, imported

X = np.random.default_rng(7).uniform(-1, 1, (5, 7)).astype(np.float32)
SLOW = "its kernel took more than 1 s to compile"


@pytest.fixture
def choosy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Workers that take their time, or refuse, from a number of maps in a kernel on. Gives the file
    with the names of what they compiled."""
    log = tmp_path / "log"
    monkeypatch.setenv("FUSER_CACHE_DIR", str(tmp_path / "cache"))

    def start(what: str, most: int, seconds: float = 100) -> Path:
        workers.shutdown()
        log.write_text("")
        name = fake_compiler.__name__
        monkeypatch.setattr(
            workers._pool, "entry", f"from {name} import main_choosy; main_choosy()", raising=False
        )
        monkeypatch.setenv(fake_compiler.CHOOSY, f"{what}:{most}:{seconds}:{log}")
        return log

    yield start
    workers.shutdown()


def sines(links: int, inputs: int = 1) -> onnx.ModelProto:
    """Chains of links, each of which is one map."""
    nodes = [
        f"t{n}_{i + 1} = Sin(t{n}_{i})" if i else f"t{n}_1 = Sin(x{n})"
        for n in range(inputs)
        for i in range(links + n)
    ]
    ins = ", ".join(f"float[5, 7] x{n}" for n in range(inputs))
    outs = ", ".join(f"float[5, 7] t{n}_{links + n}" for n in range(inputs))
    return onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 20]> g ({ins}) => ({outs}) {{ {" ".join(nodes)} }}'
    )


def check(plan: Plan, links: int) -> None:
    expected = X
    for _ in range(links):
        expected = np.sin(expected)
    (found,) = plan.run({"x0": X}).values()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_slow_kernel_becomes_several(
    choosy: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(sines(20).SerializeToString())
    log = choosy("spin", 8)
    plan = fuser.compile(path, device="cpu", limits=Limits(kernel_seconds=1))
    check(plan, 20)
    assert plan.launches == 4
    assert plan.report().fallbacks == (f"map and map are separate kernels: {SLOW} (3 times)",)
    compiled = log.read_text().splitlines()
    assert len(compiled) == len(set(compiled))

    # What is known is not tried again, and shown.
    log.write_text("")
    again = fuser.compile(sines(20), device="cpu", limits=Limits(kernel_seconds=1))
    assert again.launches == 4 and log.read_text() == ""
    command = ["explain", str(path), "--device", "cpu", "--max-kernel-seconds", "1"]
    assert run(command) == 0
    shown = capsys.readouterr().out
    assert "4 regions" in shown and "slow-kernel" in shown and SLOW in shown

    # More time is another matter, also for the plan in the cache.
    choosy("spin", 8, 1.1)
    plan = fuser.compile(path, device="cpu", limits=Limits(kernel_seconds=60))
    check(plan, 20)
    assert plan.launches == 1 and not plan.report().fallbacks
    assert run(command) == 0  # the kernel is there now, however long it took
    assert "1 region, " in capsys.readouterr().out


@pytest.mark.parametrize("cache", ["0", "1"])
def test_kernels_that_are_compiled_stay(
    cache: str, choosy: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is slow, nothing is compiled twice."""
    monkeypatch.setenv("FUSER_CACHE", cache)
    log = choosy("spin", 8)
    model = sines(6, inputs=3)
    plan = fuser.compile(model, device="cpu", limits=Limits(kernel_seconds=0.5))
    assert plan.launches > 1
    compiled = log.read_text().splitlines()
    assert len(compiled) == len(set(compiled))
    found = plan.run({f"x{n}": X for n in range(3)})
    for n in range(3):
        expected = X
        for _ in range(6 + n):
            expected = np.sin(expected)
        np.testing.assert_allclose(found[f"t{n}_{6 + n}"], expected, rtol=1e-5)


def test_one_node_may_take_its_time(choosy: Callable[..., Path]) -> None:
    choosy("spin", 0, 0.5)
    plan = fuser.compile(sines(1), device="cpu", limits=Limits(kernel_seconds=0.3))
    check(plan, 1)
    assert plan.launches == 1 and not plan.report().fallbacks


def test_no_limit_on_kernels(choosy: Callable[..., Path]) -> None:
    choosy("spin", 0, 0.5)
    plan = fuser.compile(sines(4), device="cpu", limits=Limits(kernel_seconds=0))
    check(plan, 4)
    assert plan.launches == 1


def test_what_the_back_end_cannot_lower_becomes_several(
    choosy: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    choosy("refuse", 8)
    for _ in range(2):
        plan = fuser.compile(sines(12), device="cpu")
        check(plan, 12)
        assert plan.launches > 1
    choosy("refuse", 0)
    monkeypatch.setenv("FUSER_CACHE", "0")
    with pytest.raises(CompileError, match="too many maps for one kernel"):
        fuser.compile(sines(12), device="cpu")


def test_a_pass_that_cannot_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """After emission, in this process."""
    real = kernels.run_passes

    def passes(kernel: Kernel, verify: bool = False) -> None:
        if sum(op.opcode == "map" for op in kernel.walk()) > 3:
            raise LoweringError("too long for a pass")
        real(kernel, verify=verify)

    monkeypatch.setattr(kernels, "run_passes", passes)
    cut = partition(imported(sines(5)), X86_64_V3)
    assert len(emit_programs(cut, X86_64_V3)) == 5
    assert {refusal.code for refusal in cut.refusals} == {"not-emitted"}
    assert "too long for a pass" in explain(cut)


def test_emission_has_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    real, now = emitters.emit, [0.0]

    def emit(region: Region, *rest: object) -> object:
        while len(region.nodes) > 2:
            now[0] += 1
            check_time()
        return real(region, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(emitters, "emit", emit)
    clock = SimpleNamespace(monotonic=lambda: now[0], thread_time=lambda: now[0])
    monkeypatch.setattr(limits, "time", clock)
    with limited(Limits(kernel_seconds=0.1)):
        cut = partition(imported(sines(8)), X86_64_V3)
        programs = emit_programs(cut, X86_64_V3)
    assert [len(program.region.nodes) for program in programs] == [2, 2, 2, 2]
    assert {(r.code, r.reason) for r in cut.refusals} == {
        ("slow-kernel", "its kernel took more than 0.1 s to compile")
    }


def test_emission_looks_at_the_time() -> None:
    """Without anybody's help: a budget of nothing is over at once, wherever the work is."""
    with limited(Limits(kernel_seconds=1e-9)):
        cut = partition(imported(chain("swish", 4)), X86_64_V3)
        programs = emit_programs(cut, X86_64_V3)
    assert len(programs) > 4
    assert not any(is_divisible(program.region) for program in programs)


@pytest.mark.parametrize("kind", ["swish", "square", "where"])
def test_without_any_time_every_operator_is_a_kernel(kind: str) -> None:
    """Nothing is made up here: the real workers, and a model whose every region is too slow."""
    model = chain(kind, 5)
    plan = fuser.compile(model, device="cpu", limits=Limits(kernel_seconds=1e-6))
    whole = fuser.compile(model, device="cpu")
    assert plan.launches > 10 > whole.launches
    assert plan.report().fallbacks and not whole.report().fallbacks
    (found,), (expected,) = plan.run({"x": X}).values(), whole.run({"x": X}).values()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_limit_is_read_from_the_environment() -> None:
    config = Config.from_environment({"FUSER_MAX_KERNEL_SECONDS": "3"})
    assert config.limits == Limits(kernel_seconds=3)


def test_kernel_time() -> None:
    with limited(Limits(kernel_seconds=1e-9)):
        check_time()
        with pytest.raises(CompileTimeoutError, match="--max-kernel-seconds"), kernel_time():
            check_time()
        check_time()
    with limited(Limits(kernel_seconds=0)), kernel_time():
        check_time()
