"""The model.py that NVIDIA Triton's Python backend loads: it runs the plan file beside it.

`fuser serve --triton-repository` copies this file. Triton's Python needs fuser installed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from fuser.serve.opening import open_model


class TritonPythonModel:
    """One instance of the model. Triton makes it, and hands it lists of requests."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the plan, once an instance."""
        config = json.loads(args["model_config"])
        on_gpu = args.get("model_instance_kind") == "GPU"
        place = Path(args["model_repository"]) / args["model_version"] / "model.plan"
        self._model = open_model(
            place, name=args["model_name"], most=max(1, config["max_batch_size"]),
            device=f"cuda:{args['model_instance_device_id']}" if on_gpu else "cpu",
        )  # fmt: skip

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """An answer for each request, in order; those that fit share runs."""
        feeds = [
            {
                tensor.name: pb_utils.get_input_tensor_by_name(request, tensor.name).as_numpy()
                for tensor in self._model.inputs
            }
            for request in requests
        ]
        answers = self._model.answer_each(feeds)
        return [self._response(*pair) for pair in zip(requests, answers, strict=True)]

    def _response(self, request: Any, answer: Any) -> Any:
        if isinstance(answer, Exception):
            error = pb_utils.TritonError(str(answer))
            return pb_utils.InferenceResponse(output_tensors=[], error=error)
        wanted = set(request.requested_output_names())
        return pb_utils.InferenceResponse(output_tensors=[
            pb_utils.Tensor(name, array) for name, array in answer.items() if name in wanted
        ])  # fmt: skip

    def finalize(self) -> None:
        """Free the plan."""
        self._model.plan.close()
