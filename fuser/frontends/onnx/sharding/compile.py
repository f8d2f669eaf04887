"""`fuser.compile(model, devices=N)`: a plan a rank, by the annotations of the model."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from onnx import ModelProto

from fuser.backend.cores import available_cores
from fuser.base.config import Config, within
from fuser.base.limits import Limits
from fuser.dtypes import DType
from fuser.frontends.onnx.importer import import_onnx
from fuser.frontends.onnx.model import Model, map_model, open_model
from fuser.frontends.onnx.sharding.annotations import (
    Configuration,
    Reader,
    check_annotations,
    choose,
)
from fuser.frontends.onnx.sharding.write import annotate_model
from fuser.graph.ir import Graph, TensorType
from fuser.graph.passes import run_passes
from fuser.graph.sharding.shard import Sharded, shard
from fuser.pipeline.compiler import compile_program
from fuser.pipeline.devices import Device, check_device, choose_target
from fuser.pipeline.fusion import Fusing
from fuser.pipeline.options import CompileOptions, Progress, quiet
from fuser.pipeline.precision import Precision
from fuser.runtime.inputs import input_hints
from fuser.runtime.program import Program, TensorSpec
from fuser.runtime.sharded import ShardedPlan, Tensor

if TYPE_CHECKING:
    from fuser.report.report import Report

_log = logging.getLogger("fuser")

COLLECTIVE = "DistCollective"
"""The operator of models that say themselves where ranks meet (importer/collective.py)."""


class RankSource:
    """The graph of one rank as a source for the pipeline."""

    def __init__(self, name: str, sharded: Sharded, types: Mapping[str, DType]) -> None:
        self.name, self._sharded, self.types = name, sharded, types

    @property
    def inputs(self) -> Mapping[str, TensorType]:
        return {value.name: value.type for value in self._sharded.graph.inputs}

    def bind(self, dims: Mapping[str, int]) -> dict[str, int]:
        return dict(dims)

    def graph(
        self, dims: Mapping[str, int], values: Mapping[str, np.ndarray] | None = None
    ) -> Graph:
        return run_passes(self._sharded.graph)

    def open_graph(
        self, fixed: Mapping[str, int], values: Mapping[str, np.ndarray] | None = None
    ) -> Graph:
        return self.graph(fixed)


def compile_sharded(
    source: str | Path | bytes | ModelProto | Model, devices: int | str, *,
    device: Device = "auto", dims: Mapping[str, int] | None = None, threads: int | None = None,
    fusion: Fusing = True, precision: Precision = "model", progress: Progress = quiet,
    limits: Limits | None = None,
) -> ShardedPlan:  # fmt: skip
    """Compile a model for so many devices, or for the device configuration of that name.

    A model with annotations is divided as they say; one without any as `fuser shard` would annotate
    it. threads: of each rank on a CPU, by default its share of the cores. device: "cuda" takes GPUs
    0 to devices - 1.
    Raises FuserError: UsageError (no such configuration), InvalidModelError (wrong annotations),
    UnsupportedError (nothing divides), and what compiling raises.
    """
    check_device(device, threads)
    with within(limits):
        progress("reading the annotations")
        opened = map_model(source) if isinstance(source, str | Path) else open_model(source)
        own = isinstance(source, str | Path | bytes)
        ranks, sharded, bound, graph = divided(opened, devices, dims or {}, own)
        share = threads or Config.from_environment().threads or max(1, available_cores() // ranks)
        target = choose_target(device, share)
        programs: list[Program] = []
        report: Report | None = None
        for rank in range(ranks):
            found = RankSource(opened.name, sharded(rank), opened.types)
            options = CompileOptions(
                device=target, fusion=fusion, precision=precision,
                progress=functools.partial(_told, progress, rank, ranks),
            )  # fmt: skip
            program, told = compile_program(found, options, dims=bound)
            programs.append(program)
            report = report or told
        if opened.mapped is not None:
            opened.mapped.check_unchanged()
        first = sharded(0)
        progress("starting the ranks")
        return ShardedPlan(
            programs,
            [
                Tensor(TensorSpec(spec.name, spec.dtype, first.inputs[spec.name].shape),
                       first.inputs[spec.name])
                for spec in programs[0].inputs
            ],
            [
                Tensor(TensorSpec(spec.name, spec.dtype, first.outputs[spec.name].shape),
                       first.outputs[spec.name])
                for spec in programs[0].outputs
            ],
            threads=share, report=report, hints=input_hints(graph),
        )  # fmt: skip


def _told(progress: Progress, rank: int, ranks: int, step: str) -> None:
    progress(f"rank {rank + 1} of {ranks}: {step}")


def divided(
    model: Model, devices: int | str, dims: Mapping[str, int], own: bool = False
) -> tuple[int, functools._lru_cache_wrapper[Sharded], dict[str, int], Graph]:
    """The number of ranks, a function from a rank to its graph, the sizes of all symbolic dims, and
    the graph of the whole model. own: the model may be annotated where it is."""
    chosen = choose(model.proto, devices)
    if chosen is None:
        count = int(devices)
        if any(node.op_type == COLLECTIVE for node in model.proto.graph.node):
            chosen = Configuration("", count)
        else:
            if not own:
                proto = ModelProto()
                proto.CopyFrom(model.proto)
                model = replace(open_model(proto), name=model.name)
            division = annotate_model(model, count, dims)
            if division.whole:
                _log.warning("%s: every rank computes %d of %d matmuls with weights", model.name,
                             division.whole, division.whole + division.matmuls)  # fmt: skip
            chosen = choose(model.proto, devices)
    assert chosen is not None
    check_annotations(model.proto)
    reader = Reader(chosen, bound := model.bind(dims))
    weights = model.mapped.weights if model.mapped else None
    graph = import_onnx(model.proto, bound, weights=weights, seen=reader.seen)
    make = functools.lru_cache(maxsize=1)(functools.partial(shard, graph, reader.marks))
    return chosen.devices, make, bound, graph
