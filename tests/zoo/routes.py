"""The ways from a torch module into fuser, and what came of a model on one of them."""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

import fuser
from fuser.pipeline.devices import Device
from fuser.report.report import Report
from models.zoo import zoo_feeds, zoo_module
from tests.networks import check_launches

Array = np.ndarray[Any, Any]

EXPORTERS = ("torchscript", "dynamo")
TRACES = ("torch.export", "torch.compile")
ROUTES = (*EXPORTERS, *TRACES)


@dataclass(frozen=True)
class Outcome:
    """error: the greatest relative error of the outputs. fallbacks: compute outside of kernels."""

    error: float
    before: int
    after: int
    fallbacks: tuple[str, ...]

    @classmethod
    def of(cls, error: float, reports: Sequence[Report]) -> Outcome:
        outside = [name for report in reports for name in report.fallbacks]
        outside += [
            " ".join(region.nodes)
            for report in reports
            for region in report.regions
            if region.kind == "host"
        ]
        before = sum(report.kernels.before for report in reports)
        return cls(error, before, sum(r.kernels.after for r in reports), tuple(outside))


def relative_error(found: Sequence[Any], wanted: Sequence[Array]) -> float:
    errors = []
    for output, expected in zip(found, wanted, strict=True):
        array = output.cpu().numpy() if isinstance(output, torch.Tensor) else output
        assert array.shape == expected.shape
        difference = np.linalg.norm(array.astype(np.float64) - expected)
        errors.append(float(difference / np.linalg.norm(expected)))
    return max(errors)


def tensors(feeds: Mapping[str, Array]) -> tuple[Any, ...]:
    return tuple(torch.from_numpy(array) for array in feeds.values())


def expected_outputs(name: str, feeds: Mapping[str, Array], dtype: str) -> list[Array]:
    """What PyTorch computes in float64, from the weights and feeds as `dtype` holds them."""
    module = zoo_module(name, dtype).double()
    wide = [x.double() if x.is_floating_point() else x for x in tensors(feeds)]
    with torch.no_grad():
        return [output.numpy() for output in module(*wide)]


def run_route(
    name: str, route: str, *, device: Device = "cpu", dtype: str = "float32", past: int = 4,
    on_device: bool = False,
) -> Outcome:  # fmt: skip
    """A model of the zoo on one route, beside PyTorch in float64.

    on_device: the module and its inputs are CUDA tensors (traces only). Exports are checked for the
    order of their launches, too.
    """
    feeds = zoo_feeds(name, dtype, past=past)
    wanted = expected_outputs(name, feeds, dtype)
    # Through TorchScript the other spelling writes an ill-typed float32 mask.
    eager = (route, dtype) == ("torchscript", "float16")
    module = zoo_module(name, dtype, attention="eager" if eager else "sdpa")
    inputs = tensors(feeds)
    if on_device:
        module, inputs = module.cuda(), tuple(x.cuda() for x in inputs)
    with torch.no_grad(), _quietly():
        if route in EXPORTERS:
            plan = fuser.compile(export(module, feeds, route), device=device)
            known = {spec.name for spec in plan.inputs}
            found = plan.run({key: x for key, x in feeds.items() if key in known})
            check_launches(plan.program)
            return Outcome.of(relative_error(list(found.values()), wanted), [plan.report()])
        if route == "torch.export":
            exported = torch.export.export(module, inputs, strict=False)
            compiled = fuser.compile(exported, device=device)
            return Outcome.of(relative_error(compiled(*inputs), wanted), [compiled.report(*inputs)])
        module(*inputs)  # transformers sets itself up on the first call, which dynamo cannot see
        with _plans() as plans:
            torch._dynamo.reset()
            fast = torch.compile(
                module, backend="fuser", fullgraph=True, options={"device": device}
            )
            error = relative_error(fast(*inputs), wanted)
        return Outcome.of(error, [plan.report() for plan in plans])


def export(
    module: Any, feeds: Mapping[str, Array], exporter: str, dynamic: bool = False
) -> onnx.ModelProto:
    """The module as one of the two exporters of PyTorch writes it. dynamic: batch, tokens and the
    length of a cache stay symbols (models with a cache)."""
    args, names = tensors(feeds), list(feeds)
    if exporter == "dynamo":
        free = [dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for axes in _axes(names).values()]
        program = torch.onnx.export(
            module, args, input_names=names, opset_version=20, dynamo=True, verbose=False,
            dynamic_shapes=(*free[:2], tuple(free[2:])) if dynamic else None,
        )  # fmt: skip
        assert program is not None
        proto: onnx.ModelProto = program.model_proto
        return proto
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        torch.onnx.export(
            module, args, path, input_names=names, opset_version=17, dynamo=False,
            dynamic_axes=_axes(names) if dynamic else None,
        )  # fmt: skip
        return onnx.load(path)


def _axes(names: Sequence[str]) -> dict[str, dict[int, str]]:
    """The symbolic axes of a model with a cache."""
    texts = {"input_ids": "tokens", "attention_mask": "all_tokens"}
    return {
        name: {0: "batch", 1: texts[name]} if name in texts else {0: "batch", 2: "past"}
        for name in names
    }


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Exporters print; LSTM is traced by dynamo only on request; a graph that fuser would leave to
    PyTorch is an error."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", "fuser leaves")
        with torch._dynamo.config.patch(allow_rnn=True):
            yield


@contextlib.contextmanager
def _plans() -> Iterator[list[Any]]:
    """The plans that are compiled meanwhile, as `torch.compile` hands none out."""
    from fuser.frontends.torch import program as torch_program

    plans: list[Any] = []
    original = torch_program.compile_graph

    def noted(*args: Any, **kwargs: Any) -> Any:
        plans.append(original(*args, **kwargs))
        return plans[-1]

    torch_program.compile_graph = noted
    try:
        yield plans
    finally:
        torch_program.compile_graph = original
