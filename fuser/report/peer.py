"""What another engine makes of a model: its results, and how many kernels it runs."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fuser.errors import UsageError

_NO_KERNEL = frozenset(
    ("Constant", "Dropout", "Flatten", "Identity", "Reshape", "Shape", "Squeeze", "Unsqueeze")
)
"""Operators that move nothing."""


def run_onnxruntime(
    model: Path, feeds: Mapping[str, np.ndarray], dims: Mapping[str, int], threads: int | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The outputs by name, and `Report.peer`: the nodes of the graph that ONNX Runtime runs on the
    CPU at these sizes of symbolic dims, once it has fused what it fuses; views are not counted.
    Raises UsageError where it is not installed, or refuses the model."""
    try:
        onnxruntime = import_module("onnxruntime")
    except ImportError as error:
        raise UsageError(
            "ONNX Runtime is not installed", hint="pip install onnxruntime, or leave it out"
        ) from error
    import onnx

    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(Path(folder, "optimised.onnx"))
        options.log_severity_level = 3
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", "weights"
        )
        if threads:
            options.intra_op_num_threads = threads
        for name, size in dims.items():
            options.add_free_dimension_override_by_name(name, size)
        try:
            session = onnxruntime.InferenceSession(
                str(model), options, providers=["CPUExecutionProvider"]
            )
            results = session.run(None, dict(feeds))
        except Exception as error:  # it raises types of its own
            text = str(error).strip().splitlines() or [type(error).__name__]
            raise UsageError(f"ONNX Runtime refused the model: {text[0]}") from error
        graph = onnx.load(options.optimized_model_filepath, load_external_data=False).graph
    names = [output.name for output in session.get_outputs()]
    kernels = sum(node.op_type not in _NO_KERNEL for node in graph.node)
    peer = {"name": "onnxruntime", "version": onnxruntime.__version__, "kernels": kernels}
    return dict(zip(names, results, strict=True)), peer
