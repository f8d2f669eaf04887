"""Shared by all tests: a kernel cache of their own, goldens, seeds, and GPU tests that skip."""

from __future__ import annotations

import gc
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuser.errors import FuserError
from tests.golden import Golden
from tests.poison import poisoned
from tests.sampling import is_whole_run, left_out


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="accept what golden tests find")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compares text with files under tests/golden."""
    return Golden(bool(request.config.getoption("--update-golden")))


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that are the same for a test in every run."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if is_whole_run(config):
        dropped = set(left_out(items))
        config.hook.pytest_deselected(items=[item for item in items if item in dropped])
        items[:] = [item for item in items if item not in dropped]
    on_gpu = [item for item in items if item.get_closest_marker("cuda")]
    reason = _why_no_gpu() if on_gpu else ""
    if reason:
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason=f"no NVIDIA GPU: {reason}"))


def pytest_collection_finish() -> None:
    """Modules and items live as long as the session: no collection looks at them again."""
    gc.collect()
    gc.freeze()


def _why_no_gpu() -> str:
    try:
        from fuser.runtime import cuda

        cuda.device_target()
    except (FuserError, ImportError) as error:
        return str(error)
    return ""


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Kernels are compiled by this version, once a session, and never kept for the user."""
    folder = tmp_path_factory.mktemp("kernels")
    with pytest.MonkeyPatch.context() as patch:
        kept = ("FUSER_WORKERS", "FUSER_THREADS")
        for name in [key for key in os.environ if key.startswith("FUSER_") and key not in kept]:
            patch.delenv(name)
        patch.setenv("FUSER_CACHE_DIR", str(folder))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def unmeasured_guards() -> Iterator[None]:
    """PyTorch measures the guards of each program that it compiles, for a log, with the caches of
    the processor flushed: that takes as long as the rest of a small compile."""
    with pytest.MonkeyPatch.context() as patch:
        if "torch._dynamo.guards" in sys.modules:
            name = "torch._dynamo.guards.profile_guard_manager"
            patch.setattr(name, lambda *_: 0.0, raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def poison() -> Iterator[None]:
    """Plans run in poisoned memory: what no kernel writes shows."""
    with poisoned():
        yield


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """`models.exports.export`, which takes seconds: each model once for all processes of a run."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent

    def call(name: str, exporter: str, dtype: str = "float32", dynamic: bool = False) -> Any:
        import onnx

        from models.exports import export

        path = folder / f"{name}-{exporter}-{dtype}-{dynamic}.onnx"
        if not path.exists():
            part = path.with_suffix(f".{os.getpid()}")
            onnx.save(export(name, exporter, dtype=dtype, dynamic=dynamic), part, format="protobuf")
            part.replace(path)  # whole, or not there
        return onnx.load(path)

    return call
