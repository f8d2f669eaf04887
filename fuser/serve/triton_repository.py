"""A model repository for NVIDIA Triton's Python backend around a plan file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from fuser.errors import UnsupportedError, UsageError
from fuser.runtime.container import read_file
from fuser.runtime.plan import Plan
from fuser.runtime.store import KIND
from fuser.serve.models import Model
from fuser.serve.tensors import Tensor

MODEL = Path(__file__).with_name("triton_model.py")
PLAN = "model.plan"


def write_repository(folder: Path | str, model: Model, plan: Path | str) -> Path:
    """Write FOLDER/NAME/config.pbtxt and FOLDER/NAME/1/ with model.py and the plan; the folder of
    the model. Requests share runs where they do in `fuser serve`.

    Raises UnsupportedError for bfloat16, which the backend cannot hand to NumPy, and UsageError."""
    for tensor in (*model.inputs, *model.outputs):
        if tensor.datatype == "BF16":
            raise UnsupportedError(
                f"{tensor.name!r} is bfloat16, which Triton's Python backend cannot give as an "
                "array", hint="let the model cast it",
            )  # fmt: skip
    if Path(model.name).name != model.name:
        raise UsageError(f"{model.name!r} is no name for a folder")
    home = Path(folder) / model.name
    try:
        (home / "1").mkdir(parents=True, exist_ok=True)
        (home / "config.pbtxt").write_text(config(model))
        shutil.copyfile(MODEL, home / "1" / "model.py")
        if isinstance(model.plan, Plan) and "model" in read_file(plan, KIND).manifest:
            model.plan.save(home / "1" / PLAN)  # with the weights, which a copy would not find
        else:
            shutil.copyfile(plan, home / "1" / PLAN)
    except OSError as error:
        raise UsageError(f"cannot write {home}: {error.strerror}") from error
    return home


def config(model: Model) -> str:
    """The text of config.pbtxt."""
    plan = model.plan
    target = plan.target if isinstance(plan, Plan) else plan.variants[0].bound.target
    rows = model.ladder[-1] if model.ladder else 0
    parts = [
        f"name: {json.dumps(model.name)}",
        'backend: "python"',
        f"max_batch_size: {rows}",
        *_tensors("input", model.inputs, int(rows > 0)),
        *_tensors("output", model.outputs, int(rows > 0)),
        f"instance_group [ {{ count: 1 kind: {'KIND_GPU' if target.is_cuda else 'KIND_CPU'} }} ]",
        *(["dynamic_batching { }"] if rows else []),
    ]
    return "\n".join(parts) + "\n"


def _tensors(kind: str, tensors: Sequence[Tensor], skip: int) -> list[str]:
    return [
        f"{kind} [ {{ name: {json.dumps(tensor.name)} data_type: TYPE_{tensor.datatype} "
        f"dims: {list(tensor.shape[skip:])} }} ]"
        for tensor in tensors
    ]
