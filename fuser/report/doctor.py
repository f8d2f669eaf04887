"""Examine this machine: what fuser needs, what it found."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

from fuser.errors import FuserError

NEEDED = ("onnx", "numpy", "llvmlite", "ml_dtypes", "click", "platformdirs")


@dataclass(frozen=True)
class Check:
    """One finding. An optional check that is not ok is a note, not a failure."""

    name: str
    text: str
    ok: bool = True
    optional: bool = False


def examine() -> Iterator[Check]:
    """What is installed and found, in order."""
    yield Check(
        "python", f"{platform.python_version()} on {platform.machine()} {platform.system()}"
    )
    for package in NEEDED:
        try:
            yield Check(package, importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            yield Check(package, f"not installed; pip install {package}", ok=False)
    yield from _cpu()
    yield _gpu()
    assembler = shutil.which("ptxas")
    yield Check(
        "ptxas",
        assembler or "not found; the driver assembles PTX",
        ok=bool(assembler),
        optional=True,
    )
    yield _cache()


def _cpu() -> Iterator[Check]:
    from fuser.backend.cpu import host_target

    try:
        target = host_target()
    except FuserError as error:
        yield Check("cpu", str(error), ok=False)
        return
    yield Check("cpu", f"{target.arch}, {target.units} cores, {target.vector_bits}-bit vectors")


def _gpu() -> Check:
    from fuser.runtime import cuda

    try:
        target = cuda.device_target()
    except FuserError as error:
        return Check("gpu", str(error), ok=False, optional=True)
    return Check("gpu", f"{cuda.device_name()}, {target.arch}, {target.units} multiprocessors")


def _cache() -> Check:
    from fuser.backend.failed_kernels import count
    from fuser.base.config import Config
    from fuser.runtime.cache import KernelCache

    try:
        config = Config.from_environment()
    except FuserError as error:
        return Check("environment", str(error), ok=False)
    if not config.cache:
        return Check("kernel cache", "off (FUSER_CACHE=0)", optional=True)
    cache = KernelCache(config.cache_dir)
    text = str(cache.folder) if cache.enabled else cache.note
    failed = count(cache.failed_folder) if cache.failed_folder is not None else 0
    if failed:
        text += f"; {failed} kernel{'s' * (failed > 1)} failed, see {cache.failed_folder}"
    return Check("kernel cache", text, ok=cache.enabled, optional=True)
