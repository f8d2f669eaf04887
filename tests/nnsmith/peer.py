"""A second opinion: ONNX Runtime, or where it has no kernel the reference of the onnx package, held
against the same bounds. Where a peer leaves them, the import may have misread the model."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping
from typing import Any

import onnx
from onnx.reference import ReferenceEvaluator

from tests.random_graphs.check import compare
from tests.random_graphs.draw import Drawing

Run = Callable[[Mapping[str, Any]], dict[str, Any]]
SECONDS = 15
"""A peer may take."""
Draw = Callable[[onnx.ModelProto], dict[str, Drawing]]


def peer_says(model: onnx.ModelProto, drawings: Mapping[str, Drawing], draw: Draw) -> str:
    """Empty if all is within bounds; else the peer and its first operator that leaves them, or why
    no peer runs the model."""
    name, run = "ONNX Runtime", _onnxruntime(model)
    if run is None:
        name, run = "onnx.reference", _reference(model)
    for kind, d in drawings.items():
        try:
            found = _within_limit(run, d.feeds)
        except Exception as error:  # the peer's own limits
            words = re.sub(r"'[^']*'|\d+", "_", str(error)).replace("\n", " ")
            return f"{name} does not run: {words[:160]}"
        if what := compare(d, found, flushed=True):
            return f"{name} outside, {kind} feeds, {_first(model, kind, name, draw)}: {what}"
    return ""


def _within_limit(run: Run, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The reference is Python, and slow for long windows. Raises TimeoutError."""

    def give_up(*_: object) -> None:
        raise TimeoutError(f"more than {SECONDS} s")

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS)
    try:
        return run(feeds)
    finally:
        signal.alarm(0)


def _onnxruntime(model: onnx.ModelProto) -> Run | None:
    """None if it is not installed or lacks a kernel."""
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception:  # of its own hierarchy, by the version
        return None
    outputs = [info.name for info in session.get_outputs()]
    inputs = [info.name for info in session.get_inputs()]

    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        found = session.run(None, {name: feeds[name] for name in inputs})
        return dict(zip(outputs, found, strict=True))

    return run


def _reference(model: onnx.ModelProto) -> Run:
    evaluator = ReferenceEvaluator(model)

    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        return dict(zip(evaluator.output_names, evaluator.run(None, dict(feeds)), strict=True))

    return run


def _first(model: onnx.ModelProto, kind: str, name: str, draw: Draw) -> str:
    """The first operator whose result leaves its bounds, when every value is an output."""
    try:
        whole = with_every_output(model)
        d = draw(whole)[kind]
        run = _onnxruntime(whole) if name == "ONNX Runtime" else _reference(whole)
        found = run(d.feeds) if run else {}
        outputs = dict(zip(d.graph.output_names, d.graph.outputs, strict=True))
        for node in whole.graph.node:
            for output in node.output:
                if output in outputs and output in found:
                    if _outside(d, output, found[output]):
                        return f"at {node.op_type}"
    except Exception as error:
        return f"at an operator unknown since {type(error).__name__}"
    return "at none with every value an output"


def _outside(d: Drawing, name: str, array: Any) -> bool:
    at = d.graph.output_names.index(name)
    one = Drawing(d.random, type(d.graph)(d.graph.name), bounds=d.bounds)
    one.graph.outputs, one.graph.output_names = [d.graph.outputs[at]], [name]
    return bool(compare(one, {name: array}, flushed=True))


def with_every_output(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every value of known type as an output."""
    whole = onnx.shape_inference.infer_shapes(model)
    infos = {info.name: info for info in whole.graph.value_info}
    have = {output.name for output in whole.graph.output}
    for node in whole.graph.node:
        for name in node.output:
            if name in infos and name not in have and node.op_type != "Constant":
                whole.graph.output.append(infos[name])
                have.add(name)
    return whole
