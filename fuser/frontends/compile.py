"""`fuser.compile`: whatever the model is, to what runs it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

import numpy as np

from fuser.base.limits import Limits
from fuser.errors import KeywordError, UsageError, check_keywords
from fuser.graph.numerics import Mode, using
from fuser.pipeline.devices import Device
from fuser.pipeline.fusion import Fusing
from fuser.pipeline.precision import Precision
from fuser.runtime.plan import Plan

if TYPE_CHECKING:
    from onnx import ModelProto

    from fuser.frontends.onnx.hosted import HostedPlan
    from fuser.frontends.onnx.model import Model
    from fuser.frontends.torch.exported import CompiledProgram
    from fuser.frontends.torch.module import CompiledModule
    from fuser.pipeline.dynamic import DynamicPlan
    from fuser.pipeline.options import Progress
    from fuser.pipeline.stateful import StatefulPlan
    from fuser.runtime.sharded import ShardedPlan


class TorchModule(Protocol):
    """What is taken for an `nn.Module` or a `GraphModule`."""

    training: bool

    def forward(self, *args: Any, **kwargs: Any) -> Any: ...


class TorchProgram(Protocol):
    """What is taken for a `torch.export.ExportedProgram`."""

    @property
    def graph_signature(self) -> Any: ...


@overload
def compile(  # type: ignore[overload-overlap]  # no path is a program
    model: str | Path | bytes | ModelProto | Model, *, device: Device = "auto",
    dims: Mapping[str, int] | None = None, values: Mapping[str, np.ndarray] | None = None,
    threads: int | None = None, fusion: Fusing = True, precision: Precision = "model",
    numerics: Mode | None = None, batch_invariant: bool | None = None,
    progress: Progress = ..., limits: Limits | None = None, tune: bool = False,
    host: Literal["error"] = "error",
) -> Plan: ...  # fmt: skip
@overload
def compile(
    model: str | Path | bytes | ModelProto | Model, *, host: Literal["allow"],
    device: Device = "auto", dims: Mapping[str, int] | None = None,
    values: Mapping[str, np.ndarray] | None = None, threads: int | None = None,
    fusion: Fusing = True, precision: Precision = "model", numerics: Mode | None = None,
    batch_invariant: bool | None = None, progress: Progress = ...,
    limits: Limits | None = None, tune: bool = False,
) -> Plan | HostedPlan: ...  # fmt: skip
@overload
def compile(
    model: str | Path | bytes | ModelProto | Model, *, dynamic: Literal[True],
    device: Device = "auto", dims: Mapping[str, int] | None = None,
    threads: int | None = None, fusion: Fusing = True, precision: Precision = "model",
    numerics: Mode | None = None, batch_invariant: bool | None = None,
    progress: Progress = ...,
) -> DynamicPlan: ...  # fmt: skip
@overload
def compile(
    model: str | Path | bytes | ModelProto | Model, *, state: Mapping[str, str] | Literal["auto"],
    device: Device = "auto", dims: Mapping[str, int] | None = None,
    threads: int | None = None, fusion: Fusing = True, precision: Precision = "model",
    numerics: Mode | None = None, batch_invariant: bool | None = None,
    progress: Progress = ...,
) -> StatefulPlan: ...  # fmt: skip
@overload
def compile(
    model: str | Path | bytes | ModelProto | Model, *, devices: int | str, device: Device = "auto",
    dims: Mapping[str, int] | None = None, threads: int | None = None, fusion: Fusing = True,
    precision: Precision = "model", numerics: Mode | None = None,
    batch_invariant: bool | None = None, progress: Progress = ..., limits: Limits | None = None,
) -> ShardedPlan: ...  # fmt: skip
@overload
def compile(
    model: TorchModule, *, example_inputs: Sequence[Any] | None = None, device: Device = "auto",
    threads: int | None = None, fusion: Fusing = True, precision: Precision = "model",
    numerics: Mode | None = None, batch_invariant: bool | None = None,
    freeze: bool = True, tune: bool = False,
) -> CompiledModule: ...  # fmt: skip
@overload
def compile(
    model: TorchProgram, *, example_inputs: Sequence[Any] | None = None, device: Device = "auto",
    threads: int | None = None, fusion: Fusing = True, precision: Precision = "model",
    numerics: Mode | None = None, batch_invariant: bool | None = None,
    freeze: bool = True, tune: bool = False,
) -> CompiledProgram: ...  # fmt: skip
def compile(
    model: Any, *, example_inputs: Sequence[Any] | None = None, device: Device = "auto",
    threads: int | None = None, fusion: Fusing = True, precision: Precision = "model",
    numerics: Mode | None = None, batch_invariant: bool | None = None,
    freeze: bool = True, dynamic: bool = False, tune: bool = False,
    state: Mapping[str, str] | Literal["auto"] | None = None, **options: Any,
) -> Any:  # fmt: skip
    """Compile a model.

    An ONNX model (a path, bytes, a ModelProto) becomes a `Plan`:
    `fuser.frontends.onnx.model.compile` has the other options (dims, values, progress, limits).
    With dynamic=True it becomes a `DynamicPlan`, which runs at any size of the symbolic dims that
    `dims` does not fix.

    With state=, outputs by the inputs that they are in the next run, or "auto" where names or nodes
    of an export say so, it becomes a `StatefulPlan`, which keeps them in memory of its own and
    writes what they grow by in place.

    host="allow" is for operators that no kernel can express (NonMaxSuppression, strings, operators
    of `register_host_op`): a model that has some becomes a `HostedPlan`, which runs them on the
    host and names them. By default they are an error.

    devices: of how many devices an ONNX model is to have the memory and the speed, or which of its
    device configurations to take; it becomes a `ShardedPlan`, which runs a process a device
    (docs/sharding.md).

    A PyTorch model (an `nn.Module`, a `GraphModule`, an `ExportedProgram`) becomes a callable of
    tensors, compiled for the shapes it meets, and for those of `example_inputs` at once. device
    "auto" is then where its tensors are; freeze=False makes its parameters inputs of the kernels.

    precision: what may be rounded: "model", "bf16", "int8w" (docs/python.md).
    numerics: which rewrites may change numbers: "model" (the default), "fast", "strict".
    batch_invariant: whether a row's bits must not depend on how many rows there are
    (docs/numerics.md).
    tune: measure schedules of kernels, and remember the best (pipeline/tuning.py).
    Raises FuserError: UsageError, InvalidModelError, UnsupportedOpError, DeviceError, CompileError.
    """
    with using(numerics, batch_invariant):
        return _compile(
            model, example_inputs, device, threads, fusion, precision, freeze, dynamic, tune,
            state, options,
        )  # fmt: skip


def _compile(
    model: Any, example_inputs: Sequence[Any] | None, device: Device, threads: int | None,
    fusion: Fusing, precision: Precision, freeze: bool, dynamic: bool, tune: bool,
    state: Mapping[str, str] | Literal["auto"] | None, options: dict[str, Any],
) -> Any:  # fmt: skip
    torch_model = not isinstance(model, str | Path | bytes) and _is_torch(model)
    _check_options(torch_model, dynamic, options, example_inputs, freeze, state is not None)
    devices = options.pop("devices", None)
    if devices is not None:
        return _compile_sharded(model, devices, dynamic, tune, state, options, device=device,
                                threads=threads, fusion=fusion, precision=precision)  # fmt: skip
    host = options.pop("host", "error")
    if host != "error":
        from fuser.frontends.onnx.hosted import compile_on_host

        return compile_on_host(
            model, host=host, device=device, threads=threads, fusion=fusion, precision=precision,
            tune=tune, **options,
        )  # fmt: skip
    if isinstance(model, str | Path) and not dynamic and state is None:
        from fuser.frontends.onnx.files import compile_file  # the compiler loads if it is needed

        return compile_file(
            Path(model), device=device, threads=threads, fusion=fusion, precision=precision,
            tune=tune, **options,
        )  # fmt: skip
    from fuser.frontends.onnx import model as onnx_models

    if torch_model:
        from fuser.frontends.torch.backend import compile_torch
        from fuser.frontends.torch.program import Options

        if dynamic:
            raise UsageError(
                "dynamic=True is for ONNX models",
                hint="export the module with dynamic_shapes: its open sizes stay open",
            )
        chosen = Options(device, threads, fusion, precision, freeze, tune)
        return compile_torch(model, example_inputs, chosen)
    if dynamic or state is not None:
        if tune:
            raise UsageError("kernels for many sizes are not tuned", hint="compile for given dims")
        if state is not None:
            from fuser.frontends.onnx.state import find_state
            from fuser.pipeline.stateful import StatefulPlan

            opened = onnx_models.open_model(model)
            return StatefulPlan(
                opened, find_state(opened) if state == "auto" else state, device=device,
                threads=threads, fusion=fusion, precision=precision, **options,
            )  # fmt: skip
        from fuser.pipeline.dynamic import DynamicPlan

        return DynamicPlan(
            onnx_models.open_model(model), device=device, threads=threads, fusion=fusion,
            precision=precision, **options,
        )  # fmt: skip
    return onnx_models.compile(
        model, device=device, threads=threads, fusion=fusion, precision=precision, tune=tune,
        **options,
    )  # fmt: skip


_COMMON = (
    "device", "threads", "fusion", "precision", "numerics", "batch_invariant", "dynamic", "tune"
)  # fmt: skip
_OF_TORCH = ("example_inputs", "freeze")
_OF_SIZES = ("dims", "progress")
_OF_ONNX = (*_OF_SIZES, "values", "limits", "host", "state", "devices")


def _compile_sharded(
    model: Any, devices: int | str, dynamic: bool, tune: bool, state: Any,
    options: Mapping[str, Any], **common: Any,
) -> ShardedPlan:  # fmt: skip
    given = [name for name in ("values", "host") if options.get(name, "error") != "error"]
    given += [name for name, on in (("dynamic", dynamic), ("tune", tune), ("state", state)) if on]
    if given:
        raise KeywordError(f"fuser.compile with devices={devices!r} takes no {given[0]!r}")
    from fuser.frontends.onnx.sharding.compile import compile_sharded

    taken = {name: item for name, item in options.items() if name != "host"}
    return compile_sharded(model, devices, **common, **taken)


def _check_options(
    torch_model: bool,
    dynamic: bool,
    options: Mapping[str, Any],
    example_inputs: Any,
    freeze: bool,
    stateful: bool,
) -> None:
    """Raise KeywordError for keywords that there are not, or that such a model does not take."""
    check_keywords("fuser.compile", options, (*_COMMON, *_OF_TORCH, *_OF_ONNX))
    known: tuple[str, ...]
    if torch_model:
        kind, known = "a PyTorch model", (*_COMMON, *_OF_TORCH)
    elif dynamic:
        kind, known = "dynamic=True", (*_COMMON, *_OF_SIZES)
    elif stateful:
        kind, known = "a model with state", (*_COMMON, *_OF_SIZES, "state")
    else:
        kind, known = "an ONNX model", (*_COMMON, *_OF_ONNX)
    given = [*options, *(["example_inputs"] if example_inputs is not None else [])]
    given += ["state"] if stateful else []
    for name in [*given, *([] if freeze else ["freeze"])]:
        if name not in known:
            raise KeywordError(
                f"the keyword {name!r} of fuser.compile is not for {kind}",
                hint=f"its keywords are {', '.join(known)}",
            )


def _is_torch(model: Any) -> bool:
    if "torch" not in sys.modules:
        return False
    from fuser.frontends.torch.backend import is_torch

    return is_torch(model)
