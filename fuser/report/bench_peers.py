"""Other engines beside fuser in `fuser bench`: ONNX Runtime, OpenVINO, PyTorch.

Each is loaded where it is installed, on the same device, with as many threads, and is told the
sizes of this case, as fuser was: what its user would do for speed. Inputs and outputs are host
arrays.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fuser.report.bench import Engine


class AbsentError(Exception):
    """An engine that cannot take part; its text says why, and what would help."""


INSTALL = {"onnxruntime": "onnxruntime", "openvino": "openvino", "torch": "torch"}
"""The distribution of each engine."""


def missing(names: Sequence[str]) -> dict[str, str]:
    """The engines among these, names of PEERS with or without a device, whose package is not
    installed: the distribution to install, by name."""
    found = {}
    for name in names:
        kind, _, device = name.partition(":")
        if importlib.util.find_spec(kind) is None:
            gpu = kind == "onnxruntime" and device == "cuda"
            found[name] = "onnxruntime-gpu" if gpu else INSTALL[kind]
    return found


@dataclass(frozen=True)
class Request:
    """What a peer is to run.

    model: path of an ONNX file, or a `torch.export.ExportedProgram`, with the arguments to call it
    with in `arguments`. outputs: names, in the order to read them. device: "cpu", or "cuda:N".
    dtypes: of inputs, outputs and weights, by NumPy's names, as far as they are known.
    """

    model: Any
    feeds: Mapping[str, np.ndarray]
    outputs: Sequence[str]
    dims: Mapping[str, int]
    threads: int
    streams: int
    device: str
    precision: str = "model"
    dtypes: frozenset[str] = frozenset()
    arguments: tuple[tuple[Any, ...], Mapping[str, Any]] | None = None


def open_peer(name: str, request: Request) -> tuple[Engine, Mapping[str, Any]]:
    """The engine, ready to be called, and what its first call gave. name: of PEERS, with ":cpu" or
    ":cuda" after it for another device. Raises AbsentError."""
    kind, _, device = name.partition(":")
    if device:
        request = replace(request, device="cuda:0" if device == "cuda" else device)
    try:
        engine = PEERS[kind](request)
        return replace(engine, name=name), engine.read(engine.callers[0]())
    except AbsentError:
        raise
    except Exception as error:  # foreign packages raise what they like
        text = str(error).strip().splitlines() or [type(error).__name__]
        raise AbsentError(f"refused this model: {text[0]}") from error


def _load(name: str) -> Any:
    if importlib.util.find_spec(name) is None:
        raise AbsentError(f"not installed; pip install {INSTALL[name]}")
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise AbsentError(f"cannot be imported: {error}") from error


def _onnxruntime(request: Request) -> Engine:
    ort = _load("onnxruntime")
    if request.arguments is not None:
        raise AbsentError("it runs ONNX files, not exported programs")
    kind, _, number = request.device.partition(":")
    provider = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}[kind]
    if provider not in ort.get_available_providers():
        raise AbsentError(
            f"this one has no {provider}; pip install onnxruntime-gpu, or ask for onnxruntime:cpu"
        )
    settings = ort.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads = request.threads, 1
    settings.log_severity_level = 3
    for name, size in request.dims.items():
        settings.add_free_dimension_override_by_name(name, size)
    chosen = (provider, {"device_id": int(number)}) if kind == "cuda" else provider
    session = ort.InferenceSession(str(request.model), settings, providers=[chosen])
    wanted = {item.name for item in session.get_inputs()}
    feeds = {name: array for name, array in request.feeds.items() if name in wanted}
    outputs = list(request.outputs)
    return Engine(
        "onnxruntime", ort.__version__, session.get_providers()[0],
        [lambda: session.run(outputs, feeds)] * request.streams,
        lambda results: dict(zip(outputs, results, strict=True)),
    )  # fmt: skip


def _openvino(request: Request) -> Engine:
    openvino = _load("openvino")
    if request.arguments is not None:
        raise AbsentError("it is given ONNX files here, not exported programs")
    if request.device != "cpu":
        raise AbsentError("it has no NVIDIA GPUs; ask for openvino:cpu")
    core = openvino.Core()
    model = core.read_model(str(request.model))
    known = {name for port in model.inputs for name in port.names}
    feeds = {name: array for name, array in request.feeds.items() if name in known}
    model.reshape({name: list(array.shape) for name, array in feeds.items()})
    settings = {
        "PERFORMANCE_HINT": "LATENCY" if request.streams == 1 else "THROUGHPUT",
        "INFERENCE_PRECISION_HINT": "bf16" if request.precision == "bf16" else "f32",
        "INFERENCE_NUM_THREADS": request.threads,
        "NUM_STREAMS": request.streams,
    }
    compiled = core.compile_model(model, "CPU", settings)
    outputs = list(request.outputs)

    def caller() -> Callable[[], Any]:
        ready = compiled.create_infer_request()

        def call() -> list[np.ndarray]:
            found = ready.infer(feeds, share_inputs=True)
            return [np.array(found[name]) for name in outputs]

        return call

    return Engine(
        "openvino", openvino.__version__.partition("-")[0], "CPU",
        [caller() for _ in range(request.streams)],
        lambda results: dict(zip(outputs, results, strict=True)),
    )  # fmt: skip


def _torch(request: Request) -> Engine:
    if request.arguments is None:
        raise AbsentError("torch runs exported programs (.pt2), not ONNX files")
    torch = _load("torch")
    torch.set_num_threads(request.threads)
    module = request.model.module()
    call = torch_call(torch, module, request.arguments)
    return Engine(
        "torch", torch.__version__, request.device, [call] * request.streams, torch_results
    )


def torch_call(
    torch: Any, function: Any, arguments: tuple[tuple[Any, ...], Mapping[str, Any]]
) -> Callable[[], Any]:
    """A call that has ended when it returns, wherever the tensors are."""
    args, named = arguments
    on_gpu = any(getattr(x, "is_cuda", False) for x in (*args, *named.values()))

    def call() -> Any:
        with torch.inference_mode():
            found = function(*args, **named)
        if on_gpu:
            torch.cuda.synchronize()
        return found

    return call


def torch_results(found: Any) -> dict[str, np.ndarray]:
    """Tensors in any nest as arrays, by their number; 16-bit floats wider, as NumPy lacks some."""
    import torch
    from torch.utils import _pytree

    leaves = [x for x in _pytree.tree_leaves(found) if isinstance(x, torch.Tensor)]
    narrow = (torch.bfloat16, torch.float16)
    return {
        f"output {i}": (x.float() if x.dtype in narrow else x).detach().cpu().numpy()
        for i, x in enumerate(leaves)
    }


PEERS: Mapping[str, Callable[[Request], Engine]] = {
    "onnxruntime": _onnxruntime, "torch": _torch, "openvino": _openvino,
}  # fmt: skip
