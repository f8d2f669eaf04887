"""What a device is told of a plan: its threads; and that there is no other device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import fuser
from fuser.backend.cores import available_cores
from fuser.backend.cpu import host_target
from fuser.backend.workers import CompileJob, material_of
from fuser.base.target import SM_90A, Target
from fuser.errors import DeviceError, UsageError
from fuser.frontends.onnx.host import Segmented
from fuser.frontends.onnx.model import open_model
from fuser.pipeline.devices import choose_target, parse_device, plan_threads
from fuser.pipeline.dynamic import DynamicPlan
from fuser.pipeline.options import CompileOptions
from fuser.runtime.plan import Plan
from fuser.runtime.program import Program
from fuser.tilegen.emit import emit
from models import TINY, build, example_feeds
from tests.interpreted import one_region
from tests.tilegen_emit.graphs import Model


def test_the_target_knows_the_threads_of_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """As asked for, else by FUSER_THREADS, else one a core: as the plan will run."""
    monkeypatch.delenv("FUSER_THREADS", raising=False)
    host = host_target()
    assert choose_target("cpu") == replace(host, threads=available_cores())
    assert choose_target("cpu", 3) == replace(host, threads=3)
    monkeypatch.setenv("FUSER_THREADS", "5")
    assert plan_threads(None) == choose_target("cpu").workers == 5
    assert plan_threads(2) == choose_target("cpu", 2).workers == 2
    assert host.workers == host.units and SM_90A.workers == SM_90A.units


def test_dynamic_plans_hold_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSER_THREADS", "3")
    model = build("mlp", **TINY["mlp"])
    plan = DynamicPlan(open_model(model), device="cpu")
    one = plan.plan(example_feeds(model, {"batch": 40}))
    assert one.device_name.endswith("3 threads)") and one.program.target.threads == 3


def test_code_is_shared_by_all_thread_counts() -> None:
    """A kernel has one entry in the cache, for whatever threads it was written."""
    m = Model()
    m.output(m.dot(m.input(9, 40), m.weight(40, 50), (1, 0)))
    cut = one_region(m.graph, "contraction")
    target = host_target()
    (program,) = emit(cut.regions[0], cut, target)
    materials = {
        material_of(CompileJob(program.kernel, replace(target, threads=n))) for n in (0, 1, 7)
    }
    assert len(materials) == 1


# a device that there is not -----------------------------------------------------------------------


def _file(folder: Path) -> Path:
    path = folder / "m.onnx"
    onnx.save(build("mlp", **TINY["mlp"]), path)
    return path


def _twice(x: Any) -> Any:
    return x + x


def _torch(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    fuser.compile(torch.nn.ReLU(), device="tpu")  # type: ignore[call-overload]


def _torch_backend(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    options = {"device": "tpu"}
    compiled = torch.compile(torch.nn.ReLU(), backend="fuser", options=options)
    try:
        compiled(torch.ones(2))
    except torch._dynamo.exc.BackendCompilerFailed as error:
        raise error.inner_exception from error


_DOORS: dict[str, Callable[[Path], object]] = {
    "compile a file": lambda f: fuser.compile(_file(f), device="tpu"),  # type: ignore[call-overload]
    "compile a proto": lambda f: fuser.compile(onnx.load(_file(f)), device="tpu"),  # type: ignore[call-overload]
    "compile for many sizes": lambda f: fuser.compile(  # type: ignore[call-overload]
        _file(f), device="tpu", dynamic=True
    ),
    "session": lambda f: fuser.InferenceSession(_file(f), device="tpu"),  # type: ignore[arg-type]
    "host": lambda f: Segmented(onnx.load(_file(f)), CompileOptions(device="tpu")),  # type: ignore[arg-type]
    "jit": lambda f: fuser.jit(_twice, device="tpu"),  # type: ignore[arg-type]
    "trace": lambda f: fuser.trace(_twice, np.ones(2), device="tpu"),  # type: ignore[arg-type]
    "torch": _torch,
    "torch.compile": _torch_backend,
    "target": lambda f: choose_target("tpu"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("door", _DOORS)
def test_a_device_that_there_is_not(
    door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an error at every door, before any work, that lists what there is."""
    for cached in ("0", "1"):
        monkeypatch.setenv("FUSER_CACHE", cached)
        with pytest.raises(UsageError, match=r"no device 'tpu'.*one of auto, cpu, cuda"):
            _DOORS[door](tmp_path)


