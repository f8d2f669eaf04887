"""`fuser.load`: whatever was saved, ready to run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fuser.errors import ArgumentTypeError, CompilerAbsentError, UsageError
from fuser.runtime import container
from fuser.runtime.plan import Plan

if TYPE_CHECKING:
    from fuser.frontends.torch.saved import SavedModule
    from fuser.pipeline.dynamic import DynamicPlan
    from fuser.runtime.sharded import ShardedPlan

MODEL_SUFFIXES = (".onnx", ".onnxtxt", ".onnxtext", ".pt2")
"""Suffixes of files that hold no plan."""


def load(
    path: Path | str, *, threads: int | None = None, device: int = 0,
    weights: Path | str | None = None,
) -> Plan | DynamicPlan | SavedModule | ShardedPlan:  # fmt: skip
    """What `save` of a `Plan`, a `DynamicPlan`, a `ShardedPlan` (a folder) or a compiled PyTorch
    model wrote. It holds native code: trust it as you trust a program. threads: of a CPU; device:
    which GPU; weights: as for `Plan.load`.

    Raises UsageError (no such file; a kind that fuser-runtime has not), InvalidModelError (no whole
    plan), or DeviceError.
    """
    if not isinstance(path, str | os.PathLike):
        raise ArgumentTypeError(
            f"fuser.load takes the path of what was saved, not a {type(path).__name__}"
        )
    if os.path.isdir(path):
        from fuser.runtime.sharded import ShardedPlan

        return ShardedPlan.load(path, threads=threads)
    try:
        with open(path, "rb") as file:
            kind = file.read(container.MAGIC_BYTES)[:6]
    except OSError as error:
        raise UsageError(f"cannot read the plan {path}: {error.strerror}") from error
    if kind == b"FUSERT":
        with all_of_fuser(f"{path} is a plan of a PyTorch model"):
            from fuser.frontends.torch import saved
        return saved.load(path, threads=threads, device=device)
    if kind == b"FUSERD":
        from fuser.pipeline.dynamic import DynamicPlan

        return DynamicPlan.load(path, threads=threads, device=device)
    if not kind.startswith(b"FUSER") and Path(path).suffix in MODEL_SUFFIXES:
        raise UsageError(
            f"{path} is a model, and what is loaded is a plan",
            hint="where fuser-compiler is installed, fuser.compile(model) runs it, and"
            " fuser compile MODEL -o PLAN makes a plan of it",
        )
    return Plan.load(path, threads=threads, device=device, weights=weights)


@contextlib.contextmanager
def all_of_fuser(why: str) -> Iterator[None]:
    """Imports that the distribution fuser-runtime lacks are a CompilerAbsentError in it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "fuser":
            raise
        raise CompilerAbsentError(why) from error