# names of devices and threads ---------------------------------------------------------------------


def test_names_of_devices() -> None:
    for name, meant in (
        ("cpu", ("cpu", 0)), ("CPU", ("cpu", 0)), ("Cuda", ("cuda", 0)), ("cuda:0", ("cuda", 0)),
        ("cuda:12", ("cuda", 12)), ("auto", ("auto", 0)),
    ):  # fmt: skip
        assert parse_device(name) == meant
    for name in ("gpu", "GPU:1"):
        with pytest.raises(UsageError, match=f"no device '{name}'.*did you mean 'cuda"):
            parse_device(name)
    for name in ("cuda:x", "cuda:", "cpu:1", "", "cuda:-1", "1"):
        with pytest.raises(UsageError, match=r"no device.*one of auto, cpu, cuda, cuda:N"):
            parse_device(name)


def test_a_device_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    assert parse_device(torch.device("cuda", 1)) == ("cuda", 1)
    assert parse_device(torch.device("cpu")) == ("cpu", 0)


def test_plans_for_another_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuda:1 is the second GPU: its target is asked for, and an error says that there is none."""
    from fuser.runtime import cuda

    asked = []

    def device_target(ordinal: int = 0) -> Target:
        asked.append(ordinal)
        if ordinal > 1:
            raise DeviceError(f"device {ordinal} was asked for, the driver sees 2")
        return SM_90A

    monkeypatch.setattr(cuda, "device_target", device_target)
    assert choose_target("cuda:1") is SM_90A and asked == [1]
    with pytest.raises(DeviceError, match="device 2 was asked for"):
        choose_target("cuda:2")


@pytest.mark.parametrize("cached", ["0", "1"])
def test_a_plan_is_made_on_the_gpu_that_was_named(
    cached: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[object, int]] = []

    class Recorded(Exception):
        pass

    def executor(program: Program, threads: object, device: int, like: object = None) -> None:
        made.append((program.target, device))
        raise Recorded

    monkeypatch.setenv("FUSER_CACHE", cached)
    monkeypatch.setattr("fuser.runtime.cuda.device_target", lambda ordinal=0: SM_90A)
    monkeypatch.setattr("fuser.runtime.plan._executor", executor)
    path = _file(tmp_path)
    for _ in range(2):  # compiled, and from the cache
        with pytest.raises(Recorded):
            fuser.compile(path, device="cuda:1")
    assert made == [(SM_90A, 1)] * 2


@pytest.mark.parametrize("threads", [-1, 2.0, "2"])
def test_numbers_of_threads_that_are_none(threads: Any, tmp_path: Path) -> None:
    path = _file(tmp_path)
    doors: list[Callable[[], object]] = [
        lambda: fuser.compile(path, device="cpu", threads=threads),
        lambda: fuser.compile(path, device="cpu", threads=threads, dynamic=True),
        lambda: fuser.compile(onnx.load(path), device="cpu", threads=threads),
        lambda: fuser.jit(_twice, threads=threads),
        lambda: fuser.InferenceSession(path, threads=threads),
        lambda: Plan.load(plan_file, threads=threads),
    ]
    plan_file = tmp_path / "plan.fuser"
    fuser.compile(path, device="cpu", threads=0).save(plan_file)
    for door in doors:
        with pytest.raises(UsageError, match="no number of threads"):
            door()
